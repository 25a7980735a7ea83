"""Lab 03: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import pytest
import torch

import dlpar
from dlpar import lab
from dlpar.collectives import ring_allgather
from dlpar.lab import presets

pytestmark = pytest.mark.slow

SUM = dict(expected=lambda tensors: [sum(tensors)] * len(tensors), like="ring")


@pytest.mark.timed
def test_one_slow_rank_slows_all():
    paces, waits = [], []
    for run in [dlpar.launch(e).wait(60) for e in presets.slow_rank()]:
        seconds = run.curve["seconds"]
        paces.append((seconds.iloc[-1] - seconds.iloc[0]) / (len(seconds) - 1))
        waits.append(run.steps.groupby("rank")["wait"].sum())
    assert paces[1] > 0.04 and paces[1] > 1.5 * paces[0]
    assert waits[1].idxmin() == 2


def test_a_ring_whose_all_gather_alone_works_names_what_is_wrong():
    def adds_nothing(comm, tensor):
        ring_allgather(comm, tensor.tensor_split(comm.size))

    verdict = lab.check_on_ranks(adds_nothing, workers=[2], hints=["a hint"], **SUM)
    assert verdict.status == "not yet" and verdict.sentence.startswith(
        "With 2 simulated ranks and 1 numbers, on rank"
    )
    assert verdict.hints == ["a hint"]


def test_a_right_sum_that_sends_whole_tensors_is_told_so():
    def whole_tensors(comm, tensor):
        passing = tensor.clone()
        for _ in range(comm.size - 1):
            arriving = torch.empty_like(tensor)
            comm.sendrecv(passing, (comm.rank + 1) % comm.size, arriving, (comm.rank - 1) % comm.size)
            tensor += arriving
            passing = arriving

    verdict = lab.check_on_ranks(whole_tensors, workers=[4], **SUM)
    assert "the result is right, but the ranks send 12 messages" in verdict.sentence
