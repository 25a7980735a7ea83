"""A panel in a real JupyterLab: run, reload, stop, run again, two at once, a kernel that goes away."""

from __future__ import annotations

import pytest
from conftest import eventually

PLACES = """panel => [...panel.querySelectorAll("input, button, .dlpar-plot")].filter(e => e.clientWidth)
  .map(e => { const { x, y, width, height } = e.getBoundingClientRect();
    return [x, y, width, height].map(Math.round); })"""
"""Where everything is that can be set, pressed or looked at."""

DEAD = """panel => [getComputedStyle(panel.querySelector(".dlpar-controls")).pointerEvents,
  [panel, ...panel.querySelectorAll("*")].map(e => getComputedStyle(e, "::before").content)
    .filter(text => !["none", "normal", "counter(list-item)"].includes(text))]"""
"""Whether a panel takes presses, and the signs that another stylesheet put into it."""

PACED = "import dlpar, paced; from dlpar.lab import Panel; paced.install(steps_per_s)"


def paced(steps_per_s: float) -> str:
    """Cell that lets panels start stand-in ranks at a known pace."""
    return PACED.replace("steps_per_s", str(steps_per_s))


def test_run_reload_stop_and_run_again(open_notebook, page):
    notebook = open_notebook(paced(50), "Panel(dlpar.Experiment(workers=4, steps=2000), question='Does it?')")
    notebook.run_all()
    panel = notebook.panel()
    page.wait_for_timeout(1000)  # for plotly.js
    ticks = panel.place.locator(".dlpar-plot .xtick, .dlpar-plot .ytick, .dlpar-preview text")
    assert not ticks.count(), "axes of nothing"
    page.evaluate("window.drawn.length = 0")
    panel.run.focus()
    page.keyboard.press("Enter")
    early = panel.wait_for_steps(5)
    assert panel.wait_for_steps(early + 10) > early
    assert "the training loss fell from" in panel.says()

    drawn = points(page)
    notebook.save()
    page.reload()
    panel = notebook.panel()
    later = panel.wait_for_steps(early + 20)
    assert points(page) >= drawn, "points from before the reload must be there again"
    assert panel.wait_for_steps(later + 5) > later

    panel.stop.click()
    panel.wait_for("stopped after")
    stopped = panel.words.inner_text()
    page.wait_for_timeout(400)
    assert panel.words.inner_text() == stopped
    assert panel.run.is_enabled() and panel.stop.is_disabled()

    panel.field("workers").fill("2")
    page.keyboard.press("Tab")
    panel.begin()
    panel.wait_for_steps(3)
    assert panel.runs.all_inner_texts() == ["workers=4 (stopped)", "workers=2"]
    named = panel.place.locator(".annotation-text")
    assert set(named.all_text_contents()) == {"workers=4 (stopped)", "workers=2"}
    panel.clear.click()
    panel.runs.first.wait_for(state="hidden")
    named.first.wait_for(state="detached")
    panel.stop.click()
    panel.wait_for("stopped after")


LOSE = """
import threading, time
def lose():
    while True:
        time.sleep(0.2)
        panel._sequence += 1  # the page takes it for a lost message, and asks for everything
threading.Thread(target=lose, daemon=True).start()"""


def test_a_press_counts_although_lost_messages_are_sent_again_meanwhile(open_notebook, page):
    notebook = open_notebook(paced(50), "panel = Panel(dlpar.Experiment(steps=2000))\npanel", LOSE)
    notebook.run_all()
    panel = notebook.panel()
    panel.begin()
    panel.wait_for_steps(3)
    panel.stop.click(delay=600)  # ms from down to up
    panel.wait_for("stopped after")


def test_bad_values_are_explained_and_refused(open_notebook, page):
    notebook = open_notebook(paced(50), "Panel()")
    notebook.run_all()
    panel = notebook.panel()
    before = panel.place.evaluate(PLACES)
    panel.field("workers").fill("0")
    page.keyboard.press("Tab")
    panel.message.get_by_text("workers: got 0, allowed is a whole number from 1 to 4096").wait_for()
    assert panel.run.is_disabled() and panel.field("workers").get_attribute("aria-invalid") == "true"
    assert panel.place.evaluate(PLACES) == before, "the message moved what is around it"
    panel.field("workers").fill("3")
    page.keyboard.press("Tab")
    panel.place.locator(".dlpar-run:not([disabled])").wait_for()
    assert panel.message.inner_text() == "" and panel.run.is_enabled()


