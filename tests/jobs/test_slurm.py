"""Jobs under Slurm's own daemons: two nodes on this machine, each with a host name and processes of its own.

Install them with ``apt-get install slurmctld slurmd slurm-client munge libpmix-dev``; only root may start them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from conftest import eventually

import dlpar
from dlpar import Experiment, Run, runs
from dlpar.jobs.processes import die_with_parent
from dlpar.jobs.snapshot import State, shard

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "munged", "unshare")
MISSING = [name for name in PROGRAMS if not shutil.which(name)] + ["root"] * (os.getuid() != 0)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"SLURM IS NOT TESTED: missing here: {', '.join(MISSING)}"),
]

DLPAR = str(Path(sys.executable).with_name("dlpar"))
ENDLESS = [DLPAR, "run", "--workers", "2", "--steps", "1000000", "--timeout", "10", "--json"]

SETTINGS = """
ClusterName=two
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
TmpFS={folder}/%n
SlurmdPidFile={folder}/%n/pid
SlurmctldPidFile={folder}/state/pid
SlurmdParameters=config_overrides
SlurmdTimeout=5
KillWait=2
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
NodeName=n[1-2] NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 RealMemory=500
PartitionName=all Nodes=ALL Default=YES State=UP
"""

NODE = """
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/{name}/memory /dev/shm
exec slurmd -D -N {name}
"""


class Nodes:
    """Two nodes and their controller, in a folder of their own; they end with this process, whatever kills it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons, me = folder, {}, socket.gethostname()
        for name in ("state", "n1/spool", "n1/memory", "n2/spool", "n2/memory"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        (folder / "hosts").write_text(f"127.0.0.1 localhost n1 n2 {me}\n")
        ports = free_ports(3)
        (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, host=me, ports=ports))
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        places = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "seed"}
        self.start("munged", "--foreground", "--force", *(f"--{k}={folder / v}" for k, v in places.items()))
        self.start("slurmctld", "-D", "-c")
        for name in ("n1", "n2"):
            self.start_node(name)
        self.wait_idle()

    def start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                [name if name.startswith(("munge", "slurm")) else "unshare", *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def start_node(self, name: str) -> None:
        """Start a node's daemon: all that runs on the node ends with it, without a word."""
        alone = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-ec"]
        self.start(name, *alone, NODE.format(name=name, folder=self.folder))

    def wait_idle(self) -> None:
        idle = lambda: self.ask("sinfo", "--noheader", "--format=%T %D").strip() == "idle 2"
        eventually(idle, 30, "two nodes are idle")

    def ask(self, *command: str) -> str:
        told = subprocess.run(command, env=self.here(), capture_output=True, text=True, timeout=30)
        return told.stdout

    def begin(self, *command: str) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=self.here(), text=True, **pipes)

    def here(self) -> dict[str, str]:
        """The environment of a user whose runs are those of this test."""
        return self.environment | {"DLPAR_HOME": os.environ["DLPAR_HOME"]}

    def close(self) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


def free_ports(number: int) -> list[int]:
    """Return neighbouring ports that nobody listens at."""
    for first in range(17_000 + os.getpid() % 1000 * 10, 60_000, number):
        ports = list(range(first, first + number))
        try:
            for port in ports:
                socket.create_server(("127.0.0.1", port)).close()
            return ports
        except OSError:
            continue
    raise OSError("no free ports")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("slurm"))
    yield nodes
    nodes.close()


@pytest.fixture(autouse=True)
def own_runs(tmp_path, monkeypatch):
    """The batch script asks whether any run has a snapshot."""
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path / "home"))


def training(before: set[str]) -> Run:
    """Wait for the run that is not among those `before`, until all of its ranks train."""
    new = eventually(lambda: [run for run in runs() if run.id not in before], 60, "there is a run")[0]
    eventually(lambda: len(set(new.steps["rank"])) == 2, 90, "both ranks train")
    return new


