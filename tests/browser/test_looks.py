"""What a class would see: nothing overlaps or jumps, every axis is labelled, light and dark, narrow and wide.

The screenshots are kept in pytest's temporary folder, for people to look at.
"""

from __future__ import annotations

import pytest

from browser.test_panel import paced

TABS = {
    "Convergence": {"loss (nats)", "accuracy", "global step"},
    "Throughput": {"throughput (samples/s)", "time since all ranks were ready (s)"},
    "Staleness": {"staleness (updates)", "global step"},
    "Timeline": {"time since the first of these steps began (ms)"},
}

OVERLAPS = """panel => {
  const plot = [...panel.querySelectorAll('.js-plotly-plot')].find(p => p.clientWidth);
  const texts = [...plot.querySelectorAll('text')].filter(t => !t.closest('.hoverlayer'));
  const shown = texts.filter(t => t.textContent.trim());
  const boxes = shown.map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
  const frame = plot.getBoundingClientRect(), found = [];
  boxes.forEach(([a, p], i) => {
    const inside = p.left > frame.left - 1 && p.right < frame.right + 1 && p.bottom < frame.bottom + 1;
    if (!inside) found.push(`${a} is cut off`);
    for (const [b, q] of boxes.slice(i + 1)) {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1.5 && high > 1.5) found.push(`${a} | ${b}`);
    }
  });
  const legend = plot.querySelector('.legend .bg')?.getBoundingClientRect();
  const covered = legend && legend.bottom - plot.querySelector('.nsewdrag').getBoundingClientRect().top;
  if (covered > 1) found.push(`the legend covers ${covered} pixels of the plot`);
  return found;
}"""

SHAPE = """panel => {
  const plot = [...panel.querySelectorAll('.js-plotly-plot')].find(p => p.clientWidth);
  const whole = plot.getBoundingClientRect(), inner = plot.querySelector('.nsewdrag').getBoundingClientRect();
  const top = whole.top - panel.getBoundingClientRect().top;
  const inside = [inner.left - whole.left, inner.top - whole.top];
  return [panel.clientHeight, top, whole.height, ...inside].map(Math.round);
}"""


@pytest.fixture
def themed(page):
    """Leaves the page light and narrow for the tests that follow."""
    yield lambda name: page.evaluate(
        f"jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {name}' }})"
    )
    page.evaluate("jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' })")
    page.set_viewport_size({"width": 1280, "height": 800})


def test_panel_is_fit_to_be_shown(open_notebook, page, themed, tmp_path):
    notebook = open_notebook(
        paced(60),
        "Panel(dlpar.Experiment(workers=8, steps=60), question='Are 8 workers 8 times as fast?')",
    )
    notebook.run_all()
    panel = notebook.panel()
    before = panel.place.evaluate(SHAPE)
    for lr in ("0.1", "0.2"):
        panel.field("lr").fill(lr)
        page.keyboard.press("Tab")
        panel.run.click()
        panel.wait_for_steps(20)
        assert panel.place.evaluate(SHAPE) == before, "the figure jumped when the run began"
        panel.wait_for("done: 60 steps")
    assert panel.place.evaluate(SHAPE) == before, "the figure jumped when the run ended"

    wrong = {}
    for theme in ("Light", "Dark"):
        themed(theme)
        for width in (1280, 1920):
            page.set_viewport_size({"width": width, "height": 1000})
            for tab, titles in TABS.items():
                panel.tab(tab)
                page.wait_for_timeout(150)  # two frames and more: drawn at its new size
                panel.place.scroll_into_view_if_needed()
                page.screenshot(path=tmp_path / f"{tab}-{theme}-{width}.png")
                shown = set(
                    panel.place.locator(".js-plotly-plot:visible")
                    .locator("[class*='title-text'], [class$='title']")
                    .all_text_contents()
                )
                overlapping = panel.place.evaluate(OVERLAPS)
                if overlapping or not titles <= shown:
                    wrong[f"{tab}, {theme}, {width}"] = overlapping or titles - shown
            assert panel.place.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert wrong == {}
    print("screenshots:", tmp_path)