def test_two_panels_are_independent_and_tell_of_a_kernel_restart(open_notebook, page):
    notebook = open_notebook(
        paced(50), "Panel(dlpar.Experiment(steps=2000))", "Panel(dlpar.Experiment(workers=2, steps=2000))"
    )
    notebook.run_all()
    first, second = notebook.panel(0), notebook.panel(1)
    first.run.click()
    second.run.click()
    assert first.wait_for_steps(5) and second.wait_for_steps(5)
    first.stop.click()
    first.wait_for("stopped after")
    before = second.steps()
    assert second.wait_for_steps(before + 5)

    notebook.restart_kernel()
    for panel in (first, second):
        panel.gone.get_by_text("The kernel was restarted").wait_for()
    notebook.wait_until_idle()
    for panel in (first, second):
        assert panel.gone.count() == 1 and panel.place.evaluate(DEAD) == ["none", []]


def test_a_kernel_that_is_killed_is_noticed(open_notebook, page, jupyter):
    notebook = open_notebook(paced(50), "Panel(dlpar.Experiment(steps=2000))")
    notebook.run_all()
    panel = notebook.panel()
    panel.run.click()
    panel.wait_for_steps(3)
    jupyter.newest_kernel().kill()
    panel.gone.get_by_text("The kernel was restarted").wait_for(timeout=20_000)
    page.locator(".jp-Dialog-button.jp-mod-accept").click()
    notebook.wait_until_idle()


@pytest.mark.parametrize("jupyter_s", ["subshells off", "subshells on", "private name gone"])
def test_panel_draws_and_stops_while_a_cell_blocks_the_kernel(open_notebook, page, jupyter_s):
    gone = "from ipykernel.comm.comm import BaseComm; del BaseComm._reply_subshell_for\n"
    notebook = open_notebook(
        gone * (jupyter_s == "private name gone") + paced(50),
        "panel = Panel(dlpar.Experiment(steps=2000))\npanel",
        "import time\njob = panel.run()\nend = time.time() + 60\n"
        "while panel.running and time.time() < end: time.sleep(0.05)\nprint('waited')",
    )
    if jupyter_s != "subshells off":
        page.evaluate(
            f"({notebook.widget}).sessionContext.session.kernel.commsOverSubshells = 'perCommTarget'"
        )
    notebook.run_all()
    panel = notebook.panel()
    assert panel.wait_for_steps(10)
    assert (
        "[*]" in page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-InputPrompt").all_inner_texts()[-1]
    )
    panel.stop.click()
    panel.wait_for("stopped after")
    page.get_by_text("waited", exact=True).wait_for(timeout=5000)


def test_real_ranks_train_to_the_end(open_notebook):
    notebook = open_notebook(
        "import dlpar; from dlpar.lab import Panel",
        "Panel(dlpar.Experiment(workers=2, steps=60), title='Train')",
    )
    notebook.run_all()
    panel = notebook.panel()
    panel.run.click()
    panel.wait_for("done: 60 steps", seconds=40)
    assert "held-out accuracy" in panel.words.inner_text()
    assert "world real" in panel.facts.inner_text() and "mpi" in panel.facts.inner_text()
    for tab, sentence in {
        "Throughput": "samples a second",
        "Staleness": "Staleness is 0",
        "Timeline": "computing",
    }.items():
        panel.tab(tab)
        assert sentence in panel.says()


def test_choosing_a_scheme_shows_its_fields_and_its_figures(open_notebook, page):
    experiment = "dlpar.Experiment(workers=2, steps=60)"
    notebook = open_notebook(paced(60), f"Panel({experiment}, controls=('sync.scheme', 'workers'))")
    notebook.run_all()
    panel = notebook.panel()
    panel.place.get_by_text("More settings").click()
    assert panel.field("allreduce").count() == 1 and panel.field("consistency").count() == 0
    panel.field("sync").select_option("ps")
    panel.field("consistency").select_option("ssp")
    panel.field("staleness").fill("2")
    page.keyboard.press("Tab")
    assert panel.field("allreduce").count() == 0
    panel.run.click()
    panel.wait_for("done: 60 steps")
    tabs = ["Convergence", "Throughput", "Staleness", "Lead", "Lanes", "Timeline", "Waiting"]
    assert panel.place.get_by_role("tab").all_inner_texts() == tabs
    panel.tab("Lead")
    assert "s = 2" in panel.says()
    panel.tab("Lanes")
    assert "the number at each arrowhead" in panel.says()


def test_focus_stays_where_it_is_while_values_are_echoed(open_notebook, page):
    notebook = open_notebook(
        paced(50), "Panel(dlpar.Experiment(workers=2, steps=300), controls=('sync.scheme', 'workers'))"
    )
    notebook.run_all()
    panel = notebook.panel()
    focused = "e => e === document.activeElement"
    panel.field("sync").focus()
    panel.field("sync").select_option("ps")
    panel.place.locator("[data-path='sync.consistency']").wait_for(state="attached")
    page.wait_for_timeout(300)
    assert panel.field("sync").evaluate(focused), "a choice that changes other fields"
    panel.run.click()
    panel.wait_for_steps(5)
    panel.place.get_by_role("tab", name="Throughput").click()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    chosen = panel.place.get_by_role("tab", selected=True)
    assert chosen.inner_text() == "Staleness" and chosen.evaluate(focused)
    panel.field("workers").fill("7")  # typed, but not yet sent
    panel.wait_for_steps(panel.steps() + 10)
    assert panel.field("workers").input_value() == "7"
    panel.wait_for("launched", 30)  # the run has ended
    assert panel.run.is_enabled() and panel.field("workers").input_value() == "7"
    page.keyboard.press("Tab")
    panel.begin()
    panel.wait_for_steps(3)
    assert panel.runs.last.inner_text() == "workers=7"
    panel.stop.click()


