// The points of a figure as tables, one for all traces with the same columns.

const ROWS = 100; // of each trace; more rows would slow down the page, and nobody reads them

function number(value) {
  if (!Number.isFinite(value)) return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(5)).toString();
}

/** Rows of a bar figure are numbers; `yaxis` has their names. */
export function fillTable(into, traces, yaxis = {}) {
  const names = new Map(yaxis.type === "log" ? [] : yaxis.tickvals?.map((place, i) => [place, yaxis.ticktext?.[i]]));
  const kinds = new Map();
  for (const trace of traces) {
    if (!trace.points) continue;
    const kind = trace.columns.join("\n");
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push(trace);
  }
  into.replaceChildren(...[...kinds.values()].map((alike) => table(alike, names)));
  if (!kinds.size) into.textContent = "No points yet.";
}

function table(traces, names) {
  const element = document.createElement("table");
  const head = element.createTHead().insertRow();
  for (const name of ["series", ...traces[0].columns]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = element.createTBody();
  let left = 0;
  for (const trace of traces) {
    const first = Math.max(0, trace.points - ROWS);
    left += first;
    for (let i = first; i < trace.points; i++) {
      const row = body.insertRow();
      row.insertCell().textContent = trace.style.name;
      trace.data.forEach((column, c) => {
        const name = trace.columns[c] === trace.at.y ? names.get(column[i]) : null;
        row.insertCell().textContent = name ?? number(column[i]);
      });
    }
  }
  if (left) element.createCaption().textContent = `The last ${ROWS} points drawn of each series.`;
  return element;
}
