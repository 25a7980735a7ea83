"""How long messages and collectives take on real ranks, on this machine's own link or on a slow one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Sequence

from dlpar.costmodel import Link, collective_seconds, fitted
from dlpar.lab.slow_link import SlowLink
from dlpar.launcher.spmd import spmd
from dlpar.platforms.ping_pong import SIZES, there_and_back

if TYPE_CHECKING:
    from dlpar.comm import Comm


class Timing(NamedTuple):
    """A collective's time, measured on real ranks or predicted."""

    name: str
    ranks: int
    nbytes: int
    """Of the whole tensor."""
    seconds: float
    """From the moment the first rank calls until the last rank has the result; measured: the quickest of some calls."""


@dataclass(frozen=True)
class PingPong:
    """One-way times of messages between two ranks.

    Attributes
    ----------
    sizes : tuple of int
        Bytes.
    seconds : tuple of float
        Half a round trip, the quickest of some.
    link : Link
        Fitted to both.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def link(self) -> Link:
        return fitted(self.sizes, self.seconds)


def ping_pong(sizes: Sequence[int] = SIZES, repeats: int = 31, link: Link | None = None) -> PingPong:
    """Send messages to and fro between two real ranks and time them.

    Parameters
    ----------
    sizes : sequence of int
        Bytes, from 1.
    repeats : int
        Round trips of each size; the quickest counts: others waited for a core, not for the link.
    link : Link, optional
        A slow link to send over; default: whatever carries messages here.
    """
    times = spmd(_over, tuple(sizes), repeats, link, workers=2)[0]
    return PingPong(tuple(sizes), tuple(times))


def _over(comm: Comm, sizes: Sequence[int], repeats: int, link: Link | None) -> list[float]:
    return there_and_back(SlowLink(comm, link) if link else comm, sizes, repeats)


def time_collectives(
    names: Sequence[str], ranks: int | Sequence[int], sizes: Sequence[int], link: Link | None = None,
    repeats: int = 3, timeout: float = 60.0,
) -> list[Timing]:  # fmt: skip
    """Time all-reduce algorithms on real ranks.

    Parameters
    ----------
    names : sequence of str
        Keys of :data:`dlpar.collectives.ALLREDUCE`.
    ranks : int or sequence of int
        World sizes.
    sizes : sequence of int
        Bytes of the tensor, multiples of 4.
    link : Link, optional
        A slow link to send over; default: whatever carries messages here.
    repeats : int
        Calls of each; the quickest counts.
    timeout : float
        Seconds after which the ranks are ended.

    Raises
    ------
    ValueError
        If a name is not known.
    """
    from dlpar.collectives import ALLREDUCE

    unknown = [name for name in names if name not in ALLREDUCE]
    if unknown:
        raise ValueError(f"names: got {unknown[0]!r}, allowed is any of {', '.join(ALLREDUCE)}")
    found = []
    for world in [ranks] if isinstance(ranks, int) else ranks:
        trials = spmd(_time, tuple(names), tuple(sizes), link, repeats, workers=world, timeout=timeout)
        for number, (name, size) in enumerate((name, size) for name in names for size in sizes):
            calls = zip(*(trial[number] for trial in trials))
            times = [max(end for _, end in call) - min(began for began, _ in call) for call in calls]
            found.append(Timing(name, world, size, min(times)))
    return found


def predict_collectives(
    names: Sequence[str], ranks: int | Sequence[int], sizes: Sequence[float], link: Link
) -> list[Timing]:  # fmt: skip
    """What :func:`dlpar.costmodel.collective_seconds` says of all-reduce algorithms; arguments as above."""
    worlds = [ranks] if isinstance(ranks, int) else ranks
    return [
        Timing(name, world, size, collective_seconds(name, world, size, link))
        for world in worlds for name in names for size in sizes
    ]  # fmt: skip


def _time(comm: Comm, names: Sequence[str], sizes: Sequence[int], link: Link | None, repeats: int) -> list:
    """On a rank: when each call of each collective began and ended, after a first one that warms up."""
    import torch

    from dlpar.collectives import ALLREDUCE

    carrier = SlowLink(comm, link) if link else comm
    found = []
    for name in names:
        for size in sizes:
            tensor, calls = torch.ones(size // 4), []
            for number in range(repeats + (link is None)):
                comm.barrier()
                began = comm.now()
                ALLREDUCE[name](carrier, tensor)
                calls.append((began, comm.now()))
            found.append(calls[-repeats:])
    return found
