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
    }


def test_every_figure_says_what_it_shows_and_gives_its_data(ring_figures, every_figure):
    for name, figure in {**ring_figures, **every_figure}.items():
        assert isinstance(figure, go.Figure), name
        assert figures.caption(figure).endswith("."), name
        assert len(figures.table(figure)) == sum(len(trace.x) for trace in figure.data), name


def test_every_axis_has_a_label_and_a_unit(ring_figures):
    for name, figure in ring_figures.items():
        for axis in (figure.layout.xaxis, figure.layout.yaxis):
            assert axis.title.text or name == "timeline", name
        assert name == "timeline" or "(" in figure.layout.yaxis.title.text


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
        (lambda run: figures.time_to_accuracy(run, goal=2), "goal: got 2"),
        (
            lambda run: figures.time_to_accuracy([run] * 2, titles=["one"]),
            "titles: got 1, allowed is one for",
        ),
        (lambda run: figures.lead(Run(new_folder(Experiment()))), "has no finished step"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(rings, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(rings[1])


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


def test_a_regression_has_no_accuracy_to_reach():
    diabetes = finished(workers=2, steps=5, model="linear", data="diabetes")
    with pytest.raises(ValueError, match="got data diabetes, a regression, allowed is a task with classes"):
        lab.time_to_accuracy(diabetes)
