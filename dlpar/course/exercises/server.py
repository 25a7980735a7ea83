"""Exercises of labs 02 and 11: check a server's answer to each push of its workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlpar.course.judge import Answer, Verdict, difference, judge_on_ranks, secret
from dlpar.lab.captions import listed

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


WORKERS, CLOCKS, LENGTH, LR = 3, 8, 4, 0.5
"""Number of workers (the last one is slow), pushes of each, weights, and learning rate of a trial."""


@dataclass
class Desk:
    """State of a small parameter server.

    Attributes
    ----------
    weights : Tensor, shape (n,)
        Weights that all workers share.
    lr : float
        Learning rate.
    bound : int
        s, the maximum lead over the slowest worker, in clocks, with which a worker may start its next clock.
    version : int
        Updates so far.
    clock : dict of int to int
        Pushes of each worker so far.
    read : dict of int to int
        Version that each worker received last.
    waiting : list of int
        Workers that have pushed and have no answer yet.
    needed : int
        With backup workers: number of pushes for an update.
    gathered : list of Tensor
        With backup workers: the pushes of the next update so far.
    """

    weights: torch.Tensor
    lr: float
    bound: int
    clock: dict[int, int]
    read: dict[int, int]
    version: int = 0
    waiting: list[int] = field(default_factory=list)
    needed: int = 1
    gathered: list[torch.Tensor] = field(default_factory=list)


def check_server(on_push: Answer, bounds: Sequence[int] = (0, 1, 3), hints: Sequence[str] = ()) -> Verdict:
    """Run a server that answers each push with ``on_push(server, worker, gradient)``.

    The function must move ``server.weights`` by the gradient, with the learning rate divided by the
    gradient's staleness (at least 1). It must count the update and the worker's clock, and note that the
    worker waits. It must return the waiting workers that are at most ``server.bound`` clocks ahead of the
    slowest.

    Parameters
    ----------
    on_push : callable
        `server` is a :class:`Desk`. It raises ``NotImplementedError`` while it is not written.
    bounds : sequence of int
        Bounds on the lead to try, in clocks.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.

    Returns
    -------
    Verdict
        It names the first push with a wrong result. Errors in the student's code are never raised.
    """
    said = "No worker led the slowest by more than s clocks (the largest lead was {furthest}). "
    said += "The rate was divided by each gradient's staleness (at most {oldest} updates)."
    return _judge(on_push, "s", bounds, said, hints)


def check_backup(on_push: Answer, backups: Sequence[int] = (0, 1), hints: Sequence[str] = ()) -> Verdict:
    """Run a server with backup workers. It answers each push with ``on_push(server, worker, gradient)``.

    The function must gather each push of the current version, and drop all others.  When it has gathered
    ``server.needed`` pushes, it must move the weights by the learning rate times their mean, count the
    version and clear the list.  It must note that the worker waits, and return the waiting workers with old
    weights.

    Parameters
    ----------
    on_push : callable
        `server` is a :class:`Desk`. It raises ``NotImplementedError`` while it is not written.
    backups : sequence of int
        Numbers of backup workers to try, out of three workers.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    """
    said = f"Every update used {WORKERS} - b pushes, and later pushes were dropped."
    return _judge(on_push, "b", backups, said, hints)


def _judge(on_push: Answer, letter: str, values: Sequence[int], said: str, hints: Sequence[str]) -> Verdict:
    """Run a server for each value of s or b.

    `said` praises correct answers, with the largest age and lead.
    """

    def complain(told: list[Any]) -> str:
        found = (f" and {letter} = {n}, {first}." for n, (first, *_) in zip(values, told[0]) if first)
        return next(found, "")

    def praise(told: list[Any]) -> str:
        _, oldest, furthest = map(max, zip(*told[0]))
        trial = f"(a server and {WORKERS} workers with {CLOCKS} pushes each) for {letter} = {listed(map(str, values))}"
        return f"{{name}} is right on {{ranks}} {trial}. {said.format(oldest=oldest, furthest=furthest)}"

    return judge_on_ranks(on_push, _on_rank, [WORKERS + 1], complain, praise, hints, 20.0, (values, letter))


def _on_rank(comm: Comm, on_push: Callable[..., Any], values: Sequence[int], letter: str) -> list[Any]:
    """Serve on rank 0 and push on the other ranks, for each bound or number of backup workers in turn."""
    found = []
    for value in values:
        found.append(_push(comm, value) if comm.rank else _serve(comm, on_push, value, letter))
        comm.barrier()  # a fast worker does not push to the next server before the slow one is done
    return found


def _push(comm: Comm, bound: int) -> None:
    """Push gradients of integers that differ in every push.

    For a graded answer, gradients and pauses are random.
    """
    import torch

    weights, usual = comm.empty(LENGTH), 0.008 if comm.rank == comm.size - 1 else 0.002
    for clock in range(CLOCKS):
        pause, gradient = usual, torch.arange(1.0, LENGTH + 1) * comm.rank + clock
        if draw := secret("push", bound, comm.rank, clock):
            pause = draw.uniform(0.5, 2) * usual
            gradient = torch.from_numpy(draw.integers(1, 99, LENGTH)).float()
        comm.world.pause(pause)
        comm.send(gradient, 0)
        comm.recv(weights, 0)


def _serve(comm: Comm, on_push: Callable[..., Any], value: int, letter: str) -> tuple[str, int, int]:
    """Answer by the rule, and check the student's function until its answer differs.

    Return the first error, the age of the oldest gradient and the largest lead.
    """
    import torch

    none = dict.fromkeys(range(1, comm.size), 0)
    right, rule = Desk(torch.zeros(LENGTH), LR, value, none, dict(none)), _by_the_rule
    if letter == "b":
        right.needed, rule = len(none) - value, _with_backup
    gradient, found, oldest, furthest = comm.empty(LENGTH), "", 0, 0
    mine = copy.deepcopy(right)  # an error in what the student's server keeps shows in its later answers
    for push in range(CLOCKS * len(none)):
        worker = comm.recv(gradient).source
        age = right.version - right.read[worker]
        right.clock[worker] += 1
        right.waiting.append(worker)
        go = rule(right, worker, gradient)
        if not found:
            differs = _wrong_with(on_push(mine, worker, gradient.clone()), mine, right, go)
            where = f"after push {push + 1} (from worker {worker}, computed {age} updates ago)"
            found = differs and f"{where}: {differs}"
        oldest = max(oldest, age)
        unfinished = [each for each in none if right.clock[each] < CLOCKS or each in right.waiting]
        # At the end there may be too few pushes for another update.
        for each in go if len(go) or set(unfinished) - set(right.waiting) else list(right.waiting):
            furthest = max(furthest, right.clock[each] - min(right.clock.values()))
            for desk in (right, mine):
                desk.waiting = [other for other in desk.waiting if other != each]
                desk.read[each] = desk.version
            comm.send(right.weights, each)
    return found, oldest, furthest


def _by_the_rule(desk: Desk, worker: int, gradient: torch.Tensor) -> list[int]:
    """Handle a push that has been counted as a correct `on_push` does. Return who may be answered."""
    desk.weights.add_(gradient, alpha=-desk.lr / max(1, desk.version - desk.read[worker]))
    desk.version += 1
    slowest = min(desk.clock.values())
    return [each for each in desk.waiting if desk.clock[each] - slowest <= desk.bound]


def _with_backup(desk: Desk, worker: int, gradient: torch.Tensor) -> list[int]:
    """Handle a counted push as a correct `on_push` does with backup workers. Return who may be answered."""
    if desk.read[worker] == desk.version:
        desk.gathered.append(gradient.clone())
    if len(desk.gathered) == desk.needed:
        desk.weights.add_(sum(desk.gathered), alpha=-desk.lr / desk.needed)
        desk.gathered.clear()
        desk.version += 1
    return [each for each in desk.waiting if desk.read[each] < desk.version]


def _wrong_with(answered: Any, mine: Desk, right: Desk, go: list[int]) -> str:
    """Name the first error in an answer to a push, or return an empty string."""
    if len(mine.gathered or ()) != len(right.gathered):
        return f"server.gathered has {len(mine.gathered or ())} pushes, expected {len(right.gathered)}"
    for what in ("version", "clock", "weights"):
        if differs := difference(getattr(mine, what), getattr(right, what), 1e-5, f"server.{what}"):
            return differs
    if not isinstance(answered, (list, tuple, set)):
        return f"on_push returned {answered!r}, expected a list of workers: {go}"
    if strange := [each for each in answered if each not in right.waiting]:
        return f"on_push returned worker {strange[0]!r}, but this worker is not waiting"
    if len(set(answered)) != len(answered):
        return f"on_push returned {answered}, but a worker may appear only once"
    wrong = [*(each for each in answered if each not in go), *(each for each in go if each not in answered)]
    if not wrong:
        return ""
    worker, goes = wrong[0], wrong[0] in answered
    rule = "must still wait" if goes else "still waits, but may continue"
    if right.needed > 1:
        why = f"it has version {right.read[worker]} and the server has version {right.version}"
    else:
        ahead = right.clock[worker] - min(right.clock.values())
        why = f"it is {ahead} clocks ahead of the slowest and s is {right.bound}"
    return f"worker {worker} {rule}, because {why}"
