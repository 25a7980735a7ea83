"""Messages between real ranks: every dtype, layout and size arrives as it was sent."""

from __future__ import annotations

import pytest
import torch

import dlpar
from dlpar.comm import Arrival

pytestmark = pytest.mark.slow

CARRIERS = ["mpi", "gloo"]
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def on(carrier):
    """The communicator a job with this carrier would get."""
    from dlpar.config.experiment import Cluster
    from dlpar.worlds.connect import connect

    return connect(Cluster(device="cpu", carrier=carrier))


def in_pieces() -> None:
    """Have messages of a thousand bytes described in pieces, by the code for those of 1 GiB."""
    import dlpar.worlds.mpi as mpi
    from dlpar.comm.base import World

    mpi.PIECE, World.eager = 1000, 0


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_dtype_layout_and_size_arrives(carrier):
    def exchange(_, carrier, dtypes):
        comm = on(carrier)
        right, left, wrong = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, []
        for dtype in dtypes:
            for shape in [(), (0,), (1,), (3, 5), (1000,)]:
                generator = torch.Generator().manual_seed(7)
                whole = torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator)
                sent, got = (whole + comm.rank).to(dtype), torch.zeros(shape, dtype=dtype)
                arrival = comm.sendrecv(sent, right, got, left)
                expected = (whole + left).to(dtype)
                if not torch.equal(got, expected) or arrival.source != left:
                    wrong.append((str(dtype), shape))
            # neither end contiguous
            sent = torch.arange(24).to(dtype).view(4, 6).t()
            got = torch.zeros(4, 6, dtype=dtype).t()
            if comm.rank == 0:
                comm.send(sent, right)
            elif comm.rank == 1:
                comm.recv(got, 0, 0)
                if not torch.equal(got, sent):
                    wrong.append((str(dtype), "transposed"))
        comm.close()
        return wrong

    assert dlpar.spmd(exchange, carrier, DTYPES, workers=3) == [[], [], []]


