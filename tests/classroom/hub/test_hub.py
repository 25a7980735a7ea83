"""A hub in a real browser: a student comes, works, leaves and comes back; the teacher looks, stops, pauses, sends."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.jupyter import Shown, find_browser
from conftest import eventually

from classroom.hub.classroom import Hub, Kernel, no_proxy
from dlpar.config.experiment import Experiment
from dlpar.course.release import release

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(no_proxy()), reason=no_proxy()),
    pytest.mark.skipif(find_browser() is None, reason="no Chrome or Chromium was found"),
]
LABS = Path(__file__).resolve().parents[3] / "labs"
FIRST = "00_first_parallel_run.ipynb"
LONG_JOB = """
import dlpar
delays = {"kind": "constant", "delay_ms": 50}  # it sleeps, and leaves the cores to the browser
job = dlpar.launch(dlpar.Experiment(workers=2, steps=1_000_000, delays=delays))
print(job.wait_steps(1).id)
"""
WATCH_OFFER = """
import dlpar, time
from dlpar import lab
panel = lab.Panel(dlpar.Experiment(workers=4))

def offered():
    offer = panel.state["offer"] or {"text": None}
    return offer["text"], offer.get("what"), offer.get("actions", [])

def until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, own_folders) -> Iterator[Hub]:
    """A hub of ada, eve, bob who never comes, and a teacher, with the first lab and four job slots."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "masters").mkdir()
    shutil.copy(LABS / FIRST, folder / "masters")
    release(folder / "masters", folder / "labs")
    started = Hub(folder, "--users=ada,bob,eve", "--teachers=grace", "--slots=4")
    try:
        started.wait_until_up()
        yield started
    finally:
        started.stop()


def start(hub: Hub, name: str) -> None:
    """Somebody's server, if it is not there."""
    if not hub.is_ready(name):
        hub.start_server(name)
        eventually(lambda: hub.is_ready(name), 60, f"{name}'s server is up")


def kernel_of(hub: Hub, name: str) -> Kernel:
    """A kernel of somebody whose server is started if it is not there."""
    start(hub, name)
    return Kernel(hub, name)


def log_in(page, hub: Hub, name: str, to: str) -> None:
    """By the form, on the way to a page."""
    page.goto(f"{hub.url}{to}")
    page.locator("#username_input").fill(name)
    page.locator("#password_input").fill(hub.password(name))
    page.locator("#login_submit").click()


def panel_of(page) -> Shown:
    """The lab's panel, drawn."""
    place = page.locator(".dlpar-panel", has=page.locator(".dlpar-controls")).first
    place.scroll_into_view_if_needed(timeout=20_000)
    place.locator(".js-plotly-plot:visible .main-svg").first.wait_for(timeout=20_000)
    return Shown(page, place)


def test_a_student_queues_behind_another_logs_out_comes_back_and_her_run_is_there(hub: Hub, chromium) -> None:
    eve = kernel_of(hub, "eve")
    eve.run(LONG_JOB)  # in two of the four slots
    own = hub.folder / "hub" / "users" / "ada"
    runs = lambda: {folder.name for folder in (own / ".local" / "share" / "dlpar" / "runs").glob("*")}
    before = runs()
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    log_in(page, hub, "ada", f"/hub/user-redirect/lab/tree/{FIRST}")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.locator(".jp-MarkdownCell").first.click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    shown = panel_of(page)
    shown.field("workers").fill("4")
    shown.run.click()
    shown.wait_for("queued, next to start", 20)
    page.keyboard.press("Control+s")
    mine, shared = own / "dlpar-labs" / FIRST, hub.folder / "labs" / FIRST
    eventually(lambda: mine.read_bytes() != shared.read_bytes(), 10, "the notebook is saved")
    (run,) = runs() - before

    page.goto(f"{hub.url}/hub/logout")
    page.goto(f"{hub.url}/user/ada/lab")
    page.locator("#username_input").wait_for()  # without her password she is nobody
    eve.run("job.stop()")

    log_in(page, hub, "ada", f"/user/ada/lab/tree/{FIRST}")
    shown = panel_of(page)
    shown.wait_for("done: 40 steps", 60)
    assert shown.says().startswith("In 40 of 40 steps"), "the figure has drawn itself again, too"
    asked = "import dlpar; print(*(f'{run.id} {run.status}' for run in dlpar.runs()))"
    assert f"{run} done" in Kernel(hub, "ada").run(asked)
    page.context.close()


