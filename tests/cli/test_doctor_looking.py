"""What `dlpar doctor` reads of the system and tries on it."""

from __future__ import annotations

import ctypes
import json
import platform
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlpar.cli.doctor import system, trials
from dlpar.cli.doctor.facts import GPU, Folder
from dlpar.jobs import mpiexec
from dlpar.jobs.control_groups import ControlGroups

pytestmark = pytest.mark.timed


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:27 {at} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 {at} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 23 0:29 {at} /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
)
V1_GROUPS = "4:memory:/docker/abc\n3:pids:/docker/abc\n2:cpu,cpuacct:/docker/abc\n"


def test_limits_of_control_groups_version_2_are_those_of_the_tightest_group_around(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/user/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user/memory.max": "max\n",
            "sys/fs/cgroup/user/job/memory.max": "4000000000\n",
            "sys/fs/cgroup/user/job/memory.current": "3000000000\n",
            "sys/fs/cgroup/user/job/memory.stat": "anon 1\ninactive_file 500000000\n",
            "sys/fs/cgroup/user/pids.max": "100\n",
            "sys/fs/cgroup/user/job/pids.max": "max\n",
        },
    )
    groups = ControlGroups(root)
    assert groups.quota() == 1.5
    assert groups.memory() == (4_000_000_000, 1_500_000_000)
    assert groups.processes() == 100


@pytest.mark.parametrize(("at", "where"), [("/", "/docker/abc"), ("/docker/abc", "")])
def test_limits_of_control_groups_version_1_are_read_in_and_outside_a_container(tmp_path, at, where):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": V1_GROUPS,
            "proc/self/mountinfo": V1.format(at=at),
            f"sys/fs/cgroup/cpu,cpuacct{where}/cpu.cfs_quota_us": "200000\n",
            f"sys/fs/cgroup/cpu,cpuacct{where}/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/memory{where}/memory.limit_in_bytes": "1000000000\n",
            f"sys/fs/cgroup/memory{where}/memory.usage_in_bytes": "900000000\n",
            f"sys/fs/cgroup/memory{where}/memory.stat": "inactive_file 1\ntotal_inactive_file 100000000\n",
            f"sys/fs/cgroup/pids{where}/pids.max": "512\n",
        },
    )
    groups = ControlGroups(root)
    assert groups.quota() == 2.0
    assert groups.memory()[0] == 1_000_000_000 and groups.memory()[1] < 300_000_000
    assert groups.processes() == 512


def test_no_limit_is_none(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": V1_GROUPS,
            "proc/self/mountinfo": V1.format(at="/"),
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    for found in (ControlGroups(root), ControlGroups(root / "nowhere")):
        assert (found.quota(), found.memory(), found.processes()) == (None, None, None)


def test_the_mount_a_folder_lies_on_is_the_longest_and_latest(tmp_path):
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:30 / /people rw - autofs systemd-1 rw",
        "3 1 0:31 / /people rw - nfs4 server:/people rw",
        "4 1 0:32 / /people/my\\040disk rw - fuse.sshfs ada@there:/ rw",
    ]
    root = tree(tmp_path, {"proc/self/mountinfo": "\n".join(lines) + "\n"})
    types = {"/tmp/x": "ext4", "/people/ada": "nfs4", "/peoples": "ext4", "/people/my disk/x": "fuse.sshfs"}
    assert {path: system.mount_type(Path(path), root) for path in types} == types
    assert Folder("/people/ada", "nfs4").is_remote and not Folder("/tmp", "ext4").is_remote


def test_gpus_are_listed_without_asking_torch(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    named = "Model: \t NVIDIA H200\nIRQ: 3\n"
    root = tree(tmp_path, {f"proc/driver/nvidia/gpus/0000:0{i}/information": named for i in (1, 2)})
    assert system.gpus(root) == (GPU("NVIDIA H200"), GPU("NVIDIA H200"))
    program = tree(tmp_path, {"nvidia-smi": "#!/bin/sh\necho 'NVIDIA A100, 80 GB, 81920'\n"}) / "nvidia-smi"
    program.chmod(0o755)
    assert system.gpus(root) == (GPU("NVIDIA A100, 80 GB", 81920 << 20),)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert system.gpus(root) == ()
    program.write_text("#!/bin/sh\necho broken; exit 9\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert system.gpus(root) == (GPU("NVIDIA H200"),)


# ---- trying it --------------------------------------------------------------------------


def test_attach_is_what_the_kernel_says():
    assert trials.attach() in ("allowed", "EPERM", "ENOSYS", "unknown")


NUMBERS = {"x86_64": [310, 311, 312], "aarch64": [270, 271, 272]}
"""System calls process_vm_readv, process_vm_writev and kcmp."""


@pytest.mark.skipif(platform.machine() not in NUMBERS or sys.platform != "linux", reason="other calls")
def test_a_seccomp_profile_like_that_of_a_container_is_noticed_and_two_processes_still_meet():
    """The real thing, not a made-up machine."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import test_doctor_looking as t;"
        f"t.refuse({NUMBERS[platform.machine()]});"
        "from dlpar.cli.doctor import trials; from dlpar.jobs.mpiexec import find_starter;"
        "print(json.dumps([trials.attach(), trials.ranks_meet(find_starter()).worked]))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout or "null") == ["EPERM", True], done.stderr


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


TAG = "[prterun-host-12@1,0]<stdout>: "


@pytest.mark.parametrize(
    ("status", "lines", "worked", "said"),
    [
        (0, [TAG + 'met [2, 1, "Open MPI v5"]', 'met [2, 0, "Open MPI v5"]'], True, "Open MPI v5"),
        (0, ['met [1, 0, "MPICH 4.2"]'] * 2, False, "alone in its world: mpi4py speaks MPICH 4.2"),
        (0, ['met [2, 1, "Open MPI v5.0.11"]'], False, "alone in its world"),
        (1, ["-----", "There are not enough slots", "-----"], False, "status 1: There are not enough slots"),
        (1, [], False, "it said nothing"),
        (None, [], False, "did not meet"),
    ],
)
def test_what_two_bare_processes_say_is_understood(status, lines, worked, said):
    trial = trials.judge_meeting(status, "\n".join(lines), 0.5)
    assert trial.worked is worked and said in trial.said and trial.cut is (status is None)


def test_a_program_that_is_no_mpiexec_is_found_out_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "MEET", 0.5)
    for text, said in (("sleep 60", "did not meet"), ("echo no such host; exit 3", "no such host")):
        program = tree(tmp_path, {"mpiexec": f"#!/bin/sh\n{text}\n"}) / "mpiexec"
        program.chmod(0o755)
        began = time.monotonic()
        trial = trials.ranks_meet(mpiexec.Starter(str(program), "plain", "it"))
        assert not trial.worked and said in trial.said and time.monotonic() - began < 2
