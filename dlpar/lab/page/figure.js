// A growing figure: points arrive as binary messages, are kept here, and are drawn once a frame.

import { page, plotlyOnce } from "./plotly.js";
import { preview, Scale } from "./preview.js";
import { fillTable } from "./table.js";
import { make, rebuilt } from "./link.js";

const CONFIG = { displaylogo: false, displayModeBar: false, scrollZoom: false };
const LONGEST = 40, SHORTEST = 8, LETTER = 7; // letters of a name at the end of a line, the fewest where there is little room, and px of one
const SMALLEST = 240, LARGEST = 430; // px: heights of a figure
const BELOW = 70, ROW = 21; // px below a figure that stay visible: sentence and time line, and a row of the table of runs
const LEVELS = ["asked", "predicted"]; // keys of horizontal lines that belong to no run

/** Points and looks of one figure, whether or not it is on the screen. */
export class FigureData {
  traces = new Map();
  hidden = new Set(); // keys of traces that the reader has hidden
  caption = "";
  version = 0;
  zoom = 0; // counts how often zooming was undone
  x = "";
  logarithmic = false;
  height = 0;
  /** @type {any} */ layout = null;
  /** @type {Record<string, any>} */ x_axes = {};
  /** @type {number | null} */ moment = null;
  /** @type {number | null} */ origin = null; // moment at which a window of time begins

  take(news, buffers) {
    this.version += 1;
    if (news.whole) {
      const { layout, x_axes, height, logarithmic, caption, x, origin } = news;
      Object.assign(this, { layout, x_axes, height, logarithmic, caption, x, origin });
      const filled = news.traces.map((t, i) => ({ ...t, data: columns(buffers[i], t.columns.length) }));
      this.traces = new Map(filled.map((trace) => [trace.key, trace]));
      return;
    }
    this.caption = news.caption ?? this.caption;
    this.origin = news.origin ?? this.origin;
    for (const [axis, looks] of Object.entries(news.axes ?? {})) Object.assign(this.x_axes[axis] ?? this.layout[axis], looks);
    news.traces.forEach((fresh, i) => {
      const trace = this.traces.get(fresh.key);
      const data = columns(buffers[i], trace.columns.length);
      trace.data = fresh.whole ? data : trace.data.map((old, c) => joined(old, data[c]));
      trace.points = trace.data[0].length;
    });
  }

  /** plotly's data and layout; `runs` are the runs of the panel by key, and some of them are hidden. */
  plotlyArguments({ logarithmic, runs, hidden, width, height, ink }) {
    const labels = [];
    const data = [...this.traces.values()].map((trace) => {
      const attributes = { ...trace.style, showlegend: false };
      for (const [attribute, column] of Object.entries(trace.at))
        attributes[attribute] = trace.data[trace.columns.indexOf(column === "*" ? this.x : column)];
      const run = runs.get(trace.key.split(" ")[0]), { name, line, yaxis } = trace.style;
      if (hidden.has(run?.key) || this.hidden.has(trace.key)) attributes.visible = false;
      else if (isNamed(trace, runs) && trace.points && !yaxis && trace.style.showlegend !== false && attributes.visible !== false)
        labels.push(endOf(trace, attributes, { name: run?.name ?? name, colour: mixed(run?.colour ?? line.color, ink) }));
      return attributes;
    });
    const layout = structuredClone({ ...this.layout, width, height, uirevision: [this.x, logarithmic, this.zoom].join(), showlegend: false });
    if (this.x_axes[this.x]) layout.xaxis = { ...layout.xaxis, ...structuredClone(this.x_axes[this.x]) };
    if (logarithmic) layout.yaxis = { ...layout.yaxis, type: "log", range: decades(data, layout.yaxis.range[1]) };
    layout.font = { ...layout.font, color: ink };
    const longest = Math.max(SHORTEST, Math.min(LONGEST, Math.floor((width / 3 - 20) / LETTER)));
    layout.margin = { ...layout.margin, t: 8, r: Math.max(16, ...labels.map(({ name }) => 20 + LETTER * Math.min(longest, name.length))) };
    if (labels.length) layout.annotations = [...(layout.annotations ?? []), ...spread(labels, layout, height, longest)];
    return [data, layout];
  }

