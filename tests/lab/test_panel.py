"""The panel: one widget that launches jobs, follows them, and compares them with earlier ones."""

import gc
import json
import sys
import threading
import time

import pytest
from ipywidgets.widgets.widget import _instances

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.run import NoSuchRun, Run
from dlpar.jobs.tail import lines_of
from dlpar.lab import page as page_module
from dlpar.lab import predict, prediction, theme
from dlpar.lab import run_page as module
from dlpar.lab.panel import Panel
from dlpar.lab.run_page import GOAL, KEPT
from lab.folders import ThreadJob, end, finished, new_folder, until
from lab.readers import Reader


@pytest.fixture
def launched(monkeypatch):
    """Experiments that were launched; each is written at once by a thread."""
    jobs = []

    def launch(experiment):
        jobs.append(ThreadJob(experiment))
        return jobs[-1]

    monkeypatch.setattr(dlpar, "launch", launch, raising=False)
    return jobs


@pytest.fixture
def slowly(monkeypatch):
    """Jobs that go on until they are stopped."""
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)


def words(panel):
    return panel.state["words"]


def ran(panel, **fields):
    """Set fields, run, and wait until all is told."""
    for name, value in fields.items():
        panel.choose(name, value)
    panel.run()
    panel._watch.join(20)
    assert not panel.running
    return panel.runs[0]


def test_a_panel_is_one_model():
    before = set(_instances)
    panel = Panel(Experiment(workers=4))
    new = [type(_instances[key]).__name__ for key in set(_instances) - before]
    assert sorted(new) == ["Layout", "Panel"]
    panel.close()


def test_run_ends_with_what_was_measured(launched):
    panel = Panel(Experiment(workers=2, steps=50))
    page = Reader(panel)
    page.do(do="run")
    until(lambda: not page.state["busy"])
    job = launched[0]
    assert job is panel.job and [r.id for r in panel.runs] == [job.run.id]
    assert page.state["words"].startswith("done: 50 steps") and "held-out accuracy" in page.state["words"]
    assert (page.state["done"], page.state["status"], page.state["stoppable"]) == (50, "done", False)
    assert len(page.figures["Convergence"].curves[f"{job.run.id} loss"][0]) == 50
    page.assert_like_the_kernel()


def test_a_page_that_is_loaded_at_any_moment_is_right_at_once(launched):
    panel = Panel(Experiment(workers=3, steps=300, sync={"scheme": "ps", "consistency": "asp"}))
    page = Reader(panel)
    page.do(do="run")
    while page.state["busy"]:
        page.ask("all")
        time.sleep(0.002)
    page.assert_like_the_kernel()


# ---- several runs ------------------------------------------------------------------


def test_second_run_is_compared_with_the_first(launched):
    panel = Panel(Experiment(workers=2, steps=20))
    page = Reader(panel)
    first, second = ran(panel), ran(panel, workers="4")
    for title, name in {"Convergence": "loss", "Throughput": "all", "Staleness": "mean"}.items():
        curves = page.figures[title].curves
        assert {f"{first.id} {name}", f"{second.id} {name}"} <= curves.keys(), title
        assert len(curves[f"{first.id} {name}"][0]), title
    names = [run["name"] for run in page.state["runs"]]
    assert names == ["workers=2", "workers=4"]
    traces = page.figures["Convergence"].traces
    assert traces[f"{first.id} loss"]["style"]["name"] == "workers=2"
    assert ("batches", "the same in all runs") in [tuple(fact) for fact in page.state["facts"]]
    assert " times as many" in page.figures["Throughput"].caption
    page.do(do="clear")
    assert set(page.figures["Convergence"].curves) == {f"{second.id} loss", f"{second.id} test"}
    assert page.state["runs"] == []
    page.assert_like_the_kernel()


