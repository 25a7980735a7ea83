// The panel of a lab: controls, buttons, status, tabs with figures, runs, log and recordings, from one model.

import { FigureData, FigureView } from "./figure.js";
import { GONE, Link, make, rebuilt } from "./link.js";
import { columnsOf, FACTS, inWords, quantity } from "./results.js";

/** Buttons by their requests: label and effect. */
const BUTTONS = {
  run: ["Run", "Start the ranks"],
  stop: ["Stop", "End the job and all its ranks"],
  clear: ["Clear", "Remove earlier runs from the figures; their folders stay"],
  simulate: ["Simulate it now", "Leave the queue and run the same in the simulated world, which has no queue"],
  watch: ["Watch a recording", "Leave the queue and play your newest run of this kind"],
  resume: ["Resume", "Continue this run from its newest snapshot, in the same folder"],
  take: ["Take it", "Set the controls as your teacher did; nothing runs yet"],
  undo: ["Undo", "Restore your own controls"],
  away: ["Not now", "Hide the offer"],
};

/** Requests to a running rank: sign of the button, its name for screen readers, and its effect. */
const ORDERS = {
  kill: ["✕", "Kill", "its process ends, as if its machine died; 'on death' sets what happens then"],
  pause: ["❚❚", "Stop for 3 seconds", "it does nothing for 3 s, then continues"],
  slow: ["¼", "Slow down", "it computes four times as long until this is pressed again"],
};
const SLOWER = 4;

/** Speeds of a recording. */
const SPEEDS = { "a hundredth": 0.01, "a tenth": 0.1, "as it was": 1, "10 times": 10, "100 times": 100 };

/** State of one panel, whether or not it is on the screen. */
class PanelData {
  /** @type {any} */ state = {};
  /** @type {Map<string, FigureData>} */ figures = new Map();
  /** @type {Set<PanelView>} */ views = new Set();
  hidden = new Set(); // keys of runs that the reader has hidden
  base = ""; // key of the run to which the others are compared

  constructor(model) {
    this.link = new Link(model, (state, figures, whole) => this.take(state, figures, whole));
    this.link.changed.add(() => {
      for (const view of this.views) view.banner();
    });
  }

  take(state, figures, whole) {
    if (whole) {
      this.state = state;
      for (const title of this.figures.keys()) if (!state.tabs.includes(title)) this.figures.delete(title);
    } else Object.assign(this.state, state);
    for (const [title, news, buffers] of figures) {
      if (!this.figures.has(title)) this.figures.set(title, new FigureData());
      this.figures.get(title).take(news, buffers);
    }
    for (const view of this.views) view.update(whole ? null : state);
  }

  get runs() {
    return new Map((this.state.runs ?? []).map((run) => [run.key, run]));
  }
}

/** One place on the page where a panel is drawn. */
class PanelView {
  /** @type {string | null} */ front = null;
  fields = new Map();
  buttons = new Map();

  /** @param {PanelData} data  @param {HTMLElement} el */
  constructor(data, el) {
    this.data = data;
    this.root = el;
    el.classList.add("dlpar-panel");
    this.gone = make("div", { className: "dlpar-gone", role: "alert", hidden: true });
    this.head = make("div", { className: "dlpar-head" });
    this.controls = make("div", { className: "dlpar-controls" });
    this.offer = make("div", { className: "dlpar-offer" });
    this.bar = make("progress", { "aria-label": "Global steps done" });
    this.words = make("span", { className: "dlpar-words" });
    this.message = make("span", { className: "dlpar-message", role: "alert" });
    this.progress = make("div", { className: "dlpar-progress" }, this.bar, this.words);
    this.facts = make("div", { className: "dlpar-facts" });
    const below = make("div", { className: "dlpar-below" }, this.facts, this.message);
    this.tabs = make("div", { className: "dlpar-tabs", role: "tablist" });
    this.figure = new FigureView(data.link, () => data.runs, data.hidden, (moment) => this.time.hovered(moment));
    this.time = new TimeLine(data, () => this.figure);
    this.ranks = make("div", { className: "dlpar-ranks", role: "group", "aria-label": "Ranks", hidden: true });
    this.runs = make("div", { className: "dlpar-runs" });
    this.settings = make("details", { className: "dlpar-more" }, make("summary", {}, "More settings"));
    this.printed = make("pre", { className: "dlpar-log", tabIndex: 0, role: "log", "aria-label": "Log of the run" });
    this.kept = make("p");
    this.log = make("details", { className: "dlpar-more" }, make("summary", {}, "Log"), this.printed, this.kept);
    this.recordings = make("details", { className: "dlpar-more" }, make("summary", {}, "Recordings"));
    this.recordings.addEventListener("toggle", () => this.recordings.open && data.link.send({ ask: "recordings" }));
    this.spoken = make("div", { className: "dlpar-spoken", role: "status" });
    el.append(this.gone, this.head, this.controls, this.offer, this.progress, below, this.tabs, this.figure.root,
      make("div", { className: "dlpar-moments" }, this.time.root, this.ranks), this.runs, make("div", { className: "dlpar-sections" }, this.settings, this.log, this.recordings, this.figure.details), this.spoken);
    data.views.add(this);
    this.banner();
    if (data.state.tabs) this.update(null);
  }

