"""Delays and deaths of workers on request, reproducible from the seed.

A worker's step is stretched after its gradient is computed.  Dean and Barroso, "The tail at scale" (2013),
explain why delays vary.  The usual models are exponential and gamma distributions (Dutta et al., arXiv
1803.01113).
"""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING, Any

from dlpar.config.generator import generator

if TYPE_CHECKING:
    from dlpar.comm import Comm, Recorder
    from dlpar.config.experiment import Experiment


class Delays:
    """Delays of one worker, the same in every run of an experiment.

    Parameters
    ----------
    experiment : Experiment
        Its ``delays`` and seed.
    comm : Comm
        This worker.  Its clock also counts the delays.
    record : Recorder
        Records each delay as a span of computation.
    done : int, default 0
        Global steps of all workers so far. A stall after half of the steps may be past.
    """

    def __init__(self, experiment: Experiment, comm: Comm, record: Recorder, done: int = 0) -> None:
        self.comm, self.record, self.delays, self.seed = comm, record, experiment.delays, experiment.seed
        self.factor, self.ordered = self.delays.straggler.get(comm.rank, 1.0), 0.0  # until `change`
        self.halfway = experiment.steps // 2
        self.stall = self.delays.stall.get(comm.rank, 0.0) if done <= self.halfway else 0.0
        layers_send = experiment.replicas < experiment.workers or getattr(experiment.split, "zero", 0) == 3
        self.waits = layers_send and not getattr(experiment.sync, "overlap", False)
        self.none = self.delays.kind == "none" and self.factor == 1 and not self.stall

    def change(self, factor: float | None = None, stall: float = 0.0) -> None:
        """Change the factor from now on, or add seconds to the next step.

        Both happen on request during the run.
        """
        self.factor, self.ordered, self.none = factor or self.factor, self.ordered + stall, False

    def added(self, step: int) -> float:
        """Return the seconds that the distribution adds to a step, drawn by seed, worker and step."""
        kind, mean = self.delays.kind, self.delays.delay_ms / 1000
        if kind in ("none", "constant"):
            return mean if kind == "constant" else 0.0
        return drawn(kind, mean, self.delays.delay_cv, self.seed, "delay", self.comm.rank, step)

    def clock(self) -> float:
        """Return the seconds so far, without those that layers have waited for other ranks: nothing delays these.

        Other threads may wait meanwhile, for messages beside the computation. These waits do not count here.
        A GPU first finishes this thread's queue, in which the last step's messages may be.
        """
        if not self.none:
            self.comm.world.settle()
        return self.comm.now() - (self.comm.traffic.all_waited if self.waits else 0.0)

    def after(self, step: int, began: float, done: int) -> None:
        """Delay the worker after `done` global steps. Its `clock` was `began` when it began to compute `step`."""
        if self.none:
            return
        computed = max(0.0, self.clock() - began)
        stall = self.ordered + (self.stall if done >= self.halfway else 0.0)
        self.ordered, self.stall = 0.0, self.stall * (done < self.halfway)
        with self.record.span("delay"):
            self.comm.world.pause((self.factor - 1) * computed + self.factor * self.added(step) + stall)


class Death:
    """Death of one rank on request.

    Parameters
    ----------
    experiment : Experiment
        Its ``deaths``, seed and steps.
    rank : int
        The rank. Servers die on request only by ``die``.
    attempt : int
        Ranks named by ``die`` die in the first attempt.  Times of ``mtbf`` are drawn for each attempt.
    """

    def __init__(self, experiment: Experiment, rank: int, attempt: int) -> None:
        deaths, self.rank = experiment.deaths, rank
        share = deaths.die.get(rank) if attempt == 0 else None
        self.step = math.inf if share is None else max(1, round(share * experiment.steps))
        self.time = math.inf
        if deaths.mtbf is not None and rank < experiment.workers:
            draw = generator(experiment.seed, "death", attempt, rank)
            self.time = float(draw.exponential(deaths.mtbf * experiment.workers))

    def after(self, done: int, record: Recorder) -> None:
        """Die if a death is due after `done` global steps."""
        if done < self.step and (self.time == math.inf or record.comm.now() < self.time):
            return
        record.event("died", after=done)
        record.comm.world.before_death(f"rank {self.rank} died on request after {done} steps")
        os.kill(os.getpid(), signal.SIGKILL)


def drawn(kind: str, mean: float, cv: float, *key: Any) -> float:
    """Draw a number from an exponential or a gamma distribution.

    Parameters
    ----------
    kind : str
        ``"exponential"`` or ``"gamma"``.
    mean, cv : float
        Mean, and the gamma distribution's standard deviation divided by its mean.
    *key
        Key of the draw: see :func:`~dlpar.config.generator.generator`.
    """
    shape = 1.0 if kind == "exponential" else cv**-2
    return float(generator(*key).gamma(shape, mean / shape))