  /** Position of a moment, in seconds of the run's clock, on the horizontal axis; null if the axis has no time. */
  placeOf(moment) {
    if (moment == null || this.origin != null) return moment == null ? null : 1000 * (moment - this.origin);
    const over = (trace) => (trace.at.x === "*" ? this.x : trace.at.x);
    const timed = [...this.traces.values()].filter((t) => t.columns.includes("seconds") && t.points > 1 && !t.key.startsWith("predicted"));
    const trace = timed.at(-1);
    if (!trace) return null;
    if (over(trace) === "seconds") return moment;
    const [times, places] = ["seconds", over(trace)].map((name) => trace.data[trace.columns.indexOf(name)]);
    if (!places) return null;
    const next = times.findIndex((t) => t >= moment);
    return places[next < 0 ? places.length - 1 : next];
  }

  /** Moment of a point under the pointer; null if the axis has no time. */
  momentAt({ points: [point], xvals }) {
    if (this.origin != null) return this.origin + xvals[0] / 1000;
    const trace = [...this.traces.values()][point.curveNumber], at = trace.columns.indexOf("seconds");
    return trace.data[at]?.[point.pointNumber] ?? null;
  }

  /** Names of curves that are not at the ends of lines. */
  legend(runs) {
    return [...this.traces.values()].filter((trace) => {
      return trace.style.showlegend !== false && trace.style.visible !== false && trace.style.name && !isNamed(trace, runs);
    });
  }
}

/** Whether a curve is named beside the figure: a compared run, or a level with which runs are compared. */
function isNamed({ key }, runs) {
  return runs.size > 1 && (LEVELS.includes(key) || (runs.has(key.split(" ")[0]) && !key.includes(" rank ")));
}

/** Name and height of a line: its mean if the figure gives one, otherwise its newest number. */
function endOf(trace, { y }, { name, colour }) {
  let last = trace.points - 1;
  while (last > 0 && !Number.isFinite(y[last])) last -= 1;
  return { name, y: trace.style.meta ?? y[last], colour };
}

/** Names beside the figure, at the heights of their lines, but far enough apart to be read. */
function spread(labels, layout, height, longest) {
  const { range, type, domain = [0, 1] } = layout.yaxis, [low, high] = range;
  const inside = height - (layout.margin.b ?? 54) - layout.margin.t;
  const least = 17 / inside;
  const at = (y) => domain[0] + (domain[1] - domain[0]) * Math.min(1, Math.max(0, ((type === "log" ? Math.log10(y) : y) - low) / (high - low)));
  const sorted = labels.map((label) => ({ ...label, at: at(label.y) || 0 })).sort((a, b) => a.at - b.at);
  sorted.forEach((label, i) => { if (i) label.at = Math.max(label.at, sorted[i - 1].at + least); });
  const over = Math.max(0, (sorted.at(-1)?.at ?? 0) - 1);
  return sorted.map(({ name, at, colour }) => ({
    text: name.length > longest ? `${name.slice(0, longest - 1)}…` : name, hovertext: name, showarrow: false, xref: "paper", x: 1, xanchor: "left", xshift: 6,
    yref: "paper", y: at - over, yanchor: "middle", font: { size: 12, color: colour },
  }));
}

/** A colour (#rrggbb) with some of the page's ink (rgb): a name must stand out more than its line. */
function mixed(colour, ink) {
  const inks = ink.match(/[\d.]+/g).map(Number);
  return `rgb(${[1, 3, 5].map((at, i) => Math.round(0.7 * parseInt(colour.slice(at, at + 2), 16) + 0.3 * inks[i]))})`;
}