def test_after_clear_no_figure_speaks_of_earlier_runs(launched):
    panel = Panel(Experiment(workers=2, steps=20))
    page = Reader(panel)
    ran(panel), ran(panel, workers="4")
    for title in ("Convergence", "Throughput", "Waiting"):
        assert "workers=2" in page.figures[title].caption, title
    page.do(do="clear")
    for title, figure in page.figures.items():
        assert "workers=2" not in figure.caption, title
    assert "workers=2" not in json.dumps(page.figures["Waiting"].layout["yaxis"]["ticktext"])


def test_every_run_has_one_colour_in_all_figures_and_in_the_table(launched):
    panel = Panel(Experiment(workers=2, steps=20))
    page = Reader(panel)
    made = [ran(panel, workers=str(n)) for n in (1, 2, 3)]
    colours = {run["key"]: run["colour"] for run in page.state["runs"]}
    assert list(colours.values()) == list(theme.RUNS[:3])
    for title, name in {"Convergence": "loss", "Throughput": "all", "Staleness": "mean"}.items():
        traces = page.figures[title].traces
        for run in made:
            assert traces[f"{run.id} {name}"]["style"]["line"]["color"] == colours[run.id], title


def test_the_page_gets_the_results_of_each_run_for_its_table(launched):
    panel = Panel(Experiment(workers=2, steps=20))
    ran(panel), ran(panel, workers="4")
    assert panel.state["goal"] == GOAL
    for row, run in zip(panel.state["runs"], reversed(panel.runs)):
        assert row["results"]["samples/s"] == run.summary["samples_per_s"]


def test_a_run_that_was_stopped_says_so_in_the_table(launched, monkeypatch):
    panel = Panel(Experiment(workers=2, steps=1000))
    ran(panel, steps="20")
    monkeypatch.setattr(dlpar, "launch", lambda e: ThreadJob(e, pace=20), raising=False)
    panel.choose("steps", "1000")
    panel.run()
    until(lambda: panel.state["done"] > 1)
    panel.stop()
    until(lambda: not panel.running)
    assert panel.state["runs"][1]["name"].endswith("(stopped)")


def test_number_of_earlier_runs_is_bounded(launched):
    panel = Panel(Experiment(workers=1, steps=3))
    for seed in range(KEPT + 3):
        ran(panel, seed=str(seed))
    assert len(panel.state["runs"]) == KEPT + 1
    assert len(panel.figures["Convergence"].runs) == KEPT + 1
    assert len({run["colour"] for run in panel.state["runs"]}) == KEPT + 1


def test_runs_of_another_kind_of_task_are_not_compared(launched):
    panel = Panel(Experiment(workers=2, steps=10))
    ran(panel)
    panel.show(Experiment(workers=2, steps=10, model="linear", data="diabetes"))
    squares = ran(panel)
    assert list(panel.figures["Convergence"].runs) == [squares.id] and panel.state["runs"] == []


def test_a_figure_that_comes_back_has_the_runs_that_were_in_it(launched):
    panel = Panel(Experiment(workers=2, steps=20, sync={"scheme": "ps", "consistency": "asp"}))
    page = Reader(panel)
    first = ran(panel)
    ran(panel, **{"sync.scheme": "ring"})
    assert "Lead" not in page.state["tabs"]
    page.ask("all")
    second = ran(panel, **{"sync.scheme": "ps"})
    assert {f"{run.id} mean" for run in (first, second)} <= page.figures["Lead"].curves.keys()
    page.assert_like_the_kernel()


def test_a_students_prediction_stands_in_the_throughput_and_its_sentence(launched, monkeypatch):
    monkeypatch.setattr(prediction, "_answers", {})
    asked = predict("speed", "How many times faster?", unit="times", low=1, high=16)
    asked.hear({"value": "3"})
    panel = Panel(Experiment(workers=1, steps=40), prediction=asked)
    page = Reader(panel)
    ran(panel), ran(panel, workers="4")
    figure = page.figures["Throughput"]
    assert figure.caption.endswith("You said 3 times.") and len(figure.curves["asked"][0]) == 2


