"""Lab 03: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import pytest
import torch

import dlpar
from dlpar import lab
from dlpar.collectives import ring_allgather
from dlpar.costmodel import collective_seconds
from dlpar.lab import presets

pytestmark = pytest.mark.slow

SUM = dict(expected=lambda tensors: [sum(tensors)] * len(tensors), like="ring")


def test_the_time_of_a_ring_grows_with_the_ranks():
    trial = presets.more_ranks()
    seconds = {(t.ranks, t.nbytes): t.seconds for t in lab.time_collectives(**trial)}
    (short, long), latency = trial["sizes"], trial["link"].latency
    assert seconds[8, short] > 4.5 * seconds[2, short], "2(N-1) latencies: 14 against 2"
    for ranks in (2, 4, 8):
        assert seconds[ranks, short] > 0.98 * 2 * (ranks - 1) * latency
    carried = {n: seconds[n, long] - seconds[n, short] for n in (2, 4, 8)}
    assert carried[8] < 2.2 * carried[2] + 0.05, "the bytes' part levels off at 2 b"


def test_a_ring_wins_for_long_tensors_only():
    trial = presets.ring_always_wins()
    seconds = {(t.name, t.nbytes): t.seconds for t in lab.time_collectives(**trial)}
    short, _, long = trial["sizes"]
    assert seconds["tree", short] < 0.7 * seconds["ring", short]
    assert seconds["halving_doubling", short] < 0.8 * seconds["ring", short]
    assert seconds["ring", long] < 0.8 * seconds["tree", long]


def test_on_64_ranks_the_size_decides_who_wins_by_prediction():
    at = {(name, ranks, size): collective_seconds(name, ranks, size, presets.RACK)
          for name in ("ring", "tree", "halving_doubling") for ranks in (48, 64) for size in (1.2e6, 178e6)}  # fmt: skip
    assert max(at["tree", 64, 1.2e6], at["halving_doubling", 64, 1.2e6]) < at["ring", 64, 1.2e6]
    assert at["ring", 64, 178e6] < 0.2 * at["tree", 64, 178e6]
    assert at["ring", 48, 178e6] < 0.6 * at["halving_doubling", 48, 178e6]


def test_fewer_bytes_reach_the_same_accuracy_and_codes_do_not_add_up():
    whole, half, one_bit, top = (dlpar.launch(e).wait(60).summary for e in presets.fewer_bytes())
    assert min(s["accuracy"] for s in (whole, half, one_bit, top)) > 0.92
    assert half["bytes_sent"] == whole["bytes_sent"], "4 ranks: half of the bits, twice as often"
    assert one_bit["bytes_sent"] < 0.07 * whole["bytes_sent"]
    assert top["bytes_sent"] < 0.05 * whole["bytes_sent"]


def test_one_slow_rank_slows_all():
    paces, waits = [], []
    for run in [dlpar.launch(e).wait(60) for e in presets.slow_rank()]:
        seconds = run.curve["seconds"]
        paces.append((seconds.iloc[-1] - seconds.iloc[0]) / (len(seconds) - 1))
        waits.append(run.steps.groupby("rank")["wait"].sum())
    assert paces[1] > 0.04 and paces[1] > 1.5 * paces[0]
    assert waits[1].idxmin() == 2


def reduce_scatter(comm, chunks):
    r, n = comm.rank, comm.size
    for k in range(n - 1):
        theirs = chunks[(r - k - 1) % n]
        arriving = torch.empty_like(theirs)
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, arriving, (r - 1) % n)
        theirs += arriving


def my_ring(comm, tensor):
    chunks = tensor.tensor_split(comm.size)
    reduce_scatter(comm, chunks)
    ring_allgather(comm, chunks)


def test_a_right_ring_is_solved_and_trains():
    verdict = lab.check_on_ranks(my_ring, **SUM)
    assert verdict and "sends what ring sends" in verdict.sentence
    run = dlpar.launch(presets.copies()[1].replace(sync=my_ring)).wait(60)
    assert run.curve["loss"].iloc[-1] < run.curve["loss"].iloc[0]


def test_a_ring_whose_all_gather_alone_works_names_what_is_wrong():
    def adds_nothing(comm, tensor):
        ring_allgather(comm, tensor.tensor_split(comm.size))

    verdict = lab.check_on_ranks(adds_nothing, workers=[2], hints=["a hint"], **SUM)
    assert verdict.status == "not yet" and verdict.sentence.startswith("With 2 simulated ranks and 1 numbers, on rank")
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
