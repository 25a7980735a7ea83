"""Messages between simulated ranks are matched with receives as MPI matches them, and arrive as they were sent."""

from __future__ import annotations

import pytest
import torch
from simulations import KB, MS, cluster, run

from dlpar.comm import ANY, Arrival
from dlpar.theory import Link
from worlds.test_mpi import DTYPES

TWO_LINKS = cluster(devices=2, inside=Link(0.1 * MS, 1e8))
"""Two ranks a node: a tenth of the latency and a hundredth of the seconds a byte within it."""


def number(comm, *receive) -> float:
    """The one number of the next message."""
    into = torch.empty(1)
    comm.recv(into, *receive)
    return into.item()


def test_every_dtype_layout_and_size_arrives():
    def exchange(comm):
        right, left, wrong = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, []
        for dtype in DTYPES:
            for shape in [(), (0,), (1,), (3, 5), (1000,)]:
                draw = torch.Generator().manual_seed(7)
                whole = torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=draw)
                sent, got = (whole + comm.rank).to(dtype), torch.zeros(shape, dtype=dtype)
                arrival = comm.sendrecv(sent, right, got, left)
                if not torch.equal(got, (whole + left).to(dtype)) or arrival != Arrival(left, 0, sent.nbytes):
                    wrong.append((dtype, shape))
            for room in (torch.zeros(4, 6).t(), torch.zeros(24), torch.zeros(5, 6).t()):
                there = room.to(dtype)
                sent = torch.arange(24).to(dtype).view(4, 6).t()  # neither end contiguous
                comm.sendrecv(sent, right, there, left)
                if not torch.equal(there.flatten()[:24], sent.flatten()):
                    wrong.append((dtype, tuple(there.shape)))
        return wrong

    assert run(exchange, 3) == [[], [], []]


def test_an_arrival_says_who_which_tag_and_how_much_as_a_tuple_does():
    def told(comm):
        if comm.rank:
            comm.send(torch.zeros(3), 0, 7)
            return None
        source, tag, nbytes = arrival = comm.recv(torch.empty(9))
        return arrival == (1, 7, 12), (source, tag, nbytes), repr(arrival), arrival.nbytes

    assert run(told, 2)[0] == (True, (1, 7, 12), "Arrival(source=1, tag=7, nbytes=12)", 12)


def test_a_message_is_what_was_there_when_it_was_sent():
    def overwritten(comm):
        value = torch.tensor([1.0])
        if comm.rank == 0:
            comm.send(value, 1)
            value.fill_(2.0)
            return None
        comm.world.pause(1.0)
        return number(comm)

    assert run(overwritten, 2)[1] == 1.0


def test_messages_of_one_tag_come_in_the_order_of_sending_and_tags_keep_them_apart():
    def ordered(comm):
        if comm.rank == 0:
            for tag, value in [(1, 10), (2, 20), (1, 11), (2, 21), (1, 12)]:
                comm.send(torch.tensor([float(value)]), 1, tag)
            return None
        comm.world.pause(1.0)
        return [
            number(comm, 0, 2),
            number(comm, 0, 1),
            number(comm, ANY, 1),
            number(comm, 0, ANY),
            number(comm),
        ]

    assert run(ordered, 2)[1] == [20.0, 10.0, 11.0, 21.0, 12.0]
    assert run(ordered, [0, 0], TWO_LINKS)[1] == [20.0, 10.0, 11.0, 21.0, 12.0]


