"""Exercises whose result must match one process: ZeRO (lab 07b), cut layers (lab 08), schemes (any lab)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.course import judge
from dlpar.course.judge import Answer, Step, Verdict, difference, judge_on_ranks, judge_steps, secret
from dlpar.sync.races import WrongAnswer
from dlpar.sync.scheme import Scheme
from dlpar.sync.user_code import AllReduced, NotFacts, not_a_scheme
from dlpar.theory.counts import closed_form

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm


# ---- ZeRO stage 1 -------------------------------------------------------------------

WEIGHTS = 10
"""Number of weights of the trained model. 3 and 4 ranks get chunks of different lengths."""

STEPS = 3
"""Number of steps. From the second step on, the velocity that a rank keeps matters."""

LR, MOMENTUM = 0.1, 0.5

SHARDED = "{name} is right on {ranks}: it gives one process's weights and sends as much as a ring all-reduce."


def check_zero(student: Answer, workers: Sequence[int] = (2, 3, 4), hints: Sequence[str] = ()) -> Verdict:
    """Run ``student(comm, weights, gradient, velocity, lr, momentum)`` for a few steps of SGD with momentum.

    Parameters
    ----------
    student : callable or None
        Gets N chunks of the weights, equal on all ranks, and N chunks of the rank's own gradient.  The velocity
        belongs to the rank's chunk (``rank + 1``, modulo N). It starts at zero and is kept from step to step.
        The function must leave on every rank the weights that one process would have with the sum of all
        gradients.
    workers, hints
        As in :func:`~dlpar.course.judge.check_on_ranks`.

    Returns
    -------
    Verdict
        It names the first step and rank that differ. Errors in the student's code are never raised.
    """
    how = SHARDED, hints, "a ring all-reduce", "ring_reduce_scatter and ring_allgather"
    return judge_steps(student, _zero_on_rank, workers, _zero_steps, *how)


def _zero_steps(ranks: int) -> Iterator[Step]:
    form = closed_form("ring", ranks, WEIGHTS, itemsize=8)
    for number, right in enumerate(_weights(ranks)):
        yield Step(f", after step {number}", [right] * ranks, "the weights", [form])


def _weights(ranks: int) -> list[np.ndarray]:
    """Return the weights of one process after each step."""
    weights, velocity, found = np.zeros(WEIGHTS), 0.0, []
    for step in range(STEPS):
        velocity = MOMENTUM * velocity + sum(_gradient(ranks, rank, step) for rank in range(ranks))
        weights = weights - LR * velocity
        found.append(weights)
    return found


def _gradient(ranks: int, rank: int, step: int) -> np.ndarray:
    """Return a rank's gradient: (rank + 1) (step + 1) × [1, 2, 3, …].

    A graded answer gets random numbers instead.
    """
    if draw := secret("gradient", ranks, rank, step):
        return draw.normal(size=WEIGHTS)
    return (rank + 1) * (step + 1) * np.arange(1.0, WEIGHTS + 1)


def _zero_on_rank(comm: Comm, student: Callable[..., Any]) -> Iterator[list[float] | str]:
    import torch

    chunks = list(torch.zeros(WEIGHTS, dtype=torch.float64).tensor_split(comm.size))
    velocity = torch.zeros_like(chunks[(comm.rank + 1) % comm.size])
    for step in range(STEPS):
        gradient = torch.from_numpy(_gradient(comm.size, comm.rank, step)).tensor_split(comm.size)
        student(comm, chunks, list(gradient), velocity, LR, MOMENTUM)
        # If it stays 0, the answer has rebound the name, or keeps a whole velocity elsewhere.
        if step and not velocity.any():
            raise WrongAnswer(f"after step {step}, on rank {comm.rank}: velocity stays 0; change it in place")
        yield torch.cat(chunks).tolist()  # an answer may put new tensors into the list


# ---- two layers cut over ranks ------------------------------------------------------

NAMES = ("y", "of_x", "of_up", "of_down")
"""Names of the parts of an answer."""

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 5, 6, 12, 3
"""Sizes of the perceptron on which every answer is tried: 2, 3 and 4 ranks divide its hidden neurons."""

DIVIDED = "{name} is right on {ranks}: it computes the same as one process, with one all-reduce in each pass."


def check_layers(student: Answer, workers: Sequence[int] = (2, 3, 4), hints: Sequence[str] = ()) -> Verdict:
    """Call ``student(comm, x, up, down, of_y)`` on every rank, with the rank's pieces of two layers.

    The function must return ``y, of_x, of_up, of_down``: the whole output, the gradient of the whole input,
    and the gradients of the rank's weights. It may send at most an all-reduce of the output and one of the
    input's gradient.

    Parameters
    ----------
    student : callable or None
        Raises ``NotImplementedError`` while it is not written.
    workers : sequence of int
        Divisors of 12: numbers of simulated ranks to try. The last is also the number of real ranks.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.

    Returns
    -------
    Verdict
        Errors in the student's code are never raised.
    """
    how = DIVIDED, hints, "one ring all-reduce of y and one of of_x", "ring_allreduce", 10.0
    return judge_steps(student, _layers_on_rank, workers, _layers_steps, *how)


def _layers_steps(ranks: int) -> Iterator[Step]:
    forms = [closed_form("ring", ranks, SAMPLES * width, itemsize=8) for width in (OUTPUTS, INPUTS)]
    for name, expected in zip(NAMES, zip(*(_answer(rank, ranks) for rank in range(ranks)))):
        yield Step("", expected, name, forms if name == NAMES[-1] else (), tolerance=1e-9)


def _layers_on_rank(comm: Comm, student: Callable[..., Any]) -> Iterator[Any]:
    """Yield each tensor that the answer returns on this rank."""
    x, up, down, of_y = _problem(comm.size)
    own = up.tensor_split(comm.size)[comm.rank].clone(), down.tensor_split(comm.size, 1)[comm.rank].clone()
    made = student(comm, x, *own, of_y)
    complete = isinstance(made, (tuple, list)) and len(made) == len(NAMES)
    yield from made if complete else [f"missing: it returns no tuple of {', '.join(NAMES)}"] * len(NAMES)


def _answer(rank: int, ranks: int) -> list[torch.Tensor]:
    """Return the correct answer of a rank, computed by one process with autograd."""
    import torch

    x, up, down, of_y = _problem(ranks)
    for tensor in (x, up, down):
        tensor.requires_grad_()
    y = torch.relu(x @ up.T) @ down.T
    of_x, of_up, of_down = torch.autograd.grad(y, (x, up, down), of_y)
    return [y.detach(), of_x, of_up.tensor_split(ranks)[rank], of_down.tensor_split(ranks, 1)[rank]]


def _problem(ranks: int) -> list[torch.Tensor]:
    """Return x, up, down and the gradient of y, where ``y = relu(x @ up.T) @ down.T`` is a whole perceptron.

    All are float64 and the same on every rank, and no two numbers are equal. If graded, they are random.
    """
    from torch import arange, float64, from_numpy

    def waves(rows: int, columns: int, pitch: float) -> torch.Tensor:
        if draw := secret("layers", ranks, rows, columns):
            return from_numpy(draw.normal(size=(rows, columns)))
        return (pitch * arange(1, rows * columns + 1, dtype=float64)).sin().view(rows, columns)

    sizes = ((SAMPLES, INPUTS, 1.1), (HIDDEN, INPUTS, 2.3), (OUTPUTS, HIDDEN, 0.7), (SAMPLES, OUTPUTS, 1.9))
    return [waves(*each) for each in sizes]


# ---- a student's scheme -------------------------------------------------------------

SCHEME_STEPS = 20
"""Steps of each trial."""

ALIKE = f"{{name}} is right on {{ranks}}: in each of {SCHEME_STEPS} steps, every weight equals that of one process."

ROUNDING = 1e-9
"""Largest relative difference. Float64 sums of the same numbers in another order differ by less."""


def check_scheme(
    my_scheme: Answer, workers: Sequence[int] = (2, 3, 4), hints: Sequence[str] = (), timeout: float = 20.0
) -> Verdict:
    """Train logistic regression on digits in float64 with the student's scheme, and compare every step.

    Parameters
    ----------
    my_scheme : callable or type
        A function of (comm, tensor) that sums a tensor over all ranks, in place, or a subclass of
        :class:`dlpar.sync.Scheme` with ``combine``.
    workers : sequence of int
        Numbers of workers to try, the last also on real ranks. Shares of the batch differ in size.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    timeout : float
        Seconds after which ranks that wait for each other are ended.

    Returns
    -------
    Verdict
        It names the first step and worker that differ. Errors in the student's code are never raised.
    """
    name = getattr(my_scheme, "__name__", type(my_scheme).__name__)
    if my_scheme is None or my_scheme is ...:
        return judge.to_do("The scheme is not written yet.")
    if getattr(my_scheme, "combine", None) is Scheme.combine:
        return judge.to_do(f"{name} has no combine yet.")
    if complaint := not_a_scheme(my_scheme, name):
        return judge.wrong(name, hints, complaint + ".")
    run = _scheme_on_rank, workers, _steps_differ, _trained_alike, hints, timeout
    return judge_on_ranks(my_scheme, *run, who="workers")


def _steps_differ(told: list[dict[str, Any]]) -> str:
    differing = [(one["first"][0], rank) for rank, one in enumerate(told) if one["first"]]
    if not differing:
        return ""
    step, rank = min(differing)
    return f", at step {step}, on worker {rank}: {told[rank]['first'][1]}."


def _trained_alike(told: list[dict[str, Any]]) -> str:
    """Return the sentence for a correct scheme. It compares the data sent in a step with a ring's."""
    ring = closed_form("ring", len(told), told[0]["elements"], itemsize=8)
    busiest = f"the busiest worker {ring.busiest_bytes:,}"
    theirs = f"ring sends {ring.messages:,} and {ring.bytes:,} bytes, {busiest}"
    if told[0]["bytes"] is None:
        return f"{ALIKE} The library moved the data and does not report how much; {theirs}."
    messages, nbytes = (sum(one[what] for one in told) for what in ("messages", "bytes"))
    busiest = max(one["bytes"] for one in told)
    sends = f"A step of {len(told)} workers sends {messages:,.10g} messages and {nbytes:,.10g} bytes"
    return f"{ALIKE} {sends}, the busiest worker {busiest:,.10g}; {theirs}."


