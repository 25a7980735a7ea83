"""When each rank is done with a collective that the ranks begin at different moments.

A closed form counts from a common start.  Steps that follow each other have none: whoever
is served first begins the next step first.  The recurrences here carry a moment for each
rank through a collective, message by message, by the rules of the ports; repeated, they
give the seconds a step takes in the long run (:func:`pace`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dlpar.theory.steps.fabric import Fabric

Moments = list[float]
"""Seconds, one for each rank."""

MOST_IN_TURN = 12
"""Steps of unequal length that are looked for to repeat themselves in turn."""


class Pace(NamedTuple):
    """Seconds a step takes in the long run, and after how many steps they repeat themselves; None: not found."""

    seconds: float
    settled: int | None


def pace(step: Callable[[Moments], Moments], begins: Moments, tries: int = 60) -> Pace:
    """Seconds a step takes in the long run: until one, or a few in turn, take all ranks equally long.

    The long run may depend on the beginning: the order in which ranks come to a port first
    can be one that keeps itself up.

    Parameters
    ----------
    step : callable
        From the moments at which ranks begin a step to those at which they begin the next.
    begins : list of float
        When each rank begins the first.
    tries : int, default 60
        Steps after which, if they do not repeat themselves, the later half is averaged.
    """
    history = [begins]
    for _ in range(tries):
        history.append(step(history[-1]))
        for steps in range(1, min(len(history), MOST_IN_TURN + 1)):
            took = [b - a for a, b in zip(history[-1 - steps], history[-1])]
            if max(took) - min(took) <= 1e-9 * max(took):
                return Pace(took[0] / steps, len(history) - 1 - steps)
    half = tries // 2
    return Pace((sum(history[-1]) - sum(history[-1 - half])) / half / len(begins), None)


def granted(messages: list[tuple[float, float]], free: float = 0.0) -> list[float]:
    """When messages that share a port, given as (head arrives, seconds of the port), are complete.

    They are granted in the order of arrival, ties in the order given.
    """
    done = [0.0] * len(messages)
    for i in sorted(range(len(messages)), key=lambda i: messages[i][0]):
        free = done[i] = max(messages[i][0], free) + messages[i][1]
    return done


def star_children(ranks: int) -> list[Sequence[int]]:
    """Whom each rank hears in a star reduce, in that order."""
    return [range(1, ranks)] + [()] * (ranks - 1)


def binomial_children(ranks: int) -> list[Sequence[int]]:
    """Whom each rank hears in a binomial tree reduce, in that order; backwards, to whom it sends in a broadcast."""
    reach = [1 << k for k in range((ranks - 1).bit_length())]
    return [[me + d for d in reach if me % (2 * d) == 0 and me + d < ranks] for me in range(ranks)]


def aggregate_children(ranks: int, depth: int) -> list[Sequence[int]]:
    """Whom each rank hears in Spark's tree-aggregate, in that order."""
    scale, level = max(math.ceil(ranks ** (1 / depth)), 2), [ranks]
    while level[-1] > scale + math.ceil(level[-1] / scale):
        level.append(level[-1] // scale)
    heard: list[list[int]] = [[] for _ in range(ranks)]
    for before, after in zip(level, [*level[1:], 1]):
        for source in range(after, before):
            heard[source % after].append(source)
    return heard


def up(
    children: list[Sequence[int]],
    ready: Moments,
    nbytes: float,
    fabric: Fabric,
    ports: Ports,
    adding: float,
    packing: float = 0.0,
) -> Moments:
    """Reduce along a tree to rank 0; when each rank has the sum of those below it.

    Parameters
    ----------
    children : list of sequence of int
        By rank, in the order in which it receives.
    ready : list of float
        When each rank begins.
    nbytes : float
        Of a message.
    ports : Ports
        As the last round has left them; carried on.
    adding, packing : float
        Seconds to add one message, and to make one ready to be sent.
    """
    have, missing = list(ready), list(map(len, children))
    parents = {child: parent for parent, heard in enumerate(children) for child in heard}
    out, into, done = ports.out, ports.into, {}
    events = [(have[rank] + packing, rank, True) for rank in range(len(ready)) if rank and not missing[rank]]
    heapify(events)
    while events:
        now, child, sends = heappop(events)
        parent = parents[child]
        busy = fabric.busy(child, parent, nbytes)
        if sends:
            port = fabric.port(child, parent)
            leaves = max(now, out[port])
            out[port] = leaves + busy
            heappush(events, (leaves + fabric.link(child, parent).latency, child, False))
            continue
        port = fabric.port(parent, child)
        done[child] = into[port] = max(now, into[port]) + busy
        missing[parent] -= 1
        if not missing[parent]:
            for source in children[parent]:
                have[parent] = max(have[parent], done[source]) + adding
            if parent:
                heappush(events, (have[parent] + packing, parent, True))
    return have


def down(
    children: list[Sequence[int]], begins: float, nbytes: float, fabric: Fabric, ports: Ports
) -> Moments:
    """Broadcast along a tree from rank 0, which begins then; when each rank goes on.

    `children` are by rank, in the order in which it sends; `ports` are carried on.
    """
    at, out, into = [begins] * len(children), ports.out, ports.into
    events = [(begins, 0, 0, True)]
    while events:
        now, rank, turn, sends = heappop(events)
        if sends and turn == len(children[rank]):
            at[rank] = now
            continue
        child = children[rank][turn]
        busy = fabric.busy(rank, child, nbytes)
        if sends:
            port = fabric.port(rank, child)
            leaves = max(now, out[port])
            out[port] = leaves + busy
            heappush(events, (leaves + fabric.link(rank, child).latency, rank, turn, False))
            heappush(events, (out[port] if fabric.blocks(nbytes) else now, rank, turn + 1, True))
        else:
            port = fabric.port(child, rank)
            into[port] = max(now, into[port]) + busy
            heappush(events, (into[port], child, 0, True))
    return at


def around(
    ready: Moments, members: Sequence[int], elements: int, fabric: Fabric, ports: Ports, adding: float
) -> Moments:
    """Ring all-reduce among `members`; when each of them has the sum.

    `ready` and what comes back are in their order; `ports` are as the last round has left them, and are carried on;
    `adding` is the seconds to add one element.
    """
    import numpy as np  # here: an import of the closed forms need not load it

    n = len(members)
    if n == 1:
        return list(ready)
    pairs = [(member, members[(i + 1) % n]) for i, member in enumerate(members)]
    chunk = -(-elements // n)
    busy = np.array([fabric.busy(a, b, fabric.bytes(chunk)) for a, b in pairs])
    latency = np.array([fabric.link(a, b).latency for a, b in pairs])
    half = np.array([fabric.link(a, b).duplex == "half" for a, b in pairs])
    blocks = fabric.blocks(fabric.bytes(chunk))
    leaving, coming = (
        [fabric.port(a, b) for a, b in pairs],
        [fabric.port(b, a) for a, b in [pairs[-1], *pairs[:-1]]],
    )
    now = np.array(ready, dtype=float)
    out, into = (
        np.array([ports.out[port] for port in leaving]),
        np.array([ports.into[port] for port in coming]),
    )
    for number in range(2 * (n - 1)):
        leaves = np.maximum(now, out)
        out = leaves + busy
        into = np.maximum(into, np.where(half, out, 0.0))
        into = np.maximum(np.roll(leaves + latency, 1), into) + np.roll(busy, 1)
        out = np.maximum(out, np.where(half, into, 0.0))
        received = np.maximum(now, into)
        # Above the eager limit a rank also waits until its neighbour has come to this round.
        then = np.maximum(received, np.maximum(leaves + busy, np.roll(now, -1))) if blocks else received
        now = then + (adding * chunk if number < n - 1 else 0.0)
    ports.out.update(zip(leaving, out.tolist()))
    ports.into.update(zip(coming, into.tolist()))
    return now.tolist()


class Ports:
    """When each port has carried all it was given so far: out of ranks or nodes, and into them."""

    def __init__(self, fabric: Fabric) -> None:
        self.out: dict[tuple[str, int], float] = defaultdict(float)
        self.into = self.out if fabric.half_duplex else defaultdict(float)


def with_neighbours(
    sends: list[Sequence[int]],
    hears: list[Sequence[int]],
    ready: Moments,
    nbytes: float,
    fabric: Fabric,
    ports: Ports,
) -> Moments:
    """Every rank sends to some and hears from some; when each of them has done both.

    Parameters
    ----------
    sends, hears : list of sequence of int
        By rank, in order.
    ready : list of float
        When each rank begins.
    nbytes : float
        Of a message.
    ports : Ports
        As the last round has left them; carried on.
    """
    left, arriving = list(ready), defaultdict(list)
    for me in sorted(range(len(ready)), key=lambda me: ready[me]):
        for other in sends[me]:
            port, busy = fabric.port(me, other), fabric.busy(me, other, nbytes)
            leaves = max(ready[me], ports.out[port])
            ports.out[port] = leaves + busy
            left[me] = max(left[me], leaves + busy)
            arriving[fabric.port(other, me)].append(
                ((me, other), leaves + fabric.link(me, other).latency, busy)
            )
    done: dict[tuple[int, int], float] = {}
    for port, messages in arriving.items():
        at = granted([(head, busy) for _, head, busy in messages], ports.into[port])
        done |= {pair: moment for (pair, *_), moment in zip(messages, at)}
        ports.into[port] = max(at)
    received, met = list(ready), {}
    for me, others in enumerate(hears):
        for source in others:
            met[source, me] = received[me]
            received[me] = max(received[me], done[source, me])
    if not fabric.blocks(nbytes):
        return received
    # Above the eager limit a rank also waits until its messages have left, and their receivers have come to them.
    return [max(received[me], left[me], *(met[me, other] for other in sends[me])) for me in range(len(ready))]


def halved_and_doubled(
    moments: Moments, elements: int, fabric: Fabric, adding: float, ports: Ports
) -> Moments:
    """Recursive halving and doubling; when each rank has the sum.  `adding` is the seconds to add one element.

    Where N is no power of two, ranks 0, 2, ... first give what they have to the next rank.
    """
    n = len(moments)
    rounds = n.bit_length() - 1
    folded = 2 * (n - (1 << rounds))
    ranks = [*range(1, folded, 2), *range(folded, n)]

    def exchange(pairs: list[tuple[int, int]], length: int, adds: bool) -> None:
        nonlocal moments
        sends, hears = [()] * n, [()] * n
        for a, b in pairs:
            sends[a], hears[b] = (b,), (a,)
        moments = with_neighbours(sends, hears, moments, fabric.bytes(length), fabric, ports)
        moments = [
            moment + adding * length * (adds and bool(hears[rank])) for rank, moment in enumerate(moments)
        ]

    exchange([(even, even + 1) for even in range(0, folded, 2)], elements, True)
    for number, adds in [(k, True) for k in range(1, rounds + 1)] + [
        (k, False) for k in range(rounds, 0, -1)
    ]:
        distance = len(ranks) >> number
        pairs = [(rank, ranks[place ^ distance]) for place, rank in enumerate(ranks)]
        exchange(pairs, math.ceil(elements / (1 << number)), adds)
    exchange([(even + 1, even) for even in range(0, folded, 2)], elements, False)
    return moments
