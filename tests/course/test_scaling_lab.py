"""Lab 06: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import pytest

import dlpar
from dlpar.lab import check_efficiency, presets

pytestmark = pytest.mark.slow

HINTS = ["first hint", "second hint"]


def steps_to_goal(experiment):
    evals = dlpar.launch(experiment).wait(60).evals
    good = evals[evals["accuracy"].astype(float) >= 0.95]
    return good["step"].iloc[0] if len(good) else experiment.steps + 1


def test_neither_half_the_rate_nor_twice_makes_the_largest_batch_need_fewer_steps():
    largest = presets.more_workers()[-1]
    alone = largest.replace(workers=1, batch=largest.global_batch)  # the same mathematics without messages
    half, own, twice = (steps_to_goal(alone.replace(lr=largest.lr * factor)) for factor in (0.5, 1, 2))
    assert own <= min(half, twice) and own <= largest.steps


def test_a_formula_not_written_yet_is_to_do_and_nothing_is_simulated(monkeypatch):
    def efficiency(compute, latency, bandwidth, nbytes, n):
        raise NotImplementedError

    monkeypatch.setattr("dlpar.course.exercises.formulas._rings", None)
    assert check_efficiency(efficiency).status == "to do"


def test_a_formula_without_latency_is_shown_the_first_cluster_it_fails_on():
    def no_latency(compute, latency, bandwidth, nbytes, n):
        return compute / (compute + 2 * (n - 1) / n * nbytes / bandwidth)

    verdict = check_efficiency(no_latency, hints=HINTS)
    assert verdict.status == "not yet" and verdict.hints == HINTS[:1]
    assert "n=64): it is 0.05" in verdict.sentence and "expected 0.007" in verdict.sentence
