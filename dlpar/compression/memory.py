"""Error feedback: what a codec lost is added to what it is given next.

So nothing is lost for good, only late: over many steps what is delivered adds
up to what was meant (Seide et al. 2014, section 3; Stich et al. 2018; Karimireddy
et al., "Error Feedback Fixes SignSGD", ICML 2019).
"""

from __future__ import annotations

from torch import Tensor

from dlpar.compression.codecs import Codec


class Memory:
    """A codec with a memory, for one place in a program that sends a tensor of one length again and again.

    Parameters
    ----------
    codec : Codec
        What encodes.

    Attributes
    ----------
    residual : Tensor or None, shape (n,)
        What was meant and not yet delivered; None before the first call.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.residual: Tensor | None = None

    def encode(self, tensor: Tensor) -> Tensor:
        """The wire of `tensor`, shape (n,), plus what earlier wires left out.

        ``decode(wire) + residual`` afterwards is ``tensor + residual`` before, to rounding.

        Raises
        ------
        ValueError
            If n is not that of the first call.
        """
        if self.residual is None:
            self.residual = tensor.new_zeros(len(tensor))
        n, first = len(tensor), len(self.residual)
        if n != first:
            raise ValueError(f"tensor: got {n:,} elements, allowed is {first:,} as in the first call")
        meant = tensor + self.residual
        wire = self.codec.encode(meant)
        self.residual = meant - self.codec.decode(wire, self.residual)
        return wire
