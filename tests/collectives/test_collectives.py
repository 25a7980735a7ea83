"""Collectives on real ranks: right for every size, and they send what the closed forms say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import dlpar
from dlpar.theory.counts import closed_form

pytestmark = pytest.mark.slow

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
CASES = st.lists(
    st.fixed_dictionaries(
        {
            "count": st.one_of(st.integers(0, 40), st.integers(0, 10_007)),
            "dtype": st.sampled_from(DTYPES),
            "seed": st.integers(0, 2**31),
            "root": st.integers(0, 100),
            "depth": st.integers(1, 5),
            "group": st.integers(1, 10),
        }
    ),
    min_size=4,
    max_size=4,
)
EDGES = [
    {"count": count, "dtype": dtype, "seed": 1, "root": 1, "depth": depth, "group": group}
    for count, dtype, depth, group in [
        (0, torch.float32, 1, 1),
        (1, torch.float64, 2, 2),
        (7, torch.bfloat16, 2, 3),
        (10_007, torch.float32, 3, 4),
    ]
]


def inputs_of(case, size):
    """What every rank starts with."""
    return [
        torch.randn(
            case["count"], generator=torch.Generator().manual_seed(case["seed"] + rank), dtype=torch.float64
        ).to(case["dtype"])
        for rank in range(size)
    ]


def every_collective(comm, cases):
    """On this rank, by case and collective: the worst error in roundings, the last bits, what was sent."""
    import zlib
    from functools import partial

    from dlpar import collectives as c

    found = []
    for case in cases:
        inputs, root = inputs_of(case, comm.size), case["root"] % comm.size
        # Added in more than float64, or the reference would be off by as many roundings as what is looked at.
        exact = torch.from_numpy(
            sum(i.double().numpy().astype("longdouble") for i in inputs).astype("float64")
        )
        # one rounding: half the distance to the next number, at the largest partial sum there can be
        rounding = torch.finfo(case["dtype"]).eps * torch.stack([i.double().abs() for i in inputs]).sum(0) / 2
        spread = inputs[root].double()
        own = {
            **{name: (c.ALLREDUCE[name], exact, None) for name in c.ALLREDUCE if name != "hierarchical"},
            "hierarchical": (partial(c.hierarchical_allreduce, group=case["group"]), exact, None),
            "tree_aggregate": (partial(c.tree_aggregate, depth=case["depth"], root=root), exact, root),
            "star_reduce": (partial(c.star_reduce, root=root), exact, root),
            "tree_reduce": (partial(c.tree_reduce, root=root), exact, root),
            "library_reduce": (partial(type(comm).reduce, root=root), exact, root),
            "star_broadcast": (partial(c.star_broadcast, root=root), spread, None),
            "tree_broadcast": (partial(c.tree_broadcast, root=root), spread, None),
            "torrent_broadcast": (partial(c.torrent_broadcast, root=root), spread, None),
            "library_broadcast": (partial(type(comm).broadcast_tensor, root=root), spread, None),
        }
        results = {}
        for name, (collective, expected, where) in own.items():
            mine = inputs[comm.rank].clone()
            comm.traffic.take()
            collective(comm, mine)
            traffic = comm.traffic.take()
            wrong = 0.0
            if where in (None, comm.rank) and case["count"]:
                allowed = rounding if expected is exact else torch.zeros_like(rounding)
                wrong = ((mine.double() - expected).abs() / (allowed + 1e-300)).max().item()
            results[name] = wrong, zlib.crc32(mine.double().numpy()) if where is None else None, traffic
        found.append(results)
    return found


@pytest.mark.parametrize("workers", range(1, 10))
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=CASES)
def test_every_collective_is_right_on_every_rank_and_sends_what_its_closed_form_says(workers, drawn):
    assume(any(case["count"] for case in drawn))  # Hypothesis likes to begin with nothing but zeros
    cases = [*EDGES, *drawn]
    by_rank = dlpar.spmd(every_collective, cases, workers=workers)
    for number, case in enumerate(cases):
        results = [ranks[number] for ranks in by_rank]
        for name in results[0]:
            told = name, workers, case
            errors, bits, traffic = zip(*(result[name] for result in results))
            assert max(errors) <= workers, told  # N - 1 additions and a conversion, each rounded once
            assert len(set(bits)) == 1, ("replicas agree to the last bit", told)
            if "library" in name:
                assert {t["bytes"] for t in traffic} == {None}, told
                continue
            cost = closed_form(name, workers, case["count"], case["dtype"].itemsize, group=case["group"])
            messages, sent = [t["messages"] for t in traffic], [t["bytes"] for t in traffic]
            assert (sum(messages), max(messages)) == (cost.messages, cost.busiest_messages), told
            assert (sum(sent), max(sent)) == (cost.bytes, cost.busiest_bytes), told


@pytest.mark.parametrize("carrier", ["mpi", "gloo"])
def test_reduce_scatter_and_allgather_work_on_their_own_and_as_the_library_does_them(carrier):
    def halves(_, carrier):
        from dlpar import collectives as c
        from dlpar.config.experiment import Cluster
        from dlpar.worlds.connect import connect

        comm = connect(Cluster(device="cpu", carrier=carrier))
        own, answers = comm.rank, []
        for scatter, gather in c.HALVES.values():
            for dtype in (torch.float32, torch.bfloat16):
                chunks = torch.full((7,), float(comm.rank + 1), dtype=dtype).tensor_split(comm.size)
                comm.traffic.take()
                scatter(comm, chunks)
                summed = chunks[own].tolist()
                parts = [torch.full((n,), -1.0, dtype=dtype) for n in (3, 0, 2)]
                parts[own].fill_(comm.rank)
                gather(comm, parts)
                answers.append((summed, [p.unique().tolist() for p in parts], comm.traffic.take()["bytes"]))
        comm.close()
        return answers

    gathered = [[0.0], [], [2.0]]
    by_rank = dlpar.spmd(halves, carrier, workers=3)
    for rank, length in enumerate([3, 2, 2]):
        sums = [6.0] * length
        sent = [7 - length + 5 - (3, 0, 2)[(rank + 1) % 3]] * 2  # all chunks but one, twice
        assert by_rank[rank] == [
            (sums, gathered, sent[0] * 4),
            (sums, gathered, sent[1] * 2),
            (sums, gathered, None),
            (sums, gathered, None),
        ]


def test_library_reduce_and_broadcast_work_without_mpi():
    def both(_):
        from dlpar.config.experiment import Cluster
        from dlpar.worlds.connect import connect

        comm = connect(Cluster(device="cpu", carrier="gloo"))
        total, spread = torch.full((5,), comm.rank + 1.0), torch.full((4, 2), float(comm.rank)).t()
        comm.reduce(total, 2)
        comm.broadcast_tensor(spread, 1)
        comm.close()
        return total.tolist() if comm.rank == 2 else None, spread.unique().tolist()

    assert dlpar.spmd(both, workers=3) == [(None, [1.0]), (None, [1.0]), ([6.0] * 5, [1.0])]


def test_a_ring_of_chosen_ranks_leaves_the_others_alone():
    def some(comm):
        from dlpar.collectives import ring_allreduce

        value = torch.full((5,), float(comm.rank))
        if comm.rank in (3, 0, 2):
            ring_allreduce(comm, value, ranks=[3, 0, 2])
        return value.unique().tolist()

    assert dlpar.spmd(some, workers=4) == [[5.0], [1.0], [5.0], [5.0]]


def test_a_deep_tree_spreads_the_roots_receives():
    """Spark's tree of 16 partitions: 15 messages to the driver at depth 1, 3 or fewer at a time deeper down."""

    def received(comm, depths):
        from dlpar.collectives import tree_aggregate

        counts = []
        for depth in depths:
            arrivals, recv = [], comm.recv
            comm.recv = lambda *a, **k: arrivals.append(1) or recv(*a, **k)
            value = torch.full((3,), float(2**comm.rank), dtype=torch.float64)
            tree_aggregate(comm, value, depth)
            comm.recv = recv
            counts.append((len(arrivals), value[0].item() if comm.rank == 0 else None))
        return counts

    by_rank = dlpar.spmd(received, [1, 2, 4], workers=16)
    fan_in = [[count for count, _ in depths] for depths in zip(*by_rank)]
    assert [total for _, total in by_rank[0]] == [2.0**16 - 1] * 3
    assert fan_in[0] == [15] + [0] * 15
    # Scale 4: as 16 > 4 + 4, numbers 4 to 15 go to 0 to 3, three each; then those three go to the driver.
    assert fan_in[1] == [3 + 3, 3, 3, 3] + [0] * 12
    # Scale 2: 16 > 2 + 8 and 8 > 2 + 4 and 4 is not: 8 to the first 8, 4 to the first 4, 3 to the driver.
    assert fan_in[2] == [1 + 1 + 3, 2, 2, 2, 1, 1, 1, 1] + [0] * 8


