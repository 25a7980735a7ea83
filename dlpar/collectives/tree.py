"""Binomial trees, and Spark's shallow tree and torrent.

Ranks are counted from the root: ``me`` is 0 there, whatever rank it is.
Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (IJHPCA 2005), sections 4.2 and 4.4; Apache
Spark, ``RDD.treeAggregate`` and ``TorrentBroadcast``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlpar.collectives.ring import ring_allgather
from dlpar.collectives.star import add_from

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def tree_reduce(comm: Comm, tensor: torch.Tensor, root: int = 0) -> None:
    """Sum `tensor` over all ranks, in place on `root`, in ceil(log2 N) rounds; the others hold partial sums.

    Every rank but the root sends one message.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also 0.
    root : int
        The rank that gets the sum.

    Raises
    ------
    ValueError
        If `root` is no rank.
    """
    me, size = _counted_from(root, comm), comm.size
    distance = 1
    while distance < size:
        if me % (2 * distance) == distance:
            comm.send(tensor, (me - distance + root) % size)
        elif me % (2 * distance) == 0 and me + distance < size:
            add_from(comm, tensor, [(me + distance + root) % size])
        distance *= 2


def tree_broadcast(comm: Comm, tensor: torch.Tensor, root: int = 0) -> None:
    """Copy `root`'s `tensor` to all ranks in ceil(log2 N) rounds: :func:`tree_reduce` run backwards.

    In every round each rank that has the tensor sends it to one that has not.

    Parameters
    ----------
    comm, tensor, root
        As in :func:`tree_reduce`.

    Raises
    ------
    ValueError
        If `root` is no rank.
    """
    me, size = _counted_from(root, comm), comm.size
    distance = 1 << (size - 1).bit_length()
    while distance > 1:
        distance //= 2
        if me % (2 * distance) == distance:
            comm.recv(tensor, (me - distance + root) % size, tag=0)
        elif me % (2 * distance) == 0 and me + distance < size:
            comm.send(tensor, (me + distance + root) % size)


def torrent_broadcast(comm: Comm, tensor: torch.Tensor, root: int = 0) -> None:
    """Copy `root`'s `tensor` to all ranks in blocks, which travel from peer to peer.

    The root sends each other rank one block, and these ranks pass all blocks round their ring.  So
    the root sends the tensor once, on any number of ranks, and no rank sends more.  Spark broadcasts
    like that since version 1.1, in blocks of 4 MB that peers ask for in random order; the regular order is
    that of van de Geijn's broadcast of long messages (Thakur 2005, section 4.2).

    Parameters
    ----------
    comm, tensor, root
        As in :func:`tree_reduce`.

    Raises
    ------
    ValueError
        If `root` is no rank.
    """
    me, size = _counted_from(root, comm), comm.size
    peers = [(root + place) % size for place in range(1, size)]
    if not peers:
        return
    blocks = tensor.tensor_split(len(peers))
    if me > 0:  # a ring begins with the block after the own place
        comm.recv(blocks[me % len(peers)], root, tag=0)
        ring_allgather(comm, blocks, peers)
        return
    for place, peer in enumerate(peers, 1):
        comm.send(blocks[place % len(peers)], peer)


def tree_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank: a tree reduce to rank 0, then a tree broadcast.

    ``2 (N-1)`` messages of the whole tensor in ``2 ceil(log2 N)`` rounds.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also 0.
    """
    tree_reduce(comm, tensor)
    tree_broadcast(comm, tensor)


def tree_aggregate(comm: Comm, tensor: torch.Tensor, depth: int = 2, root: int = 0) -> None:
    """Sum `tensor` over all ranks, in place on `root`, as Spark does; the others hold partial sums.

    Of P partial sums number i goes to number ``i % (P // scale)``, level after
    level, while that is quicker than sending the P to the root.  Every rank but
    the root sends one message, at any depth; what the depth changes is how many
    messages one rank receives.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, also 0.
    depth : int
        Suggested depth of the tree, from 1: ``scale`` is N to the power 1/depth,
        rounded up, and at least 2.  1 is a star.
    root : int
        The rank that gets the sum: Spark's driver.

    Raises
    ------
    ValueError
        If `depth` is below 1 or `root` is no rank.
    """
    me, size = _counted_from(root, comm), comm.size
    if depth < 1:
        raise ValueError(f"depth: got {depth}, allowed is a whole number from 1")
    scale = max(math.ceil(size ** (1 / depth)), 2)
    partitions, level = size, [size]
    while partitions > scale + math.ceil(partitions / scale):
        partitions //= scale
        level.append(partitions)
    for before, after in zip(level, [*level[1:], 1]):
        if after <= me < before:
            comm.send(tensor, (me % after + root) % size)
        elif sources := range(me + after, before, after):
            add_from(comm, tensor, [(source + root) % size for source in sources])


def _counted_from(root: int, comm: Comm) -> int:
    """This rank's number where `root` is number 0."""
    if not 0 <= root < comm.size:
        raise ValueError(f"root: got {root}, allowed is a rank from 0 to {comm.size - 1}")
    return (comm.rank - root) % comm.size
