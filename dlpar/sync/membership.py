"""Roles after deaths. Spares take empty seats, or the other workers share the work of dead workers."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.config.sync import without_return
from dlpar.graphs import neighbours, receivers


class CannotGoOn(RuntimeError):
    """Error: a death destroyed state which no other rank holds."""


class Crew(NamedTuple):
    """Roles of the processes after deaths.

    Attributes
    ----------
    seats : tuple of int
        First rank of the process on each seat: workers, servers, then spares.
    experiment : Experiment
        Experiment that the ranks on these seats run.
    generation : int
        Number of times that the crew was re-formed.
    """

    seats: tuple[int, ...]
    experiment: Experiment
    generation: int = 0


def reseated(crew: Crew, alive: list[int]) -> Crew:
    """Return the crew after deaths. Spares take empty seats, and the remaining empty seats are dropped.

    Raises
    ------
    CannotGoOn
        If state died that no other rank has (of a server or a driver), no worker is left, or the graph is cut.
    """
    e = crew.experiment
    team, spares = list(crew.seats[: e.members]), [rank for rank in crew.seats[e.members :] if rank in alive]
    for seat, rank in enumerate(team):
        if rank not in alive and spares:
            team[seat] = spares.pop(0)
    servers = crew.seats[e.workers : e.members]
    for place, rank in enumerate(servers):
        has_copy = getattr(e.sync, "replicas", 0) and servers[(place + 1) % len(servers)] in alive
        if rank not in alive and not has_copy:
            raise CannotGoOn(f"rank {rank} (server) died, and with it its range of the weights")
    if e.sync.has_driver and crew.seats[0] not in alive and e.optimizer != "sgd":
        raise CannotGoOn(f"rank {crew.seats[0]} (the driver) died, and with it the state of {e.optimizer}")
    stay = [seat for seat, rank in enumerate(team[: e.workers]) if rank in alive]
    if not stay or not set(servers or crew.seats[: e.workers]) & set(alive):  # a spare has no weights
        raise CannotGoOn("the last worker died")
    serve = [rank for rank in team[e.workers :] if rank in alive]
    kept = [team[seat] for seat in stay] + serve + spares
    return Crew(tuple(kept), without(e, stay, len(serve), len(spares)), crew.generation + 1)


def without(e: Experiment, stay: list[int], servers: int, spares: int) -> Experiment:
    """Return the experiment for the remaining ranks.

    It has the same global batches, and the graph without dead ranks.
    """
    new = {old: worker for worker, old in enumerate(stay)}
    sync: dict[str, Any] = {}
    left = {"spares": spares} if spares else {"on_death": "shrink"}
    changes: dict[str, Any] = {"deaths": {**left, "die": {}}, "sync": sync}
    if servers < e.sync.server_ranks:
        sync |= {"servers": servers, "replicas": min(servers - 1, e.sync.replicas)}
    if len(stay) < e.workers:
        if e.backup:
            sync["backup"] = max(0, e.backup - (e.workers - len(stay)))
        if hasattr(e.sync, "softsync"):
            sync["softsync"] = min(e.sync.softsync, len(stay))
        if e.sync.has_graph:
            edges = graph_of(e, new)
            sync |= {"topology": "edges" if edges else "complete", "edges": edges}
        elif hasattr(e.sync, "peers"):
            sync["peers"] = max(1, min(e.sync.peers, len(stay) - 1))
        changes |= {"workers": len(stay), "delays": _delays_of(e, new)}
        changes |= {"scaling": "strong", "batch": e.global_batch}
    return e.replace(**changes)


def graph_of(e: Experiment, new: dict[int, int]) -> list[tuple[int, int]]:
    """Return the edges between the remaining workers, with new worker numbers."""
    is_directed = e.sync.exchange == "push_sum"
    graph = (receivers if is_directed else neighbours)(e.sync, e.workers, e.seed)
    edges = [
        (new[a], new[b])
        for a, others in enumerate(graph)
        for b in others
        if a in new and b in new and (is_directed or a < b)
    ]
    if not edges and len(new) > 1:
        raise CannotGoOn("the rank that joined all others in the graph died")
    if is_directed and without_return(tuple(edges)):
        raise CannotGoOn("without the dead rank, no path leads back over some edge, as push-sum needs")
    return edges


def resized(e: Experiment, workers: int) -> Experiment:
    """Return an experiment for another number of workers and the same global batches."""
    same = {"scaling": "strong", "batch": e.global_batch}
    delays = _delays_of(e, dict(enumerate(range(workers))))
    return e.replace(workers=workers, delays=delays, deaths={"die": {}}, **same)


def _delays_of(e: Experiment, new: dict[int, int]) -> dict[str, dict[int, float]]:
    """Return the delays of the remaining workers, with new worker numbers."""
    of = lambda delays: {new[old]: value for old, value in delays.items() if old in new}
    return {"straggler": of(e.delays.straggler), "stall": of(e.delays.stall)}