function decades(data, top) {
  let least = top;
  for (const trace of data) if (!trace.yaxis) for (const y of trace.y) if (y > 0 && y < least) least = y;
  return [Math.floor(Math.log10(least)), Math.ceil(Math.log10(top))];
}

function columns(view, count) {
  const all = new Float64Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  const points = all.length / count;
  return Array.from({ length: count }, (_, c) => all.subarray(c * points, (c + 1) * points));
}

function joined(old, fresh) {
  const both = new Float64Array(old.length + fresh.length);
  both.set(old);
  both.set(fresh, old.length);
  return both;
}

/** The place on the page where the figure in front is drawn. */
export class FigureView {
  title = "";
  signature = "";
  axes = "";
  logarithmic = false;
  freeze = false;
  waiting = false; // a drawing is under way, or will be in the next frame
  again = false;
  disposed = false;
  filled = 0;
  version = 0;
  size = { width: 0, height: 0 };
  /** @type {FigureData | null} */ data = null;
  /** @type {FigureData | null} */ drawn = null;

  /** @type {any} */ layout = null; // of the drawn figure

  /**
   * @param link asks the kernel  @param runs returns the runs of the panel by key  @param hidden keys of runs
   * @param hovered called with the moment of a point under the pointer
   */
  constructor(link, runs, hidden, hovered) {
    this.hovered = hovered;
    this.link = link;
    this.runs = runs;
    this.hiddenRuns = hidden;
    this.tools = make("div", { className: "dlpar-tools" });
    this.legend = make("div", { className: "dlpar-legend" });
    this.loading = make("div", { className: "dlpar-loading" }, "Loading the figure …");
    this.plot = make("div", { className: "dlpar-plot", role: "img" }, this.loading);
    this.moment = make("div", { className: "dlpar-moment", hidden: true });
    this.caption = make("p", { className: "dlpar-caption" });
    this.table = make("div", { tabIndex: 0, role: "region", "aria-label": "Data of the figure" });
    this.details = make("details", { className: "dlpar-data" }, make("summary", {}, "Data as table"), this.table);
    this.details.addEventListener("toggle", () => this.fill());
    const above = make("div", { className: "dlpar-above" }, this.legend, this.tools);
    this.root = make("div", { className: "dlpar-live", role: "tabpanel" }, above, make("div", { className: "dlpar-stage" }, this.plot, this.moment), this.caption);
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.root);
    // plotly.js has fixed colours, so a new theme needs a new drawing; the theme's style sheet may load later.
    this.themed = new MutationObserver(() => [0, 300, 1500].forEach((wait) => setTimeout(() => this.schedule(), wait)));
    this.themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light"] });
    plotlyOnce(link).then(() => this.schedule());
  }

  dispose() {
    this.disposed = true;
    this.resized.disconnect();
    this.themed.disconnect();
    if (!this.waiting) page.plotly?.purge(this.plot);
  }

  /** Draw another figure. */
  show(title, data) {
    if (data === this.data) return this.schedule();
    Object.assign(this, { title, data, signature: "", filled: 0 });
    this.root.setAttribute("aria-label", title);
    this.plot.setAttribute("aria-label", data?.caption ?? "");
    this.schedule();
  }

  schedule() {
    if (this.waiting || this.disposed) return;
    this.waiting = true;
    requestAnimationFrame(async () => {
      if (!this.disposed) await this.draw().catch((error) => console.error("dlpar figure", error));
      this.waiting = false;
      if (this.disposed) return page.plotly?.purge(this.plot);
      if (this.again) this.schedule();
      this.again = false;
    });
  }

  async draw() {
    const { plotly } = page, { data, title } = this;
    if (!data?.layout || (this.freeze && this.drawn === data) || !this.plot.clientWidth) return;
    const version = data.version, runs = this.runs();
    this.loading.remove();
    this.buildTools();
    this.buildLegend(runs);
    // The size is given: plotly's own measure fails if a notebook removes a cell from the page while it scrolls.
    const size = (this.size = { width: this.plot.clientWidth, height: this.height() });
    this.plot.style.height = `${size.height}px`;
    const looks = { logarithmic: this.logarithmic && data.logarithmic, hidden: this.hiddenRuns, ink: getComputedStyle(this.root).color };
    const [traces, layout] = data.plotlyArguments({ ...looks, runs, ...size });
    const axes = `${Boolean(plotly)} ${Object.keys(layout).filter((name) => name.includes("axis"))}`;
    const same = this.drawn === data && this.axes === axes; // other axes need a new drawing: plotly.js would mix them up
    if (!plotly || this.plot.querySelector(".dlpar-preview")) this.plot.replaceChildren(...(plotly ? [] : [preview(traces, layout)]));
    if (plotly) await (same ? plotly.react : plotly.newPlot)(this.plot, traces, layout, CONFIG);
    if (plotly && !same) {
      this.plot.on("plotly_hover", (event) => this.hovered(data.momentAt(event)));
      this.plot.on("plotly_relayout", () => this.mark());
    }
    Object.assign(this, { drawn: data, version, axes, layout });
    this.mark();
    this.caption.textContent = data.caption;
    this.plot.setAttribute("aria-label", data.caption);
    if (this.details.open && Date.now() - this.filled > 1000) this.fill();
    if (data.version !== version || this.data !== data || this.plot.clientWidth !== size.width) this.again = true;
    this.root.dispatchEvent(new CustomEvent("dlpar:drawn", { bubbles: true, detail: { at: Date.now(), figure: data, title } }));
  }

  /** Mark the moment that was chosen by hand, or by a point in any figure. */
  mark() {
    const { data, layout } = this, place = data?.placeOf(data.moment);
    this.moment.hidden = true;
    if (place == null || !layout || this.drawn !== data) return;
    const range = /** @type {any} */ (this.plot).layout?.xaxis?.range ?? layout.xaxis.range; // where the reader has zoomed
    const across = new Scale("xaxis", { ...layout, xaxis: { ...layout.xaxis, range } });
    const [up, low] = ["y", layout.xaxis.anchor ?? "y"].map((name) => new Scale(name.replace("y", "yaxis"), layout));
    const left = across.at(place);
    if (left < across.begin - 1 || left > across.end + 1) return;
    Object.assign(this.moment.style, { left: `${left}px`, top: `${up.end}px`, height: `${low.begin - up.end}px` });
    this.moment.hidden = false;
  }

  /** Height that the view allows, so that a whole panel is visible, but at least the height that the figure needs. */
  height() {
    const outer = this.root.closest(".jp-WindowedPanel-outer, .jp-Notebook")?.clientHeight ?? innerHeight;
    const above = this.plot.getBoundingClientRect().top - (this.root.closest(".dlpar-panel") ?? this.root).getBoundingClientRect().top;
    const rows = this.data.layout.yaxis?.ticktext?.length ?? 0;
    const below = BELOW + ROW * (1 + Math.max(2, this.runs().size)); // room for two runs, so that nothing moves when they come
    return Math.max(SMALLEST, 24 * rows + 70, Math.min(LARGEST, outer - above - below));
  }

  buildTools() {
    const { data } = this, choices = Object.keys(data.x_axes);
    const signature = JSON.stringify([choices, data.logarithmic]), axis = this.tools.querySelector("select");
    if (axis) axis.value = data.x;
    if (signature === this.signature) return;
    this.signature = signature;
    this.tools.replaceChildren();
    if (choices.length > 1) this.tools.append(this.axisChoice(choices));
    if (data.logarithmic) this.tools.append(this.toggle("logarithmic"));
    this.tools.append(this.toggle("freeze"));
    const icon = (sign, title, onclick) => make("button", { title, "aria-label": title, onclick }, sign);
    const zoom = icon("⟲", "Show the whole figure again", () => this.reset());
    const save = icon("⤓", "Save the figure as a picture", () => page.plotly?.downloadImage(this.plot, { format: "png", scale: 2 }));
    this.tools.append(zoom, save);
  }

  /** Undo zooming. */
  reset() {
    this.data.zoom += 1;
    this.data.version += 1;
    this.schedule();
  }

  axisChoice(choices) {
    const select = make("select");
    for (const name of choices) select.add(new Option(name, name, false, name === this.data.x));
    select.addEventListener("change", () => {
      this.data.x = select.value;
      this.data.version += 1;
      this.link.send({ do: "axis", figure: this.title, x: select.value });
      this.schedule();
    });
    return make("label", {}, "over ", select);
  }

  toggle(name) {
    const box = make("input", { type: "checkbox", checked: this[name] });
    box.addEventListener("change", () => {
      this[name] = box.checked;
      this.schedule();
    });
    return make("label", {}, box, ` ${name}`);
  }

  /** Curves by name, with a piece of each line; a press hides or shows a curve. */
  buildLegend(runs) {
    const shown = this.data.legend(runs);
    const entry = (trace) => {
      const press = () => {
        const { hidden } = this.data;
        if (!hidden.delete(trace.key)) hidden.add(trace.key);
        this.data.version += 1;
        this.schedule();
      };
      const button = make("button", { className: "dlpar-entry", title: "Hide or show it", onclick: press, "aria-pressed": !this.data.hidden.has(trace.key) });
      button.dataset.key = trace.key;
      button.append(swatch(trace.style), make("span", {}, trace.style.name));
      return button;
    };
    const shows = [this.title, ...shown.map(({ key, style }) => [key, style.name, this.data.hidden.has(key)])];
    rebuilt(this.legend, shows, () => this.legend.replaceChildren(...shown.map(entry)));
  }

  fill() {
    this.filled = Date.now();
    if (this.details.open && this.data) fillTable(this.table, [...this.data.traces.values()], this.data.layout.yaxis);
  }

  resize() {
    if (!this.plot.clientWidth || !this.data) return; // out of the page, or behind another tab
    const missed = !this.freeze && this.version !== this.data.version; // points that arrived in the meantime
    if (this.plot.clientWidth !== this.size.width || missed) this.schedule();
  }
}

