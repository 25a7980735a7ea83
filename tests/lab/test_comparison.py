"""The panel that runs several experiments and draws one figure and one table."""

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import JobFailed
from dlpar.lab import compare, theme
from lab.folders import ThreadJob, until

SYNCS = ("ring", {"scheme": "ps", "consistency": "asp"}, "gossip")
EXPERIMENTS = [Experiment(workers=2, steps=20, sync=sync) for sync in SYNCS]


@pytest.fixture
def launched(monkeypatch):
    jobs = []

    def launch(experiment):
        jobs.append(ThreadJob(experiment))
        return jobs[-1]

    monkeypatch.setattr(dlpar, "launch", launch, raising=False)
    return jobs


def test_all_run_one_after_the_other_and_their_figures_are_in_the_table(launched):
    comparison = compare(EXPERIMENTS, goal=0.9)
    assert not comparison.runs and "not yet run" in comparison._table.value
    runs = comparison.run().wait(30)
    assert [run.experiment for run in runs] == EXPERIMENTS == [job.run.experiment for job in launched]
    table = comparison.table
    assert list(table["run"]) == ["ring", "ps asp", "gossip ring"]
    assert list(table["consistency"]) == ["bsp", "asp", "bsp"]
    for row, run in zip(table.to_dict("records"), runs):
        summary = run.summary
        assert row["final loss"] == summary["final_loss"] and row["MB sent"] == summary["bytes_sent"] / 1e6
        assert row["staleness mean"] == summary["staleness"]["mean"]
        lead = summary["lead"]["max"]  # of synchronous gossip it is not known
        assert row["lead max"] == lead if lead is not None else row["lead max"] != row["lead max"]
        assert row["to 90% (s)"] == summary["time_to_accuracy"]["0.9"]
    assert "ps asp" in comparison._table.value and "2 of 3" not in comparison._status.words.value


def test_one_figure_has_a_curve_of_each_in_its_schemes_colour(launched):
    comparison = compare(EXPERIMENTS, x="bytes")
    comparison.run().wait(30)
    plot = comparison._figure.plot
    assert plot.x == "MB sent" and plot.caption.startswith("At the end: ring loss")
    styles = [plot.style(f"{n} loss") for n in range(3)]
    assert [s["line"]["color"] for s in styles] == [theme.SCHEMES[s] for s in ("ring", "ps", "gossip")]
    assert [s["name"] for s in styles] == ["ring", "ps asp", "gossip ring"]
    for n, run in enumerate(comparison.runs):
        rows = plot.series(f"{n} loss").rows
        assert rows[:, 0].tolist() == list(range(20))
        assert rows[-1, -1] == pytest.approx(run.curve["loss"].iloc[-1])


def test_runs_of_one_scheme_differ_in_dash_and_symbol_and_simulation_makes_no_symbol_faint(launched):
    worlds = ("real", "simulated")
    alike = [Experiment(workers=n, steps=5, cluster={"world": world}) for n in (1, 2) for world in worlds]
    comparison = compare(alike)
    comparison.run().wait(30)
    styles = [comparison._figure.plot.style(f"{n} loss") for n in range(4)]
    assert len({s["line"]["dash"] for s in styles}) == len({s["marker"]["symbol"] for s in styles}) == 4
    assert theme.PREDICTED["dash"] not in {s["line"]["dash"] for s in styles}
    assert {s["marker"]["color"] for s in styles} == {theme.SCHEMES["ring"]}
    assert [s["line"]["width"] for s in styles] == [2, 5, 2, 5]


def test_it_can_be_run_again(launched):
    comparison = compare(EXPERIMENTS[:2])
    comparison.run().wait(30)
    comparison.run().wait(30)
    assert len(launched) == 4 and comparison.runs[0].id == launched[2].run.id
    assert sorted(comparison._figure.plot._traces) == ["0 loss", "0 test", "1 loss", "1 test"]


def test_stop_ends_the_present_run_and_starts_no_other(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)
    comparison = compare([Experiment(workers=1, steps=1000), Experiment(workers=2, steps=1000)]).run()
    with pytest.raises(RuntimeError, match="still running"):
        comparison.run()
    with pytest.raises(TimeoutError, match=r"still running after 0\.1 s"):
        comparison.wait(0.1)
    until(lambda: comparison._figure.steps.done > 2)
    comparison.stop()
    until(lambda: not comparison.running)
    assert len(comparison.runs) == 1
    assert "(stopped)" in comparison._table.value and "not yet run" in comparison._table.value
    with pytest.raises(JobFailed, match="workers=1: stopped by its owner"):
        comparison.wait(1)


def test_a_launch_that_fails_halfway_is_told(monkeypatch, launched):
    first = dlpar.launch
    monkeypatch.setattr(dlpar, "launch", lambda e: first(e) if not launched else 1 / 0)
    comparison = compare(EXPERIMENTS).run()
    with pytest.raises(JobFailed, match="ps asp was not run: ZeroDivisionError"):
        comparison.wait(30)
    assert "ZeroDivisionError" in comparison._alert.value and not comparison._run.disabled


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (([Experiment()],), "experiments: got 1, allowed are two or more"),
        (([Experiment(), Experiment(model="linear", data="diabetes")],), "allowed is one kind of task"),
        (([Experiment(), {"workers": 2}],), "experiments: got {'workers': 2}, allowed are experiments only"),
        (([Experiment()] * 2, ["a"]), "titles: got 1, allowed is one for each of 2"),
        (
            ([Experiment()] * 2, None, "", "hours"),
            "x: got 'hours', allowed is one of step, samples, seconds, bytes",
        ),
        (([Experiment()] * 2, None, "", "step", 95), "goal: got 95"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        compare(*arguments)