  dispose() {
    this.time.playing = 0;
    window.clearTimeout(this.time.asking);
    this.figure.dispose();
    this.data.views.delete(this);
  }

  banner() {
    const { gone } = this.data.link;
    this.gone.textContent = gone;
    this.gone.hidden = !gone;
    this.root.classList.toggle("dlpar-ended", gone === GONE);
  }

  /** Update the page with the changes; null: everything. */
  update(changed) {
    const { state } = this.data, has = (...names) => !changed || names.some((name) => name in changed);
    if (has("title", "question")) this.buildHead(state);
    if (has("fields")) rebuilt(this.root, [state.fields, state.actions], () => this.buildFields(state));
    if (has("fields", "values", "hidden", "wrong", "busy", "stoppable", "runs")) this.setFields(state);
    if (has("offer")) this.buildOffer(state.offer);
    if (has("done", "steps")) Object.assign(this.bar, { max: state.steps || 1, value: state.done });
    if (has("words")) this.words.textContent = state.words;
    if (has("status")) this.bar.className = `dlpar-${state.status}`;
    if (has("message", "wrong")) {
      this.message.textContent = state.message;
      this.root.classList.toggle("dlpar-refused", Boolean(state.wrong));
    }
    if (has("facts", "ghost")) this.buildFacts(state);
    if (has("tabs", "front")) this.buildTabs(state);
    if (has("length", "live")) this.time.build(state);
    if (has("ranks")) this.buildRanks(state.ranks ?? []);
    if (has("runs", "goal")) this.buildRuns(state);
    if (has("log", "path")) this.buildLog(state);
    if (has("recordings", "busy")) this.buildRecordings(state);
    if (changed && "live" in changed) this.speak(changed.live);
    this.showFigure();
  }

  showFigure() {
    const title = this.front ?? this.data.state.front;
    this.figure.show(title, this.data.figures.get(title) ?? null);
  }

  buildHead({ title, question }) {
    this.head.replaceChildren(make("h3", {}, title), ...(question ? [make("p", {}, question)] : []));
  }

  buildFields({ fields, actions }) {
    this.fields.clear();
    const first = fields.filter((field) => field.first).map((field) => this.field(field));
    this.buttons = new Map(actions.map((name) => [name, this.button(name)]));
    this.controls.replaceChildren(...first, make("span", { className: "dlpar-actions" }, ...this.buttons.values()));
    const groups = grouped(fields);
    const parts = [...groups].map(([name, own]) => make("fieldset", {}, make("legend", {}, name), ...own.map((field) => this.field(field))));
    this.settings.replaceChildren(make("summary", {}, "More settings"), ...parts);
    this.settings.hidden = !parts.length;
  }

  button(name) {
    const [label, title] = BUTTONS[name], press = () => this.data.link.send({ do: name });
    const button = make("button", { className: `dlpar-button dlpar-${name}`, title, onclick: press }, label);
    button.dataset.key = `do ${name}`;
    return button;
  }

  field({ path, label, means, kind, choices, placeholder }) {
    const id = `dlpar-${path}-${Math.random().toString(36).slice(2)}`;
    let input;
    if (kind === "choice") {
      input = make("select", { id });
      for (const [text, value] of choices) input.add(new Option(text, JSON.stringify(value)));
    } else if (kind === "flag") input = make("input", { id, type: "checkbox" });
    else input = make("input", { id, type: "text", placeholder: placeholder ?? "", spellcheck: false, inputMode: kind === "number" ? "decimal" : "text" });
    input.dataset.path = input.dataset.key = path;
    input.setAttribute("aria-description", means);
    const send = () => {
      const value = kind === "choice" ? JSON.parse(input.value) : kind === "flag" ? input.checked : input.value;
      this.data.link.send({ do: "set", path, value });
    };
    input.addEventListener("change", send);
    if (kind === "number" || kind === "text")
      input.addEventListener("keydown", (event) => event.key === "Enter" && (send(), this.buttons.get("run")?.focus()));
    const box = make("span", { className: `dlpar-field dlpar-is-${kind}`, title: means }, make("label", { htmlFor: id }, label), input);
    this.fields.set(path, { box, input, kind });
    return box;
  }

