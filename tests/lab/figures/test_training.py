"""Static figures of training, and the form that all static figures share."""

import json

import plotly.graph_objects as go
import pytest

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import figures
from lab.folders import finished, new_folder


@pytest.fixture(scope="module")
def rings():
    return [finished(workers=n, steps=40) for n in (1, 2, 4)]


@pytest.fixture(scope="module")
def ring_figures(rings):
    return {
        "convergence": figures.convergence(rings[1]),
        "compared": figures.convergence(rings, x="seconds"),
        "throughput": figures.throughput(rings[2]),
        "throughputs": figures.throughput(rings),
        "timeline": figures.timeline(rings[2]),
        "staleness": figures.staleness(rings[2]),
        "speedup": figures.speedup(rings, predicted={4: 4.0}),
    }


def test_every_figure_says_what_it_shows_and_gives_its_data(ring_figures):
    for name, figure in ring_figures.items():
        assert isinstance(figure, go.Figure), name
        assert figures.caption(figure).endswith("."), name
        assert len(figures.table(figure)) == sum(len(trace.x) for trace in figure.data), name


def test_every_axis_has_a_label_and_a_unit(ring_figures):
    for name, figure in ring_figures.items():
        for axis in (figure.layout.xaxis, figure.layout.yaxis):
            assert axis.title.text or name == "timeline", name
        assert name in ("timeline", "speedup") or "(" in figure.layout.yaxis.title.text


def test_curve_is_the_runs_own(rings):
    figure, curve = figures.convergence(rings[1]), rings[1].curve
    assert list(figure.data[0].x) == list(curve["step"])
    assert list(figure.data[0].y) == pytest.approx(list(curve["loss"]))
    assert list(figure.data[1].y) == list(rings[1].evals["accuracy"])


def test_long_curve_is_thinned():
    figure = figures.convergence(finished(workers=1, steps=4500))
    assert len(figure.data[0].x) <= 2000


def test_compared_runs_are_named_by_what_differs_and_told_apart_without_colour(rings):
    losses = [t for t in figures.convergence(rings).data if t.name != "accuracy"]
    assert [t.name for t in losses] == ["workers=1", "workers=2", "workers=4"]
    assert len({(t.line.dash, t.marker.symbol) for t in losses}) == 3
    assert len({t.line.color for t in losses}) == 1


def test_predicted_is_dashed_ideal_dotted_and_measured_solid(ring_figures):
    dash = {trace.name: trace.line.dash for trace in ring_figures["speedup"].data}
    assert dash == {"ideal": "dot", "predicted": "dash", "measured": None}


def test_speedup_is_that_of_the_summaries(rings, ring_figures):
    measured = ring_figures["speedup"].data[-1]
    rates = [run.summary["samples_per_s"] for run in rings]
    assert list(measured.y) == pytest.approx([rate / rates[0] for rate in rates])


def test_timeline_takes_the_steps_asked_for(rings):
    table = figures.table(figures.timeline(rings[1], steps=range(3, 5)))
    assert set(table["step"]) == {3, 4} and set(table["rank"]) == {0, 1}


def test_shown_figure_is_kept_with_sentence_and_table(rings, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    figures.convergence(rings[1])._ipython_display_()
    figure, below = shown
    assert json.dumps(figure["application/vnd.plotly.v1+json"])
    assert (
        "In 40 of 40 steps" in below["text/html"]
        and "<table" in below["text/html"]
        and "http" not in below["text/html"]
    )


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda run: figures.convergence(run, x="hours"), "x: got 'hours', allowed is one of step"),
        (lambda run: figures.convergence([]), "runs: got none"),
        (lambda run: figures.speedup([run]), "runs: got runs of 2 workers only"),
        (lambda run: figures.timeline(run, steps=range(900, 910)), "steps: got range"),
        (lambda run: figures.convergence(Run(new_folder(Experiment()))), "has no finished step"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(rings, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(rings[1])


def test_overlay_over_bytes_counts_what_all_workers_sent(runs, every_figure):
    ring = every_figure["overlay"].data[0]
    assert list(ring.x) == pytest.approx([0.004 * (step + 1) for step in range(40)])
    assert every_figure["overlay"].layout.xaxis.title.text == "sent by all workers together (MB)"
    assert len({t.line.color for t in every_figure["overlay"].data if t.name != "accuracy"}) == 3


def test_seconds_to_a_goal_are_steps_times_time_of_a_step(runs, every_figure):
    seconds, steps, ms = (trace.x[0] for trace in every_figure["time"].data[:3])
    assert seconds == pytest.approx(steps * ms / 1e3)
    good = runs["asp"].evals.query("accuracy >= 0.9").iloc[0]
    assert (seconds, steps) == (good["t"], good["step"])
    assert (
        figures.caption(lab.time_to_accuracy(runs["asp"], goal=1.0)) == "None reached 100% held-out accuracy."
    )
    assert figures.caption(lab.time_to_accuracy(runs["asp"], 0.9, ["mine"])).startswith("mine reached 90%")


def test_who_was_first_to_an_accuracy_is_said_of_each_clock_alone(runs):
    virtual = finished(workers=2, steps=40, cluster={"world": "simulated"})
    figure = lab.time_to_accuracy([virtual, runs["ring"]], 0.8, ["a", "b"])
    said = figures.caption(figure)
    for clock, name in {"virtual": "a, simulated", "wall": "b"}.items():
        assert f"n the {clock} clock {name} reached 80% first" in said
    assert "a, simulated and b took the fewest steps" in said and "different clocks do not compare" in said
    assert figure.layout.xaxis.title.text == "seconds to 80%<br>each on its own clock"


def test_runs_of_two_kinds_of_task_share_no_figure_and_a_regression_has_no_accuracy(runs):
    diabetes = finished(workers=2, steps=5, model="linear", data="diabetes")
    with pytest.raises(
        ValueError, match="runs: got classification and regression, allowed is one kind of task"
    ):
        lab.overlay([runs["ring"], diabetes])
    with pytest.raises(ValueError, match="got data diabetes, a regression, allowed is a task with classes"):
        lab.time_to_accuracy(diabetes)


def rewritten(run, **changed):
    """The run with these values in every record that has them."""
    for path in run.path.glob("rank-*.jsonl"):
        records = [json.loads(line) for line in open(path)]
        changes = [{name: value for name, value in changed.items() if name in record} for record in records]
        path.write_text(
            "".join(json.dumps(record | change) + "\n" for record, change in zip(records, changes))
        )
    return run


def test_a_run_that_does_not_say_what_it_sent_is_not_drawn_over_bytes(runs):
    silent = rewritten(finished(workers=1, steps=5), bytes=None)
    with pytest.raises(ValueError, match="the library moved the data and does not report how much"):
        lab.overlay([runs["ring"], silent], x="bytes")


def test_a_run_that_drew_no_sample_has_not_diverged():
    empty = rewritten(
        finished(workers=2, steps=3, sync={"scheme": "mapreduce", "fraction": 1e-6}), samples=0, loss=0.0
    )
    diverged = rewritten(finished(workers=2, steps=3), loss=None)  # as JSON tells a NaN
    assert figures.caption(lab.overlay(empty)).startswith(
        "In 3 of 3 steps no sample was drawn, so there is no loss;"
    )
    assert "the run diverged" in figures.caption(lab.overlay(diverged))
    both = figures.caption(lab.overlay([empty, diverged], titles=["empty", "diverged"]))
    assert "empty no sample, so no loss" in both and "diverged loss not a number" in both
