"""Judge of exercises: run a student's function, name the first difference, and give one more hint each time.

:func:`check` compares returned values.  :func:`judge_on_ranks` compares the results on simulated and real
ranks. An exercise (:mod:`dlpar.course.exercises`) adds its reference, cases and messages.
"""

from __future__ import annotations

import copy
import html
import os
import re
import secrets
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlpar.config.generator import generator
from dlpar.jobs.launch import JobFailed, spmd
from dlpar.lab.captions import listed
from dlpar.theory.counts import Cost, closed_form

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


GRADED = "DLPAR_GRADED"
"""Environment variable that makes inputs random and secret, and excludes real ranks."""

PACKAGE = str(Path(__file__).parents[1])
"""Folder of dlpar's code, as opposed to a student's."""

INTERNAL = re.compile(rf'(  File "{re.escape(PACKAGE)}/.*\n(    .*\n)+)+(?=  File|\w)')
"""Frames of dlpar in a traceback before a frame of a student's code, or before the error."""

SENDS_WAIT = f"{PACKAGE}/systems/platforms/sends-wait.toml"
"""Platform of simulated ranks. No send returns before its receive, so no answer can rely on a buffer."""

LENGTHS = (1, 4, 7, 2000, 3000, 4000)
"""Tensor lengths on which :func:`check_on_ranks` tries an exercise. Real ranks read long ones while they are sent."""

Answer = Callable[..., Any] | None
"""A student's function, or None, ``...`` or a ``NotImplementedError`` if it is not written yet."""

_failed: Counter[str] = Counter()
"""Number of wrong answers to each exercise, which is the number of hints shown."""

_seed = secrets.randbits(64) if os.environ.get(GRADED) else None
"""Seed of all inputs of graded answers. No answer runs in the judge's process."""


def secret(purpose: str, *key: int) -> np.random.Generator | None:
    """Return a generator of inputs for a graded answer.

    Return None while a student practises with simple inputs.
    """
    return None if _seed is None else generator(_seed, purpose, *key)


class Verdict:
    """Result of a check. It is true if the exercise is solved."""

    def __init__(self, status: str, sentence: str, hints: Sequence[str] = ()) -> None:
        self.status, self.sentence, self.hints = status, sentence, list(hints)

    def __bool__(self) -> bool:
        return self.status == "solved"

    def __repr__(self) -> str:
        hints = (f"hint {i}: {hint}" for i, hint in enumerate(self.hints, start=1))
        return "\n".join([f"{self.status}: {self.sentence}", *hints])

    def _repr_html_(self) -> str:
        signs = {"solved": ("✔", "#009E73"), "to do": ("✎", "#0072B2")}
        sign, colour = signs.get(self.status, ("✘", "#D55E00"))
        lines = (re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(hint)) for hint in self.hints)
        hints = "".join(f"<li>{line}</li>" for line in lines)
        hints = f"<p>Hints so far:</p><ol>{hints}</ol>" if hints else ""
        said = f'<span style="white-space: pre-wrap">{html.escape(self.sentence)}</span>'
        frame = f'<div role="status" style="border-left: 4px solid {colour}; padding: 0.3em 0.8em">'
        return f"{frame}<b>{sign} {self.status}</b><br>{said}{hints}</div>"


def to_do(sentence: str = "The function is not written yet.") -> Verdict:
    """Return the verdict on an answer that is not yet written."""
    return Verdict("to do", sentence)


def wrong(name: str, hints: Sequence[str], sentence: str) -> Verdict:
    """Return the verdict on a wrong answer, with one more hint than before."""
    _failed[name] += 1
    return Verdict("not yet", sentence, hints[: _failed[name]])


def solved(name: str, sentence: str) -> Verdict:
    """Return the verdict on a correct answer. Hints start again at the first."""
    _failed.pop(name, None)
    return Verdict("solved", sentence)


