import json
import time

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.run import Run
from dlpar.lab import cell
from dlpar.lab.controls import Controls, settings
from dlpar.lab.panel import Panel, foreseen, messages
from lab.folders import ThreadJob, end, finished, new_folder, until


@pytest.fixture
def launched(monkeypatch):
    """Experiments that were launched; each is written at once by a thread."""
    jobs = []

    def launch(experiment):
        jobs.append(ThreadJob(experiment))
        return jobs[-1]

    monkeypatch.setattr(dlpar, "launch", launch, raising=False)
    return jobs


def words(panel):
    return panel._status.words.value


def test_every_field_has_a_control_that_says_what_it_means():
    controls = Controls(Experiment(), lambda: None)
    for path, field, *_ in settings(Experiment()):
        widget = controls.widgets[path]
        assert field.description in widget.tooltip and "Allowed:" in widget.tooltip, path
        assert widget.description, path
    assert controls.experiment() == Experiment()


def test_controls_give_back_any_experiment():
    odd = Experiment(
        workers=3,
        model={"width": 64},
        cluster={"threads": 2},
        evaluate_every=7,
        sync={"overlap": True},
        lr=0.03,
    )
    assert Controls(odd, lambda: None).experiment() == odd


def test_run_ends_with_what_was_measured(launched):
    panel = Panel(Experiment(workers=2, steps=50))
    job = panel.run()
    until(lambda: not panel.running)
    assert job is launched[0] is panel.job and [r.id for r in panel.runs] == [job.run.id]
    assert words(panel).startswith("done: 50 steps") and "held-out accuracy" in words(panel)
    assert panel._status.bar.value == 50
    assert len(panel._board.convergence.loss) == 50
    assert not panel._run.disabled and panel._stop.disabled


def test_second_run_is_compared_with_the_first(launched):
    panel = Panel(Experiment(workers=2, steps=20))
    panel.run()
    until(lambda: not panel.running)
    panel._controls.widgets["workers"].value = 4
    panel.run()
    until(lambda: not panel.running)
    first, second = panel.runs[1].id, panel.runs[0].id
    plot = panel._board.convergence.plot
    assert plot.style(f"{first} loss")["name"] == "workers=2"
    assert plot.style(f"{second} loss")["name"] == "this run: workers=4"
    assert "all saw the same batches" in panel._status.facts.value
    panel.clear_earlier()
    assert list(plot._traces) == [f"{second} loss", f"{second} test"]


def test_facts_are_always_there(launched):
    panel = Panel(Experiment(workers=2, steps=5))
    for name in ("world", "platform", "clock", "slip"):
        assert f"<b>{name}</b>" in panel._status.facts.value
    panel.run()
    until(lambda: not panel.running)
    assert "cpu, mpi, 1 thread a rank" in panel._status.facts.value


@pytest.mark.parametrize(
    "field, value", [("workers", 0), ("lr", -1.0), ("steps", 0), ("cluster.threads", "many"), ("batch", 2)]
)
def test_bad_value_is_explained_and_refused(launched, field, value):
    panel = Panel()
    panel._controls.widgets[field].value = value
    assert f"{field}: got" in panel._alert.value and "allowed" in panel._alert.value
    assert panel._run.disabled
    with pytest.raises(BadExperiment):
        panel.run()
    assert launched == [] and panel.job is None


def test_message_is_escaped(launched):
    panel = Panel()
    panel._controls.widgets["cluster.threads"].value = "<script>alert(1)</script>"
    assert "<script>" not in panel._alert.value and "&lt;script&gt;" in panel._alert.value


def test_launch_that_fails_is_told_in_the_panel_and_raises_nothing(monkeypatch):
    def refuse(experiment):
        raise BadExperiment("cluster.device: got 'cuda', allowed here is auto or cpu")

    monkeypatch.setattr(dlpar, "launch", refuse, raising=False)
    panel = Panel()
    panel._run.click()
    assert "cluster.device: got &#x27;cuda&#x27;" in panel._alert.value
    assert not panel.running and not panel._run.disabled