  setFields({ values, hidden, wrong, busy, stoppable, runs }) {
    for (const [path, { box, input, kind }] of this.fields) {
      box.hidden = hidden.includes(path);
      input.setAttribute("aria-invalid", String(wrong === path));
      if (wrong === path && this.settings.contains(input)) this.settings.open = true;
      const value = values[path];
      if (kind === "flag") input.checked = value;
      else if (kind === "choice") setChoice(input, value);
      else if (document.activeElement !== input || input.value === (input.dataset.shown ?? input.value)) input.value = input.dataset.shown = value ?? "";
    }
    const able = { run: !busy && !wrong, stop: stoppable, clear: runs.length > 1 };
    for (const [name, button] of this.buttons) button.disabled = !(able[name] ?? true);
  }

  buildOffer(offer) {
    this.offer.hidden = !offer;
    if (!offer) return;
    const text = () => make("span", {}, offer.text, " ", make("b", {}, offer.what ?? ""));
    rebuilt(this.offer, offer, () => this.offer.replaceChildren(text(), ...offer.actions.map((name) => this.button(name))));
  }

  buildFacts({ facts, ghost }) {
    const foreseen = ["simulated, before Run", ghost], means = { ...FACTS, [foreseen[0]]: "speed of the current settings, from a simulation of their message sizes" };
    const items = [...facts, ...(ghost ? [foreseen] : [])];
    rebuilt(this.facts, items, () => this.facts.replaceChildren(...items.map(([name, fact]) => {
      const item = make("span", { title: means[name], tabIndex: 0 }, make("b", {}, name), ` ${fact}`);
      Object.assign(item.dataset, { means: means[name], key: name });
      return item;
    })));
  }

  /** The ranks of a running job, each with its buttons. */
  buildRanks(ranks) {
    this.ranks.hidden = !ranks.length;
    const says = Object.values(ORDERS).map(([sign, name]) => `${sign} ${name.toLowerCase()}`).join(" · ");
    rebuilt(this.ranks, ranks, () => this.ranks.replaceChildren("ranks", ...ranks.map((rank) => this.rank(...rank)), make("span", {}, says)));
    const dead = ranks.filter(([, , state]) => state === "dead").map(([, name]) => name);
    if (dead.length) this.spoken.textContent = `${dead.join(" and ")} died.`;
  }

  rank(number, name, state) {
    const label = name.startsWith("rank") ? String(number) : name;
    if (state === "dead") return make("span", { className: "dlpar-rank", title: `${name} has died` }, make("s", {}, label), "died");
    const orders = Object.entries(ORDERS).filter(([what]) => what !== "slow" || !/^(server|leaf)/.test(name));
    const buttons = orders.map(([what, [sign, says, means]]) => {
      const more = what === "slow" ? { factor: state === "slow" ? 1 : SLOWER } : {};
      const send = () => this.data.link.send({ do: what, rank: number, ...more });
      const button = make("button", { title: `${says} ${name}: ${means}`, "aria-label": `${says} ${name}`, onclick: send }, sign);
      if (what === "slow") button.setAttribute("aria-pressed", String(state === "slow"));
      button.dataset.key = `${what} ${number}`;
      return button;
    });
    return make("span", { className: "dlpar-rank", role: "group", "aria-label": name }, label, ...buttons);
  }

  buildTabs({ tabs, front }) {
    if (!tabs.includes(this.front)) this.front = null;
    const chosen = this.front ?? front;
    rebuilt(this.tabs, tabs, () => this.tabs.replaceChildren(...tabs.map((title) => this.tab(title))));
    for (const tab of this.tabs.children) {
      tab.setAttribute("aria-selected", String(tab.textContent === chosen));
      tab.tabIndex = tab.textContent === chosen ? 0 : -1;
    }
    this.tabs.hidden = tabs.length < 2;
  }

