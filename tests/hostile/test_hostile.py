"""A sample of ``make hostile``: odd experiments, command lines and run folders give one sentence or a run."""

from __future__ import annotations

import shutil

import pytest

import dlpar
from hostile import command_lines, experiments, folders


def wrong(cases) -> list:
    return [case for case in cases if case[1]]


@pytest.mark.parametrize("seed", range(3))
def test_any_fields_give_an_experiment_or_one_sentence(seed):
    assert wrong(experiments.cases(300, seed)) == []


@pytest.mark.slow
def test_odd_command_lines_are_answered_in_a_sentence(tmp_path):
    assert wrong(command_lines.cases(20, 1, tmp_path / "odd", share=10)) == []


@pytest.mark.slow
def test_damaged_runs_are_shown_or_refused(tmp_path, monkeypatch):
    finished = dlpar.launch(dlpar.Experiment(workers=2, steps=40)).wait(60).path
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    shutil.move(finished, tmp_path / "finished")
    (tmp_path / "places").mkdir()
    assert wrong(folders.cases(5, 1, tmp_path / "finished", tmp_path / "places")) == []
    assert folders.huge(tmp_path / "finished", 40 << 20) == ""
