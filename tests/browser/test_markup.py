"""Markup in names, titles, cells, logs and reports stays text, in a notebook and on pages in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from tornado.template import Template

from dlpar.classroom.hub import teacher
from dlpar.cli import main
from dlpar.config.paths import runs_folder

HIT = "window.hit=1"
BAD = f'<img src=x onerror="{HIT}"><svg onload="{HIT}"></svg><a href="javascript:{HIT}">here</a><script>{HIT}</script>'
"""Text that a browser would act on, were it taken for markup."""

AS_A_NAME = f"<img src=x onerror={HIT}>"
"""The same as the name of a file."""

NEWEST = "20990101-"
"""Starts the name of a run that is listed first."""

HARM = """() => [window.hit ?? 0, ...[...document.querySelectorAll('*')].filter(element =>
  [...element.attributes].some(({ name, value }) => /^on(error|load)$/.test(name) && value.includes('window.hit')
    || /^(xlink:)?href$/.test(name) && /^\\s*javascript:/i.test(value))).map(element => element.outerHTML)]"""
"""What the browser has made of such text."""

SETUP = f"""
import shutil, time, dlpar
from dlpar import lab
from dlpar.lab import figures
BAD, NAME = {BAD!r}, {AS_A_NAME!r}
simulated = {{"world": "simulated"}}
kept = dlpar.launch(dlpar.Experiment(workers=2, steps=4, sync={{"scheme": "ps"}}, cluster=simulated)).wait()
folder = kept.path.with_name({NEWEST!r} + NAME)
shutil.copytree(kept.path, folder, dirs_exist_ok=True)
(folder / "log.txt").write_text(BAD)
with open(folder / "rank-all.jsonl", "a") as file:
    record = {{"k": "error", "rank": 1, "type": BAD, "message": BAD, "traceback": BAD, "t": 1.0}}
    file.write(__import__("json").dumps(record) + "\\n")
run = dlpar.Run(folder)
own = dlpar.Experiment(workers=2, sync={{"scheme": "own", "name": BAD, "code": "none"}}, cluster=simulated)
"""

CELLS = (
    "from IPython.display import display",
    "display(figures.convergence([run, kept], titles=[BAD, NAME]), figures.convergence([run, kept]))",
    "display(figures.staleness(run), figures.lanes(run), figures.waiting(run), figures.timeline(run))",
    "panel = lab.Panel(kept.experiment, title=BAD, question=BAD)\ndisplay(panel)\npanel.replay(run, 1000)",
    "display(lab.compare([kept.experiment, own], titles=[BAD, NAME], question=BAD))",
    "ask = lab.predict('key', BAD, choices=[BAD, NAME], unit=BAD)\ndisplay(ask, ask.reveal(NAME, BAD))",
    "from dlpar.course.judge import Verdict\ndisplay(Verdict('not yet', BAD, [BAD, NAME]))",
    "panel._offer.see({'id': BAD, 'by': BAD, 'at': time.time(), 'experiment': kept.experiment.model_dump()})",
    "def mine():\n    return '<img src=x onerror=window.hit=1>'",
    "display(lab.show(mine))",
    "display(lab.glossary(), run, own)",
    "print('all cells ran')",
)


@pytest.fixture
def no_later_run() -> Iterator[None]:
    """The notebook's run is removed at the end, because other tests look for the newest of all."""
    yield
    for folder in runs_folder().glob(f"{NEWEST}*"):
        shutil.rmtree(folder)


def test_markup_in_a_notebook_stays_text(no_later_run, open_notebook, page):
    notebook = open_notebook(SETUP, *CELLS)
    notebook.run_all()
    outputs = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output")
    outputs.filter(has_text="all cells ran").wait_for(timeout=90_000)
    page.wait_for_timeout(1000)  # for handlers that the browser would call later
    assert outputs.filter(has_text="Traceback").all_inner_texts() == []
    shown = "".join(outputs.all_text_contents())
    assert shown.count("onerror") >= 12, shown
    assert page.evaluate(HARM) == [0]


def test_markup_in_reports_of_students_stays_text_on_the_teachers_page(chromium, page):
    students = teacher.Students()
    for number in range(teacher.LOT):
        answer = dict.fromkeys(("key", "question", "how", "unit", "found", "predicted"), BAD)
        job = {"id": BAD, "says": BAD, "ranks": 1}
        students.hear(f"{number}{BAD}", {"jobs": [job], "offer": None, "predictions": [answer]})
    slots = {
        "slots": 1,
        "taken": 1,
        "waiting": 0,
        "paused": False,
        "holders": [{"who": BAD, "slots": 1, "seconds": 1}],
    }
    told = {
        "students": students.table(),
        "slots": slots,
        "predictions": students.answers.table(),
        "sent": True,
    }
    written = Template(open(teacher.__file__.replace(".py", ".html")).read()).generate(
        hub="/hub/admin", xsrf="x"
    )
    apart = chromium.new_page()
    apart.route("**/class", lambda route: route.fulfill(json=told))
    apart.route("**/page", lambda route: route.fulfill(body=written, content_type="text/html"))
    apart.goto("http://127.0.0.1/page")
    apart.locator("#class tr").nth(teacher.LOT - 1).wait_for()
    apart.wait_for_timeout(500)
    assert apart.locator("body").inner_text().count("onerror") > 2 * teacher.LOT
    assert apart.evaluate(HARM) == [0]
    apart.evaluate("text => document.body.insertAdjacentHTML('beforeend', text)", BAD)
    assert len(apart.evaluate(HARM)) == 4, "as markup it would be seen here"
    apart.close()


def test_markup_in_the_name_of_a_platform_stays_text_on_the_page_of_a_sweep(chromium, page, tmp_path, capsys):
    assert main(["platforms", "v100-1gbe", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out) | {"name": AS_A_NAME, "source": BAD}
    platform, written = tmp_path / f"{AS_A_NAME}.json", tmp_path / "sweep.html"
    platform.write_text(json.dumps(fields))
    words = [
        "--workers=1,2",
        "--platform=v100-1gbe",
        "--steps=2",
        "--world=simulated",
        f"--platform={platform}",
        f"--figure={written}",
    ]
    assert main(["sweep", *words]) == 0, capsys.readouterr().err
    apart = chromium.new_page()
    apart.goto(written.as_uri())
    apart.locator(".main-svg").first.wait_for()
    apart.wait_for_timeout(500)
    assert "onerror" in apart.locator("body").inner_text()
    assert apart.evaluate(HARM) == [0]
    apart.close()
