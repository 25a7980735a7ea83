"""One second 0 for all ranks, so that what they write down can be laid side by side.

Ranks of one machine read the same monotonic clock and need only agree on a
number: each taking its own at a barrier's end would be wrong by however long
the system let it wait for a core.  Between machines the offset is measured:
of many round trips the quickest, halved (Cristian, "Probabilistic clock
synchronization", Distributed Computing 3, 1989).
"""

from __future__ import annotations

import time

from mpi4py import MPI

from dlpar.comm.patience import meet

ROUND_TRIPS = 20


def common_zero(world: MPI.Intracomm) -> float:
    """``time.monotonic()`` of second 0 on this machine; collective, and the moment is after all ranks have called."""
    meet(world)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    leaders = world.Split(0 if node.rank == 0 else MPI.UNDEFINED, world.rank)
    meet(world)
    zero = 0.0
    if node.rank == 0:
        zero = _across(leaders)
        leaders.Free()
    zero = node.bcast(zero)
    node.Free()
    return zero


def _across(leaders: MPI.Intracomm) -> float:
    """Second 0 by this leader's clock, from round trips between leader 0 and each other."""
    if leaders.rank == 0:
        zero = time.monotonic()
        for other in range(1, leaders.size):
            for _ in range(ROUND_TRIPS):
                leaders.recv(source=other)
                leaders.send(time.monotonic() - zero, dest=other)
        return zero
    best, zero = float("inf"), 0.0
    for _ in range(ROUND_TRIPS):
        asked = time.monotonic()
        leaders.send(None, dest=0)
        since = leaders.recv(source=0)
        answered = time.monotonic()
        if answered - asked < best:
            best, zero = answered - asked, (asked + answered) / 2 - since
    return zero
