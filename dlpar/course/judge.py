"""Checks an exercise: names the first thing that differs, then gives one hint more each time."""

from __future__ import annotations

import copy
import html
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.jobs.launch import JobFailed, spmd
from dlpar.theory.counts import Cost, closed_form

if TYPE_CHECKING:
    import torch


_failed: Counter[str] = Counter()
"""How often each exercise was answered wrongly: that many hints are shown."""


class Verdict:
    """What a check found; true if the exercise is solved."""

    def __init__(self, status: str, sentence: str, hints: Sequence[str] = ()) -> None:
        self.status, self.sentence, self.hints = status, sentence, list(hints)

    def __bool__(self) -> bool:
        return self.status == "solved"

    def __repr__(self) -> str:
        return "\n".join(
            [
                f"{self.status}: {self.sentence}",
                *(f"hint {i}: {h}" for i, h in enumerate(self.hints, start=1)),
            ]
        )

    def _repr_html_(self) -> str:
        sign, colour = {"solved": ("✔", "#009E73"), "to do": ("✎", "#0072B2")}.get(
            self.status, ("✘", "#D55E00")
        )
        hints = "".join(f"<li>{html.escape(h)}</li>" for h in self.hints)
        return (
            f'<div role="status" style="border-left: 4px solid {colour}; padding: 0.3em 0.8em">'
            f"<b>{sign} {self.status}</b><br>"
            f'<span style="white-space: pre-wrap">{html.escape(self.sentence)}</span>'
            + (f"<p>Hints so far:</p><ol>{hints}</ol>" if hints else "")
            + "</div>"
        )


def check(
    student: Callable | None,
    cases: Sequence[tuple[Any, Any]],
    hints: Sequence[str] = (),
    tolerance: float = 1e-6,
) -> Verdict:
    """Compare a student's function with what is expected; never raises for what the student wrote.

    Parameters
    ----------
    student : callable or None
        The function; None, ``...``, a ``NotImplementedError`` or a function that
        returns None where something is expected counts as not written yet.
    cases : sequence of (arguments, expected)
        Arguments as a mapping of names (``{"rank": 2, "step": 0}``), which the
        message repeats, or as a tuple; `expected` is a number, text, array,
        tensor, or list, tuple or mapping of these.
    hints : sequence of str
        From gentle to plain: a wrong answer shows one more of them each time.
    tolerance : float
        Largest relative difference of numbers.
    """
    name = getattr(student, "__name__", "the function")
    for arguments, expected in cases:
        given, where = copy.deepcopy(arguments), _call(name, arguments)
        if not callable(student):
            return Verdict("to do", "The function is not written yet.")
        try:
            got = student(**given) if isinstance(given, Mapping) else student(*given)
        except NotImplementedError:
            return Verdict("to do", f"{name} is not written yet.")
        except Exception as error:
            return wrong(name, hints, f"{where} raised {type(error).__name__}: {error}{_line(error)}")
        if (got is None or got is ...) and expected is not None:
            return Verdict("to do", f"{name} returns nothing yet: {where} should give {short(expected)}.")
        differs = difference(got, expected, tolerance)
        if differs:
            return wrong(name, hints, f"{where}: {differs}.")
    _failed.pop(name, None)
    return Verdict("solved", f"{name} is right in all {len(cases)} cases.")


