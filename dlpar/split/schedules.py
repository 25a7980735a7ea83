"""Schedules of a pipeline: what each stage does, in which order, as data.

A schedule is a list of actions for each stage.  One executor runs them all
(:mod:`dlpar.split.pipeline`), and :mod:`dlpar.theory.pipeline` says when each
would begin on a machine without delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from dlpar.config.split import SCHEDULES as TRAITS
from dlpar.config.split import Traits


class Action(NamedTuple):
    """One thing a stage does.

    Attributes
    ----------
    kind : {"F", "B", "W"}
        Forward pass, backward pass, weight pass.  Where a schedule has weight passes, its backward passes give
        gradients of inputs alone.
    micro, chunk : int
        Of which micro-batch, through which of the stage's chunks; both 0-based.
    """

    kind: str
    micro: int
    chunk: int = 0


class Schedule(NamedTuple):
    """A named configuration.

    Attributes
    ----------
    actions : callable
        ``(stage, stages, microbatches, chunks)`` to that stage's actions.
    source : str
        Who published it.
    has_chunks : bool
        Whether a stage holds several chunks: of P stages, stage s holds parts s, s + P, s + 2 P, …
    has_weight_pass : bool
        Whether gradients of weights are computed by actions of their own.
    has_flush : bool
        Whether all micro-batches of a step are done before the weights move.  Without, each micro-batch
        is a step of its own, and the list of actions is one for a whole run.
    """

    actions: Callable[[int, int, int, int], list[Action]]
    source: str
    has_chunks: bool
    has_weight_pass: bool
    has_flush: bool


def gpipe(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """All forward passes, then all backward passes, the last micro-batch first (figure 2c)."""
    forwards = [Action("F", micro) for micro in range(microbatches)]
    return forwards + [Action("B", micro) for micro in reversed(range(microbatches))]


def one_forward_one_backward(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """As many forward passes as stages follow, then one and one: stages - stage are in flight at most (figure 4)."""
    forwards, backwards = _all("F", microbatches), _all("B", microbatches)
    return _in_turns(forwards, backwards, ahead=min(stages - 1 - stage, microbatches))


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Action]:
    """1F1B over chunks: as many micro-batches as stages go through one chunk after the other (section 2.2.2)."""
    rounds = range(0, microbatches, stages)
    forwards, backwards = (
        iter(
            [
                Action(kind, micro, chunk)
                for first in rounds
                for chunk in order
                for micro in range(first, min(first + stages, microbatches))
            ]
        )
        for kind, order in (("F", range(chunks)), ("B", range(chunks)[::-1]))
    )
    ahead = (chunks - 1) * stages + 2 * (stages - 1 - stage)
    return _in_turns(forwards, backwards, ahead=min(ahead, chunks * microbatches))


def zero_bubble_h1(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """1F1B whose weight passes wait: stage s puts off s of them to where it would stand idle (section 2.3, H1)."""
    found, weights = [], _all("W", microbatches)
    for action in one_forward_one_backward(stage, stages, microbatches):
        found.append(action)
        if action.kind == "B" and action.micro >= stage:
            found.append(next(weights))
    return [*found, *weights]


SCHEDULES: dict[str, Schedule] = {}
"""All schedules, by name."""


def register(
    name: str,
    actions: Callable[[int, int, int, int], list[Action]],
    source: str,
    traits: Traits | None = None,
) -> None:
    """Let experiments name a schedule; `traits` say what a new one asks of the rest of an experiment."""
    TRAITS.setdefault(name, traits or Traits())
    SCHEDULES[name] = Schedule(actions, source, *TRAITS[name])


register("gpipe", gpipe, "Huang et al., arXiv 1811.06965")
register("1f1b", one_forward_one_backward, "Narayanan et al., arXiv 2104.04473, 2.2.1")
register("interleaved", interleaved, "Narayanan et al., arXiv 2104.04473, 2.2.2")
register("zb-h1", zero_bubble_h1, "Qi et al., arXiv 2401.10241")
register("pipedream", one_forward_one_backward, "Harlap et al., arXiv 1806.03377")


def of_step(stage: int, stages: int, step: int, steps: int) -> list[Action]:
    """The part of a schedule without a flush that ends with the backward pass of `step`: its list, cut into steps."""
    lead = stages - 1 - stage
    forwards = range(lead + 1) if step == 0 else [step + lead]
    return [*(Action("F", micro) for micro in forwards if micro < steps), Action("B", step)]


def _all(kind: str, microbatches: int) -> Iterator[Action]:
    return (Action(kind, micro) for micro in range(microbatches))


def _in_turns(forwards: Iterator[Action], backwards: Iterator[Action], ahead: int) -> list[Action]:
    """`ahead` forward passes, then one and one, then the backward passes that are left."""
    forwards, backwards = list(forwards), list(backwards)
    turns = chain.from_iterable(zip(forwards[ahead:], backwards))
    return [*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :]]
