"""Which inputs the outputs of a convolution or a pooling read, and what a cut between ranks makes of it.

Along one axis of an image; an image is cut along both by two of these.  Positions
are those of the whole image, so that all ranks speak of the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

BESIDE = (-1, 0, 1)
"""The piece before, the rank's own, and the one after."""


class Window(NamedTuple):
    """What a convolution or pooling does along one axis.

    Attributes
    ----------
    kernel, stride, padding, dilation : int
        As torch has them; the padding is on both sides.
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def outputs(self, size: int) -> int:
        """Positions of the output where the input has `size`."""
        return max(0, (size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1)

    def reads(self, outputs: range) -> range:
        """Inputs that outputs are made of, the padding included: below 0, and from the image's size on."""
        start = outputs.start * self.stride - self.padding
        last = (len(outputs) - 1) * self.stride
        return range(start, start + last + self.dilation * (self.kernel - 1) + 1 if outputs else start)


def common(a: range, b: range) -> range:
    """Positions in both."""
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))


def inside(reads: range, size: int) -> range:
    """What of `reads` is image, not padding."""
    start = min(max(reads.start, 0), size)
    return range(start, max(start, min(reads.stop, size)))


def padding(reads: range, size: int) -> tuple[int, int]:
    """How many of `reads` are padding: before the image, and behind it."""
    return max(0, min(reads.stop, 0) - reads.start), max(0, reads.stop - max(reads.start, size))


def shares(size: int, pieces: int) -> list[range]:
    """Equal shares of an axis, the first ones longer by one where they do not divide it."""
    share, rest = divmod(size, pieces)
    starts = [piece * share + min(piece, rest) for piece in range(pieces + 1)]
    return [range(*ends) for ends in zip(starts, starts[1:])]


def most(window: Window, size: int) -> int:
    """The most pieces an axis can be cut into for a layer: none is empty, and halos come from the pieces beside it."""
    pieces = 1
    while _fits(window, size, pieces + 1):
        pieces += 1
    return pieces


def _fits(window: Window, size: int, pieces: int) -> bool:
    if pieces > min(size, window.outputs(size)):
        return False
    owned = shares(size, pieces)
    for place, outputs in enumerate(shares(window.outputs(size), pieces)):
        reach = owned[max(0, place - 1) : place + 2]
        needed = inside(window.reads(outputs), size)
        if needed and (needed.start < reach[0].start or needed.stop > reach[-1].stop):
            return False
    return True


class Cut:
    """One axis of a layer's images, cut into pieces: inputs and outputs alike are shared out equally.

    Parameters
    ----------
    window : Window
        What the layer does.
    size : int
        Positions of the whole input.
    pieces, place : int
        How many there are, and which is this rank's, from 0.

    Attributes
    ----------
    owned, outputs : range
        This piece's inputs, and the outputs made here.
    take, give : dict of int to range
        From or to the piece before (-1) or after (1): the halo, inputs that outputs here need and that piece owns,
        or the other way round.  Under 0: what is needed of one's own.
    inner : range
        Outputs that need no other piece's inputs.

    Raises
    ------
    ValueError
        If a piece would be empty, or its halo wider than the piece beside it.
    """

    def __init__(self, window: Window, size: int, pieces: int, place: int) -> None:
        if not _fits(window, size, pieces):
            raise ValueError(
                f"pieces: got {pieces} of {size}, allowed with kernel {window.kernel}, stride {window.stride}, padding "
                f"{window.padding} and dilation {window.dilation} is at most {most(window, size)}: no piece is empty, "
                f"and no halo wider than the piece it comes from"
            )
        owned, outputs = shares(size, pieces), shares(window.outputs(size), pieces)
        needed = [inside(window.reads(own), size) for own in outputs]
        beside = [step for step in BESIDE if 0 <= place + step < pieces]
        self.window, self.size, self.owned, self.outputs = window, size, owned[place], outputs[place]
        self.take = {step: common(needed[place], owned[place + step]) for step in beside}
        self.give = {step: common(needed[place + step], owned[place]) for step in beside}
        self.inner = self._inner()

    def _inner(self) -> range:
        own = [
            o
            for o in self.outputs
            if self._needs_no_other(inside(self.window.reads(range(o, o + 1)), self.size))
        ]
        return range(own[0], own[-1] + 1) if own else range(self.outputs.stop, self.outputs.stop)

    def _needs_no_other(self, needed: range) -> bool:
        return common(needed, self.owned) == needed or not needed
