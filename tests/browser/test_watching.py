"""How soon a point is on the screen, and a panel after a reload; what 8 ranks x 20,000 steps do to page and kernel."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

from browser.jupyter import Jupyter, Shown
from browser.test_panel import paced

pytestmark = pytest.mark.timed


def test_a_point_is_on_screen_within_250_ms_of_being_written(open_notebook, page, jupyter: Jupyter):
    notebook = open_notebook(paced(25), "Panel(dlpar.Experiment(workers=8, steps=100))")
    notebook.run_all()
    panel = notebook.panel()
    page.evaluate("window.drawn.length = 0")
    panel.run.click()
    panel.wait_for("done: 100 steps")
    drawn = page.evaluate("window.drawn")
    (run,) = {key.split(" ")[0] for key, _, _ in drawn}
    start = (jupyter.home / "runs" / run / "rank-0.jsonl").read_text().splitlines()[1]
    begun = json.loads(start)["epoch"]
    latency = sorted(at - begun - written for _, at, written in drawn)
    p95 = latency[int(0.95 * len(latency))]
    median = latency[len(latency) // 2]
    print(f"{len(latency)} points, on screen after {median * 1e3:.0f} ms (median), {p95 * 1e3:.0f} ms (p95)")
    assert len(latency) == 100
    assert p95 <= 0.25


def test_a_long_run_stays_smooth_and_bounded(open_notebook, page, jupyter: Jupyter):
    notebook = open_notebook(paced(1e6), "Panel(dlpar.Experiment(workers=8, steps=20_000))")
    notebook.run_all()
    panel = notebook.panel()
    kernel = jupyter.newest_kernel()
    page.evaluate("window.drawn.length = window.frames.length = 0")
    heap, memory, sent = heap_mb(page), kernel.memory_info().rss, page.received[0]
    busy, begun, most = sum(kernel.cpu_times()[:2]), time.monotonic(), memory
    panel.run.click()
    while not panel.words.inner_text().startswith("done: 20,000 steps"):
        assert time.monotonic() - begun < 60, panel.words.inner_text()
        most = max(most, kernel.memory_info().rss)
        page.wait_for_timeout(200)
    seconds, busy = time.monotonic() - begun, sum(kernel.cpu_times()[:2]) - busy
    frames = sorted(page.evaluate("window.frames"))
    median, p95 = frames[len(frames) // 2], frames[int(0.95 * len(frames))]
    moved, grown = (page.received[0] - sent) / 1e6, (most - memory) / 1e6
    print(
        f"160,000 records in {seconds:.1f} s: {busy / 160_000 * 1e6:.0f} us of kernel time each; "
        f"{moved:.2f} MB to the page; frames {median:.0f} ms (median), {p95:.0f} ms (p95); "
        f"kernel +{grown:.0f} MB, page +{heap_mb(page) - heap:.0f} MB"
    )
    assert "In 20,000 of 20,000 steps" in panel.says()
    assert median <= 34 and p95 <= 200
    assert moved < 4 and grown < 60 and heap_mb(page) - heap < 80


def test_sixteen_ranks_leave_the_page_50_frames_a_second(open_notebook, page):
    notebook = open_notebook(paced(50), "Panel(dlpar.Experiment(workers=16, steps=250))")
    notebook.run_all()
    panel = notebook.panel()
    panel.run.click()
    panel.wait_for_steps(20, seconds=30)
    page.evaluate("window.drawn.length = window.frames.length = 0")
    panel.wait_for("done: 250 steps", seconds=60)
    frames, drawn = sorted(page.evaluate("window.frames")), page.evaluate("window.drawn.length")
    median, p95 = frames[len(frames) // 2], frames[int(0.95 * len(frames))]
    print(f"16 ranks, {drawn} points: frames {median:.0f} ms (median), {p95:.0f} ms (p95)")
    assert drawn > 150 and median <= 20


CHANGE = """async ([panel, workers]) => {
  const input = panel.querySelector("[data-path=workers]"), facts = panel.querySelector(".dlpar-facts");
  const said = () => facts.textContent.match(/before Run(.*)samples/)?.[1], before = said(), begun = performance.now();
  input.value = workers;
  input.dispatchEvent(new Event("change"));
  while (said() === before || !said()) await new Promise((resolve) => setTimeout(resolve, 2));
  return performance.now() - begun;
}"""
"""Changes the number of workers; gives the milliseconds until the page says how fast they would be."""


def test_a_control_that_is_changed_is_answered_before_run(open_notebook, page):
    cluster = "{'world': 'simulated', 'platform': 'cpu-10gbe'}"
    notebook = open_notebook(
        "import dlpar; from dlpar.lab import Panel", f"Panel(dlpar.Experiment(workers=2, cluster={cluster}))"
    )
    notebook.run_all()
    panel = notebook.panel()
    handle = panel.place.element_handle()
    page.evaluate(CHANGE, [handle, "3"])  # the fork server may have to be started
    taken = sorted(page.evaluate(CHANGE, [handle, str(workers)]) for workers in (4, 5, 6, 8, 10, 12, 16))
    print(f"the ghost is there after {taken[len(taken) // 2]:.0f} ms (median), {taken[-1]:.0f} ms (most)")
    panel.tab("Throughput")
    assert "simulated" in panel.place.locator(".dlpar-legend").inner_text()
    assert taken[len(taken) // 2] < 400


RELOADS = int(os.environ.get("DLPAR_RELOADS", "3"))
"""Reloads in a test; the bar of 2 s holds for 50 on a machine that does nothing else."""

LONGEST_MS = 2000 if RELOADS >= 50 else 8000

MARKS = """() => {
  const marks = performance.getEntriesByType("mark").filter(({ name }) => name.startsWith("dlpar"));
  const first = marks.toReversed().map(({ name, startTime }) => [name, startTime]);
  return {
    "page loaded": performance.getEntriesByType("navigation")[0].loadEventEnd,
    "notebook shown": window.appeared,
    ...Object.fromEntries(first),
    "figure drawn": 1000 * window.drawn[0][1] - performance.timeOrigin,
  };
}"""
"""Milliseconds from the beginning of a reload to what happened then."""


SPAN = "() => [Math.min, Math.max].map((end) => end(...window.drawn.map((point) => point[2])))"
"""Ends of the first and the last step that is drawn (the points between them are thinned in a long run)."""


@pytest.fixture
def busy_cores():
    """A loop on every core that this process may use."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.timeout(120 + 15 * RELOADS)
