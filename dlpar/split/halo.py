"""Halos: the inputs a rank needs of the pieces around its own, and the way back of their gradient.

All eight neighbours are asked at once, so that the whole halo travels while the interior is
computed.  Two phases, columns after rows and their corners, would send the same
elements in half as many messages; but the second could start only when the first
has arrived, and nothing would hide it.  (Dryden et al., "Improving Strong-Scaling of
CNN Training by Exploiting Finer-Grained Parallelism", IPDPS 2019, arXiv 1903.06681.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, pairwise, product
from typing import NamedTuple

from torch import Tensor

from dlpar.split.mesh import Mesh

HALO = 1
"""Tag of its messages.  Tagged messages go by MPI: with NCCL neighbours would both wait to receive before they send."""

Pieces = dict[int, Tensor]
"""Parts of an image, by the neighbour they lie on."""

Region = tuple[range, range]
"""Rows and columns of the whole image."""


class Halo:
    """A rank's piece of an image, and the inputs around it that its outputs need.

    Parameters
    ----------
    mesh : Mesh
        The ranks that hold the image, with the axes ``rows`` and ``columns``.
    rows, columns : Cut
        How height and width are cut, seen from this rank.

    Attributes
    ----------
    owned, reads : Region
        This rank's piece, and the inputs of its outputs; these may reach beyond the image, into padding.
    exchanges : bool
        Whether this rank has anything to send or to receive.
    """

    def __init__(self, mesh: Mesh, rows: Cut, columns: Cut) -> None:
        self.comm = mesh.comm
        self.owned, self.reads = (rows.owned, columns.owned), (rows.reads, columns.reads)
        around = {
            mesh.rank(rows=mesh.at["rows"] + down, columns=mesh.at["columns"] + right): (down, right)
            for down, right in product(rows.take, columns.take)
            if (down, right) != (0, 0)
        }
        take = {rank: (rows.take[down], columns.take[right]) for rank, (down, right) in around.items()}
        give = {rank: (rows.give[down], columns.give[right]) for rank, (down, right) in around.items()}
        self._take = {rank: region for rank, region in take.items() if all(region)}
        self._give = {rank: region for rank, region in give.items() if all(region)}
        self._both = tuple(common(*axis) for axis in zip(self.owned, self.reads))
        self.exchanges = bool(self._take or self._give)

    def inputs(self, own: Tensor, padding: float) -> Tensor:
        """Return the inputs of this rank's outputs, of which the halo is still to come.

        Parameters
        ----------
        own : Tensor, shape (n, channels, height, width)
            This rank's piece.
        padding : float
            The value of inputs beyond the image.
        """
        if self.reads == self.owned:
            return own
        inputs = self.comm.empty((*own.shape[:2], *map(len, self.reads)), own.dtype).fill_(padding)
        inputs[index(self._both, self.reads)] = own[index(self._both, self.owned)]
        return inputs

    def fetch(self, own: Tensor, inputs: Tensor) -> Callable[[], None]:
        """Start to exchange halos; the call that is returned waits for this rank's and writes it into `inputs`."""
        given = {rank: own[index(region, self.owned)] for rank, region in self._give.items()}
        taken = {rank: inputs[index(region, self.reads)] for rank, region in self._take.items()}
        return self._exchange(given, taken, Tensor.copy_)

    def give_back(self, of_inputs: Tensor, of_own: Tensor) -> Callable[[], None]:
        """Start to send the halo's gradient to its owners: :meth:`fetch` backwards.

        The call that is returned waits for the neighbours' gradients, and adds them to `of_own`.
        """
        given = {rank: of_inputs[index(region, self.reads)] for rank, region in self._take.items()}
        taken = {rank: of_own[index(region, self.owned)] for rank, region in self._give.items()}
        return self._exchange(given, taken, Tensor.add_)

    def take_back(self, of_own: Tensor, of_inputs: Tensor) -> None:
        """Add the gradient of inputs that lie here to that of this rank's piece."""
        of_own[index(self._both, self.owned)] += of_inputs[index(self._both, self.reads)]

    def _exchange(self, given: Pieces, taken: Pieces, put: Callable) -> Callable[[], None]:
        # Receives first: an expected message need not be buffered.
        came = {rank: self.comm.empty(into.shape, into.dtype) for rank, into in taken.items()}
        requests = [self.comm.irecv(piece, rank, HALO) for rank, piece in came.items()]
        requests += [self.comm.isend(piece.contiguous(), rank, HALO) for rank, piece in given.items()]

        def arrive() -> None:
            for request in requests:
                request.wait()
            for rank, piece in came.items():
                put(taken[rank], piece)

        return arrive


