"""Lab 12: snapshots, deaths and survivors. An event simulation runs the thousands of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from dlpar import Experiment, JobFailed, Run, launch, resume
from dlpar.course.rehearse import Row, Shown, apart, measured, same_losses
from dlpar.theory import best_interval, mtbf_of
from dlpar.worlds.simulated.failures import FailingJob

LLAMA = FailingJob(5.9, mtbf=54 * 86_400 / 419, snapshot=30.0, detecting=20.0, restarting=280.0)
"""Llama 3 405B on 16,384 GPUs, with 419 unexpected interruptions in 54 days.

Source: Grattafiori et al. (arXiv 2407.21783, section 3.3.4).  A step of 16 M tokens at 400 TFLOP/s per GPU
takes 5.9 s.  The costs of a snapshot and of a restart are assumed.
"""

MACHINES = 16_384 / 8
"""Number of nodes with eight GPUs each."""

BEST = round(best_interval(LLAMA.snapshot, LLAMA.mtbf) / LLAMA.step)
"""Best number of steps between two snapshots of this job."""


def _goodput(holds: Callable[..., bool], said: str) -> Callable[[Mapping[str, FailingJob]], Shown]:
    """Return a check of simulated jobs' goodput, for five seeds of failures."""

    def shows(jobs: Mapping[str, FailingJob]) -> Shown:
        found = [[job.run(most=400, seed=seed).goodput for job in jobs.values()] for seed in range(5)]
        return all(holds(*each) for each in found), said.format(*found[0])

    return shows


def one_dies() -> dict[str, Experiment]:
    """Run four real ranks with a ring all-reduce, without a failure and with rank 2's death halfway."""
    ring = Experiment(workers=4, steps=200, evaluate_every=1000, cluster={"threads": 1, "device": "cpu"})
    dies = ring.replace(deaths={"on_death": "shrink", "die": {2: 0.5}})
    return {"nobody dies": ring, "rank 2 dies, the others go on": dies}


def killed() -> Experiment:
    """Run the four ranks with a snapshot every 50 steps. Rank 2 dies in step 130, and the job ends."""
    return one_dies()["nobody dies"].replace(snapshot={"every": 50}, deaths={"die": {2: 0.65}})


def to_kill() -> Experiment:
    """Run the four ranks, with a snapshot every 50 steps, slowly enough for a student to kill one."""
    slow = {"kind": "constant", "delay_ms": 30.0}
    return killed().replace(steps=300, evaluate_every=25, delays=slow, deaths={"die": {}})


def _resumed() -> list[Run]:
    """Let the job die and resume it. Compare with a run that does not die."""
    job = launch(killed())
    with suppress(JobFailed):
        job.wait()
    return [launch(killed().replace(deaths={"die": {}})).wait(), resume(job.run).wait()]


def _to_the_last_bit(runs: list[Run]) -> Shown:
    again, off = runs[1].attempts["lost"].sum(), apart(*runs)
    return again > 0 and off == 0, f"{again} steps were done twice; losses are equal to the last bit"


def snapshots() -> dict[str, FailingJob]:
    """Return Llama 3's job with snapshots of 30 s, with free snapshots, and without failures."""
    free, alive = replace(LLAMA, snapshot=1e-3), replace(LLAMA, mtbf=1e4 * LLAMA.mtbf)
    return {"as it is": LLAMA, "snapshots cost nothing": free, "nothing dies": alive}


def _at_three_intervals() -> dict[str, FailingJob]:
    """Run each job with a snapshot after every step, at the best interval, and at 20 times that interval."""
    jobs = snapshots().items()
    return {f"{name}, {n}": replace(job, every=n) for name, job in jobs for n in (1, BEST, 20 * BEST)}


def twice_the_gpus() -> dict[str, FailingJob]:
    """Return jobs with the same work on more and more GPUs, at the best interval.

    Failure rates grow or stay constant.
    """
    jobs = {}
    for times in (1, 2, 4, 8):
        for name, nodes in (("", times * MACHINES), (", failures as before", MACHINES)):
            mtbf, step = mtbf_of(nodes, 6.50), LLAMA.step / times
            every = max(1, round(best_interval(LLAMA.snapshot, mtbf) / step))
            jobs[f"{16_384 * times:,} GPUs{name}"] = replace(LLAMA, computing=step, mtbf=mtbf, every=every)
    return jobs


def policies() -> dict[str, FailingJob]:
    """Return Llama 3's job with 128 replicas. After a death the job ends, shrinks, or continues with a spare."""
    ends = replace(LLAMA, every=BEST, replicas=128, joining=5.0)
    spare = replace(ends, on_death="spare", spares=1)
    return {"end": ends, "shrink": replace(ends, on_death="shrink"), "spare": spare}


def torchft() -> FailingJob:
    """Return torchft's job: 30 replicas with fixed batches and steps of 10.9 s.

    One replica is killed every 60 s.
    """
    others = {"on_death": "shrink", "replicas": 30, "restarting": 20.0, "scaling": "weak"}
    return FailingJob(10.9, mtbf=60.0, regular=True, **others)


def _as_published(job: FailingJob) -> Shown:
    share = job.run(5_000).committed
    return abs(share - 0.823) < 0.02, f"{share:.1%} of the steps count; published: 82.3 %"


TABLE = (
    Row(killed, '"A resumed run is another run"', _to_the_last_bit, _resumed),
    Row(to_kill, "A student has time to kill a rank",
        measured(lambda run: run.curve["seconds"].iloc[-1], lambda seconds: seconds > 8, "a run takes {:.0f} s")),
    Row(one_dies, "The surviving ranks add up the same batch", same_losses(1e-3)),
    Row(policies, '"A dead rank means a dead job"',
        _goodput(lambda end, shrink, spare: end + 0.03 < shrink < spare,
                 "counts: end {:.1%}, shrink {:.1%}, spare {:.1%}")),
    Row(torchft, "Four of five steps count if a replica dies every minute", _as_published),
    Row(snapshots, '"Snapshot as often as you can"',
        _goodput(lambda a, b, c, d, e, f, g, h, i: a < b > c and d > e > f and g < h < i,
                 "counts after every step {:.0%}, at the best interval {:.0%}, 20 times as rarely {:.0%}"),
        _at_three_intervals),
    Row(twice_the_gpus, '"Twice the GPUs, half the time"',
        _goodput(lambda *found: found[4] > 1.2 * found[6] and found[7] > 0.97 * found[5],
                 "counts with 16,384 GPUs {0:.0%}, 65,536 {4:.0%}, 131,072 {6:.0%}; failures as before {7:.0%}")),
)  # fmt: skip
