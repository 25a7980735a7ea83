"""The figure of scaling: speed-up and efficiency, kinds told apart, and where two schemes are equally fast."""

import pytest

from dlpar import lab
from dlpar.cli.sweep import throughputs
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import JobFailed
from dlpar.lab import figures, sweep, theme
from dlpar.lab.figures.scaling import curves, draw, twin
from dlpar.lab.sweep import Outcome
from lab.folders import finished

REAL = Experiment(batch=32, scaling="weak", cluster={"platform": "p100-25gbe"})
BASE = REAL.replace(cluster={"world": "simulated", "messages": "sizes"})


def outcome(experiment: Experiment, rate: float) -> Outcome:
    made = Outcome(experiment, "done")
    made.summary = {"samples_per_s": rate}
    return made


def of(base: Experiment, rates: dict[int, float], **changes) -> list[Outcome]:
    return [outcome(base.replace(workers=n, **changes), rate) for n, rate in rates.items()]


RING, PS = {1: 100.0, 2: 110.0, 4: 300.0, 8: 700.0}, {1: 100.0, 2: 150.0, 4: 240.0, 8: 250.0}


@pytest.fixture(scope="module")
def figure():
    return draw(curves([*of(BASE, RING, sync="ring"), *of(BASE, PS, sync="ps")]))


def test_the_curves_are_speed_up_and_efficiency_over_the_fastest_with_the_fewest_workers(figure):
    left, right = [t for t in figure.data if t.name == "ring, simulated"]
    assert list(left.x) == [1, 2, 4, 8] and list(left.y) == pytest.approx([1.0, 1.1, 3.0, 7.0])
    assert list(right.y) == pytest.approx([1.0, 0.55, 0.75, 0.875]) and right.xaxis == "x2"
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    ideal = next(t for t in figure.data if t.name == "ideal")
    assert list(ideal.y) == [1, 2, 4, 8] and ideal.line.dash == "dot"


def test_measured_is_solid_simulated_faint_and_predicted_dashed():
    both = curves([*of(REAL, {1: 10.0, 2: 19.0}), *of(BASE, {1: 11.0, 2: 20.0})])
    lines = {t.name: t.line for t in draw(both).data}
    assert lines["measured"].dash is None and lines["measured"].color == "#0072B2"
    assert lines["simulated"].color == "rgba(0,114,178,0.6)" and lines["simulated"].width == 5
    assert lines["predicted"].dash == "dash"
    assert "The simulation is at most 10.0% off" in figures.caption(draw(both))


def test_predictions_have_the_base_of_the_runs_although_the_fastest_has_no_prediction():
    fast = of(BASE, {1: 1e12, 2: 1.9e12}, sync={"scheme": "ring", "allreduce": "double_tree"})
    found = curves([*fast, *of(BASE, PS, sync="ps")])
    ps = [curve for curve in found if curve.kind == "predicted"]
    assert len(found) == 3 and len(ps) == 1 and len(ps[0].points) == len(PS)
    assert all(point.speedup == pytest.approx(point.rate / 1e12) for point in ps[0].points)


def test_curves_have_colours_and_symbols_of_their_own_that_the_legend_explains():
    figure = draw(curves([*of(BASE, RING), *of(BASE, PS, batch=64)]))
    marks = {t.name: t.marker for t in figure.data if t.mode == "markers"}
    assert {name: mark.symbol for name, mark in marks.items()} == {"batch=32": "circle", "batch=64": "square"}
    assert [mark.color for mark in marks.values()] == list(theme.RUNS[:2])
    drawn = {t.name: t.marker for t in figure.data if t.mode == "lines+markers"}
    assert (
        drawn["batch=64, simulated"].symbol == "square"
        and drawn["batch=64, predicted"].symbol == "square-open"
    )
    assert {drawn[f"batch=64, {how}"].color for how in ("simulated", "predicted")} == {theme.RUNS[1]}


def test_where_two_schemes_are_equally_fast_is_marked_and_said(figure):
    mark = next(t for t in figure.data if t.hovertext == "ring = ps bsp")
    assert mark.name == "equally fast" and mark.showlegend
    (at,) = mark.x
    assert 2 < at < 4 and 1.1 < mark.y[0] < 3.0
    said = figures.caption(figure)
    assert f"ring and ps bsp are equally fast at about {at:.3g} workers; from 4 on ring is faster" in said
    assert "8 workers with ring are 7 times as fast as the fastest one (88% of ideal)" in said


def test_curves_that_do_not_cross_are_said_to_be_ahead_throughout():
    figure = draw(
        curves([*of(BASE, RING, sync="ring"), *of(BASE, {n: r / 2 for n, r in RING.items()}, sync="ps")])
    )
    assert "ring is at least as fast as ps bsp at every number of workers shown." in figures.caption(figure)
    assert not [t for t in figure.data if "=" in t.name]


def test_what_is_compared_is_named_by_what_differs_but_workers_and_world():
    batches = curves([*of(BASE, RING), *of(BASE, RING, batch=64), *of(REAL, RING)])
    assert {(curve.name, curve.kind) for curve in batches if curve.kind != "predicted"} == {
        ("batch=32", "simulated"),
        ("batch=64", "simulated"),
        ("batch=32", "measured"),
    }


