// plotly.js, once per page: the first figure whose kernel answers loads it for all figures.
// The kernel sends the library compressed in a binary message; the page fetches nothing.

const here = /** @type {any} */ (globalThis);
export const page = (here.__dlpar ??= { plotly: null, asked: 0, waiting: [] });

export function plotlyOnce(link) {
  if (page.plotly) return Promise.resolve(page.plotly);
  const promise = new Promise((resolve) => page.waiting.push(resolve));
  const ask = () => {
    if (page.plotly || link.gone) return;
    if (Date.now() - page.asked > 4000) {
      page.asked = Date.now();
      link.send({ ask: "plotly" });
    }
    setTimeout(ask, 1000); // if the kernel is busy or gone, another figure asks its kernel
  };
  ask();
  return promise;
}

export async function plotlyArrived(compressed) {
  if (page.plotly || page.loading) return;
  page.loading = true;
  performance.mark("dlpar has plotly.js");
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const source = await new Response(stream).text();
  const hint = "//# allFunctionsCalledOnLoad\n"; // Chromium then compiles in parallel, and does not block the page
  const before = here.Plotly;
  const url = URL.createObjectURL(new Blob([hint, source], { type: "text/javascript" }));
  await import(url);
  URL.revokeObjectURL(url);
  page.plotly = here.Plotly;
  performance.mark("dlpar runs plotly.js");
  if (before) here.Plotly = before; // another extension's plotly.js stays as it was
  else delete here.Plotly;
  for (const resolve of page.waiting.splice(0)) resolve(page.plotly);
}
