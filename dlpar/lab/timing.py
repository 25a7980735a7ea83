"""How long messages and collectives take: on this machine, by a platform's clock, or by the closed forms."""

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


class Timing(NamedTuple):
    """A collective's time, found in one of the worlds or predicted."""

    name: str
    ranks: int
    nbytes: int
    """Of the whole tensor."""
    seconds: float
    """From the moment the first rank calls until the last rank has the result; measured: the quickest of some calls."""
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
        Half a round trip, the quickest of some.
    how : str
        As of a :class:`Timing`.
    where : str
        The platform whose clock was kept; default: this machine.
    link : Link
        Fitted to sizes and seconds.
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
    """Send messages to and fro between two ranks and time them.

    Parameters
    ----------
    sizes : sequence of int
        Bytes, from 1.
    repeats : int
        Round trips of each size on real ranks; the quickest counts: others waited for a core, not for the link.
        In the other worlds all are alike, and there is one.
    world : str, default ``"real"``
        ``"paced"`` or ``"simulated"``: by the clock of a platform.
    platform : str, optional
        Which; default ``"p100-25gbe"``.
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
) -> list[Timing]:
    """Time all-reduce algorithms.

    Parameters
    ----------
    names : sequence of str
        Keys of :data:`dlpar.collectives.ALLREDUCE`.
    ranks : int or sequence of int
        World sizes: to 64, of simulated ranks to 4,096.
    sizes : sequence of float
        Bytes of the tensor, multiples of 4.
    world : str, default ``"real"``
        ``"real"``: as this machine carries messages; ``"paced"``: real ranks and messages by the clock of
        a platform; ``"simulated"``: on a virtual clock, where messages carry sizes only.
    platform : str, optional
        Of paced and simulated ranks; default ``"p100-25gbe"``.
    repeats : int
        Calls of each on real ranks; the quickest counts.  In the other worlds all are alike, and there is one.
    timeout : float
        Seconds after which the ranks are ended.

    Raises
    ------
    ValueError
        If a name is not known.
    BadExperiment
        If there is no such world or platform, or it does not hold so many ranks.
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
            found.append(Timing(name, count, size, min(times), theme.HOW[world]))
    return found


def predict_collectives(
    names: Sequence[str], ranks: int | Sequence[int], sizes: Sequence[float], link: Link
) -> list[Timing]:
    """What :func:`dlpar.theory.collective_seconds` says of all-reduce algorithms; arguments as above.

    Parameters
    ----------
    link : Link
        Every rank has one of its own, such as ``dlpar.worlds.platforms.platform("cpu-10gbe").between``.
    """
    worlds = [ranks] if isinstance(ranks, int) else ranks
    return [
        Timing(name, world, size, collective_seconds(name, world, size, link), "predicted")
        for world in worlds
        for name in names
        for size in sizes
    ]


def _cluster(world: str, platform: str | None) -> dict[str, str]:
    """Where the ranks are, as :func:`dlpar.spmd` takes it."""
    cluster = {"world": world, **({"platform": platform} if platform else {})}
    return {**cluster, "messages": "sizes"} if world == "simulated" else cluster


def _time(comm: Comm, names: Sequence[str], sizes: Sequence[int], warming: int, repeats: int) -> list:
    """On a rank: when each call of each collective began and ended, after some that warm up."""
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
