"""Base classes of worlds with their own clock: times of computations, and stand-ins for a library."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dlpar.collectives import ring_allreduce, tree_broadcast, tree_reduce
from dlpar.collectives.ring import gather_in_order, scatter_in_order
from dlpar.comm.base import ANY, Comm, World, check_peer
from dlpar.worlds.platforms import Platform
from dlpar.worlds.simulated.simulator import LostRank

Work = Callable[[], Any]
Marks = Sequence[tuple[float, Callable[[], None]]]
"""Calls in the middle of a computation, each due after a share of the cost."""


RESTARTING = 0.1
"""Seconds from the moment at which all survivors are told of a death until they continue."""


class Pace:
    """Pace of a rank: the seconds that its computations take.

    Parameters
    ----------
    platform : Platform
        Gives the device, the variation of its times, and the stragglers.
    flops : float
        FLOP/s that the device sustains on the experiment's model.
    rank, seed : int
        They determine the times that vary.
    """

    def __init__(self, platform: Platform, flops: float, rank: int, seed: int) -> None:
        self.timing, self.rank, self.seed = platform.timing, rank, seed
        slower = platform.stragglers.get(rank, 1.0)
        self.per_flop, self.overhead = slower / flops, slower * platform.device.overhead
        self.overlap = platform.overlap
        self.varies, self.factor = platform.timing.kind != "constant", 1.0

    def new_step(self, step: int) -> None:
        """Sample the factor that multiplies this rank's times in a step."""
        if self.varies:
            self.factor = self.timing.factor(self.seed, self.rank, step)

    def seconds(self, cost: float) -> float:
        """Return the time that this many FLOPs take in this step, in seconds."""
        return cost * self.per_flop * self.factor


class LogicalWorld(World):
    """Environment of a rank whose times come from a platform on paper.

    Parameters
    ----------
    carrier : str
        Library that carries tensors.
    pace : Pace
        Seconds of a computation on this rank's device.
    eager : float
        Bytes up to which a send returns at once. These are bytes as sent, not as charged.
    """

    def __init__(self, carrier: str, pace: Pace, eager: float) -> None:
        super().__init__(torch.device("cpu"), carrier)
        self.pace, self.eager = pace, eager

    def backward(self, comm: LogicalComm, work: Work, cost: float | None = None, marks: Marks = ()) -> Any:
        return comm.compute(work, cost, marks)

    def inside(self, call: Callable[[], None]) -> None:
        pass

    def new_step(self, step: int) -> None:
        self.pace.new_step(step)
        self.pause(self.pace.overhead)

    def is_death(self, error: BaseException) -> bool:
        return isinstance(error, LostRank)


class LogicalComm(Comm):
    """Communicator that uses dlpar's own collectives instead of a library's, and does not count their bytes.

    All-reduce and reduce-scatter use a ring, and reduce and broadcast use a tree, for tensors of any layout.
    """

    device = torch.device("cpu")

    @abstractmethod
    def compute(self, work: Work, cost: float | None = None, marks: Marks = ()) -> Any:
        """Compute, and make each call of `marks` after its share of the cost. See :meth:`World.backward`."""

    @abstractmethod
    def meet(self, thing: Any, to: int = ANY) -> list[Any]:
        """Wait for all ranks, and return their objects to one rank or to all."""

    def barrier(self) -> None:
        self.meet(None)

    def gather(self, thing: Any, root: int = 0) -> list[Any] | None:
        check_peer(self, root, "root")
        things = self.meet(pickle.dumps(thing), root)  # so that each rank gets its own copy
        return [pickle.loads(each) for each in things] if self.rank == root else None

    def broadcast(self, thing: Any, root: int = 0) -> Any:
        check_peer(self, root, "root")
        return pickle.loads(self.meet(pickle.dumps(thing) if self.rank == root else None)[root])

    def allreduce(self, tensor: torch.Tensor) -> None:
        self._in_place(lambda flat: ring_allreduce(self, flat), _addable(tensor), tensor)

    def reduce(self, tensor: torch.Tensor, root: int = 0) -> None:
        self._in_place(lambda flat: tree_reduce(self, flat, root), _addable(tensor), tensor, root)

    def broadcast_tensor(self, tensor: torch.Tensor, root: int = 0) -> None:
        self._in_place(lambda flat: tree_broadcast(self, flat, root), tensor, tensor, root)

    def reduce_scatter(self, chunks: Sequence[torch.Tensor]) -> None:
        scatter_in_order(self, chunks)
        self.traffic.hidden()

    def allgather(self, chunks: Sequence[torch.Tensor]) -> None:
        gather_in_order(self, chunks)
        self.traffic.hidden()


def _addable(tensor: Any) -> Any:
    """Convert half precision to float32. A library adds in float32."""
    return tensor.to(torch.float32) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
