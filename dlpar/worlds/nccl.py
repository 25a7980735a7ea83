"""Messages through torch.distributed: NCCL between GPUs, and gloo for tests without GPUs.

NCCL has no any-source receives and no tags.  So MPI carries each message with a tag above 0, each object and
each barrier. This carrier takes an untagged message between named peers, if the message is on this rank's
device. A receive that could match both carriers is refused, because it would wait for one and miss the other.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from dlpar.comm.base import ANY, Arrival, Request, Traffic, World, check_peer
from dlpar.worlds.mpi import MPIComm

PATIENCE = timedelta(minutes=5)
"""Maximum time that a carrier waits for a peer. The job's guardian ends a job sooner."""


UNREAD = 4096
"""Maximum number of waits kept until their seconds are requested."""


class DeviceTraffic(Traffic):
    """Counts of a rank whose GPU waits for messages. On the host, NCCL's own waits return at once."""

    def __init__(self, now: Callable[[], float], device: torch.device) -> None:
        super().__init__(now)
        self._device = device
        self._waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=UNREAD)

    def queued(self, wait: Callable[[], Any]) -> None:
        """Make a call that lets the GPU's queue wait for a message. Time the wait with the GPU's events."""
        since, until = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        since.record(torch.cuda.current_stream(self._device))
        wait()
        until.record(torch.cuda.current_stream(self._device))
        self._waits.append((since, until))

    def waits_of_device(self) -> Callable[[], float]:
        waits = [self._waits.popleft() for _ in range(len(self._waits))]  # another thread may add some
        return lambda: sum(since.elapsed_time(until) for since, until in waits) / 1000


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
    """

    def __init__(
        self,
        mpi: MPI.Intracomm,
        device: torch.device,
        carrier: str,
        zero: float | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(mpi, device, zero)
        self.world = World(self.device, carrier)
        if self.device.type == "cuda":
            self.traffic = DeviceTraffic(self.now, self.device)
        if not dist.is_initialized():
            _introduce(self, carrier)
        self.group = group or dist.group.WORLD
        self._global = dist.get_process_group_ranks(self.group)
        # All ranks must make NCCL's first call, which connects the group. But the first message may be
        # between two ranks.
        dist.all_reduce(torch.zeros(1, device=self.device), group=self.group)

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        if tag or self._is_foreign(tensor):
            return super().send(tensor, dest, tag)
        self.isend(tensor, dest).wait()

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        if tag or self._is_foreign(tensor):
            return super().isend(tensor, dest, tag)
        return _UnderWay(self, [self._sending(tensor, dest)])

    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Request:
        if self._goes_by_mpi(into, source, tag):
            return super().irecv(into, source, tag)
        check_peer(self, source, "source")
        return _UnderWay(self, [], source, into)

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        if self._goes_by_mpi(tensor, source, tag):
            return super().sendrecv(tensor, dest, into, source, tag)
        check_peer(self, source, "source")
        # One launch for both directions: two NCCL calls in a row would wait for each other.
        return _UnderWay(self, [self._sending(tensor, dest)], source, into).wait()

    def _sending(self, tensor: torch.Tensor, dest: int) -> dist.P2POp:
        """Describe a send, and count it."""
        check_peer(self, dest, "dest")
        self.traffic.sent(tensor.nbytes)
        return self.operation(dist.isend, tensor.detach().contiguous(), dest)

    def operation(self, call: Callable[..., Any], tensor: torch.Tensor, peer: int) -> dist.P2POp:
        """Describe one direction of a message in bytes."""
        return dist.P2POp(call, _bytes_of(tensor), self._global[peer], self.group)

    def _is_foreign(self, tensor: torch.Tensor) -> bool:
        """Return whether MPI must carry a tensor because this carrier cannot reach it."""
        return tensor.device.type != self.device.type

    def _goes_by_mpi(self, into: torch.Tensor, source: int, tag: int) -> bool:
        """Return whether MPI carries the message to receive.

        Refuse a receive that both carriers might serve.
        """
        if tag > 0 or self._is_foreign(into):
            return True
        if source == tag == ANY and into.is_cpu:  # a packet, which gloo could carry, but it has a tag
            return True
        if ANY in (source, tag):
            missing = "source" if source == ANY else "tag"
            raise ValueError(
                f"recv: got {missing} ANY, allowed on {self.world.carrier} is a named source with tag 0, for a "
                f"message without a tag, or a tag above 0"
            )
        return False

    def barrier(self) -> None:
        self.world.settle()
        super().barrier()

    def _on(self, mpi: MPI.Intracomm) -> MPIComm:
        ranks = mpi.allgather(self._global[self.rank])
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

    def allreduce(self, tensor: torch.Tensor) -> None:
        self._in_place(tensor, lambda whole: dist.all_reduce(whole, group=self.group))

    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        check_peer(self, root, "root")
        self._in_place(tensor, lambda whole: dist.reduce(whole, self._global[root], group=self.group))

    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        check_peer(self, root, "root")
        send = lambda whole: dist.broadcast(_bytes_of(whole), self._global[root], group=self.group)
        self._in_place(tensor, send)

    def _in_place(self, tensor: torch.Tensor, collective: Callable[[torch.Tensor], Any]) -> None:
        """Run the library's collective on a tensor of any layout."""
        self.traffic.hidden()
        whole = tensor.contiguous()
        collective(whole)
        if whole is not tensor:
            tensor.copy_(whole)

    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        self.traffic.hidden()
        padded = _padded(chunks)
        mine = torch.empty_like(padded[0])
        dist.reduce_scatter_tensor(mine, padded.view(-1), group=self.group)
        chunks[self.rank].copy_(mine[: len(chunks[self.rank])])

    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        self.traffic.hidden()
        padded = _padded(chunks)
        dist.all_gather_into_tensor(padded.view(-1), padded[self.rank].clone(), group=self.group)
        for chunk, arrived in zip(chunks, padded):
            chunk.copy_(arrived[: len(chunk)])

    def close(self) -> None:
        super().close()
        self.world.settle()
        if self.group is dist.group.WORLD and dist.is_initialized():
            dist.destroy_process_group()


