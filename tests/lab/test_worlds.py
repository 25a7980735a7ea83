"""What the panel shows of the three worlds: facts, the clock of every figure, thousands of workers."""

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab import compare, figures, theme
from dlpar.lab.figures.convergence import Convergence
from dlpar.lab.figures.staleness import Lead, Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.figures.timeline import Lanes, Timeline
from dlpar.lab.panel import Panel
from lab.folders import ThreadJob, finished, until
from lab.readers import Reader
from lab.records import fed

SIZES = {"world": "simulated", "platform": "k80-1gbe", "stand_in_for": "vgg16", "messages": "sizes"}
MANY = Experiment(
    workers=64,
    batch=4,
    scaling="weak",
    steps=6,
    cluster=SIZES,
    sync={"scheme": "ps", "servers": 8, "consistency": "asp"},
)


@pytest.fixture
def launched(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", ThreadJob, raising=False)


# ---- facts and figures of one world ----------------------------------------------


def facts(panel) -> dict[str, str]:
    return dict(panel.state["facts"])


def test_world_platform_clock_and_slip_are_told_where_they_say_something(launched):
    panel = Panel(Experiment(workers=2, steps=4, cluster={"world": "paced", "platform": "p100-10gbe"}))
    told = {"world": "paced", "platform": "p100-10gbe", "clock": "logical"}
    assert facts(panel) == {**told, "slip": "none"}
    panel.run()
    until(lambda: not panel.running)
    assert facts(panel) == {**told, "slip": "12 ms"}
    assert facts(Panel(MANY))["platform"] == (
        "k80-1gbe as if the model were vgg16, messages carry sizes only"
    )
    assert facts(Panel()).keys() == {"world", "platform"} and "core" in facts(Panel())["platform"]


@pytest.mark.parametrize("kind", [Throughput, Staleness, Lead, Timeline, Waiting, Lanes])
def test_axes_of_time_name_the_clock(kind):
    plot = kind()
    fed(plot, MANY.replace(cluster={"world": "simulated", "messages": "values"}))
    assert "virtual clock" in plot.static().layout.xaxis.title.text
    fed(real := kind(), Experiment(workers=2, sync=MANY.sync))
    assert "clock" not in real.static().layout.xaxis.title.text


def test_curves_over_seconds_name_the_clock_of_their_runs():
    def title(*worlds):
        plot = Convergence("seconds")
        fed(plot, *(Experiment(cluster={"world": world}) for world in worlds))
        return plot.static().layout.xaxis.title.text

    assert title("simulated") == "time on the virtual clock (s)"
    assert title("real") == "time since all ranks were ready (s)"
    assert title("real", "simulated") == "time, each run on its own clock (s)"


def test_a_simulated_run_is_never_drawn_as_measured(launched):
    panel = Panel(Experiment(workers=2, steps=5))
    page = Reader(panel)
    for world in ("real", "simulated"):
        panel.choose("cluster.world", world)
        panel.run()
        until(lambda: not page.state["busy"])
    now, before = panel.runs
    for title, name in {"Convergence": "loss", "Throughput": "all", "Staleness": "mean"}.items():
        traces = page.figures[title].traces
        simulated, measured = (traces[f"{run.id} {name}"]["style"] for run in (now, before))
        assert simulated["line"]["width"] == 5 and str(theme.FAINT) in simulated["line"]["color"], title
        assert measured["line"]["width"] == 2 and measured["line"]["color"].startswith("#"), title
        assert "simulated" in simulated["name"] and "real" in measured["name"], title


# ---- nothing trained, and thousands of workers ---------------------------------


def test_a_run_without_values_has_no_loss_to_show(launched):
    panel = Panel(MANY)
    page = Reader(panel)
    assert "Convergence" not in page.state["tabs"]
    panel.run()
    until(lambda: not page.state["busy"])
    words = page.state["words"]
    assert words.startswith("done: 6 steps") and "nothing was trained" in words
    panel.choose("cluster.world", "real")
    panel.run()
    until(lambda: not page.state["busy"])
    assert page.state["tabs"][0] == "Convergence" and "fell" in page.figures["Convergence"].caption
    with pytest.raises(ValueError, match="messages sizes, allowed is values"):
        compare([MANY, MANY.replace(sync="ring")])
    with pytest.raises(ValueError, match="nothing was trained"):
        figures.convergence(panel.runs[1])


def test_of_many_workers_a_few_are_drawn_and_all_are_counted(launched):
    panel = Panel(MANY)
    page = Reader(panel)
    panel.run()
    until(lambda: not page.state["busy"])
    for title, figure in page.figures.items():
        assert "Drawn are the first 16 of 64 workers." in figure.caption, title
        assert len(figure.curves) <= 24, title
    rows = page.figures["Waiting"].curves["compute"]
    assert rows.shape[1] == 20, "16 workers and 4 of 8 servers"
    histograms = page.figures["Staleness"].curves
    assert histograms["histogram 0"][1].sum() == 64 * 6 and "histogram 1" not in histograms


def test_static_figures_draw_a_few_of_many_workers(launched):
    run = finished(MANY)
    for draw in (
        figures.timeline,
        figures.lanes,
        figures.waiting,
        figures.staleness,
        figures.lead,
        figures.throughput,
    ):
        figure = draw(run)
        assert figures.caption(figure).endswith("Drawn are the first 16 of 64 workers."), draw.__name__
        assert len(figure.data) <= 24
