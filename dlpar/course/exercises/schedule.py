"""Exercise of lab 09: check a pipeline schedule as data, by its times, and by training on ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dlpar.comm import Comm, Recorder
from dlpar.config.experiment import Experiment
from dlpar.course.judge import Verdict, check, judge_on_ranks, secret, short
from dlpar.lab.captions import listed
from dlpar.split.schedules import SCHEDULES, Action, one_forward_one_backward
from dlpar.theory.pipeline import Bar, Stuck, bubble, idle_share, timed, timeline
from dlpar.train import train


class Size(NamedTuple):
    """Numbers of stages and micro-batches for a trial of a schedule."""

    stages: int
    microbatches: int

    def __repr__(self) -> str:
        return f"{self.stages} lists of actions"


SIZES = (Size(2, 4), Size(4, 8), Size(3, 7), Size(4, 2))
"""Sizes to try. The last has fewer micro-batches than stages."""

SECONDS = {"F": 1.0, "B": 2.0}
"""Seconds of a pass, on every stage."""

_SPLIT = {"kind": "pipeline", "schedule": "1f1b", "microbatches": 8}
_FIELDS: dict[str, Any] = {"batch": 32, "steps": 3, "evaluate_every": 1000, "dtype": "float64"}
TRAINED = Experiment(workers=4, model={"width": 16, "depth": 3}, split=_SPLIT, **_FIELDS)
"""Training with a correct schedule, on simulated and on real ranks."""


def check_schedule(student: Callable[[int, int], Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Check that ``student(stages, microbatches)`` returns lists of actions as good as 1F1B.

    The function returns one list for each stage.

    Every stage must make the forward and the backward pass of every micro-batch once, and no two stages may
    wait for each other.  No stage may hold more micro-batches than there are stages, and the bubble must be
    (p - 1) / m.  A correct schedule then runs on simulated and on real ranks, and must give the same losses as
    1F1B.

    Parameters
    ----------
    student : callable or None
        Returns for each stage a list of ``("F", micro)`` and ``("B", micro)``, or of
        :class:`~dlpar.split.schedules.Action`. It raises ``NotImplementedError`` while it is not written.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.

    Returns
    -------
    Verdict
        It names the first stage and action that are wrong. Errors in the student's code are never raised.
    """
    draw = secret("sizes")
    sizes = [*SIZES, *map(Size._make, draw.integers((2, 1), (9, 17), (4, 2)).tolist() if draw else ())]
    as_data = check(student, [(size, size) for size in sizes], hints, compare=_wrong_with)
    if not as_data:
        return as_data
    lists = _actions(student(TRAINED.workers, TRAINED.split.microbatches))
    said = listed([f"{stages} × {microbatches}" for stages, microbatches in sizes])
    how = "every action once, no deadlock, a bubble of (p - 1) / m, and never more micro-batches in flight than stages"
    praise = f"{{name}} is right for {said} stages × micro-batches: {how}. On {{ranks}} its losses equal those of 1F1B."
    return judge_on_ranks(student, _on_rank, [len(lists)], _trained_otherwise, praise, hints, 20.0, (lists,))


def _trained_otherwise(told: list[list[tuple[float, float]]]) -> str:
    """Name the first step with a loss other than 1F1B's. The last stage knows the loss."""
    for step, (mine, right) in enumerate(told[-1]):
        if not math.isclose(mine, right, rel_tol=1e-9):
            return f", in step {step}, the loss is {mine:.6g}, but {right:.6g} with 1F1B."
    return ""


def _actions(given: Any) -> list[list[Action]]:
    return [[Action(kind, int(micro), *map(int, chunk)) for kind, micro, *chunk in own] for own in given]


