"""Lab 01: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import pytest
import torch

import dlpar
from dlpar import lab
from dlpar.lab import presets

pytestmark = pytest.mark.slow


@pytest.mark.timed
def test_unsteady_workers_of_the_same_mean_take_longer_together():
    paces = []
    for experiment in presets.unsteady():
        seconds = dlpar.launch(experiment).wait(60).curve["seconds"]
        paces.append((seconds.iloc[-1] - seconds.iloc[0]) / (len(seconds) - 1))
    steady, unsteady = paces
    assert unsteady > 1.3 * steady and unsteady > 0.017


def test_digits_by_mapreduce_learn_the_same_on_any_number_of_workers():
    runs = [dlpar.launch(e).wait(60) for e in presets.digits_by_mapreduce()]
    assert [run.experiment.workers for run in runs] == [1, 2, 4]
    assert all(run.summary["accuracy"] > 0.93 for run in runs)


def all_samples(vectors):
    count = sum(v[-1] for v in vectors)
    whole = torch.cat([sum(v[:-1] * v[-1] for v in vectors) / count, count.view(1)])
    return [whole] * len(vectors)


def test_the_mean_of_the_means_is_found_wrong():
    def mean_of_means(comm, vector):
        comm.allreduce(vector)
        vector[:-1] /= comm.size

    verdict = lab.check_on_ranks(mean_of_means, expected=all_samples, workers=[2], hints=["a hint"])
    assert verdict.sentence.startswith(
        "With 2 simulated ranks and 4 numbers, on rank 0: value 0 is 1.5, expected 1.66"
    )
    assert verdict.hints == ["a hint"]