def difference(got: Any, expected: Any, tolerance: float = 1e-6, where: str = "") -> str:
    """The first place where `got` is not as `expected`, in words; empty if they agree."""
    at = f"{where} " if where else "it "
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or set(got) != set(expected):
            return f"{at}is {short(got)}, expected a mapping with the keys {', '.join(map(str, expected))}"
        inner = (difference(got[k], expected[k], tolerance, f"{where}[{k!r}]") for k in expected)
        return next((d for d in inner if d), "")
    if isinstance(expected, str) or expected is None or isinstance(expected, bool):
        return "" if got == expected else f"{at}is {short(got)}, expected {short(expected)}"
    try:
        mine, right = np.asarray(got), np.asarray(expected)
        numbers = mine.dtype.kind in "biufc" and right.dtype.kind in "biufc"
    except (TypeError, ValueError, RuntimeError):  # ragged, or a tensor that needs a gradient
        return _items(got, expected, tolerance, where)
    if not numbers:
        return _items(got, expected, tolerance, where)
    if mine.shape != right.shape:
        return f"{at}has shape {mine.shape}, expected {right.shape}"
    wrong = ~np.isclose(mine, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not wrong.any():
        return ""
    if not right.shape:
        return f"{at}is {mine[()]}, expected {right[()]}"
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"value {index[0]}" if len(index) == 1 else f"value {index}"
    place = f"{where}, {place}" if where else place
    return f"{place} is {mine[index]}, expected {right[index]} ({wrong.sum()} of {wrong.size} differ)"


def _items(got: Any, expected: Any, tolerance: float, where: str) -> str:
    detach = getattr(got, "detach", None)
    if detach:
        return difference(detach().numpy(), expected, tolerance, where)
    try:
        mine, right = list(got), list(expected)
    except TypeError:
        return "" if got == expected else f"{where or 'it'} is {short(got)}, expected {short(expected)}"
    if len(mine) != len(right):
        return f"{where or 'it'} has {len(mine)} items, expected {len(right)}"
    inner = (difference(m, r, tolerance, f"{where}[{i}]") for i, (m, r) in enumerate(zip(mine, right)))
    return next((d for d in inner if d), "")


def wrong(name: str, hints: Sequence[str], sentence: str) -> Verdict:
    """The verdict on a wrong answer, with one hint more than last time."""
    _failed[name] += 1
    return Verdict("not yet", sentence, hints[: _failed[name]])


def _call(name: str, arguments: Any) -> str:
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{k}={short(v)}' for k, v in arguments.items())})"
    return f"{name}({', '.join(map(short, arguments))})"


def short(value: Any, limit: int = 60) -> str:
    """A value in one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _line(error: Exception) -> str:
    """The student's own line that raised."""
    own = traceback.extract_tb(error.__traceback__)[1:]
    return f"\n  in your line {own[0].lineno}: {own[0].line}" if own and own[0].line else ""


LENGTHS = (1, 4, 7)
"""Tensor lengths every exercise is tried on."""

SIMULATED_ONLY = "DLPAR_SIMULATED_ONLY"
"""Environment variable: where it is set, as where exercises are graded, nothing is run on real ranks."""

Expected = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]


def check_on_ranks(
    student: Callable[..., Any],
    expected: Expected,
    workers: Sequence[int] = (2, 3, 4),
    hints: Sequence[str] = (),
    timeout: float = 5.0,
    like: str | None = None,
) -> Verdict:
    """Call ``student(comm, tensor)`` on every rank; it must leave in `tensor` what `expected` says.

    First on simulated ranks: they do the same in every try, and where all wait for each other
    each one's line is told at once.  What is right there is run on real ranks, too.

    Parameters
    ----------
    student : callable
        Works in place; raises ``NotImplementedError`` while it is not written.
    expected : callable
        From the list of all ranks' tensors to the list of what each must hold afterwards.
    workers : sequence of int
        Numbers of simulated ranks to try; the last number is that of the real ones.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.
    timeout : float
        Seconds after which ranks that wait for each other are ended.
    like : str, optional
        A collective, as :func:`dlpar.theory.counts.closed_form` names it, whose messages and bytes it must send.

    Returns
    -------
    Verdict
        Never raises for what the student wrote.
    """
    name = getattr(student, "__name__", "the function")

    def judge(held: list[list[Tried]]) -> str:
        for case, length in enumerate(LENGTHS):
            right = expected([_input(rank, length) for rank in range(len(held))])
            for rank, tensor in enumerate(right):
                differs = difference(held[rank][case][0], tensor.tolist())
                if differs:
                    return f" and {length} numbers, on rank {rank} {differs}."
            complaint = like and _not_like([held[rank][case][1] for rank in range(len(held))], like, length)
            if complaint:
                return f" and {length} numbers {complaint}"
        return ""

    lengths, sends = ", ".join(map(str, LENGTHS)), f", and sends what {like} sends" if like else ""
    solved = f"{name} is right on {ranks_tried(workers)}, for tensors of {lengths} numbers{sends}."
    trials = on_both(workers, _try, student, LENGTHS, timeout=timeout)
    return tried(name, trials, judge, hints, lambda told: solved)


Trial = tuple[str, Callable[[], list[Any]]]
"""How a trial is called in a sentence, and what runs it and gives what each rank has told."""


def on_both(
    workers: Sequence[int], program: Callable[..., Any], *arguments: Any, timeout: float, who: str = "ranks"
) -> Iterator[Trial]:
    """Trials of ``program(comm, *arguments)`` on so many simulated ranks, and on the last number of real ones."""
    for world, ranks in worlds(workers):
        run = partial(spmd, program, *arguments, workers=ranks, world=world, timeout=timeout)
        yield f"With {ranks} {world} {who}", run


