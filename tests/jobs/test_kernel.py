"""A job in a real Jupyter kernel: interrupt, restart and SIGKILL end it; importing dlpar stays light."""

from __future__ import annotations

import os
import signal
import time

import pytest
from conftest import eventually
from jupyter_client.manager import KernelManager

from dlpar import Run

pytestmark = [pytest.mark.slow, pytest.mark.timed]

LAUNCH = """
import dlpar
job = dlpar.launch(dlpar.Experiment(workers=3, steps=1_000_000, model={"width": 16}, batch=16))
print(job.folder)
"""


class Notebook:
    """A kernel and its client; `run` gives what a cell printed, or its error."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 60) -> str:
        return self.collect(self.client.execute(code), timeout)

    def collect(self, request: str, timeout: float = 60) -> str:
        said = ""
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                said += content["text"]
            elif message["msg_type"] == "error":
                said += "\n".join([*content["traceback"], content["ename"]])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return said

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    """For tests that leave a kernel fit for work."""
    kernel = Notebook()
    yield kernel
    kernel.close()


@pytest.fixture
def fresh():
    kernel = Notebook()
    yield kernel
    kernel.close()


def started(notebook: Notebook) -> Run:
    run = Run(notebook.run(LAUNCH).strip().splitlines()[-1])
    eventually(lambda: len(run.steps) > 10, 30, "the job is running")
    return run


def gone(run: Run, seconds: float = 2.0) -> None:
    ranks = run.ranks["pid"].tolist()
    eventually(lambda: run.status == "stopped", seconds, "the job has ended")
    eventually(lambda: not any(os.path.exists(f"/proc/{p}") for p in ranks), seconds, "its ranks are gone")


def test_interrupting_a_cell_that_waits_stops_the_job(notebook):
    run = started(notebook)
    request = notebook.client.execute("job.wait()")
    time.sleep(0.5)
    notebook.manager.interrupt_kernel()
    gone(run)
    assert "KeyboardInterrupt" in notebook.collect(request)
    assert notebook.run("print(job.poll())").strip() == "stopped"


def test_interrupting_spmd_stops_its_ranks(notebook, tmp_path):
    at_work = f"open(f'{tmp_path}/{{comm.rank}}', 'w'), time.sleep(50)"
    request = notebook.client.execute(f"import dlpar, time\ndlpar.spmd(lambda comm: ({at_work}), workers=2)")
    eventually(lambda: len(list(tmp_path.iterdir())) == 2, 30, "both ranks are at work")
    since = time.monotonic()
    notebook.manager.interrupt_kernel()
    assert "KeyboardInterrupt" in notebook.collect(request, timeout=5)
    assert time.monotonic() - since < 2.0


def test_restarting_the_kernel_ends_its_jobs(notebook):
    run = started(notebook)
    notebook.manager.restart_kernel(now=False)
    gone(run)
    notebook.client.wait_for_ready(timeout=60)
    assert notebook.run(f"import dlpar; print(dlpar.Run('{run.id}').status)").strip() == "stopped"


def test_sigkill_of_the_kernel_ends_its_jobs(fresh):
    run = started(fresh)
    os.kill(fresh.manager.provisioner.process.pid, signal.SIGKILL)
    gone(run)


def test_a_function_typed_into_a_cell_runs_and_its_own_lines_are_quoted(notebook):
    notebook.run(
        "import dlpar\nfactor = 3\ndef triple(comm, offset):\n    return factor * comm.rank + offset"
    )
    assert notebook.run("print(dlpar.spmd(triple, 1, workers=3))").strip() == "[1, 4, 7]"
    error = notebook.run(
        "def divides(comm):\n    shares = [1, 2]\n    return shares[0] / comm.rank  # not for rank 0\n"
        "dlpar.spmd(divides, workers=2)"
    )
    assert "rank 0 raised ZeroDivisionError: division by zero" in error
    assert "return shares[0] / comm.rank  # not for rank 0" in error.split("--- rank 0 ---")[-1]


def test_importing_dlpar_is_light(fresh):
    seconds, heavy = fresh.run(
        "import time, sys; t = time.perf_counter()\nimport dlpar; dlpar.Experiment\nt = time.perf_counter() - t\n"
        "print(t, [m for m in ('torch', 'pandas', 'plotly', 'mpi4py', 'sklearn') if m in sys.modules], sep='|')"
    ).split("|")
    assert heavy.strip() == "[]"
    assert float(seconds) < 0.5