def index(place: Sequence[range], within: Sequence[range]) -> tuple:
    """Return rows and columns as an index into a tensor that begins where `within` does."""
    return (..., *(slice(p.start - w.start, p.stop - w.start) for p, w in zip(place, within)))


class Window(NamedTuple):
    """The inputs that a convolution or pooling reads along one axis.

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
        """Count the positions of the output where the input has `size`."""
        return max(0, (size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1)

    def reads(self, outputs: range) -> range:
        """Return the inputs of some outputs, the padding included: below 0, and from the image's size on."""
        start = outputs.start * self.stride - self.padding
        last = (len(outputs) - 1) * self.stride
        return range(start, start + last + self.dilation * (self.kernel - 1) + 1 if outputs else start)


def common(a: range, b: range) -> range:
    """Return the positions in both."""
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))


def shares(size: int, pieces: int) -> list[range]:
    """Cut an axis into equal shares, the first ones longer by one where they do not divide it."""
    share, rest = divmod(size, pieces)
    return [range(*ends) for ends in pairwise(p * share + min(p, rest) for p in range(pieces + 1))]


def most(window: Window, size: int) -> int:
    """Return the most pieces that an axis can be cut into: none is empty, and halos come from the next piece."""
    return next(pieces for pieces in count(1) if not _fits(window, size, pieces + 1))


def _fits(window: Window, size: int, pieces: int) -> bool:
    if pieces > min(size, window.outputs(size)):
        return False
    owned, outputs = shares(size, pieces), shares(window.outputs(size), pieces)
    needed = [common(range(size), window.reads(own)) for own in outputs]
    beside = zip([owned[0], *owned], [*owned[1:], owned[-1]])
    reach = [range(before.start, after.stop) for before, after in beside]
    return all(common(need, near) == need for need, near in zip(needed, reach))


class Cut:
    """One axis of a layer's images in pieces: inputs and outputs alike are shared out equally.

    Parameters
    ----------
    window : Window
        The inputs that an output reads.
    size : int
        Positions of the whole input.
    pieces, place : int
        Number of pieces, and this rank's one, 0-based.

    Attributes
    ----------
    owned, outputs : range
        This piece's inputs, and the outputs made here.
    reads : range
        The inputs of these outputs, padding included.
    take, give : dict of int to range
        From or to the piece before (-1) or after (1): the halo, inputs that outputs here need and that piece owns,
        or the other way round.  Under 0: the inputs needed of one's own.
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
        image, owned, outputs = range(size), shares(size, pieces), shares(window.outputs(size), pieces)
        needed = [common(image, window.reads(own)) for own in outputs]
        beside = [step for step in (-1, 0, 1) if 0 <= place + step < pieces]
        self.window, self.owned, self.outputs = window, owned[place], outputs[place]
        self.reads = window.reads(self.outputs)
        self.take = {step: common(needed[place], owned[place + step]) for step in beside}
        self.give = {step: common(needed[place + step], owned[place]) for step in beside}
        reads = {output: common(image, window.reads(range(output, output + 1))) for output in self.outputs}
        inner = [output for output, read in reads.items() if common(read, self.owned) == read]
        self.inner = range(inner[0], inner[-1] + 1) if inner else range(self.outputs.stop, self.outputs.stop)
