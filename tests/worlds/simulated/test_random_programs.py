"""Random programs that end on MPI end in the simulation, on every kind of network, with values and without."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulations import MS, cluster, run

from dlpar.collectives import halving_doubling_allreduce, ring_allreduce
from dlpar.comm import ANY
from dlpar.theory import Link
from dlpar.worlds.platforms import Device, placement

PLATFORMS = {
    "one node each": cluster(eager=1000),
    "busy processors": cluster(link=Link(1 * MS, 1e6, 0.3 * MS), eager=1000),
    "three a node on one card": cluster(devices=3, inside=Link(1e-5, 1e8), eager=1000),
    "three a node, slow inside": cluster(
        devices=3, inside=Link(1e-5, 1e5), between=Link(10 * MS, 1e9), nic="each", eager=1000
    ),
}
ACT = st.fixed_dictionaries(
    {
        "what": st.sampled_from(["incast", "in turn", "ring", "all-reduce", "beside", "barrier"]),
        "length": st.sampled_from([0, 10, 300, 5000]),  # float32: below and above the eager limit
        "root": st.integers(0, 6),
        "late": st.lists(st.sampled_from([0, 0, 1, 3]), min_size=7, max_size=7),  # ms, by rank
    }
)


def act(comm, what: str, length: int, root: int, tag: int) -> None:
    me, size, root = comm.rank, comm.size, root % comm.size
    others = [rank for rank in range(size) if rank != root]
    if what == "incast" and me == root:
        requests = [comm.irecv(comm.empty(length), ANY, tag) for _ in others[::2]]
        for _ in others[1::2]:
            comm.recv(comm.empty(length), ANY, tag)
        for request in reversed(requests):
            request.wait()
    elif what == "in turn" and me == root:
        for source in others:
            comm.recv(comm.empty(length), source, tag)
    elif what in ("incast", "in turn"):
        comm.send(comm.empty(length), root, tag)
    elif what == "ring":
        comm.sendrecv(comm.empty(length), (me + 1) % size, comm.empty(length), (me - 1) % size, tag)
    elif what == "all-reduce":
        halving_doubling_allreduce(comm, comm.empty(length))
    elif what == "beside":
        request = comm.start(ring_allreduce, comm.empty(length))
        comm.compute(lambda: None, cost=1e15 * me)  # a millisecond a rank
        request.wait()
    else:
        comm.barrier()


@pytest.mark.parametrize("where", PLATFORMS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(ranks=st.integers(1, 7), acts=st.lists(ACT, min_size=1, max_size=8))
def test_what_cannot_deadlock_does_not_and_no_clock_runs_backwards(where, ranks, acts):
    platform = PLATFORMS[where]

    def program(comm):
        seen = [comm.now()]
        for number, each in enumerate(acts, 1):
            comm.world.pause(each["late"][comm.rank] * MS)
            act(comm, each["what"], each["length"], each["root"], tag=number)
            seen.append(comm.now())
        return seen

    nodes = placement(ranks, 0, platform)
    by_rank = run(program, nodes, platform, computes=False)
    assert all(seen == sorted(seen) for seen in by_rank)
    assert by_rank == run(program, nodes, platform, computes=True)
    for number, each in enumerate(acts, 1):
        if each["what"] == "barrier":
            assert len({seen[number] for seen in by_rank}) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_end_of_a_computation_is_not_before_the_last_of_its_marks(ranks):
    def marked(comm):
        seen = []
        comm.world.pause(1.53)
        comm.world.backward(comm, lambda: None, cost=0.26, marks=[(1.0, lambda: seen.append(comm.now()))])
        return comm.now() - seen[0]

    seconds = cluster(device=Device(name="a FLOP a second", flops=1.0))
    assert 1.79 + 0.26 - 0.26 < 1.79  # rounded
    assert run(marked, ranks, seconds, computes=False) == [0.0] * ranks
