"""The speed of settings before Run, simulated by sizes beside the kernel."""

import threading

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab import panel as module
from dlpar.lab.panel import MESSAGES_A_SECOND, TOO_LONG, Foreseen, Ghost, Panel, simulated
from dlpar.theory import predict
from lab.folders import ThreadJob, until
from lab.readers import Reader

SIMULATED = {"world": "simulated"}


@pytest.fixture
def patient(monkeypatch):
    """Other tests may hold the cores for longer than a student would wait."""
    monkeypatch.setattr(module, "TOO_LONG", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("world", ["simulated", "paced"])
def test_the_rate_is_that_of_the_closed_form_where_that_is_exact(world):
    experiment = Experiment(workers=4, cluster={"world": world, "platform": "cpu-10gbe"})
    found = predict(experiment)
    assert found.kind == "exact"
    assert simulated(experiment).rate == pytest.approx(experiment.global_batch / found.seconds, rel=1e-3)


def test_where_sizes_do_not_suffice_there_is_no_rate():
    assert simulated(Experiment(workers=2, cluster={"world": "real"})).rate is None
    hogwild = Experiment(workers=2, sync="hogwild", model="logistic")
    told = []
    panel = type("Seen", (), {"foresee": lambda self, *found: told.append(found)})()
    Ghost(panel).want(hogwild)
    until(lambda: told)
    assert told == [(hogwild, Foreseen())]


@pytest.mark.usefixtures("patient")
def test_the_time_of_a_whole_simulation_is_foreseen_from_its_messages():
    ring = Experiment(workers=16, scaling="weak", steps=200, cluster={**SIMULATED, "messages": "sizes"})
    sent = 200 * 2 * 16 * 15  # one bucket
    assert simulated(ring).seconds == pytest.approx(sent / MESSAGES_A_SECOND["sizes"])
    with_values = ring.replace(cluster={"messages": "values"})
    assert simulated(with_values).seconds == pytest.approx(sent / MESSAGES_A_SECOND["values"])


def test_of_several_changes_the_newest_is_shown(monkeypatch):
    first, go_on = threading.Event(), threading.Event()

    def slowly(experiment):
        first.set()
        assert go_on.wait(10)
        return Foreseen(float(experiment.workers))

    monkeypatch.setattr(module, "simulated", slowly)
    told = []
    panel = type("Seen", (), {"foresee": lambda self, *found: told.append(found)})()
    ghost, wanted = Ghost(panel), [Experiment(workers=n, cluster=SIMULATED) for n in (1, 2, 3)]
    ghost.want(wanted[0])
    assert first.wait(10)
    for each in wanted[1:]:
        ghost.want(each)
    go_on.set()
    until(lambda: told)
    assert told == [(wanted[2], Foreseen(3.0))]
    ghost.want(None)
    until(lambda: len(told) == 2)
    assert told[-1] == (None, Foreseen())


def test_a_control_that_is_changed_draws_a_faint_line_before_anything_runs(monkeypatch):
    monkeypatch.setattr(module, "simulated", lambda experiment: Foreseen(1000.0 * experiment.workers))
    page = Reader(panel := Panel(Experiment(workers=2, cluster=SIMULATED)))
    assert page.state["ghost"] == ""
    page.do(do="set", path="workers", value="8")
    until(lambda: page.state["ghost"] == "8,000 samples/s")
    figure = page.figures["Throughput"]
    assert figure.traces["ghost"]["style"]["name"] == "simulated"
    assert figure.traces["ghost"]["style"]["line"]["color"].startswith("rgba")
    assert set(figure.curves["ghost"][1]) == {8000.0} and figure.layout["yaxis"]["range"][1] > 8000
    assert not panel.running and panel.runs == []
    page.do(do="set", path="workers", value="0")
    until(lambda: page.state["ghost"] == "")
    assert "ghost" not in page.figures["Throughput"].traces
    page.assert_like_the_kernel()


def test_while_ranks_are_measured_nothing_is_simulated(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)
    asked = []
    monkeypatch.setattr(Ghost, "want", lambda self, experiment: asked.append(experiment))
    page = Reader(panel := Panel(Experiment(workers=1, steps=1000)))
    panel.run()
    page.do(do="set", path="workers", value="2")
    panel.leave()
    assert asked == [None]  # the speed of other settings is withdrawn
    page.do(do="set", path="workers", value="3")
    assert [experiment.workers for experiment in asked[1:]] == [3]


def test_a_refusal_to_run_stays_when_a_simulation_ends():
    page = Reader(panel := Panel(Experiment(workers=1, steps=1000)))
    panel.foresee(panel.experiment, Foreseen(5.0, 1e6))
    panel.tell(message=(refusal := "workers: 9 need about 0.2 GB of memory, 0.1 GB is left: 4 would fit"))
    panel.foresee(panel.experiment, Foreseen(5.0, 1e6))
    assert page.state["message"] == refusal


def test_a_long_simulation_is_announced_and_may_be_run(monkeypatch):
    def never(socket, folder):
        raise TimeoutError

    monkeypatch.setattr(module, "_fork", never)
    many = Experiment(workers=512, scaling="weak", steps=30, cluster={**SIMULATED, "messages": "sizes"})
    assert simulated(many) == Foreseen(None, 10 * TOO_LONG)
    page = Reader(Panel(many))
    page.do(do="set", path="steps", value="300")
    until(lambda: page.state["message"] == "This simulation takes 3 min 20 s or more.")
    assert page.state["wrong"] is None and page.state["ghost"] == ""
    page.do(do="set", path="steps", value="3")
    until(lambda: page.state["message"] == "")
