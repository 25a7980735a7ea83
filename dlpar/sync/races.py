"""Tests of a shared-weights update typed in a notebook: in turns with a known result, and in a race.

An update is ``update(weights, change, stamps, seen, stamp)``.  It adds `change` to the shared `weights` where
`change` is not zero, and leaves its `stamp` there.  It returns its conflicts: the number of these places that
others have stamped since it read the stamps in `seen`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from dlpar.comm import Comm
from dlpar.config.generator import generator

Update = Callable[..., Any]


class WrongAnswer(ValueError):
    """Error: an exercise's answer is wrong. The message says all."""


SIZE, ROUNDS = 10_000, 300
"""Numbers of weights, and of updates of each rank, in a race."""


def in_turns(update: Update) -> Callable[[Comm, torch.Tensor], None]:
    """Make all ranks read at the same time and then update in turn. The conflicts are then known.

    For :func:`dlpar.lab.check_on_ranks`: each rank's change is its tensor with a few zeros.  Afterwards all
    ranks hold the shared weights, :func:`sum_of_changes`.
    """

    @wraps(update)
    def turns(comm: Comm, tensor: torch.Tensor) -> None:
        size = len(tensor)
        weights, stamps = comm.shared(size, tensor.dtype), comm.shared(size, torch.int64)
        stamps[::2] = comm.size + 1  # of earlier updates, seen by every rank
        comm.barrier()
        change, seen = sparse(tensor, comm.rank), stamps.clone()
        comm.barrier()  # all ranks read before any rank writes
        for turn in range(comm.size):
            if turn == comm.rank:
                before = stamps.clone()
                conflicts = update(weights, change, stamps, seen, comm.rank + 1)
                _check(update.__name__, conflicts, change, (seen, before, stamps), comm.rank + 1)
            comm.barrier()
        tensor.copy_(weights)
        comm.barrier()

    return turns


def sparse(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Copy a rank's tensor, negate every second value, and set every third to zero, at its own positions."""
    change = tensor.clone()
    change[1::2] *= -1
    change[(rank + 1) % 3 :: 3] = 0
    return change


def sum_of_changes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the values that every rank must hold after :func:`in_turns`."""
    changes = [sparse(tensor, rank) for rank, tensor in enumerate(tensors)]
    return [torch.stack(changes).sum(0)] * len(tensors)


def _check(name: str, conflicts: Any, change: torch.Tensor, of: Sequence[torch.Tensor], stamp: int) -> None:
    """Raise :class:`WrongAnswer` if the stamps or the number of conflicts are wrong."""
    written, (seen, before, stamps) = change != 0, of
    for place, (mine, old, now) in enumerate(zip(written.tolist(), before.tolist(), stamps.tolist())):
        if now != (stamp if mine else old):
            why = f"change[{place}] is {'not zero' if mine else 'zero'}"
            raise WrongAnswer(f"stamps[{place}] is {now}, expected {stamp if mine else old}: {why}")
    expected = int((written & (before != seen)).sum())
    if getattr(conflicts, "numel", int)() > 1 or conflicts != expected:
        raise WrongAnswer(
            f"{name} returned {conflicts!r} conflicts, expected {expected}: "
            f"the stamps were {before.tolist()}, seen were {seen.tolist()}, and the change is {change.tolist()}"
        )


def race(comm: Comm, update: Update, densities: Sequence[float]) -> list[tuple[float, float, float]]:
    """Race `update` on all ranks without turns, with `ROUNDS` updates by each rank.

    Parameters
    ----------
    comm : Comm
        Ranks of one machine.
    update : callable
        As described in this module.
    densities : sequence of float
        Shares of the weights that an update writes, above 0 and at most 1, with one race for each.

    Returns
    -------
    list of (float, float, float)
        For each race: the density, the conflicts per written weight, and the share of all additions lost.
    """
    found = []
    for number, density in enumerate(densities):
        weights, stamps = comm.shared(SIZE, torch.float64), comm.shared(SIZE, torch.int64)
        private = torch.zeros(SIZE, dtype=torch.float64)
        draw = generator(0, "race", number, comm.rank)
        count, conflicts = max(1, round(density * SIZE)), 0
        comm.barrier()
        for turn in range(ROUNDS):
            seen = stamps.clone()
            change = torch.zeros(SIZE, dtype=torch.float64)
            places = draw.choice(SIZE, count, replace=False)
            change[torch.from_numpy(places)] = torch.from_numpy(1 + draw.random(count))
            conflicts += update(weights, change, stamps, seen, 1 + turn * comm.size + comm.rank)
            private += change
        comm.barrier()
        parts = comm.gather((private, conflicts))
        if parts:
            added, conflicting = (sum(column) for column in zip(*parts))
            lost = float((added - weights).abs().sum() / added.sum())
            found.append((density, conflicting / (count * ROUNDS * comm.size), lost))
    return found
