"""When messages arrive: ports at both ends, latency, the eager limit, and computing beside it all."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from simulations import KB, LINK, MS, cluster, ends, run

from dlpar.comm import ANY
from dlpar.theory import Link
from dlpar.worlds.platforms import Device, Timing
from dlpar.worlds.simulated.network import Network


def times(program, *where) -> list:
    """Milliseconds a program gives on each rank, on buffers without values."""
    return [
        told if told is None else [round(t / MS, 6) for t in told]
        for told in run(program, *where, computes=False)
    ]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (ANY, ANY, ANY)])
def test_an_incast_is_served_in_order_of_arrival_whatever_is_received_first(order):
    def incast(comm):
        if comm.rank:
            comm.world.pause(comm.rank * 2 * MS)
            comm.send(comm.empty(1 * KB), 0)  # 4 ms of the port
            return None
        at = {}
        for source in order:
            source = comm.recv(comm.empty(1 * KB), source).source
            at[source] = comm.now()
        return [at[1], at[2], at[3]]

    # heads arrive at 3, 5 and 7 ms, and the port is free at 7, 11 and 15
    told = times(incast, 4)[0]
    assert told == ([15.0, 15.0, 15.0] if order[0] == 3 else [7.0, 11.0, 15.0])


def test_a_rank_sends_one_message_after_the_other_and_each_arrives_a_latency_after_it_began_to_leave():
    def spread(comm):
        if comm.rank == 0:
            for dest in (1, 2, 3):
                comm.isend(comm.empty(1 * KB), dest)
            return [comm.now()]
        comm.recv(comm.empty(1 * KB))
        return [comm.now()]

    assert times(spread, 4) == [[0.0], [5.0], [9.0], [13.0]]


def test_a_port_carries_one_message_out_and_one_in_at_a_time():
    def swap(comm):
        comm.sendrecv(comm.empty(1 * KB), 1 - comm.rank, comm.empty(1 * KB), 1 - comm.rank)
        return [comm.now()]

    assert times(swap, 2) == [[5.0], [5.0]]

    def later(comm):  # what comes in from 1 ms on does not keep the port from what goes out at 2 ms
        if comm.rank == 0:
            comm.send(comm.empty(1 * KB), 1)
        if comm.rank == 1:
            comm.world.pause(2 * MS)
            comm.send(comm.empty(1 * KB), 2)
        if comm.rank == 2:
            comm.recv(comm.empty(1 * KB))
        return [comm.now()]

    assert times(later, 3)[2] == [7.0]


@pytest.mark.parametrize("nic, last", [("shared", 9.0), ("each", 5.0)])
def test_ranks_of_a_node_share_its_card_or_have_one_each(nic, last):
    """Two ranks of node 0 send to two ranks of node 1 at once."""

    def across(comm):
        if comm.rank < 2:
            comm.send(comm.empty(1 * KB), comm.rank + 2)
            return None
        comm.recv(comm.empty(1 * KB))
        return [comm.now()]

    platform = cluster(devices=2, inside=Link(0.1 * MS, 1e8), nic=nic)
    assert times(across, [0, 0, 1, 1], platform)[2:] == [[5.0], [last]]


def test_inside_a_node_every_rank_has_a_port_of_its_own_on_the_inner_link():
    def inner(comm):
        partner = comm.rank ^ 1
        comm.sendrecv(comm.empty(25 * KB), partner, comm.empty(25 * KB), partner)
        return [comm.now()]

    inside = Link(0.1 * MS, 1e8)
    assert times(inner, [0] * 4, cluster(devices=4, inside=inside)) == [[1.1]] * 4
    # A platform of one node.
    assert times(inner, [0] * 4, cluster(1, None, devices=4, inside=inside)) == [[1.1]] * 4
    assert times(inner, [0] * 4, cluster(2, inside, devices=4, inside=inside)) == [[1.1]] * 4


@pytest.mark.parametrize("nbytes, returns", [(65_536, 0.0), (65_540, 165.54)])
def test_a_send_above_the_eager_limit_waits_for_its_receiver_and_the_transfer_for_nobody(nbytes, returns):
    def tardy(comm):
        buffer = comm.empty(nbytes // 4)
        if comm.rank == 0:
            comm.send(buffer, 1)
            sent = comm.now()
            request = comm.isend(buffer, 1)
            assert request.test() == (nbytes <= 65_536) and comm.now() == sent  # never blocks
            request.wait()
            assert request.test()
            return [sent]
        comm.world.pause(165.54 * MS)
        comm.recv(buffer)
        received = comm.now()
        comm.recv(buffer)
        return [received]

    sent, received = times(tardy, 2)
    assert sent == [returns] and received == [165.54]  # it had all been there


def test_a_send_that_waits_ends_when_its_message_has_left_if_the_receiver_was_there_before():
    def early(comm):
        if comm.rank == 1:
            request = comm.irecv(comm.empty(25 * KB))
            comm.world.pause(1.0)
            request.wait()
        else:
            comm.world.pause(10 * MS)
            comm.send(comm.empty(25 * KB), 1)
        return [comm.now()]

    assert times(early, 2)[0] == [110.0]


def test_who_waits_to_send_goes_on_once_it_can_know_and_no_clock_runs_backwards():
    """On a slow link a head takes 50 ms to the receive that waits for it; meanwhile others have moved on.

    A sender whose port is free knows at once when its bytes will have left, as where every rank has a node.
    """

    def met_late(comm, behind):
        request = comm.irecv(comm.empty(300), 0) if comm.rank == 2 else None
        if comm.rank == 0:
            for _ in range(behind):
                comm.isend(comm.empty(250), 3)  # keeps the port for 1 ms
            comm.send(comm.empty(300), 2)  # above the limit; it leaves in 1.2 ms
        else:
            comm.world.pause(10 * MS)
        before = comm.now()
        comm.barrier()
        return [before, comm.now(), request.wait() and comm.now() if request else 0.0]

    platform = cluster(devices=2, inside=Link(1e-6, 1e8), between=Link(50 * MS, 1e6), eager=1000)
    assert times(partial(met_late, behind=1), [0, 0, 1, 1], platform) == [
        [51.0, 51.0, 0.0],
        [10.0, 51.0, 0.0],
        [10.0, 51.0, 52.2],
        [10.0, 51.0, 0.0],
    ]
    assert times(partial(met_late, behind=0), [0, 0, 1, 1], platform)[0] == [1.2, 10.0, 0.0]


def test_of_several_ranks_on_a_node_blocking_sends_take_no_longer_than_of_one():
    def sends(comm):
        for _ in range(8):
            if comm.rank == 0:
                comm.send(comm.empty(300), comm.size - 1)
            elif comm.rank == comm.size - 1:
                comm.recv(comm.empty(300), 0)
        return [comm.now()]

    alone, shared = (
        times(sends, nodes, cluster(devices=2, inside=Link(1e-6, 1e8), between=Link(5 * MS, 1e6), eager=1000))
        for nodes in ([0, 1], [0, 0, 1, 1])
    )
    assert (shared[0], shared[-1]) == (alone[0], alone[-1])


def test_a_message_on_its_way_is_not_overtaken_by_one_whose_head_arrives_later():
    def late(comm):
        if comm.rank == 1:
            comm.isend(comm.empty(1 * KB), 0, 1)
            # Leaves at 4 ms, when the first has left: its head is there at 5.
            comm.isend(comm.empty(1 * KB), 0, 2)
        elif comm.rank == 2:
            comm.world.pause(4.5 * MS)
            comm.isend(comm.empty(1 * KB), 0, 3)  # there at 5.5
        else:
            return [at for _ in range(3) for at in (comm.recv(comm.empty(1 * KB)).tag * MS, comm.now())]

    assert times(late, 3)[0] == [1, 5.0, 2, 9.0, 3, 13.0]


def test_a_computation_takes_what_its_device_needs_and_a_straggler_so_many_times_as_long():
    def work(comm):
        comm.compute(lambda: None, cost=5e6)
        comm.compute(lambda: None)  # no cost: no time
        return comm.now()

    device = Device(name="slow", flops=1e9)
    assert run(work, 3, cluster(device=device, stragglers={1: 4.0})) == pytest.approx(
        [5 * MS, 20 * MS, 5 * MS]
    )


def test_times_that_vary_are_drawn_by_seed_rank_and_step_and_have_the_mean_of_the_platform():
    def steps(comm):
        took = []
        for step in range(50):
            comm.world.new_step(step)
            began = comm.now()
            comm.compute(lambda: None, cost=1e6)
            took.append((comm.now() - began) / MS)
        return took

    platform = cluster(device=Device(name="slow", flops=1e9), timing=Timing(kind="gamma", cv=0.3))
    first, again, other = (run(steps, 8, platform, computes=False, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    drawn = torch.tensor(first)
    assert drawn.mean().item() == pytest.approx(1, rel=0.05) and drawn.std().item() == pytest.approx(
        0.3, rel=0.15
    )


@pytest.mark.parametrize("computes", [True, False])
def test_a_started_collective_hides_behind_the_computation(computes):
    """Both together take as long as the longer one, not their sum."""
    from dlpar.collectives import ring_allreduce

    device = Device(name="slow", flops=1e9)

    def overlapped(comm, flops: float, beside: bool) -> tuple[float, float]:
        bucket = torch.ones(1000) if computes else comm.empty(1000)
        request = comm.start(ring_allreduce, bucket) if beside else ring_allreduce(comm, bucket)
        comm.compute(lambda: None, cost=flops)
        request.wait() if beside else None
        return comm.now(), bucket.sum().item() if computes else 4000.0

    def took(*how) -> float:
        (seconds, total), *others = run(
            lambda comm: overlapped(comm, *how), 4, cluster(device=device), computes
        )
        assert total == 4000.0
        return max([seconds, *(t for t, _ in others)]) / MS

    alone = took(0.0, False)  # 6 (1 + 1) ms, and 3 times 250 FLOPs at 1 GFLOP/s
    assert alone == pytest.approx(12, rel=1e-3)
    assert took(5e6, False) == pytest.approx(alone + 5)
    assert took(5e6, True) == pytest.approx(alone)
    assert took(30e6, True) == pytest.approx(30)


@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_computing_stops_while_any_of_the_rank_s_groups_communicates(groups, computes):
    """With an overlap of 0, the seconds add up, also if other groups than the computing one communicate."""
    from dlpar.collectives import ring_allreduce

    def overlapped(comm, flops: float) -> float:
        started = []
        for _ in range(groups):
            bucket = torch.ones(1000) if computes else comm.empty(1000)
            started.append(comm.split(0, comm.rank).start(ring_allreduce, bucket))
        comm.compute(lambda: None, cost=flops)
        for request in started:
            request.wait()
        return comm.now() / MS

    still = cluster(device=Device(name="slow", flops=1e9), overlap=0.0)
    communicating, both = (
        max(run(lambda comm: overlapped(comm, flops), 4, still, computes)) for flops in (0.0, 30e6)
    )
    assert both == pytest.approx(communicating + 30)


@pytest.mark.parametrize("computes", [True, False])
def test_marks_are_called_at_their_moments_of_a_computation(computes):
    def marked(comm):
        seen = []
        marks = [(share, lambda: seen.append(comm.now() / MS)) for share in (0.0, 0.25, 1.0)]
        comm.world.backward(comm, lambda: None, cost=4e6, marks=marks)
        # A rank without samples announces its buckets, too.
        comm.world.backward(comm, lambda: None, cost=0, marks=marks)
        return seen

    platform = cluster(device=Device(name="slow", flops=1e9))
    assert run(marked, 1, platform, computes) == [pytest.approx([0, 1, 4, 4, 4, 4])]


def test_collectives_started_by_a_rank_reach_those_that_start_theirs_later():
    from dlpar.collectives import ring_allreduce

    def staggered(comm):
        comm.world.pause(comm.rank * 100 * MS)
        buckets = [torch.full((n,), comm.rank + 1.0) for n in (5, 1000, 0, 17)]
        requests = [comm.start(ring_allreduce, bucket) for bucket in buckets]
        comm.barrier()  # the rank's own messages do not meet those of what runs beside
        done = [request.test() for request in requests]
        for request in requests:
            request.wait()
        return (
            done[0],
            all(request.test() for request in requests),
            [bucket.unique().tolist() for bucket in buckets],
        )

    assert run(staggered, 3) == [(False, True, [[6.0], [6.0], [], [6.0]])] * 3


def test_an_error_in_a_started_collective_reaches_whoever_waits():
    def broken(comm):
        def collective(comm, bucket):
            raise ArithmeticError("beside the computation")

        try:
            comm.start(collective, torch.zeros(1)).wait()
        except ArithmeticError as error:
            return str(error)

    assert run(broken, 2) == ["beside the computation"] * 2


def test_a_lock_keeps_the_two_activities_of_a_rank_apart():
    def guarded(comm):
        guard, inside = comm.world.lock(), []

        def beside(comm, bucket):
            with guard:
                inside.append(("beside", comm.now()))
                comm.world.pause(10 * MS)

        request = comm.start(beside, torch.zeros(1))
        comm.world.pause(1 * MS)
        with guard:
            inside.append(("rank", comm.now()))
        request.wait()
        return inside

    assert run(guarded, 1) == [[("beside", 0.0), ("rank", 10 * MS)]]


def test_bytes_charged_are_those_of_the_model_stood_in_for():
    network = Network(cluster(), [0, 1], scale=1000.0)
    mine, theirs = network.between
    assert mine.out.per_byte * 1 * KB == pytest.approx(1.0) and theirs.out.latency == LINK.latency


def test_two_messages_over_one_port_take_twice_the_time_of_one():
    def stream(comm, messages):
        for _ in range(messages):
            comm.isend(comm.empty(1 * KB), 1) if comm.rank == 0 else comm.recv(comm.empty(1 * KB), 0)

    one, ten = (max(ends(lambda comm: stream(comm, n), 2)) for n in (1, 10))
    assert one == pytest.approx(LINK.seconds(4 * KB)) and ten - one == pytest.approx(9 * 4 * MS)
