"""What an experiment should take, in closed form: one prediction for a step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlpar.config.schema import BadExperiment
from dlpar.theory.steps import allreduce, gossip, mapreduce, ps
from dlpar.theory.steps.fabric import Fabric
from dlpar.theory.steps.form import Form
from dlpar.theory.steps.work import Work

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


FORMS: dict[str, Callable[[Experiment, Fabric, Work], Form | None]] = {
    "ring": allreduce.form, "mapreduce": mapreduce.form, "ps": ps.form, "gossip": gossip.form,
}  # fmt: skip
"""By scheme."""


VARYING = {
    "bsp": "it is as if all waited for the slowest of each step",
    "ssp": "it is as if all met at the bound, which bounds their waiting from above",
    "asp": "their mean is taken, and queues are left out",
}
"""What the form makes of times that vary, by consistency."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step in the long run, and where they go; averages over workers.

    Attributes
    ----------
    seconds : float
        From one global step to the next; where workers run free, in which N worker-steps are done.
    compute : float
        Of them a worker computes.
    communicate : float
        Of them it neither computes nor waits for slower workers.
    waiting : float
        Of them it waits for workers that are slower than itself, or in front of a busy server.
    bytes : float or None
        Payload all ranks together send a step; None: not known, as of a library.
    exact : bool
        Whether it is what a simulation takes, to rounding; else an estimate, and `how` says why.
    source : str
        Who derived it.
    how : str
        The form, in words.
    """

    seconds: float
    compute: float
    communicate: float
    waiting: float
    bytes: float | None
    exact: bool
    source: str
    how: str


def predict(experiment: Experiment) -> Prediction | None:
    """What a step of an experiment should take on its platform.

    Parameters
    ----------
    experiment : Experiment
        Its cluster names the platform; for the real world that is this machine, if it was calibrated.

    Returns
    -------
    Prediction or None
        None where there is no closed form (a scheme of your own, ZeRO, a model on several ranks), or
        no platform to base it on.

    Examples
    --------
    >>> from dlpar import Experiment
    >>> predict(Experiment(workers=8, cluster={"world": "simulated"})).exact
    True
    """
    make = FORMS.get(experiment.sync.scheme)
    if make is None or getattr(experiment.split, "zero", 0) or experiment.replicas < experiment.workers:
        return None
    try:
        fabric = Fabric.of(experiment)
    except BadExperiment:
        return None
    work = Work.of(experiment, fabric)
    form = make(experiment, fabric, work)
    return None if form is None else _spelled_out(experiment, fabric, work, form)


def _spelled_out(experiment: Experiment, fabric: Fabric, work: Work, form: Form) -> Prediction:
    """The parts of a step, and what stands between the form and an exact prediction."""
    why = [form.unless] if form.unless else []
    if not work.steady:
        why.append(f"times vary from step to step: {VARYING[getattr(experiment.sync, 'consistency', 'bsp')]}")
    if fabric.platform.stragglers:
        why.append("stragglers of the platform add up slowly, too, which is left out")
    if experiment.cluster.world == "real":
        why.append("real ranks share cores and are disturbed")
    seconds = sum(work.seconds) / experiment.workers
    compute = min(form.seconds, seconds + form.computes)
    waiting = min(form.seconds - compute, form.waiting)
    return Prediction(
        seconds=form.seconds,
        compute=compute,
        communicate=form.seconds - compute - waiting,
        waiting=waiting,
        bytes=form.bytes,
        exact=not why,
        source=form.source,
        how="; ".join([form.how, *why]),
    )
