"""An all-reduce of compressed gradients.

Sums of codes are no codes, so partial sums cannot travel: every rank's own code
goes to all ranks, and each adds all of them (Seide et al. 2014 quantise the sums
once more; this exchange needs no second memory).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from dlpar.collectives import ring_allgather
from dlpar.compression.codecs import Codec
from dlpar.compression.memory import Memory

if TYPE_CHECKING:
    from dlpar.comm import Comm


class CompressedAllreduce:
    """A collective that sums what the ranks' codecs and memories deliver.

    Each rank sends N-1 messages of ``codec.nbytes(n, dtype)`` bytes.  All ranks
    decode the same bytes and add them in the order of ranks, so replicas stay
    equal to the last bit.

    Parameters
    ----------
    codec_factory : callable
        Gives a codec; called once for each bucket.

    Examples
    --------
    >>> allreduce = CompressedAllreduce(lambda: codec("topk", keep=0.01))
    >>> allreduce(comm, bucket)
    """

    def __init__(self, codec_factory: Callable[[], Codec]) -> None:
        self._codec_factory = codec_factory
        self._memories: dict[tuple[int, int], Memory] = {}

    def __call__(self, comm: Comm, bucket: torch.Tensor) -> None:
        """Replace `bucket`, shape (n,), by the sum over ranks of what is delivered of it.

        A bucket is known again by its place in memory and its length.
        """
        memory, size = self._memory_of(bucket), comm.size
        codec, n = memory.codec, len(bucket)
        wires = [comm.empty(codec.nbytes(n, bucket.dtype), torch.uint8) for _ in range(size)]
        by_rank = [wires[(rank + 1) % size] for rank in range(size)]  # rank r's place in a ring's all-gather
        # FLOPs, roughly: add the residual, encode, decode, subtract.
        comm.compute(lambda: by_rank[comm.rank].copy_(memory.encode(bucket)), cost=4 * n)
        ring_allgather(comm, wires)
        decoded = comm.empty(n, bucket.dtype)
        comm.compute(bucket.zero_)
        for wire in by_rank:
            comm.compute(lambda: bucket.add_(codec.decode(wire, decoded)), cost=2 * n)

    def _memory_of(self, bucket: torch.Tensor) -> Memory:
        key = bucket.data_ptr(), len(bucket)
        if key not in self._memories:
            self._memories[key] = Memory(self._codec_factory())
        return self._memories[key]