  tab(title) {
    const pick = (name) => {
      this.front = name;
      this.data.link.send({ do: "front", figure: name });
      this.buildTabs(this.data.state);
      this.showFigure();
    };
    const tab = make("button", { role: "tab", onclick: () => pick(title) }, title);
    tab.dataset.key = `tab ${title}`;
    tab.addEventListener("keydown", ({ key }) => {
      const { tabs } = this.data.state, at = tabs.indexOf(title), last = tabs.length - 1;
      const next = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[key];
      if (next === undefined) return;
      pick(tabs[next]);
      this.tabs.children[next].focus();
    });
    return tab;
  }

  /** Every run with its colour, its differences, its results, and their ratios to those of a chosen run. */
  buildRuns({ runs, goal }) {
    this.runs.hidden = !runs.length;
    const columns = columnsOf(runs.map((run) => run.results).filter(Boolean), goal);
    const base = runs.find((run) => run.key === this.data.base) ?? runs.find((run) => run.results) ?? runs[0];
    const speed = make("th", { scope: "col", title: "samples/s over those of the chosen run" }, "speed");
    const heads = columns.map(({ shown, means }) => make("th", { scope: "col", title: means }, shown));
    const head = make("tr", {}, make("th", { scope: "col" }, "run"), speed, ...heads);
    const rows = runs.map((run) => make("tr", {}, this.nameOf(run), make("td", {}, this.ratio(run, base)),
      ...columns.map((column) => make("td", {}, run.results ? inWords(column.name, run.results[column.name]) : "–"))));
    rebuilt(this.runs, [runs, goal, base?.key, [...this.data.hidden]], () => this.runs.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
  }

  /** Name and colour of a run, with a box that hides it in the figures. */
  nameOf({ key, name, colour }) {
    const { hidden, figures } = this.data;
    const box = make("input", { type: "checkbox", checked: !hidden.has(key), "aria-label": `Show ${name}` });
    box.dataset.key = `show ${key}`;
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(key);
      else hidden.add(key);
      for (const figure of figures.values()) figure.version += 1;
      this.figure.schedule();
    });
    const swatch = make("i", { className: "dlpar-swatch" });
    swatch.style.background = colour;
    return make("th", { scope: "row" }, make("label", {}, box, swatch, name));
  }

  /** Speed of a run over that of the chosen run; a press chooses this run. */
  ratio(run, base) {
    const own = run.results?.["samples/s"], other = base.results?.["samples/s"];
    const press = () => {
      this.data.base = run.key;
      this.buildRuns(this.data.state);
    };
    const alike = (run.results?.world === "real") === (base.results?.world === "real"); // a machine is no platform
    const times = own && other && alike ? quantity(own / other) : "–";
    const says = run === base ? "1 (base)" : times === "1" ? "the same" : times === "–" ? times : `${times} times`;
    const button = make("button", { className: "dlpar-ratio", title: "Compare the others with this run", onclick: press }, says);
    button.dataset.key = `base ${run.key}`;
    return button;
  }

  buildLog({ log, path, status }) {
    const text = log || "Nothing was printed.";
    if (this.printed.textContent !== text) this.printed.textContent = text;
    this.kept.replaceChildren(...(path ? ["Everything is kept in ", make("code", {}, path), "."] : []));
    if (status === "failed") this.log.open = true;
  }

  buildRecordings({ recordings, busy }) {
    this.recordings.hidden = !recordings;
    if (!recordings) return;
    const choice = (name, label) => {
      const select = make("select", { "aria-label": label }), before = this.recordings.querySelector(`[data-key="${name}"]`)?.value;
      select.dataset.key = name;
      return { select, choose: () => [...select.options].some(({ value }) => value === before) && (select.value = before) };
    };
    const which = choice("recording", "run"), speed = choice("speed", "speed");
    for (const { id, says, resumes } of recordings) which.select.add(new Option(resumes ? `${says}, can be resumed` : says, id));
    for (const [name, times] of Object.entries(SPEEDS)) speed.select.add(new Option(name, String(times), times === 1, times === 1));
    for (const each of [which, speed]) each.choose();
    const play = make("button", { className: "dlpar-button", disabled: busy || !recordings.length, title: "Play it in this panel",
      onclick: () => this.data.link.send({ do: "play", run: which.select.value, speed: Number(speed.select.value) }) }, "Play");
    const resume = make("button", { className: "dlpar-button", title: BUTTONS.resume[1], onclick: () => this.data.link.send({ do: "resume", run: which.select.value }) }, BUTTONS.resume[0]);
    const able = () => (resume.disabled = busy || !recordings.find(({ id }) => id === which.select.value)?.resumes);
    which.select.addEventListener("change", able);
    able();
    resume.dataset.key = "resume recording";
    const words = make("p", {}, "A recording shows a run again as it was. Nothing is computed.");
    const controls = make("div", { className: "dlpar-controls" }, which.select, speed.select, play, resume);
    rebuilt(this.recordings, [recordings, busy], () => this.recordings.replaceChildren(make("summary", {}, "Recordings"), words, controls));
  }

  /** Announce the start and the end of a run to screen readers; more would be noise. */
  speak(live) {
    const caption = () => this.figure.data?.caption ?? "";
    setTimeout(() => (this.spoken.textContent = live ? "A run has begun." : `${this.words.textContent}. ${caption()}`), 500);
  }
}

