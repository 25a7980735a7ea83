"""Checks a server's answer to a push, typed in a cell: workers push to it, and every push is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dlpar.course.judge import Verdict, difference, listed, real_too, tried, worlds
from dlpar.jobs.launch import spmd

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


CLOCKS, LENGTH, LR = 8, 4, 0.5
"""Pushes of each worker, weights, and learning rate of a trial."""

OnPush = Callable[["Desk", int, "torch.Tensor"], Iterable[int]]


@dataclass
class Desk:
    """What a small parameter server has before it.

    Attributes
    ----------
    weights : Tensor, shape (n,)
        The weights all workers share.
    lr : float
        Learning rate.
    bound : int
        s: clocks a worker may be ahead of the slowest when it starts the next.
    version : int
        Updates so far.
    clock : dict of int to int
        Pushes of each worker so far.
    read : dict of int to int
        The version each worker was given last.
    waiting : list of int
        Workers that have pushed and not been answered yet.
    """

    weights: torch.Tensor
    lr: float
    bound: int
    clock: dict[int, int]
    read: dict[int, int]
    version: int = 0
    waiting: list[int] = field(default_factory=list)


def check_server(
    on_push: OnPush | None,
    bounds: Sequence[int] = (0, 1, 3),
    hints: Sequence[str] = (),
    workers: int = 3,
    timeout: float = 20.0,
) -> Verdict:
    """Run a server whose answer to a push is ``on_push(server, worker, gradient)``: on simulated ranks, then real ones.

    It must move ``server.weights`` by the gradient with the learning rate divided by
    its staleness (at least 1), count the update and the worker's clock, note that the
    worker waits, and return the workers that may be answered now: those no more than
    ``server.bound`` clocks ahead of the slowest.

    Parameters
    ----------
    on_push : callable
        `server` is a :class:`Desk`; raises ``NotImplementedError`` while it is not written.
    bounds : sequence of int
        Bounds on the lead to try, in clocks.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.
    workers : int
        Ranks that push; the last one is slow.
    timeout : float
        Seconds after which ranks that hang are ended.

    Returns
    -------
    Verdict
        Names the first push after which something is not right; never raises for what the student wrote.
    """
    name = getattr(on_push, "__name__", "the function")
    if not callable(on_push):
        return Verdict("to do", "The function is not written yet.")
    trials = (
        (
            f"With {workers} {world} workers and s = {bound}",
            partial(spmd, _trial, on_push, bound, workers=workers + 1, world=world, timeout=timeout),
        )
        for world, bound in worlds(bounds)
    )

    def praise(told: list[list]) -> str:
        oldest, furthest = (max(column) for column in zip(*(found[0][1:] for found in told)))
        return (
            f"{name} is right on {workers} workers, {CLOCKS} pushes each, simulated with s = {listed(bounds)}"
            f"{f' and real with {bounds[-1]}' if real_too() else ''}: no lead above s (the largest was {furthest}), "
            f"and every gradient weighed by its staleness (the oldest: {oldest} updates)."
        )

    return tried(name, trials, lambda found: found[0][0] and f", {found[0][0]}.", hints, praise)


def _trial(comm: Comm, on_push: OnPush, bound: int) -> tuple[str, int, int] | None:
    """On a rank: rank 0 serves, the others push; what was wrong first, the oldest gradient and the largest lead."""
    if comm.rank:
        return _work(comm)
    return _serve(comm, on_push, bound)


def _work(comm: Comm) -> None:
    weights = comm.empty(LENGTH)
    for clock in range(CLOCKS):
        comm.world.pause(0.008 if comm.rank == comm.size - 1 else 0.002)
        comm.send(_gradient(comm.rank, clock), 0)
        comm.recv(weights, 0)


def _gradient(worker: int, clock: int) -> torch.Tensor:
    """Whole numbers that are easy to follow by eye, different in every push."""
    import torch

    return torch.arange(1.0, LENGTH + 1) * worker + clock


def _serve(comm: Comm, on_push: OnPush, bound: int) -> tuple[str, int, int]:
    """Answer by the rule; beside it ask the student's function the same, until it differs."""
    import torch

    def desk() -> Desk:
        return Desk(torch.zeros(LENGTH), LR, bound, dict.fromkeys(workers, 0), dict.fromkeys(workers, 0))

    workers = range(1, comm.size)
    right, mine = desk(), desk()
    gradient, found, oldest, furthest = comm.empty(LENGTH), "", 0, 0
    for push in range(CLOCKS * len(workers)):
        worker = comm.recv(gradient).source
        age = right.version - right.read[worker]
        go = _by_the_rule(right, worker, gradient)
        if not found:
            differs = _asked(on_push, mine, worker, gradient.clone(), right, go)
            found = (
                differs and f"after push {push + 1} (worker {worker}, computed {age} updates ago) {differs}"
            )
        oldest = max(oldest, age)
        for each in go:
            furthest = max(furthest, right.clock[each] - min(right.clock.values()))
            for one in (right, mine):
                one.waiting = [w for w in one.waiting if w != each]
                one.read[each] = one.version
            comm.send(right.weights, each)
    return found, oldest, furthest


def _by_the_rule(desk: Desk, worker: int, gradient: torch.Tensor) -> list[int]:
    """What `on_push` must do."""
    age = desk.version - desk.read[worker]
    desk.weights.add_(gradient, alpha=-desk.lr / max(1, age))
    desk.version += 1
    desk.clock[worker] += 1
    desk.waiting.append(worker)
    slowest = min(desk.clock.values())
    return [each for each in desk.waiting if desk.clock[each] - slowest <= desk.bound]


def _asked(
    on_push: OnPush, mine: Desk, worker: int, gradient: torch.Tensor, right: Desk, go: list[int]
) -> str:
    """Ask the student's function; what is not as it must be, in words, or an empty text."""
    answered = on_push(mine, worker, gradient)
    if mine.version != right.version:
        return f"server.version is {mine.version}, expected {right.version}"
    if mine.clock != right.clock:
        return f"server.clock is {mine.clock}, expected {right.clock}"
    differs = difference(mine.weights, right.weights, 1e-5, "server.weights")
    if differs:
        return differs
    try:
        answered = list(answered)
    except TypeError:
        return f"on_push returned {answered!r}, expected a list of workers: {go}"
    if len(set(answered)) != len(answered):
        return f"on_push returned {answered}: a worker is answered once"
    slowest = min(right.clock.values())
    for each in answered:
        if each not in right.waiting:
            return f"worker {each!r} was to be answered, but it does not wait"
        if each not in go:
            lead = right.clock[each] - slowest
            return f"worker {each} was let go {lead} clocks ahead of the slowest, allowed is {right.bound}"
    for each in go:
        if each not in answered:
            lead = right.clock[each] - slowest
            return f"worker {each} still waits, {lead} clocks ahead of the slowest; up to {right.bound} it may go on"
    mine.waiting = list(right.waiting)  # a function that took them out itself is right, too
    return ""
