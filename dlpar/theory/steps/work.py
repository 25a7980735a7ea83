"""What a worker computes for a step, beside what it says to others, as the training loop charges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlpar.theory.steps.fabric import Fabric
from dlpar.theory.waiting import expected_slowest

if TYPE_CHECKING:
    from dlpar.config.experiment import Delays, Experiment


@dataclass(frozen=True)
class Work:
    """Seconds of every worker, on average over steps.

    Attributes
    ----------
    training : list of float
        Forward and backward pass of each worker's share of a batch.
    overhead : list of float
        The device's, before it.
    delay : list of float
        What `delays` add, after it.
    slowest : float
        Factor by which the slowest of all workers' steps is longer than the mean, where times vary.
    steady : bool
        Whether every step takes a worker equally long.
    """

    training: list[float]
    overhead: list[float]
    delay: list[float]
    slowest: float
    steady: bool

    @classmethod
    def of(cls, experiment: Experiment, fabric: Fabric) -> Work:
        delays, timing = experiment.delays, fabric.platform.timing
        # Drawn factors have mean 1; those of a trace have any.
        factor = sum(timing.trace) / len(timing.trace) if timing.kind == "trace" else 1.0
        training = [
            factor * fabric.seconds(fabric.sizes.flops * samples, worker)
            for worker, samples in enumerate(_samples(experiment))
        ]
        added = delays.delay_ms / 1000 if delays.kind != "none" else 0.0
        factors = [delays.straggler.get(worker, 1.0) for worker in range(experiment.workers)]
        device, slower = fabric.platform.device, fabric.platform.stragglers
        overhead = [device.overhead * slower.get(worker, 1.0) for worker in range(experiment.workers)]
        delay = [(f - 1) * trains + f * added for f, trains in zip(factors, training)]
        # Of two things that vary the one that makes workers differ more is taken.
        meetings = _meetings(experiment)
        mean = sum(training) / len(training)
        varying = [(mean / factor, timing, factor), *([(added, _timing(delays), 1.0)] if added else [])]
        beyond = max(
            part * (expected_slowest(experiment.workers, how, meetings) - usual)
            for part, how, usual in varying
        )
        steady = timing.kind == "constant" and delays.kind in ("none", "constant") and not delays.stall
        steady = steady and getattr(experiment.sync, "fraction", 1.0) == 1
        whole = mean + added + sum(overhead) / len(overhead)
        return cls(training, overhead, delay, 1 + beyond / whole if whole else 1.0, steady)

    @property
    def seconds(self) -> list[float]:
        """Of each worker from the beginning of a step until it has its gradient."""
        return [sum(parts) for parts in zip(self.overhead, self.training, self.delay)]

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
        from dlpar.data.sampler import proportional  # here: needs NumPy, the closed forms do not

        return [fraction * samples for samples in proportional(experiment.global_batch, experiment.workers)]
    return [fraction * experiment.local_batch(worker) for worker in range(experiment.workers)]


def _timing(delays: Delays):
    """How a delay varies around its mean, in a platform's words."""
    from dlpar.worlds.platforms import Timing

    return Timing(kind=delays.kind, cv=delays.delay_cv)
