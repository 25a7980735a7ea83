"""What a class would see: nothing overlaps or jumps, every axis is labelled, light and dark, narrow and wide.

The screenshots are kept in pytest's temporary folder, for people to look at.
"""

from __future__ import annotations

import base64

import pytest

from browser.test_panel import paced

TABS = {
    "Convergence": {"loss (nats)", "accuracy", "global step"},
    "Throughput": {"throughput (samples/s)", "time since all ranks were ready (s)"},
    "Staleness": {"staleness (updates)", "global step"},
    "Timeline": {"time since the beginning of the window (ms)"},
    "Waiting": {"time of a rank (s)", "sent by a rank (MB)"},
}

TABS_OF = {
    "ps": {
        "Staleness": {"staleness (updates)", "worker-steps", "time since all ranks were ready (s)"},
        "Lead": {"lead over the slowest (clocks)", "time since all ranks were ready (s)"},
        "Lanes": {"time since the first push shown (ms)"},
    },
    "gossip": {"Consensus": {"consensus distance(length of weights)", "global step"}},
}
"""Figures only some schemes have, and the titles of their axes."""

SCHEMES = {
    "ps": "{'scheme': 'ps', 'consistency': 'ssp', 'staleness': 3}",
    "gossip": "{'scheme': 'gossip', 'topology': 'exp2', 'start': 'random'}",
}

OVERLAPS = """panel => {
  const plot = panel.querySelector('.js-plotly-plot'), frame = plot.getBoundingClientRect(), found = [], boxes = [];
  const walker = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (walker.nextNode()) {
    const text = walker.currentNode, e = text.parentElement;
    if (!text.data.trim() || e.closest('.hoverlayer, .dlpar-spoken, option') || !e.checkVisibility()) continue;
    range.selectNodeContents(text);
    boxes.push(...[...range.getClientRects()].filter(box => box.width).map(box => [text.data.trim(), box, e]));
  }
  boxes.forEach(([a, p, e], i) => {
    const inside = p.left > frame.left - 1 && p.right < frame.right + 1 && p.bottom < frame.bottom + 1;
    if (plot.contains(e) && !inside) found.push(`${a} is cut off`);
    for (const [b, q] of boxes.slice(i + 1)) {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1.5 && high > 1.5) found.push(`${a} | ${b}`);
    }
  });
  return found;
}"""
"""Texts on the panel that cover each other, and those of its figure that are cut off."""

UNSEEN = """panel => {
  const view = panel.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
  const parts = ['.dlpar-head', '.dlpar-controls', '.dlpar-progress', '.dlpar-tabs', '.dlpar-plot', '.dlpar-caption'];
  return [...parts, ...(panel.querySelector('.dlpar-runs').hidden ? [] : ['.dlpar-runs'])].filter(name => {
    const { top, bottom, height } = panel.querySelector(name).getBoundingClientRect();
    return !height || top < view.top - 1 || bottom > view.bottom + 1;
  });
}"""
"""Parts of a panel that do not fit into the view."""

SHOWN = ("Light", 1280, 800), ("Light", 1920, 1080), ("Dark", 1280, 800), ("Dark", 1920, 1080)
"""Both themes on a small screen and on a projector."""

RANKS = """panel => {
  const { data } = panel.querySelector('.js-plotly-plot');
  return [...new Set(data.filter(({ type }) => type === 'bar').flatMap(({ y }) => [...y]))].sort((a, b) => a - b);
}"""
"""Rows in which something is drawn."""

