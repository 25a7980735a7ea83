"""One JupyterLab and one browser page for all tests here; loudly skipped where there is no browser."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from browser.jupyter import WATCH_DRAWING, Jupyter, Notebook, find_browser

NO_BROWSER = (
    "no Chrome or Chromium was found; install one (Debian: apt-get install chromium) to run the browser tests"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here; skip it without a browser."""
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
            if not find_browser():
                item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skip nobody can overlook."""
    if any(NO_BROWSER in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())):
        terminalreporter.section("BROWSER TESTS WERE SKIPPED", sep="!", red=True, bold=True)
        terminalreporter.line(NO_BROWSER, red=True)


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    """The server."""
    server = Jupyter(tmp_path_factory.mktemp("jupyter"))
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def page(jupyter: Jupyter, chromium) -> Iterator:
    """A page with the lab open; ``page.hosts`` collects every host it asked for anything."""
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.hosts, page.wrong, page.received = set(), [], [0]
    page.on(
        "request",
        lambda request: page.hosts.add(urlsplit(request.url).hostname or urlsplit(request.url).scheme),
    )
    page.on("websocket", lambda socket: page.hosts.add(urlsplit(socket.url).hostname))
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: _count(page, frame)))
    page.on(
        "console",
        lambda said: page.wrong.append(said.text) if "dlpar" in said.text and said.type == "error" else None,
    )
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.add_init_script(WATCH_DRAWING)
    page.goto(jupyter.url)
    page.wait_for_function(
        "window.jupyterapp?.shell && jupyterapp.commands.hasCommand('notebook:run-all-cells')", timeout=60_000
    )
    yield page
    page.close()


def _count(page, frame: str | bytes) -> None:
    page.received[0] += len(frame)


@pytest.fixture(autouse=True)
def nothing_leaves_the_machine(page) -> Iterator[None]:
    """After every test: what the page asked for came from this machine, and no script made a mistake."""
    yield
    assert page.hosts - {"blob", "data"} == {"127.0.0.1"}
    assert page.wrong == []


@pytest.fixture
def open_notebook(jupyter: Jupyter, page) -> Iterator[Callable[..., Notebook]]:
    """``open_notebook(*cells)`` opens a new notebook in the page, to be closed when the test ends."""
    opened: list[Notebook] = []

    def open_one(*cells: str) -> Notebook:
        opened.append(Notebook(jupyter, page, f"notebook-{next(_numbers)}", *cells))
        return opened[-1]

    yield open_one
    for notebook in opened:
        notebook.close()


_numbers = itertools.count()