def _wrong_with(given: Any, size: Size) -> str:
    """Name the first error in a student's lists, or return an empty string."""
    stages, microbatches = size
    if not isinstance(given, (list, tuple)) or len(given) != stages:
        return f"got {short(given)}, expected a list for each of {stages} stages"
    for stage, own in enumerate(given):
        if complaint := _not_each_once(own, microbatches):
            return f"stage {stage}, {complaint}"
    lists = _actions(given)
    try:
        bars = timed(lists, {kind: [seconds] * stages for kind, seconds in SECONDS.items()})
    except Stuck as stuck:
        waits = []
        for stage, (position, action, other) in stuck.waits.items():
            why = f"for this pass of stage {other}" if other != stage else "whose forward pass comes later"
            waits.append(f"stage {stage} waits at {_at(position, action)}, {why}")
        return f"no stage can continue: {'; '.join(waits)}"
    return _too_many(lists) or _too_slow(bars, stages, microbatches)


def _not_each_once(own: Any, microbatches: int) -> str:
    """Name the first entry of a stage's list that is not an action or is repeated, or a missing action."""
    wanted = [Action(kind, micro) for kind in SECONDS for micro in range(microbatches)]
    if not isinstance(own, (list, tuple)):
        return f"got {short(own)}, expected a list of actions"
    seen: dict[Action, int] = {}
    for position, given in enumerate(own):
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3) or Action(*given) not in wanted:
            allowed = f'("F", k) or ("B", k), k from 0 to {microbatches - 1}'
            return f"action {position} is {short(given)}, allowed is {allowed}"
        action = Action(*given)
        if action in seen:
            return f"{_at(position, action)}, was already action {seen[action]}"
        seen[action] = position
    missing = next((action for action in wanted if action not in seen), None)
    return f"{_told(missing)} is missing" if missing else ""


def _too_many(lists: list[list[Action]]) -> str:
    """Name the first action at which a stage holds more micro-batches than there are stages."""
    for stage, own in enumerate(lists):
        held = 0
        for position, action in enumerate(own):
            held += 1 if action.kind == "F" else -1
            if held > len(lists):
                return f"stage {stage} holds {held} micro-batches at {_at(position, action)}, allowed is {len(lists)}"
    return ""


def _too_slow(bars: list[Bar], stages: int, microbatches: int) -> str:
    """Name the earliest action that begins later than in 1F1B.

    Return an empty string unless the bubble is larger.
    """
    allowed, found = bubble("1f1b", stages, microbatches), idle_share(bars)
    if found < allowed + 1e-9:
        return ""
    times = {"forward": SECONDS["F"], "backward": SECONDS["B"]}
    best = {bar[:4]: bar.start for bar in timeline("1f1b", stages, microbatches, **times)}
    late = min((bar for bar in bars if bar.start > best[bar[:4]]), key=lambda bar: (best[bar[:4]], bar.stage))
    position = sum(bar.stage == late.stage and bar.start < late.start for bar in bars)
    idle = f"the bubble is {found:.1%} of the computing time, allowed is (p - 1) / m = {allowed:.1%}"
    first = f"The first late action is on stage {late.stage}, {_at(position, Action(late.kind, late.micro))}"
    passes = f"a forward pass takes {SECONDS['F']:g}, a backward pass {SECONDS['B']:g}"
    return f"{idle}. {first}: it begins at {late.start:g} instead of {best[late[:4]]:g} ({passes})"


def _at(position: int, action: Action) -> str:
    return f"action {position}, {_told(action)}"


def _told(action: Action) -> str:
    return f'("{action.kind}", {action.micro})'


def _on_rank(comm: Comm, _: Any, lists: list[list[Action]]) -> list[tuple[float, float]]:
    """Return the loss of each step with these lists and with 1F1B.

    The list is empty if another rank knows the loss.
    """

    class Losses(Recorder):
        """Recorder that keeps a stage's losses."""

        def step(self, step: int, loss: Any = None, **facts: Any) -> None:
            losses.append(loss)

    told = []
    for schedule in (lambda stage, *_: lists[stage], one_forward_one_backward):
        losses: list[Any] = []
        SCHEDULES["1f1b"] = schedule  # only in the process of this job, which ends with it
        train(comm, TRAINED, Losses())
        told.append([float(loss) for loss in losses if loss is not None])
    return list(zip(*told))
