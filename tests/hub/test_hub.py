"""A hub in a real browser: a student comes, works, leaves and comes back; the teacher looks, and stops a job."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Iterator

import pytest
from conftest import eventually

from browser.jupyter import Shown, find_browser
from hub.classroom import Hub, Kernel

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
proxy = pytest.importorskip("dlpar.hub.proxy")

try:
    proxy.command()
    NO_PROXY = ""
except proxy.NoProxy as error:
    NO_PROXY = str(error)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(bool(NO_PROXY), reason=NO_PROXY or "there is one"),
    pytest.mark.skipif(find_browser() is None, reason="no Chrome or Chromium was found"),
]
LABS = Path(__file__).resolve().parents[2] / "labs"
FIRST = "00_first_parallel_run.ipynb"
LONG_JOB = """
import dlpar
job = dlpar.launch(dlpar.Experiment(workers=2, steps=1_000_000))
print(job.wait_steps(1).id)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, own_folders) -> Iterator[Hub]:
    """A hub of ada and a teacher, with the first lab."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "labs").mkdir()
    shutil.copy(LABS / FIRST, folder / "labs")
    started = Hub(folder, "--users=ada,bob", "--teachers=grace")
    try:
        started.wait_until_up()
        yield started
    finally:
        started.stop()


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


def test_a_student_runs_the_first_lab_logs_out_comes_back_and_her_run_is_there(hub: Hub, chromium) -> None:
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    log_in(page, hub, "ada", f"/hub/user-redirect/lab/tree/{FIRST}")
    cell = page.locator(".jp-CodeCell")
    cell.first.wait_for(timeout=60_000)
    idle = page.get_by_text("Python 3 (ipykernel) | Idle")
    idle.wait_for(timeout=40_000)
    cell.filter(has_text="import dlpar").first.locator(".cm-content").click()
    active, here = page.locator(".jp-Notebook .jp-Cell.jp-mod-active"), ""
    for _ in range(12):
        if "lab.Panel(" in here:
            break
        here = active.inner_text()
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(300)
        idle.wait_for(timeout=40_000)
    shown = panel_of(page)
    shown.run.click()
    shown.wait_for("done", 40)
    page.keyboard.press("Control+s")
    own = hub.folder / "hub" / "users" / "ada"
    mine, shared = own / "dlpar-labs" / FIRST, hub.folder / "labs" / FIRST
    eventually(lambda: mine.read_bytes() != shared.read_bytes(), 10, "the notebook is saved")
    runs = [folder.name for folder in (own / ".local" / "share" / "dlpar" / "runs").iterdir()]
    assert len(runs) == 1

    page.goto(f"{hub.url}/hub/logout")
    page.goto(f"{hub.url}/user/ada/lab")
    page.locator("#username_input").wait_for()  # without her password she is nobody

    log_in(page, hub, "ada", f"/user/ada/lab/tree/{FIRST}")
    cell.filter(has_text="import dlpar").first.wait_for(timeout=40_000)
    asked = "import dlpar; print(*(f'{run.id} {run.status}' for run in dlpar.runs()))"
    assert Kernel(hub, "ada").run(asked) == f"{runs[0]} done\n"
    page.context.close()


def test_the_teacher_sees_who_is_here_and_stops_a_job(hub: Hub, chromium) -> None:
    if not hub.is_ready("ada"):
        hub.start_server("ada")
        eventually(lambda: hub.is_ready("ada"), 60, "ada's server is up")
    kernel = Kernel(hub, "ada")
    run = kernel.run(LONG_JOB).strip()
    page = chromium.new_context().new_page()
    log_in(page, hub, "grace", "/services/teacher/")
    row = page.locator("tr", has=page.locator("td", has_text="ada"))
    button = row.get_by_role("button", name="Stop ada's job: mlp on digits, ring, 2 workers, real")
    button.wait_for(timeout=20_000)
    assert row.locator("td").nth(3).inner_text() == "2"
    assert int(row.locator("td").nth(4).inner_text().removesuffix(" MiB")) > 100
    assert page.locator("tr", has_text="bob").locator("td").nth(1).inner_text() == "not here"
    button.click()
    said = kernel.run("print(job._supervisor.wait(5), job.poll(), job.run.reason)")
    assert said == "0 stopped the launcher got SIGTERM, so it was stopped\n"
    button.wait_for(state="detached", timeout=15_000)
    assert page.locator("#trouble").inner_text() == ""
    page.context.close()
    assert run


def test_nobody_but_a_teacher_opens_the_teachers_page(hub: Hub, chromium) -> None:
    page = chromium.new_context().new_page()
    log_in(page, hub, "bob", "/services/teacher/")
    page.wait_for_load_state()
    page.get_by_text("403").first.wait_for()
    assert not page.get_by_text("running jobs").count()
    assert hub.status("/services/teacher/class", token=hub.token_of("bob")) == 403
    assert hub.status("/services/teacher/class", token=hub.token_of("grace")) == 200
    page.context.close()


def test_an_update_of_the_course_reaches_a_student_and_leaves_her_edited_lab_alone(hub: Hub) -> None:
    own = hub.folder / "hub" / "users" / "bob" / "dlpar-labs"
    hub.start_server("bob")
    eventually(lambda: hub.is_ready("bob"), 60, "bob's server is up")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    (own / FIRST).write_text("bob's work")
    (hub.folder / "labs" / FIRST).write_text("second version")
    (hub.folder / "labs" / "01.ipynb").write_text("another lab")
    hub.ask("/hub/api/users/bob/server", "DELETE")
    eventually(lambda: not hub.ask("/hub/api/users/bob")["servers"], 20, "bob's server is gone")
    hub.start_server("bob")
    eventually(lambda: (own / "01.ipynb").exists(), 20, "the new lab has come")
    assert (own / FIRST).read_text() == "bob's work"
    assert (own / FIRST.replace(".ipynb", " (new).ipynb")).read_text() == "second version"
