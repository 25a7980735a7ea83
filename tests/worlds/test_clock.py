"""All ranks count seconds from one moment."""

from __future__ import annotations

import pytest

import dlpar

pytestmark = pytest.mark.slow


def test_all_ranks_read_one_clock():
    """Nobody leaves a barrier before everybody has come: true of the times they read only if the clock is one."""

    def sandwich(comm):
        times = []
        for _ in range(30):
            came = comm.now()
            comm.barrier()
            times.append((came, comm.now()))
        return times

    for rounds in zip(*dlpar.spmd(sandwich, workers=6)):
        assert max(came for came, _ in rounds) <= min(left for _, left in rounds)
    assert all(came >= 0 for came, _ in rounds)


def test_clocks_of_several_machines_are_brought_together():
    """Every rank as if it led a machine of its own: they agree on second 0 to within a scheduling delay."""

    def zero(comm):
        from dlpar.worlds.mpi import _across

        return _across(comm.mpi)

    zeros = dlpar.spmd(zero, workers=2)
    assert abs(zeros[0] - zeros[1]) < 0.002