def test_what_no_collective_can_do_is_refused_in_a_sentence():
    def complaints(comm):
        from dlpar import collectives as c

        said = []
        for collective, wrong in [
            (c.tree_reduce, {"root": 2}),
            (c.tree_aggregate, {"depth": 0}),
            (c.hierarchical_allreduce, {"group": 0}),
            (type(comm).reduce, {"root": -1}),
        ]:
            try:
                collective(comm, torch.zeros(3), **wrong)
            except ValueError as error:
                said.append(str(error))
        return said

    assert (
        dlpar.spmd(complaints, workers=2, timeout=10)
        == [
            [
                "root: got 2, allowed is a rank from 0 to 1",
                "depth: got 0, allowed is a whole number from 1",
                "group: got 0, allowed is a whole number from 1",
                "root: got -1, allowed is a rank from 0 to 1",
            ]
        ]
        * 2
    )


def test_closed_forms_are_the_textbooks():
    ring, tree = closed_form("ring", 8, 8000, 4), closed_form("tree_allreduce", 8, 8000, 4)
    assert ring.busiest_bytes == 2 * 7 / 8 * 32_000 and ring.messages == 8 * 14
    assert tree.busiest_bytes == 3 * 32_000 and tree.messages == 14
    assert closed_form("halving_doubling", 8, 8000, 4).busiest_messages == 2 * 3
    assert closed_form("hierarchical", 8, 8000, 4, group=4).messages == 2 * 6 + 2 * 2
    with pytest.raises(ValueError, match="name: got 'library', allowed is one of star, "):
        closed_form("library", 2, 1, 4)
    with pytest.raises(ValueError, match="group: got 0, allowed is a whole number from 1"):
        closed_form("hierarchical", 2, 1, 4, group=0)
