// A prediction: a choice or a number, a reason, and "I don't know" as an honest answer.

import { Link, make } from "./link.js";

class PredictionView {
  constructor(data, el) {
    Object.assign(this, { data, root: el });
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
      this.agree = make("label", { title: share?.means ?? "", hidden: !share }, this.share, " count my predictions in the class's figures, without my name");
      this.root.replaceChildren(title, ...rows, make("label", {}, "because ", this.reason), this.note, this.agree);
    }
    this.note.textContent = note;
    this.share.checked = share?.agreed ?? false;
  }
}

export default () => {
  let data;
  return {
    initialize({ model }) {
      data = { state: {}, views: new Set() };
      data.link = new Link(model, (state) => {
        Object.assign(data.state, state);
        for (const view of data.views) view.update();
      });
      return () => data.link.dispose();
    },
    render({ el }) {
      const view = new PredictionView(data, el);
      return () => view.dispose();
    },
  };
};