def test_the_table_under_the_figure_has_a_row_for_each_point(figure):
    rows = figures.table(figure)
    assert list(rows.columns) == [
        "scheme",
        "how",
        "workers",
        "samples/s",
        "step (ms)",
        "speed-up",
        "efficiency",
    ]
    assert set(rows["how"]) == {"simulated", "predicted"} and len(rows) == 16
    ring = rows[(rows["scheme"] == "ring") & (rows["how"] == "simulated")]
    assert list(ring["step (ms)"]) == pytest.approx([1e3 * 32 * n / rate for n, rate in RING.items()])


def test_thousands_of_workers_have_few_ticks():
    figure = draw(curves(of(BASE, {2**k: 100.0 * 2**k for k in range(13)}), predicted=False))
    assert len(figure.layout.xaxis.tickvals) <= 8 and figure.layout.xaxis.ticktext[-1] == "4,096"


def test_a_sweep_over_anything_else_is_drawn_as_bars():
    figure = throughputs([outcome(BASE.replace(batch=n), 100.0 * n) for n in (16, 32)])
    bars, diamonds = figure.data
    assert list(bars.x) == [1600.0, 3200.0] and bars.opacity == 0.6 and diamonds.name == "predicted"
    assert (
        figures.caption(figure)
        == "batch=32 is the fastest with 3,200 samples/s, 2.00 times as fast as batch=16."
    )


def test_speed_up_of_runs_is_that_of_their_summaries_beside_a_prediction():
    runs = [finished(workers=n, steps=40 // n) for n in (1, 2, 4)]
    figure = figures.speedup(runs, predicted={4: 4.0})
    left = {t.name: t for t in figure.data if t.xaxis != "x2"}
    assert {name: t.line.dash for name, t in left.items()} == {
        "ideal": "dot",
        "predicted": "dash",
        "measured": None,
    }
    rates = [run.summary["samples_per_s"] for run in runs]
    assert list(left["measured"].y) == pytest.approx([rate / rates[0] for rate in rates])
    assert list(left["predicted"].y) == [1.0, 4.0]
    rows = figures.table(figure).query("how == 'measured'")
    assert list(rows["samples/s"]) == pytest.approx(rates)
    assert figures.caption(figure).startswith("Measured: 4 workers are ")
    with pytest.raises(ValueError, match="runs: got runs of 2 workers only"):
        figures.speedup([runs[1]])
    simulated = finished(workers=2, steps=20, cluster={"world": "simulated"})
    with pytest.raises(ValueError, match="runs: got several worlds, allowed is one"):
        figures.speedup([runs[0], simulated])


def test_the_time_of_a_step_is_that_of_each_runs_own_batch():
    made = [finished(workers=n, steps=10, batch=64 * n) for n in (1, 4)]
    table = figures.table(figures.speedup(made))
    for run in made:
        ms = table[table["workers"] == run.experiment.workers]["step (ms)"]
        assert float(ms.iloc[0]) == pytest.approx(1e3 * run.experiment.batch / run.summary["samples_per_s"])


def test_one_number_of_workers_makes_no_curve():
    with pytest.raises(ValueError, match="outcomes: got no two numbers of workers"):
        draw(curves(of(BASE, {4: 100.0})))


# ---- running it -------------------------------------------------------------------


def test_a_twin_is_the_same_simulated_and_there_is_none_where_there_is_no_platform():
    paced = Experiment(
        workers=4, cluster={"world": "paced", "platform": "k80-1gbe", "stand_in_for": "resnet50"}
    )
    found = twin(paced)
    assert found.cluster.world == "simulated" and found.model == paced.model
    assert (found.workers, found.cluster.platform, found.cluster.stand_in_for) == (4, "k80-1gbe", "resnet50")
    assert twin(BASE) is None, "it is simulated already"
    assert twin(Experiment()) is None, "this machine was not measured"


@pytest.mark.slow
def test_lab_scaling_runs_simulations_and_the_closed_form_agrees():
    figure = lab.scaling(BASE.replace(steps=3, cluster={"stand_in_for": "resnet50"}), workers=(1, 2, 4))
    rows = figures.table(figure).pivot(index="workers", columns="how", values="samples/s")
    assert list(rows.index) == [1, 2, 4]
    assert list(rows["simulated"]) == pytest.approx(list(rows["predicted"]), rel=1e-3)
    assert "The prediction is less than 0.1% off." in figures.caption(figure)


def test_nothing_runs_if_one_of_them_cannot_be(monkeypatch):
    monkeypatch.setattr(sweep, "launch", lambda experiment: pytest.fail("something ran"))
    with pytest.raises(BadExperiment, match="workers: got 128, allowed in the real world is at most 64"):
        lab.scaling(Experiment(), workers=(1, 128))
    with pytest.raises(ValueError, match=r"workers: got \[4, 4\], allowed are two numbers or more"):
        lab.scaling(Experiment(), workers=(4, 4))


def test_a_run_that_fails_is_named(monkeypatch):
    def launch(experiment):
        raise BadExperiment("cluster.device: got 'cuda'")

    monkeypatch.setattr(sweep, "launch", launch)
    with pytest.raises(JobFailed, match="workers=1, ring: cluster.device: got 'cuda'"):
        lab.scaling(BASE, workers=(1, 2))