def test_the_teacher_sees_who_is_here_and_stops_a_job(hub: Hub, chromium) -> None:
    kernel = kernel_of(hub, "ada")
    run = kernel.run(LONG_JOB).strip()
    page = chromium.new_context().new_page()
    log_in(page, hub, "grace", "/services/teacher/")
    row = page.locator("tr", has=page.locator("td", has_text="ada"))
    button = row.get_by_role("button", name="Stop ada's job: mlp on digits, ring, 2 workers, real")
    button.wait_for(timeout=20_000)
    row.locator("td:nth-child(4)", has_text="2").wait_for(timeout=20_000)
    assert row.locator("td").nth(1).inner_text() == "here"
    assert page.locator("tr", has_text="bob").count() == 0, "he has never come: the hub's own page lists him"
    button.click()
    said = kernel.run("print(job._guardian.wait(30), job.run.status, job.run.reason)")
    assert said == "0 stopped the launcher received SIGTERM, so the job was stopped\n"
    button.wait_for(state="detached", timeout=15_000)
    assert page.locator("#trouble").inner_text() == ""
    assert run
    forged = "fetch('class', {method: 'POST', body: '{\"pause\": true}'}).then(answer => answer.status)"
    assert page.evaluate(forged) == 403, "another page has her cookie, and not the page's token"
    page.get_by_role("button", name="Pause everyone").click()
    page.locator("#sum", has_text="PAUSED").wait_for(timeout=10_000)
    waits = "job = dlpar.launch(dlpar.Experiment(workers=1, steps=3))\n"
    waits += "import time; time.sleep(1.5); print(job.run.status)"
    assert kernel.run(waits) == "queued\n"
    page.get_by_role("button", name="Let everyone go on").click()
    assert kernel.run("print(job.wait(30).status)") == "done\n"
    page.context.close()


def test_what_the_teacher_sends_is_offered_in_every_panel_and_can_be_taken_back(hub: Hub, chromium) -> None:
    kernel = kernel_of(hub, "ada")
    kernel.run(WATCH_OFFER)
    page = chromium.new_context().new_page()
    log_in(page, hub, "grace", "/services/teacher/")
    page.locator("#text").fill('{"workers": 3, "colour": "blue"}')
    page.get_by_role("button", name="Send to everybody").click()
    page.locator("#trouble", has_text="colour").wait_for()
    page.locator("#text").fill(Experiment(workers=3, cluster={"world": "simulated"}).to_json())
    page.get_by_role("button", name="Send to everybody").click()
    page.locator("#sent", has_text="offered to").wait_for()
    text, what = "Your teacher (grace) sent:", "mlp on digits, ring, 3 workers, simulated"
    sent = text, what, ["take", "away"]
    said = kernel.run(f"print(until(lambda: offered() == {sent}), panel.experiment.workers)")
    assert said == "True 4\n", "she has pressed nothing, so nothing is set"
    taken = "panel.hear({'do': 'take'}); print(panel.experiment.workers, panel.running, offered()[2])"
    assert kernel.run(taken) == "3 False ['undo', 'away']\n"
    page.get_by_role("button", name="Take it back").click()
    assert kernel.run("print(until(lambda: panel._offer._id is None))") == "True\n"
    undone = "panel.hear({'do': 'undo'}); print(panel.experiment.workers, offered()[0])"
    assert kernel.run(undone) == "4 None\n"
    page.context.close()


def test_nobody_but_a_teacher_opens_the_teachers_page(hub: Hub, chromium) -> None:
    page = chromium.new_context().new_page()
    log_in(page, hub, "eve", "/services/teacher/")
    page.wait_for_load_state()
    page.get_by_text("403").first.wait_for()
    assert not page.get_by_text("running jobs").count()
    page.context.clear_cookies()
    page.goto(f"{hub.url}/hub/login")
    page.locator("#username_input").fill("grace")
    page.locator("#password_input").fill(hub.password("eve"))
    page.locator("#login_submit").click()
    page.get_by_text(
        "Invalid username or password"
    ).wait_for()  # students' password opens no teacher's account
    assert hub.status("/services/teacher/class", token=hub.token_of("eve")) == 403
    assert hub.status("/services/teacher/class", token=hub.token_of("grace")) == 200
    page.context.close()


def test_an_update_of_the_course_reaches_a_student_and_leaves_her_edited_lab_alone(hub: Hub) -> None:
    own = hub.folder / "hub" / "users" / "ada" / "dlpar-labs"
    start(hub, "ada")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    (own / FIRST).write_text("ada's work")
    (hub.folder / "labs" / FIRST).write_text("second version")
    (hub.folder / "labs" / "01.ipynb").write_text("another lab")
    hub.ask("/hub/api/users/ada/server", "DELETE")
    eventually(lambda: not hub.ask("/hub/api/users/ada")["servers"], 20, "ada's server is gone")
    hub.start_server("ada")
    eventually(lambda: (own / "01.ipynb").exists(), 20, "the new lab has come")
    assert (own / FIRST).read_text() == "ada's work"
    assert (own / FIRST.replace(".ipynb", " (new).ipynb")).read_text() == "second version"
