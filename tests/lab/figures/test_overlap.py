"""Figures of overlap: what stands out, what buckets cost, and the schedule that the closed form says."""

from __future__ import annotations

import pytest

from dlpar import Experiment
from dlpar.lab import figures, presets
from dlpar.lab.sweep import Outcome
from dlpar.theory import predict


def done(experiment: Experiment, slower: float = 1.0) -> Outcome:
    """As if it had taken what is predicted, or `slower` times as long."""
    outcome, said = Outcome(experiment, "done"), predict(experiment)
    rate = experiment.global_batch / said.seconds / slower
    outcome.summary = {"steps": 2, "samples_per_s": rate, "seconds": {"compute": 2 * said.compute}}
    return outcome


def test_what_stands_out_is_a_share_of_computing():
    experiments = presets.overlap_hides_everything()
    figure = figures.exposed([done(e) for e in experiments.values()], list(experiments))
    computing, beside, predicted = figure.data
    assert set(computing.x) == {1.0} and all(x > 0 for x in beside.x)
    assert list(predicted.x) == pytest.approx([1 + x for x in beside.x])
    assert figures.caption(figure).endswith("The prediction is less than 0.1% off.")
    row = figures.table(figure).iloc[1]
    assert row[""] == "VGG-16, overlap on" and row["exposed (share of computing)"] == pytest.approx(
        beside.x[1]
    )
    with pytest.raises(ValueError, match="got one that is failed"):
        figures.exposed([Outcome(experiments["VGG-16, overlap on"], "failed", "no reason")])
    with pytest.raises(ValueError, match="got none"):
        figures.exposed([])


def test_a_u_of_bucket_sizes_names_its_lowest_point_and_both_ends():
    experiments = presets.smaller_buckets()
    figure = figures.bucket_sizes([done(e, slower=1.1) for e in experiments])
    alone, simulated, predicted = figure.data
    assert list(simulated.x) == [e.sync.bucket_mb for e in experiments]
    assert min(simulated.y) == simulated.y[3] and alone.y[0] < min(predicted.y)
    assert "with buckets of 2 MB" in figures.caption(figure) and "at most 9.1% off" in figures.caption(figure)
    with pytest.raises(ValueError, match="buckets of several sizes"):
        figures.bucket_sizes([done(experiments[0]), done(experiments[1].replace(workers=8))])


@pytest.mark.parametrize(
    ("name", "most"), [("VGG-16", "fc6 with 411 MB"), ("BERT-large", "embed with 127 MB")]
)
def test_the_schedule_ends_when_the_predicted_step_does(name, most):
    experiment = presets.overlap_hides_everything()[f"{name}, overlap on"]
    figure = figures.sending(experiment)
    rows = figures.table(figure)
    assert rows["ends (ms)"].iloc[-1] == pytest.approx(1e3 * predict(experiment).seconds, rel=1e-3)
    assert (rows["begins (ms)"] >= rows["ready (ms)"]).all()
    assert (rows["begins (ms)"].iloc[1:].values >= rows["ends (ms)"].iloc[:-1].values).all()
    assert most in figures.caption(figure)
    for other in ({"overlap": False}, {"allreduce": "tree"}):
        with pytest.raises(ValueError, match="allowed is that"):
            figures.sending(experiment.replace(sync=other))
