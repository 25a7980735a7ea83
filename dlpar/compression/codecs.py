"""Codecs that encode a flat float tensor in fewer bytes, and decode it. The size is known in advance.

A codec has no state. :class:`~dlpar.compression.codecs.ErrorFeedback` keeps its errors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from dlpar.config import parts


class Codec(ABC):
    """Interface of all codecs."""

    @abstractmethod
    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        """Return the wire's size in bytes for a tensor of shape (n,)."""

    @abstractmethod
    def encode(self, tensor: Tensor) -> Tensor:
        """Encode a float tensor of shape (n,) as a wire: uint8, shape (``nbytes(n, dtype)``,)."""

    def decode(self, wire: Tensor, into: Tensor) -> Tensor:
        """Decode a wire into `into`, of shape (n,) and the encoded tensor's dtype. Return `into`.

        Raises
        ------
        ValueError
            If the wire does not hold n elements of this dtype.
        """
        expected = self.nbytes(len(into), into.dtype)
        if len(wire) != expected:
            n, dtype = len(into), into.dtype
            raise ValueError(f"wire: got {len(wire):,} bytes, allowed is {expected:,} for {n:,} of {dtype}")
        if len(into):
            self._decode(wire, into)
        return into

    @abstractmethod
    def _decode(self, wire: Tensor, into: Tensor) -> None: ...


