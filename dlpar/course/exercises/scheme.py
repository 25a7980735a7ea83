"""Exercise of any lab: train with a scheme typed in a cell, each rank beside a twin that does the same alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.course.judge import Verdict, difference, judge_on_ranks, to_do, wrong
from dlpar.sync.scheme import Scheme
from dlpar.sync.user_code import AllReduced, NotFacts, not_a_scheme
from dlpar.theory.counts import closed_form

if TYPE_CHECKING:
    from dlpar.comm import Comm


ROUNDING = 1e-9
"""Largest relative difference between float64 sums of the same numbers in another order, and more than that."""


def check_scheme(
    my_scheme: Callable[..., Any] | type[Scheme] | None,
    workers: Sequence[int] = (2, 3, 4),
    hints: Sequence[str] = (),
    reference: str = "ring",
    steps: int = 20,
    timeout: float = 20.0,
) -> Verdict:
    """Train logistic regression on digits in float64 with a scheme of one's own, and compare every step.

    Parameters
    ----------
    my_scheme : callable or type
        A function of (comm, tensor) that sums a tensor over all ranks, in place; or a
        subclass of :class:`dlpar.sync.Scheme` with ``combine``.
    workers : sequence of int
        Numbers of workers to try, real ones with the last; shares of the batch are not all of one size.
    hints : sequence of str
        From gentle to plain; a wrong answer shows one more of them each time.
    reference : str
        The collective whose messages and bytes are set beside this one's, as
        :func:`dlpar.theory.counts.closed_form` names it.
    steps : int
        Steps of each trial.
    timeout : float
        Seconds after which ranks that wait for each other are ended.

    Returns
    -------
    Verdict
        Names the first step and worker that differ; never raises for an error in the student's code.
    """
    name = getattr(my_scheme, "__name__", type(my_scheme).__name__)
    if my_scheme is None or my_scheme is ...:
        return to_do("The scheme is not written yet.")
    if getattr(my_scheme, "combine", None) is Scheme.combine:
        return to_do(f"{name} has no combine yet.")
    complaint = not_a_scheme(my_scheme, name)
    if complaint:
        return wrong(name, hints, complaint + ".")

    def praise(told: list[dict[str, Any]]) -> str:
        right = f"every weight is that of one process, {steps} steps long"
        return f"{{name}} is right on {{ranks}}: {right}. {_traffic(told, reference)}"

    return judge_on_ranks(
        my_scheme, _on_rank, workers, _complain, praise, hints, timeout, arguments=(steps,), who="workers"
    )


def _complain(told: list[dict[str, Any]]) -> str:
    differing = [(one["first"][0], rank) for rank, one in enumerate(told) if one["first"]]
    if not differing:
        return ""
    step, rank = min(differing)
    return f", at step {step}, on worker {rank}: {told[rank]['first'][1]}."


def _traffic(told: list[dict[str, Any]], reference: str) -> str:
    """Data sent in a step, beside that of the reference."""
    form = closed_form(reference, len(told), told[0]["elements"], itemsize=8)
    theirs = f"{reference} sends {form.messages:,} and {form.bytes:,} bytes, {form.busiest_bytes:,} the busiest worker"
    if told[0]["bytes"] is None:
        return f"The library moved the data and does not say how much; {theirs}."
    messages, nbytes = (sum(one[what] for one in told) for what in ("messages", "bytes"))
    busiest = max(one["bytes"] for one in told)
    return (
        f"A step of {len(told)} workers sends {messages:,.10g} messages and {nbytes:,.10g} bytes, "
        f"{busiest:,.10g} of them the busiest worker; {theirs}."
    )


def _on_rank(comm: Comm, my_scheme: Callable[..., Any] | type[Scheme], steps: int) -> dict[str, Any]:
    """Train beside a twin that sees the whole batch alone; return where they differ first, and the data sent."""
    from dlpar.lab.figures.probes import prepared  # here: imports torch
    from dlpar.split import make_split
    from dlpar.sync import scheme

    fields = dict(model="logistic", batch=64 - comm.size // 2, steps=steps, lr=0.5, dtype="float64")
    experiment, whole = (
        Experiment(sync=my_scheme, workers=comm.size, **fields),
        Experiment(workers=1, **fields),
    )
    alone = comm.split(comm.rank)
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
        if differs and not first:
            first = (step, differs)
        done += 1
    sent = comm.traffic.take()
    if done != steps and not first:
        first = (done, f"the scheme ended after {done} of {steps} steps")
    per_step = {what: None if total is None else total / max(1, done) for what, total in sent.items()}
    return {"first": first, "elements": len(mine.replica.weights), **per_step}
