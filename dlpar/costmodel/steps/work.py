"""What a worker computes for a step, beside what it says to others, as the training loop charges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlpar.costmodel.steps.fabric import Fabric
from dlpar.costmodel.waiting import expected_slowest

if TYPE_CHECKING:
    from dlpar.experiment import Delays, Experiment


@dataclass(frozen=True)
class Work:
    """Seconds of every worker, on average over steps.

    Attributes
    ----------
    training : list of float
        Forward and backward pass of each worker's share of a batch.
    delay : list of float
        What `delays` add to it, and the device's overhead of a step.
    slowest : float
        Factor by which the slowest of all workers' steps is longer than the mean, where times vary.
    steady : bool
        Whether every step takes a worker equally long.
    """

    training: list[float]
    delay: list[float]
    slowest: float
    steady: bool

    @classmethod
    def of(cls, experiment: Experiment, fabric: Fabric) -> Work:
        delays, timing = experiment.delays, fabric.platform.timing
        training = [
            fabric.seconds(fabric.sizes.flops * samples, worker) for worker, samples in enumerate(_samples(experiment))
        ]
        added = delays.delay_ms / 1000 if delays.kind != "none" else 0.0
        factors = [delays.straggler.get(worker, 1.0) for worker in range(experiment.workers)]
        device, slower = fabric.platform.device, fabric.platform.stragglers
        overhead = [device.overhead * slower.get(worker, 1.0) for worker in range(experiment.workers)]
        delay = [(f - 1) * trains + f * added + once for f, trains, once in zip(factors, training, overhead)]
        # Of two things that vary the one that makes workers differ more is taken.
        meetings = _meetings(experiment)
        mean = sum(training) / len(training)
        varying = [(mean, timing), *([(added, _timing(delays))] if added else [])]
        beyond = max(part * (expected_slowest(experiment.workers, how, meetings) - 1) for part, how in varying)
        steady = timing.kind == "constant" and delays.kind in ("none", "constant") and not delays.stall
        steady = steady and getattr(experiment.sync, "fraction", 1.0) == 1
        return cls(training, delay, 1 + beyond / (mean + added), steady)

    @property
    def seconds(self) -> list[float]:
        """Of each worker from the beginning of a step until it has its gradient."""
        return [trains + waits for trains, waits in zip(self.training, self.delay)]

    @property
    def equal(self) -> bool:
        """Whether all workers take equally long, step after step."""
        return self.steady and max(self.seconds) - min(self.seconds) <= 1e-12 * max(self.seconds)


def exchanges(experiment: Experiment) -> int:
    """Steps from one exchange to the next."""
    averaging = experiment.averaging
    return averaging.period if averaging.method != "none" else getattr(experiment.sync, "push_every", 1)


def _meetings(experiment: Experiment) -> int:
    """Steps after which a worker waits for the slowest, at the latest."""
    stale = getattr(experiment.sync, "consistency", "bsp") == "ssp"
    return exchanges(experiment) * (experiment.sync.staleness + 1 if stale else 1)


def _samples(experiment: Experiment) -> list[float]:
    """Each worker takes of a step, where a fraction is sampled on average."""
    fraction = getattr(experiment.sync, "fraction", 1.0)
    if experiment.shards == "uneven":
        from dlpar.sampling import proportional  # here: needs NumPy, the closed forms do not

        return [fraction * samples for samples in proportional(experiment.global_batch, experiment.workers)]
    return [fraction * experiment.local_batch(worker) for worker in range(experiment.workers)]


def _timing(delays: Delays):
    """How a delay varies around its mean, in a platform's words."""
    from dlpar.platforms import Timing

    return Timing(kind=delays.kind, cv=delays.delay_cv)
