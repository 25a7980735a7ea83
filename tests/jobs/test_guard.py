"""However a job ends, within 2 seconds nothing of it is left, and the message says which rank and why."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import eventually
from jupyter_client.manager import KernelManager

import dlpar
from dlpar import Experiment, Run
from dlpar.config.paths import runtime_folder
from dlpar.jobs import guard
from dlpar.jobs.launch import CLEARING, Job
from dlpar.jobs.processes import parent_of
from dlpar.jobs.record import Recorder
from dlpar.jobs.scratch import _memory_prefix

pytestmark = [pytest.mark.slow, pytest.mark.timed]

LONG = dict(steps=1_000_000, model={"width": 16}, batch=16, evaluate_every=10_000_000)
WITHIN = 2.0


def pids_of(run: Run) -> list[int]:
    return run.ranks["pid"].tolist()


def leftovers() -> set[str]:
    """Job folders, sockets and shared-memory files of dlpar that exist now, the fork server's own apart."""
    runtime = {str(p) for p in runtime_folder().iterdir() if not p.name.startswith("warm-")}
    memory = {str(p) for p in Path("/dev/shm").glob(f"{_memory_prefix()}*")}
    return runtime | memory


def guardians(folder: Path) -> list[int]:
    """Supervisors and starters that still serve a run folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status", "pid"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and str(folder) in " ".join(
            process.info["cmdline"] or []
        ):
            found.append(process.info["pid"])
    return found


def running_job(workers: int = 3, **fields) -> dlpar.Job:
    """A job that has taken steps on every rank."""
    job = dlpar.launch(Experiment(workers=workers, **{**LONG, **fields}))
    eventually(lambda: len(job.run.steps) > 5 * workers, 30, "the job is running")
    return job


def assert_nothing_left(run: Run, ranks: list[int], before: set[str], since: float) -> None:
    eventually(
        lambda: run.status not in ("running", "starting"), WITHIN - (time.monotonic() - since), "it has ended"
    )
    eventually(
        lambda: not any(parent_of(pid) for pid in ranks),
        max(0.1, WITHIN - (time.monotonic() - since)),
        "its ranks are gone",
    )
    eventually(
        lambda: not guardians(run.path), max(0.1, WITHIN - (time.monotonic() - since)), "its launcher is gone"
    )
    eventually(
        lambda: leftovers() <= before, max(0.1, WITHIN - (time.monotonic() - since)), "its files are gone"
    )
    assert run.summary["steps"] > 0, "what was recorded is kept"


# ---- with nobody else at work ----------------------------------------------------------


def test_a_cold_start_does_the_same(monkeypatch):
    monkeypatch.setenv("DLPAR_WARM_IDLE", "0")
    before = leftovers()
    job = running_job(workers=2)
    assert json.loads((job.run.path / "job.jsonl").read_text().splitlines()[0])["mode"] == "cold"
    ranks, since = pids_of(job.run), time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    assert_nothing_left(job.run, ranks, before, since)
    assert "rank 1 was killed by SIGKILL" in job.run.reason


def test_a_job_that_was_started_by_nobody_waiting_ends_with_its_process():
    code = "import dlpar; print(dlpar.launch(dlpar.Experiment(steps=1000000)).folder, flush=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    run = Run(done.stdout.strip())
    eventually(lambda: run.status in ("stopped", "failed"), WITHIN, "it has ended with its owner")


# ---- beside somebody else's job ---------------------------------------------------------


@pytest.fixture(scope="module")
def other_job():
    job = running_job(workers=2, delays={"kind": "constant", "delay_ms": 5})  # it leaves the cores to others
    yield job
    job.stop()


@pytest.fixture
def bystander(other_job):
    """Somebody else's job, which must go on undisturbed."""
    yield
    steps = len(other_job.run.steps)
    eventually(lambda: len(other_job.run.steps) > steps, 5, "the other job still takes steps")


def test_stop(bystander):
    before = leftovers()
    job = running_job()
    ranks, since = pids_of(job.run), time.monotonic()
    job.stop()
    assert_nothing_left(job.run, ranks, before, since)
    assert job.run.status == "stopped" and job.run.reason == "stopped by its owner"
    with pytest.raises(dlpar.JobFailed, match="stopped by its owner"):
        job.wait(5)


def test_a_killed_rank_ends_the_job_and_is_named(bystander):
    before = leftovers()
    job = running_job()
    ranks, since = pids_of(job.run), time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    assert_nothing_left(job.run, ranks, before, since)
    with pytest.raises(dlpar.JobFailed, match="rank 1 was killed by SIGKILL"):
        job.wait(5)


