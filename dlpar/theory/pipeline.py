"""Closed forms of a pipeline: its bubble, and the ideal timeline of a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from dlpar.config.split import SCHEDULES as TRAITS
from dlpar.split.schedules import SCHEDULES, Action
from dlpar.theory.counts import from_one

BUBBLES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")
"""Schedules with a closed form, by their published names."""


def bubble(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return the bubble: the idle seconds divided by the ideal seconds of a batch.

    With a bubble of 0.25 a batch takes 1.25 times as long as without a bubble.

    ===============  =====================  ===========================================
    schedule         bubble                 source
    ===============  =====================  ===========================================
    gpipe, 1f1b      (p - 1) / m            Narayanan et al., arXiv 2104.04473, 2.2.1
    interleaved      (p - 1) / (v m)        Narayanan et al., arXiv 2104.04473, 2.2.2
    zb-h1, m >= p    (p - 1) / (3 m)        Qi et al., arXiv 2401.10241, table 2
    zb-h2, m > 2p-2  0                      Qi et al., arXiv 2401.10241, table 2
    ===============  =====================  ===========================================

    Stages are equal and messages take no time.  The zero-bubble schedules cut the backward pass in two, for
    inputs and for weights, each as long as the forward pass.  H1 needs as much memory as 1f1b, and H2 needs
    up to twice as much.  With fewer micro-batches, H1 waits for the first gradient; for H2, the result is then
    a lower bound.

    Parameters
    ----------
    schedule : str
        One of :data:`BUBBLES`.
    stages, microbatches : int
        p and m, at least 1.
    chunks : int, default 1
        v, the parts of the model that each stage holds. Only interleaved allows more than 1.

    Raises
    ------
    ValueError
        If the name is none of these, or a number is not allowed.
    """
    _check(BUBBLES, schedule, stages, microbatches, chunks)
    share, late = (stages - 1) / microbatches, (2 * stages - 1 - microbatches) / 3 / microbatches
    forms = {"interleaved": share / chunks, "zb-h1": max(share / 3, late), "zb-h2": max(0.0, late)}
    return forms.get(schedule, share)


class Bar(NamedTuple):
    """Action of a stage, from `start` to `end` in seconds."""

    stage: int
    kind: str
    micro: int
    chunk: int
    start: float
    end: float


def timeline(
    schedule: str,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    forward: float = 1.0,
    backward: float = 2.0,
    weight: float | None = None,
    message: float = 0.0,
    recompute: float = 0.0,
) -> list[Bar]:
    """Return each action's time under a schedule with equal stages, in each stage's order of execution.

    Parameters
    ----------
    schedule : str
        One of :data:`dlpar.split.schedules.SCHEDULES`.
    stages, microbatches : int
        At least 1. For a schedule without a flush, `microbatches` is the number of steps.
    chunks : int, default 1
        Parts of the model that each stage holds. Only interleaved allows more than 1.
    forward, backward : float, default 1 and 2
        Seconds of a micro-batch on a stage, all its chunks together.
    weight : float, optional
        Part of `backward` for the gradients of weights, if they have separate passes; default: half.
    message : float, default 0
        Seconds from the end of a pass to the beginning of the next stage's pass. Messages do not wait for
        each other.
    recompute : float, default 0
        Seconds in which a stage recomputes a micro-batch's activations before the backward pass: bars of
        kind R.  Recomputation needs no message from another stage.

    Raises
    ------
    ValueError
        If the name is none of these, or a number is not allowed.
    """
    lists = actions_of(schedule, stages, microbatches, chunks)
    weight = backward / 2 if weight is None else weight
    if not 0 <= weight <= backward:
        raise ValueError(f"weight: got {weight}, allowed is a part of backward, 0 to {backward}")
    inputs = backward - weight if TRAITS[schedule].has_weight_pass else backward
    seconds = {"F": forward, "B": inputs, "W": weight, "R": recompute}
    return timed(lists, {kind: [each] * stages for kind, each in seconds.items()}, chunks, message)


