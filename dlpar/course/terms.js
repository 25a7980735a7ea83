// Terms in a notebook's text are dotted, and show their meaning on hover, tap or Tab.
// The same bubble shows the titles of a panel's fields and facts to readers who use the keyboard.

const TEXTS = ".jp-RenderedMarkdown, .dlpar-head p, .dlpar-predict b";
const NOT_IN = "code, pre, a, h1, h2, h3, h4, h5, h6, mjx-container, .dlpar-term";
const EXPLAINED = "[data-dlpar-term], .dlpar-facts [data-means], .dlpar-panel .dlpar-field[title]";

/** The one bubble of a page. */
class Bubble {
  constructor() {
    this.el = document.createElement("div");
    Object.assign(this.el, { id: "dlpar-bubble", className: "dlpar-bubble", hidden: true });
    this.el.setAttribute("role", "tooltip");
    document.body.append(this.el);
    this.el.addEventListener("pointerenter", () => clearTimeout(this.leaving));
    this.el.addEventListener("pointerleave", () => this.leave());
    addEventListener("keydown", (event) => event.key === "Escape" && this.hide(), true);
    addEventListener("scroll", (event) => !this.el.contains(event.target) && this.hide(), true);
  }

  show(at, parts) {
    clearTimeout(this.leaving);
    if (this.at === at) return;
    this.hide();
    this.el.replaceChildren(...parts);
    this.el.hidden = false;
    const place = at.getBoundingClientRect(), own = this.el.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - own.width - 8);
    const above = place.top - own.height - 4;
    this.el.style.left = `${Math.max(8, left)}px`;
    this.el.style.top = `${above > 8 ? above : place.bottom + 4}px`;
    at.setAttribute("aria-describedby", this.el.id);
    this.at = at;
  }

  /** A moment later, so that the pointer can reach the bubble. */
  leave() {
    clearTimeout(this.leaving);
    this.leaving = setTimeout(() => this.hide(), 300);
  }

  hide() {
    clearTimeout(this.leaving);
    this.at?.removeAttribute("aria-describedby");
    this.at = null;
    this.el.hidden = true;
  }
}

const bubble = () => (globalThis.__dlparBubble ??= new Bubble());

/** The marks of one notebook. */
class Marks {
  constructor(root, terms) {
    this.root = root;
    this.terms = new Map(terms.map((term) => [term.name, { ...term, pattern: pattern(term.name) }]));
    this.marked = new Map(); // name -> the dotted element, the first place in the notebook
    this.seen = new WeakMap(); // text node -> its text at the last search
    this.stop = new AbortController();
    const on = (kind, heard) => root.addEventListener(kind, heard, { capture: true, signal: this.stop.signal });
    on("pointerover", (event) => event.pointerType !== "touch" && this.tell(event.target, false));
    on("pointerout", () => bubble().leave());
    on("pointerdown", () => (this.byKey = false));
    on("keydown", () => (this.byKey = true));
    on("click", (event) => this.tell(event.target, false));
    on("focusin", (event) => this.tell(event.target, this.byKey));
    on("focusout", () => bubble().hide());
    this.look();
    this.timer = setInterval(() => this.look(), 1000); // an edited cell is rendered again
  }

  dispose() {
    clearInterval(this.timer);
    this.stop.abort();
    bubble().hide();
    for (const mark of this.root.querySelectorAll(".dlpar-term")) mark.replaceWith(mark.textContent);
    for (const tab of this.root.querySelectorAll("[data-dlpar-term]")) delete tab.dataset.dlparTerm;
  }

  /** Explain what is under the pointer or in focus; titles only for the keyboard, because a mouse shows them. */
  tell(target, titles) {
    const at = target.closest?.(EXPLAINED);
    if (!at || (at.title && !titles)) return;
    const term = this.terms.get(at.dataset.dlparTerm);
    bubble().show(at, term ? [chinese(term.zh), ` ${term.means}`] : [at.title || at.dataset.means]);
  }

  look() {
    for (const fact of this.root.querySelectorAll(".dlpar-facts [title]")) {
      fact.dataset.means = fact.title;
      fact.removeAttribute("title");
      fact.tabIndex = 0;
    }
    for (const tab of this.root.querySelectorAll(".dlpar-panel [role=tab]:not([data-dlpar-term])")) {
      const name = tab.textContent.trim().toLowerCase();
      if (this.terms.has(name)) tab.dataset.dlparTerm = name;
    }
    const texts = [...this.root.querySelectorAll(TEXTS)];
    if (texts.every((text) => this.seen.get(text) === text.textContent)) return;
    for (const [name, mark] of this.marked) if (!mark.isConnected) this.marked.delete(name);
    for (const text of texts) {
      this.seen.set(text, text.textContent);
      this.mark(text);
    }
  }

  mark(text) {
    const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
    const nodes = [];
    while (walker.nextNode()) nodes.push(walker.currentNode);
    for (const node of nodes) {
      const inside = node.parentElement;
      // A $ is mathematics that is not typeset yet; a list of sources contains titles.
      if (node.data.includes("$") || inside.closest(NOT_IN) || inside.textContent.startsWith("Sources:")) continue;
      this.markIn(node, /^(EM|STRONG)$/.test(inside.tagName));
    }
  }

  markIn(node, emphasised) {
    let first = null;
    for (const term of this.terms.values()) {
      if (this.marked.has(term.name)) continue;
      const found = term.pattern.exec(node.data);
      if (!found || (term.everyday && !(emphasised && found[0] === node.data.trim()))) continue;
      const better = !first || found.index < first.index;
      if (better || (found.index === first.index && found[0].length > first.length))
        first = { term, index: found.index, length: found[0].length };
    }
    if (!first) return;
    const word = node.splitText(first.index), rest = word.splitText(first.length);
    const mark = document.createElement("dfn");
    Object.assign(mark, { className: "dlpar-term", tabIndex: 0 });
    mark.dataset.dlparTerm = first.term.name;
    word.replaceWith(mark);
    mark.append(word);
    this.marked.set(first.term.name, mark);
    this.markIn(rest, false);
  }
}

/** "key range" is found in "key ranges", "all-reduce" in "Allreduce", but "ZeRO" not in "zero bubble". */
function pattern(name) {
  const loose = name.replace(/[- ]/g, (gap) => (gap === "-" ? "[- ]?" : "[- ]"));
  return new RegExp(`(?<![\\w-])${loose}s?(?![\\w-])`, name === name.toLowerCase() ? "i" : "");
}

function chinese(words) {
  const element = document.createElement("span");
  element.lang = "zh";
  element.textContent = `${words}.`;
  return element;
}

export default {
  render({ model, el }) {
    const label = document.createElement("label"), box = document.createElement("input");
    Object.assign(box, { type: "checkbox", checked: true });
    label.append(box, " Dotted words say what they mean, in English and Chinese: point at one, tap it, or reach it by Tab.");
    el.classList.add("dlpar-explain");
    el.append(label);
    let marks = null;
    const turn = () => {
      marks?.dispose();
      const root = el.closest(".jp-Notebook");
      marks = box.checked && root ? new Marks(root, model.get("terms")) : null;
    };
    box.addEventListener("change", turn);
    const begin = requestAnimationFrame(turn); // by then it is on the page
    return () => {
      cancelAnimationFrame(begin);
      marks?.dispose();
    };
  },
};
