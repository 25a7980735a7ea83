"""Training that dies, by events: against published runs, the exact form, and the same rules step by step."""

from __future__ import annotations

import math
import random
import time
from itertools import count

import pytest

from dlpar.theory import best_interval, goodput, mtbf_of
from dlpar.worlds.simulated import failures
from dlpar.worlds.simulated.failures import LOST, USEFUL, FailingJob, poisson

M = 3.09 * 3600
STEP = 5.0


def adds_up(survived) -> bool:
    """The kinds of time add up to the wall, and none is negative."""
    seconds = survived.seconds
    assert set(seconds) == {*USEFUL, *LOST} and min(seconds.values()) >= 0
    return sum(seconds.values()) == pytest.approx(survived.wall, rel=1e-9)


@pytest.mark.parametrize(
    "recovery, published", [(120, (94.8, 91.8, 89.0)), (300, (93.3, 90.4, 87.6)), (600, (90.8, 88.0, 85.3))]
)
def test_goodput_at_the_best_interval_is_within_half_a_point_of_the_published_table(recovery, published):
    for cost, said in zip((10, 30, 60), published):
        every = round(best_interval(cost, M) / STEP)
        job = FailingJob(STEP, mtbf=M, every=every, snapshot=cost, detecting=20, restarting=recovery - 20)
        survived = job.run(most=10_000, seed=1)
        assert 100 * survived.goodput == pytest.approx(said, abs=0.5) and adds_up(survived)
        assert survived.goodput == pytest.approx(goodput(every * STEP, cost, M, recovery), abs=0.003)


def test_torchft_commits_four_of_five_steps():
    """Its script kills a replica every 60 s; a step with a failed all-reduce ends, and is discarded by all.

    Sources: torchft, examples/slurm/punisher.py and torchft/manager.py (``should_commit``), for the rule; PyTorch's
    blog, Fault Tolerant Llama (2025), for 30 replicas, steps of 10.9 s, 82.3 % of steps and 29.6 replicas a step.
    The 20 s of a restart are fitted to those 29.6; the share of steps does not depend on them.
    """
    job = FailingJob(
        10.9, mtbf=60, regular=True, on_death="shrink", replicas=30, restarting=20, scaling="weak"
    )
    survived = job.run(5_000)
    assert 100 * survived.committed == pytest.approx(82.3, abs=2) and adds_up(survived)
    assert survived.goodput == pytest.approx(0.823 * 29.6 / 30, abs=0.02)
    other = FailingJob(10.9, on_death="shrink", replicas=30, restarting=5, scaling="weak")
    assert other.run(deaths=(60 * n for n in count(1)), steps=5_000).committed == pytest.approx(
        survived.committed, abs=0.001
    )
    assert 100 * job.run(deaths=poisson(60), steps=20_000).committed == pytest.approx(
        100 * math.exp(-10.9 / 60), abs=1
    )


def step_by_step(job: FailingJob, deaths: list[float], steps: int) -> tuple[float, int]:
    """Wall and lost time of a job that ends with each death, second by second as it goes."""
    wall = saved_at = lost = 0.0
    done = saved = 0
    deaths = [*deaths, math.inf]
    while done < steps:
        end = wall + job.computing
        snapshot = done + 1 < steps and (done + 1) % job.every == 0
        end += job.snapshot * snapshot
        if deaths[0] >= end:
            wall, done = end, done + 1
            if snapshot:
                saved, saved_at = done, wall
            continue
        if deaths[0] < wall:  # while it recovers
            wall = deaths.pop(0)
        else:
            lost += deaths[0] - saved_at
            wall = deaths.pop(0)
        while deaths[0] < wall + job.detecting + job.restarting:
            wall = deaths.pop(0)
        wall += job.detecting + job.restarting
        done, saved_at = saved, wall
    return wall, lost


@pytest.mark.parametrize("seed", range(5))
def test_a_job_that_ends_with_a_death_lives_as_if_step_by_step(seed):
    draw = random.Random(seed)
    job = FailingJob(
        2.0, every=draw.randint(1, 20), snapshot=draw.choice([0.0, 1.5]), detecting=1, restarting=9
    )
    deaths = sorted(draw.uniform(0, 4000) for _ in range(40))
    survived = job.run(700, deaths=deaths)
    wall, _ = step_by_step(job, deaths, 700)
    assert survived.wall == pytest.approx(wall, abs=1e-6) and survived.steps == 700 and adds_up(survived)
    assert sum(survived.seconds[kind] for kind in USEFUL) == pytest.approx(1400)


