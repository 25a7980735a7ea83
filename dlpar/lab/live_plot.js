// A growing figure: points arrive as binary messages, are kept here and are drawn once a frame.

const SILENCE = 6000; // ms without a message during a run, after which the page shows a warning
const GONE = "The kernel was restarted: its job has ended. Run the cell again.";
const SILENT = "No word from the kernel: it may have been restarted. If so, run the cell again.";

const CONFIG = { displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

/** Data of one figure, whether or not it is on the screen. */
class Figure {
  constructor(model) {
    this.model = model;
    this.views = new Set();
    this.traces = new Map();
    this.sequence = -1;
    this.heard = Date.now();
    this.live = false;
    this.gone = "";
    model.on("msg:custom", (message, buffers) => this.receive(message, buffers));
    model.on("comm_live_update", () => setTimeout(() => this.checkComm(), 0));
    model.on("change:x", () => this.draw());
    this.kernel = model.widget_manager?.kernel;
    this.onStatus = (_, status) => {
      if (["restarting", "autorestarting", "dead"].includes(status)) this.lost(GONE);
    };
    this.kernel?.statusChanged?.connect(this.onStatus);
    this.timer = setInterval(() => {
      if (this.live && Date.now() - this.heard > SILENCE) this.lost(SILENT);
      // A notebook may remove a cell from the page and restore it between two calls of the observer.
      for (const view of this.views) view.resize();
    }, 1000);
    plotlyOnce(model).then(() => this.draw());
    this.askFigure();
  }

  dispose() {
    clearInterval(this.timer);
    this.kernel?.statusChanged?.disconnect(this.onStatus);
  }

  askFigure() {
    this.sequence = -1; // until the snapshot arrives, points are of no use
    this.model.send({ ask: "figure" });
  }

  checkComm() {
    const shown = [...this.views][0];
    if (shown?.root.closest(".jupyter-widgets-disconnected")) this.lost(GONE);
  }

  lost(why) {
    if (this.gone === GONE) return;
    this.gone = why;
    if (why === GONE) this.live = false;
    for (const view of this.views) view.banner();
  }

  receive(message, buffers) {
    this.heard = Date.now();
    if (this.gone === SILENT) this.lost("");
    if (message.is === "plotly") return void plotlyArrived(buffers[0]);
    if (message.is === "figure") this.takeFigure(message, buffers);
    else if (this.sequence >= 0 && message.sequence === this.sequence + 1) this.takePoints(message, buffers);
    else if (this.sequence >= 0 && message.sequence > this.sequence) return this.askFigure();
    else return;
    this.sequence = message.sequence;
    this.live = message.live ?? this.live;
    this.draw();
  }

  takeFigure(message, buffers) {
    const { layout, x_axes, height, logarithmic, caption } = message;
    Object.assign(this, { layout, x_axes, height, logarithmic, caption });
    const filled = message.traces.map((t, i) => ({ ...t, data: columns(buffers[i], t.columns.length) }));
    this.traces = new Map(filled.map((trace) => [trace.key, trace]));
    for (const view of this.views) view.rebuild();
  }

  takePoints(message, buffers) {
    this.caption = message.caption ?? this.caption;
    for (const [axis, range] of Object.entries(message.ranges ?? {}))
      (this.x_axes[axis] ?? this.layout[axis]).range = range;
    for (const [axis, every] of Object.entries(message.ticks ?? {})) this.layout[axis].dtick = every;
    for (const [axis, text] of Object.entries(message.titles ?? {})) this.layout[axis].title.text = text;
    message.traces.forEach((news, i) => {
      const trace = this.traces.get(news.key);
      const fresh = columns(buffers[i], trace.columns.length);
      trace.data = news.whole ? fresh : trace.data.map((old, c) => joined(old, fresh[c]));
      trace.points = trace.data[0].length;
    });
  }

  draw() {
    for (const view of this.views) view.schedule();
  }

  /** plotly's data and layout for the chosen horizontal axis. */
  plotlyArguments(logarithmic) {
    const x = this.model.get("x");
    const data = [...this.traces.values()].map((trace) => {
      const attributes = { ...trace.style };
      for (const [attribute, column] of Object.entries(trace.at))
        attributes[attribute] = trace.data[trace.columns.indexOf(column === "*" ? x : column)];
      return attributes;
    });
    const layout = { ...this.layout, uirevision: x + logarithmic };
    if (this.x_axes[x]) layout.xaxis = { ...layout.xaxis, ...this.x_axes[x] };
    const { yaxis } = layout;
    if (logarithmic) layout.yaxis = { ...yaxis, type: "log", range: this.decades(data, yaxis.range[1]) };
    return [data, structuredClone(layout)]; // plotly writes into the layout it is given
  }

  decades(data, top) {
    let least = top;
    for (const trace of data) if (!trace.yaxis) for (const y of trace.y) if (y > 0 && y < least) least = y;
    return [Math.floor(Math.log10(least)), Math.ceil(Math.log10(top))];
  }
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

/** One place on the page where a figure is drawn. */
class View {
  constructor(figure, el) {
    this.figure = figure;
    this.root = el;
    el.classList.add("dlpar-live");
    el.innerHTML = `
      <div class="dlpar-gone" role="alert" hidden></div>
      <div class="dlpar-tools"></div>
      <div class="dlpar-plot" role="img"><div class="dlpar-loading">Loading the figure …</div></div>
      <p class="dlpar-caption"></p>
      <details class="dlpar-data"><summary>Data as table</summary>
        <div tabindex="0" role="region" aria-label="Data of the figure"></div></details>
      <div class="dlpar-spoken" role="status"></div>`;
    [this.gone, this.tools, this.plot, this.caption, this.data, this.spoken] = el.children;
    this.spokenLive = figure.live;
    this.data.addEventListener("toggle", () => this.fillTable());
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(el);
    figure.views.add(this);
    this.banner();
    if (figure.layout) this.rebuild();
  }

  dispose() {
    this.resized.disconnect();
    page.plotly?.purge(this.plot);
    this.figure.views.delete(this);
  }

  banner() {
    this.gone.textContent = this.figure.gone;
    this.gone.hidden = !this.figure.gone;
    this.root.closest(".dlpar-panel")?.classList.toggle("dlpar-ended", this.figure.gone === GONE);
  }

  rebuild() {
    this.plot.style.height = `${this.figure.height}px`;
    const signature = JSON.stringify([Object.keys(this.figure.x_axes), this.figure.logarithmic]);
    if (signature !== this.signature) this.buildTools();
    this.signature = signature;
    this.schedule();
  }

  buildTools() {
    const choices = Object.keys(this.figure.x_axes);
    this.tools.replaceChildren();
    if (choices.length > 1) this.tools.append(this.axisChoice(choices));
    if (this.figure.logarithmic) this.tools.append(this.toggle("logarithmic", () => this.schedule()));
    this.tools.append(this.toggle("freeze", () => this.schedule()));
  }

  axisChoice(choices) {
    const label = document.createElement("label");
    const select = document.createElement("select");
    const chosen = this.figure.model.get("x");
    for (const name of choices) select.add(new Option(name, name, false, name === chosen));
    select.addEventListener("change", () => {
      this.figure.model.set("x", select.value);
      this.figure.model.save_changes();
    });
    label.append("over ", select);
    return label;
  }

  toggle(name, changed) {
    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.addEventListener("change", () => {
      this[name] = box.checked;
      changed();
    });
    label.append(box, " ", name);
    return label;
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(async () => {
      await this.drawNow().catch((error) => console.error("dlpar figure", error));
      this.waiting = false;
      if (this.again) this.schedule();
      this.again = false;
    });
  }

  async drawNow() {
    const { plotly } = page;
    if (!plotly || !this.figure.layout || this.freeze || !this.plot.clientWidth) return;
    const newest = this.figure.sequence;
    if (!this.drawn) this.plot.replaceChildren();
    const [data, layout] = this.figure.plotlyArguments(this.logarithmic ?? false);
    // Given, not measured by plotly, which fails if a notebook removes a cell from the page while it scrolls.
    const width = (this.width = layout.width = this.plot.clientWidth);
    layout.height = this.figure.height;
    await plotly.react(this.plot, data, layout, CONFIG);
    this.drawn = true;
    this.sequence = newest;
    this.caption.textContent = this.figure.caption;
    this.plot.setAttribute("aria-label", this.figure.caption);
    for (const icon of this.plot.querySelectorAll(".modebar svg")) icon.setAttribute("aria-hidden", "true");
    if (this.data.open && Date.now() - (this.filled ?? 0) > 1000) this.fillTable();
    if (this.spokenLive !== this.figure.live) this.speak();
    if (this.figure.sequence !== newest || this.plot.clientWidth !== width) this.again = true;
    const detail = { at: Date.now(), figure: this.figure };
    this.root.dispatchEvent(new CustomEvent("dlpar:drawn", { bubbles: true, detail }));
  }

  /** Announce the start and the end of a run to screen readers; everything between would be noise. */
  speak() {
    this.spokenLive = this.figure.live;
    const words = () => this.root.closest(".dlpar-panel")?.querySelector(".dlpar-words")?.textContent ?? "";
    const say = () => (this.spoken.textContent = this.spokenLive ? "A run has begun." : `${words()}. ${this.figure.caption}`);
    setTimeout(say, 500); // the final status arrives in a separate message
  }

  fillTable() {
    this.filled = Date.now();
    if (this.data.open) fillTable(this.data.lastElementChild, [...this.figure.traces.values()]);
  }

  resize() {
    const width = this.plot.clientWidth;
    if (!width) return; // out of the page, or behind another tab
    const missed = !this.freeze && this.sequence !== this.figure.sequence; // points that arrived in the meantime
    if (width === this.width && !missed) return;
    if (this.freeze && this.drawn) page.plotly.relayout(this.plot, { width: (this.width = width) });
    else this.schedule();
  }
}

export default () => {
  let figure;
  return {
    initialize({ model }) {
      figure = new Figure(model);
      return () => figure.dispose();
    },
    render({ el }) {
      const view = new View(figure, el);
      return () => view.dispose();
    },
  };
};