def tried(
    name: str,
    trials: Iterable[Trial],
    judge: Callable[[list[Any]], str],
    hints: Sequence[str],
    praise: Callable[[list[list[Any]]], str],
) -> Verdict:
    """Run trials until one goes wrong.

    Parameters
    ----------
    name : str
        Of what the student wrote.
    trials : iterable of Trial
    judge : callable
        From what the ranks of a trial have told to what is wrong with it, which goes on the sentence that
        begins with the trial's words; empty if nothing is.
    hints : sequence of str
        From gentle to plain.
    praise : callable
        From what the ranks of each trial have told to what is said if all were right.

    Returns
    -------
    Verdict
        Solved, to do, or wrong in the first trial that was.
    """
    told: list[list[Any]] = []
    for where, run in trials:
        try:
            found = run()
        except JobFailed as failure:
            if "NotImplementedError" in str(failure):
                return Verdict("to do", f"{name} is not written yet.")
            return wrong(name, hints, f"{where}: {failure}")
        except (TypeError, AttributeError, PicklingError) as failure:
            return wrong(name, hints, f"{name} cannot be sent to other processes: {failure}")
        complaint = judge(found)
        if complaint:
            return wrong(name, hints, where + complaint)
        told.append(found)
    return Verdict("solved", praise(told))


def worlds(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """``("simulated", value)`` for each of some values, and ``("real", value)`` for the last."""
    return [*(("simulated", value) for value in values), *([("real", values[-1])] if real_too() else [])]


def real_too() -> bool:
    """Whether what is right on simulated ranks is run on real ones, too."""
    return not os.environ.get(SIMULATED_ONLY)


def ranks_tried(workers: Sequence[int]) -> str:
    """``2, 3 and 4 simulated ranks and on 4 real ones``."""
    return f"{listed(workers)} simulated ranks" + (f" and on {workers[-1]} real ones" if real_too() else "")


def listed(numbers: Sequence[int]) -> str:
    """``2, 3 and 4``."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _input(rank: int, length: int) -> torch.Tensor:
    """What a rank starts with: (rank + 1) × [1, 2, 3, …], easy to follow by eye."""
    import torch

    return (rank + 1) * torch.arange(1.0, length + 1)


def sends_otherwise(
    traffic: Sequence[dict[str, int | None]], forms: Sequence[Cost], like: str, by: str
) -> str:
    """How what all ranks sent differs from what some collectives send together; empty if it does not.

    Parameters
    ----------
    traffic : sequence of dict
        ``messages`` and ``bytes`` of each rank; unknown where the library moved the data.
    forms : sequence of Cost
        Of each of the collectives.
    like, by : str
        What they are called, and what to send by.
    """
    if any(one["bytes"] is None for one in traffic):
        return f"the result is right, but the library moved the data, and does not say how much: use {by}."
    messages, nbytes = (sum(one[what] for one in traffic) for what in ("messages", "bytes"))
    right = sum(form.messages for form in forms), sum(form.bytes for form in forms)
    if (messages, nbytes) == right:
        return ""
    return (
        f"the result is right, but the ranks send {messages} messages and {nbytes} bytes together; "
        f"{like} sends {right[0]} and {right[1]}."
    )


def _not_like(traffic: list[dict[str, int | None]], like: str, length: int) -> str:
    """How what all ranks sent differs from what a known collective sends, in all or on the busiest rank."""
    form = closed_form(like, len(traffic), length, itemsize=4)
    busiest = max(range(len(traffic)), key=lambda rank: traffic[rank]["bytes"] or 0)
    complaint = sends_otherwise(traffic, [form], like, by="send and recv")
    if complaint or traffic[busiest]["bytes"] <= form.busiest_bytes:
        return complaint
    return (
        f"the result is right, but rank {busiest} sends {traffic[busiest]['bytes']} bytes; "
        f"in {like} no rank sends more than {form.busiest_bytes}."
    )


Tried = tuple[list[float], dict[str, "int | None"]]
"""What a rank held afterwards, and the messages and bytes it sent."""


def _try(comm: Any, student: Callable[..., Any], lengths: Sequence[int]) -> list[Tried]:
    held = []
    for length in lengths:
        tensor = _input(comm.rank, length)
        comm.traffic.take()
        student(comm, tensor)
        held.append((tensor.tolist(), comm.traffic.take()))
    return held