def test_any_source_takes_the_message_that_is_complete_first():
    def funnel(comm, tardy):
        if comm.rank:
            comm.world.pause((comm.size - comm.rank) * 10 * MS)  # the highest sends first
            comm.send(torch.tensor([float(comm.rank)]), 0)
            return None
        comm.world.pause(1.0 if tardy else 0.0)
        return [number(comm) for _ in range(comm.size - 1)]

    for tardy in (False, True):
        assert run(lambda comm: funnel(comm, tardy), 5)[0] == [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize("long", [10 * KB, 100 * KB])
@pytest.mark.parametrize("call", ["recv", "irecv", "irecv, and wait when all is there"])
def test_any_source_takes_the_first_complete_also_where_messages_come_over_two_links(call, long):
    """From another node a long one begins to arrive at 1 ms; within the node one comes at 2 ms, all at once."""

    def both_ways(comm):
        if comm.rank == 2:  # on the other node; above the eager limit its send waits, too
            comm.send(torch.full((long // 4,), 2.0), 0)
        elif comm.rank == 1:
            comm.world.pause(2 * MS)
            comm.send(torch.full((25 * KB,), 1.0), 0)
        elif comm.rank == 0:
            into, heard = torch.empty(25 * KB), []
            for _ in range(2):
                request = None if call == "recv" else comm.irecv(into)
                comm.world.pause(0.2 if "wait" in call else 0.0)
                arrival = request.wait() if request else comm.recv(into)
                heard.append((arrival.source, into[0].item(), round(comm.now() / MS, 3)))
            return heard
        return round(comm.now() / MS, 3)

    heard, near, far, _ = run(both_ways, [0, 0, 1, 1], TWO_LINKS)
    at = [200.0, 400.0] if "wait" in call else [3.1, 1 + long / KB]  # 2 + 0.1 + 1 ms; 1 ms and 1 ms a KB
    assert heard == [(1, 1.0, at[0]), (2, 2.0, at[1])]
    assert near == 3.0  # it had left when it had been sent, the receive having been posted
    assert far == (0.0 if long < 65_536 else long / KB)


def test_a_long_message_that_overtakes_another_releases_its_sender():
    """Within the node 10 ms a KB; from another node a head that takes 1 ms, and then next to nothing."""

    def overtaken(comm):
        if comm.rank == 1:
            comm.send(torch.zeros(250), 0)
        if comm.rank == 2:
            comm.world.pause(2 * MS)
            comm.send(torch.zeros(25 * KB), 0)  # above the eager limit
        heard = [comm.recv(torch.zeros(25 * KB)).source for _ in range(2)] if comm.rank == 0 else None
        return heard, round(comm.now() / MS, 3)

    platform = cluster(devices=2, inside=Link(0.1 * MS, 1e5), between=Link(1 * MS, 1e9))
    assert run(overtaken, [0, 0, 1, 1], platform)[:3] == [([2, 1], 10.1), (None, 0.0), (None, 2.1)]


def test_order_of_one_sender_is_kept_though_another_overtakes_it():
    """Two wait for the port that a long one keeps; a rank of the same node, on a port of its own, comes before both."""

    def overtaken(comm):
        if comm.rank == 3:
            comm.send(torch.empty(10 * KB), 0, tag=9)  # keeps the port of rank 0's node until 41 ms
        elif comm.rank == 2:
            comm.world.pause(1 * MS)
            comm.send(torch.tensor([2.0]), 0)
            comm.send(torch.tensor([2.5]), 0)
        elif comm.rank == 1:
            comm.world.pause(10 * MS)
            comm.send(torch.tensor([1.0]), 0)
        else:
            first, at = number(comm, ANY, 0), comm.now()
            return first, number(comm, 2, 0), number(comm, ANY, 0), round(at / MS)

    assert run(overtaken, [0, 0, 1, 2], TWO_LINKS)[0] == (1.0, 2.0, 2.5, 10)


def test_receives_are_matched_in_the_order_in_which_they_were_posted():
    def posted(comm, late):
        if comm.rank == 0:
            comm.world.pause(late)
            for value in range(4):
                comm.send(torch.tensor([float(value)]), 1, tag=value % 2)
            return None
        slots = [torch.full((1,), -1.0) for _ in range(4)]
        requests = [
            comm.irecv(slot, *which) for slot, which in zip(slots, [(0, 1), (ANY, ANY), (0, ANY), (0, 1)])
        ]
        tags = [request.wait().tag for request in reversed(requests)]  # waited for in another order
        return [slot.item() for slot in slots], tags[::-1]

    for late in (0.0, 1.0):  # a message of tag 0 is the first, and not for the first receive
        values, tags = run(lambda comm: posted(comm, late), 2)[1]
        assert values == [1.0, 0.0, 2.0, 3.0] and tags == [1, 0, 0, 1]


@pytest.mark.parametrize("first", ["message", "receive"])
def test_a_request_tells_when_its_message_is_there_and_the_same_however_often_it_is_asked(first):
    def later(comm):
        if comm.rank == 0:
            comm.world.pause(0.0 if first == "message" else 10 * MS)
            comm.send(torch.ones(250), 1, 9)  # 1 ms and 1 ms on its way
            return None
        comm.world.pause(0.0 if first == "receive" else 10 * MS)
        into = torch.zeros(250)
        request, seen = comm.irecv(into, 0, 9), []
        for _ in range(13):
            seen.append(request.test())
            comm.world.pause(1 * MS)
        arrival = request.wait()
        return seen.index(True), seen[-1], request.wait() == arrival == Arrival(0, 9, 1000), into.sum().item()

    assert run(later, 2)[1] == (0 if first == "message" else 12, True, True, 250.0)


def test_a_rank_hears_itself_before_others_that_are_on_their_way():
    def alone(comm):
        if comm.rank == 1:
            comm.send(torch.tensor([1.0]), 0)
            return None
        comm.world.pause(0.5 * MS)  # the other's is on its way
        comm.send(torch.tensor([0.0]), 0)
        heard = number(comm), comm.now(), number(comm), comm.now() > 1 * MS
        mine, into = torch.tensor([5.0]), torch.zeros(1)
        comm.sendrecv(mine, 0, into, 0)
        return (*heard, into.item())

    assert run(alone, 2)[0] == (0.0, 0.5 * MS, 1.0, True, 5.0)


def test_a_message_without_bytes_takes_the_latency_and_says_its_tag():
    def empty(comm):
        if comm.rank == 0:
            comm.send(torch.empty(0), 1, tag=3)
            return None
        return comm.recv(torch.empty(0)), comm.now()

    assert run(empty, 2)[1] == ((0, 3, 0), 1 * MS)


@pytest.mark.parametrize("computes", [True, False])
def test_a_message_longer_than_the_room_for_it_is_refused(computes):
    def too_long(comm):
        if comm.rank == 0:
            comm.send(comm.empty(10), 1)
        else:
            comm.recv(comm.empty(3), 0)

    with pytest.raises(ValueError, match=r"recv: there is room for 12 bytes, but rank 0 sent 40 \(tag 0\)"):
        run(too_long, 2, computes=computes)


def test_ranks_that_do_not_exist_are_refused_by_name():
    value = torch.zeros(1)
    for call, said in {
        lambda comm: comm.send(value, 7): "dest: got 7, allowed is a rank from 0 to 1",
        lambda comm: comm.isend(value, -1): "dest: got -1, allowed is a rank from 0 to 1",
        lambda comm: comm.recv(value, 2): "source: got 2, allowed is a rank from 0 to 1",
        lambda comm: comm.irecv(value, -2): "source: got -2, allowed is a rank from 0 to 1",
        lambda comm: comm.sendrecv(value, 0, value, 2): "source: got 2, allowed is a rank from 0 to 1",
        lambda comm: comm.reduce(value, 2): "root: got 2, allowed is a rank from 0 to 1",
        lambda comm: comm.gather(1, root=3): "root: got 3, allowed is a rank from 0 to 1",
        lambda comm: comm.broadcast(1, root=-1): "root: got -1, allowed is a rank from 0 to 1",
    }.items():
        with pytest.raises(ValueError, match=said):
            run(call, 2)
