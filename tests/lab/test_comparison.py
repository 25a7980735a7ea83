"""The panel that runs several experiments and draws one figure and one table."""

from threading import Event, Thread

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import JobFailed
from dlpar.lab import compare, theme
from lab.folders import ThreadJob, until
from lab.readers import Reader

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


def ran(comparison):
    """Run it, and wait until all is told."""
    runs = comparison.run().wait(30)
    comparison._watch.join(10)
    return runs


def test_all_run_one_after_the_other_and_their_results_are_in_the_table(launched):
    comparison = compare(EXPERIMENTS, goal=0.9)
    page = Reader(comparison)
    assert not comparison.runs and page.state["runs"] == []
    runs = ran(comparison)
    assert [run.experiment for run in runs] == EXPERIMENTS == [job.run.experiment for job in launched]
    table = comparison.table
    assert list(table["run"]) == ["ring", "ps asp", "gossip ring"]
    assert table["to goal (s)"].notna().all()
    for row, run in zip(table.to_dict("records"), runs):
        summary = run.summary
        assert row["final loss"] == summary["final_loss"] and row["MB sent"] == summary["bytes_sent"] / 1e6
        assert row["staleness mean"] == summary["staleness"]["mean"]
        lead = summary["lead"]["max"]  # of synchronous gossip it is not known
        assert row["lead max"] == lead if lead is not None else row["lead max"] != row["lead max"]
        assert row["to goal (s)"] == summary["time_to_accuracy"]["0.9"]
    assert [run["name"] for run in page.state["runs"]] == ["ring", "ps asp", "gossip ring"]
    assert all(run["results"] for run in page.state["runs"])
    assert page.state["words"].startswith("3 of 3, gossip ring: done: 20 steps")
    page.assert_like_the_kernel()


def test_every_figure_has_each_run_in_its_schemes_colour(launched):
    comparison = compare(EXPERIMENTS, x="bytes")
    page = Reader(comparison)
    runs = ran(comparison)
    convergence = page.figures["Convergence"]
    assert convergence.x == "MB sent" and convergence.caption.startswith("At the last step of each run: ring")
    colours = [theme.SCHEMES[scheme] for scheme in ("ring", "ps", "gossip")]
    assert [run["colour"] for run in page.state["runs"]] == colours
    for title, name in {"Convergence": "loss", "Throughput": "all", "Staleness": "mean"}.items():
        styles = [page.figures[title].traces[f"{run.id} {name}"]["style"] for run in runs]
        assert [style["line"]["color"] for style in styles] == colours, title
    for run in runs:
        rows = convergence.curves[f"{run.id} loss"].T
        assert rows[:, 0].tolist() == list(range(20))
        assert rows[-1, -1] == pytest.approx(run.curve["loss"].iloc[-1])


def test_runs_of_one_scheme_have_a_colour_dash_and_symbol_each_and_only_lines_of_simulations_are_faint(
    launched,
):
    worlds = ("real", "simulated")
    alike = [Experiment(workers=n, steps=5, cluster={"world": world}) for n in (1, 2) for world in worlds]
    comparison = compare(alike)
    page = Reader(comparison)
    runs = ran(comparison)
    traces = page.figures["Convergence"].traces
    styles = [traces[f"{run.id} loss"]["style"] for run in runs]
    assert len({s["marker"]["symbol"] for s in styles}) == 4
    measured = [s["line"]["dash"] for s in styles[::2]]
    assert len(set(measured)) == 2 and theme.PREDICTED["dash"] not in measured
    assert [s["marker"]["color"] for s in styles] == list(theme.RUNS[:4])
    assert [s["line"]["width"] for s in styles] == [2, 5, 2, 5]


def test_the_sentence_of_throughputs_has_the_ratios(launched):
    comparison = compare([Experiment(workers=n, steps=20) for n in (1, 2)])
    page = Reader(comparison)
    ran(comparison)
    caption = page.figures["Throughput"].caption
    assert caption.startswith("workers=1: ") and "workers=2: " in caption and " times as many." in caption


def test_many_runs_all_stay(launched):
    comparison = compare([Experiment(workers=1, steps=3, seed=seed) for seed in range(8)])
    page = Reader(comparison)
    runs = ran(comparison)
    assert [run["key"] for run in page.state["runs"]] == [run.id for run in runs]
    assert {f"{run.id} loss" for run in runs} <= page.figures["Convergence"].curves.keys()


def test_it_can_be_run_again(launched):
    comparison = compare(EXPERIMENTS[:2])
    page = Reader(comparison)
    ran(comparison)
    ran(comparison)
    assert len(launched) == 4 and comparison.runs[0].id == launched[2].run.id
    keys = [f"{run.id} {name}" for run in comparison.runs for name in ("loss", "test")]
    assert list(page.figures["Convergence"].curves) == keys
    assert [run["colour"] for run in page.state["runs"]] == [theme.SCHEMES["ring"], theme.SCHEMES["ps"]]


def test_stop_ends_the_present_run_and_starts_no_other(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)
    comparison = compare([Experiment(workers=1, steps=1000), Experiment(workers=2, steps=1000)])
    page = Reader(comparison)
    page.do(do="run")
    page.do(do="run")
    assert "still running" in page.state["message"]
    with pytest.raises(TimeoutError, match=r"still running after 0\.1 s"):
        comparison.wait(0.1)
    until(lambda: page.state["done"] > 2)
    page.do(do="stop")
    until(lambda: not comparison.running)
    assert len(comparison.runs) == 1
    until(lambda: page.state["words"].startswith("1 of 2, workers=1: stopped after"))
    with pytest.raises(JobFailed, match="workers=1: stopped by its owner"):
        comparison.wait(1)


def test_stop_during_the_launch_of_the_next_run_is_not_lost(monkeypatch, launched):
    first, begun, go_on = dlpar.launch, Event(), Event()

    def launch(experiment):
        if launched:
            begun.set()
            assert go_on.wait(10)
        return first(experiment)

    monkeypatch.setattr(dlpar, "launch", launch)
    comparison = compare(EXPERIMENTS)
    comparison.run()
    assert begun.wait(10)
    stops = Thread(target=comparison.stop)
    stops.start()
    stops.join(0.2)
    go_on.set()
    stops.join(10)
    until(lambda: not comparison.running)
    assert len(comparison.runs) == len(launched) == 2


def test_a_launch_that_fails_halfway_is_told(monkeypatch, launched):
    first = dlpar.launch
    monkeypatch.setattr(dlpar, "launch", lambda e: first(e) if not launched else 1 / 0)
    comparison = compare(EXPERIMENTS)
    page = Reader(comparison)
    comparison.run()
    with pytest.raises(JobFailed, match="ps asp was not run: ZeroDivisionError"):
        comparison.wait(30)
    until(lambda: "ZeroDivisionError" in page.state["message"] and not page.state["busy"])


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