def test_one_job_at_a_time(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)
    panel = Panel(Experiment(workers=1, steps=1000))
    panel.run()
    with pytest.raises(RuntimeError, match="still running"):
        panel.run()
    panel.stop()
    until(lambda: not panel.running)
    assert words(panel).startswith("stopped after")
    panel.stop()


def test_failed_run_shows_reason_and_tracebacks_by_rank(monkeypatch):
    class Failed(ThreadJob):
        def __init__(self, experiment):
            folder = new_folder(experiment)
            (folder / "log.txt").write_text("[rank 0] reading <b>data</b>\n")
            traceback = "Traceback\n  line\nValueError: bad\n"
            error = {"k": "error", "t": 0.1, "type": "ValueError", "message": "bad", "traceback": traceback}
            (folder / "rank-1.jsonl").write_text(json.dumps(error) + "\n")
            end(folder, "failed", "rank 1 raised ValueError: bad")
            self.run = Run(folder)

    monkeypatch.setattr(dlpar, "launch", Failed, raising=False)
    panel = Panel(Experiment(workers=2))
    panel.run()
    until(lambda: not panel.running)
    assert words(panel) == "failed after 0 of 200 steps — rank 1 raised ValueError: bad"
    assert (
        "[rank 1] ValueError: bad" in panel._status.log.value
        and "[rank 0] reading &lt;b&gt;" in panel._status.log.value
    )
    assert panel._more_box.selected_index == 1
    assert panel._status.bar.bar_style == "danger"
    assert all(plot.caption for plot in panel._board.plots.values())


def test_controls_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="controls: got 'worker', allowed are .*workers"):
        Panel(controls=("worker",))


def test_first_screen_has_the_question_three_controls_and_one_figure():
    panel = Panel(question="Is it <faster>?", title="Lab")
    head, first, *_, tabs, more = panel.children
    assert "Is it &lt;faster&gt;?" in head.value
    assert [w.description for w in first.children] == [
        "workers",
        "steps",
        "lr",
        "Run",
        "Stop",
        "Clear earlier runs",
    ]
    assert tabs.titles == ("Convergence", "Throughput", "Staleness", "Timeline", "Waiting")
    assert more.selected_index is None
    rest = sum(len(found) for found in panel._controls.groups(("workers", "steps", "lr")).values())
    assert rest == len(panel._controls.widgets) - 3


def test_the_figure_in_front_is_the_one_the_question_is_about_and_stays_there(launched):
    panel = Panel(Experiment(workers=2, steps=5), first="Timeline")
    assert panel._tabs.titles[panel._tabs.selected_index] == "Timeline"
    panel.choose("sync.scheme", "gossip")
    panel.run()
    until(lambda: not panel.running)
    assert "Consensus" in panel._tabs.titles and panel._tabs.titles[panel._tabs.selected_index] == "Timeline"
    with pytest.raises(ValueError, match="first: got 'Consensus', allowed is one of Convergence, .*Waiting"):
        Panel(first="Consensus")


def test_running_a_cell_again_closes_its_panel_and_stops_the_job(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)
    execution = iter(("first", "first", "second"))
    monkeypatch.setattr(cell, "this_cell", lambda: ("cell", next(execution)))
    one, beside = Panel(Experiment(workers=1, steps=1000)), Panel()
    job = one.run()
    Panel()
    assert job.stopped and one.comm is None and beside.comm is None
    until(lambda: not one._watch.is_alive())


def test_panel_can_be_closed_while_nothing_runs():
    panel = Panel()
    panel.close()
    time.sleep(0.01)
    assert panel.comm is None


