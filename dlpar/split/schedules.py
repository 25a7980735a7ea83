"""Pipeline schedules as data: the actions of each stage, in order.

One executor runs them all (:mod:`dlpar.split.pipeline`), and :mod:`dlpar.theory.pipeline` computes when each
action would begin on a machine without delays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from dlpar.config import split as config


class Action(NamedTuple):
    """One pass of a stage.

    Attributes
    ----------
    kind : {"F", "B", "W"}
        Forward pass, backward pass, weight pass.  If a schedule has weight passes, its backward passes give
        only gradients of inputs.
    micro, chunk : int
        Numbers of the micro-batch and of the stage's chunk that it goes through, both 0-based.
    """

    kind: str
    micro: int
    chunk: int = 0


DIRECTION = {"F": +1, "B": -1}
"""Distance to the stage that gets a pass's result: forward to the next, backward to the previous stage."""


def gpipe(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """Run all forward passes, then all backward passes in reverse order.

    Source: Huang et al., GPipe (arXiv 1811.06965), figure 2c.
    """
    return [*_all("F", microbatches), *reversed(_all("B", microbatches))]


def one_forward_one_backward(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """Alternate forward and backward passes.

    At most `stages` - `stage` micro-batches are in flight.

    Source: Narayanan et al. (arXiv 2104.04473), figure 4. Without a flush, this is PipeDream (Harlap et al.,
    arXiv 1806.03377).
    """
    # Warm-up: one forward pass for each stage that follows.
    return in_turns(_all("F", microbatches), _all("B", microbatches), min(stages - 1 - stage, microbatches))


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Action]:
    """Run 1F1B over chunks. Groups of micro-batches pass through the chunks in turn.

    Source: Narayanan et al. (arXiv 2104.04473), section 2.2.2.
    """
    groups = [range(first, min(first + stages, microbatches)) for first in range(0, microbatches, stages)]
    order = range(chunks)
    forwards = [Action("F", micro, chunk) for group in groups for chunk in order for micro in group]
    backwards = [Action("B", micro, chunk) for group in groups for chunk in order[::-1] for micro in group]
    # Warm-up: a group through each chunk but the last, and two passes for each stage that follows.
    ahead = (chunks - 1) * stages + 2 * (stages - 1 - stage)
    return in_turns(forwards, backwards, min(ahead, chunks * microbatches))


def zero_bubble_h1(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """Run 1F1B, and let stage s defer s weight passes to its idle time.

    Source: Qi et al., Zero Bubble (arXiv 2401.10241), section 2.1, ZB-H1.
    """
    found, weights = [], iter(_all("W", microbatches))
    for action in one_forward_one_backward(stage, stages, microbatches):
        found.append(action)
        # Steady state: once s weight passes are delayed, one follows each backward pass.
        if action.kind == "B" and action.micro >= stage:
            found.append(next(weights))
    # Cool-down: the delayed weight passes fill the bubble.
    return [*found, *weights]


def _all(kind: str, microbatches: int) -> list[Action]:
    return [Action(kind, micro) for micro in range(microbatches)]


def in_turns(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> list[Action]:
    """Alternate forward and backward passes, after `ahead` forward passes."""
    warm_up = forwards[:ahead]
    steady_state = chain.from_iterable(zip(forwards[ahead:], backwards))  # one forward, one backward
    cool_down = backwards[len(forwards) - ahead :]
    return [*warm_up, *steady_state, *cool_down]


Actions = Callable[[int, int, int, int], list[Action]]
"""Function from ``(stage, stages, microbatches, chunks)`` to the actions of that stage.

Without a flush, each micro-batch is its own step, and one list of actions covers a whole run.
"""

SCHEDULES: dict[str, Actions] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zero_bubble_h1,
    "pipedream": one_forward_one_backward,
}
"""The rule of each schedule, by its name. Its traits are in :data:`dlpar.config.split.SCHEDULES`."""


def register(name: str, actions: Actions, traits: config.Traits) -> None:
    """Add a schedule that experiments can name. `traits` are its requirements on an experiment."""
    SCHEDULES[name], config.SCHEDULES[name] = actions, traits


def by_step(actions: Iterable[Action]) -> Iterator[list[Action]]:
    """Cut a schedule without a flush into steps that each end with a backward pass."""
    step: list[Action] = []
    for action in actions:
        step.append(action)
        if action.kind == "B":
            yield step
            step = []