def test_clear_during_a_run_does_not_disturb_it(launched, slowly):
    panel = Panel(Experiment(workers=2, steps=20))
    page = Reader(panel)
    module.dlpar.launch = ThreadJob
    for seed in range(4):
        ran(panel, seed=str(seed))
    panel.choose("steps", "4000")
    panel.run()
    page.do(do="clear")
    panel._watch.join(20)
    assert page.state["status"] == "done"
    page.assert_like_the_kernel()


# ---- controls and their faults -------------------------------------------------------


def test_the_page_gets_fields_values_and_what_is_hidden():
    panel = Panel(Experiment(workers=2), question="Is it <faster>?", title="Lab")
    state = Reader(panel).state
    assert (state["title"], state["question"]) == ("Lab", "Is it <faster>?")
    assert [field["path"] for field in state["fields"] if field["first"]] == ["workers", "steps", "lr"]
    assert state["actions"] == ["run", "stop", "clear"]
    assert state["tabs"] == ["Convergence", "Throughput", "Staleness", "Timeline", "Waiting"]
    assert "sync.staleness" in state["hidden"] and state["values"]["workers"] == "2"


@pytest.mark.parametrize(
    "field, value",
    [("workers", "0"), ("lr", "-1.0"), ("steps", ""), ("cluster.threads", "many"), ("batch", "2")],
)
def test_bad_value_is_explained_refused_and_its_field_marked(launched, field, value):
    panel = Panel()
    page = Reader(panel)
    page.do(do="set", path=field, value=value)
    assert f"{field}: got" in page.state["message"] and "allowed" in page.state["message"]
    assert page.state["wrong"] == field
    with pytest.raises(BadExperiment):
        panel.run()
    assert launched == [] and panel.job is None
    page.do(
        do="set", path=field, value={"workers": "4", "lr": "0.1", "steps": "9", "batch": "64"}.get(field, "")
    )
    assert page.state["wrong"] is None and page.state["message"] == ""


def test_launch_that_fails_is_told_in_the_panel_and_raises_nothing(monkeypatch):
    def refuse(experiment):
        raise BadExperiment("cluster.device: got 'cuda', allowed here is auto or cpu")

    monkeypatch.setattr(dlpar, "launch", refuse, raising=False)
    panel = Panel()
    page = Reader(panel)
    page.do(do="run")
    assert page.state["message"].startswith("cluster.device: got 'cuda'")
    assert not panel.running and not page.state["busy"]


def test_controls_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="controls: got 'worker', allowed are .*workers"):
        Panel(controls=("worker",))
    with pytest.raises(ValueError, match="first: got 'Consensus', allowed is one of Convergence, .*Waiting"):
        Panel(first="Consensus")


