// A prediction: a choice or a number, a reason, and "I don't know" as an honest answer.

import { GONE, Link, make } from "./link.js";

const SHARING = "Your teacher's figures then include your predictions and results, without your name and your reasons, "
  + "and only with those of at least four others. This applies to all labs. Untick the box to withdraw.";

/** A prediction, whether or not it is on the screen. */
class PredictionData {
  /** @type {any} */ state = {};
  /** @type {Set<PredictionView>} */ views = new Set();

  constructor(model) {
    this.link = new Link(model, (state) => {
      Object.assign(this.state, state);
      this.update();
    });
    this.link.changed.add(() => this.update());
  }

  update() {
    for (const view of this.views) if (this.state.question) view.update();
  }
}

/** One place on the page that asks for a prediction. */
class PredictionView {
  built = false;

  /** @param {PredictionData} data  @param {HTMLElement} el */
  constructor(data, el) {
    this.data = data;
    this.root = el;
    el.classList.add("dlpar-predict");
    data.views.add(this);
    if (data.state.question) this.update();
  }

  dispose() {
    this.data.views.delete(this);
  }

  update() {
    const { state, link } = this.data, { question, choices, unit, allowed, answer, unsure, typed, reason, note, share } = state;
    if (!this.built) {
      this.built = true;
      const name = `dlpar-${Math.random().toString(36).slice(2)}`, send = (news) => link.send({ do: "answer", ...news });
      const option = (value, label, checked) => {
        const input = make("input", { type: "radio", name, checked, onchange: () => send({ value }) });
        return make("label", { className: "dlpar-option" }, input, ` ${label}`);
      };
      const title = make("b", {}, question);
      const rows = choices.length
        ? [make("div", { role: "radiogroup", "aria-label": question }, ...choices.map((choice) => option(choice, choice, answer === choice)), option(null, state.unknown, unsure))]
        : [make("div", { className: "dlpar-controls" },
            make("label", {}, "prediction ", (this.typed = make("input", { type: "text", value: typed, placeholder: allowed, size: allowed.length + 2, inputMode: "decimal", onchange: () => send({ value: this.typed.value }) })), ` ${unit}`),
            make("label", {}, (this.unsure = make("input", { type: "checkbox", checked: unsure, onchange: () => send({ unsure: this.unsure.checked }) })), ` ${state.unknown}`))];
      this.reason = make("input", { type: "text", value: reason, placeholder: "in one line", size: 48, onchange: () => send({ reason: this.reason.value }) });
      this.note = make("p", { role: "status" });
      this.share = make("input", { type: "checkbox", onchange: () => send({ share: this.share.checked }) });
      this.agree = make("label", { title: SHARING, hidden: share === null }, this.share, " include my predictions in the class's figures, without my name");
      this.root.replaceChildren(title, ...rows, make("label", {}, "because ", this.reason), this.note, this.agree);
    }
    this.note.textContent = link.gone === GONE ? "The kernel was restarted. Run the cell again to change your prediction." : note;
    this.share.checked = Boolean(share);
  }
}

export default () => {
  let data;
  return {
    initialize({ model }) {
      data = new PredictionData(model);
      return () => data.link.dispose();
    },
    render({ el }) {
      const view = new PredictionView(data, el);
      return () => view.dispose();
    },
  };
};
