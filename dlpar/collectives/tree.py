"""Reductions to a root and broadcasts from a root, by stars, binomial trees, and Spark's tree and torrent.

In a star the root's link carries N-1 whole tensors each way. A star is simple, but it is the slowest for
large tensors on many ranks. A parameter server with one shard is a star.  In a tree, ranks are counted from
the root, whose ``me`` is 0. Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (IJHPCA 2005), sections 4.2 and 4.4; Apache Spark, ``RDD.treeAggregate``
and ``TorrentBroadcast``; for two levels Jia et al., "Highly Scalable Deep Learning Training System with
Mixed-Precision" (arXiv 1807.11205), section 3.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlpar.collectives.ring import Ranks, add_from, ring_allgather, ring_allreduce

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


def star_reduce(comm: Comm, tensor: torch.Tensor, root: int = 0, ranks: Ranks = None) -> None:
    """Sum `tensor` over all ranks, in place on `root`. Other ranks' tensors do not change.

    Every rank but the root sends one message. The root adds the others' tensors to its own in the order of
    `ranks`, so a repeated run is bit-identical.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, including 0.
    root : int
        The rank that gets the sum.
    ranks : sequence of int, optional
        The ranks that take part, including `root`; all by default.
    """
    if comm.rank != root:
        comm.send(tensor, root)
        return
    add_from(comm, tensor, [source for source in ranks or range(comm.size) if source != root])


def star_broadcast(comm: Comm, tensor: torch.Tensor, root: int = 0, ranks: Ranks = None) -> None:
    """Copy `root`'s `tensor` to all ranks. The root sends N-1 messages, one after the other.

    Parameters
    ----------
    comm, tensor, root, ranks
        As in :func:`star_reduce`.
    """
    if comm.rank != root:
        comm.recv(tensor, root, tag=0)
        return
    for dest in ranks or range(comm.size):
        if dest != root:
            comm.send(tensor, dest)


def star_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    It is a star reduction to rank 0, followed by a star broadcast.

    This takes ``2 (N-1)`` messages of the whole tensor, all over rank 0's link.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, including 0.
    """
    star_reduce(comm, tensor)
    star_broadcast(comm, tensor)


def hierarchical_allreduce(comm: Comm, tensor: torch.Tensor, group: int = 2) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    Each group sums to its first rank.  The first ranks all-reduce on a ring, and each copies the sum to its
    group.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, including 0.
    group : int
        Number of consecutive ranks in a group, at least 1. The last group may be smaller.

    Raises
    ------
    ValueError
        If `group` is below 1.
    """
    if group < 1:
        raise ValueError(f"group: got {group}, allowed is a whole number from 1")
    first = comm.rank - comm.rank % group
    members = range(first, min(first + group, comm.size))
    star_reduce(comm, tensor, first, members)
    if comm.rank == first:
        ring_allreduce(comm, tensor, range(0, comm.size, group))
    star_broadcast(comm, tensor, first, members)


def tree_reduce(comm: Comm, tensor: torch.Tensor, root: int = 0) -> None:
    """Sum `tensor` over all ranks in place on `root`, in ceil(log2 N) rounds.

    The other ranks hold partial sums.

    Every rank but the root sends one message.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, including 0.
    root : int
        The rank that gets the sum.

    Raises
    ------
    ValueError
        If `root` is not a rank.
    """
    above, children = _family(comm, root)
    add_from(comm, tensor, children)
    if above is not None:
        comm.send(tensor, above)


def tree_broadcast(comm: Comm, tensor: torch.Tensor, root: int = 0) -> None:
    """Copy `root`'s `tensor` to all ranks in ceil(log2 N) rounds, the reverse of :func:`tree_reduce`.

    In every round each rank with the tensor sends it to a rank that lacks it.

    Parameters
    ----------
    comm, tensor, root
        As in :func:`tree_reduce`.

    Raises
    ------
    ValueError
        If `root` is not a rank.
    """
    above, children = _family(comm, root)
    if above is not None:
        comm.recv(tensor, above, tag=0)
    for child in reversed(children):
        comm.send(tensor, child)


def _family(comm: Comm, root: int) -> tuple[int | None, list[int]]:
    """Return this rank's parent in a binomial tree (None for the root) and its children, nearest first."""
    me, size = _counted_from(root, comm), comm.size
    reach = me & -me or size  # the distance to the parent; the distances to children are smaller
    children = [me + 2**k for k in range(size.bit_length()) if 2**k < reach and me + 2**k < size]
    return None if me == 0 else (me - reach + root) % size, [(child + root) % size for child in children]


