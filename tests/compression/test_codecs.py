"""Compressed gradients: sizes known in advance, nothing lost for good, replicas equal to the last bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import run

import dlpar
from dlpar.compression import Codec, CompressedAllreduce, ErrorFeedback, Half, OneBit, TopK, codec
from dlpar.theory import closed_form, coded_bytes

CODECS = ["onebit", "topk", "fp16", "bf16"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
trials = settings(deadline=None, max_examples=60)
tensors = st.builds(
    lambda n, seed, dtype, scale: (
        torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    ).to(dtype),
    st.one_of(st.integers(0, 20), st.integers(0, 3000)),
    st.integers(0, 2**31),
    st.sampled_from(DTYPES),
    st.sampled_from([1e-3, 1.0, 1000.0]),
)
codecs = st.builds(codec, st.sampled_from(CODECS), st.sampled_from([0.001, 0.01, 0.3, 1.0]))


def decoded(codec, tensor):
    return codec.decode(codec.encode(tensor), torch.full_like(tensor, float("nan")))


@trials
@given(codecs, tensors)
def test_a_wire_has_the_size_that_was_foretold(codec, tensor):
    wire = codec.encode(tensor)
    assert wire.dtype == torch.uint8 and wire.shape == (codec.nbytes(len(tensor), tensor.dtype),)


def test_sizes_are_those_of_the_papers():
    assert OneBit().nbytes(1_000_000, torch.float32) == 125_000 + 8
    assert TopK(0.01).nbytes(1_000_000, torch.float32) == 10_000 * 8
    assert TopK(0.01).count(5) == 1 and TopK(0.01).count(101) == 2
    assert Half().nbytes(1_000_000, torch.float32) == 2_000_000


@trials
@given(codecs, tensors)
def test_decoding_a_decoded_tensor_changes_nothing_more(codec, tensor):
    once = decoded(codec, tensor)
    twice = decoded(codec, once)
    # The mean of n equal numbers may be a rounding away from them.
    tolerance = 8 * torch.finfo(tensor.dtype).eps if isinstance(codec, OneBit) else 0
    assert torch.allclose(once.double(), twice.double(), rtol=tolerance, atol=0)


@trials
@given(codecs, tensors, st.integers(1, 4))
def test_delivered_and_residual_are_together_what_was_meant(codec, tensor, times):
    memory, before = ErrorFeedback(codec), torch.zeros_like(tensor)
    for _ in range(times):
        delivered = codec.decode(memory.encode(tensor), torch.empty_like(tensor))
        meant = tensor.double() + before.double()
        together = delivered.double() + memory.residual.double()
        magnitude = delivered.double().abs() + tensor.double().abs() + before.double().abs()
        assert ((together - meant).abs() <= 2 * torch.finfo(tensor.dtype).eps * magnitude).all()
        before = memory.residual.clone()


@trials
@given(tensors)
def test_onebit_keeps_signs_and_the_mean(tensor):
    got = decoded(OneBit(), tensor)
    assert got.unique().numel() <= 2
    assert ((got >= 0) | (tensor < 0)).all() and ((got <= 0) | (tensor >= 0)).all()
    if len(tensor):
        tolerance = 8 * torch.finfo(tensor.dtype).eps * tensor.double().abs().mean()
        assert abs(got.double().mean() - tensor.double().mean()) <= tolerance


def test_topk_sends_the_largest_as_they_are():
    tensor = torch.tensor([0.1, -5.0, 0.2, 3.0, -0.3, 0.0])
    assert decoded(TopK(1 / 3), tensor).tolist() == [0, -5, 0, 3, 0, 0]


def test_half_sends_what_does_not_fit_later():
    memory, got = ErrorFeedback(Half(torch.float16)), []
    for value in (100_000.0, 0.0, 0.0):
        got.append(Half().decode(memory.encode(torch.tensor([value])), torch.empty(1)).item())
    assert got == [65_504.0, 34_496.0, 0.0]


@pytest.mark.parametrize("name", CODECS)
def test_a_wire_may_lie_at_any_byte_of_a_larger_buffer(name):
    tensor = torch.randn(33, generator=torch.Generator().manual_seed(0))
    wire = codec(name, 0.1).encode(tensor)
    buffer = torch.cat([torch.zeros(3, dtype=torch.uint8), wire])
    assert torch.equal(
        codec(name, 0.1).decode(buffer[3:], torch.empty(33)), decoded(codec(name, 0.1), tensor)
    )


@pytest.mark.parametrize("name", ["onebit", "topk"])
def test_with_memory_what_is_delivered_adds_up_and_without_it_does_not(name):
    """200 noisy gradients about a fixed one: with memory the mean of what is delivered comes near it."""
    generator, n, steps = torch.Generator().manual_seed(3), 400, 200
    true = torch.randn(n, generator=generator)
    memory, meant, with_memory, without = (
        ErrorFeedback(codec(name, 0.05)),
        torch.zeros(n),
        torch.zeros(n),
        torch.zeros(n),
    )
    for _ in range(steps):
        gradient = true + torch.randn(n, generator=generator)
        meant += gradient
        with_memory += memory.codec.decode(memory.encode(gradient), torch.empty(n))
        without += decoded(memory.codec, gradient)

    def off(total):
        return ((total - meant).norm() / meant.norm()).item()

    assert torch.allclose(with_memory + memory.residual, meant, atol=1e-3)
    assert off(with_memory) < 0.1 * off(without)
    assert off(without) > 0.3


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda: codec("zip"), "codec: got 'zip', allowed is one of onebit, topk, fp16, bf16"),
        (lambda: codec("topk", keep=0), "keep: got 0, allowed is a number above 0 and at most 1"),
        (
            lambda: Half().decode(torch.zeros(3, dtype=torch.uint8), torch.zeros(2)),
            "wire: got 3 bytes, allowed is 4 for 2",
        ),
        (
            lambda: [m := ErrorFeedback(Half()), *(m.encode(torch.zeros(n)) for n in (2, 3))],
            "tensor: got 3 elements",
        ),
    ],
)
def test_what_cannot_be_encoded_is_refused_in_a_sentence(ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask()


# ---- on ranks --------------------------------------------------------------------------


def bytes_of(codec: Codec, ranks: int, n: int) -> int:
    """Sent by all ranks in an all-reduce of n float32 values."""
    return coded_bytes(lambda elements: codec.nbytes(elements, torch.float32), ranks, n)


def in_one_process(codec: Codec, gradients: list[torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """The all-reduce by owners as its definition has it, of float64 rows (ranks, n) step after step."""
    n = gradients[0].shape[1]
    slices = torch.arange(n).tensor_split(ranks)
    sent_error, owned_error, results = torch.zeros(ranks, n).double(), torch.zeros(n).double(), []
    for rows in gradients:
        result = torch.zeros(n, dtype=torch.float64)
        for each in slices:
            if not len(each):
                continue
            summed = torch.zeros(len(each), dtype=torch.float64)
            for rank in range(ranks):
                meant = rows[rank, each] + sent_error[rank, each]
                delivered = decoded(codec, meant)
                sent_error[rank, each] = meant - delivered
                summed += delivered
            meant = summed + owned_error[each]
            result[each] = decoded(codec, meant)
            owned_error[each] = meant - result[each]
        results.append(result)
    return results


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("ranks, n", [(1, 50), (2, 301), (3, 100), (4, 1037), (5, 3), (8, 400)])
def test_an_allreduce_by_owners_is_what_its_definition_gives_in_one_process(name, ranks, n):
    """The losses of both encodings come back later, the sender's and the owner's."""
    made, steps = codec(name, 0.1), 12
    draw = torch.Generator().manual_seed(ranks)
    gradients = [torch.randn(ranks, n, generator=draw, dtype=torch.float64) for _ in range(steps)]

    def program(comm):
        allreduce, bucket, found = CompressedAllreduce(made), torch.empty(n, dtype=torch.float64), []
        for rows in gradients:
            bucket.copy_(rows[comm.rank])
            allreduce(comm, bucket)
            found.append(bucket.clone())
        return found

    expected, (first, *others) = in_one_process(made, gradients, ranks), run(program, ranks)
    for step in range(steps):
        assert torch.allclose(first[step], expected[step], rtol=1e-9, atol=1e-12)
        assert all(torch.equal(first[step], other[step]) for other in others)


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_one_bit_sends_a_twenty_fourth_of_the_bytes_of_an_allreduce_on_any_number_of_ranks(ranks):
    n = 100_000

    def program(comm):
        CompressedAllreduce(OneBit())(comm, comm.empty(n))
        return comm.traffic.take()["bytes"]

    sent = run(program, ranks, computes=False)
    assert sum(sent) == bytes_of(OneBit(), ranks, n)
    whole = closed_form("ring", ranks, n, 4)
    assert sum(sent) <= whole.bytes / 24 and max(sent) <= whole.busiest_bytes / 24


@pytest.mark.slow
def test_replicas_stay_equal_to_the_last_bit_and_bytes_are_as_foretold():
    def exchange(comm, steps):
        import zlib

        from dlpar.compression import CompressedAllreduce, codec

        found = {}
        for name in ("onebit", "topk", "fp16", "bf16"):
            allreduce = CompressedAllreduce(codec(name, 0.05))
            generator = torch.Generator().manual_seed(comm.rank)
            gradient, meant, delivered = torch.empty(1037), torch.zeros(1037), torch.zeros(1037)
            buckets = gradient[:1000], gradient[1000:1037], gradient[1037:]  # two lengths, and an empty one
            bits = []
            comm.traffic.take()
            for _ in range(steps):
                gradient.copy_(torch.ones(1037) + torch.randn(1037, generator=generator))
                meant += gradient
                for bucket in buckets:
                    comm.start(allreduce, bucket).wait() if len(bucket) == 37 else allreduce(comm, bucket)
                delivered += gradient
                bits.append(zlib.crc32(gradient.numpy()))
            traffic = comm.traffic.take()
            comm.allreduce(meant)
            comm.traffic.take()
            found[name] = bits, traffic, ((delivered - meant).norm() / meant.norm()).item()
        return found

    ranks, steps = 3, 40
    by_rank = dlpar.spmd(exchange, steps, workers=ranks)
    for name in CODECS:
        bits, traffic, off = zip(*(found[name] for found in by_rank))
        assert bits[0] == bits[1] == bits[2]
        sent = sum(bytes_of(codec(name, 0.05), ranks, n) for n in (1000, 37, 0))
        assert sum(each["bytes"] for each in traffic) == steps * sent
        assert {each["messages"] for each in traffic} == {steps * 3 * 2 * (ranks - 1)}
        assert max(off) < {"onebit": 0.1, "topk": 0.5}.get(name, 1e-4), "over many steps nothing is lost"


@pytest.mark.slow
def test_a_tree_aggregate_over_a_lossy_comm_delivers_the_sum_in_the_long_run():
    def aggregate(comm, name, steps):
        from dlpar.collectives import tree_aggregate
        from dlpar.compression import LossyComm, codec

        lossy, generator = (
            LossyComm(comm, codec(name, 0.1), exact=2),
            torch.Generator().manual_seed(comm.rank),
        )
        true, delivered, counts = torch.randn(100, generator=generator), torch.zeros(100), []
        for _ in range(steps):
            tensor = torch.cat([true, torch.tensor([comm.rank + 0.1, 1.0])])
            tree_aggregate(lossy, tensor, depth=2)
            delivered += tensor[:100]
            counts.append(tensor[100:].tolist())
        bytes_sent = comm.traffic.take()["bytes"]
        total = true.clone()
        comm.allreduce(total)
        return ((delivered / steps - total).norm() / total.norm()).item(), counts, bytes_sent

    for name, bound in (("onebit", 0.1), ("topk", 0.15), ("bf16", 1e-3)):
        (off, counts, _), *others = dlpar.spmd(aggregate, name, 60, workers=4)
        assert off < bound, name
        assert all(c == pytest.approx([6.4, 4.0]) for c in counts), "a count must not be rounded"
        assert {sent for *_, sent in others} == {60 * (codec(name, 0.1).nbytes(100, torch.float32) + 2 * 4)}


@pytest.mark.slow
def test_a_lossy_comm_passes_on_what_is_no_float_and_every_way_of_sending():
    def exchange(comm):
        from dlpar.compression import LossyComm, codec

        lossy = LossyComm(comm, codec("bf16"))
        peer, values = 1 - comm.rank, torch.tensor([[1.0, 2.5], [-3.0, 1 / 3]])
        whole, got = torch.tensor([1 + 2**40]), [torch.zeros(2, 2) for _ in range(3)]
        arrival = lossy.sendrecv(values, peer, got[0], peer)
        later = lossy.irecv(got[1], peer, 4)
        lossy.isend(values, peer, 4).wait()
        told = later.wait()
        count = torch.zeros(1, dtype=torch.int64)
        lossy.sendrecv(whole, peer, count, peer)
        total = torch.full((4,), 1 + comm.rank / 4)
        from dlpar.collectives import star_allreduce

        lossy.start(star_allreduce, total).wait()
        rounded = values.bfloat16().float()
        return (
            torch.equal(got[0], rounded),
            (got[1] - values).abs().max().item() < 0.02,
            count.item(),
            arrival.nbytes,
            told.nbytes,
            total.tolist(),
            lossy.split(0).size,
            math.isclose(comm.traffic.take()["bytes"], 8 + 8 + 8 + 8),
        )

    assert dlpar.spmd(exchange, workers=2) == [(True, True, 1 + 2**40, 16, 16, [2.25] * 4, 2, True)] * 2


def test_half_precision_sends_too_large_a_bfloat16_as_its_largest_value():
    wire = Half().encode(torch.tensor([1e5, -1e5, 1.0], dtype=torch.bfloat16))
    assert wire.view(torch.float16).tolist() == [65_504, -65_504, 1]


def test_a_residual_stays_in_its_memory():
    """On a GPU, memory that is freed while another stream still writes to it would be given away."""
    memory = ErrorFeedback(TopK(0.5))
    memory.encode(torch.randn(8))
    place = memory.residual.data_ptr()
    for _ in range(3):
        memory.encode(torch.randn(8))
    assert memory.residual.data_ptr() == place


def test_residuals_belong_to_the_same_values_where_a_vector_begins_later_in_its_memory():
    """A GPU's vectors begin at an offset. A run may resume on the other kind of device."""
    reduce, there = CompressedAllreduce(codec("onebit")), []
    for shift in (0, 54):
        vector = torch.randn(shift + 30)[shift:]
        for bucket in vector.split([10, 20]):
            run(lambda comm, bucket=bucket: reduce(comm, bucket), 1)
        there.append(set(reduce.memories.residuals))
    assert there[0] == there[1] and len(there[0]) == 4