@pytest.mark.parametrize("world", ["real", "paced", "simulated"])
def test_views_that_defer_a_conjugation_or_a_sign_arrive_as_numbers(world):
    def exchange(comm):
        other, one, three = 1 - comm.rank, torch.tensor([1 + 2j]).conj(), torch.tensor([3 + 4j])
        got, room = torch.zeros(1, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj()
        comm.sendrecv(one, other, got, other)
        comm.sendrecv(three, other, room, other)
        spectrum, summed, signed = torch.tensor([5 + 6j]).conj(), one.clone().conj(), one.imag.clone()
        comm.broadcast_tensor(spectrum)
        comm.allreduce(summed)
        signed = torch._neg_view(signed)
        comm.allreduce(signed)
        return [each.tolist() for each in (got, room, spectrum, summed, signed)]

    expected = [[1 - 2j], [3 + 4j, 0j], [5 - 6j], [2 + 4j], [4.0]]
    assert dlpar.spmd(exchange, workers=2, world=world) == [expected] * 2


@pytest.mark.parametrize("world", ["real", "paced", "simulated"])
def test_an_arrival_is_read_by_name_and_by_place(world):
    def exchange(comm):
        arrival = comm.sendrecv(torch.ones(3), 1 - comm.rank, torch.zeros(3), 1 - comm.rank, tag=4)
        source, tag, nbytes = arrival
        return (source, tag, nbytes) == (arrival[0], arrival[1], arrival[-1]) == (arrival.source, 4, 12)

    assert dlpar.spmd(exchange, workers=2, world=world) == [True, True]


@pytest.mark.parametrize("world", ["real", "simulated"])
@pytest.mark.parametrize("call", ["gather", "broadcast"])
def test_a_root_that_is_no_rank_is_refused_by_name(call, world):
    with pytest.raises(dlpar.JobFailed, match="root: got 5, allowed is a rank from 0 to 1"):
        dlpar.spmd(lambda comm, call: getattr(comm, call)(1, 5), call, workers=2, world=world)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_any_source_takes_whoever_comes(carrier):
    def funnel(_, carrier):
        comm = on(carrier)
        if comm.rank:
            comm.send(torch.full((2,), float(comm.rank)), 0, tag=5)
            comm.close()
            return None
        got = []
        for _ in range(comm.size - 1):
            value = torch.empty(2)
            arrival = comm.recv(value, tag=5)
            got.append((arrival.source, value[0].item(), arrival.tag, arrival.nbytes))
        comm.close()
        return sorted(got)

    assert dlpar.spmd(funnel, carrier, workers=4)[0] == [(1, 1.0, 5, 8), (2, 2.0, 5, 8), (3, 3.0, 5, 8)]


def test_tags_keep_messages_apart():
    def crossed(comm):
        if comm.rank == 0:
            requests = [comm.isend(torch.tensor([float(tag)]), 1, tag) for tag in (1, 2, 3)]
            [request.wait() for request in requests]
            return None
        got = []
        for tag in (3, 1, 2):
            value = torch.empty(1)
            comm.recv(value, 0, tag)
            got.append(value.item())
        return got

    assert dlpar.spmd(crossed, workers=2)[1] == [3.0, 1.0, 2.0]


def test_short_sends_do_not_wait_for_their_receiver_and_send_what_the_tensor_was():
    def hurry(comm):
        numbers, got = torch.zeros(1000), []
        if comm.rank == 0:
            for i in range(60):
                comm.send(numbers.fill_(i), 1)
            left = comm.now()
            for i in range(60, 200):  # by and by the sender waits all the same
                comm.send(numbers.fill_(i), 1)
            return left
        comm.world.pause(0.5)
        asked = comm.now()
        for _ in range(200):
            comm.recv(numbers, 0)
            got += set(numbers.tolist())
        return asked, got

    left, (asked, got) = dlpar.spmd(hurry, workers=2)
    assert left < asked and got == list(range(200))


def test_irecv_completes_and_tells_who():
    def later(comm):
        value = torch.zeros(4)
        if comm.rank == 0:
            request = comm.irecv(value, 1, 9)
            before = request.test()
            comm.barrier()
            arrival = request.wait()
            return before, value.tolist(), arrival.source, arrival.tag, arrival.nbytes
        comm.barrier()
        comm.send(torch.ones(4), 0, 9)

    assert dlpar.spmd(later, workers=2)[0] == (False, [1.0] * 4, 1, 9, 16)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_split_makes_groups_that_do_not_hear_each_other(carrier):
    def halves(_, carrier):
        comm = on(carrier)
        half = comm.split(comm.rank % 2, key=-comm.rank)
        total = torch.tensor([float(comm.rank)])
        half.allreduce(total)
        again = half.split(0)  # both halves at once
        gathered = torch.full((2,), -1.0)
        gathered[again.rank] = comm.rank
        again.allgather(gathered.split(1))
        answer = half.rank, half.size, total.item(), gathered.tolist()
        comm.close()
        return answer

    # keys run against ranks: rank 2 comes first among the even ones, rank 3 among the odd
    even, odd = (2, 2.0, [2, 0]), (2, 4.0, [3, 1])
    assert dlpar.spmd(halves, carrier, workers=4, timeout=20) == [
        (1, *even),
        (1, *odd),
        (0, *even),
        (0, *odd),
    ]


def test_shared_memory_is_one_memory():
    def write(comm):
        board = comm.shared((comm.size, 2), torch.int64)
        started_at_zero = int(board.sum())
        comm.barrier()
        board[comm.rank] = comm.rank + 1
        comm.barrier()
        return started_at_zero, board.tolist()

    assert dlpar.spmd(write, workers=3) == [(0, [[1, 1], [2, 2], [3, 3]])] * 3


def test_library_sum_of_bfloat16_is_added_in_float32():
    def total(comm):
        value = torch.full((300,), 1.0 + comm.rank / 128, dtype=torch.bfloat16)
        comm.allreduce(value)
        return value[0].item(), value.dtype == torch.bfloat16

    exact = sum(1.0 + rank / 128 for rank in range(4))
    assert dlpar.spmd(total, workers=4) == [(torch.tensor(exact).bfloat16().item(), True)] * 4


@pytest.mark.parametrize(("sent", "room", "pieces"), [(10, 3, False), (500, 250, True)])
def test_a_message_longer_than_its_room_is_refused_by_name(sent, room, pieces):
    def too_long(comm):
        if pieces:
            in_pieces()
        if comm.rank == 0:
            comm.send(torch.zeros(sent), 1)
        else:
            comm.recv(torch.zeros(room), 0)

    said = f"rank 1 has room for {4 * room:,} bytes, but rank 0 sent {4 * sent:,} "
    with pytest.raises(dlpar.JobFailed, match=said):
        dlpar.spmd(too_long, workers=2, timeout=10)


@pytest.mark.parametrize("world", ["real", "paced", "simulated"])
def test_a_short_message_leaves_the_rest_of_its_room_as_it_was(world):
    def short(comm):
        message, found = torch.tensor([1.0, 2.0]), []
        for way in ("recv", "irecv", "sendrecv"):
            room = torch.full((2, 2), 7.0).t()  # not contiguous: it is received elsewhere, and copied
            if way == "sendrecv":
                nbytes = comm.sendrecv(message, 1 - comm.rank, room, 1 - comm.rank).nbytes
            elif comm.rank == 0:
                comm.send(message, 1)
                continue
            else:
                nbytes = (comm.recv(room, 0) if way == "recv" else comm.irecv(room, 0).wait()).nbytes
            found.append((nbytes, room.flatten().tolist()))
        return found

    one = (8, [1, 2, 7, 7])
    assert dlpar.spmd(short, workers=2, world=world) == [[one], [one] * 3]


def test_a_peer_that_does_not_exist_is_refused_by_name():
    with pytest.raises(dlpar.JobFailed, match="dest: got 7, allowed is a rank from 0 to 1"):
        dlpar.spmd(lambda comm: comm.send(torch.zeros(1), 7), workers=2)


def test_a_message_over_the_piece_size_is_one_message():
    def big(comm):
        in_pieces()
        value = torch.arange(1001.0) if comm.rank == 0 else torch.empty(1001)
        again = torch.zeros(1500)  # more room than the message needs
        if comm.rank == 0:
            comm.send(value, 1)
            comm.isend(value, 1).wait()
            arrival = None
        else:
            arrival = comm.recv(value)
            assert comm.irecv(again, 0).wait().nbytes == 4004
            assert torch.equal(again[:1001], value) and not again[1001:].any()
        assert comm.sendrecv(value + comm.rank, 1 - comm.rank, again, 1 - comm.rank).nbytes == 4004
        assert torch.equal(again[:1001], value + 1 - comm.rank)
        comm.broadcast_tensor(again, root=1)
        assert torch.equal(again[:1001], value)
        total = torch.ones(777)
        comm.allreduce(total)
        return torch.equal(value, torch.arange(1001.0)), total.unique().tolist(), arrival and arrival.nbytes

    assert dlpar.spmd(big, workers=2) == [(True, [2.0], None), (True, [2.0], 4004)]


def test_a_request_tells_the_same_however_often_it_is_asked():
    def asked_twice(comm):
        value = torch.zeros(3)
        if comm.rank == 0:
            comm.send(torch.ones(3), 1, 4)
            return None
        request = comm.irecv(value, 0, 4)
        while not request.test():
            pass
        return request.wait() == request.wait() == Arrival(0, 4, 12), value.tolist()

    assert dlpar.spmd(asked_twice, workers=2)[1] == (True, [1.0] * 3)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_group_can_start_collectives_of_its_own(carrier):
    def in_halves(_, carrier):
        from dlpar.collectives import ring_allreduce

        comm = on(carrier)
        half, total = comm.split(comm.rank % 2), torch.tensor([float(comm.rank)])
        half.start(ring_allreduce, total).wait()
        half.close()
        comm.close()
        return total.item()

    assert dlpar.spmd(in_halves, carrier, workers=4, timeout=20) == [2.0, 4.0, 2.0, 4.0]


def test_traffic_counts_what_was_sent_and_how_long_a_rank_waited():
    def counted(comm):
        import time

        if comm.rank == 0:
            time.sleep(0.2)  # the other one must wait for this
            comm.send(torch.zeros(100), 1)
        else:
            comm.recv(torch.zeros(100), 0)
        return comm.traffic.waited, comm.traffic.take()

    (idle, sent), (waited, nothing) = dlpar.spmd(counted, workers=2)
    assert sent == {"bytes": 400, "messages": 1} and nothing == {"bytes": 0, "messages": 0}
    assert idle < 0.05 and 0.1 < waited < 1.0


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_started_collective_runs_beside_the_computation(carrier):
    def overlapped(_, carrier):
        from dlpar.collectives import ALLREDUCE

        comm = on(carrier)
        buckets = [torch.full((n,), float(comm.rank + 1)) for n in (5, 1000, 0, 17)]
        requests = [
            comm.start(ALLREDUCE[name], b) for b, name in zip(buckets, ("ring", "library", "ring", "ring"))
        ]
        comm.barrier()  # the main thread's own messages do not meet the progress thread's
        for request in requests:
            request.wait()
        done = all(request.test() for request in requests)
        comm.close()
        return done, [b.unique().tolist() for b in buckets]

    assert dlpar.spmd(overlapped, carrier, workers=3) == [(True, [[6.0], [6.0], [], [6.0]])] * 3


def test_an_error_in_a_started_collective_reaches_whoever_waits():
    def broken(comm):
        def collective(comm, bucket):
            raise ArithmeticError("inside the progress thread")

        comm.start(collective, torch.zeros(1)).wait()

    with pytest.raises(dlpar.JobFailed, match="ArithmeticError: inside the progress thread"):
        dlpar.spmd(broken, workers=2)


# ---- one clock ---------------------------------------------------------------------------


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


@pytest.mark.timed
def test_clocks_of_several_machines_are_brought_together():
    """Every rank as if it led a machine of its own: they agree on second 0 to within a scheduling delay."""

    def zero(comm):
        from dlpar.worlds.mpi import _across

        return _across(comm.mpi)

    zeros = dlpar.spmd(zero, workers=2)
    assert abs(zeros[0] - zeros[1]) < 0.002


def test_a_tensor_of_a_gpu_is_copied_to_the_host_once_for_all_its_receivers():
    def gossiped(comm):
        import torch

        from dlpar.sync.gossip import exchange
        from dlpar.worlds import mpi

        class OnGPU(torch.Tensor):
            is_cpu = False

        copies = []

        def staged(tensor):
            copies.append(torch.tensor(tensor.tolist()))
            return copies[-1]

        mpi.staged = staged
        others, sums = [rank for rank in range(comm.size) if rank != comm.rank], []
        mine = torch.full((5000,), comm.rank + 1.0).as_subclass(OnGPU)
        for _ in range(3):
            arrived = [torch.zeros(5000) for _ in others]
            exchange(comm, mine, others, arrived, others)
            sums.append(int(sum(arrived).unique().item()))
            mine.mul_(10)  # a new copy from now on
        return len(copies), sums

    found = dlpar.spmd(gossiped, workers=4, timeout=20)
    assert found == [(3, [10 - own, 100 - 10 * own, 1000 - 100 * own]) for own in (1, 2, 3, 4)]
