"""Locks on files, and what jobs leave."""

from __future__ import annotations

import os
import threading
import time

import pytest

from dlpar.config.paths import private_folder, runtime_folder
from dlpar.jobs.scratch import lock, sweep


def test_a_file_is_locked_until_its_descriptor_is_closed(tmp_path):
    held = lock(tmp_path / "lock")
    assert lock(tmp_path / "lock") is None and lock(tmp_path / "lock", 0.1) is None
    threading.Timer(0.1, os.close, [held]).start()
    again = lock(tmp_path / "lock", 10.0)
    assert again is not None and os.stat(tmp_path / "lock").st_mode & 0o077 == 0
    os.close(again)


@pytest.mark.parametrize("hours, stays", [(1, ["spmd-test"]), (25, [])])
def test_results_of_functions_wait_a_day_for_their_reader(hours, stays, tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_RUNTIME", str(tmp_path / "r"))
    for name in ("job-test", "spmd-test"):
        folder = private_folder(runtime_folder() / name)
        (folder / "lock").touch()
        os.utime(folder, (time.time() - hours * 3600,) * 2)
    sweep()
    assert [folder.name for folder in runtime_folder().iterdir()] == stays
