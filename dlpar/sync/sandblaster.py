"""Sandblaster L-BFGS: a coordinator with only scalars, shards with all vectors, and workers with portions.

Sources: Dean et al., "Large scale distributed deep networks" (NIPS 2012, section 4.2 and the appendix); Nocedal and
Wright, "Numerical Optimization" (2006, algorithm 7.4), for the two loops; step lengths are those of torch's LBFGS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dlpar.comm import ANY, Comm


class Problem(Protocol):
    """Loss over a whole data set, as a sum over portions of the data."""

    start: Tensor
    """Initial weights, float64, shape (n,)."""

    def portion(self, number: int, of: int, weights: Tensor) -> tuple[float, Tensor]:
        """Return one portion's contribution to the loss and to its gradient."""

    def cost(self, of: int) -> float:
        """Return the FLOPs of a portion."""


class Outcome(NamedTuple):
    """Result of a rank: a coordinator's losses before each update, a shard's weights, or a worker's portions."""

    losses: Sequence[float] = ()
    weights: Tensor | None = None
    portions: int = 0
    seconds: float = 0.0


COMMAND, RESULT, PUSH, PULL, WEIGHTS, READY, PORTION = range(1, 8)
"""Tags: coordinator to shard and back; worker to shard and back; worker to coordinator and back."""

DOT, COMBINE, L1, OPEN, END = range(5)
"""Commands to a shard, ``(command, a, b, alpha, beta)``: a · b; a = alpha a + beta b; |a|; begin a sum; the end."""

X, G, D, BEFORE, HISTORY = range(5)
"""Vectors: weights, gradient, direction, previous gradient, then the pairs of the history."""


def sandblaster(
    comm: Comm,
    problem: Problem,
    shards: int,
    iterations: int,
    portions: int,
    lr: float = 1.0,
    history: int = 10,
    backup: bool = True,
    slow: float = 1.0,
) -> Outcome:
    """Minimise a problem by L-BFGS. The ranks are a coordinator (rank 0), then shards, then workers.

    Parameters
    ----------
    comm : Comm
        At least ``shards + 2`` ranks.
    problem : Problem
        The same on every rank.
    shards : int
        Ranks that hold a range of every vector.
    iterations : int
        Updates of the weights.
    portions : int
        Pieces of the data that workers request one by one.  Many more pieces than workers balance differences
        in speed.
    lr, history : float, int
        Step length after the first step, and number of vector pairs kept.
    backup : bool, default True
        When all portions are assigned, assign unfinished portions again. A shard takes the first result.
    slow : float, default 1
        Factor that multiplies the last worker's time for a portion.
    """
    if min(shards, portions, history) < 1:
        raise ValueError(f"portions: got {portions}, {shards} shards, history {history}; allowed is from 1")
    if comm.size < (least := shards + 2):
        raise ValueError(f"comm: got {comm.size} ranks, allowed with {shards} shards is at least {least}")
    if comm.rank == 0:
        return _coordinate(_Shards(comm, shards, portions, backup), iterations, lr, history)
    ranges = problem.start.tensor_split(shards)
    if comm.rank <= shards:
        return _hold(comm, ranges[comm.rank - 1].clone(), portions)
    times_slower = slow if comm.rank == comm.size - 1 else 1.0
    return _work(comm, problem, [len(each) for each in ranges], portions, times_slower)


class _Shards:
    """The coordinator's view of the shards. A command has five numbers, for vectors of any length."""

    def __init__(self, comm: Comm, shards: int, portions: int, backup: bool) -> None:
        self.comm, self.ranks, self.portions, self.backup = comm, range(1, shards + 1), portions, backup
        self.idle, self.evaluation, self.reports = deque[int](), -1, 0

    def tell(self, command: int, a: int = 0, b: int = 0, alpha: float = 0.0, beta: float = 0.0) -> None:
        for rank in self.ranks:
            self.comm.send(torch.tensor([command, a, b, alpha, beta], dtype=torch.float64), rank, COMMAND)

    def ask(self, command: int, a: int, b: int = 0) -> float:
        self.tell(command, a, b)
        part, total = self.comm.empty(1, torch.float64), 0.0
        for rank in self.ranks:
            self.comm.recv(part, rank, RESULT)
            total += part.item()
        return total

    def evaluate(self) -> float:
        """Sum the gradient at the current weights on the shards, and return the loss."""
        self.evaluation += 1
        self.tell(OPEN)
        losses: dict[int, float] = {}
        left, again = deque(range(self.portions)), deque[int]()
        while len(losses) < self.portions:
            while self.idle and (given := left or again):
                portion = given.popleft()
                if portion in losses:
                    continue
                if self.backup and given is left:
                    again.append(portion)
                order = torch.tensor([self.evaluation, portion], dtype=torch.float64)
                self.comm.send(order, self.idle.popleft(), PORTION)
            of, number, loss = self._listen()
            if of == self.evaluation:
                losses[int(number)] = loss
        for rank in self.ranks:  # the shards have the first result of every portion
            self.comm.recv(self.comm.empty(1, torch.float64), rank, RESULT)
        return sum(losses.values())

    def _listen(self) -> list[float]:
        """Receive the report of a worker that has become idle."""
        report = self.comm.empty(3, torch.float64)
        self.idle.append(self.comm.recv(report, ANY, READY).source)
        self.reports += int(report[0] >= 0)
        return report.tolist()

    def end(self, workers: range) -> None:
        while len(self.idle) < len(workers):
            self._listen()
        for worker in workers:
            self.comm.send(torch.tensor([-1.0, -1.0], dtype=torch.float64), worker, PORTION)
        self.tell(END, alpha=self.reports)  # a shard receives all pushes, including late ones


