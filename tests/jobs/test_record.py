"""Spans of a rank, by its own clock and by that of its GPU; a file of records on a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from dlpar.jobs.record import DeviceClock, Recorder
from dlpar.jobs.tail import Tail


class Moment:
    """An event of a GPU whose clock began 7 s before the rank's."""

    def __init__(self, at: float) -> None:
        self.at = at + 7

    def elapsed_time(self, other: Moment) -> float:
        return 1000 * (other.at - self.at)

    def synchronize(self) -> None:
        """All is done."""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_spans_have_the_times_of_the_ranks_clock_and_empty_ones_are_not_written(
    device, tmp_path, monkeypatch
):
    times = iter([1.0, 2.0, 2.0, 3.5, 3.5, 3.5, 4.0])  # begin and end of three phases, then the step's end
    times = chain([0.5], times) if device == "cuda" else times  # the clocks are compared at the start
    latest = []

    def now() -> float:
        latest.append(next(times, 4.0))
        return latest[-1]

    clock = now
    if device == "cuda":
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        monkeypatch.setattr(DeviceClock, "moment", lambda self: Moment(now()))
        clock = lambda: latest[-1]
    world = SimpleNamespace(clock="wall", state=dict)
    traffic = SimpleNamespace(waited=0.0, waits_of_device=lambda: float)
    comm = SimpleNamespace(rank=0, now=clock, traffic=traffic, device=torch.device(device), world=world)
    record = Recorder(tmp_path, comm)
    with record.span("forward"):
        pass
    with record.span("communicate"):
        traffic.waited += 0.5
    with record.span("update"):
        pass
    record.step(0, loss=1.0)
    record.flush()
    ((source, step),) = Tail(tmp_path).read()
    assert source == "rank-0" and step["t"] == 4.0
    assert step["spans"] == [["forward", 1.0, 2.0], ["communicate", 2.0, 3.5]]
    assert (step["compute"], step["comm"], step["wait"]) == (1.0, 1.0, 0.5)


FULL = """
import resource, sys
from dlpar.jobs.record import RankFile
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file = RankFile(sys.argv[1])
try:
    while True:
        file.add({"k": "step", "step": 7, "text": "x" * 300})
except OSError as error:
    print(error)
    file.add({"k": "error"})
"""


def test_a_file_that_can_grow_no_more_ends_with_a_whole_line_and_has_room_for_the_error(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "No space left on device, or the limit of `ulimit -f` is reached\n", done.stderr
    assert [json.loads(line)["k"] for line in path.read_text().splitlines()][-2:] == ["step", "error"]


def test_waits_of_a_test_on_held_out_samples_are_not_those_of_the_next_step(tmp_path):
    traffic = SimpleNamespace(waited=0.0)
    times = iter(range(100))
    world = SimpleNamespace(clock="virtual", state=dict)
    comm = SimpleNamespace(
        rank=0, now=lambda: float(next(times)), traffic=traffic, device=torch.device("cpu"), world=world
    )
    record = Recorder(tmp_path, comm)
    with record.span("evaluate"):
        traffic.waited += 0.5
    record.evaluation(0, accuracy=0.5)
    with record.span("communicate"):
        traffic.waited += 0.25
    record.step(1, loss=1.0)
    record.flush()
    (_, test), (_, step) = Tail(tmp_path).read()
    assert [name for name, *_ in test["spans"]] == ["evaluate"] and step["wait"] == 0.25


def test_no_time_is_lost_in_a_step_that_ended_with_the_death_although_it_is_written_later(tmp_path):
    times = iter([1.0, 3.0, 4.0, 5.0, 6.0])
    world = SimpleNamespace(clock="virtual", state=dict)
    traffic = SimpleNamespace(waited=0.0, take=dict)
    comm = SimpleNamespace(
        rank=0, now=lambda: next(times), traffic=traffic, device=torch.device("cpu"), world=world
    )
    record = Recorder(tmp_path, comm)
    record.step(0)
    record.step(1, t=2.0)  # at 3.0, when the survivors have found each other
    record.interrupted(2.0)
    with record.span("forward"):
        pass
    record.step(2)
    record.flush()
    *_, (_, step) = Tail(tmp_path).read()
    assert {name: step[name] for name in ("detecting", "done again", "restarting")} == {
        "detecting": 0.0, "done again": 0.0, "restarting": 2.0,
    }  # fmt: skip


def test_an_error_whose_text_is_no_unicode_is_recorded_all_the_same(tmp_path):
    world = SimpleNamespace(clock="wall", state=dict)
    comm = SimpleNamespace(rank=0, now=float, traffic=None, device=torch.device("cpu"), world=world)
    record = Recorder(tmp_path, comm)
    record.error(ValueError(os.fsdecode(b"caf\xe9.csv: no samples")))
    ((_, told),) = Tail(tmp_path).read()
    assert told["message"] == r"caf\udce9.csv: no samples" and told["type"] == "ValueError"
