import json

import plotly.graph_objects as go
import pytest

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import figures
from lab.folders import finished, new_folder


@pytest.fixture(scope="module")
def runs():
    return [finished(workers=n, steps=40) for n in (1, 2, 4)]


@pytest.fixture(scope="module")
def every_figure(runs):
    return {
        "convergence": figures.convergence(runs[1]),
        "compared": figures.convergence(runs, x="seconds"),
        "throughput": figures.throughput(runs[2]),
        "throughputs": figures.throughput(runs),
        "timeline": figures.timeline(runs[2]),
        "staleness": figures.staleness(runs[2]),
        "speedup": figures.speedup(runs, predicted={4: 4.0}),
    }


def test_every_figure_says_what_it_shows_and_gives_its_data(every_figure):
    for name, figure in every_figure.items():
        assert isinstance(figure, go.Figure), name
        assert figures.caption(figure).endswith("."), name
        assert len(figures.table(figure)) == sum(len(trace.x) for trace in figure.data), name


def test_every_axis_has_a_label_and_a_unit(every_figure):
    for name, figure in every_figure.items():
        for axis in (figure.layout.xaxis, figure.layout.yaxis):
            assert axis.title.text or name == "timeline", name
        assert name in ("timeline", "speedup") or "(" in figure.layout.yaxis.title.text


def test_curve_is_the_runs_own(runs):
    figure, curve = figures.convergence(runs[1]), runs[1].curve
    assert list(figure.data[0].x) == list(curve["step"])
    assert list(figure.data[0].y) == pytest.approx(list(curve["loss"]))
    assert list(figure.data[1].y) == list(runs[1].evals["accuracy"])


def test_long_curve_is_thinned():
    figure = figures.convergence(finished(workers=1, steps=4500))
    assert len(figure.data[0].x) <= 2000


def test_compared_runs_are_named_by_what_differs_and_told_apart_without_colour(runs):
    losses = [t for t in figures.convergence(runs).data if t.name != "accuracy"]
    assert [t.name for t in losses] == ["workers=1", "workers=2", "workers=4"]
    assert len({(t.line.dash, t.marker.symbol) for t in losses}) == 3
    assert len({t.line.color for t in losses}) == 1


def test_predicted_is_dashed_ideal_dotted_and_measured_solid(every_figure):
    dash = {trace.name: trace.line.dash for trace in every_figure["speedup"].data}
    assert dash == {"ideal": "dot", "predicted": "dash", "measured": None}


def test_speedup_is_that_of_the_summaries(runs, every_figure):
    measured = every_figure["speedup"].data[-1]
    rates = [run.summary["samples_per_s"] for run in runs]
    assert list(measured.y) == pytest.approx([rate / rates[0] for rate in rates])


def test_timeline_takes_the_steps_asked_for(runs):
    table = figures.table(figures.timeline(runs[1], steps=range(3, 5)))
    assert set(table["step"]) == {3, 4} and set(table["rank"]) == {0, 1}


def test_shown_figure_is_kept_with_sentence_and_table(runs, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    figures.convergence(runs[1])._ipython_display_()
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
def test_what_cannot_be_drawn_is_refused_in_a_sentence(runs, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(runs[1])