@pytest.mark.parametrize("on_death, spares", [("end", 0), ("shrink", 0), ("spare", 1), ("spare", 3)])
@pytest.mark.parametrize("seed", range(5))
def test_all_time_has_a_kind_whatever_happens(on_death, spares, seed):
    draw = random.Random(seed)
    job = FailingJob(
        *(draw.uniform(0, 3) for _ in range(3)), every=draw.choice([0, 1, 7, 100]), snapshot=draw.uniform(0, 9),
        detecting=draw.uniform(0, 5), restarting=draw.uniform(0, 300), joining=draw.uniform(0, 9), on_death=on_death,
        replicas=draw.choice([1, 2, 30]), spares=spares, scaling=draw.choice(["strong", "weak"]),
    )  # fmt: skip
    survived = job.run(200, 500, deaths=poisson(400, seed))
    assert adds_up(survived) and (survived.steps == 200 or len(survived.deaths) >= 500)
    assert survived.deaths == sorted(survived.deaths) and 0 <= survived.goodput <= 1


def test_without_deaths_a_job_takes_its_steps_and_its_snapshots():
    survived = FailingJob(2, 0.5, 0.25, every=10, snapshot=3).run(100)
    assert survived.wall == 100 * 2.75 + 9 * 3 and survived.committed == 1
    assert survived.goodput == 275 / survived.wall


def test_those_that_are_left_share_the_batch_or_keep_their_own():
    jobs = [
        FailingJob(4.0, 1.0, on_death="shrink", replicas=4, restarting=1e9, scaling=s)
        for s in ("strong", "weak")
    ]
    strong, weak = (job.run(10, deaths=[11.0]) for job in jobs)
    again = 5.0  # the step in which one died
    assert strong.wall == pytest.approx(2 * 5 + again + 8 * (4 * 4 / 3 + 1))
    assert weak.wall == pytest.approx(11 * 5.0) and strong.again == weak.again == 1
    assert weak.seconds["restarting"] == pytest.approx(9 * 5 / 4, abs=1.3)


def test_a_spare_takes_over_until_none_is_left():
    job = FailingJob(4.0, on_death="spare", replicas=4, spares=1, restarting=1e9, joining=2)
    one, two = (job.run(20, deaths=deaths) for deaths in ([9.0], [9.0, 30.0]))
    assert one.wall == 20 * 4 + 4 + 2  # the step again, and weights to copy
    assert two.wall > one.wall + 4 and two.seconds["computing"] == one.seconds["computing"] == 80


def test_a_job_whose_replicas_all_die_begins_again_from_its_snapshot():
    job = FailingJob(1.0, on_death="shrink", replicas=2, every=10, restarting=50)
    survived = job.run(40, deaths=[25.5, 25.6])
    assert survived.again == 5 + 1 and survived.steps == 40 and adds_up(survived)


def test_a_policy_hears_of_time_and_deaths():
    heard = []

    def policy(now, deaths):
        heard.append((now, len(deaths)))
        return 5 if not deaths else 2

    survived = FailingJob(1.0, every=policy, restarting=10).run(20, deaths=[12.5])
    assert heard[:4] == [(0, 0), (5, 0), (10, 0), (22.5, 1)] and survived.again == 3


def test_16384_gpus_over_twenty_intervals_take_seconds():
    began, mtbf = time.monotonic(), mtbf_of(16_384 / 8, 6.50)
    for n in range(20):
        job = FailingJob(STEP, mtbf=mtbf, every=int(1.5**n) + 1, snapshot=30, restarting=300)
        ours = job.run(most=1000).goodput
        assert ours == pytest.approx(goodput(job.every * STEP, 30, mtbf, 300), abs=0.03)
    assert time.monotonic() - began < 20


def test_a_job_without_a_step_has_no_goodput():
    life = FailingJob(1.0).run(0)
    assert (life.committed, life.goodput) == (0, None)


@pytest.mark.parametrize(
    "job",
    [
        FailingJob(10.9, mtbf=10.0, regular=True, on_death="shrink", replicas=30, restarting=5),
        FailingJob(5.9, mtbf=10.0, every=1, restarting=300.0),
    ],
    ids=["a death in each step", "many in each restart"],
)
def test_a_job_that_gets_no_further_ends_after_many_deaths(job, monkeypatch):
    assert 10 <= len(job.run(steps=100, most=10).deaths) < 13  # some die together
    monkeypatch.setattr(failures, "MANY", 50)
    survived = job.run(steps=100)
    assert survived.steps < 5 and 50 <= len(survived.deaths) < 53
    assert sum(survived.seconds.values()) == pytest.approx(survived.wall)
