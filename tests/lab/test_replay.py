"""Playing a recorded run back."""

from __future__ import annotations

import gc
import time
import weakref

import pytest

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab.watch import Replay, in_order
from lab.folders import finished, new_folder


class Listener:
    def __init__(self):
        self.taken, self.shown, self.status = [], [], None

    def take(self, source, record):
        self.taken.append((source, record))

    def refresh(self, alive):
        self.shown.append(len(self.taken))

    def ended(self, status, reason):
        self.status = status


def played(run, speed):
    listener, began = Listener(), time.monotonic()
    thread = Replay(run, listener, speed)
    thread.start()
    thread.join(20)
    return listener, time.monotonic() - began


def test_all_that_ranks_said_comes_again_in_the_order_of_the_run_s_clock():
    run = finished(workers=3, steps=50)
    listener, _ = played(run, 1000.0)
    assert listener.status == "done"
    kept = [(source, record) for source, record in run.records() if source != "job"]
    assert sorted(map(str, listener.taken)) == sorted(map(str, kept))
    times = [record["t"] for _, record in listener.taken if "t" in record]
    assert times == sorted(times) and listener.taken[0][1]["k"] == "rank"


def test_speed_sets_how_long_it_takes_and_it_is_shown_bit_by_bit():
    run = finished(workers=2, steps=40)
    lasts = max(due for due, *_ in in_order(run))
    listener, took = played(run, lasts / 1.0)
    assert 0.9 < took < 3 and len(set(listener.shown)) > 4
    assert listener.shown == sorted(listener.shown)


def test_it_ends_when_cancelled_or_when_nobody_looks_on():
    run = finished(workers=2, steps=40)
    for forget in (False, True):
        listener = Listener()
        thread = Replay(run, listener, 0.001)
        gone = weakref.ref(listener)
        thread.start()
        if forget:
            del listener
            gc.collect()
        else:
            thread.cancel()
        thread.join(2)
        assert not thread.is_alive() and (gone() is None) == forget


def test_what_cannot_be_played_is_refused():
    run = finished(workers=2, steps=5)
    for speed in (0, -1, 1e9, float("nan")):
        with pytest.raises(ValueError, match="speed: got .*, allowed is 0.001 to 1000"):
            Replay(run, Listener(), speed)
    live = Run(new_folder(Experiment()))
    with open(live.path / "lock", "w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="which is still running"):
            Replay(live, Listener())
