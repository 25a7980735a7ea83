"""Messages through torch.distributed: NCCL between GPUs, and gloo for tests without GPUs.

NCCL has no any-source receives and no tags.  So MPI carries each message with a tag above 0, each object and
each barrier. This carrier takes an untagged message between named peers, if the message is on this rank's
device. A receive that could match both carriers is refused, because it would wait for one and miss the other.

A message of NCCL waits for all earlier messages of its group.  So ranks that exchange several messages begin
them together, and messages of different directions have different groups (:mod:`dlpar.split.pipeline`).
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.utils.rnn import pad_sequence

from dlpar.comm.base import ANY, Arrival, Collective, Request, World, check_peer
from dlpar.worlds.mpi import DeviceTraffic, MPIComm, joined, put_back

PATIENCE = timedelta(minutes=5)
"""Maximum time that a carrier waits for a peer. The job's guardian ends a job sooner."""


# Before torch 2.13, the second name is the only one. Since then it warns.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class DistributedComm(MPIComm):
    """Ranks of a torch.distributed group. MPI carries the messages that the group cannot carry.

    Parameters
    ----------
    mpi : MPI.Intracomm
        The same ranks.
    device : torch.device
        Device of this rank's tensors.
    carrier : str
        ``nccl`` or ``gloo``.
    zero : float, optional
        ``time.monotonic()`` of second 0. By default, all ranks agree on a moment.
    group : ProcessGroup, optional
        The ranks' group. By default, it is a new group of all ranks.

    Attributes
    ----------
    launched : threading.Event
        Set when MPI carries a message, or when the last collective that was started here has ended.
    """

    launched = threading.Event()

    def __init__(
        self,
        mpi: MPI.Intracomm,
        device: torch.device,
        carrier: str,
        zero: float | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(mpi, device, zero)
        within, self.world = self.world.in_memory, World(self.device, carrier)
        self.world.in_memory = within
        if self.device.type == "cuda":
            self.traffic = DeviceTraffic(self.now, self.device)
        if not dist.is_initialized():
            _introduce(self, carrier)
        self.group = group or dist.group.WORLD
        self._batch: Batch | None = None
        # All ranks must make the first call of a group, but the first message may be between two ranks.
        dist.all_reduce(torch.zeros(1, device=self.device), group=self.group)

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        check_peer(self, dest, "dest")
        if self._goes_by_mpi(tensor, dest, tag):
            return super().isend(tensor, dest, tag)
        self.traffic.sent(tensor.nbytes)
        return _UnderWay(self, dist.isend, tensor, dest)

    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Request:
        if self._goes_by_mpi(into, source, tag):
            return super().irecv(into, source, tag)
        check_peer(self, source, "source")
        return _UnderWay(self, dist.irecv, into, source)

    @contextmanager
    def together(self) -> Iterator[Batch]:
        # One launch for all messages: NCCL calls in a row would wait for each other.
        outer = self._batch
        batch = self._batch = Batch() if outer is None else outer
        try:
            yield batch
        finally:
            self._batch = outer
        if batch is not outer and batch:
            batch.works = dist.batch_isend_irecv(batch)

    def _goes_by_mpi(self, tensor: torch.Tensor, peer: int, tag: int) -> bool:
        """Return whether MPI carries a message. Refuse a receive that both carriers might serve."""
        is_packet = peer == tag == ANY and tensor.is_cpu  # gloo could carry it, but it has a tag
        if tag > 0 or tensor.device.type != self.device.type or is_packet:
            self.launched.set()
            return True
        if ANY in (peer, tag):
            raise ValueError(
                f"recv: got {'source' if peer == ANY else 'tag'} ANY, allowed on {self.world.carrier} is a named "
                f"source with tag 0, for a message without a tag, or a tag above 0"
            )
        return False

    def _on(self, mpi: MPI.Intracomm) -> MPIComm:
        made = dist.distributed_c10d._world.pg_names
        told = mpi.allgather((dist.get_rank(), len(made)))
        ranks = [rank for rank, _ in told]
        while len(made) < max(count for _, count in told):  # torch names a group by its ranks and this number
            dist.new_group([dist.get_rank()], use_local_synchronization=True)
        # The ranks are in this order. Only these ranks take part, so other ranks may make another group at
        # the same time.
        in_order = {} if ranks == sorted(ranks) else {"sort_ranks": False}
        if in_order and "sort_ranks" not in signature(dist.new_group).parameters:
            raise ValueError(
                f"split: got ranks in the order {ranks}, allowed with torch {torch.__version__} and "
                f"{self.world.carrier} is their own order; torch 2.12 or later keeps any"
            )
        group = dist.new_group(ranks, timeout=PATIENCE, use_local_synchronization=True, **in_order)
        part = DistributedComm(mpi, self.device, self.world.carrier, self.zero, group)
        part.traffic, part.world = self.traffic, self.world
        return part

    def start(self, collective: Collective, bucket: torch.Tensor) -> Request:
        launched = threading.Event()

        def launch(beside: Any, bucket: torch.Tensor) -> Any:
            beside.launched = launched
            return collective(beside, bucket)

        request = super().start(launch, bucket)
        request.future.add_done_callback(lambda _: launched.set())
        # All ranks must launch NCCL's calls of both threads in one order. Messages of MPI have no such order, so
        # a collective has messages of only one of them.
        if self.world.carrier == "nccl":
            launched.wait()
        return request

    def allreduce(self, tensor: torch.Tensor) -> None:
        self._in_place(lambda flat: dist.all_reduce(flat, group=self.group), tensor, tensor)

    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        self._in_place(lambda flat: dist.reduce(flat, group=self.group, group_dst=root), tensor, tensor, root)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        send = lambda flat: dist.broadcast(_bytes_of(flat), group=self.group, group_src=root)
        self._in_place(send, tensor, tensor, root)

    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        self.traffic.hidden()
        padded = _padded(chunks)
        _reduce_scatter(padded[self.rank], padded.view(-1), group=self.group)
        put_back([padded[self.rank]], [chunks[self.rank]])

    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        self.traffic.hidden()
        padded = _padded(chunks)
        _all_gather(padded.view(-1), padded[self.rank], group=self.group)
        put_back(padded, chunks)

    def close(self) -> None:
        super().close()
        self.world.settle()
        if self.group is dist.group.WORLD and dist.is_initialized():
            dist.destroy_process_group()


class Batch(list[dist.P2POp]):
    """Messages that one launch starts. `works` are known after the launch."""

    works: list[dist.Work]

    def wait(self) -> None:
        """Wait until all messages are complete."""
        while self.works:  # gloo allows one wait for each
            self.works.pop().wait()


class _UnderWay:
    """Pending message of a batch: `call` is ``dist.isend`` or ``dist.irecv``."""

    def __init__(self, comm: DistributedComm, call: Any, tensor: torch.Tensor, peer: int) -> None:
        self._comm, self._call, self._tensor, self._peer = comm, call, tensor, peer
        self._wire = tensor.detach().resolve_conj().resolve_neg().contiguous()
        with comm.together() as self._batch:
            self._batch.append(dist.P2POp(call, _bytes_of(self._wire), group=comm.group, group_peer=peer))

    def wait(self) -> Arrival | None:
        if self._call is dist.isend:
            return self._batch.wait()
        self._comm.traffic.queued(self._batch.wait)
        if self._wire.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._wire)
        return Arrival(self._peer, 0, self._tensor.nbytes)

    def test(self) -> bool:
        return all(work.is_completed() for work in self._batch.works)


