"""A few rounds of ``make faults``, one of each family."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timed]

FAMILIES = [
    "killed", "crash", "os._exit", "deadlock", "children", "files closed", "mpiexec killed", "exception",
    "launcher killed", "owner killed", "folder removed", "ulimit -n",
]  # fmt: skip


def test_faults_of_every_family_leave_nothing_are_named_and_their_records_can_be_read():
    command = [sys.executable, str(Path(__file__).parent.parent / "faults"), "--rounds", str(len(FAMILIES))]
    done = subprocess.run(
        [*command, "--seed", "11", "--kinds", *FAMILIES],
        env={name: value for name, value in os.environ.items() if name != "DLPAR_HOME"},
        capture_output=True,
        text=True,
        timeout=115,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(FAMILIES)} rounds, 0 failed" in done.stdout
