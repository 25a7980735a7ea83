"""When each client of parameter servers is answered, if clients push at different moments: recurrences for bsp.

As in :mod:`dlpar.theory.steps.rounds`, one moment for each rank is carried through a round.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate
from typing import NamedTuple

from dlpar.theory.steps.fabric import Fabric
from dlpar.theory.steps.rounds import granted


class Shard(NamedTuple):
    """A server's range of the weights: its rank, and the bytes of a push to it and of its answer."""

    server: int
    push: float
    answer: float


class Gathered(NamedTuple):
    """When a server has added all pushes, and who then waits for an answer since when, in its order."""

    at: float
    waiting: list[tuple[int, float]]


def gather(
    clients: Sequence[int],
    shards: Sequence[Shard],
    ready: dict[int, float],
    fabric: Fabric,
    adding: Sequence[float],
    until: dict[int, float],
    separate: bool = False,
) -> list[Gathered]:
    """All clients push to all servers, each beginning with another.

    Parameters
    ----------
    clients : sequence of int
        Ranks.
    shards : sequence of Shard
    ready : dict
        When each client begins.
    adding : sequence of float
        Seconds each server computes for a push.
    until : dict
        By rank of a server, when it has answered the last round; :func:`answer` keeps it.
    separate : bool
        Whether clients then ask for the weights, in place of being answered as they pushed.
    """
    left, heads = _leave(clients, shards, ready, fabric)
    done = _arrive(shards, heads, fabric)
    found, asks = [], dict.fromkeys(clients, 0.0)
    for number, shard in enumerate(shards):
        order, now = sorted(clients, key=lambda client: done[client, number]), until.get(shard.server, 0.0)
        for client in order:
            if fabric.blocks(shard.push):  # a client goes on once the server has come to its push
                asks[client] = max(asks[client], now, left[client, number])
            now = max(now, done[client, number]) + adding[number]
        found.append(Gathered(now, [(client, 0.0) for client in order]))
    if separate:
        for number, shard in enumerate(shards):
            # A question of no bytes still queues behind the pushes that came before it.
            pushes = sorted(clients, key=lambda client: heads[client, number])
            came = [heads[client, number] for client in pushes]
            through = [0.0, *accumulate((done[client, number] for client in pushes), max)]
            heard = {}
            for client in clients:
                sent = max(asks[client], ready[client], *(left[client, n] for n in range(len(shards))))
                at = sent + fabric.link(client, shard.server).latency
                heard[client] = max(at, through[bisect_right(came, at)])
            found[number] = Gathered(found[number].at, sorted(heard.items(), key=lambda item: item[1]))
    return found


def answer(
    shards: Sequence[Shard], gathered: Sequence[Gathered], fabric: Fabric, until: dict[int, float]
) -> dict[int, float]:
    """All servers answer; when each client has the weights of all."""
    free: dict[tuple[str, int], float] = {}
    ports: dict[tuple[str, int], list[tuple[int, float, float]]] = {}
    turns = [(state.at, number) for number, state in enumerate(gathered)]
    places = [0] * len(gathered)
    heapify(turns)
    while turns:
        now, number = turns[0]
        if places[number] == len(gathered[number].waiting):
            until[shards[number].server] = now
            heappop(turns)
            continue
        client, since = gathered[number].waiting[places[number]]
        places[number] += 1
        server, _, nbytes = shards[number]
        port, busy = fabric.port(server, client), fabric.busy(server, client, nbytes)
        leaves = max(now, since, free.get(port, 0.0))
        free[port] = leaves + busy
        head = leaves + fabric.link(server, client).latency
        ports.setdefault(fabric.port(client, server), []).append((client, head, busy))
        heapreplace(turns, (free[port] if fabric.blocks(nbytes) else max(now, since), number))
    ends: dict[int, float] = {}
    for arrived in ports.values():
        for (client, *_), at in zip(arrived, granted([(head, busy) for _, head, busy in arrived])):
            ends[client] = max(ends.get(client, 0.0), at)
    return ends


def _leave(clients, shards, ready, fabric):
    """When each push has left, and when its head arrives, by client and number of the shard."""
    free: dict[tuple[str, int], float] = {}
    left, heads = {}, {}
    for client in sorted(clients, key=lambda client: ready[client]):
        for k in range(len(shards)):
            number = (client + k) % len(shards)
            server, nbytes, _ = shards[number]
            port = fabric.port(client, server)
            leaves = max(ready[client], free.get(port, 0.0))
            left[client, number] = free[port] = leaves + fabric.busy(client, server, nbytes)
            heads[client, number] = leaves + fabric.link(client, server).latency
    return left, heads


def _arrive(shards, heads, fabric):
    """When each push is complete at its server."""
    ports: dict[tuple[str, int], list[tuple[int, int]]] = {}
    busy = {}
    for client, number in heads:  # in the order of sending
        server, nbytes, _ = shards[number]
        ports.setdefault(fabric.port(server, client), []).append((client, number))
        busy[client, number] = fabric.busy(client, server, nbytes)
    done = {}
    for keys in ports.values():
        done.update(zip(keys, granted([(heads[key], busy[key]) for key in keys])))
    return done
