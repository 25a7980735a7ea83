"""Real ranks die in a real browser: others go on, or a page that is loaded anew resumes the run."""

from __future__ import annotations

from conftest import eventually

import dlpar

CELL = """import dlpar
from dlpar.lab import Panel
slow = {{"kind": "constant", "delay_ms": 20.0}}
Panel(dlpar.Experiment(workers=4, steps={}, batch=64, delays=slow, snapshot={{"every": 100}},
                       deaths={{"on_death": "{}"}}))"""

FITS = """panel => {
  const box = panel.getBoundingClientRect(), view = panel.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
  const inside = ({ left, right, top, bottom }) => left >= box.left && right <= box.right && bottom <= view.bottom;
  const parts = [...panel.querySelectorAll('.dlpar-rank button, .dlpar-caption')];
  return parts.every(e => inside(e.getBoundingClientRect()));
}"""
"""Whether every rank's buttons and the sentence are on the first screen."""


def order(panel, name):
    """A button beside a rank."""
    return panel.place.get_by_role("button", name=name, exact=True)


def begun(open_notebook, on_death, steps):
    """A panel whose ranks have done some steps."""
    notebook = open_notebook(CELL.format(steps, on_death))
    notebook.run_all()
    panel = notebook.panel()
    panel.place.evaluate("panel => panel.scrollIntoView({ block: 'start' })")
    panel.run.click()
    panel.wait_for_steps(110, 60)  # far from both snapshots, so that a kill loses some
    return notebook, panel


def test_a_rank_is_slowed_stopped_and_killed_by_keyboard_and_the_others_go_on(open_notebook, page):
    _, panel = begun(open_notebook, "shrink", 5000)
    assert panel.place.evaluate(FITS), "buttons or sentence leave the first screen"
    slow = order(panel, "Slow down rank 1")
    slow.focus()
    page.keyboard.press("Enter")
    assert eventually(lambda: slow.get_attribute("aria-pressed") == "true", 10, "the rank is slow")
    assert slow.evaluate("e => e === document.activeElement"), "the focus stays on the button"
    page.keyboard.press("Enter")
    assert eventually(lambda: slow.get_attribute("aria-pressed") == "false", 10, "and quick again")
    order(panel, "Stop for 3 seconds rank 2").press("Enter")
    page.wait_for_timeout(1300)  # the pause takes 3 s, and the page is at most some tenths behind
    stopped = panel.steps()
    page.wait_for_timeout(1000)
    assert panel.steps() == stopped
    panel.wait_for_steps(stopped + 5)
    order(panel, "Kill rank 3").press("Enter")
    panel.place.locator(".dlpar-rank", has_text="died").wait_for(timeout=10_000)
    assert order(panel, "Kill rank 3").count() == 0 and order(panel, "Kill rank 0").count() == 1
    panel.wait_for_steps(panel.steps() + 20)
    panel.stop.click()
    panel.wait_for("stopped after", 20)
    assert "rank 3 died, others went on at step" in panel.says()
    assert not panel.place.locator(".dlpar-ranks").is_visible()


def test_a_job_that_died_is_resumed_after_a_reload_to_the_last_bit(open_notebook, page):
    notebook, panel = begun(open_notebook, "end", 300)
    order(panel, "Kill rank 2").click()
    panel.wait_for("failed after", 20)
    notebook.save()
    page.reload()
    page.wait_for_function("window.jupyterapp?.commands.hasCommand('notebook:run-all-cells')", timeout=60_000)
    notebook.wait_until_idle()
    panel = notebook.panel()
    panel.place.evaluate("panel => panel.scrollIntoView({ block: 'start' })")
    panel.place.locator(".dlpar-offer .dlpar-resume").click()
    panel.wait_for("done: 300 steps", 100)
    assert "steps were done twice (broad line)" in panel.says() and panel.place.evaluate(FITS)
    run = next(run for run in dlpar.runs() if run.experiment.snapshot.every)
    whole = dlpar.launch(run.experiment.replace(delays="none")).wait(60)
    assert (run.curve["loss"] == whole.curve["loss"]).all() and len(run.curve) == 300
    panel.place.get_by_text("Recordings", exact=True).click()
    which = panel.place.get_by_label("run", exact=True)
    resume = panel.place.locator(".dlpar-sections").get_by_role("button", name="Resume")
    which.select_option(run.id)
    assert resume.is_disabled(), "a run that is done is not resumed"