def test_a_recording_is_played_back_marked_as_one_and_can_be_stopped(launched):
    kept = finished(workers=2, steps=50)
    panel = Panel(Experiment(workers=4))
    panel.replay(kept.id, 1000)
    until(lambda: not panel.running)
    assert words(panel).startswith(f"Recording of {kept.id}, at 1000 times its speed: done: 50 steps")
    assert panel.job is None and launched == [] and len(panel._board.convergence.loss) == 50
    panel.replay(kept, 0.001)
    with pytest.raises(RuntimeError, match="a recording is still running"):
        panel.run()
    panel.stop()
    assert not panel.running and "stopped after" in words(panel)
    with pytest.raises(ValueError, match="speed: got 0"):
        panel.replay(kept, 0)


def test_who_waits_long_for_slots_is_offered_a_simulation_and_a_recording(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    kept = finished(workers=4, steps=20)
    started = []

    class Queued(ThreadJob):
        """Waits for slots until it is stopped, or simulates."""

        def __init__(self, experiment):
            started.append(experiment)
            if experiment.cluster.world == "simulated":
                return super().__init__(experiment)
            folder = new_folder(experiment)
            self.run, self._folder = Run(folder), folder
            queued = {"k": "queued", "at": 0, "ahead": 2, "paused": False}
            (folder / "job.jsonl").write_text(json.dumps(queued) + "\n")

        def stop(self):
            if started[-1].cluster.world != "simulated":
                end(self._folder, "stopped", "stopped by its owner")

    monkeypatch.setattr(dlpar, "launch", Queued, raising=False)
    monkeypatch.setattr("dlpar.lab.recordings.PATIENCE", 0.3)
    panel = Panel(Experiment(workers=4, steps=30))
    panel.run()
    until(lambda: "queued, 2 ahead" in words(panel))
    until(lambda: panel._meanwhile.layout.display is None)
    _, simulate, record = panel._meanwhile.children
    record.click()
    until(lambda: f"Recording of {kept.id}" in words(panel) and panel._meanwhile.layout.display == "none")
    panel.leave()
    panel.run()
    until(lambda: panel._meanwhile.layout.display is None)
    simulate.click()
    until(lambda: started[-1].cluster.world == "simulated" and "done: 30 steps" in words(panel))


# ---- a long simulation is announced -----------------------------------------------

SIZES = {"world": "simulated", "messages": "sizes", "platform": "k80-1gbe"}
MANY = Experiment(workers=512, scaling="weak", steps=20, cluster=SIZES)


def test_a_step_with_servers_is_a_push_and_an_answer_for_each_and_leaves_take_some_off():
    ps = MANY.replace(steps=1, sync={"scheme": "ps", "servers": 2})
    assert messages(ps) == 512 * 2 * 2 and messages(ps.replace(sync={"pull": "separate"})) == 512 * 2 * 3
    assert messages(ps.replace(sync={"groups": 8})) == 2 * (512 + 8 * 2)


def test_a_ring_of_512_for_20_steps_is_said_to_take_a_while():
    assert messages(MANY) == 20 * 2 * 512 * 511
    assert foreseen(MANY) == "This simulation sends about 10.5 million messages and takes about 30 s."
    assert Panel(MANY)._alert.value == ""
    panel = Panel(MANY)
    panel._controls.widgets["steps"].value = 1000
    assert "about 523.3 million messages and takes about 29 min." in panel._alert.value


def test_of_short_and_of_real_runs_nothing_is_said():
    assert foreseen(MANY.replace(steps=1)) == ""
    assert foreseen(Experiment(steps=1_000_000)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "sync",
    ["ring", {"scheme": "ring", "allreduce": "tree"}, "mapreduce", {"scheme": "gossip", "topology": "exp2"}],
)
def test_as_many_messages_are_sent_as_were_foreseen(sync):
    experiment = Experiment(
        workers=8,
        steps=2,
        sync=sync,
        model={"name": "linear"},
        data="diabetes",
        batch=64,
        cluster={"world": "simulated", "messages": "sizes"},
    )
    run = dlpar.launch(experiment).wait(60)
    sent = sum(record["messages"] for _, record in run.records() if record["k"] == "step")
    assert sent == messages(experiment)
