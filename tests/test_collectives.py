"""Ring all-reduce on real ranks: right for every size, and it sends what the closed form says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dlpar

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
CASES = st.lists(
    st.tuples(st.one_of(st.integers(0, 40), st.integers(0, 10_007)), st.sampled_from(DTYPES), st.integers(0, 2**31)),
    min_size=12,
    max_size=12,
)


def ring_against_library(comm, cases):
    """Every case on this rank: the worst error of the ring, whether replicas agree bit by bit, and its traffic."""
    from dlpar.collectives import ring_allreduce

    results = []
    for count, dtype, seed in cases:
        inputs = [
            torch.randn(count, generator=torch.Generator().manual_seed(seed + rank), dtype=torch.float64).to(dtype)
            for rank in range(comm.size)
        ]
        mine = inputs[comm.rank].clone()
        comm.traffic.take()
        ring_allreduce(comm, mine)
        traffic = comm.traffic.take()
        exact = torch.stack([i.double() for i in inputs]).sum(0)
        scale = torch.stack([i.double().abs() for i in inputs]).sum(0)
        eps = torch.finfo(dtype).eps
        error = ((mine.double() - exact).abs() / (eps * scale + 1e-300)).max().item() if count else 0.0
        bits = comm.broadcast(mine) if comm.size > 1 else mine
        results.append((error, torch.equal(bits, mine), traffic))
    return results


@pytest.mark.parametrize("workers", range(1, 10))
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases=CASES)
def test_ring_equals_the_sum_and_sends_two_times_n_minus_1_chunks(workers, cases):
    by_rank = dlpar.spmd(ring_against_library, cases, workers=workers)
    for number, (count, dtype, _) in enumerate(cases):
        size = dtype.itemsize
        for rank in range(workers):
            error, same_bits, traffic = by_rank[rank][number]
            # N roundings of partial sums, each at most eps times the sum of magnitudes
            assert error <= workers, (count, dtype, rank)
            assert same_bits, "every chunk is added once and then copied: replicas agree to the last bit"
            assert traffic["messages"] == 2 * (workers - 1)
        sent = sum(by_rank[rank][number][2]["bytes"] for rank in range(workers))
        assert sent == 2 * (workers - 1) * count * size  # 2 (N-1)/N of the tensor by each of N ranks


def test_reduce_scatter_and_allgather_work_on_their_own():
    def halves(comm):
        from dlpar.collectives import ring_allgather, ring_reduce_scatter

        chunks = torch.full((7,), float(comm.rank + 1)).tensor_split(comm.size)
        ring_reduce_scatter(comm, chunks)
        mine = chunks[(comm.rank + 1) % comm.size].tolist()
        parts = [torch.full((n,), -1.0) for n in (3, 2, 2)]
        parts[(comm.rank + 1) % comm.size].fill_(comm.rank)
        ring_allgather(comm, tuple(parts))
        return mine, [p.unique().item() for p in parts]

    sums = [6.0, 6.0]
    assert dlpar.spmd(halves, workers=3) == [
        (sums, [2.0, 0.0, 1.0]),
        (sums, [2.0, 0.0, 1.0]),
        ([6.0, 6.0, 6.0], [2.0, 0.0, 1.0]),
    ]
