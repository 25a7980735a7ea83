"""Locks on files."""

from __future__ import annotations

import os
import threading

from dlpar.jobs.scratch import lock


def test_a_file_is_locked_until_its_descriptor_is_closed(tmp_path):
    held = lock(tmp_path / "lock")
    assert lock(tmp_path / "lock") is None and lock(tmp_path / "lock", 0.1) is None
    threading.Timer(0.1, os.close, [held]).start()
    again = lock(tmp_path / "lock", 10.0)
    assert again is not None and os.stat(tmp_path / "lock").st_mode & 0o077 == 0
    os.close(again)
