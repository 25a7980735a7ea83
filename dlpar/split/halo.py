"""Halos: what a rank needs of the pieces around its own, fetched from eight neighbours, and its gradient brought back.

All eight are asked at once, so that the whole halo travels while the interior is
computed.  Two phases, columns after rows and their corners, would send the same
elements in half as many messages; but the second could start only when the first
has arrived, and nothing would hide it.  (Dryden et al., "Improving Strong-Scaling of
CNN Training by Exploiting Finer-Grained Parallelism", IPDPS 2019, arXiv 1903.06681.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from dlpar.comm import Comm
    from dlpar.comm.base import Request


Offset = tuple[int, int]
"""Of a neighbour: rows below and columns right of this rank; (0, 0) is the rank itself."""

OWN: Offset = (0, 0)
HALO = 1
"""Tag of its messages.  Tagged they go by MPI: with NCCL neighbours would both wait to receive before they send."""

Pieces = dict[Offset, Tensor]
"""Parts of an image, by the neighbour they lie on."""

Region = tuple[range, range]
"""Rows and columns of the whole image."""


class Grid:
    """Ranks in rows and columns, each with the piece of every image that lies there.

    Parameters
    ----------
    comm : Comm
        What the ranks send by.
    rows, columns : int
        Pieces of an image's height and width.
    ranks : sequence of int, optional
        Those of `comm` that form the grid, row by row; default: all.

    Attributes
    ----------
    row, column : int
        This rank's place, from 0.
    """

    def __init__(self, comm: Comm, rows: int, columns: int, ranks: Sequence[int] | None = None) -> None:
        self.comm, self.rows, self.columns = comm, rows, columns
        self.ranks = list(range(comm.size) if ranks is None else ranks)
        if rows * columns != len(self.ranks):
            ranks = len(self.ranks)
            raise ValueError(
                f"grid: got {rows} × {columns}, allowed is sizes that multiply to the {ranks} ranks"
            )
        self.row, self.column = divmod(self.ranks.index(comm.rank), columns)

    def at(self, row: int, column: int) -> int:
        """The rank at a place."""
        return self.ranks[row * self.columns + column]


class Halo:
    """A rank's piece of an image and those around it.

    Parameters
    ----------
    grid : Grid
        Who has them.
    rows, columns : Cut
        How height and width are cut, seen from this rank.

    Attributes
    ----------
    exchanges : bool
        Whether this rank has anything to send or to receive.
    """

    def __init__(self, grid: Grid, rows: Cut, columns: Cut) -> None:
        self.comm = grid.comm
        around = [(down, right) for down in BESIDE for right in BESIDE]
        met = [(d, r) for d, r in around if d in rows.take and r in columns.take]
        self._rank = {(d, r): grid.at(grid.row + d, grid.column + r) for d, r in met}
        self._take = {
            (d, r): (rows.take[d], columns.take[r]) for d, r in met if rows.take[d] and columns.take[r]
        }
        self._give = {
            (d, r): (rows.give[d], columns.give[r]) for d, r in met if rows.give[d] and columns.give[r]
        }
        self._take[OWN] = rows.owned, columns.owned  # all of it lies here, also what the layer does not need
        self._give.pop(OWN, None)
        self.exchanges = len(self._take) > 1 or bool(self._give)

    def fetch(self, own: Tensor) -> tuple[Pieces, list[Request]]:
        """Ask all neighbours for the halo and send them theirs.

        Parameters
        ----------
        own : Tensor, shape (n, channels, height, width)
            This rank's piece.

        Returns
        -------
        pieces, requests
            One's own piece and those of the halo, which are there once all requests are :func:`complete`.
        """
        sent = {to: own[index(place, self._take[OWN])] for to, place in self._give.items()}
        pieces = {source: self._like(own, place) for source, place in self._take.items() if source != OWN}
        return {OWN: own, **pieces}, self._exchange(sent, pieces)

    def zeros(self, own: Tensor) -> Pieces:
        """Room for the gradient of one's own piece and of the halo."""
        return {source: self._like(own, place).zero_() for source, place in self._take.items()}

    def give_back(self, gradient: Pieces) -> tuple[Pieces, list[Request]]:
        """Send the halo's gradient to those who own it; the way of :meth:`fetch`, backwards.

        Returns
        -------
        pieces, requests
            What neighbours say of this rank's piece, once all requests are :func:`complete`; for :meth:`take_back`.
        """
        sent = {source: piece for source, piece in gradient.items() if source != OWN}
        came = {to: self._like(gradient[OWN], place) for to, place in self._give.items()}
        return came, self._exchange(sent, came)

    def take_back(self, own: Tensor, came: Pieces) -> None:
        """Add what neighbours say of this piece's gradient."""
        for to, piece in came.items():
            own[index(self._give[to], self._take[OWN])] += piece

    def block(self, pieces: Pieces, place: Region, padding: float = 0.0) -> Tensor:
        """Inputs at some rows and columns, put together from the pieces they lie in; beyond the image is `padding`."""
        within = list(self._overlaps(place))
        if [source for source, *_ in within] == [OWN] and all(map(_contains, self._take[OWN], place)):
            return pieces[OWN][within[0][2]]
        block = self._like(pieces[OWN], place).fill_(padding)
        for source, of_block, of_piece in within:
            block[of_block] = pieces[source][of_piece]
        return block

    def spread(self, block: Tensor, place: Region, into: Pieces) -> None:
        """Add the gradient of a block to that of the pieces it was put together from."""
        for source, of_block, of_piece in self._overlaps(place):
            into[source][of_piece] += block[of_block]

    def _overlaps(self, place: Region) -> Iterator[tuple[Offset, tuple, tuple]]:
        """The pieces a block has a part in: which, where in the block, and where in the piece."""
        for source, piece in self._take.items():
            both = common(place[0], piece[0]), common(place[1], piece[1])
            if both[0] and both[1]:
                yield source, index(both, place), index(both, piece)

    def _like(self, own: Tensor, place: Region) -> Tensor:
        return self.comm.empty((*own.shape[:2], len(place[0]), len(place[1])), own.dtype)

    def _exchange(self, sent: Pieces, came: Pieces) -> list[Request]:
        # Receives first: a message that is expected need not be stored on its way.
        receives = [self.comm.irecv(piece, self._rank[source], HALO) for source, piece in came.items()]
        return receives + [
            self.comm.isend(piece.contiguous(), self._rank[to], HALO) for to, piece in sent.items()
        ]


def complete(requests: Iterable[Request]) -> None:
    """Wait for all of them."""
    for request in requests:
        request.wait()


def _contains(whole: range, part: range) -> bool:
    return whole.start <= part.start and part.stop <= whole.stop


def index(place: Region, within: Region) -> tuple:
    """Rows and columns as an index into a tensor that begins where `within` does."""
    return (..., *(slice(p.start - w.start, p.stop - w.start) for p, w in zip(place, within)))


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
