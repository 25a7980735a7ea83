"""What the program `dlpar` says of itself."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import dlpar
from dlpar.cli import flags, main


def program(*words: str) -> subprocess.CompletedProcess:
    """`dlpar` run with these words."""
    return subprocess.run(
        [sys.executable, "-m", "dlpar.cli", *words], capture_output=True, text=True, timeout=60
    )


def test_help_documents_every_flag_in_panels(capsys, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in flags.flags():
        line = next(line for line in text.splitlines() if f"{flag.spelling} " in line)
        assert flag.field.description[:40] in line
    for panel in ("Model: network to train", "Data: data set", "Training", "Sync: how", "Cluster: where"):
        assert f"─ {panel}" in text
    assert "One of mlp, linear, logistic, cnn, transformer. Default: mlp." in text
    assert "A whole number from 1 to 4096. Default: 4." in text


@pytest.mark.timed
def test_help_and_version_are_quick():
    for words in (["--help"], ["--version"], []):
        seconds = []
        for _ in range(5):  # the best of five: other processes may hold the cores
            began = time.monotonic()
            done = program(*words)
            seconds.append(time.monotonic() - began)
            if seconds[-1] < 0.7:
                break
        assert done.returncode == 0 and min(seconds) < 0.7
    assert all(command in done.stdout for command in ("run ", "runs ", "show ", "doctor "))


def test_the_entry_point_is_the_program():
    project = tomllib.loads((Path(dlpar.__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"dlpar": "dlpar.cli:main"}
    assert program("--version").stdout == f"dlpar {project['version']}\n"
