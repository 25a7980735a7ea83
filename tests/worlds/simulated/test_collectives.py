"""Collectives in the simulated world: right for every size, and they send what their closed forms say, as on MPI."""

from __future__ import annotations

import pytest
import torch
from collectives.test_collectives import EDGES, every_collective, inputs_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulations import LINK, cluster, run

from dlpar import collectives as c
from dlpar.theory import Link
from dlpar.theory.counts import closed_form

ORDINARY = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
CASES = st.fixed_dictionaries(
    {
        "count": st.one_of(st.integers(0, 40), st.integers(0, 10_007)),
        "dtype": st.sampled_from([torch.float32, torch.float64]),
        "seed": st.integers(0, 2**31),
        "root": st.integers(0, 100),
        "depth": st.integers(1, 5),
        "group": st.integers(1, 10),
    }
)
PLATFORMS = {
    "one node each": lambda ranks: (cluster(), list(range(ranks))),
    "three a node, one card for all": lambda ranks: (
        cluster(devices=3, inside=Link(1e-5, 1e9)),
        [rank // 3 for rank in range(ranks)],
    ),
    "short eager sends": lambda ranks: (cluster(link=Link(1e-3, 1e6), eager=1000), list(range(ranks))),
}


@pytest.mark.parametrize("where", PLATFORMS)
@pytest.mark.parametrize("workers", range(1, 10))
@ORDINARY
@given(case=CASES)
def test_every_collective_is_right_on_every_rank_and_sends_what_its_closed_form_says(where, workers, case):
    platform, nodes = PLATFORMS[where](workers)
    by_rank = run(lambda comm: every_collective(comm, [case])[0], nodes, platform)
    for name in by_rank[0]:
        errors, bits, traffic = zip(*(results[name] for results in by_rank))
        assert max(errors) <= workers, name  # N - 1 additions and a conversion, each rounded once
        assert len(set(bits)) == 1, ("replicas agree to the last bit", name)
        if "library" in name:
            assert {t["bytes"] for t in traffic} == {None}, name
            continue
        cost = closed_form(name, workers, case["count"], case["dtype"].itemsize, group=case["group"])
        messages, sent = [t["messages"] for t in traffic], [t["bytes"] for t in traffic]
        assert (sum(messages), max(messages)) == (cost.messages, cost.busiest_messages), name
        assert (sum(sent), max(sent)) == (cost.bytes, cost.busiest_bytes), name


@pytest.mark.slow
@pytest.mark.parametrize("workers", range(1, 10))
@settings(ORDINARY, max_examples=4)
@given(lengths=st.lists(st.integers(0, 300), min_size=9, max_size=9), seed=st.integers(0, 2**31))
def test_the_halves_of_a_ring_work_on_their_own_with_chunks_of_any_lengths(workers, lengths, seed):
    lengths = lengths[:workers]
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(workers, sum(lengths), generator=draw, dtype=torch.float64)

    def halves(comm):
        chunks, own = inputs[comm.rank].clone().split(lengths), (comm.rank + 1) % workers
        c.ring_reduce_scatter(comm, chunks)
        parts = [torch.full((n,), float(comm.rank == (i - 1) % workers) * i) for i, n in enumerate(lengths)]
        c.ring_allgather(comm, parts)
        return chunks[own], parts, comm.traffic.take()

    sums = inputs.sum(0).split(lengths)
    for rank, (summed, parts, traffic) in enumerate(run(halves, workers)):
        torch.testing.assert_close(summed, sums[(rank + 1) % workers])
        assert all((part == i).all() for i, part in enumerate(parts))
        # Each half sends all chunks but one: of float64 all but the one summed here, of float32 but the next.
        left_out = 8 * lengths[(rank + 1) % workers] + 4 * lengths[(rank + 2) % workers]
        assert traffic == {
            "messages": 2 * (workers - 1),
            "bytes": 12 * sum(lengths) - left_out if workers > 1 else 0,
        }


@pytest.mark.parametrize("case", EDGES, ids=lambda case: f"{case['count']} {case['dtype']}")
def test_sizes_alone_take_the_seconds_the_same_messages_with_values_take(case):
    def each(comm):
        times = []
        for collective in [
            *c.ALLREDUCE.values(),
            c.tree_aggregate,
            c.star_reduce,
            c.tree_broadcast,
            c.torrent_broadcast,
        ]:
            own = (
                inputs_of(case, comm.size)[comm.rank]
                if comm.computes
                else comm.empty(case["count"], case["dtype"])
            )
            collective(comm, own)
            comm.barrier()
            times.append(comm.now())
        return times

    for ranks in (1, 2, 5, 8):
        assert run(each, ranks) == run(each, ranks, computes=False)


def test_what_a_library_does_takes_any_layout():
    def layouts(comm):
        turned = torch.full((4, 2), comm.rank + 1.0, dtype=torch.bfloat16).t()
        number, rooted = torch.tensor(float(comm.rank)), torch.ones(2, 2)
        spread = torch.full((3, 2), float(comm.rank)).t()
        comm.allreduce(turned)
        comm.allreduce(number)
        comm.broadcast_tensor(spread, 1)
        comm.reduce(rooted, 2)
        return turned.unique().tolist(), number.item(), spread.unique().tolist(), rooted.unique().tolist()

    assert run(layouts, 3)[2] == ([6.0], 3.0, [1.0], [3.0])
    assert {told[:3] == ([6.0], 3.0, [1.0]) for told in run(layouts, 3)} == {True}


def test_a_library_adds_half_precision_in_float32():
    def total(comm):
        value = torch.full((3,), 256.0 if comm.rank == 0 else 1.0, dtype=torch.bfloat16)
        comm.allreduce(value)
        return value.tolist()

    assert run(total, 5) == [[260.0] * 3] * 5  # one after the other, 256 + 1 is 256 four times


def test_reduce_scatter_and_allgather_share_out_chunks_of_any_length():
    def halves(comm):
        chunks = torch.arange(7.0).split([2, 3, 2])
        comm.reduce_scatter(chunks)
        parts = [torch.full((n,), -1.0) for n in (3, 0, 2)]
        parts[comm.rank].fill_(comm.rank)
        comm.allgather(parts)
        return chunks[comm.rank].tolist(), [part.tolist() for part in parts], comm.traffic.take()["bytes"]

    gathered = [[0.0] * 3, [], [2.0] * 2]
    assert run(halves, 3) == [
        ([0.0, 3.0], gathered, None),
        ([6.0, 9.0, 12.0], gathered, None),
        ([15.0, 18.0], gathered, None),
    ]


def test_a_ring_of_chosen_ranks_leaves_the_others_alone():
    def some(comm):
        value = torch.full((5,), float(comm.rank))
        if comm.rank in (3, 0, 2):
            c.ring_allreduce(comm, value, ranks=[3, 0, 2])
        return value.unique().tolist()

    assert run(some, 4) == [[5.0], [1.0], [5.0], [5.0]]


def test_compressed_gradients_keep_their_meaning_and_their_size():
    """Kept whole they add up as they are; 16 bits take half the seconds."""
    from dlpar.compression import CompressedAllreduce, codec

    def summed(comm, name):
        value = torch.full((4096,), comm.rank + 1.0)
        CompressedAllreduce(codec(name, 1.0))(comm, value)
        return value.unique().tolist(), comm.now()

    short, whole = (run(lambda comm: summed(comm, name), 4, cluster(link=LINK)) for name in ("fp16", "topk"))
    assert [values for values, _ in short] == [values for values, _ in whole] == [[10.0]] * 4
    assert 0 < short[0][1] < whole[0][1]  # topk sends a place beside each number