def test_an_exception_in_one_rank_reaches_the_caller_with_its_traceback(bystander):
    def fails(comm):
        import torch

        if comm.rank == 2:
            raise RuntimeError("only I am broken")
        comm.recv(torch.zeros(1), 2)

    before, since = leftovers(), time.monotonic()
    with pytest.raises(dlpar.JobFailed) as caught:
        dlpar.spmd(fails, workers=3)
    assert time.monotonic() - since < WITHIN + 2.0  # its start included
    message = str(caught.value)
    assert message.startswith("rank 2 raised RuntimeError: only I am broken")
    assert "--- rank 2 ---" in message and 'raise RuntimeError("only I am broken")' in message
    assert "--- rank 0 ---" not in message
    eventually(lambda: leftovers() <= before, 1, "nothing is left")


def test_a_rank_that_hangs_in_a_collective_is_named_with_its_line(bystander):
    def hangs(comm):
        import torch

        from dlpar.collectives import ring_allreduce

        if comm.rank == 1:
            time.sleep(60)
        ring_allreduce(comm, torch.zeros(10))

    before, since = leftovers(), time.monotonic()
    with pytest.raises(dlpar.JobFailed) as caught:
        dlpar.spmd(hangs, workers=3, timeout=2.0)
    assert time.monotonic() - since < 2.0 + WITHIN + 2.0
    message = str(caught.value)
    assert "no progress for 2 s" in message
    assert "rank 0 is in ring_reduce_scatter (ring.py:" in message and "waiting in" in message
    assert "rank 1 is in hangs (test_guard.py:" in message
    eventually(lambda: leftovers() <= before, 1, "nothing is left")


def test_sigterm_to_the_launcher(bystander):
    before = leftovers()
    job = running_job()
    ranks = pids_of(job.run)
    guardian = json.loads((job.run.path / "job.jsonl").read_text().splitlines()[0])["pid"]
    since = time.monotonic()
    os.kill(guardian, signal.SIGTERM)
    assert_nothing_left(job.run, ranks, before, since)
    assert job.run.reason == "the launcher received SIGTERM, so the job was stopped"


def test_sigkill_to_the_launcher_and_to_mpiexec_leave_no_rank(bystander):
    before = leftovers()
    job = running_job()
    ranks = pids_of(job.run)
    guardian = json.loads((job.run.path / "job.jsonl").read_text().splitlines()[0])["pid"]
    since = time.monotonic()
    os.kill(guardian, signal.SIGKILL)
    with pytest.raises(dlpar.JobFailed, match="^its launcher was killed by SIGKILL$"):
        job.wait(20)
    assert_nothing_left(job.run, ranks, before, since)
    assert job.run.status == "failed" and job.run.reason == "its launcher was killed by SIGKILL"

    before = leftovers()
    job = running_job()
    ranks, since = pids_of(job.run), time.monotonic()
    guardian = json.loads((job.run.path / "job.jsonl").read_text().splitlines()[0])["pid"]
    mpiexec = [p for p in psutil.Process(guardian).children() if "mpiexec" in p.name() or "prte" in p.name()]
    mpiexec[0].kill()
    assert_nothing_left(job.run, ranks, before, since)
    assert job.run.status == "failed" and job.run.reason.startswith("mpiexec was killed by SIGKILL")


def test_a_killed_fork_server_disturbs_no_job_and_later_ones_find_another():
    before = leftovers()
    job, other = running_job(steps=150, delays={"kind": "constant", "delay_ms": 10}), running_job()
    ranks = pids_of(job.run)
    server = psutil.Process(ranks[0]).parent()
    assert server == psutil.Process(pids_of(other.run)[0]).parent()
    server.kill()
    assert dlpar.spmd(lambda comm: comm.rank, workers=2) == [0, 1]
    assert job.wait(60).status == "done" and other.run.status == "running"
    others = pids_of(other.run)
    assert other.alive == len(others)
    other.kill(1)
    assert_nothing_left(other.run, others, before, time.monotonic())
    assert "rank 1 was killed by SIGKILL" in other.run.reason and other.alive == 0


def test_a_stopped_mpiexec_is_named_and_not_the_ranks_that_wait_for_it():
    job = running_job(
        workers=2, steps=100, delays={"kind": "constant", "delay_ms": 10}, cluster={"timeout": 2}
    )
    mpiexec = [p for p in psutil.Process(job._guardian.pid).children(recursive=True) if "prte" in p.name()]
    mpiexec[0].suspend()
    with pytest.raises(dlpar.JobFailed, match="^mpiexec is stopped: process .* has not run for 2 s$"):
        job.wait(20)


