"""Launching: what is refused at once, what ranks print, and experiments of every kind that all end."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import dismiss_fork_server, eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dlpar
from dlpar import BadExperiment, Experiment
from dlpar.config.rules import RULES
from dlpar.jobs.launch import Job
from dlpar.jobs.scratch import Scratch, is_locked
from dlpar.worlds import mpiexec
from jobs.test_guard import leftovers

pytestmark = pytest.mark.slow


def test_what_ranks_print_reaches_the_log_by_rank(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # a fork server must not need it
    dismiss_fork_server()

    def talk(comm):
        import sys

        print(f"out of {comm.rank}")
        print(f"err of {comm.rank}", file=sys.stderr)
        os.write(1, b"no end of line")
        if comm.rank:
            os.kill(os.getpid(), 9)  # no chance to flush
        raise ValueError("so that the log is kept")

    folder = []
    original = dlpar.Job.wait

    def keep_log(job, *a):
        try:
            return original(job, *a)
        finally:
            folder.append((job.folder / "log.txt").read_text())

    with pytest.MonkeyPatch.context() as patch, pytest.raises(dlpar.JobFailed):
        patch.setattr(dlpar.Job, "wait", keep_log)
        dlpar.spmd(talk, workers=2)
    for rank in range(2):
        assert f"[rank {rank}] out of {rank}" in folder[0] and f"[rank {rank}] err of {rank}" in folder[0]
    assert "no end of line" in folder[0]


def test_every_failing_rank_shows_its_own_traceback():
    with pytest.raises(dlpar.JobFailed) as caught:
        dlpar.spmd(lambda comm: [1, 2, 3][comm.rank + 2], workers=4)
    assert [f"--- rank {r} ---" in str(caught.value) for r in range(4)] == [False, True, True, True]


def test_a_number_of_workers_in_words_is_read_as_everywhere():
    assert dlpar.spmd(lambda comm: comm.size, workers="2") == [2, 2]


def test_ranks_draw_other_numbers_than_each_other_and_than_the_next_job():
    def draws(_) -> tuple[float, float]:
        import random

        import numpy as np

        return random.random(), np.random.rand()

    found = [number for _ in range(2) for pair in dlpar.spmd(draws, workers=2) for number in pair]
    assert len(set(found)) == 8


def test_launches_leak_nothing():
    before = leftovers()
    dlpar.spmd(lambda comm: None, workers=2)  # the fork server is there
    us = psutil.Process()
    for _ in range(2):
        assert dlpar.spmd(lambda comm: comm.size, workers=2) == [2, 2]
    assert leftovers() <= before

    def living() -> int:
        found = [process.as_dict(["status"], ad_value="gone") for process in us.children(recursive=True)]
        return sum(each["status"] not in ("zombie", "gone") for each in found)

    descriptors, children = us.num_fds(), living()
    for _ in range(3):
        dlpar.spmd(lambda comm: comm.size, workers=2)
    assert us.num_fds() <= descriptors + 2
    assert living() <= children


def test_relative_folders_are_taken_from_where_one_stands(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLPAR_HOME", "kept")
    run = dlpar.launch(Experiment(workers=1, steps=2)).wait(60)
    assert run.path.parent == tmp_path / "kept" / "runs" and run.status == "done"


def test_many_jobs_at_once_do_not_disturb_each_other():
    jobs = [dlpar.launch(Experiment(workers=2, steps=20, seed=seed)) for seed in range(4)]
    runs = [job.wait(60) for job in jobs]
    assert [r.status for r in runs] == ["done"] * 4
    assert len({r.summary["final_loss"] for r in runs}) == 4


@pytest.mark.timed
def test_launch_returns_at_once_and_a_job_can_be_stopped_before_it_starts():
    began = time.monotonic()
    job = dlpar.launch(Experiment(steps=100_000))
    assert time.monotonic() - began < 0.5
    job.stop()
    assert job.run.status == "stopped"
    job.stop()  # twice does no harm


def test_a_wait_that_ends_early_leaves_the_job_running():
    job = dlpar.launch(Experiment(steps=100_000))
    with pytest.raises(TimeoutError, match="still running after 0.5 s"):
        job.wait(0.5)
    assert job.run.status in ("starting", "running")
    job.stop()


def test_ranks_share_the_cores_and_run_in_their_own_process_group():
    job = dlpar.launch(Experiment(workers=2, steps=100_000))
    eventually(lambda: len(job.run.steps) > 4, 30, "it runs")
    threads = job.run.ranks["threads"].tolist()
    groups = {os.getpgid(pid) for pid in job.run.ranks["pid"]}
    job.stop()
    assert threads == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
    assert os.getpgrp() not in groups


def test_cuda_is_refused_before_anything_starts():
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    with pytest.raises(
        BadExperiment, match="cluster.device: got 'cuda', allowed without an NVIDIA GPU is auto or cpu"
    ):
        dlpar.launch(Experiment(cluster={"device": "cuda"}))
    with pytest.raises(
        BadExperiment, match="cluster.carrier: got 'nccl', allowed without an NVIDIA GPU is auto, mpi or gloo"
    ):
        dlpar.launch(Experiment(cluster={"carrier": "nccl"}))


@pytest.mark.parametrize(
    ("limit", "least", "sentence"),
    [
        (resource.RLIMIT_NOFILE, 24, "ulimit -n: got 24, allowed is at least 80"),
        (resource.RLIMIT_FSIZE, 1 << 14, "ulimit -f: got 16,384, allowed is at least 67,108,864"),
    ],
)
def test_limits_under_which_no_job_can_run_are_refused_before_anything_starts(
    limit, least, sentence, monkeypatch
):
    original = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda name: (least, -1) if name == limit else original(name))
    with pytest.raises(BadExperiment, match=f"^{sentence}$"):
        dlpar.spmd(lambda comm: None, workers=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(workers=0), "workers: got 0, allowed is a whole number from 1 to 4096"),
        (dict(workers=65), "workers: got 65, allowed in the real world is at most 64"),
        (dict(workers=2.5), "workers: got 2.5"),
        (dict(world="mars"), "world: got 'mars', allowed is one of real, paced, simulated"),
        (dict(timeout=-1), "timeout: got -1"),
    ],
)
def test_spmd_refuses_by_name(arguments, message):
    with pytest.raises(BadExperiment, match=message):
        dlpar.spmd(lambda comm: None, **arguments)


def test_a_result_that_cannot_be_pickled_is_said():
    with pytest.raises(dlpar.JobFailed, match="rank 0 raised TypeError: cannot pickle"):
        dlpar.spmd(lambda comm: (i for i in ()), workers=1)


@pytest.mark.parametrize("workers", [2, 4])
def test_a_run_by_hand_under_mpiexec_writes_the_same_folder_if_all_its_ranks_are_there(workers, tmp_path):
    """What a cluster's batch script does: no guardian, the site's own launcher."""
    import subprocess
    import sys

    (tmp_path / "experiment.json").write_text(Experiment(workers=workers, steps=5).to_json())
    starter = mpiexec.find_starter()
    scratch = Scratch.fresh()
    command = starter.command(2, [sys.executable, "-m", "dlpar.jobs.rank", str(tmp_path), "2"])
    env = mpiexec.environment(scratch.folder, scratch.memory, one_host=True)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    scratch.remove()
    if workers == 4:
        assert done.returncode and "ranks: got 2, allowed with this experiment is 4" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert len(dlpar.Run(tmp_path).steps) == 10 and dlpar.Run(tmp_path).status == "done"


FITS = {values[0]: allowed for _, values, path, allowed, _ in RULES if path == "data.name"}
"""Data sets each model can read."""


@st.composite
def small_experiments(draw) -> Experiment:
    model = draw(st.sampled_from(sorted(FITS)))
    data = draw(st.sampled_from([d for d in FITS[model] if d not in ("mnist", "cifar10")]))
    fields = dict(
        model={
            "name": model,
            "width": draw(st.sampled_from([8, 16])),
            "depth": draw(st.integers(1, 3)),
            "norm": draw(st.sampled_from(["none", "batch", "sync_batch"])),
        },
        data={"name": data, "context": 8},
        batch=draw(st.integers(1, 64)),
        steps=draw(st.integers(1, 6)),
        scaling=draw(st.sampled_from(["strong", "weak"])),
        shards=draw(st.sampled_from(["iid", "by_label", "uneven"])),
        lr=draw(st.floats(1e-4, 10)),
        optimizer=draw(st.sampled_from(["sgd", "momentum", "adagrad", "adam"])),
        dtype=draw(st.sampled_from(["float32", "float64"])),
        seed=draw(st.integers(0, 99)),
        workers=draw(st.integers(1, 5)),
        sync={
            "overlap": draw(st.booleans()),
            "allreduce": draw(st.sampled_from(["ring", "library"])),
            "bucket_mb": draw(st.sampled_from([0.001, 0.01, 25.0])),
        },
        cluster={"carrier": draw(st.sampled_from(["auto", "mpi", "gloo"])), "timeout": 30},
    )
    return fields


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(small_experiments())
def test_no_experiment_hangs_it_is_refused_or_it_finishes(fields):
    try:
        experiment = Experiment(**fields)
    except BadExperiment as refusal:
        assert "got" in str(refusal) and "allowed" in str(refusal) and "\n" not in str(refusal)
        return
    run = dlpar.launch(experiment).wait(60)
    assert run.status == "done", json.dumps(fields)
    assert run.summary["steps"] == experiment.steps
    assert not any(psutil.pid_exists(pid) for pid in run.ranks["pid"])


def test_a_refused_job_leaves_no_guardian_no_lock_and_no_folder(monkeypatch, tmp_path):
    def refuses(job, scratch, experiment):
        raise mpiexec.NoMPI("none here")

    monkeypatch.setenv("DLPAR_RUNTIME", str(tmp_path))
    monkeypatch.setattr(Job, "_spec", refuses)
    before = set(psutil.Process().children())
    with pytest.raises(mpiexec.NoMPI) as caught:  # its traceback keeps the job's object
        Job(tmp_path, Experiment())
    assert caught.value and set(psutil.Process().children()) == before
    assert not is_locked(tmp_path) and not [*tmp_path.glob("job-*")]


def test_a_hostfile_that_is_no_plain_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "hosts")
    for path, why in (
        (tmp_path / "hosts", "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
    ):
        with pytest.raises(BadExperiment, match=f"cluster.hostfile: got .* an existing file .{why}"):
            dlpar.launch(Experiment(cluster={"hostfile": str(path)}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a b c ===\n", "parse error in the hostfile"),
        (b"# nobody\n", "No nodes"),
        (b"\xff\xfe\0", "No nodes"),
    ],
)
def test_mpiexec_s_own_words_say_what_is_wrong_with_a_hostfile(content, words, tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(dlpar.JobFailed, match=words):
        dlpar.launch(Experiment(workers=2, cluster={"hostfile": str(path)})).wait(60)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_a_machine_that_cannot_be_reached_is_named(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("nosuchhost.invalid slots=2\n")
    with pytest.raises(dlpar.JobFailed, match="nosuchhost.invalid"):
        dlpar.launch(Experiment(workers=2, cluster={"hostfile": str(path)})).wait(60)


def test_a_relative_runtime_folder_is_beside_the_user_and_nothing_of_a_job_is_left_in_it(tmp_path):
    there = {
        **os.environ,
        "DLPAR_RUNTIME": "dlpar-rel",
        "DLPAR_HOME": str(tmp_path / "home"),
        "DLPAR_WARM_IDLE": "0",
    }
    command = [sys.executable, "-m", "dlpar.cli", "run", "--workers", "2", "--steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not Path("/dlpar-rel").exists() and not [*(tmp_path / "dlpar-rel").glob("job-*")]
