// One slide at a time, as large as the window allows; the address remembers which.
const slides = [...document.querySelectorAll("section")];
const last = slides.length - 1;
const now = () => Math.min(Math.max((parseInt(location.hash.slice(1)) || 1) - 1, 0), last);
const go = (to) => { location.hash = Math.min(Math.max(to, 0), last) + 1; };
const show = () => slides.forEach((slide, number) => slide.classList.toggle("now", number === now()));
const fit = () => {
  const scale = Math.min(innerWidth / slides[0].offsetWidth, innerHeight / slides[0].offsetHeight);
  document.body.style.setProperty("--scale", scale);
};
const KEYS = {
  ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, Enter: 1,
  ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Backspace: -1, Home: -slides.length, End: slides.length,
};
addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  go(now() + KEYS[event.key]);
});
addEventListener("click", (event) => {
  if (!event.target.closest("a") && !String(getSelection())) go(now() + (event.clientX < innerWidth / 3 ? -1 : 1));
});
addEventListener("hashchange", show);
addEventListener("resize", fit);
document.body.classList.add("shows");
fit();
show();
