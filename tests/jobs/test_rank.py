"""Ranks: what each has before it begins its work."""

from __future__ import annotations

import os
import sys

import pytest

import dlpar

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("world", ["real", "simulated"])
def test_every_rank_imports_the_plugins(world, tmp_path, monkeypatch):
    (tmp_path / "a_plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DLPAR_PLUGINS", "a_plugin")
    assert dlpar.spmd(lambda comm: "a_plugin" in sys.modules, workers=3, world=world) == [True] * 3