@pytest.mark.parametrize(
    "sync", [{"scheme": "gossip", "exchange": "pairwise"}, {"scheme": "ps", "consistency": "asp"}, "ring"],
    ids=["pairwise", "asp", "ring"],
)  # fmt: skip
def test_a_stopped_rank_is_named_even_while_the_others_go_on(sync):
    before = leftovers()
    job = running_job(workers=4, sync=sync, cluster={"timeout": 2})
    ranks = pids_of(job.run)
    headers = {record["pid"]: record["rank"] for _, record in job.run.records() if record["k"] == "rank"}
    victim = next(pid for pid in ranks if headers[pid] == 2)
    os.kill(victim, signal.SIGSTOP)
    with pytest.raises(dlpar.JobFailed, match=f"rank 2 is stopped: process {victim} has not run for 2 s"):
        job.wait(15)
    assert_nothing_left(job.run, ranks, before, time.monotonic())


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_processes_that_a_rank_starts_end_with_it(warm, monkeypatch):
    """Whatever they do: keep its output open, leave its session, or have a parent that has ended."""
    if not warm:
        monkeypatch.setenv("DLPAR_WARM_IDLE", "0")
    before = leftovers()

    def starts(comm):
        import subprocess

        subprocess.Popen(["sleep", "4712"])
        subprocess.run(["sh", "-c", "setsid sleep 4712 >/dev/null 2>&1 &"], check=True)
        return comm.rank

    def sleepers():
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4712"]]

    assert dlpar.spmd(starts, workers=2, timeout=30) == [0, 1]
    eventually(lambda: not sleepers() and leftovers() <= before, WITHIN, "nothing is left")

    def fails(comm):
        starts(comm)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(dlpar.JobFailed, match="was killed by SIGKILL"):
        dlpar.spmd(fails, workers=2, timeout=30)
    eventually(lambda: not sleepers() and leftovers() <= before, WITHIN, "nothing is left")


def test_the_launcher_of_a_cold_start_leaves_nothing_either_when_it_is_killed(monkeypatch):
    monkeypatch.setenv("DLPAR_WARM_IDLE", "0")
    before, job = leftovers(), running_job(workers=2)
    ranks = pids_of(job.run)
    os.kill(json.loads((job.run.path / "job.jsonl").read_text().splitlines()[0])["pid"], signal.SIGKILL)
    assert_nothing_left(job.run, ranks, before, time.monotonic())
    assert job.run.reason == "its launcher was killed by SIGKILL"


def test_a_launcher_that_may_not_be_waited_for_ends_the_job_too(bystander):
    """The process that would clean up after the guardian is killed itself."""
    before, job = leftovers(), running_job()
    ranks, since = pids_of(job.run), time.monotonic()
    os.kill(job._guardian.pid, signal.SIGKILL)
    assert_nothing_left(job.run, ranks, before, since)
    assert job.run.reason == "the launcher received SIGTERM, so the job was stopped"


def test_a_job_whose_run_folder_is_removed_ends_and_says_so():
    before, job = leftovers(), running_job()
    ranks = pids_of(job.run)
    shutil.rmtree(job.folder)
    since = time.monotonic()
    with pytest.raises(dlpar.JobFailed, match="^the run folder was removed while the job ran$"):
        job.wait(10)
    assert time.monotonic() - since < WITHIN and not any(parent_of(pid) for pid in ranks)
    assert leftovers() <= before


def test_a_worker_that_hangs_is_named_even_while_the_others_go_on(tmp_path, monkeypatch):
    (tmp_path / "hanging.py").write_text(
        "from dlpar.jobs.record import Recorder\n"
        "step = Recorder.step\n"
        "def hanging(record, number, **facts):\n"
        "    step(record, number, **facts)\n"
        "    while record.comm.rank == 2 and number == 5: pass\n"
        "Recorder.step = hanging\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DLPAR_PLUGINS", "hanging")
    monkeypatch.setattr("dlpar.jobs.record.Recorder.step", Recorder.step)  # the plug-in changes it here, too
    sync = {"scheme": "ps", "consistency": "asp"}
    job = dlpar.launch(Experiment(workers=4, sync=sync, cluster={"timeout": 2}, **LONG))
    with pytest.raises(dlpar.JobFailed, match="no progress of rank 2 for 2 s: .*; rank 2 is in hanging"):
        job.wait(30)


def test_a_rank_that_does_not_start_is_named_within_the_timeout_after_another_has(tmp_path):
    facts = {"folder": str(tmp_path), "launched": time.time(), "ranks": 3, "timeout": 0.1}
    with subprocess.Popen(["sleep", "600"]) as mpiexec:
        guardian = guard.Guardian(facts)
        guardian.mpiexec = mpiexec
        guardian.moved_at -= 2 * facts["timeout"]
        guardian._watch_progress()
        assert guardian.outcome is None, "until the first rank has started, all may be loading"
        (tmp_path / "rank-0.jsonl").write_text(
            '{"k": "rank", "rank": 0, "host": "another", "role": "worker"}\n'
        )
        guardian._watch_progress()
        assert guardian.outcome is None
        guardian.moved_at -= 2 * facts["timeout"]
        guardian._watch_progress()
        mpiexec.kill()
    assert guardian.outcome.reason.startswith("only 1 of 3 ranks started (missing: 1, 2) for 0.1 s: rank 0 ")


