"""Every test session keeps its runs, sockets and fork server in folders of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

# Tests start hundreds of processes: what one has compiled the next need not compile again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# Tests hold on a machine with GPUs as without, but for those that ask for them. Workers of xdist inherit both.
os.environ.setdefault("TESTS_MAY_SEE_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""


@contextmanager
def visible_gpus():
    """Show this machine's GPUs to the processes that start meanwhile, as they were before the tests."""
    if (there := os.environ["TESTS_MAY_SEE_GPUS"]) == "all":
        del os.environ["CUDA_VISIBLE_DEVICES"]
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = there
    yield
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture
def with_gpus():
    """A test of jobs that may use GPUs."""
    with visible_gpus():
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Heed Ctrl-C, and let what tests start heed it, also in the background, where a shell has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("nbval"):
        from nbval import kernel

        start = kernel.start_new_kernel

        def start_again(*given, **named):
            """Jupyter chooses free ports, which another program may take before the kernel does."""
            try:
                return start(*given, **named)
            except RuntimeError:
                return start(*given, **named)

        kernel.start_new_kernel = start_again


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Where files are dealt out, those of the browser tests go together: one JupyterLab is enough for them."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneJupyterLab(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "tests/browser" if file.startswith("tests/browser/") else file

    return OneJupyterLab(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where files are dealt out, those with most slow tests come first: no worker waits for another at the end."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    slow, tests = Counter(), Counter()
    for item in items:
        tests[item.path] += 1
        slow[item.path] += item.path.suffix == ".ipynb" or item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path], item.path))


def pytest_runtest_setup() -> None:
    """Where tests run side by side, what they compute in their own process takes one core."""
    if "PYTEST_XDIST_WORKER" in os.environ and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_folders():
    """A private DLPAR_HOME and DLPAR_RUNTIME; the fork server in them is dismissed at the end."""
    root = Path(tempfile.mkdtemp(prefix="dlt-"))  # short: a socket's path must stay under 108 bytes
    before = {name: os.environ.get(name) for name in ("DLPAR_HOME", "DLPAR_RUNTIME")}
    os.environ |= {"DLPAR_HOME": str(root / "home"), "DLPAR_RUNTIME": str(root / "r")}
    yield root
    from dlpar.jobs.scratch import sweep

    dismiss_fork_server()
    sweep(older_than=0)  # what tests left on purpose by killing a guardian
    shutil.rmtree(root, ignore_errors=True)
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def dismiss_fork_server() -> bool:
    """Ask the fork server to leave once its ranks have ended; returns whether there was one."""
    from dlpar.jobs import fork_server

    return fork_server._ask(fork_server._socket_path(), "no code at all") is not None


@pytest.fixture(scope="session")
def chromium():
    """The one browser of a process: Playwright starts no second while the first is at work."""
    from browser.jupyter import FLAGS, find_browser
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))


@pytest.fixture(autouse=True)
def unmeasured(own_folders):
    """No test finds this machine measured because another, or a lab, has done so."""
    (own_folders / "home" / "here.json").unlink(missing_ok=True)


def eventually(condition, seconds: float, what: str):
    """Wait until `condition()` is true and return its value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"after {seconds:g} s still not: {what}")