def names() -> set[str]:
    return {run.id for run in runs()}


def ranks_of(run: Run) -> list[int]:
    """Return the processes of a run's ranks, as this machine numbers them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        found += [process.pid] if "dlpar.jobs.rank" in words and str(run.path) in words else []
    return found


def assert_nothing_is_left(nodes: Nodes, run: Run) -> None:
    eventually(lambda: not ranks_of(run), 3, "every rank has ended")
    nodes.wait_idle()
    assert not list(nodes.folder.glob("n?/memory/*")), "shared memory"


def test_an_allocation_trains_on_both_nodes_and_says_nothing_else(nodes):
    command = [DLPAR, "run", "--workers", "4", "--steps", "20", "--json"]
    said = subprocess.run(
        ["salloc", "--quiet", "-N2", "-n4", *command],
        env=nodes.here(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    summary = json.loads(said.stdout)
    run = Run(summary["run"])
    assert said.returncode == 0 and summary["steps"] == 20
    assert list(run.ranks["host"]) == ["n1", "n1", "n2", "n2"]
    assert (run.path / "log.txt").read_text() == ""  # not a word of lost help files
    assert_nothing_is_left(nodes, run)


def test_stop_ends_ranks_on_every_node_while_the_allocation_lasts(nodes):
    before = names()
    program = "import sys, dlpar; job = dlpar.launch(dlpar.Experiment(workers=2, steps=10**6)); input(); job.stop(2)"
    shell = subprocess.Popen(
        [
            "salloc",
            "--quiet",
            "-N2",
            "-n2",
            sys.executable,
            "-c",
            f"{program}; print('stopped', flush=True); input()",
        ],
        env=nodes.here(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    run = training(before)
    shell.stdin.write("\n")
    shell.stdin.flush()
    assert shell.stdout.readline() == "stopped\n" and shell.poll() is None
    eventually(lambda: not ranks_of(run), 1, "no rank is left on either node")
    assert run.status == "stopped" and run.reason == "stopped by its owner"
    shell.communicate("\n", timeout=30)
    assert_nothing_is_left(nodes, run)


BATCH = """#!/bin/sh
#SBATCH -N2 -n2 --requeue --time=10 --signal=B:USR1@60
trap 'kill -USR1 $run' USR1
export DLPAR_HOME={home}
if ls $DLPAR_HOME/runs/*/snapshots/*/COMMITTED.json; then {dlpar} resume & else {command} & fi
run=$!
wait $run; wait $run
[ $? = 138 ] && scontrol requeue $SLURM_JOB_ID
"""


def submit(nodes: Nodes, tmp_path: Path, command: list[str] = ENDLESS) -> tuple[str, Run]:
    before, script = names(), tmp_path / "batch"
    script.write_text(BATCH.format(command=" ".join(command), dlpar=DLPAR, home=os.environ["DLPAR_HOME"]))
    job = nodes.ask("sbatch", "--parsable", f"--output={tmp_path}/said", str(script)).strip()
    return job, training(before)


def test_a_batch_job_near_its_time_limit_stops_and_is_requeued(nodes, tmp_path):
    job, run = submit(nodes, tmp_path)
    nodes.ask("scancel", "--batch", "--signal=USR1", job)  # as Slurm does a minute before the limit
    waits = lambda: nodes.ask("squeue", "--noheader", "--format=%T", f"--jobs={job}").strip() == "PENDING"
    eventually(waits, 20, "the job is in the queue again")
    assert run.status == "stopped" and run.reason == "time limit"
    nodes.ask("scancel", job)
    assert_nothing_is_left(nodes, run)


def test_a_job_that_is_requeued_before_its_first_snapshot_starts_again(nodes, tmp_path):
    fields = ["--steps", "400", "--snapshot-every", "300", "--delay", "constant", "--delay-ms", "10"]
    job, run = submit(nodes, tmp_path, [DLPAR, "run", "--workers", "2", "--threads", "1", *fields])
    nodes.ask("scancel", "--batch", "--signal=USR1", job)
    again = lambda: [each for each in dlpar.runs() if each.id != run.id and each.status == "done"]
    eventually(again, 90, "the job began again and ended its run")
    assert run.reason == "time limit" and not run.snapshots


def test_a_requeued_job_goes_on_from_its_snapshot_to_the_last_bit(nodes, tmp_path):
    experiment = Experiment(
        workers=2,
        steps=150,
        evaluate_every=0,
        snapshot={"every": 10},
        delays={"kind": "constant", "delay_ms": 20},
    )
    (tmp_path / "experiment.json").write_text(experiment.to_json())
    command = [DLPAR, "run", "--experiment", str(tmp_path / "experiment.json"), "--threads", "1"]
    job, run = submit(nodes, tmp_path, command)
    eventually(lambda: run.snapshots, 30, "there is a snapshot")
    nodes.ask("scancel", "--batch", "--signal=USR1", job)
    try:
        eventually(lambda: run.status == "done", 90, "the job began again and ended its run")
    except pytest.fail.Exception as late:  # seen once on a busy machine
        queue = nodes.ask("squeue", "--noheader", "--format=%T %r", f"--jobs={job}")
        pytest.fail(
            f"{late}; the run is {run.status}, the queue says {queue!r}; {(tmp_path / 'said').read_text()}"
        )
    assert run.attempts["reason"].tolist() == ["time limit", "all ranks finished"]
    assert run.attempts["first"][1] in range(10, 150, 10) and list(run.ranks["host"]) == ["n1", "n2"]
    whole = dlpar.launch(experiment.replace(delays="none", cluster={"threads": 1})).wait()
    assert run.curve["loss"].tolist() == whole.curve["loss"].tolist()
    ends = [State.read(shard(each.path, 150, 0)).tensors for each in (run, whole)]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    assert_nothing_is_left(nodes, run)


def test_scancel_ends_a_run_which_keeps_its_records(nodes, tmp_path):
    job, run = submit(nodes, tmp_path)
    nodes.ask("scancel", job)
    eventually(lambda: run.status == "stopped", 10, "the run says that it was stopped")
    assert "SIGTERM" in run.reason and len(run.steps) > 0
    assert_nothing_is_left(nodes, run)


def test_ctrl_c_ends_the_run(nodes):
    before = names()
    asked = nodes.begin("salloc", "--quiet", "-N2", "-n2", *ENDLESS)
    run = training(before)
    command = next(p for p in psutil.Process(asked.pid).children() if "dlpar" in " ".join(p.cmdline()))
    command.send_signal(signal.SIGINT)
    said, _ = asked.communicate(timeout=30)
    assert asked.returncode == 130 and said.startswith("dlpar run: stopped by Ctrl-C")
    assert_nothing_is_left(nodes, run)


def test_a_node_that_goes_down_is_named_within_the_timeout(nodes):
    before = names()
    asked = nodes.begin("salloc", "--quiet", "-N2", "-n2", *ENDLESS)
    run = training(before)
    nodes.daemons["n2"].kill()
    asked.communicate(timeout=30)
    assert asked.returncode == 1 and run.reason == "host n2 is down or cannot be reached"
    nodes.daemons["n2"].wait()
    nodes.start_node("n2")
    assert_nothing_is_left(nodes, run)


def test_ranks_that_srun_starts_alone_refuse_to_train(nodes, tmp_path):
    (tmp_path / "experiment.json").write_text(Experiment(workers=2).to_json())
    ranks = ["srun", "--quiet", "--mpi=none", "-N2", "-n2", sys.executable, "-m", "dlpar.jobs.rank"]
    said, _ = nodes.begin(*ranks, str(tmp_path), "2").communicate(timeout=60)
    words = "workers: got a world of 1 ranks, allowed is 2: this launcher and this MPI do not belong together"
    assert said.count(words) == 2 and "srun --mpi=pmix" in said