@pytest.mark.parametrize("mode", guard.START)
def test_a_job_of_which_no_rank_starts_ends(mode, tmp_path):
    facts = {"folder": str(tmp_path), "launched": time.time(), "ranks": 3, "timeout": 0.1}
    with subprocess.Popen(["sleep", "600"]) as mpiexec:
        guardian = guard.Guardian(facts)
        guardian.mpiexec, guardian.mode = mpiexec, mode
        guardian.moved_at -= guard.START[mode] + 1
        guardian._watch_progress()
        mpiexec.kill()
    assert guardian.outcome.reason.startswith("only 0 of 3 ranks started (missing: 0, 1, 2) for ")


OWNER = """
import sys, time, dlpar
job = dlpar.launch(dlpar.Experiment.from_json(sys.argv[1]))
print(job.folder, flush=True)
job.wait() if sys.argv[2] == "wait" else time.sleep(600)
"""


def owned_elsewhere(how: str) -> tuple[subprocess.Popen, Run, list[int]]:
    """A job started by another Python process."""
    text = Experiment(workers=3, **LONG).to_json()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, text, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    run = Run(owner.stdout.readline().strip())
    eventually(lambda: len(run.steps) > 15, 30, "the job is running")
    return owner, run, pids_of(run)


@pytest.mark.parametrize("how", ["sleep", "wait"])
def test_sigkill_of_the_process_that_started_it(how, bystander):
    before = leftovers()
    owner, run, ranks = owned_elsewhere(how)
    since = time.monotonic()
    owner.kill()
    assert_nothing_left(run, ranks, before, since)
    assert run.status == "stopped" and "ended, so the job was stopped" in run.reason
    owner.communicate()


def test_ctrl_c_while_waiting_stops_the_job_first(bystander):
    before = leftovers()
    owner, run, ranks = owned_elsewhere("wait")
    since = time.monotonic()
    owner.send_signal(signal.SIGINT)
    assert_nothing_left(run, ranks, before, since)
    assert owner.wait(5) != 0 and "KeyboardInterrupt" in owner.communicate()[1]


# ---- in a Jupyter kernel ----------------------------------------------------------------

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
    assert notebook.run("print(job.run.status)").strip() == "stopped"


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
        "import time, sys; t = time.process_time()\nimport dlpar; dlpar.Experiment\nt = time.process_time() - t\n"
        "print(t, [m for m in ('torch', 'pandas', 'plotly', 'mpi4py', 'sklearn') if m in sys.modules], sep='|')"
    ).split("|")
    assert heavy.strip() == "[]"
    assert float(seconds) < 0.5


def test_the_signal_of_a_time_limit_stops_a_job_whatever_process_hears_it():
    job = dlpar.launch(Experiment(workers=2, steps=100_000))
    job.wait_steps(2)
    for process in (psutil.Process(job._guardian.pid), *psutil.Process(job._guardian.pid).children()):
        process.send_signal(signal.SIGUSR1)
    with pytest.raises(dlpar.JobFailed, match="time limit"):
        job.wait(30)
    assert job.run.status == "stopped" and job.run.reason == "time limit"


def test_a_killed_process_has_seconds_to_give_back_the_memory_of_its_gpu(monkeypatch, tmp_path):
    """Before it has, the next job would find the GPU full."""
    gone_at = time.monotonic() + 2.5
    monkeypatch.setattr(guard.processes, "parent_of", lambda pid: 1 if time.monotonic() < gone_at else None)
    monkeypatch.setattr(guard.processes, "kill", lambda pids, number=signal.SIGKILL: None)
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (0, 0))
    monkeypatch.setattr(guard.diagnosis, "pids_of", lambda folder: {4_000_000: 0})
    monkeypatch.setattr(guard.Guardian, "_below", lambda self, but=None: [])
    monkeypatch.setattr(guard, "Scratch", lambda folder: SimpleNamespace(remove=lambda: None))
    guardian = guard.Guardian.__new__(guard.Guardian)
    guardian.folder, guardian.mpiexec = tmp_path, None
    guardian.spec = {"one_host": True, "scratch": "none"}
    guardian._clean_up()
    assert time.monotonic() >= gone_at
    assert guard.KILLED + guard.ELSEWHERE + 2 < CLEARING == signature(Job.stop).parameters["timeout"].default