FAINT = """async ([panel, picture]) => {
  const bytes = Uint8Array.from(atob(picture), (c) => c.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const plot = panel.querySelector('.js-plotly-plot'), frame = plot.getBoundingClientRect();
  const times = image.width / frame.width;
  const channel = (c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = (r, g, b) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const seen = ({ left, top, width, height }) => { // luminances in a box, how often each is there
    const box = [(left - frame.left) * times, (top - frame.top) * times, width * times, height * times].map(Math.round);
    const { data } = context.getImageData(box[0], box[1], Math.max(1, box[2]), Math.max(1, box[3]));
    const colours = new Map(), found = new Map();
    for (let i = 0; i < data.length; i += 4) {
      const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
      colours.set(colour, (colours.get(colour) ?? 0) + 1);
    }
    for (const [colour, count] of colours) {
      const value = luminance(colour >> 16, (colour >> 8) & 255, colour & 255).toFixed(3);
      found.set(value, (found.get(value) ?? 0) + count);
    }
    return [...found].map(([value, count]) => [Number(value), count]).sort((a, b) => b[1] - a[1]);
  };
  const page = seen({ left: frame.left, top: frame.top, width: frame.width, height: 3 })[0][0], faint = [];
  for (const text of plot.querySelectorAll('.main-svg text')) {
    const box = text.getBoundingClientRect();
    if (!text.textContent.trim() || !box.width || text.closest('.hoverlayer, .modebar')) continue;
    const [[behind], ...others] = seen(box), best = Math.max(1, ...others.map(([value]) => ratio(value, behind)));
    if (best < 4.5) faint.push(`${text.textContent} ${best.toFixed(2)}`);
  }
  for (const line of plot.querySelectorAll('.scatterlayer .trace path.js-line')) {
    const length = line.getTotalLength(), at = line.getScreenCTM();
    const spots = Array.from({ length: 300 }, (_, i) => line.getPointAtLength((length * i) / 300).matrixTransform(at));
    const dots = spots.map(({ x, y }) => ({ left: x - 0.5, top: y - 0.5, width: 1, height: 1 }));
    const { left: l, right: r, top: t, bottom: b } = frame;
    const inside = dots.filter(({ left, top }) => left > l && left < r - 1 && top > t && top < b - 1);
    const best = Math.max(0, ...inside.map((dot) => ratio(seen(dot)[0][0], page)));
    if (inside.length && best < 3) faint.push(`line ${getComputedStyle(line).stroke} ${best.toFixed(2)}`);
  }
  return faint;
}"""
"""Texts of a figure that stand out by less than 4.5 in its picture, and lines that do by less than 3 (WCAG, AA)."""

EMPTY = """panel => panel.querySelector('.js-plotly-plot').data.filter(({ name, x, visible }) =>
  /^(rank|server) /.test(name ?? '') && visible !== false && !x?.length).map(({ name }) => name)"""
"""Ranks with a curve, a lane or a histogram of which nothing is drawn."""

DRAWN = """() => [...document.querySelectorAll('.dlpar-plot')].filter(p => p.clientWidth)
  .every(p => p.querySelector('.main-svg')?.clientWidth === p.clientWidth)"""
"""Whether every figure on the page has been drawn at its present size."""