def test_a_point_under_the_pointer_marks_its_moment_in_all_figures(open_notebook, page):
    notebook = open_notebook(paced(100), "Panel(dlpar.Experiment(workers=2, steps=100))")
    notebook.run_all()
    panel = notebook.panel()
    panel.run.click()
    panel.wait_for("done: 100 steps")
    panel.place.locator(".dlpar-run:not([disabled])").wait_for()
    box = panel.place.locator(".nsewdrag").first.bounding_box()
    mark = panel.place.locator(".dlpar-moment")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    point = panel.place.locator(".js-plotly-plot").evaluate("e => e.data[0].y[50] / e.layout.yaxis.range[1]")
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * (1 - point), steps=3)
    mark.wait_for()
    half, middle = box["width"] / 2, lambda: mark.bounding_box()["x"] - box["x"]
    eventually(
        lambda: abs(middle() - half) <= box["width"] / 50, 5, "points near the pointer's way come before"
    )
    said = panel.place.locator(".dlpar-now").inner_text()
    seconds = float(said.split()[0]) / (1000 if said.endswith("ms") else 1)
    assert 0.3 < seconds < 0.8, "the middle of a run of a second"
    for tab in ("Throughput", "Staleness", "Timeline"):
        panel.tab(tab)
        mark.wait_for()


def test_a_run_that_is_hidden_stays_hidden_and_another_may_be_the_base(open_notebook, page):
    notebook = open_notebook(paced(200), "Panel(dlpar.Experiment(workers=2, steps=40))")
    notebook.run_all()
    panel = notebook.panel()
    for workers in ("2", "4"):
        panel.field("workers").fill(workers)
        page.keyboard.press("Tab")
        panel.begin()
        panel.wait_for("done: 40 steps")
        panel.place.locator(".dlpar-run:not([disabled])").wait_for()
    ratios = panel.place.locator(".dlpar-ratio")
    ratios.nth(1).filter(has_text=" times").wait_for()
    assert ratios.first.inner_text() == "1 (base)"
    ratios.nth(1).click()
    assert " times" in ratios.first.inner_text() and ratios.nth(1).inner_text() == "1 (base)"
    panel.place.get_by_label("Show workers=2").uncheck()
    named = panel.place.locator(".annotation-text")
    page.wait_for_function("document.querySelectorAll('.dlpar-panel .annotation-text').length === 1")
    assert named.all_text_contents() == ["workers=4"]
    panel.run.click()
    panel.wait_for("done: 40 steps")
    assert not panel.place.get_by_label("Show workers=2").is_checked()


def test_a_figure_is_there_again_after_its_cell_was_out_of_the_page(open_notebook, page):
    others = (f"print({n})\n" * 30 for n in range(8))
    notebook = open_notebook(paced(50), "Panel(dlpar.Experiment(workers=2, steps=2000))", *others)
    content = f"({notebook.widget}).content"
    page.evaluate(f"{content}.notebookConfig = {{ ...{content}.notebookConfig, windowingMode: 'full' }}")
    notebook.run_all()
    notebook.wait_until_idle()
    page.evaluate(f"{content}.scrollToItem(1, 'start')")
    panel = notebook.panel()
    panel.run.click()
    done = panel.wait_for_steps(5)
    for _ in range(2):
        page.evaluate(f"{content}.activeCellIndex = 9; {content}.scrollToItem(9, 'end')")
        bottom = "e => e.getBoundingClientRect().bottom"
        assert eventually(lambda: panel.place.evaluate(bottom) < 0, 20, "the panel is out of view")
        page.wait_for_timeout(500)
        page.evaluate(f"{content}.scrollToItem(1, 'start')")
        panel.place.locator(".main-svg").first.wait_for()
        done = panel.wait_for_steps(done + 5)
    newest = "e => e.querySelector('.js-plotly-plot').data[0].x.at(-1)"
    assert eventually(
        lambda: panel.place.evaluate(newest) >= done, 10, "points that came meanwhile are drawn"
    )
    panel.stop.click()
    panel.wait_for("stopped after")


def points(page) -> int:
    """Points of the newest run in the figure in front."""
    return page.evaluate("window.drawn.length")