def _scheme_on_rank(comm: Comm, my_scheme: Callable[..., Any] | type[Scheme]) -> dict[str, Any]:
    """Train beside one process that has the whole batch. Return the first difference and the data sent."""
    from dlpar.lab.figures.probes import prepared  # imported here, because it imports torch
    from dlpar.split import make_split
    from dlpar.sync import scheme

    fields = dict(model="logistic", batch=64 - comm.size // 2, steps=SCHEME_STEPS, lr=0.5, dtype="float64")
    whole, alone = Experiment(workers=1, **fields), comm.split(comm.rank)
    experiment = Experiment(sync=my_scheme, workers=comm.size, **fields)
    mine, twin = make_split(prepared(comm, experiment)), make_split(prepared(alone, whole))
    sync, by_itself = scheme(experiment, comm, mine.replica), scheme(whole, alone, twin.replica)
    first, done = None, 0
    comm.traffic.take()
    for step in sync.steps():
        differs = ""
        for part, agree in ((mine, sync), (twin, by_itself)):
            part.gradient(step)
            agree.combine()
        if isinstance(sync, AllReduced):
            differs = difference(mine.replica.gradient, twin.replica.gradient, ROUNDING, "the gradient")
        sync.update()
        by_itself.update()
        try:
            sync.facts()
        except NotFacts as refused:
            differs = differs or str(refused)
        differs = differs or difference(mine.replica.weights, twin.replica.weights, ROUNDING, "the weights")
        first = first or (differs and (step, differs))
        done += 1
    sent = comm.traffic.take()
    if done != SCHEME_STEPS:
        first = first or (done, f"the scheme ended after {done} of {SCHEME_STEPS} steps")
    per_step = {what: None if total is None else total / max(1, done) for what, total in sent.items()}
    return {"first": first, "elements": len(mine.replica.weights), **per_step}
