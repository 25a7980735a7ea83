"""Sweeps of experiments. Experiments run one after the other or, if simulated, in parallel.

run_all ─► outcomes ─► dlpar.theory.scaling (speed-up, efficiency, crossings)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import Job, JobFailed, launch
from dlpar.jobs.run import Run
from dlpar.theory import predict
from dlpar.worlds.mpiexec import NoMPI

LOOK = 0.01
"""Seconds between two checks of whether a job has ended."""


@dataclass(eq=False)
class Outcome:
    """Experiment of a sweep, with its result.

    Attributes
    ----------
    experiment : Experiment
    status : str
        ``done``, ``failed``, ``stopped`` or ``not run``.
    reason : str
        Cause of a failure, in one sentence.
    run : Run or None
        None if nothing was started.
    """

    experiment: Experiment
    status: str = "not run"
    reason: str = ""
    run: Run | None = None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Summary of the run, as ``dlpar run --json`` prints it. It is empty unless the run is done."""
        return self.run.summary if self.status == "done" else {}

    @property
    def samples_per_s(self) -> float | None:
        """Return the throughput of all workers together by the run's clock, or None unless the run is done."""
        return self.summary.get("samples_per_s")

    @property
    def step_s(self) -> float | None:
        """Return the time of a global step in seconds, or None unless the run is done."""
        return self.experiment.mean_batch / self.samples_per_s if self.samples_per_s else None

    @property
    def compute_s(self) -> float:
        """Return the seconds that a worker computes in a step. Raises KeyError unless the run is done."""
        return self.summary["seconds"]["compute"] / self.summary["steps"]

    @cached_property
    def predicted_step_s(self) -> float | None:
        """Return the predicted time of a step in seconds, or None without a closed form."""
        return found.seconds if (found := predict(self.experiment)) else None

    @property
    def predicted_samples_per_s(self) -> float | None:
        """Return the predicted throughput, or None without a closed form."""
        return self.experiment.mean_batch / self.predicted_step_s if self.predicted_step_s else None


def all_done(
    experiments: Sequence[Experiment], jobs: int = 2, told: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """Run experiments as :func:`run_all` does. Require that all are done.

    Raises
    ------
    JobFailed
        If a run is not done. The others are run first.
    """
    outcomes = run_all(experiments, jobs, told)
    for outcome in outcomes:
        if outcome.status != "done":
            what = f"workers={outcome.experiment.workers}, {outcome.experiment.sync}"
            raise JobFailed(f"{what}: {outcome.reason or outcome.status}")
    return outcomes


def run_all(
    experiments: Sequence[Experiment],
    jobs: int = 2,
    told: Callable[[Outcome], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Outcome]:
    """Run experiments and wait for all of them.

    Real and paced runs go one at a time, because they would slow each other down. A failure does not stop
    the other experiments.

    Parameters
    ----------
    experiments : sequence of Experiment
        Experiments, in the order in which they start.
    jobs : int, default 2
        Number of simultaneous simulations, at least 1.
    told : callable, optional
        Called with each outcome as soon as its run has ended.
    stop : callable, optional
        Called repeatedly. If it returns True, running jobs end and no other job starts.

    Returns
    -------
    list of Outcome
        In the order of `experiments`.

    Raises
    ------
    KeyboardInterrupt
        When interrupted. Running jobs are ended first.
    """
    outcomes = [Outcome(experiment) for experiment in experiments]
    waiting, at_work = list(outcomes)[::-1], {}
    tell = told or (lambda outcome: None)
    try:
        while (waiting or at_work) and not (stop and stop()):
            while waiting and _has_room(waiting[-1], at_work, jobs):
                outcome = waiting.pop()
                try:
                    at_work[outcome] = launch(outcome.experiment)
                    outcome.run = at_work[outcome].run
                except (BadExperiment, NoMPI, JobFailed) as error:
                    outcome.status, outcome.reason = "failed", str(error)
                    tell(outcome)
            for outcome in [each for each, job in at_work.items() if job.ended]:
                _note(outcome, at_work.pop(outcome))
                tell(outcome)
            if at_work:
                time.sleep(LOOK)
    finally:  # running jobs must stop
        for outcome, job in at_work.items():
            job.stop()
            _note(outcome, job)
    return outcomes


def _has_room(outcome: Outcome, at_work: Mapping[Outcome, Job], jobs: int) -> bool:
    """Return whether an experiment may start while others run."""
    worlds = {each.experiment.cluster.world for each in (outcome, *at_work)}
    return not at_work or (worlds == {"simulated"} and len(at_work) < jobs)


def _note(outcome: Outcome, job: Job) -> None:
    """Record the status of a job that has ended."""
    status = job.run.status
    outcome.status = status if status in ("done", "stopped") else "failed"
    outcome.reason = "" if status == "done" else job.run.reason or f"the job is {status}"
