"""Recovery from a rank's death: survivors agree on their state, then restart from the state they hold.

A step is a transaction: exchanges of an interrupted step are discarded.  Equal replicas take the state of the
replica with the most steps.  Servers go back to the latest version that all of them have. A dead server's
range is replaced with the copy on its successor.  Replicas of gossip keep their own state.  Each survivor's
program then restarts, as in a resumed run.

Source: Bland, Bouteiller, Herault, Bosilca and Dongarra, "Post-failure recovery of MPI communication capability"
(IJHPCA 2013): User Level Failure Mitigation, with which MPI reports a death, and revokes and shrinks
communicators.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dlpar.comm import Comm
from dlpar.config.experiment import Experiment
from dlpar.jobs.record import Recorder
from dlpar.jobs.snapshot import Attempt, Keeper, Orders, State, recut, remove_sets, written
from dlpar.sync.membership import CannotGoOn, Crew, reseated
from dlpar.train import serve, train


def work(comm: Comm, experiment: Experiment, record: Recorder, folder: Path, attempt: Attempt) -> Comm:
    """Train this rank's part to the end despite deaths. Return the survivors' communicator.

    Raises
    ------
    CannotGoOn
        If a rank died with state that no other rank has.
    """
    rank = comm.rank
    comm.world.watches = int(experiment.deaths.goes_on)
    usual, experiment = experiment.workers - experiment.backup, attempt.fit(experiment)
    orders = Orders(folder, experiment, rank, attempt.number)
    crew = Crew(tuple(range(experiment.ranks)), experiment)
    state = attempt.state(folder, experiment, rank)
    keeper, lost = None, False
    while True:
        try:
            if lost:
                noticed, before = record.now(), crew
                written()  # from now on, no survivor writes a shard
                comm = comm.world.survivors(comm)
                if comm.rank == 0:
                    remove_sets(folder, lambda _, is_complete: not is_complete)
                comm, crew, state = regroup(comm, crew, rank, keeper, state)
                tell(record, keeper, before, crew, state, noticed)
                keeper, lost = None, False
            e, seat = crew.experiment, crew.seats.index(rank)
            team = comm.split(int(seat >= e.members), seat) if e.spare_ranks else comm
            if seat < e.members:
                record.join(team, e.workers - e.backup, usual)
                keeper = Keeper(folder, e, record, seat, orders, state)
                (train if seat < e.workers else serve)(team, e, record, keeper)
                keeper.close()
            if experiment.deaths.goes_on:
                comm.barrier()  # a spare waits here from the start; until all are here, another rank may need it
            if seat >= e.members:
                record.end(0)
            return comm
        except Exception as error:
            if not (experiment.deaths.goes_on and comm.world.is_death(error)):
                raise
            lost = True


class Standing(NamedTuple):
    """Progress of a rank when it learns of a death.

    It holds the rank's first number, crew and steps, whether the rank was working, not restarting, and a server's
    counts of each client's pushes.
    """

    rank: int
    crew: Crew
    own: int
    done: int
    works: bool
    taken: dict[int, int]


def regroup(
    comm: Comm, crew: Crew, rank: int, keeper: Keeper | None, state: State | None
) -> tuple[Comm, Crew, State | None]:
    """Agree with the survivors on a new crew, and on the state from which this rank continues. Collective.

    A rank that was still restarting has the `state` from which it restarted.
    """
    works = keeper is not None and keeper.is_whole
    if works:
        state = State.of(keeper.parts, *keeper.standing())
    own, done = (state.own, state.done) if state else (-1, -1)
    taken = getattr(keeper.parts.get("bucket 0"), "taken", {}) if works else {}
    standings = comm.broadcast(comm.gather(Standing(rank, crew, own, done, works, taken)))
    crew = max((each.crew for each in standings), key=lambda crew: crew.generation)
    left = [each.rank for each in standings]
    new = reseated(crew, left)
    comm = comm.split(0, new.seats.index(rank))
    by_seat = sorted(standings, key=lambda each: new.seats.index(each.rank))
    e = new.experiment
    workers, seat = by_seat[: e.workers], new.seats.index(rank)
    servers = crew.seats[crew.experiment.workers : crew.experiment.members]
    steps = [each.done for each in standings if each.rank in servers] or [each.done for each in workers]
    if all(max(each.own, each.done) <= 0 for each in standings):  # the death came before any step
        return comm, new, None
    if servers and min(steps) < 0:
        raise CannotGoOn("a rank died before each server had its range of the weights")
    at_work = {each.rank for each in standings if each.works}
    heirs = zip(servers, servers[1:] + servers[:1])
    if any(dead not in left and heir not in at_work for dead, heir in heirs):
        raise CannotGoOn("a server died before its successor had a copy of its range of the weights")
    done = min(steps) if servers and not e.sync.runs_free else max(steps)
    held: dict[int, State] = {}
    if rank in servers:
        for part in keeper.parts.values() if works and not e.sync.runs_free else ():
            part.go_back(done)
        place, state = servers.index(rank), State.of(keeper.parts, done, done) if works else state
        held = {place: state}
        if servers[place - 1] not in left:
            copies = {name: part.copy for name, part in keeper.parts.items()}
            held[(place - 1) % len(servers)] = State.of(copies, done, done)
    if servers != (serve := new.seats[e.workers : e.members]):  # ranges are cut again
        for theirs in comm.broadcast(comm.gather(held)):
            held |= theirs
        if rank in serve:
            state = recut([held[n] for n in sorted(held)], len(serve), serve.index(rank))
    if not servers:
        source = next(n for n, each in enumerate(workers) if each.done == done)
        body = comm.broadcast(state.common() if seat == source else None, source)
        # Replicas that share gradients are equal, except for the last step.
        state = body if state is None or (e.sync.sends_gradients and by_seat[seat].done < done) else state
    if state is None and seat < e.workers:
        state = State({}, {}, done, done)
    if state is not None:
        counts = [each.taken.get(crew.seats.index(rank), 0) for each in standings if each.taken]
        if works and counts and e.sync.runs_free and rank not in servers:
            # The interrupted step is done if the servers have counted its push.
            state.own += min(counts) > keeper.parts["sync"].pushed(state.own)
        state.own = state.own if e.sync.runs_free and state.own >= 0 else max(state.own, done)
        state.done = done
    return comm, new, state if seat < e.members else None


def tell(
    record: Recorder, keeper: Keeper | None, before: Crew, crew: Crew, state: State | None, noticed: float
) -> None:
    """Record the dead ranks, the step where the others continue, and this worker's interrupted step."""
    parts = keeper.parts if keeper and keeper.is_whole and state and state.own == keeper.own + 1 else {}
    if "part" in parts and (parts["sync"].begun or crew.experiment.sync.sends_gradients):
        # The update that all ranks now have includes this worker's gradient.
        # A step of free workers that was pushed before the death belongs to a global step with the dead ranks.
        part, e = parts["part"], (before if crew.experiment.sync.runs_free else crew).experiment
        facts = {**parts["sync"].facts(), **record.traffic.take(), "of": e.workers - e.backup}
        record.step(keeper.own, loss=part.loss, samples=part.samples, t=noticed, **facts)
    record.interrupted(noticed)
    step, seconds = state.done if state else 0, record.now() - noticed
    for dead in sorted(set(before.seats) - set(crew.seats)):
        record.event("death", dead=dead, step=step, workers=crew.experiment.workers, seconds=seconds)
