// A few questions; each answer is checked here at once, and no answer is stored or sent.

import { Link, make } from "./link.js";

function draw(el, { asks, needs, lab }) {
  const score = make("p", { role: "status" }), right = new Set();
  const parts = asks.map(({ question, choices, right: wanted, because }, number) => {
    const says = make("p", { role: "status" }), name = `dlpar-${Math.random().toString(36).slice(2)}`;
    const answered = (index) => {
      const isRight = index === wanted;
      isRight ? right.add(number) : right.delete(number);
      says.textContent = isRight ? `Right. ${because}` : `Not right. Try another. Before this lab you need ${needs}.`;
      score.textContent = right.size === asks.length ? `All ${asks.length} right: you are ready for lab ${lab}.` : `${right.size} of ${asks.length} right.`;
    };
    const options = choices.map((choice, index) =>
      make("label", { className: "dlpar-option" }, make("input", { type: "radio", name, onchange: () => answered(index) }), ` ${choice}`));
    return make("div", { role: "radiogroup", "aria-label": question }, make("b", {}, question), ...options, says);
  });
  el.classList.add("dlpar-predict");
  el.replaceChildren(...parts, score);
}

export default () => {
  let state = null;
  const places = new Set();
  return {
    initialize({ model }) {
      const link = new Link(model, (told) => {
        state = told;
        for (const el of places) el.childElementCount || draw(el, state); // answers stay
      });
      return () => link.dispose();
    },
    render({ el }) {
      places.add(el);
      if (state) draw(el, state);
      return () => places.delete(el);
    },
  };
};
