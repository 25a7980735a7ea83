"""Threads that pass the records of a run on: while it grows, and as a replay."""

import gc
import json
import random
import threading
import time
import weakref

import pytest

from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.jobs.tail import ALL_RANKS, record_of
from dlpar.lab import watch
from dlpar.lab.watch import Replay, Watch, between, in_order
from lab.folders import end, finished, new_folder


class Listener:
    def __init__(self):
        self.records, self.refreshed, self.status = 0, 0, None

    def take(self, source, record):
        self.records += 1

    def refresh(self, alive):
        self.refreshed += 1

    def ended(self, status, reason):
        self.status, self.reason = status, reason


@pytest.fixture(autouse=True)
def no_watch_is_left_behind():
    before = set(threading.enumerate())
    yield
    watches = [each for each in set(threading.enumerate()) - before if isinstance(each, Watch)]
    for each in watches:
        each.join(10)
    assert not any(each.is_alive() for each in watches)


@pytest.mark.parametrize("reader", [Watch, Replay])
def test_a_listener_that_fails_is_told_that_nothing_follows_its_run(reader):
    run, listener = finished(workers=2, steps=20), Listener()
    listener.take = lambda source, record: 1 / 0
    thread = reader(run.path if reader is Watch else run, listener)
    thread.start()
    thread.join(10)
    assert (listener.status, listener.reason[-16:]) == ("unwatched", "division by zero")


def test_every_record_is_passed_on_before_the_end():
    run, listener = finished(workers=3, steps=300), Listener()
    thread = Watch(run.path, listener)
    thread.start()
    thread.join(10)
    assert listener.status == "done"
    assert listener.records == len(run.records())


def test_a_job_that_vanishes_counts_as_lost(monkeypatch):
    monkeypatch.setattr(watch, "GRACE", 0.2)
    listener = Listener()
    thread = Watch(new_folder(Experiment()), listener)
    thread.start()
    thread.join(5)
    assert listener.status == "lost" and "without a record of its end" in listener.reason


def test_thread_ends_when_nobody_listens_any_more(monkeypatch):
    folder = new_folder(Experiment())
    listener = Listener()
    thread, gone = Watch(folder, listener), weakref.ref(listener)
    thread.start()
    del listener
    gc.collect()
    thread.join(2)
    assert gone() is None and not thread.is_alive()


def test_cancel_ends_the_thread():
    listener = Listener()
    thread = Watch(new_folder(Experiment()), listener)
    thread.start()
    thread.cancel()
    thread.join(2)
    assert not thread.is_alive() and listener.status is None


def test_a_mistake_in_a_listener_is_told_not_printed(capsys):
    class Broken(Listener):
        def take(self, source, record):
            raise ZeroDivisionError("no figure")

    run, listener = finished(), Broken()
    thread = Watch(run.path, listener)
    thread.start()
    thread.join(5)
    assert listener.status == "unwatched" and "ZeroDivisionError: no figure" in listener.reason
    assert capsys.readouterr() == ("", "")


def test_drawing_is_asked_for_ten_times_a_second_at_most():
    folder, listener = new_folder(Experiment()), Listener()
    thread = Watch(folder, listener)
    thread.start()
    begun = time.monotonic()
    with open(folder / "rank-0.jsonl", "a") as file:
        while time.monotonic() - begun < 1:
            file.write('{"k":"event","t":0,"name":"x"}\n')
            file.flush()
            time.sleep(0.005)
    seconds = time.monotonic() - begun
    assert 3 <= listener.refreshed <= 10 * seconds + 2
    end(folder, "done")
    thread.join(5)
    assert listener.status == "done"


@pytest.mark.slow
def test_memory_of_a_backlog_is_bounded():
    import tracemalloc

    run, listener = finished(workers=8, steps=3000), Listener()
    tracemalloc.start()
    thread = Watch(run.path, listener)
    thread.start()
    thread.join(60)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert listener.records == 24_045 and peak < 40e6


class Viewer:
    def __init__(self):
        self.taken, self.shown, self.status = [], [], None

    def take(self, source, record):
        self.taken.append((source, record))

    def refresh(self, alive):
        self.shown.append(len(self.taken))

    def ended(self, status, reason):
        self.status = status


def played(run, speed):
    listener, began = Viewer(), time.monotonic()
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
        listener = Viewer()
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
            Replay(run, Viewer(), speed)
    live = Run(new_folder(Experiment()))
    with open(live.path / "lock", "w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="which is still running"):
            Replay(live, Viewer())


# ---- a window of time ------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Files larger than what a bisection reads line by line: steps of unequal length and width."""
    folder, rng = tmp_path_factory.mktemp("run"), random.Random(0)
    for rank in range(2):
        now = 0.0
        with open(folder / f"rank-{rank}.jsonl", "w") as file:
            file.write(json.dumps({"k": "rank", "rank": rank}) + "\n")  # without a time
            for number in range(4000):
                now += rng.choice((0.0, 0.001, 0.002, 0.5 * (number == 2000)))
                padding = "x" * rng.randrange(120)
                file.write(json.dumps({"k": "step", "step": number, "t": now, "padding": padding}) + "\n")
    assert all(path.stat().st_size > 4 * watch.BLOCK for path in folder.iterdir())
    return folder


def read_all(folder, begin, end):
    for rank in range(2):
        for line in open(folder / f"rank-{rank}.jsonl"):
            record = json.loads(line)
            if begin <= record.get("t", -1.0) <= end:
                yield rank, record


@pytest.mark.parametrize("seed", range(25))
def test_a_window_of_time_has_the_records_that_reading_all_would_find(long_run, seed):
    rng = random.Random(seed)
    begin = rng.choice((-1.0, 0.0, rng.uniform(0, 6), 100.0))
    end = begin + rng.choice((0.0, 0.003, 1.0, 100.0))
    assert list(between(long_run, begin, end)) == list(read_all(long_run, begin, end))


def test_a_window_that_begins_at_a_record_has_all_records_of_that_time(long_run):
    times = [record["t"] for _, record in read_all(long_run, 0.0, 100.0)]
    for moment in times[::400]:
        assert list(between(long_run, moment, moment)) == list(read_all(long_run, moment, moment))


def test_a_window_of_a_long_run_reads_a_small_part_of_it(long_run, monkeypatch):
    read = []
    monkeypatch.setattr(watch, "record_of", lambda line: read.append(line) or record_of(line))
    whole = sum(path.stat().st_size for path in long_run.iterdir())
    list(between(long_run, 3.0, 3.01))
    assert sum(map(len, read)) < whole / 3


def test_a_torn_line_loses_itself_alone_in_a_window(tmp_path):
    lines = [json.dumps({"k": "step", "step": n, "t": float(n)}) for n in range(4)]
    (tmp_path / "rank-0.jsonl").write_text("\n".join([*lines[:2], '{"k": "st', *lines[2:], '{"t": 9']))
    assert [record["step"] for _, record in between(tmp_path, 0.0, 10.0)] == [0, 1, 2, 3]


def test_records_of_all_ranks_in_one_file_keep_their_ranks(tmp_path):
    lines = [json.dumps({"k": "step", "rank": n % 3, "step": n, "t": float(n)}) for n in range(6)]
    (tmp_path / f"{ALL_RANKS}.jsonl").write_text("\n".join(lines) + "\n")
    assert [(rank, record["t"]) for rank, record in between(tmp_path, 1.0, 3.0)] == [
        (1, 1.0),
        (2, 2.0),
        (0, 3.0),
    ]
