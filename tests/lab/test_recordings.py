"""Choosing a recorded run in a panel: which are listed, which is most like it, how fast it is played."""

import fcntl
from types import SimpleNamespace

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab.panel import Panel
from dlpar.lab.watch import newest_like, speed_of
from lab.folders import end, finished, until
from lab.readers import Reader


def words(panel):
    return panel.state["words"]


def test_the_list_of_recordings_has_the_newest_run_first_and_plays_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    finished(workers=2, steps=10)
    kept = finished(workers=3, steps=20, cluster={"world": "simulated"})
    panel = Panel()
    page = Reader(panel)
    assert page.state["recordings"] == []
    page.ask("recordings")
    newest, older = page.state["recordings"]
    assert newest["id"] == kept.id and "simulated" in newest["says"] and kept.id in newest["says"]
    assert newest["says"] != older["says"].replace(older["id"], newest["id"]), "told by more than an id"
    page.do(do="play", run=newest["id"], speed=100.0)
    until(lambda: "done: 20 steps" in words(panel) and not page.state["busy"])
    page.do(do="play", run="no such run", speed=1.0)
    assert "no such run" in page.state["message"]


def test_a_recording_whose_folder_is_removed_while_it_plays_can_be_left(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    first, second = finished(workers=2, steps=40), finished(workers=2, steps=10)
    panel = Panel()
    panel.replay(first, 0.001)
    first.delete()
    panel.stop()
    assert not panel.running and "stopped after" in words(panel)
    panel.replay(second, 1000.0)
    until(lambda: "done: 10 steps" in words(panel) and not panel.running)
    panel.close()


def test_a_figure_that_fails_at_the_end_leaves_no_panel_busy(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    panel = Panel()
    page = Reader(panel)
    monkeypatch.setattr(type(panel.figures["Convergence"]), "settle", lambda self, *given, **named: 1 / 0)
    panel.replay(finished(workers=2, steps=10), 1000.0)
    until(lambda: not panel.running)
    assert "ZeroDivisionError" in words(panel) and not page.state["busy"]


def test_a_run_that_just_ended_is_a_recording_although_its_job_still_holds_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    locks = []

    def launch(experiment):
        run = finished(experiment)
        end(run.path, "done", "all ranks finished")
        # Held by the job's guardian, which writes the end before it goes.
        locks.append(open(run.path / "lock", "w"))
        fcntl.flock(locks[-1], fcntl.LOCK_EX)
        return SimpleNamespace(run=run)

    monkeypatch.setattr(dlpar, "launch", launch, raising=False)
    panel = Panel(Experiment(workers=2, steps=5))
    page = Reader(panel)
    page.ask("recordings")
    assert page.state["recordings"] == []
    panel.run()
    until(lambda: not panel.running)
    page.ask("recordings")
    assert [each["id"] for each in page.state["recordings"]] == [panel.runs[0].id]
    page.do(do="play", run=panel.runs[0].id, speed=100.0)
    until(lambda: "Recording of" in words(panel) and "done: 5 steps" in words(panel))
    locks[0].close()


def test_a_recording_of_a_very_long_run_is_played_as_fast_as_is_allowed(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    kept = finished(workers=2, steps=20)
    monkeypatch.setattr("dlpar.lab.watch.LONGEST_REPLAY", 1e-9)  # whatever it took is too long
    panel = Panel(Experiment(workers=2))
    Reader(panel).do(do="watch")
    until(lambda: f"Recording of {kept.id}, at 1000 times its speed: done: 20 steps" in words(panel))


def test_a_recording_on_the_first_screen_is_not_over_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    kept = finished(workers=2, steps=20)
    seconds = kept.curve["seconds"].iloc[-1]
    assert speed_of(kept) == 1 and speed_of(kept, 10 * seconds) == pytest.approx(0.1)
    assert speed_of(kept, seconds) == 1


def test_a_recording_of_the_same_settings_comes_before_a_newer_one_of_others(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    same = finished(workers=2, steps=10)
    finished(workers=2, steps=20)
    newest = finished(workers=2, steps=30)
    assert newest_like(same.experiment).id == same.id
    assert newest_like(same.experiment.replace(steps=40)).id == newest.id


def test_without_a_recording_of_a_kind_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    finished(workers=2, steps=10)
    panel = Panel(Experiment(workers=2, sync="gossip"))
    page = Reader(panel)
    page.do(do="watch")
    until(lambda: "you do not have a recording of a run of this kind yet" in page.state["message"])
