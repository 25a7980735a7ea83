"""Exercises of labs 06, 07, 10, 12 and 13: check formulas and a policy against closed forms and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.config.generator import generator
from dlpar.course import judge
from dlpar.course.judge import Verdict, check, secret
from dlpar.course.labs.hybrid import CLUSTERS, grid
from dlpar.course.labs.scaling import sizes_only
from dlpar.theory import best_interval, buckets, overlapped, roofline
from dlpar.theory.layers import sizes, transformer_exchanges
from dlpar.worlds.platforms import platform_of, workload
from dlpar.worlds.simulated.failures import FailingJob, Survived

Case = tuple[dict[str, float], float]
"""Arguments of a formula, and its value."""


def _simulated(asked: list[Experiment]) -> list[float]:
    """Simulate one step of each experiment, all in one job. Return the seconds of each step."""
    return judge.spmd(_each_in_turn, asked, workers=1, world="simulated", timeout=600.0)[0]


def _each_in_turn(_: object, asked: list[Experiment]) -> list[float]:
    """Simulate in this process, which has loaded torch. A rank's time is its clock at the end of a step."""
    from dlpar.comm import Recorder
    from dlpar.train import train
    from dlpar.worlds.simulated.run import of_experiment, run_program

    def seconds(experiment: Experiment) -> float:
        program = lambda comm: (train(comm, experiment, Recorder()), comm.now())[1]
        return max(run_program(*of_experiment(experiment), program, patience=600.0))

    return [seconds(experiment) for experiment in asked]


# ---- the efficiency of a ring -------------------------------------------------------

RING_TOLERANCE = 2e-3
"""Largest relative difference from a simulation, because chunks of a ring are rounded to whole numbers."""

WORKER_ALONE: Case = (dict(compute=0.25, latency=1e-3, bandwidth=1e8, nbytes=1e8, n=1), 1.0)
"""A single worker: its efficiency is known without a simulation."""

RINGS = (
    ("resnet50", "cpu-1gbe", 2), ("resnet50", "cpu-10gbe", 16), ("alexnet", "cpu-10gbe", 5), ("vgg16", "cpu-1gbe", 32),
    (None, "cpu-10gbe", 64),
)  # fmt: skip
"""Rings to try: workload (None: the default model), platform, and number of workers."""


def _one_alone_and(alone: Case, simulated: Callable[[], list[Case]]) -> Iterator[Case]:
    """Yield a case known without a simulation, then simulated cases.

    A wrong formula never reaches the simulated cases.
    """
    yield alone
    yield from simulated()