class OneBit(Codec):
    """Codec that sends one bit per value (its sign) and two means: of the negative values and of the others.

    So decoding keeps the mean of the values.  A wire holds the two means in the
    tensor's own dtype, then 8 signs per byte: ``2 itemsize + ceil(n / 8)`` bytes. The codec needs error
    feedback: without it, training does not converge.

    Source: Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent"
    (Interspeech 2014), section 3. The source uses means per matrix column, and this class uses means per
    tensor.
    """

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return 2 * dtype.itemsize + -(-n // 8) if n else 0

    def encode(self, tensor: Tensor) -> Tensor:
        if not len(tensor):
            return tensor.new_empty(0, dtype=torch.uint8)
        positive = tensor >= 0
        wide = tensor if tensor.dtype == torch.float64 else tensor.float()
        means = torch.stack(
            [wide.where(side, 0).sum() / side.sum().clamp(min=1) for side in (positive, ~positive)]
        )
        bits = pad(positive.to(torch.uint8), (0, -len(tensor) % 8)).view(-1, 8)
        signs = (bits << _places(tensor)).sum(1, dtype=torch.uint8)
        return torch.cat([means.to(tensor.dtype).view(torch.uint8), signs])

    def _decode(self, wire: Tensor, into: Tensor) -> None:
        head = 2 * into.element_size()
        # A copy, because the wire may begin at any byte of a larger buffer.
        high, low = wire[:head].clone().view(into.dtype)
        positive = (wire[head:, None] >> _places(wire)).view(-1)[: len(into)] & 1
        into.copy_(torch.where(positive.bool(), high, low))


class TopK(Codec):
    """Codec that sends the values of largest magnitude and their indices. All other values become 0.

    A wire holds k values in the tensor's own dtype, then k indices of 4 bytes,
    ``k = max(1, ceil(keep n))``.

    Sources: Aji and Heafield, "Sparse Communication for Distributed Gradient
    Descent" (EMNLP 2017); Stich, Cordonnier and Jaggi, "Sparsified SGD with
    Memory" (NeurIPS 2018), algorithm 1.

    Parameters
    ----------
    keep : float
        Share of the values sent, above 0 and at most 1.

    Raises
    ------
    ValueError
        If `keep` is outside this range.
    """

    def __init__(self, keep: float = 0.01) -> None:
        if not 0 < keep <= 1:
            raise ValueError(f"keep: got {keep}, allowed is a number above 0 and at most 1")
        self.keep = keep

    def count(self, n: int) -> int:
        """Return k, the number of values that are sent for a tensor of n values."""
        return min(n, max(1, math.ceil(self.keep * n)))

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return self.count(n) * (dtype.itemsize + 4)

    def encode(self, tensor: Tensor) -> Tensor:
        where = tensor.abs().topk(self.count(len(tensor)), sorted=False).indices
        return torch.cat([tensor[where].view(torch.uint8), where.to(torch.int32).view(torch.uint8)])

    def _decode(self, wire: Tensor, into: Tensor) -> None:
        split = self.count(len(into)) * into.element_size()
        values, where = wire[:split].clone().view(into.dtype), wire[split:].clone().view(torch.int32)
        into.zero_()
        into[where.long()] = values


class Half(Codec):
    """Codec that sends each value in 16 bits, 2 n bytes in total.

    Values beyond the format's range are sent as its largest value.  With error feedback the remainder follows
    in later steps.

    Parameters
    ----------
    dtype : torch.dtype
        ``torch.float16`` (11 bits of mantissa, up to 65,504) or ``torch.bfloat16``
        (8 bits, the range of float32).
    """

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        self.dtype = dtype

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        return 2 * n

    def encode(self, tensor: Tensor) -> Tensor:
        largest = min(torch.finfo(self.dtype).max, torch.finfo(tensor.dtype).max)
        # In bfloat16 the limit would be rounded up.
        exact = tensor if tensor.dtype == torch.float64 else tensor.float()
        return exact.clamp(-largest, largest).to(self.dtype).view(torch.uint8)

    def _decode(self, wire: Tensor, into: Tensor) -> None:
        into.copy_(wire.clone().view(self.dtype))


CODECS: dict[str, Callable[[float], Codec]] = {
    "onebit": lambda keep: OneBit(),
    "topk": TopK,
    "fp16": lambda keep: Half(torch.float16),
    "bf16": lambda keep: Half(torch.bfloat16),
}
"""Functions that make the codecs, by name. Each takes the share of values that ``topk`` keeps."""


def register(name: str, make: Callable[[float], Codec]) -> None:
    """Add a codec, made by ``make(keep)``, that experiments can name."""
    CODECS[name] = make
    parts.CODECS.append(name)


def codec(name: str, keep: float = 0.01) -> Codec:
    """Make the codec with this `name`.

    Parameters
    ----------
    name : str
        One of :data:`CODECS`.
    keep : float
        Share of the values that ``topk`` sends.

    Raises
    ------
    ValueError
        If the name is unknown, or `keep` is not above 0 and at most 1.
    """
    if name not in CODECS:
        raise ValueError(f"codec: got {name!r}, allowed is one of {', '.join(CODECS)}")
    return CODECS[name](keep)


def codec_of(compression: parts.Compression) -> Codec | None:
    """Make an experiment's codec. Return None without compression."""
    return None if compression.codec == "none" else codec(compression.codec, compression.keep)


def _places(like: Tensor) -> Tensor:
    """Return the eight positions of a bit in a byte."""
    return torch.arange(8, dtype=torch.uint8, device=like.device)


class ErrorFeedback:
    """Codec that remembers its errors. It serves one sequence of tensors of equal length.

    Parameters
    ----------
    codec : Codec
        Encodes and decodes.

    Attributes
    ----------
    residual : Tensor or None, shape (n,)
        Sum that is not yet delivered, or None before the first call.
    """

    kept = ("residual",)

    def __init__(self, codec: Codec, residual: Tensor | None = None) -> None:
        self.codec, self.residual = codec, residual

    def encode(self, tensor: Tensor) -> Tensor:
        """Encode the sum of `tensor`, shape (n,), and the residual of earlier wires.

        Up to rounding, ``decode(wire) + residual`` after the call equals ``tensor + residual`` before it.

        Raises
        ------
        ValueError
            If n differs from that of the first call.
        """
        if self.residual is None:
            self.residual = tensor.new_zeros(len(tensor))
        n, first = len(tensor), len(self.residual)
        if n != first:
            raise ValueError(f"tensor: got {n:,} elements, allowed is {first:,} as in the first call")
        meant = tensor + self.residual
        wire = self.codec.encode(meant)
        torch.sub(meant, self.codec.decode(wire, self.residual), out=self.residual)
        return wire
