"""A run that the tests of the command line share."""

from __future__ import annotations

import json

import pytest

from cli.program import program


@pytest.fixture(scope="session")
def finished() -> dict:
    """The summary that ``dlpar run --json`` printed."""
    done = program("run", "--workers", "2", "--steps", "20", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)
