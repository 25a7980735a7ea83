"""Double binary tree: an all-reduce that sends about as few bytes as a ring, with the latency of a tree.

Each of the two trees carries one half of the tensor. Its pieces are pipelined up the tree and then down. An
inner rank of one tree is a leaf of the other.  So its port sends and receives about as much as in a ring.
Sources: Sanders, Speck and Träff (Parallel Computing 2009); NCCL 2.4 (Jeaugey 2019).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm, Request

PIECE = 1 << 16
"""Maximum number of elements in a piece."""

AHEAD = 4
"""Number of pieces for which receives are posted ahead. A long message waits until its receive is posted."""


def double_tree_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor`, shape (n,), over all ranks in place.

    Each rank sends at most about twice the tensor's bytes.
    """
    count = pieces_of(len(tensor))
    halves = [half.tensor_split(count) for half in tensor.tensor_split(2)]
    families = [family(comm.rank, comm.size, tree) for tree in (0, 1)]
    # Tags 1 and 2 tell the trees apart: two ranks may be neighbours in both.
    pieces = [(piece, 1 + tree, *families[tree]) for pair in zip(*halves) for tree, piece in enumerate(pair)]
    inner, leaves = [p for p in pieces if p[-1]], [p for p in pieces if not p[-1]]
    # Up: a rank first sends its pieces as a leaf. Otherwise the trees would wait for each other.
    sending = [comm.isend(piece, above, tag) for piece, tag, above, _ in leaves if above is not None]
    to_come, expected = iter(inner), deque[list[tuple["torch.Tensor", "Request"]]]()
    for piece, tag, above, _ in inner:
        for coming, where, _, below in islice(to_come, 1 if expected else AHEAD):
            buffers = [(comm.empty(len(coming), tensor.dtype), child) for child in below]
            expected.append([(theirs, comm.irecv(theirs, child, where)) for theirs, child in buffers])
        for theirs, request in expected.popleft():
            request.wait()
            comm.compute(partial(piece.add_, theirs), cost=len(piece))
        if above is not None:
            sending.append(comm.isend(piece, above, tag))
    for request in sending:
        request.wait()
    # Down: each rank forwards its pieces, and then waits for its pieces as a leaf.
    answers = {id(p): comm.irecv(p[0], p[2], p[1]) for p in pieces if p[2] is not None}
    sending = []
    for p in inner + leaves:
        if id(p) in answers:
            answers[id(p)].wait()
        sending += [comm.isend(p[0], child, p[1]) for child in p[3]]
    for request in sending:
        request.wait()


def pieces_of(elements: int) -> int:
    """Return the number of pieces of each half of a tensor."""
    return max(1, -(-elements // (2 * PIECE)))


def family(rank: int, ranks: int, shift: int) -> tuple[int | None, list[int]]:
    """Return the parent (None for the root) and the children of a rank in a tree with shifted places."""
    place = (rank + shift) % ranks
    near = {place + way * 2**k for k in range(ranks.bit_length()) for way in (-1, 1)}
    children = sorted(p for p in near if 0 < p < ranks and _parent(p, ranks) == place)
    above = None if place == 0 else (_parent(place, ranks) - shift) % ranks
    return above, [(child - shift) % ranks for child in children]


def _parent(place: int, places: int) -> int:
    """Return the parent of a position in a tree.

    Places are numbered from left to right, and leaves are odd.
    """
    bit = place & -place
    above = (place ^ bit) | bit << 1
    return above if above < places else place ^ bit
