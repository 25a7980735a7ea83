"""Choosing a recorded run in a panel: which are listed, which is most like it, how fast it is played."""

import fcntl
from types import SimpleNamespace

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab.panel import Panel
from dlpar.lab.recordings import newest_like
from lab.folders import end, finished, until


def words(panel):
    return panel._status.words.value


def test_the_list_of_recordings_has_the_newest_run_first_and_plays_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    finished(workers=2, steps=10)
    kept = finished(workers=2, steps=20)
    panel = Panel()
    assert panel._recordings._play.disabled
    panel._more_box.selected_index = 2
    assert panel._recordings._which.value == kept.id
    panel._recordings._speed.value = 100.0
    panel._recordings._play.click()
    until(lambda: "done: 20 steps" in words(panel))


def test_an_open_list_of_recordings_has_the_run_that_just_ended(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    locks = []

    def launch(experiment):
        run = finished(experiment)
        end(run.path, "done", "all ranks finished")
        locks.append(
            open(run.path / "lock", "w")
        )  # held by the job's guardian, which writes the end before it goes
        fcntl.flock(locks[-1], fcntl.LOCK_EX)
        return SimpleNamespace(run=run)

    monkeypatch.setattr(dlpar, "launch", launch, raising=False)
    panel = Panel(Experiment(workers=2, steps=5))
    panel._more_box.selected_index = 2
    assert panel._recordings._which.options == ()
    panel.run()
    until(lambda: not panel.running)
    until(lambda: panel._recordings._which.value == panel.runs[0].id, 2)
    panel._recordings._speed.value = 100.0
    panel._recordings._play.click()
    until(lambda: "Recording of" in words(panel) and "done: 5 steps" in words(panel))
    locks[0].close()


def test_a_recording_of_a_very_long_run_is_played_as_fast_as_is_allowed(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    kept = finished(workers=2, steps=20)
    monkeypatch.setattr("dlpar.lab.recordings.LONGEST", 1e-9)  # whatever it took is too long
    panel = Panel(Experiment(workers=2))
    panel._meanwhile.children[2].click()
    until(lambda: f"Recording of {kept.id}, at 1000 times its speed: done: 20 steps" in words(panel))


def test_a_recording_of_the_same_settings_comes_before_a_newer_one_of_others(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    same = finished(workers=2, steps=10)
    finished(workers=2, steps=20)
    newest = finished(workers=2, steps=30)
    assert newest_like(same.experiment).id == same.id
    assert newest_like(same.experiment.replace(steps=40)).id == newest.id