const MARKS = {
  "triangle-right": "M8,1 L19,6 L8,11 Z",
  default: "M9,6 a4,4 0 1,0 8,0 a4,4 0 1,0 -8,0 Z",
};
const SIMPLE = /^[#\w(),.%\s-]*$/; // colours and dashes come from our own theme, and nothing else is drawn

/** A sample of a curve or a bar, as drawn. */
function swatch(/** @type {any} */ { type, line = {}, marker = {}, mode = "" }) {
  const colour = line.color ?? marker.color ?? "#7f7f7f", svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 26 12");
  svg.setAttribute("aria-hidden", "true");
  const dash = { dash: "7 4", dot: "2 3", solid: "" }[line.dash] ?? (line.dash ?? "").replaceAll("px", "").replaceAll(",", " ");
  if (![colour, dash].every((text) => SIMPLE.test(text))) return svg;
  if (type === "bar") {
    const hatched = marker.pattern?.shape ? `<path d="M2,12 L14,0 M12,12 L24,0" stroke="#fff" stroke-width="2"/>` : "";
    svg.innerHTML = `<rect width="26" height="12" fill="${colour}"/>${hatched}`;
    return svg;
  }
  const open = marker.symbol?.endsWith("-open") ? `fill="none" stroke-width="2"` : `fill="${colour}"`;
  const mark = `<path d="${MARKS[marker.symbol] ?? MARKS.default}" stroke="${colour}" ${open}/>`;
  const stroke = `<path d="M0,6 H26" stroke="${colour}" stroke-width="${Math.min(5, line.width ?? 2)}" stroke-dasharray="${dash}"/>`;
  svg.innerHTML = (mode.includes("lines") ? stroke : "") + (mode.includes("markers") ? mark : "");
  return svg;
}
