"""What the panel shows of the three worlds: controls that apply, the clock of every figure, thousands of workers."""

import pytest
from dlpar.lab.board import Board

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab import captions, figures
from dlpar.lab.comparison import compare
from dlpar.lab.controls import Controls
from dlpar.lab.panel import Panel
from dlpar.worlds.platforms import names
from lab.folders import ThreadJob, finished, until

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
def controls():
    return Controls(Experiment(), lambda: None)


@pytest.fixture
def launched(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", ThreadJob, raising=False)


def shown(controls) -> set[str]:
    """Fields of the cluster that are on the page."""
    widgets = controls.widgets.items()
    return {
        p.partition(".")[2] for p, w in widgets if p.startswith("cluster.") and w.layout.display != "none"
    }


# ---- controls -------------------------------------------------------------------


def test_only_what_applies_in_a_world_is_shown(controls):
    world = controls.widgets["cluster.world"]
    assert {"device", "carrier"} <= shown(controls) and not {"platform", "stand_in_for", "messages"} & shown(
        controls
    )
    world.value = "paced"
    assert {"platform", "stand_in_for", "placement"} <= shown(controls)
    assert not {"messages", "device", "carrier"} & shown(controls)
    world.value = "simulated"
    assert {"platform", "stand_in_for", "messages"} <= shown(controls) and "threads" not in shown(controls)


def test_a_platform_and_a_workload_are_chosen_by_name(controls):
    platform, workload = controls.widgets["cluster.platform"], controls.widgets["cluster.stand_in_for"]
    first, *others = platform._options_labels
    assert others == names() and "p100-25gbe" in first
    assert workload.description == "stand in for"
    controls.widgets["cluster.world"].value = "simulated"
    assert controls.experiment().cluster.platform is None
    platform.value, workload.value = "v100-10gbe", "vgg16"
    made = controls.experiment().cluster
    assert (made.platform, made.stand_in_for) == ("v100-10gbe", "vgg16")


def test_what_another_world_does_not_know_is_as_if_unset_there(controls):
    controls.widgets["cluster.world"].value = "simulated"
    controls.widgets["cluster.messages"].value = "sizes"
    controls.widgets["cluster.stand_in_for"].value = "vgg16"
    controls.widgets["cluster.world"].value = "real"
    assert controls.experiment() == Experiment()
    controls.widgets["cluster.world"].value = "simulated"
    assert controls.experiment().cluster.messages == "sizes"


def test_a_platform_from_a_file_stays_a_choice():
    made = Experiment(cluster={"world": "simulated", "platform": "./mine.toml"})
    assert Controls(made, lambda: None).experiment() == made


def test_workers_reach_4096_where_they_are_simulated(controls):
    controls.widgets["cluster.world"].value = "simulated"
    controls.widgets["cluster.messages"].value = "sizes"
    controls.widgets["scaling"].value = "weak"
    controls.widgets["workers"].value = 4096
    assert controls.experiment().workers == 4096


def test_the_first_screen_takes_fields_by_the_names_they_go_by():
    panel = Panel(controls=("world", "platform", "workers"))
    assert [w.description for w in panel.children[1].children[:3]] == ["world", "platform", "workers"]
    with pytest.raises(ValueError, match="controls: got 'wrld'"):
        Panel(controls=("wrld",))


# ---- facts and figures of one world ----------------------------------------------


def fact(panel, name: str) -> str:
    return panel._status.facts.value.partition(f"<b>{name}</b> ")[2].partition("<")[0]


def test_world_platform_clock_and_slip_are_always_told(launched):
    panel = Panel(Experiment(workers=2, steps=4, cluster={"world": "paced", "platform": "p100-10gbe"}))
    assert [fact(panel, name) for name in ("world", "platform", "clock", "slip")] == [
        "paced",
        "p100-10gbe",
        "logical",
        "none",
    ]
    panel.run()
    until(lambda: not panel.running)
    assert fact(panel, "slip") == "12 ms"
    assert fact(Panel(MANY), "platform") == "k80-1gbe as if the model were vgg16, messages carry sizes only"
    assert "core" in fact(Panel(), "platform") and fact(Panel(), "clock") == "wall"


def test_axes_of_time_name_the_clock():
    board = Board(MANY.replace(cluster={"world": "simulated", "messages": "values"}))
    for figure, axis in (
        (board.throughput, "xaxis"),
        (board.staleness, "xaxis"),
        (board.timeline, "xaxis"),
        (board.waiting, "xaxis"),
    ):
        assert "virtual clock" in figure.plot._figure["layout"][axis]["title"]["text"], figure.title
    seconds = board.convergence.plot._figure["x_axes"]["seconds"]
    assert seconds["title"]["text"] == "time on the virtual clock (s)"
    real = Board(Experiment()).throughput.plot._figure["layout"]["xaxis"]["title"]["text"]
    assert real == "time since all ranks were ready (s)"


def test_a_simulated_run_is_never_drawn_as_measured(launched):
    panel = Panel(Experiment(workers=2, steps=5))
    panel.run()
    until(lambda: not panel.running)
    panel._controls.widgets["cluster.world"].value = "simulated"
    panel.run()
    until(lambda: not panel.running)
    plot, (now, before) = panel._board.convergence.plot, panel.runs
    simulated, measured = plot.style(f"{now.id} loss"), plot.style(f"{before.id} loss")
    assert simulated["line"]["width"] == 5 and simulated["opacity"] < 1 and "simulated" in simulated["name"]
    assert measured["line"]["width"] < 3 and measured["name"] == "world=real"
    assert plot._figure["x_axes"]["seconds"]["title"]["text"] == "time, each run on its own clock (s)"
    drawn = figures.convergence([now, before]).data
    assert {t.name: t.line.width for t in drawn if "world" in t.name} == {
        "world=simulated": 5,
        "world=real": 2,
    }


def test_the_predicted_rate_is_a_dashed_line():
    board = Board(MANY)
    board.begin(MANY, "run")
    style = board.throughput.plot.style("predicted")
    assert style["line"]["dash"] == "dash" and style["name"] == "predicted"
    board.begin(Experiment(), "real")  # of a machine that was not measured nothing is predicted
    assert "predicted" not in board.throughput.plot._traces


def test_a_prediction_that_is_not_exact_says_so():
    told = {
        kind: captions.throughput(100.0, {}, MANY, 90.0, kind).rpartition("; ")[2] for kind in captions.BOUND
    }
    assert told == {
        "exact": "90 were predicted.",
        "upper bound": "at least 90 were predicted.",  # the time is bounded from above, so the rate from below
        "lower bound": "at most 90 were predicted.",
        "estimate": "about 90 were predicted.",
    }


# ---- nothing trained, and thousands of workers ---------------------------------


def test_a_run_without_values_has_no_loss_to_show(launched):
    panel = Panel(MANY)
    assert "Convergence" not in panel._tabs.titles
    panel.run()
    until(lambda: not panel.running)
    assert (
        panel._status.words.value.startswith("done: 6 steps")
        and "nothing was trained" in panel._status.words.value
    )
    panel._controls.widgets["cluster.world"].value = "real"
    panel.run()
    until(lambda: not panel.running)
    assert panel._tabs.titles[0] == "Convergence" and "fell" in panel._board.convergence.plot.caption
    with pytest.raises(ValueError, match="messages sizes, allowed is values"):
        compare([MANY, MANY.replace(sync="ring")])
    with pytest.raises(ValueError, match="nothing was trained"):
        figures.convergence(panel.runs[1])


def test_of_many_workers_a_few_are_drawn_and_all_are_counted(launched):
    panel = Panel(MANY)
    panel.run()
    until(lambda: not panel.running)
    board = panel._board
    for plot in board.plots.values():
        assert "Drawn are the first 16 of 64 workers." in plot.caption
        assert len(plot._traces) <= 24
    assert len(board.waiting.plot.series("compute")) == 20, "16 workers and 4 of 8 servers"
    histogram = board.staleness.plot.series("histogram 0").rows
    assert histogram[:, 1].sum() == 64 * 6 and "histogram 1" not in board.staleness.plot._traces


def test_static_figures_draw_a_few_of_many_workers(launched):
    run = finished(MANY)
    for draw in (
        figures.timeline,
        figures.lanes,
        figures.waiting,
        figures.bytes_per_rank,
        figures.staleness,
        figures.lead,
        figures.throughput,
    ):
        figure = draw(run)
        assert figures.caption(figure).endswith("Drawn are the first 16 of 64 workers."), draw.__name__
        assert len(figure.data) <= 24


def test_a_run_of_milliseconds_on_the_virtual_clock_has_a_curve_of_its_rate(launched):
    quick = Experiment(workers=2, steps=12, cluster={"world": "simulated"})
    board = Board(quick)
    board.begin(quick, "run")
    for step in range(12):
        for rank in range(2):
            record = {"k": "step", "step": step, "t": 1e-3 * (step + 1), "samples": 8, "loss": 1.0, "bytes": 0,
                      "compute": 1e-3, "comm": 0.0, "wait": 0.0, "staleness": 0, "lead": 0,
                      "version": step}  # fmt: skip
            board.take(rank, record)
    board.settle(ended=True)
    rates = board.throughput.plot.series("all").rows
    assert len(rates) == 12 and rates[:, 1] == pytest.approx([16_000] * 12)