def actions_of(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> list[list[Action]]:
    """Return each stage's actions. Parameters and errors as of :func:`timeline`."""
    _check(SCHEDULES, schedule, stages, microbatches, chunks)
    return [SCHEDULES[schedule](stage, stages, microbatches, chunks) for stage in range(stages)]


class Stuck(ValueError):
    """Deadlock of stages. The next action of each stage waits for an action that comes later.

    Attributes
    ----------
    waits : dict of int to tuple
        By stage: position of its next action, the action, and the stage that it waits for.
    """

    def __init__(self, waits: dict[int, tuple[int, Action, int]]) -> None:
        self.waits = waits
        stage, (position, action, other) = next(iter(waits.items()))
        waits_for = f"stage {stage} waits for stage {other} before action {position}, {action}"
        super().__init__(f"no stage can continue: {waits_for}")


def timed(
    lists: Sequence[Sequence[Action]],
    seconds: Mapping[str, Sequence[float]],
    chunks: int = 1,
    message: float = 0.0,
) -> list[Bar]:
    """Return the times of any schedule on any stages, given each stage's actions. See :func:`timeline`.

    Parameters
    ----------
    lists : sequence of sequence of Action
        One list for each stage.
    seconds : mapping of str to sequence of float
        For each kind of action (and for R, if activations are recomputed), seconds of a micro-batch on each stage,
        all its chunks together.

    Raises
    ------
    Stuck
        If stages wait for each other.
    """
    stages = len(lists)
    last, ended, bars = stages * chunks - 1, {}, []
    clocks, done = [0.0] * stages, [0] * stages
    while any(done[stage] < len(lists[stage]) for stage in range(stages)):
        waits, before = {}, sum(done)
        for stage, actions in enumerate(lists):
            for action in actions[done[stage] :]:
                needed = _needed(action, action.chunk * stages + stage, last)
                if needed is not None and needed not in ended:
                    waits[stage] = done[stage], action, needed[1] % stages
                    break  # until another stage has done this action
                again = seconds["R"][stage] / chunks if action.kind == "B" and "R" in seconds else 0.0
                if again:
                    bars.append(Bar(stage, *action._replace(kind="R"), clocks[stage], clocks[stage] + again))
                    clocks[stage] += again
                elsewhere = needed is not None and needed[1] % stages != stage
                start = max(clocks[stage], ended[needed] + message * elsewhere if needed else 0.0)
                clocks[stage] = start + seconds[action.kind][stage] / chunks
                ended[action.kind, action.chunk * stages + stage, action.micro] = clocks[stage]
                bars.append(Bar(stage, *action, start, clocks[stage]))
                done[stage] += 1
        if sum(done) == before:
            raise Stuck(waits)
    return sorted(bars, key=lambda bar: (bar.stage, bar.start))


def idle_share(bars: Iterable[Bar]) -> float:
    """Return a timeline's bubble, ideal or measured: idle seconds of all stages over computing seconds.

    The window is from the first start to the last end of any stage.
    With equal stages the result equals :func:`bubble`.
    """
    bars = list(bars)
    window = max(bar.end for bar in bars) - min(bar.start for bar in bars)
    computing = sum(bar.end - bar.start for bar in bars)
    return (len({bar.stage for bar in bars}) * window - computing) / computing


def most_in_flight(actions: Iterable[Action], has_weight_pass: bool = False) -> int:
    """Return the maximum number of pairs of a micro-batch and a chunk whose activations a stage holds."""
    change = {"F": 1, "W" if has_weight_pass else "B": -1}
    return max(accumulate(change.get(action.kind, 0) for action in actions), default=0)


def _needed(action: Action, part: int, last: int) -> tuple[str, int, int] | None:
    """Return the action that must end first, with its kind, its part of the model and its micro-batch."""
    if action.kind == "F":
        return ("F", part - 1, action.micro) if part > 0 else None
    if action.kind == "B":
        return ("B", part + 1, action.micro) if part < last else ("F", part, action.micro)
    return "B", part, action.micro


def _check(allowed: Iterable[str], schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    """Raise `ValueError` unless the schedule is allowed and the numbers fit."""
    if schedule not in allowed:
        raise ValueError(f"schedule: got {schedule!r}, allowed is one of {', '.join(allowed)}")
    from_one(stages=stages, microbatches=microbatches, chunks=chunks)
    if chunks > 1 and not (schedule in SCHEDULES and TRAITS[schedule].has_chunks):
        raise ValueError(f"chunks: got {chunks}, allowed with schedule {schedule} is 1")
    if chunks > 1 and microbatches % stages:
        allowed = f"allowed with schedule {schedule} is a multiple of {stages} stages"
        raise ValueError(f"microbatches: got {microbatches}, {allowed}")
