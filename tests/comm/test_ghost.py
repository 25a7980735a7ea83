"""Buffers without numbers: rank code cuts, counts and sends them as it does tensors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlpar.comm.ghost import Ghost, GhostPacket, elements

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]
EDGE = st.one_of(st.none(), st.integers(-30, 30))


@settings(deadline=None)
@given(n=st.integers(0, 25), dtype=st.sampled_from(DTYPES), start=EDGE, stop=EDGE, parts=st.integers(1, 30))
def test_pieces_are_as_long_as_those_of_a_tensor(n, dtype, start, stop, parts):
    ghost, tensor = Ghost(n, dtype), torch.zeros(n, dtype=dtype)
    pairs = [(ghost, tensor), (ghost[start:stop], tensor[start:stop])]
    pairs += zip(ghost.tensor_split(parts), tensor.tensor_split(parts), strict=True)
    pairs += zip(ghost.split(parts), tensor.split(parts), strict=True)
    pairs += [
        (ghost.to(torch.float16), tensor.to(torch.float16)),
        (ghost.new_empty(parts), tensor.new_empty(parts)),
    ]
    pairs += [(torch.zeros_like(ghost), torch.zeros_like(tensor)), (ghost.clone(), tensor.clone())]
    pairs += [(ghost.view(torch.uint8), tensor.view(torch.uint8)), (ghost.reshape(-1), tensor.reshape(-1))]
    for less, more in pairs:
        assert (len(less), less.numel(), less.shape) == (len(more), more.numel(), tuple(more.shape))
        assert (less.dtype, less.nbytes, less.element_size()) == (
            more.dtype,
            more.nbytes,
            more.element_size(),
        )
        assert less.is_floating_point() == more.is_floating_point()


def test_arithmetic_goes_on_and_every_number_is_unknown():
    a, b = Ghost(10), Ghost(10)
    whole = a
    a += b
    a -= 2 * b
    a *= 0.5
    a /= 3
    a[2:5] = 7.0
    a.zero_().add_(b, alpha=-1).mul_(2).copy_(b).fill_(1).lerp_(b, 0.5).div_(2).sub_(b)
    assert a is whole and len(a + b) == len(-a / 2 - b) == 10
    assert torch.mul(a, b, out=a) is a and len(torch.abs(a)) == 10
    assert math.isnan(a[3].item()) and math.isnan(float(a[-1]))
    (a[0] * 2).backward()  # a loss nobody computed


def test_a_packet_of_sizes_has_a_head_that_travels():
    packet, other = GhostPacket(100, torch.float32), GhostPacket(100, torch.float32)
    assert packet.wire.nbytes == 40 + 400 and len(packet.body) == 100
    packet.head[:] = torch.arange(5)
    assert packet.wire.head.tolist() == [0, 1, 2, 3, 4] and other.head.tolist() == [0] * 5


def test_a_shape_is_a_number_or_several():
    assert [elements(7), elements((2, 3)), elements([]), elements((4, 0))] == [7, 6, 1, 0]


def test_heads_of_packets_and_sizes_of_ones_own_tensors_travel_between_simulated_ranks():
    from simulations import MS, run

    def talk(comm):
        packet = comm.packet(230)  # 40 + 920 bytes, and 40 of a tensor: 1 ms in all
        if comm.rank == 0:
            packet.head[0] = 42
            comm.send(packet.wire, 1)
            packet.head[0] = 43  # too late
            comm.send(torch.zeros(10), 1)
            return None
        comm.recv(packet.wire, 0)
        arrival = comm.recv(torch.empty(10), 0)
        return packet.head[0].item(), arrival.nbytes, comm.now(), type(packet.body)

    assert run(talk, 2, computes=False)[1] == (42, 40, pytest.approx(2 * MS), Ghost)


def test_computations_are_not_made_and_take_their_time():
    from simulations import run

    def work(comm):
        number = comm.compute(lambda: 1 / 0, cost=2e18)
        return comm.now(), math.isnan(number.item())

    assert run(work, 2, computes=False) == [(2.0, True)] * 2


def test_what_is_alike_on_all_ranks_is_made_once():
    from simulations import run

    made = []

    def build(comm):
        return comm.world.build(lambda: made.append("own") or comm.rank)

    assert run(build, 3, computes=False) == [0] * 3 and made == ["own"]
    assert run(build, 3) == [0, 1, 2] and made == ["own"] * 4
