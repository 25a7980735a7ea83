"""Times of messages and collectives: on this machine, by a platform's clock, or by closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dlpar.jobs.launch import spmd
from dlpar.lab import theme
from dlpar.theory import Link, collective_seconds, fitted
from dlpar.worlds.platforms.lookup import USUAL
from dlpar.worlds.platforms.ping_pong import SIZES, there_and_back

if TYPE_CHECKING:
    from dlpar.comm import Comm


class CollectiveTime(NamedTuple):
    """Time of a collective, from one of the worlds or predicted."""

    name: str
    ranks: int
    nbytes: int
    """Bytes of the whole tensor."""
    seconds: float
    """Time between the first rank's call and the last rank's result; measured: the fastest of several calls."""
    how: str = "measured"
    """``measured``, ``paced``, ``simulated`` or ``predicted``."""


@dataclass(frozen=True)
class PingPong:
    """One-way times of messages between two ranks.

    Attributes
    ----------
    sizes : tuple of int
        Bytes.
    seconds : tuple of float
        Half a round trip, the fastest of several.
    how : str, default "measured"
        Source, as in :class:`CollectiveTime`.
    where : str
        Platform whose clock is used; default: this machine.
    link : Link
        Link fitted to sizes and seconds.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    how: str = "measured"
    where: str = "this machine"

    @property
    def link(self) -> Link:
        return fitted(self.sizes, self.seconds)


def ping_pong(
    sizes: Sequence[int] = SIZES, repeats: int = 31, world: str = "real", platform: str | None = None
) -> PingPong:
    """Send messages back and forth between two ranks and time them.

    Parameters
    ----------
    sizes : sequence of int
        Bytes, from 1.
    repeats : int, default 31
        Round trips of each size on real ranks. The fastest counts, because others waited for a core, not for
        the link. In the other worlds all round trips are equal, and there is one.
    world : str, default ``"real"``
        ``"paced"`` or ``"simulated"`` use the clock of a platform.
    platform : str, optional
        Platform of paced and simulated ranks; default ``"p100-25gbe"``.
    """
    trips = repeats if world == "real" else 1
    times = spmd(there_and_back, tuple(sizes), trips, workers=2, **_cluster(world, platform))[0]
    where = {} if world == "real" else {"where": platform or USUAL}
    return PingPong(tuple(sizes), tuple(times), theme.HOW[world], **where)


def time_collectives(
    names: Sequence[str],
    ranks: int | Sequence[int],
    sizes: Sequence[float],
    world: str = "real",
    platform: str | None = None,
    repeats: int = 3,
    timeout: float = 60.0,
) -> list[CollectiveTime]:
    """Time all-reduce algorithms.

    Parameters
    ----------
    names : sequence of str
        Keys of :data:`dlpar.collectives.ALLREDUCE`.
    ranks : int or sequence of int
        World sizes: up to 64, for simulated ranks up to 4,096.
    sizes : sequence of float
        Bytes of the tensor, multiples of 4.
    world : str, default ``"real"``
        ``"real"``: messages of this machine; ``"paced"``: real ranks and messages by the clock of
        a platform; ``"simulated"``: a virtual clock, and messages that carry sizes only.
    platform : str, optional
        Platform of paced and simulated ranks; default ``"p100-25gbe"``.
    repeats : int, default 3
        Calls of each on real ranks; the fastest counts. In the other worlds all calls are equal, and there is one.
    timeout : float, default 60
        Seconds after which the ranks are ended.

    Raises
    ------
    ValueError
        If a name is not known.
    BadExperiment
        If there is no such world or platform, or the platform does not hold so many ranks.
    """
    from dlpar.collectives import ALLREDUCE

    unknown = [name for name in names if name not in ALLREDUCE]
    if unknown:
        raise ValueError(f"names: got {unknown[0]!r}, allowed is any of {', '.join(ALLREDUCE)}")
    sizes, found = [int(size) for size in sizes], []
    calls = (1, repeats) if world == "real" else (0, 1)
    for count in [ranks] if isinstance(ranks, int) else ranks:
        cluster = _cluster(world, platform)
        trials = spmd(_time, tuple(names), sizes, *calls, workers=count, timeout=timeout, **cluster)
        for number, (name, size) in enumerate((name, size) for name in names for size in sizes):
            together = zip(*(trial[number] for trial in trials))
            times = [max(end for _, end in call) - min(began for began, _ in call) for call in together]
            found.append(CollectiveTime(name, count, size, min(times), theme.HOW[world]))
    return found


def predict_collectives(
    names: Sequence[str], ranks: int | Sequence[int], sizes: Sequence[float], link: Link
) -> list[CollectiveTime]:
    """Predict the times of all-reduce algorithms with :func:`dlpar.theory.collective_seconds`.

    Parameters
    ----------
    names, ranks, sizes
        As of :func:`time_collectives`.
    link : Link
        Link of every rank, such as ``dlpar.worlds.platforms.platform("cpu-10gbe").between``.
    """
    worlds = [ranks] if isinstance(ranks, int) else ranks
    return [
        CollectiveTime(name, world, size, collective_seconds(name, world, size, link), "predicted")
        for world in worlds
        for name in names
        for size in sizes
    ]


def _cluster(world: str, platform: str | None) -> dict[str, str]:
    """Cluster of the ranks, as keywords of :func:`dlpar.spmd`."""
    cluster = {"world": world, **({"platform": platform} if platform else {})}
    return {**cluster, "messages": "sizes"} if world == "simulated" else cluster


def _time(comm: Comm, names: Sequence[str], sizes: Sequence[int], warming: int, repeats: int) -> list:
    """Return, on a rank, the begin and end of each call of each collective, after calls that warm up."""
    from dlpar.collectives import ALLREDUCE

    found = []
    for name in names:
        for size in sizes:
            tensor, calls = comm.empty(size // 4).fill_(1.0), []
            for _ in range(warming + repeats):
                comm.barrier()
                began = comm.now()
                ALLREDUCE[name](comm, tensor)
                calls.append((began, comm.now()))
            found.append(calls[warming:])
    return found
