"""Lab 01: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dlpar
from dlpar import lab
from dlpar.data import load
from dlpar.lab import presets

pytestmark = pytest.mark.slow


def least_loss() -> float:
    """Of least squares on all training samples, by linear algebra."""
    data = load(presets.mean_of_means()[0].data, 0, torch.float64, "linear")
    x, y = np.c_[data.train_x, np.ones(len(data.train_x))], data.train_y.numpy()
    return float(np.mean((x @ np.linalg.lstsq(x, y, rcond=None)[0] - y) ** 2))


def test_the_mean_of_the_means_ends_elsewhere_where_parts_are_uneven():
    runs = [dlpar.launch(e).wait(60) for e in presets.mean_of_means()]
    told = [(run.experiment.shards, run.experiment.sync.reduce) for run in runs]
    assert told == [("iid", "sum"), ("iid", "mean"), ("uneven", "sum"), ("uneven", "mean")]
    shares = [sorted(run.steps.groupby("rank")["samples"].first()) for run in runs]
    assert shares == [[118] * 3, [118] * 3, [59, 118, 177], [59, 118, 177]]
    curves = [run.curve["loss"].to_numpy() for run in runs]
    for curve in curves[1:3]:
        assert np.allclose(curve, curves[0], rtol=1e-9)
    above = [curve[-1] - least_loss() for curve in curves]
    assert max(above[:3]) < 2e-5 and above[3] > 3e-3
    assert curves[3][-1] == pytest.approx(curves[3][-50], abs=1e-4), "it has settled there"


def test_a_tree_beats_a_star_for_long_tensors_only():
    trial = presets.tree_or_star()
    seconds = {(t.name, t.nbytes): t.seconds for t in lab.time_collectives(**trial)}
    short, _, long = trial["sizes"]
    assert seconds["star", short] < 0.6 * seconds["tree", short]
    assert seconds["tree", long] < 0.85 * seconds["star", long]
    predicted = lab.predict_collectives(trial["names"], trial["ranks"], trial["sizes"], trial["link"])
    for t in predicted:  # never sooner than the link allows
        assert 0.98 * t.seconds < seconds[t.name, t.nbytes] < 1.7 * t.seconds


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


def test_samples_that_are_empty_do_no_harm():
    run = dlpar.launch(presets.empty_samples()).wait(60)
    assert (run.steps["samples"] == 0).mean() > 0.5
    assert (run.steps.groupby("step")["samples"].sum() == 0).any()
    assert "sampled nothing on any worker" in run.log
    assert run.summary["accuracy"] > 0.8


def all_samples(vectors):
    count = sum(v[-1] for v in vectors)
    whole = torch.cat([sum(v[:-1] * v[-1] for v in vectors) / count, count.view(1)])
    return [whole] * len(vectors)


def combine(comm, vector):
    arriving = torch.empty_like(vector)
    vector[:-1] *= vector[-1]
    if comm.rank:
        comm.send(vector, 0)
        comm.recv(vector, 0)
    else:
        for source in range(1, comm.size):
            comm.recv(arriving, source)
            vector += arriving
        vector[:-1] /= vector[-1]
        for dest in range(1, comm.size):
            comm.send(vector, dest)


def test_sums_and_counts_are_right():
    assert lab.check_on_ranks(combine, expected=all_samples)


def test_the_mean_of_the_means_is_found_wrong():
    def mean_of_means(comm, vector):
        comm.allreduce(vector)
        vector[:-1] /= comm.size

    verdict = lab.check_on_ranks(mean_of_means, expected=all_samples, workers=[2], hints=["a hint"])
    assert verdict.sentence.startswith("With 2 ranks and 4 numbers, on rank 0 value 0 is 1.5, expected 1.66")
    assert verdict.hints == ["a hint"]
