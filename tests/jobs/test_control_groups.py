"""Limits of control groups, read from made-up trees of ``/proc`` and ``/sys``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlpar.jobs.control_groups import ControlGroups


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
        },
    )
    groups = ControlGroups(root)
    assert groups.quota() == 1.5
    assert groups.memory() == (4_000_000_000, 1_500_000_000)


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
        },
    )
    groups = ControlGroups(root)
    assert groups.quota() == 2.0
    assert groups.memory()[0] == 1_000_000_000 and groups.memory()[1] < 300_000_000


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
        assert (found.quota(), found.memory()) == (None, None)