def test_a_running_panel_is_back_after_a_reload_while_all_cores_are_busy(
    open_notebook, page, jupyter, busy_cores
):
    notebook = open_notebook(
        paced(20), "Panel(dlpar.Experiment(workers=4, steps=20_000), question='Is it back?')"
    )
    notebook.run_all()
    panel = notebook.panel()
    page.evaluate("window.drawn.length = 0")
    panel.run.click()
    panel.wait_for_steps(5, seconds=60)
    notebook.save()
    taken, moments, kernel = [], random.Random(3), jupyter.newest_kernel()
    threads = kernel.num_threads()
    for _ in range(RELOADS):
        page.wait_for_timeout(moments.randrange(200, 2000))
        steps, (oldest, newest) = panel.steps(), page.evaluate(SPAN)
        page.reload()
        page.wait_for_function("window.drawn?.length", timeout=60_000)
        taken.append(page.evaluate(MARKS))
        panel = Shown(page, page.locator(".dlpar-panel"))
        again = page.evaluate(SPAN)
        assert panel.steps() >= steps and again[0] <= oldest and again[1] >= newest
        assert panel.stop.is_enabled() and panel.run.is_disabled() and panel.gone.count() == 0
    for name in taken[0]:
        after = sorted(marks[name] - marks["page loaded"] for marks in taken if name in marks)
        print(f"{name}: {after[len(after) // 2]:,.0f} ms after the load (median), {after[-1]:,.0f} (most)")
    late = sum(marks["figure drawn"] - marks["page loaded"] > 2000 for marks in taken)
    print(f"{late} of {RELOADS} figures drawn more than 2 s after the load")
    assert max(marks["figure drawn"] - marks["notebook shown"] for marks in taken) < LONGEST_MS
    assert kernel.num_threads() <= threads + 2, "a reload leaves threads in the kernel"
    panel.stop.click()
    panel.wait_for("stopped after", seconds=60)


def heap_mb(page) -> float:
    """JavaScript heap after collection, in MB."""
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.collectGarbage")
    return page.evaluate("performance.memory.usedJSHeapSize") / 1e6