SHAPE = """panel => {
  const plot = panel.querySelector('.js-plotly-plot');
  const whole = plot.getBoundingClientRect(), inner = plot.querySelector('.nsewdrag').getBoundingClientRect();
  const below = panel.querySelector('.dlpar-time').getBoundingClientRect();
  const places = [whole.top, below.bottom].map(place => place - panel.getBoundingClientRect().top);
  return [...places, whole.height, inner.left - whole.left, inner.top - whole.top].map(Math.round);
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
        paced(60), "Panel(dlpar.Experiment(workers=8, steps=60), question='Are 8 workers 8 times as fast?')"
    )
    notebook.run_all()
    panel = notebook.panel()
    notebook.command("notebook:hide-all-cell-code")
    page.wait_for_timeout(300)
    before = panel.place.evaluate(SHAPE)
    for lr in ("0.1", "0.2"):
        panel.field("lr").fill(lr)
        page.keyboard.press("Tab")
        panel.begin()
        panel.wait_for_steps(20)
        assert panel.place.evaluate(SHAPE) == before, "the figure jumped when the run began"
        panel.wait_for("done: 60 steps")
    assert panel.place.evaluate(SHAPE) == before, "the figure jumped when the run ended"

    assert faults(panel, page, themed, TABS, tmp_path) == {}
    panel.tab("Timeline")
    assert panel.place.evaluate(RANKS) == list(range(8)), "a rank is missing in the time line"
    print("screenshots:", tmp_path)


@pytest.mark.parametrize("scheme", TABS_OF)
def test_figures_of_a_scheme_are_fit_to_be_shown(open_notebook, page, themed, tmp_path, scheme):
    experiment = f"dlpar.Experiment(workers=8, steps=60, sync={SCHEMES[scheme]})"
    notebook = open_notebook(paced(60), f"Panel({experiment}, controls=('sync.scheme', 'workers', 'lr'))")
    notebook.run_all()
    panel = notebook.panel()
    panel.run.click()
    panel.wait_for("done: 60 steps")
    assert faults(panel, page, themed, TABS_OF[scheme], tmp_path) == {}
    print("screenshots:", tmp_path)


def test_a_simulated_and_a_paced_cluster_run_from_the_panel_and_are_fit_to_be_shown(
    open_notebook, page, themed, tmp_path
):
    experiment = "dlpar.Experiment(workers=16, steps=20, model='logistic', cluster='simulated')"
    controls = "('cluster.world', 'cluster.platform', 'workers')"
    notebook = open_notebook(
        "import dlpar; from dlpar.lab import Panel", f"Panel({experiment}, controls={controls})"
    )
    notebook.run_all()
    panel = notebook.panel()
    panel.run.click()
    panel.wait_for("done: 20 steps", seconds=40)
    assert "world simulated" in panel.facts.inner_text() and "clock virtual" in panel.facts.inner_text()
    panel.field("world").select_option("paced")
    panel.field("workers").fill("8")
    page.keyboard.press("Tab")
    panel.run.click()
    panel.facts.filter(has_text="clock logical").wait_for(timeout=40_000)
    panel.wait_for("done: 20 steps", seconds=40)
    assert "slip none" not in panel.facts.inner_text(), (
        "the wall follows another clock, never to the microsecond"
    )
    titles = {"Throughput": {"throughput (samples/s)", "time, each run on its own clock (s)"}}
    assert faults(panel, page, themed, titles, tmp_path) == {}
    print("screenshots:", tmp_path)


def test_a_comparison_is_fit_to_be_shown(open_notebook, page, themed, tmp_path):
    experiments = (
        f"[dlpar.Experiment(workers=8, steps=40, sync=s) for s in ('ring', {', '.join(SCHEMES.values())})]"
    )
    notebook = open_notebook(paced(60), f"from dlpar import lab; c = lab.compare({experiments}); c.run(); c")
    notebook.run_all()
    panel = notebook.panel()
    panel.wait_for("3 of 3", seconds=40)
    panel.wait_for("done: 40 steps", seconds=40)
    assert "At the last step of each run: ring loss" in panel.says()
    titles = {
        "Convergence": {"loss (nats)", "accuracy", "time since all ranks were ready (s)"},
        "Throughput": TABS["Throughput"],
        "Staleness": {"staleness (updates)"},
        "Waiting": TABS["Waiting"],
        "Consensus": TABS_OF["gossip"]["Consensus"],
    }
    assert faults(panel, page, themed, titles, tmp_path) == {}
    heads = panel.place.locator(".dlpar-runs thead th").all_inner_texts()
    assert heads[:3] == ["run", "speed", "samples/s"] and "staleness mean" in heads
    assert panel.runs.all_inner_texts() == ["ring", "ps ssp(3)", "gossip exp2"]
    print("screenshots:", tmp_path)


def faults(panel, page, themed, tabs, folder) -> dict:
    """What is wrong in any tab, light and dark, narrow and wide: texts that overlap, titles that are missing."""
    wrong = {}
    for theme, width, height in SHOWN:
        themed(theme)
        page.set_viewport_size({"width": width, "height": height})
        for tab, titles in tabs.items():
            if tab:
                panel.tab(tab)
            page.wait_for_function(DRAWN)
            panel.place.evaluate("e => e.scrollIntoView()")
            fault = lasting_fault(panel, page, titles) or panel.place.evaluate(EMPTY)
            if fault := fault or lasting_faintness(panel, page, width, height):
                wrong[f"{tab}, {theme}, {width}"] = fault
            page.screenshot(path=folder / f"{tab}-{theme}-{width}.png")
        if not panel.place.evaluate("e => e.scrollWidth <= e.clientWidth + 1"):
            wrong[f"{theme}, {width}"] = "the panel is wider than its cell"
    return wrong


def faint(panel, page, width, height) -> list[str]:
    """What does not stand out from the page, by the pixels of a picture three times as fine as the screen."""
    session = page.context.new_cdp_session(page)
    metrics = {"width": width, "height": height, "mobile": False}
    session.send("Emulation.setDeviceMetricsOverride", {**metrics, "deviceScaleFactor": 3})
    picture = panel.place.locator(".js-plotly-plot").screenshot(animations="disabled")
    session.send("Emulation.clearDeviceMetricsOverride")
    session.detach()
    page.set_viewport_size({"width": width, "height": height})
    found = panel.place.element_handle()
    return page.evaluate(FAINT, [found, base64.b64encode(picture).decode()])


def lasting_faintness(panel, page, width, height) -> list[str]:
    """What does not stand out in five pictures: on a busy machine the first may show a figure half drawn."""
    for _ in range(5):
        if not (found := faint(panel, page, width, height)):
            break
        page.wait_for_timeout(400)
    return found


def lasting_fault(panel, page, titles):
    """What overlaps, is missing or does not fit, for two seconds: on a busy machine a new size takes a while."""
    for _ in range(20):
        page.wait_for_timeout(100)
        plots = panel.place.locator(".js-plotly-plot:visible")
        shown = set(plots.locator("[class*='title-text'], [class$='title']").all_text_contents())
        fault = panel.place.evaluate(OVERLAPS) or titles - shown or panel.place.evaluate(UNSEEN)
        if not fault:
            return None
    return fault
