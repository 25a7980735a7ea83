"""Exchanges of compressed gradients: an all-reduce through slice owners, and a compressing communicator.

A sum of codes is not a code, so partial sums sent as codes lose information at every hop.  The all-reduce
encodes a value at most twice, and feeds both errors back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlpar.collectives.ring import gather_in_order
from dlpar.comm import ANY, Arrival, Comm, Request
from dlpar.comm.base import Collective
from dlpar.compression.codecs import Codec, ErrorFeedback

Key = tuple[int, int, int]


class Memories:
    """Error-feedback memories of one codec, each made at the first use of its key."""

    kept = ("residuals",)

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._of: dict[Key, ErrorFeedback] = {}

    def __getitem__(self, key: Key) -> ErrorFeedback:
        return self._of.setdefault(key, ErrorFeedback(self.codec))

    @property
    def residuals(self) -> dict[Key, Tensor | None]:
        """Return the undelivered residuals by key."""
        return {key: memory.residual for key, memory in self._of.items()}

    @residuals.setter
    def residuals(self, given: dict[Key, Tensor | None]) -> None:
        self._of = {key: ErrorFeedback(self.codec, residual) for key, residual in given.items()}


class CompressedAllreduce:
    """All-reduce of compressed tensors with error feedback.

    Each rank owns one of N slices.  It sends each slice as a code to its owner.  The owner decodes and adds
    the codes, encodes the sum, and sends this code to all.  A sender remembers the error of each slice, and
    an owner the error of its sums.  All ranks decode the same bytes, so replicas stay bit-identical.

    Each rank sends 2 (N-1) messages.  All ranks together send ``2 (N-1) sum(codec.nbytes(slice))`` bytes
    (:func:`dlpar.theory.counts.coded_bytes`): a ring all-reduce's bytes, reduced by the codec's ratio.

    Source: Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent" (Interspeech 2014),
    section 3.3: quantise, exchange, add, quantise the sum, distribute.

    Parameters
    ----------
    codec : Codec
        Encodes and decodes on every rank. Each bucket has separate error feedback.

    Examples
    --------
    >>> allreduce = CompressedAllreduce(codec("topk", keep=0.01))
    >>> allreduce(comm, bucket)
    """

    kept = ("memories",)

    def __init__(self, codec: Codec) -> None:
        self.codec, self.memories = codec, Memories(codec)

    def __call__(self, comm: Comm, bucket: torch.Tensor) -> None:
        """Replace `bucket`, shape (n,), with the sum of the ranks' delivered buckets.

        A bucket's place in the gradient and its length identify its memory.
        """
        codec, rank, size, n = self.codec, comm.rank, comm.size, len(bucket)
        slices = bucket.tensor_split(size)  # rank r owns slice r
        wires = [comm.empty(codec.nbytes(len(each), bucket.dtype), torch.uint8) for each in slices]
        total, wire = slices[rank], wires[rank]
        arriving, decoded = comm.empty(len(wire), torch.uint8), comm.empty(len(total), bucket.dtype)

        def encode(number: int, memory: int) -> None:
            # Counted from the end, because a GPU's vectors begin later in their memory.
            place = bucket.untyped_storage().nbytes() // bucket.element_size() - bucket.storage_offset()
            feedback = self.memories[place, n, memory]
            if len(slices[number]):  # there may be fewer values than ranks
                wires[number].copy_(feedback.encode(slices[number]))

        # 1. Encode a slice for each owner.  Approximate FLOPs: add the residual, encode, decode, subtract.
        comm.compute(lambda: [encode(number, number) for number in range(size)], cost=4 * n)
        # 2. Add all ranks' copies of this rank's slice, while the other slices go to their owners.
        comm.compute(lambda: codec.decode(wire, total), cost=len(total))
        for step in range(1, size):
            owner = (rank + step) % size
            comm.sendrecv(wires[owner], owner, arriving, (rank - step) % size)
            comm.compute(lambda: total.add_(codec.decode(arriving, decoded)), cost=2 * len(total))
        # 3. Encode the sum with its own error feedback, and pass it around.
        comm.compute(lambda: encode(rank, size), cost=4 * len(total))
        gather_in_order(comm, wires)
        comm.compute(lambda: [codec.decode(*pair) for pair in zip(wires, slices)], cost=n)


class LossyComm:
    """Communicator that sends float tensors as a codec's bytes, with error feedback at the sender.

    The inner communicator handles all other calls and tensors.  A sender has one memory for each
    (destination, tag, length).  Use each of these only for tensors of one kind.  Each hop of an all-reduce
    compresses its partial sum again, so ranks may end with different sums.  Use it where one rank's result
    counts, as in a tree-aggregate.

    Parameters
    ----------
    comm : Comm
        Carries the bytes.
    codec : Codec
        Encodes and decodes on every rank.
    exact : int
        Number of last elements of a tensor that are not encoded, such as counts or a loss.
    """

    kept = ("memories",)

    def __init__(self, comm: Comm, codec: Codec, exact: int = 0) -> None:
        self.inner, self.codec, self.exact, self.memories = comm, codec, exact, Memories(codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, tensor: Tensor, dest: int, tag: int = 0) -> None:
        self.inner.send(self._packed(tensor, dest, tag), dest, tag)

    def isend(self, tensor: Tensor, dest: int, tag: int = 0) -> Request:
        return self.inner.isend(self._packed(tensor, dest, tag), dest, tag)

    def recv(self, into: Tensor, source: int = ANY, tag: int = ANY) -> Arrival:
        room = self._room(into)
        return self._unpacked(room, into, self.inner.recv(room, source, tag))

    def irecv(self, into: Tensor, source: int = ANY, tag: int = ANY) -> Request:
        room = self._room(into)
        return _Receiving(self, room, into, self.inner.irecv(room, source, tag))

    def sendrecv(self, tensor: Tensor, dest: int, into: Tensor, source: int, tag: int = 0) -> Arrival:
        room = self._room(into)
        arrival = self.inner.sendrecv(self._packed(tensor, dest, tag), dest, room, source, tag)
        return self._unpacked(room, into, arrival)

    def start(self, collective: Collective, bucket: Tensor) -> Request:
        return self.inner.start(lambda comm, bucket: collective(self._around(comm), bucket), bucket)

    def split(self, color: int, key: int = 0) -> LossyComm:
        return LossyComm(self.inner.split(color, key), self.codec, self.exact)

    def _around(self, comm: Comm) -> LossyComm:
        """Wrap another communicator of the same ranks, with the same memories."""
        other = LossyComm(comm, self.codec, self.exact)
        other.memories = self.memories
        return other

    def _lossy(self, tensor: Tensor) -> int:
        """Count the leading elements of a tensor that are encoded."""
        return max(0, tensor.numel() - self.exact) if tensor.is_floating_point() else 0

    def _room(self, tensor: Tensor) -> Tensor:
        """Return a buffer for a tensor's wire, or the tensor if nothing is encoded."""
        lossy = self._lossy(tensor)
        if not lossy:
            return tensor
        exact = (tensor.numel() - lossy) * tensor.element_size()
        return self.inner.empty(self.codec.nbytes(lossy, tensor.dtype) + exact, torch.uint8)

    def _packed(self, tensor: Tensor, dest: int, tag: int) -> Tensor:
        wire, lossy = self._room(tensor), self._lossy(tensor)
        if not lossy:
            return tensor
        memory = self.memories[dest, tag, lossy]
        flat = tensor.detach().reshape(-1)

        def pack() -> None:
            wire.copy_(torch.cat([memory.encode(flat[:lossy]), flat[lossy:].clone().view(torch.uint8)]))

        self.inner.compute(pack, cost=4 * lossy)
        return wire

    def _unpacked(self, wire: Tensor, into: Tensor, arrival: Arrival) -> Arrival:
        lossy = self._lossy(into)
        if not lossy:
            return arrival
        if arrival.nbytes != wire.nbytes:
            raise ValueError(
                f"recv: got {arrival.nbytes:,} bytes, allowed is {wire.nbytes:,}: a code fills its tensor"
            )
        head = self.codec.nbytes(lossy, into.dtype)

        def unpack() -> None:
            values = self.codec.decode(wire[:head], into.new_empty(lossy))
            into.copy_(torch.cat([values, wire[head:].clone().view(into.dtype)]).view(into.shape))

        self.inner.compute(unpack, cost=2 * lossy)
        return Arrival(arrival.source, arrival.tag, into.nbytes)


class _Receiving:
    """Pending receive that decodes its message when the message is complete."""

    def __init__(self, comm: LossyComm, wire: Tensor, into: Tensor, request: Request) -> None:
        self._comm, self._wire, self._into, self._request = comm, wire, into, request
        self._arrival: Arrival | None = None

    def wait(self) -> Arrival:
        if self._arrival is None:
            self._arrival = self._comm._unpacked(self._wire, self._into, self._request.wait())
        return self._arrival

    def test(self) -> bool:
        if self._arrival is None and self._request.test():
            self.wait()
        return self._arrival is not None
