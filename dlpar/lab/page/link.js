// The link of one widget to its kernel: the page asks for everything on load, and then only changes arrive.

import { plotlyArrived } from "./plotly.js";

const RETRY = 500; // ms after which the kernel is asked again; doubled each time, because the kernel may be busy
const SILENCE = 6000; // ms without a message during a run, after which the page shows a warning
export const GONE = "The kernel was restarted: its job has ended. Run the cell again.";
export const SILENT = "No word from the kernel: it may have been restarted. If so, run the cell again.";

/** What the page knows of a widget, whether or not it is on the screen. */
export class Link {
  sequence = -1;
  heard = Date.now();
  asked = 0;
  patience = RETRY;
  live = false;
  gone = ""; // why the kernel is silent; empty if it answers
  changed = new Set(); // called when the link is lost or found again

  /**
   * @param {any} model anywidget's model
   * @param {(state: any, figures: [string, any, DataView[]][], whole: boolean) => void} taken called with what has changed
   */
  constructor(model, taken) {
    this.model = model;
    this.taken = taken;
    model.on("msg:custom", (message, buffers) => this.receive(message, buffers));
    model.on("comm_live_update", () => setTimeout(() => model.comm_live === false && this.lost(GONE), 0));
    this.kernel = model.widget_manager?.kernel;
    this.onStatus = (_, status) => {
      if (["restarting", "autorestarting", "dead"].includes(status)) this.lost(GONE);
    };
    this.kernel?.statusChanged?.connect(this.onStatus);
    this.timer = setInterval(() => this.look(), RETRY);
    performance.mark("dlpar asks");
    this.ask();
  }

  dispose() {
    clearInterval(this.timer);
    this.kernel?.statusChanged?.disconnect(this.onStatus);
  }

  /** Ask for everything; changes are of no use before the answer. */
  ask() {
    Object.assign(this, { sequence: -1, asked: Date.now() });
    this.send({ ask: "all" });
  }

  /** Send a message, beside all cells if possible, so that a running cell does not delay the answer. */
  send(message) {
    if (this.gone === GONE) return;
    const address = this.model.get("address"), kernel = this.model.widget_manager?.kernel;
    if (!address || !kernel?.sendControlMessage) return void this.model.send(message);
    const header = {
      msg_id: `${address}-${Math.random().toString(36).slice(2)}`, msg_type: "dlpar_msg", version: "5.3",
      session: kernel.clientId, username: kernel.username, date: new Date().toISOString(),
    };
    const content = { address, data: message };
    kernel.sendControlMessage({ channel: "control", header, parent_header: {}, metadata: {}, content, buffers: [] });
  }

  look() {
    if (this.sequence < 0 && Date.now() - this.asked >= this.patience) {
      this.patience *= 2;
      this.ask();
    } else if (this.live && Date.now() - this.heard > SILENCE) this.lost(SILENT);
  }

  lost(why) {
    if (this.gone === GONE) return;
    this.gone = why;
    if (why === GONE) this.live = false;
    for (const tell of this.changed) tell();
  }

  receive(message, buffers) {
    this.heard = Date.now();
    if (this.gone === SILENT) this.lost("");
    if (message.is === "plotly") return void plotlyArrived(buffers[0]);
    if (message.is === "changes" && message.sequence !== this.sequence + 1) {
      if (this.sequence >= 0 && message.sequence > this.sequence) this.ask(); // some were lost
      return;
    }
    if (message.is === "all") performance.mark("dlpar is told");
    this.sequence = message.sequence;
    this.patience = RETRY;
    this.live = message.state.live ?? this.live;
    let next = 0;
    const figures = Object.entries(message.figures ?? {}).map(([title, news]) => {
      const own = buffers.slice(next, (next += news.traces.length));
      return /** @type {[string, any, DataView[]]} */ ([title, news, own]);
    });
    this.taken(message.state, figures, message.is === "all");
  }
}

/**
 * An element with properties and children: make("p", { className: "x" }, "text", other).
 * @returns {any}
 */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  // In these elements arrow keys choose; JupyterLab would move between cells instead.
  if (tag === "select" || ["range", "radio"].includes(element.type) || element.getAttribute("role") === "tab") element.dataset.lmSuppressShortcuts = "true";
  return element;
}

/**
 * Replace the content of an element if it shows something else now: a press is lost if its button is replaced before
 * the press ends. The focus returns to the part with the same data-key.
 */
export function rebuilt(element, shows, build) {
  const text = JSON.stringify(shows);
  if (element.dlparShows === text) return;
  element.dlparShows = text;
  const active = element.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  const key = active?.dataset.key;
  build();
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}
