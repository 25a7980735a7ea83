"""What every scheme's form says of a step, and what all of them are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dlpar.theory.steps.fabric import Fabric
from dlpar.theory.steps.rounds import Moments, pace
from dlpar.theory.steps.work import Work, exchanges

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


FOLLOWED = 40_000
"""Messages that are followed one by one, at most, to predict: about a quarter of a second."""

SETTLING = 0.25
"""Share of a run's steps that may pass before steps repeat themselves, if the long run is to stand for all of it."""


def too_many(messages: int) -> bool:
    """Whether an exchange of so many messages is not followed through the few steps it takes to see its pace."""
    return messages > FOLLOWED // 4


@dataclass(frozen=True)
class Form:
    """A step in the long run.

    Attributes
    ----------
    seconds : float
        Of a step.
    computes : float
        Seconds a worker computes for it beside training.
    waiting : float
        Seconds a worker waits for slower ones, or in front of a busy server.
    bytes : float or None
        Payload of all ranks.
    source, how : str
        Who derived it, and what it says.
    unless : str
        Why it is not exact, or nothing.
    """

    seconds: float
    computes: float
    waiting: float
    bytes: float | None
    source: str
    how: str
    unless: str = ""


class InStep(NamedTuple):
    """Seconds of a step, extra computing and waiting among them, and why they are not exact, or nothing."""

    seconds: float
    computes: float
    waiting: float
    unless: str = ""


def in_step(
    experiment: Experiment,
    fabric: Fabric,
    work: Work,
    combine: Callable[[Moments], Moments],
    before: float,
    after: float,
    messages: int,
    least: float = 0.0,
) -> InStep:
    """A step of workers that all take part in every exchange.

    Parameters
    ----------
    combine : callable
        From when each worker enters an exchange to when it leaves it.
    before, after : float
        FLOPs between training and an exchange, and after it, of each worker.
    messages : int
        Of an exchange, followed one by one: so many that few steps can be.
    least : float, default 0
        Seconds for which an exchange keeps the busiest port.
    """
    workers, n, every = experiment.workers, fabric.sizes.elements, exchanges(experiment)
    if experiment.averaging.method != "none":
        # A step of one's own after each gradient; then what was moved is offered, and what was agreed is taken.
        before, after = before + 3 * n * every + 2 * n, after + 2 * n
    entering = [
        (every * seconds + fabric.seconds(before, worker)) * work.slowest
        for worker, seconds in enumerate(work.seconds)
    ]
    leaving = [fabric.seconds(after, worker) for worker in range(workers)]

    def step(moments: Moments) -> Moments:
        combined = combine([moment + seconds for moment, seconds in zip(moments, entering)])
        return [moment + seconds for moment, seconds in zip(combined, leaving)]

    found = pace(step, [0.0] * workers, tries=max(4, min(60, FOLLOWED // max(messages, 1))))
    computes = sum(fabric.seconds(before + after, worker) for worker in range(workers)) / workers
    slowest = max(map(sum, zip(entering, leaving)))
    mean = every * sum(work.seconds) / workers + computes
    why = ""
    if found.settled is None:
        why = "steps do not repeat themselves: the mean of some is given"
    elif found.settled * every > experiment.steps * SETTLING:
        why = f"it takes {found.settled * every} steps until steps repeat themselves"
    return InStep(max(found.seconds, least) / every, computes / every, max(0.0, slowest - mean) / every, why)


def wire_bytes(experiment: Experiment, elements: int, itemsize: int) -> int:
    """Bytes of so many elements of a gradient on the wire, as the codecs of `dlpar.compression` write them."""
    codec, keep = experiment.compression.codec, experiment.compression.keep
    if codec == "onebit":
        return 2 * itemsize + -(-elements // 8) if elements else 0
    if codec == "topk":
        return min(elements, max(1, math.ceil(keep * elements))) * (itemsize + 4)
    return elements * (2 if codec in ("fp16", "bf16") else itemsize)