def check_efficiency(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Compare ``student(compute, latency, bandwidth, nbytes, n)`` with simulated rings. This takes seconds.

    Parameters
    ----------
    student : callable or None
        Returns the share of time in which a worker of a ring computes: `compute` in s, `latency` in s,
        `bandwidth` in bytes/s, `nbytes` of the gradient, `n` workers.  An unwritten formula is not simulated.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.

    Raises
    ------
    JobFailed
        If a simulation fails.
    """
    return check(student, _one_alone_and(WORKER_ALONE, _rings), hints, RING_TOLERANCE)


@cache
def _rings() -> list[Case]:
    """Return the arguments and the simulated efficiency of each of `RINGS`.

    A graded answer gets random numbers of workers and samples.
    """
    asked = [sizes_only(charged, name, workers=n, steps=1) for charged, name, n in RINGS]
    if draw := secret("rings"):
        sizes = draw.integers((2, 16), (65, 129), (len(asked), 2)).tolist()
        asked = [each.replace(workers=n, batch=batch) for each, (n, batch) in zip(asked, sizes)]
    given = map(_ring_arguments, asked)
    return [(each, each["compute"] / took) for each, took in zip(given, _simulated(asked))]


def _ring_arguments(experiment: Experiment) -> dict[str, float]:
    platform, name = platform_of(experiment), experiment.cluster.stand_in_for
    charged = workload(name) if name else None
    model, link = charged or sizes(experiment), platform.link(same_node=False)
    seconds = platform.device.seconds(model.flops * experiment.batch, charged)
    both = dict(latency=link.latency, bandwidth=link.bandwidth)
    return dict(compute=seconds, **both, nbytes=model.nbytes, n=experiment.workers)


# ---- buckets beside the backward pass -----------------------------------------------


def check_all_sent(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Compare ``student(ms, mb, most, n, latency, bandwidth)`` with the closed form of overlapped buckets.

    Parameters
    ----------
    student : callable or None
        Returns the ms from the start of the backward pass until the last bucket has been sent: `ms` of each
        layer's backward pass and `mb` of its gradient, in backward order; `most` MB fit into a bucket; `n`
        ranks; `latency` in ms; `bandwidth` in MB/ms.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    """
    return check(student, _sendings(), hints)


def _sendings() -> Iterator[tuple[dict[str, Any], float]]:
    """Yield arguments and the expected ms: for one layer, a few, many, and for layers that fit into no bucket."""
    draw = secret("layers") or generator(0, "layers")
    for count, most, n in ((1, 10, 2), (3, 4, 2), (3, 9, 2), (6, 8, 4), (40, 25, 16), (3, 0.5, 4)):
        ms, mb = draw.integers(1, 9, (2, count)).tolist()
        latency = 9.0 if most < 1 else 0.1  # an empty bucket before a layer that is too large would show
        cut = buckets(mb, most)
        taking = [2 * (n - 1) * (latency + sum(mb[i] for i in own) / n / 1.25) for own in cut]
        sent = overlapped([sum(ms[: own.stop]) for own in cut], taking, sum(ms)).sent
        yield dict(ms=ms, mb=mb, most=most, n=n, latency=latency, bandwidth=1.25), sent


# ---- a step of kernels ----------------------------------------------------------------


def check_step(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Compare ``student(kernels, peak, bandwidth, launch)`` with a queue of kernels.

    A kernel begins when its launch is done and the previous kernel has ended.  Launches follow each other
    without a pause.

    Parameters
    ----------
    student : callable or None
        Returns the seconds of a step: `kernels` are pairs of FLOPs and bytes, `peak` is in FLOP/s, `bandwidth` in
        bytes/s, and `launch` in s.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    """
    return check(student, _steps_of_kernels(), hints)


def _steps_of_kernels() -> Iterator[tuple[dict[str, Any], float]]:
    draw = secret("kernels") or generator(0, "kernels")
    for count, launch in ((1, 0.0), (1, 40.0), (4, 0.0), (4, 45.0), (30, 35.0)):
        kernels = draw.integers(1, 90, (count, 2)).tolist()
        end = 0.0
        for number, (flops, nbytes) in enumerate(kernels, start=1):
            end = max(end, number * launch) + roofline(flops, nbytes, 2.0, 1.5)
        yield dict(kernels=kernels, peak=2.0, bandwidth=1.5, launch=launch), end


# ---- the step of a grid -------------------------------------------------------------

GRID_TOLERANCE = 0.08
"""Largest relative difference from a simulation, because stages are not quite equal and their boundaries send data."""

ALONE = dict(data=1, tensor=1, pipeline=1, microbatches=8)
DEVICE_ALONE: Case = ({**ALONE, "compute": 1e3, "summed": 5e3, "gradient": 4e3, "bandwidth": 10.0}, 1e3)
"""One device: its time is known without a simulation."""

GRIDS = ((4, 2, 1), (1, 1, 4), (2, 2, 2), (4, 1, 2))
"""Grids to try: data, tensor, pipeline."""

MORE_GRIDS = ((2, 2, 1), (2, 1, 2), (2, 1, 4), (1, 2, 2), (8, 1, 1))
"""Further grids. A graded answer is tried on one of them."""


def check_grid(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Compare ``student(data, tensor, pipeline, microbatches, compute, summed, gradient, bandwidth)`` with simulations.

    The simulations are steps of a transformer with eight blocks, and take seconds the first time.

    Parameters
    ----------
    student : callable or None
        Returns the ms of a step on a grid of devices with a link each: `microbatches` of a replica; `compute`
        in ms, of the whole batch on one device; `summed` in kB, which tensor-parallel ranks all-reduce in a
        step for the whole batch in all layers; `gradient` in kB, of the whole model; `bandwidth` in MB/s.  An
        unwritten formula is not simulated.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.

    Raises
    ------
    JobFailed
        If a simulation fails.
    """
    return check(student, _one_alone_and(DEVICE_ALONE, _grids), hints, GRID_TOLERANCE)


@cache
def _grids() -> list[Case]:
    """Return the arguments and the simulated ms of a step for each of `GRIDS`.

    A graded answer also gets one grid with random width.
    """
    axes, width = GRIDS, 64
    if draw := secret("grids"):
        # In a wider model, a wrong term would be within the tolerance.
        axes, width = (*GRIDS, MORE_GRIDS[draw.integers(len(MORE_GRIDS))]), 48 + 4 * int(draw.integers(7))
    asked = [grid(CLUSTERS["one each"], *each).replace(model={"depth": 8, "width": width}) for each in axes]
    return [(_grid_arguments(each), 1e3 * took) for each, took in zip(asked, _simulated(asked))]


def _grid_arguments(experiment: Experiment) -> dict[str, float]:
    """Return a formula's arguments for a transformer on a grid of devices, each with its own link."""
    model, split, batch = experiment.model, experiment.split, experiment.global_batch
    platform, own = platform_of(experiment), sizes(experiment)
    sent = transformer_exchanges(batch, experiment.data.context, model.width, model.depth)
    # An all-gather is half of an all-reduce.
    elements = sum(each.elements / (1 if each.collective == "ring" else 2) for each in sent)
    bandwidth = platform.link(same_node=False).bandwidth / 1e6
    costs = dict(summed=4 * elements / 1e3, gradient=own.nbytes / 1e3, bandwidth=bandwidth)
    axes = dict(data=experiment.replicas, tensor=split.tensor, pipeline=split.stages)
    compute = 1e3 * platform.device.seconds(batch * own.flops)
    return dict(**axes, microbatches=split.microbatches, compute=compute, **costs)


# ---- the interval between snapshots -------------------------------------------------

DEATHS = 150
"""Number of deaths that a job survives before it is judged."""

JOBS_THAT_DIE = ((600.0, 5.0, 20.0, 60.0), (48_000.0, 5.0, 20.0, 300.0), (6_000.0, 10.0, 120.0, 60.0))
"""Mean seconds between failures, and seconds of a step, a snapshot and a restart.

No fixed interval suits both of the first two jobs, which differ only in their failures.
"""

SHORT_OF_BEST = 0.03
"""Share of time that a policy may lose beyond the best fixed interval. It must first learn the rate of
deaths.
"""


def check_interval(student: Callable[..., Any] | None, hints: Sequence[str] = ()) -> Verdict:
    """Let ``student(step, snapshot, now, deaths)`` choose snapshot intervals in simulated jobs that die.

    A job asks at its start, after each snapshot and after each restart.  Its goodput is compared with the goodput
    of the same job, with the same deaths, at the best fixed interval.

    Parameters
    ----------
    student : callable or None
        Returns a whole number of steps, at least 1.  `step` and `snapshot` are their seconds, `now` is the
        time, and `deaths` are the times of all deaths so far.
    hints : sequence of str
        Hints, from gentle to plain. Each wrong answer shows one more hint.
    """

    def training(mtbf: float, step: float, snapshot: float, restart: float, seed: int) -> Survived:
        policy = lambda now, deaths: _steps(student(step, snapshot, now, deaths), now)
        job = FailingJob(step, mtbf=mtbf, every=policy, snapshot=snapshot, restarting=restart)
        return job.run(most=DEATHS, seed=seed)

    training.__name__ = f"training with {getattr(student, '__name__', 'the function')}"
    return check(training if callable(student) else None, _jobs_that_die(), hints, compare=_as_good_as_fixed)


def _steps(chosen: Any, now: float) -> int:
    """Check a student's choice of steps between snapshots."""
    if now == 0 and (chosen is None or chosen is ...):
        raise NotImplementedError
    if chosen is None or int(chosen) != chosen or chosen < 1:
        raise ValueError(f"at {now:g} s it chose {chosen!r} steps, allowed is a whole number from 1")
    return int(chosen)


def _jobs_that_die() -> Iterator[tuple[dict[str, float], tuple[int, float]]]:
    """Yield jobs that die, each with its best fixed interval and that interval's goodput."""
    draw = secret("deaths")
    for mtbf, step, snapshot, restart in JOBS_THAT_DIE:
        mtbf, seed = (mtbf, 0) if draw is None else (mtbf * draw.uniform(0.8, 1.25), int(draw.integers(1000)))
        every = max(1, round(best_interval(snapshot, mtbf) / step))
        job = FailingJob(step, mtbf=mtbf, every=every, snapshot=snapshot, restarting=restart)
        given = dict(mtbf=mtbf, step=step, snapshot=snapshot, restart=restart, seed=seed)
        yield given, (every, job.run(most=DEATHS, seed=seed).goodput)


def _as_good_as_fixed(got: Survived, best: tuple[int, float]) -> str:
    every, share = best
    other = f"with the same deaths and a snapshot every {every} steps, {share:.1%} would count"
    return "" if got.goodput > share - SHORT_OF_BEST else f"{got.goodput:.1%} of its time counts; {other}"