def check(
    student: Answer,
    cases: Iterable[tuple[Any, Any]],
    hints: Sequence[str] = (),
    tolerance: float = 1e-6,
    compare: Callable[[Any, Any], str] | None = None,
) -> Verdict:
    """Compare a student's function with expected values. Errors in the student's code are never raised here.

    Parameters
    ----------
    student : callable or None
        The function.  None, ``...``, a ``NotImplementedError``, or None as the result of a function counts as
        not written yet.
    cases : iterable of (arguments, expected)
        Arguments as a tuple, or as a mapping of names that the message repeats (``{"rank": 2, "step": 0}``).
        `expected` is a number, text, array or tensor, or a list, tuple or mapping of these.  A case is tried
        only if all cases before it are right.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    tolerance : float
        Largest relative difference of numbers.
    compare : callable, optional
        ``compare(got, expected)`` names the first error, or returns an empty string. By default, it is
        :func:`difference`.
    """
    name, right = getattr(student, "__name__", "the function"), 0
    for arguments, expected in cases:
        given, where = copy.deepcopy(arguments), _call(name, arguments)
        if not callable(student):
            return to_do()
        try:
            got = student(**given) if isinstance(given, Mapping) else student(*given)
        except (Exception, KeyboardInterrupt) as error:  # a student interrupts an endless loop
            if isinstance(error, NotImplementedError) and not error.args:  # torch's own say what is missing
                return to_do(f"{name} is not written yet.")
            return wrong(name, hints, f"{where} raised {type(error).__name__}: {error}{_line(error)}")
        if (got is None or got is ...) and expected is not None:
            return to_do(f"{name} returns nothing yet: {where} should return {short(expected)}.")
        differs = compare(got, expected) if compare else difference(got, expected, tolerance)
        if differs:
            return wrong(name, hints, f"{where}: {differs}.")
        right += 1
    return solved(name, f"{name} is right in all {right} cases.")


def _call(name: str, arguments: Any) -> str:
    if isinstance(arguments, Mapping):
        return f"{name}({', '.join(f'{k}={short(v)}' for k, v in arguments.items())})"
    return f"{name}({', '.join(map(short, arguments))})"


def _line(error: BaseException) -> str:
    """Return the line of the student's code that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith(PACKAGE)]
    return f"\n  in line {own[0].lineno} of your code: {own[0].line}" if own and own[0].line else ""


def short(value: Any, limit: int = 60) -> str:
    """Return a value as one line of limited length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def difference(got: Any, expected: Any, tolerance: float = 1e-6, where: str = "") -> str:
    """Name the first place where `got` differs from `expected`. Return an empty string if they agree."""
    at = where or "it"
    as_array = lambda each: (each.float() if each.dtype.itemsize == 2 else each).numpy(force=True)  # bfloat16
    got, expected = (as_array(each) if hasattr(each, "detach") else each for each in (got, expected))
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping) or set(got) != set(expected):
            return f"{at} is {short(got)}, expected a mapping with the keys {', '.join(map(str, expected))}"
        inner = (difference(got[k], expected[k], tolerance, f"{where}[{k!r}]") for k in expected)
        return next((d for d in inner if d), "")
    otherwise = f"{at} is {short(got)}, expected {short(expected)}"
    if isinstance(got, str) and not isinstance(expected, str):
        return otherwise
    if isinstance(expected, (str, bool)) or expected is None:
        return "" if got == expected else otherwise
    try:
        mine, right = np.asarray(got), np.asarray(expected)
        numbers = mine.dtype.kind in "biufc" and right.dtype.kind in "biufc"
    except (TypeError, ValueError, RuntimeError):  # rows of unequal length
        numbers = False
    if not numbers:
        try:
            mine, right = list(got), list(expected)
        except TypeError:
            return "" if type(got) is type(expected) and got == expected else otherwise
        if len(mine) != len(right):
            return f"{at} has {len(mine)} items, expected {len(right)}"
        return difference(dict(enumerate(mine)), dict(enumerate(right)), tolerance, where)
    if mine.shape != right.shape:
        return f"{at} has shape {mine.shape}, expected {right.shape}"
    small = tolerance if right.shape else min(tolerance, 1e-6)  # a single number is compared relatively
    differ = ~np.isclose(mine, right, rtol=tolerance, atol=small, equal_nan=True)
    if not differ.any():
        return ""
    if not right.shape:
        return f"{at} is {mine[()]}, expected {right[()]}"
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    place = f"{f'{where}, ' if where else ''}value {index[0] if len(index) == 1 else index}"
    return f"{place} is {mine[index]}, expected {right[index]} ({differ.sum()} of {differ.size} differ)"


# ---- on ranks -----------------------------------------------------------------------