def test_a_panel_that_was_refused_is_collected_in_silence(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    for refused in ({"controls": ("worker",)}, {"first": "None such"}):
        with pytest.raises(ValueError):
            Panel(**refused)
    gc.collect()
    assert seen == []


def test_the_figure_in_front_is_the_one_the_question_is_about_and_stays_there(launched):
    panel = Panel(Experiment(workers=2, steps=5), first="Timeline")
    page = Reader(panel)
    assert page.state["front"] == "Timeline"
    ran(panel, **{"sync.scheme": "gossip"})
    assert "Consensus" in page.state["tabs"] and page.state["front"] == "Timeline"
    page.do(do="front", figure="Consensus")
    assert page.state["front"] == "Consensus"
    page.do(do="front", figure="None such")
    assert panel.picture().layout.meta["caption"] == page.figures["Consensus"].caption
    ran(panel, **{"sync.scheme": "ring"})
    assert page.state["front"] == "Convergence", "the one in front is gone"


def test_the_horizontal_axis_that_is_chosen_stays_chosen(launched):
    panel = Panel(Experiment(workers=2, steps=5))
    page = Reader(panel)
    page.do(do="axis", figure="Convergence", x="seconds")
    ran(panel)
    page.ask("all")
    assert page.figures["Convergence"].x == "seconds"


# ---- a job -----------------------------------------------------------------------------


def test_facts_are_always_there(launched):
    panel = Panel(Experiment(workers=2, steps=5))
    names = [name for name, *_ in panel.state["facts"]]
    assert names == ["world", "platform"]
    ran(panel)
    assert "cpu, mpi, 1 thread a rank" in panel.state["facts"][1][1]


def test_one_job_at_a_time(slowly):
    panel = Panel(Experiment(workers=1, steps=1000))
    page = Reader(panel)
    panel.run()
    with pytest.raises(RuntimeError, match="still running"):
        panel.run()
    page.do(do="run")
    assert "still running" in page.state["message"]
    page.do(do="stop")
    until(lambda: not panel.running)
    assert words(panel).startswith("stopped after")
    panel.stop()


def test_the_next_run_may_begin_as_soon_as_the_job_is_done(launched, monkeypatch):
    drawn, finish = threading.Event(), module.Watch._finish
    monkeypatch.setattr(module.Watch, "_finish", lambda *which: drawn.wait(5) and finish(*which))
    panel = Panel(Experiment(workers=1, steps=5))
    first = panel.run()
    until(lambda: first.run.status == "done")
    assert panel.running
    threading.Timer(0.1, drawn.set).start()
    panel.run()
    assert len(panel.runs) == 2


def test_stop_is_answered_while_the_job_takes_its_time_to_end(monkeypatch):
    free = threading.Event()

    class Stubborn(ThreadJob):
        def stop(self):
            free.wait(10)
            super().stop()

    monkeypatch.setattr(dlpar, "launch", lambda e: Stubborn(e, pace=20), raising=False)
    panel = Panel(Experiment(workers=1, steps=1000))
    page = Reader(panel)
    panel.run()
    page.do(do="stop")
    until(lambda: page.state["stoppable"] is False)
    page.do(do="front", figure="Timeline")
    assert page.state["front"] == "Timeline"
    free.set()
    until(lambda: not panel.running)


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
    page = Reader(panel)
    panel.run()
    until(lambda: not panel.running)
    assert words(panel) == "failed after 0 of 200 steps — rank 1 raised ValueError: bad"
    log = page.state["log"]
    assert "[rank 1] ValueError: bad" in log and "[rank 0] reading <b>" in log
    assert page.state["status"] == "failed"
    assert {f.caption for f in page.figures.values()} == {"The run ended before its first step."}


def test_a_panel_whose_run_folder_vanishes_can_be_used_again(launched, monkeypatch):
    def broken(run, reached):
        raise FileNotFoundError("no such folder")

    monkeypatch.setattr(module, "results", broken)
    panel = Panel(Experiment(workers=1, steps=5))
    panel.run()
    until(lambda: not panel.running)
    assert "FileNotFoundError: no such folder" in words(panel)


def test_running_a_cell_again_closes_its_panel_and_stops_the_job(slowly, monkeypatch):
    execution = iter(("first", "first", "second"))
    monkeypatch.setattr(page_module, "this_cell", lambda: ("cell", next(execution)))
    one, beside = Panel(Experiment(workers=1, steps=1000)), Panel()
    job = one.run()
    Panel()
    assert job.stopped and one.comm is None and beside.comm is None
    until(lambda: not one._watch.is_alive())


def test_panel_can_be_closed_while_nothing_runs():
    panel = Panel()
    panel.close()
    assert panel.comm is None


# ---- time ------------------------------------------------------------------------------


def test_a_recording_is_played_back_marked_as_one_and_can_be_stopped(launched):
    kept = finished(workers=2, steps=50)
    panel = Panel(Experiment(workers=4))
    panel.replay(kept.id, 1000)
    until(lambda: not panel.running)
    assert words(panel).startswith(f"Recording of {kept.id}, at 1000 times its speed: done: 50 steps")
    assert panel.job is None and launched == []
    assert len(panel.figures["Convergence"].series(f"{kept.id} loss")) == 50
    panel.replay(kept, 0.001)
    assert panel.state["stoppable"] and not panel.state["busy"]
    panel.stop()
    assert not panel.running and "stopped after" in words(panel)
    with pytest.raises(ValueError, match="speed: got 0"):
        panel.replay(kept, 0)


def test_a_recording_that_was_stopped_adds_nothing_to_the_next(launched):
    long, short = finished(workers=4, steps=2000), finished(workers=2, steps=5)
    panel = Panel(Experiment(workers=4))
    panel.replay(long, 1000)
    panel.stop()
    panel.replay(short, 1000)
    until(lambda: not panel.running)
    assert "done: 5 steps" in words(panel)
    assert len(panel.figures["Convergence"].series(f"{short.id} loss")) == 5


def test_a_recording_plays_until_run_is_pressed_and_is_not_compared_with_the_students_run(launched, slowly):
    kept = finished(workers=2, steps=50)
    page = Reader(panel := Panel(Experiment(workers=4, steps=30), recording=kept.path))
    assert panel.state["words"].startswith("Recording; press Run for your own")
    assert not page.state["busy"] and page.state["live"] and launched == []
    page.ask("all")
    assert page.figures["Convergence"].traces[f"{kept.id} loss"]["style"]["name"] == "recording"
    module.dlpar.launch = ThreadJob
    run = ran(panel)
    page.assert_like_the_kernel()
    assert list(panel.figures["Convergence"].runs) == [run.id] and page.state["runs"] == []
    assert panel.figures["Convergence"].front.colour == theme.RUNS[0] and "Recording" not in words(panel)
    with pytest.raises(NoSuchRun):
        Panel(recording="no such run")


def test_a_moment_of_a_run_that_has_ended_is_shown_in_windows_of_time(launched):
    panel = Panel(Experiment(workers=2, steps=200))
    page = Reader(panel)
    page.do(do="moment", t=0.0)  # nothing has run
    ran(panel)
    assert page.state["length"] == pytest.approx(panel.runs[0].curve["seconds"].iloc[-1])
    page.do(do="moment", t=-1.0)
    assert "spent 100% between phases" in page.figures["Timeline"].caption
    *_, step = (r for r in lines_of(panel.runs[0].path / "rank-0.jsonl") if r["k"] == "step")
    page.do(do="moment", t=next(end for name, _, end in step["spans"] if name == "backward"))
    assert "% computing" in page.figures["Timeline"].caption
    assert page.state["message"] == ""


@pytest.mark.slow
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
    monkeypatch.setattr("dlpar.lab.run_page.PATIENCE", 0.3)
    panel = Panel(Experiment(workers=4, steps=30))
    page = Reader(panel)
    panel.run()
    until(lambda: "queued, 2 ahead" in words(panel))
    until(lambda: page.state["offer"])
    assert page.state["offer"]["actions"] == ["simulate", "watch"]
    page.do(do="watch")
    until(lambda: f"Recording of {kept.id}" in words(panel) and not page.state["offer"])
    panel.leave()
    panel.run()
    until(lambda: page.state["offer"])
    page.do(do="simulate")
    until(lambda: started[-1].cluster.world == "simulated" and "done: 30 steps" in words(panel))
    assert page.state["values"]["cluster.world"] == "simulated"


def test_a_panel_without_a_run_says_that_there_is_nothing_to_resume():
    with pytest.raises(NoSuchRun, match="run: got '', allowed is a run folder or one of the ids"):
        Panel().resume()


def test_the_caption_of_a_single_step_names_its_loss_once():
    panel = Panel(Experiment(workers=1, steps=1, cluster="simulated"))
    panel.run()
    panel.wait(60)
    caption = panel.figures["Convergence"].caption
    assert "the training loss stayed at 2" in caption and " from " not in caption


@pytest.mark.slow
def test_a_run_that_died_is_resumed_by_a_press_and_its_curve_says_what_was_lost():
    dying = {"snapshot": {"every": 8}, "deaths": {"die": {1: 0.5}}, "delays": {"kind": "constant"}}
    panel = Panel(Experiment(workers=2, steps=40, model={"name": "mlp", "width": 16}, **dying))
    page = Reader(panel)
    panel.run()
    with pytest.raises(dlpar.JobFailed, match="killed by SIGKILL"):
        panel.wait(60)
    kept = panel.job.run.snapshots[0]
    until(lambda: panel.state["offer"])
    assert panel.state["offer"] == {
        "text": f"Its newest snapshot is after step {kept}.",
        "actions": ["resume"],
    }
    page.do(do="resume")
    deadline = time.monotonic() + 60
    while panel.state["status"] != "done" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert panel.state["status"] == "done" and panel.state["offer"] is None
    run = panel.job.run
    lost = int(run.attempts["lost"].iloc[0])
    assert len(run.attempts) == 2 and lost > 0
    caption = panel.figures["Convergence"].caption
    assert f"{lost} steps were done twice (broad line)" in caption and "40 of 40 steps" in caption
    curve = panel.figures["Convergence"].kept[run.id]
    assert curve.loss.rows[:, 0].tolist() == list(range(40))


def of_ranks(page):
    """What the page shows beside the ranks: number and state."""
    return {rank: state for rank, _, state in page.state["ranks"]}


@pytest.mark.slow
def test_ranks_are_slowed_and_killed_by_a_press_and_the_others_go_on():
    slow = {"kind": "constant", "delay_ms": 10.0}
    panel = Panel(Experiment(workers=3, steps=200, batch=60, delays=slow, deaths={"on_death": "shrink"}))
    page = Reader(panel)
    assert page.state["ranks"] == []
    panel.run()
    until(lambda: of_ranks(page) == {0: "", 1: "", 2: ""} and panel.state["done"] > 5)
    page.do(do="slow", rank=1, factor=4)
    until(lambda: of_ranks(page)[1] == "slow")
    page.do(do="slow", rank=1, factor=1)
    until(lambda: of_ranks(page)[1] == "")
    page.do(do="kill", rank=0)
    until(lambda: of_ranks(page) == {0: "dead", 1: "", 2: ""})
    died = panel.state["done"]
    page.do(do="pause", rank=0)
    assert "rank: got 0, allowed is one of [1, 2], alive now" in page.state["message"]
    panel.wait(60)
    assert panel.state["done"] == 200 > died and page.state["ranks"] == []
    assert "rank 0 died, others went on at step" in panel.figures["Convergence"].caption


@pytest.mark.slow
def test_a_run_is_resumed_from_the_list_of_recordings_in_another_panel():
    dying = Experiment(
        workers=2,
        steps=40,
        model={"name": "mlp", "width": 16},
        snapshot={"every": 8},
        deaths={"die": {1: 0.5}},
    )
    job = dlpar.launch(dying)
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(60)
    whole = dlpar.launch(dying.replace(deaths={"die": {}})).wait(60)
    panel = Panel(Experiment(workers=4))
    page = Reader(panel)
    page.ask("recordings")
    listed = {each["id"]: each["resumes"] for each in page.state["recordings"]}
    assert listed[job.run.id] and not listed[whole.id]
    page.do(do="resume", run=job.run.id)
    until(lambda: panel.running or panel.state["message"], 30)
    assert panel.wait(60)[0].id == job.run.id and page.state["status"] == "done"
    assert (job.run.curve["loss"] == whole.curve["loss"]).all() and len(job.run.curve) == 40
    page.ask("recordings")
    assert not any(each["resumes"] for each in page.state["recordings"] if each["id"] == job.run.id)
