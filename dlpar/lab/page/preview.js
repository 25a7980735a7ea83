// A plain first drawing of a figure, until plotly.js has loaded: axes, lines, marks and bars at the same places.

const DASHES = { dash: "9 6", dot: "2 4", solid: "" };
const MOST_MARKS = 20;

function shape(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/** An axis of plotly's layout: pixels of its ends, and of a value. */
export class Scale {
  constructor(name, layout) {
    const { width, height, margin } = layout, isX = name.startsWith("x"), axis = layout[name];
    const [from, to] = isX ? [margin.l, width - margin.r] : [height - margin.b, margin.t];
    const [low, high] = axis.domain ?? [0, 1], [first, last] = axis.range ?? [0, 1];
    this.isX = isX;
    this.axis = axis;
    this.isLog = axis.type === "log";
    this.first = first;
    this.last = last;
    this.begin = from + low * (to - from);
    this.end = from + high * (to - from);
  }

  at(value) {
    const share = ((this.isLog ? Math.log10(value) : value) - this.first) / (this.last - this.first);
    return this.begin + share * (this.end - this.begin);
  }

  /** Values with a tick, and their words. */
  ticks() {
    const { axis, first, last, isLog } = this;
    if (axis.tickvals) return axis.tickvals.map((value, i) => [value, axis.ticktext?.[i] ?? String(value)]);
    const rough = Math.abs(last - first) / 6, ten = 10 ** Math.floor(Math.log10(rough));
    const step = isLog ? Math.max(1, Math.round(rough)) : (axis.dtick ?? ten * ([1, 2, 5, 10].find((n) => n * ten >= rough) ?? 10));
    const places = [];
    for (let value = Math.ceil(Math.min(first, last) / step) * step; value <= Math.max(first, last) + step / 1e6; value += step) places.push(value);
    const words = (value) => (axis.tickformat?.endsWith("%") ? `${Math.round(100 * value)}%` : Number(value.toPrecision(6)).toLocaleString("en"));
    return places.map((value) => (isLog ? [10 ** value, `10^${value}`] : [value, words(value)]));
  }

  /** Line, ticks and title, beside the axis that crosses this one. */
  draw(across) {
    const { isX, axis } = this, edge = across.begin, away = isX ? 1 : -1, drawn = shape("g", { "font-size": 13 });
    const place = (along, out) => (isX ? [along, edge + away * out] : [edge + away * out, along]);
    const line = (a, b, opacity) => shape("path", { d: `M${a} L${b}`, stroke: "#888", "stroke-opacity": opacity });
    drawn.append(line(place(this.begin, 0), place(this.end, 0), 0.7));
    for (const [value, words] of this.ticks()) {
      const along = this.at(value), [x, y] = place(along, isX ? 20 : 9);
      if (axis.showgrid) drawn.append(line(place(along, 0), isX ? [along, across.end] : [across.end, along], 0.25));
      drawn.append(shape("text", { x, y: isX ? y : y + 4, "text-anchor": isX ? "middle" : "end" }, words));
    }
    const [x, y] = place((this.begin + this.end) / 2, isX ? 44 : 46), turn = isX ? "" : `rotate(-90 ${x} ${y})`;
    drawn.append(shape("text", { x, y, "text-anchor": "middle", "font-size": 14, transform: turn }, (axis.title?.text ?? "").replaceAll("<br>", " ")));
    return drawn;
  }
}

/** A line with its marks, and with gaps where a value is no number. */
function curve(/** @type {any} */ { x, y, mode = "", line = {}, marker = {}, opacity = 1 }, across, up) {
  const colour = line.color ?? marker.color ?? "#7f7f7f", drawn = shape("g", { opacity });
  const points = [...x].map((value, i) => [across.at(value), up.at(y[i])]);
  let path = "", pen = "M";
  for (const point of points) {
    const isThere = point.every(Number.isFinite);
    if (isThere) path += pen + point.map((place) => place.toFixed(1));
    pen = isThere ? "L" : "M";
  }
  const dash = DASHES[line.dash] ?? (line.dash ?? "").replaceAll("px", "");
  const looks = { fill: "none", stroke: colour, "stroke-width": line.width ?? 2, "stroke-dasharray": dash };
  if (mode.includes("lines")) drawn.append(shape("path", { d: path, ...looks }));
  const every = Math.ceil(points.length / (marker.maxdisplayed || MOST_MARKS));
  const marked = mode.includes("markers") ? points.filter((point, i) => i % every === 0 && point.every(Number.isFinite)) : [];
  for (const [cx, cy] of marked) drawn.append(shape("circle", { cx, cy, r: (marker.size ?? 6) / 2, fill: colour }));
  return drawn;
}

/** Bars; `tops` has the ends of the bars on which others are stacked. */
function bars(/** @type {any} */ { x, y, base, width, offset, orientation, marker = {} }, across, up, tops) {
  const drawn = shape("g", { fill: marker.color ?? "#7f7f7f" }), isFlat = orientation === "h";
  const [long, thick, lengths, places] = isFlat ? [across, up, x, y] : [up, across, y, x];
  lengths.forEach((length, i) => {
    const place = places[i], from = base?.[i] ?? tops?.get(place) ?? 0, wide = width ?? 0.8;
    tops?.set(place, from + length);
    const [a, b] = [from, from + length].map((value) => Math.min(Math.max(long.at(value), Math.min(long.begin, long.end)), Math.max(long.begin, long.end)));
    const [c, d] = [place + (offset ?? -wide / 2), place + (offset ?? -wide / 2) + wide].map((value) => thick.at(value));
    const [left, right, top, bottom] = isFlat ? [a, b, c, d] : [c, d, a, b];
    drawn.append(shape("rect", { x: Math.min(left, right), y: Math.min(top, bottom), width: Math.abs(right - left), height: Math.abs(bottom - top) }));
  });
  return drawn;
}

/** Draw the data and the layout that plotly.js will get. */
export function preview(data, layout) {
  const { width, height, margin } = layout;
  const drawn = shape("svg", { width, height, class: "dlpar-preview", "aria-hidden": "true" });
  const scales = new Map(Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name)).map((name) => [name, new Scale(name, layout)]));
  const named = (short) => scales.get(short.replace(/^[xy]/, "$&axis"));
  for (const [name, scale] of scales) if (scale.axis.visible !== false) drawn.append(scale.draw(named(scale.axis.anchor ?? (name[0] === "x" ? "y" : "x"))));
  const tops = new Map();
  for (const trace of data) {
    if (trace.visible === false || trace.mode === "text" || !trace.x?.length) continue;
    const across = named(trace.xaxis ?? "x"), up = named(trace.yaxis ?? "y"), key = trace.xaxis ?? "x";
    if (layout.barmode === "stack" && !tops.has(key)) tops.set(key, new Map());
    drawn.append(trace.type === "bar" ? bars(trace, across, up, tops.get(key)) : curve(trace, across, up));
  }
  for (const { text, x, y, xshift = 0, xref, yref, font } of layout.annotations ?? []) {
    if (xref === "paper" || yref !== "paper" || !Number.isFinite(x)) continue;
    const place = { x: named("x").at(x) + xshift, y: margin.t + (1 - y) * (height - margin.t - margin.b) + 4 };
    drawn.append(shape("text", { ...place, "font-size": 12, style: `fill: ${font?.color ?? "currentColor"}` }, text));
  }
  return drawn;
}
