// The points of a figure as tables, one for all traces with the same columns.

const ROWS = 100; // of each trace; more rows would slow down the page, and nobody reads them

function number(value) {
  if (!Number.isFinite(value)) return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(5)).toString();
}

export function fillTable(into, traces) {
  const kinds = new Map();
  for (const trace of traces) {
    if (!trace.points) continue;
    const kind = trace.columns.join("\n");
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push(trace);
  }
  into.replaceChildren(...[...kinds.values()].map(table));
  if (!kinds.size) into.textContent = "No points yet.";
}

function table(traces) {
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
      for (const column of trace.data) row.insertCell().textContent = number(column[i]);
    }
  }
  if (left) element.createCaption().textContent = `The last ${ROWS} points drawn of each series.`;
  return element;
}