def _padded(chunks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return chunks as the rows of one tensor, padded to the longest if their lengths differ.

    Carriers need equal lengths, at least 1.
    """
    if len(set(map(len, chunks))) == 1 and len(chunks[0]):
        return joined(chunks).view(len(chunks), -1)
    return pad_sequence([*chunks, chunks[0].new_zeros(1)], batch_first=True)[:-1]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as bytes, at least one.

    Carriers support different dtypes, and drop empty messages.
    """
    if tensor.numel() == 0:
        return torch.zeros(1, dtype=torch.uint8, device=tensor.device)
    return tensor.reshape(-1).view(torch.uint8)


def _introduce(comm: MPIComm, carrier: str) -> None:
    """Connect all ranks.

    Ranks on one machine meet at a file and on loopback, other ranks at a store on rank 0.
    """
    if comm.world.in_memory:  # nothing listens on a network
        folder = comm.broadcast(tempfile.mkdtemp() if comm.rank == 0 else None)
        store = dist.FileStore(f"{folder}/store", comm.size)
        _, loopback = min(socket.if_nameindex())
        os.environ |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    elif comm.rank == 0:
        host = socket.gethostname()
        store = dist.TCPStore(host, 0, comm.size, is_master=True, timeout=PATIENCE, wait_for_workers=False)
        comm.broadcast((host, store.port))
    else:
        store = dist.TCPStore(*comm.broadcast(None), comm.size, is_master=False, timeout=PATIENCE)
    # No device is given. If this group were bound to a device, NCCL would make new groups by splitting this
    # group, which needs all ranks.
    dist.init_process_group(carrier, store=store, rank=comm.rank, world_size=comm.size, timeout=PATIENCE)