def _coordinate(shards: _Shards, iterations: int, lr: float, history: int) -> Outcome:
    pairs: list[tuple[int, int, float]] = []  # places of y and s, and 1 / (y · s)
    scale, t, losses = 1.0, 0.0, [shards.evaluate()]
    for iteration in range(iterations):
        if iteration:
            y, s = (HISTORY + 2 * (len(pairs) % (history + 1)) + n for n in range(2))
            shards.tell(COMBINE, y, G, 0.0, 1.0)
            shards.tell(COMBINE, y, BEFORE, 1.0, -1.0)
            shards.tell(COMBINE, s, D, 0.0, t)
            ys = shards.ask(DOT, y, s)
            if ys > 1e-10:
                pairs.append((y, s, 1 / ys))
                scale = ys / shards.ask(DOT, y, y)
        shards.tell(COMBINE, D, G, 0.0, -1.0)
        shares = []
        for y, s, inverse in reversed(pairs[-history:]):
            shares.append(inverse * shards.ask(DOT, s, D))
            shards.tell(COMBINE, D, y, 1.0, -shares[-1])
        shards.tell(COMBINE, D, D, scale, 0.0)
        for (y, s, inverse), share in zip(pairs[-history:], reversed(shares)):
            shards.tell(COMBINE, D, s, 1.0, share - inverse * shards.ask(DOT, y, D))
        shards.tell(COMBINE, BEFORE, G, 0.0, 1.0)
        t = lr if iteration else min(1.0, 1 / (shards.ask(L1, G) or 1.0)) * lr
        shards.tell(COMBINE, X, D, 1.0, t)
        if iteration + 1 < iterations:
            losses.append(shards.evaluate())
    shards.end(range(len(shards.ranks) + 1, shards.comm.size))
    return Outcome(losses=losses, seconds=shards.comm.now())


def _hold(comm: Comm, weights: Tensor, portions: int) -> Outcome:
    """Hold a range of every vector and obey the coordinator. Add only the first result of each portion."""
    vectors, early = {X: weights}, list[int]()
    inbox = comm.empty(max(5, 2 + len(weights)), torch.float64)
    evaluation, pushed, missing = -1, 0, set[int]()
    expected = float("inf")
    while pushed < expected:
        arrival = comm.recv(inbox, ANY, ANY)
        if arrival.tag == PULL and inbox[0] > evaluation:
            early.append(arrival.source)  # the coordinator's command is still on its way
        elif arrival.tag == PULL:
            comm.send(vectors[X], arrival.source, WEIGHTS)
        elif arrival.tag == PUSH:
            portion, pushed = int(inbox[1]), pushed + 1
            if inbox[0] == evaluation and portion in missing:
                missing.remove(portion)
                vectors[G] += inbox[2 : 2 + len(weights)]
                if not missing:
                    comm.send(comm.empty(1, torch.float64), 0, RESULT)
        else:
            command, a, b, alpha, beta = inbox[:5].tolist()
            one, other = (vectors.setdefault(int(n), torch.zeros_like(weights)) for n in (a, b))
            if command == END:
                expected = alpha
            elif command == OPEN:
                evaluation, missing = evaluation + 1, set(range(portions))
                vectors[G] = torch.zeros_like(weights)
                for worker in early:
                    comm.send(vectors[X], worker, WEIGHTS)
                early.clear()
            elif command == COMBINE:
                one.mul_(alpha).add_(other, alpha=beta) if alpha else torch.mul(other, beta, out=one)
            else:
                found = one.dot(other) if command == DOT else one.abs().sum()
                comm.send(found.view(1), 0, RESULT)
    return Outcome(weights=vectors[X])


def _work(comm: Comm, problem: Problem, lengths: list[int], portions: int, slow: float) -> Outcome:
    """Request portions until none is left.

    For each portion, get the weights, compute, push slices to the shards, and report.
    """
    weights, order = torch.zeros_like(problem.start), comm.empty(2, torch.float64)
    report, held, done = torch.full((3,), -1.0, dtype=torch.float64), -1.0, 0
    while True:
        comm.send(report, 0, READY)
        comm.recv(order, 0, PORTION)
        evaluation, portion = order.tolist()
        if evaluation < 0:
            return Outcome(portions=done)
        if evaluation != held:
            for shard, part in enumerate(weights.split(lengths), 1):
                comm.send(order[:1], shard, PULL)
                comm.recv(part, shard, WEIGHTS)
            held = evaluation
        cost = slow * problem.cost(portions)
        loss, gradient = comm.compute(lambda: problem.portion(int(portion), portions, weights), cost=cost)
        for shard, part in enumerate(gradient.split(lengths), 1):
            comm.send(torch.cat([order, part]), shard, PUSH)
        report, done = torch.tensor([evaluation, portion, loss], dtype=torch.float64), done + 1