/** A moment of a run that has ended, the same in all figures: chosen by hand, or moving slowly. */
class TimeLine {
  playing = 0; // speed, or 0
  length = 0;
  asking = 0;
  /** @type {number | null} */ moment = null;

  /** @param {PanelData} data  @param {() => FigureView} figure */
  constructor(data, figure) {
    this.data = data;
    this.figure = figure;
    this.range = make("input", { type: "range", min: 0, max: 1000, value: 1000, "aria-label": "Moment of the run" });
    this.range.addEventListener("input", () => this.go((this.range.value / 1000) * this.length));
    this.says = make("span", { className: "dlpar-now" });
    const buttons = [["1/10", 0.1], ["1/100", 0.01]].map(([label, speed]) =>
      make("button", { className: "dlpar-slow", title: `Play at ${label} of its speed`, onclick: () => this.play(speed) }, `▶ ${label}`));
    this.root = make("div", { className: "dlpar-time" }, "moment", this.range, this.says, ...buttons);
  }

  build({ length, live }) {
    this.length = length;
    this.root.hidden = live || !length;
    this.playing = 0;
    this.moment = null;
    this.range.value = 1000;
    this.says.textContent = this.root.hidden ? "" : seconds(length);
    this.range.removeAttribute("aria-valuetext");
    this.mark(null);
  }

  /** Show a moment everywhere: a mark in this figure, and the windows that end there in others. */
  go(moment) {
    this.moment = moment;
    this.range.value = (1000 * moment) / this.length;
    this.says.textContent = seconds(moment);
    this.range.setAttribute("aria-valuetext", `${seconds(moment)} of ${seconds(this.length)}`);
    this.mark(moment);
    if (this.asking) return;
    this.asking = window.setTimeout(() => {
      this.asking = 0;
      this.data.link.send({ do: "moment", t: this.moment });
    }, 100);
  }

  /** Mark the moment of a point in all figures; figures of a time window move there, except under the pointer. */
  hovered(moment) {
    if (moment == null || this.playing) return;
    if (this.root.hidden || this.figure().data.origin != null) this.mark(moment);
    else this.go(Math.min(moment, this.length));
  }

  mark(moment) {
    for (const figure of this.data.figures.values()) figure.moment = moment;
    this.figure().mark();
  }

  play(speed) {
    const id = (this.playing = this.playing === speed ? 0 : speed), begin = performance.now();
    const from = (this.moment ?? this.length) >= this.length ? 0 : this.moment;
    const frame = (now) => {
      if (!id || this.playing !== id) return;
      const moment = from + ((now - begin) / 1000) * speed;
      this.go(Math.min(moment, this.length));
      if (moment < this.length) requestAnimationFrame(frame);
      else this.playing = 0;
    };
    requestAnimationFrame(frame);
  }
}

function seconds(value) {
  return value < 0.1 ? `${quantity(value * 1000)} ms` : `${quantity(value)} s`;
}

function setChoice(input, value) {
  const text = JSON.stringify(value);
  if (![...input.options].some((option) => option.value === text)) input.add(new Option(String(value), text));
  input.value = text;
}

function grouped(fields) {
  const groups = new Map();
  for (const field of fields.filter((one) => !one.first)) groups.set(field.group, [...(groups.get(field.group) ?? []), field]);
  return groups;
}

export default () => {
  let data;
  return {
    initialize({ model }) {
      data = new PanelData(model);
      return () => data.link.dispose();
    },
    render({ el }) {
      const view = new PanelView(data, el);
      return () => view.dispose();
    },
  };
};