class _UnderWay:
    """Pending messages: sends, and a receive if `into` is given."""

    def __init__(
        self,
        comm: DistributedComm,
        operations: list[dist.P2POp],
        source: int | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        self._comm, self._source, self._into = comm, source, into
        if into is not None:
            contiguous = torch.contiguous_format
            self._landing = into if into.is_contiguous() else torch.empty_like(into, memory_format=contiguous)
            operations.append(comm.operation(dist.irecv, self._landing, source))
        self._works = dist.batch_isend_irecv(operations)

    def wait(self) -> Arrival | None:
        if self._into is None:
            return self._finish()
        self._comm.traffic.queued(self._finish)
        if self._landing is not self._into:
            self._into.copy_(self._landing)
        return Arrival(self._source, 0, self._into.nbytes)

    def _finish(self) -> None:
        for work in self._works:
            work.wait()

    def test(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _padded(chunks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Put chunks in rows of one tensor, padded to the longest.

    Carriers need equal lengths, at least 1.
    """
    rows = chunks[0].new_zeros(len(chunks), max(1, *map(len, chunks)))
    for row, chunk in zip(rows, chunks):
        row[: len(chunk)] = chunk
    return rows


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
    host, store = socket.gethostname(), None
    if len(set(comm.mpi.allgather(host))) == 1:  # nothing listens on a network
        folder = comm.broadcast(tempfile.mkdtemp() if comm.rank == 0 else None)
        store = dist.FileStore(f"{folder}/store", comm.size)
        _, loopback = min(socket.if_nameindex())
        os.environ |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    elif comm.rank == 0:
        store = dist.TCPStore(host, 0, comm.size, is_master=True, timeout=PATIENCE, wait_for_workers=False)
        comm.broadcast((host, store.port))
    else:
        store = dist.TCPStore(*comm.broadcast(None), comm.size, is_master=False, timeout=PATIENCE)
    # No device is given. If this group were bound to a device, NCCL would make new groups by splitting this
    # group, which needs all ranks.
    dist.init_process_group(carrier, store=store, rank=comm.rank, world_size=comm.size, timeout=PATIENCE)
