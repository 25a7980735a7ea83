"""What simulated ranks do all together, in groups and beside each other: meetings, shared memory, what is counted."""

from __future__ import annotations

import pytest
import torch
from simulations import MS, run


def number(comm) -> float:
    """The one number of the next message."""
    into = torch.empty(1)
    comm.recv(into)
    return into.item()


def test_what_is_gathered_and_broadcast_is_a_copy_of_ones_own():
    def copies(comm):
        mine = {"rank": comm.rank, "values": torch.full((2,), float(comm.rank))}
        told, gathered = comm.broadcast(mine, root=1), comm.gather(mine, root=2)
        mine["values"].fill_(-1)
        told["values"] += comm.rank
        comm.barrier()
        return told["values"].tolist(), gathered and [
            (each["rank"], each["values"].tolist()) for each in gathered
        ]

    assert run(copies, 3) == [
        ([1.0, 1.0], None),
        ([2.0, 2.0], None),
        ([3.0, 3.0], [(0, [0.0] * 2), (1, [1.0] * 2), (2, [2.0] * 2)]),
    ]


def test_split_makes_groups_that_do_not_hear_each_other():
    def halves(comm):
        half, total = comm.split(comm.rank % 2, key=-comm.rank), torch.tensor([float(comm.rank)])
        half.allreduce(total)
        comm.send(torch.tensor([9.0]), (comm.rank + 1) % 4)  # what is sent in one group stays in it
        half.send(torch.tensor([float(comm.rank)]), (half.rank + 1) % 2)
        return half.rank, half.size, total.item(), number(half), number(comm)

    # keys run against ranks: rank 2 comes first among the even ones, rank 3 among the odd
    assert run(halves, 4) == [
        (1, 2, 2.0, 2.0, 9.0),
        (1, 2, 4.0, 3.0, 9.0),
        (0, 2, 2.0, 0.0, 9.0),
        (0, 2, 4.0, 1.0, 9.0),
    ]


def test_shared_memory_is_one_memory_and_a_counter_gives_no_number_twice():
    def write(comm):
        board, counter = comm.shared((comm.size, 2), torch.int64), comm.counter()
        started_at_zero = int(board.sum())
        comm.barrier()
        board[comm.rank] = comm.rank + 1
        comm.barrier()
        return started_at_zero, board.tolist(), [counter.take() for _ in range(3)]

    told = run(write, 3)
    assert [each[:2] for each in told] == [(0, [[1, 1], [2, 2], [3, 3]])] * 3
    assert sorted(number for *_, taken in told for number in taken) == list(range(9))


def test_nobody_leaves_a_barrier_before_everybody_has_come_and_it_takes_no_more_time():
    def meet(comm):
        comm.world.pause(comm.rank * MS)
        comm.barrier()
        return comm.now()

    assert run(meet, 5) == [4 * MS] * 5


def test_traffic_counts_what_was_sent_and_how_long_a_rank_waited():
    def counted(comm):
        if comm.rank == 0:
            comm.world.pause(200 * MS)  # the other one must wait for this
            comm.send(torch.zeros(250), 1)
        else:
            comm.recv(torch.zeros(250), 0)
        return comm.traffic.waited, comm.traffic.take()

    (idle, sent), (waited, nothing) = run(counted, 2)
    assert sent == {"bytes": 1000, "messages": 1} and nothing == {"bytes": 0, "messages": 0}
    assert idle == 0 and waited == pytest.approx(202 * MS)
