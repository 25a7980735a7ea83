"""Figures of the cost of messages, measured and predicted, and of communication beside computing."""

from __future__ import annotations

import pytest

from dlpar import Experiment, lab
from dlpar.lab import figures, presets
from dlpar.lab.figures.cost import CollectiveTime, PingPong
from dlpar.lab.sweep import Outcome
from dlpar.theory import Link, predict

LINK = Link(latency=1e-3, bandwidth=1e6)
SIZES = (1_000, 100_000)


def predicted() -> list[CollectiveTime]:
    return lab.predict_collectives(("star", "tree"), 8, SIZES, LINK)


def measured(how: str = "measured") -> list[CollectiveTime]:
    """5 % slower than predicted."""
    return [t._replace(seconds=1.05 * t.seconds, how=how) for t in predicted()]


def test_a_fit_says_latency_bandwidth_and_where_they_are_equal():
    figure = figures.link_fit(PingPong(SIZES, tuple(LINK.seconds(size) for size in SIZES)))
    assert (
        figures.caption(figure)
        == "A message takes 1 ms plus 1 s for every 1 MB; at 1 kB the two parts are equal."
    )
    solid, dashed = figure.data
    assert solid.mode == "markers" and dashed.line.dash == "dash"
    assert list(dashed.y) == pytest.approx([2.0, 101.0])


def test_predicted_is_dashed_and_measured_solid_in_one_colour_each():
    figure = figures.collective_times([*measured(), *predicted()])
    by_name = {trace.name: trace for trace in figure.data}
    assert set(by_name) == {"star, measured", "tree, measured", "star, predicted", "tree, predicted"}
    for name in ("star", "tree"):
        solid, dashed = by_name[f"{name}, measured"], by_name[f"{name}, predicted"]
        assert solid.line.color == dashed.line.color and (solid.line.dash, dashed.line.dash) == (None, "dash")
    assert len({trace.line.color for trace in figure.data}) == 2


def test_the_sentence_says_who_is_first_at_both_ends_and_how_far_the_prediction_is():
    said = figures.caption(figures.collective_times([*measured(), *predicted()]))
    assert said.startswith(
        "Measured at 1 kB: tree 12.6 ms and star 16.8 ms; at 100 kB: tree 636 ms and star 1.47 s."
    )
    assert said.endswith("The prediction is at most 4.8% off.")


def test_simulated_is_faint_and_the_axis_names_the_clock():
    figure = figures.collective_times([*measured("simulated"), *predicted()])
    star = next(trace for trace in figure.data if trace.name == "star, simulated")
    assert star.line.width == 5 and star.line.color.startswith("rgba(")
    assert figure.layout.yaxis.title.text == "time, virtual clock (ms)"
    both = figures.collective_times([*measured("simulated"), *measured("paced")])
    assert both.layout.yaxis.title.text == "time, logical and virtual clock (ms)"
    assert figures.collective_times(measured()).layout.yaxis.title.text == "time (ms)"


def test_two_links_in_one_figure_say_whose_they_are():
    times = tuple(LINK.seconds(size) for size in SIZES)
    figure = figures.link_fit(PingPong(SIZES, times), PingPong(SIZES, times, "simulated", "cpu-1gbe"))
    assert [trace.name for trace in figure.data][::2] == ["this machine, measured", "cpu-1gbe, simulated"]
    assert "; at 1 kB the two parts are equal. Cpu-1gbe (simulated): a message takes 1 ms" in figures.caption(
        figure
    )
    with pytest.raises(ValueError, match="found: got 0 ping-pongs"):
        figures.link_fit()


def test_over_ranks_there_is_a_line_a_size():
    figure = figures.collective_times(lab.predict_collectives(["ring"], (2, 4, 8), SIZES, LINK), over="ranks")
    assert [trace.name for trace in figure.data] == ["ring, 1 kB, predicted", "ring, 100 kB, predicted"]
    assert list(figure.data[0].x) == [2, 4, 8]
    assert list(figure.layout.xaxis.ticktext) == ["2", "4", "8"]


def test_nothing_and_an_unknown_axis_are_refused():
    with pytest.raises(ValueError, match="times: got none"):
        figures.collective_times([])
    with pytest.raises(ValueError, match="over: got 'time'"):
        figures.collective_times(measured(), over="time")


# ---- communication beside computing ------------------------------------------------------


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
    name = list(experiments)[1]
    assert row[""] == name and row["exposed (share of computing)"] == pytest.approx(beside.x[1])
    with pytest.raises(ValueError, match="got one that is failed"):
        figures.exposed([Outcome(experiments[name], "failed", "no reason")])
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
    with pytest.raises(ValueError, match="without micro-batches"):
        figures.sending(experiment.replace(split={"microbatches": 2}))
    for slowed in ({"cluster": {"platform": presets.HOROVOD}}, {"delays": {"straggler": {1: 2.0}}}):
        with pytest.raises(
            ValueError, match="^experiment: got workers that are delayed, or slowed by messages"
        ):
            figures.sending(experiment.replace(**slowed))