class Step(NamedTuple):
    """Expected step of an exercise on ranks.

    Attributes
    ----------
    where : str
        Continues the sentence that begins with the trial: ``, after step 0``.
    expected : sequence
        Values that each rank must hold afterwards.
    name : str
        Name of the step in messages, if it needs one.
    sends : sequence of Cost
        Collectives of all ranks in this step. If it is empty, traffic is not compared.
    exactly : bool
        False: the ranks must send at least as much.
    tolerance : float
        Largest relative difference of numbers.
    before : sequence
        Values that ranks held before, if an answer has to change them in place.
    """

    where: str
    expected: Sequence[Any]
    name: str = ""
    sends: Sequence[Cost] = ()
    exactly: bool = True
    tolerance: float = 1e-6
    before: Sequence[Any] = ()


def judge_on_ranks(
    student: Answer,
    program: Callable[..., Any],
    workers: Sequence[int],
    complain: Callable[[list[Any]], str],
    praise: str | Callable[[list[Any]], str],
    hints: Sequence[str] = (),
    timeout: float = 5.0,
    arguments: tuple[Any, ...] = (),
    who: str = "ranks",
) -> Verdict:
    """Run ``program(comm, student, *arguments)`` on simulated ranks, then on the last number of real ranks.

    Simulated ranks do the same in every trial. If all wait for each other, the message names the line of each
    rank. Results are compared here, not on the ranks, where a student's code may change anything.

    Parameters
    ----------
    student : callable or None
        Raises ``NotImplementedError`` while it is not written.
    program : callable
        Returns on each rank its results, as plain values and tensors.
    workers : sequence of int
        Numbers of ranks to try.
    complain : callable
        Maps the results of all ranks to the first error, which continues the sentence. Empty if there is
        none.
    praise : str or callable
        Sentence for a correct answer, with ``{name}`` and ``{ranks}``, or ``praise(results)`` that returns
        it.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    timeout : float
        Seconds after which ranks that wait for each other are ended.
    arguments : tuple
        Further arguments of the program.
    who : str
        Plural noun for ranks in messages.

    Returns
    -------
    Verdict
        Solved, to do, or wrong in the first trial that failed. Errors in the student's code are never raised.
    """
    if not callable(student):
        return to_do()
    name = getattr(student, "__name__", "the function")
    real = [] if _seed is not None else [("real", workers[-1])]
    for world, ranks in [*(("simulated", each) for each in workers), *real]:
        where = f"With {ranks} {world} {who}"
        cluster = {"platform": SENDS_WAIT} if world == "simulated" else {}
        try:
            told = spmd(program, student, *arguments, workers=ranks, world=world, timeout=timeout, **cluster)
        except JobFailed as failure:
            if re.search(r"^NotImplementedError\s*$", str(failure), re.M):  # torch's own say what is missing
                return to_do(f"{name} is not written yet.")
            return wrong(name, hints, f"{where}: {INTERNAL.sub('', str(failure))}")
        except (TypeError, AttributeError, PicklingError) as failure:
            return wrong(name, hints, f"{name} cannot be sent to other processes: {failure}")
        if complaint := complain(told):
            return wrong(name, hints, where + complaint)
    tried = f"{listed(map(str, workers))} simulated {who}{f' and on {workers[-1]} real ones' if real else ''}"
    return solved(name, (praise(told) if callable(praise) else praise).format(name=name, ranks=tried))


def judge_steps(
    student: Answer,
    program: Callable[..., Iterator[Any]],
    workers: Sequence[int],
    steps: Callable[[int], Iterable[Step]],
    praise: str,
    hints: Sequence[str],
    like: str,
    by: str,
    timeout: float = 5.0,
) -> Verdict:
    """Compare step by step and rank by rank. Name the first value or amount of sent data that differs.

    Parameters
    ----------
    student, workers, praise, hints, timeout
        As in :func:`judge_on_ranks`.
    program : callable
        ``program(comm, student)`` yields the values of each step on a rank.
    steps : callable
        Maps the number of ranks to the expected steps.
    like, by : str
        Names of a step's collectives and of its send calls, for messages.
    """

    def complain(told: list[list[tuple[Any, Sent]]]) -> str:
        begin = 0
        for number, step in enumerate(steps(len(told))):
            for rank, right in enumerate(step.expected):
                if differs := difference(told[rank][number][0], right, step.tolerance, step.name):
                    is_same = told[rank][number][0] in step.before[rank : rank + 1]
                    return f"{step.where}, on rank {rank}: {differs}.{' Change the tensor itself, in place.' * is_same}"
            if step.sends:
                sent = [[traffic for _, traffic in own[begin : number + 1]] for own in told]
                if complaint := _sends_otherwise(sent, step, like, by):
                    return f"{step.where}: the result is right, but {complaint}"
                begin = number + 1
        return ""

    return judge_on_ranks(student, _held, workers, complain, praise, hints, timeout, (program,))