def torrent_broadcast(comm: Comm, tensor: torch.Tensor, root: int = 0) -> None:
    """Copy `root`'s `tensor` to all ranks in blocks that travel from peer to peer.

    The root sends one block to each other rank, and these ranks pass all blocks around their ring. So no
    rank, not even the root, sends more than one tensor's bytes, on any number of ranks. Spark has broadcast
    in this way since version 1.1, but its peers request blocks of 4 MB in random order. The regular order
    here follows van de Geijn's broadcast of long messages (Thakur 2005, section 4.2).

    Parameters
    ----------
    comm, tensor, root
        As in :func:`tree_reduce`.

    Raises
    ------
    ValueError
        If `root` is not a rank.
    """
    me, size = _counted_from(root, comm), comm.size
    peers = [(root + place) % size for place in range(1, size)]
    blocks = tensor.tensor_split(max(1, len(peers)))
    if me > 0:  # in the ring, place p begins with block p + 1
        comm.recv(blocks[me % len(peers)], root, tag=0)
        ring_allgather(comm, blocks, peers)
        return
    for place, peer in enumerate(peers, 1):
        comm.send(blocks[place % len(peers)], peer)


def tree_allreduce(comm: Comm, tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place on every rank.

    It is a tree reduction to rank 0, followed by a tree broadcast.

    This takes ``2 (N-1)`` messages of the whole tensor in ``2 ceil(log2 N)`` rounds.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, including 0.
    """
    tree_reduce(comm, tensor)
    tree_broadcast(comm, tensor)


def tree_aggregate(comm: Comm, tensor: torch.Tensor, depth: int = 2, root: int = 0) -> None:
    """Sum `tensor` over all ranks, in place on `root`, as Spark does. The others hold partial sums.

    At each level, partial sum i of P is added to number ``i % (P // scale)``. Levels end when it is faster
    to send all P sums to the root.  Every rank but the root sends one message at any depth.  The depth
    changes only the number of messages that one rank receives.

    Parameters
    ----------
    comm : Comm
        N ranks, each calling with a tensor of the same length.
    tensor : Tensor, shape (n,)
        Any n, including 0.
    depth : int
        Suggested depth of the tree, at least 1: ``scale`` is N to the power 1/depth, rounded up, and at least
        2.  Depth 1 is a star.
    root : int
        The rank that gets the sum: Spark's driver.

    Raises
    ------
    ValueError
        If `depth` is below 1 or `root` is not a rank.
    """
    me, size = _counted_from(root, comm), comm.size
    if depth < 1:
        raise ValueError(f"depth: got {depth}, allowed is a whole number from 1")
    for before, after in levels(size, depth):
        if after <= me < before:
            comm.send(tensor, (me % after + root) % size)
        elif sources := range(me + after, before, after):
            add_from(comm, tensor, [(source + root) % size for source in sources])


def levels(size: int, depth: int) -> list[tuple[int, int]]:
    """Count the partial sums before and after each level of :func:`tree_aggregate`."""
    scale = max(math.ceil(size ** (1 / depth)), 2)
    level = [size]
    while level[-1] > scale + math.ceil(level[-1] / scale):
        level.append(level[-1] // scale)
    return list(zip(level, [*level[1:], 1]))


def _counted_from(root: int, comm: Comm) -> int:
    """Return this rank's number, counted from `root`, which is number 0."""
    if not 0 <= root < comm.size:
        raise ValueError(f"root: got {root}, allowed is a rank from 0 to {comm.size - 1}")
    return (comm.rank - root) % comm.size