Sent = Mapping[str, "int | None"]
"""Messages and bytes that a rank sent, or None if a library sent the data."""


def _held(comm: Comm, student: Callable[..., Any], program: Callable[..., Any]) -> list[tuple[Any, Sent]]:
    """Pair each step's value on a rank with the rank's traffic in that step."""
    comm.traffic.take()
    return [(value, comm.traffic.take()) for value in program(comm, student)]


def _sends_otherwise(sent: list[list[Sent]], step: Step, like: str, by: str) -> str:
    """Compare the messages and bytes of all ranks, and of the busiest rank, with those of some collectives."""
    if any(one["bytes"] is None for own in sent for one in own):
        return f"the library moved the data and does not report how much. Use {by}."
    by_rank = [sum(one["bytes"] for one in own) for own in sent]
    messages, nbytes = sum(one["messages"] for own in sent for one in own), sum(by_rank)
    right = sum(form.messages for form in step.sends), sum(form.bytes for form in step.sends)
    told = f"the ranks send {messages} messages and {nbytes} bytes together; "
    if not step.exactly:
        few = messages < right[0] or nbytes < right[1]
        return f"{told}every exchange takes at least {right[0]} and {right[1]}." if few else ""
    if (messages, nbytes) != right:
        return f"{told}{like} sends {right[0]} and {right[1]}."
    most, busiest = sum(form.busiest_bytes for form in step.sends), max(by_rank)
    if busiest > most:
        found = f"rank {by_rank.index(busiest)} sends {busiest} bytes"
        return f"{found}; in {like} no rank sends more than {most}."
    return ""


def check_on_ranks(
    student: Answer,
    expected: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
    workers: Sequence[int] = (2, 3, 4),
    hints: Sequence[str] = (),
    timeout: float = 5.0,
    like: str | None = None,
    at_least: str | None = None,
) -> Verdict:
    """Call ``student(comm, tensor)`` on every rank, and compare `tensor` with the value of `expected`.

    An answer runs on simulated ranks first. If it is correct, it also runs on real ranks.  Tensors of a
    graded answer are random.

    Parameters
    ----------
    student : callable or None
        Works in place. It raises ``NotImplementedError`` while it is not written.
    expected : callable
        Maps the list of all ranks' tensors to the list of tensors that ranks must hold afterwards.
    workers : sequence of int
        Numbers of simulated ranks to try. The last is also the number of real ranks.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    timeout : float
        Seconds after which ranks that wait for each other are ended.
    like : str, optional
        A collective of :func:`dlpar.theory.counts.closed_form`. The function must send its messages and
        bytes.
    at_least : str, optional
        A collective. An answer with fewer messages or bytes cannot be correct.

    Returns
    -------
    Verdict
        It names the first number of ranks, length, rank and value that differ. Errors in the student's code
        are never raised.
    """

    form, exactly = like or at_least, like is not None

    def steps(ranks: int) -> Iterator[Step]:
        for length in LENGTHS:
            given = [_input(ranks, rank, length) for rank in range(ranks)]
            before, right = [each.tolist() for each in given], [each.tolist() for each in expected(given)]
            sends = [closed_form(form, ranks, length, itemsize=4)] if form else ()
            yield Step(f" and length {length}", right, "", sends, exactly, before=before)

    lengths, sends = ", ".join(map(str, LENGTHS)), f", and sends as much as {like}" if like else ""
    praise = f"{{name}} is right on {{ranks}}, for tensors of {lengths} numbers{sends}."
    return judge_steps(student, _on_rank, workers, steps, praise, hints, like or "", "send and recv", timeout)


def _on_rank(comm: Comm, student: Callable[..., Any]) -> Iterator[list[float]]:
    for length in LENGTHS:
        tensor = _input(comm.size, comm.rank, length)
        student(comm, tensor)
        yield tensor.tolist()


def _input(ranks: int, rank: int, length: int) -> torch.Tensor:
    """Return a rank's initial tensor: (rank² + 1) × [1, 2, 3, …].

    No rank's value is the mean of its neighbours'. A graded answer gets random numbers instead.
    """
    import torch

    if draw := secret("input", ranks, rank, length):
        # One order of magnitude, so that no order of operations rounds by more than the tolerance.
        return torch.from_numpy(draw.integers(500, 1500, length)).float()
    return (rank**2 + 1) * torch.arange(1.0, length + 1)
