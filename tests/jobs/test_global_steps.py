"""Global steps from worker-steps: of all workers, or any N of workers that run free."""

from __future__ import annotations

import math

import pytest

from dlpar.jobs.global_steps import GlobalSteps, kept


def step(number, loss=1.0, t=None, samples=64, **more):
    ended = number + 1.0 if t is None else t
    return {"step": number, "t": ended, "loss": loss, "samples": samples, "bytes": 1000, **more}


def test_global_step_weighs_ranks_by_their_samples():
    steps = GlobalSteps(2)
    steps.add(0, step(0, loss=1.0, samples=1, t=1.0))
    assert steps.ready() == []
    steps.add(1, step(0, loss=4.0, samples=3, t=2.0))
    (done,) = steps.ready()
    assert (done.loss, done.seconds, done.samples, done.batch) == (3.25, 2.0, 4, 4)


def test_the_sketches_of_a_step_are_those_of_the_workers_that_took_part():
    steps = GlobalSteps(3)
    for rank in range(3):
        steps.add(rank, {**step(0), "sketch": [float(rank)]})
    for rank in (0, 2):  # the other has died
        steps.add(rank, {**step(1), "sketch": [5.0], "of": 2})
    assert [done.sketches for done in steps.ready(ended=True)] == [
        {0: [0.0], 1: [1.0], 2: [2.0]}, {0: [5.0], 2: [5.0]},
    ]  # fmt: skip


def test_free_running_workers_make_a_global_step_of_any_n_in_the_order_they_ended():
    steps = GlobalSteps(2, runs_free=True)
    for n in range(4):
        steps.add(0, step(n, loss=1.0, t=n + 1.0))
    found = steps.ready(late=math.inf)
    for n in range(2):
        steps.add(1, step(n, loss=3.0, t=n + 1.5))
    found += steps.ready(ended=True)
    assert [(s.step, s.seconds, s.loss, s.samples) for s in found] == [
        (0, 1.5, 2.0, 128),
        (1, 2.5, 2.0, 256),
        (2, 4.0, 1.0, 384),
    ]


def test_a_worker_that_stalls_does_not_hold_up_the_figure():
    steps = GlobalSteps(2, runs_free=True)
    steps.add(1, step(0, t=0.1))
    for n in range(20):
        steps.add(0, step(n, t=0.1 * n + 0.15))
    assert not steps.ready(late=math.inf)
    assert len(steps.ready()) == 8


def test_a_step_that_sampled_nothing_keeps_the_last_loss():
    steps = GlobalSteps(1)
    steps.add(0, step(0, loss=2.0))
    steps.add(0, step(1, loss=math.nan, samples=0))
    _, empty = steps.ready()
    assert (empty.loss, empty.batch, steps.done) == (2.0, 0, 2)


def test_records_of_thousands_that_run_free_are_put_in_order():
    steps, done = GlobalSteps(3000, runs_free=True), []
    for number in range(3):
        for rank in range(3000):
            record = {"step": number, "t": number + rank / 3000, "samples": 1, "loss": 1.0, "bytes": 0}
            steps.add(rank, record)
        done += steps.ready()
    done += steps.ready(ended=True)
    assert [step.batch for step in done] == [3000] * 3
    assert [step.seconds for step in done] == sorted(step.seconds for step in done)


def test_the_order_of_reading_changes_nothing():
    records = [(rank, step(n, loss=rank + 0.1 * n, t=n + 0.3 * rank)) for rank in range(3) for n in range(5)]
    for runs_free in (False, True):
        found = []
        for order in (records, records[::-1], sorted(records, key=lambda r: r[1]["t"])):
            steps = GlobalSteps(3, runs_free)
            for rank, record in order:
                steps.add(rank, record)
            found.append(steps.ready(ended=True))
        assert found[0] == found[1] == found[2] and [done.step for done in found[0]] == list(range(5))


def test_free_workers_that_end_at_one_time_are_in_the_order_of_their_ranks():
    losses = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        steps = GlobalSteps(2, runs_free=True)
        for rank in order:
            steps.add(rank, step(0, loss=float(rank), t=1.0))
        steps.add(0, step(1, loss=5.0, t=2.0))
        losses.append([done.loss for done in steps.ready(ended=True)])
    assert losses == [[0.5, 3.5]] * 3


@pytest.mark.parametrize("done_before_the_death", range(9))
def test_a_death_neither_adds_a_global_step_of_free_workers_nor_loses_one(done_before_the_death):
    steps, asked = GlobalSteps(4, runs_free=True), 10
    left = 3 * (asked - done_before_the_death // 4)
    parts = [4] * done_before_the_death + [3] * left
    for time, of in enumerate(parts):
        steps.add(time % 3, step(time, t=float(time), of=of))
        steps.ready()
    steps.ready(ended=True)
    assert steps.done == asked and steps.samples == 64 * len(parts)


def test_workers_that_hear_of_a_death_late_lose_no_global_step():
    steps = GlobalSteps(4, runs_free=True)
    parts = [4] * 20 + [3, 4, 3, 4, 4] * 8 + [3] * 30  # some record the old number for a while
    for time, of in enumerate(parts):
        steps.add(time % 3, step(time, t=float(time), of=of))
        steps.ready()
    steps.ready(ended=True)
    assert abs(steps.done - sum(1 / of for of in parts)) <= 1


def test_steps_that_an_attempt_lost_are_done_again_by_the_next_and_count_once():
    steps = GlobalSteps(1)
    for attempt, first, last in ((0, 0, 5), (1, 3, 4), (2, 2, 6)):  # read all at once, as of a run of today
        steps.resume({"attempt": attempt, "resumed": first})
        for n in range(first, last):
            steps.add(0, step(n, loss=10.0 * attempt + n, t=attempt * 10.0 + n))
    found = steps.ready(ended=True)
    assert [(s.attempt, s.step) for s in found] == [
        *((0, n) for n in range(5)), (1, 3), *((2, n) for n in range(2, 6)),
    ]  # fmt: skip
    assert [(s.step, s.loss) for s in kept(found)] == [(0, 0), (1, 1), (2, 22), (3, 23), (4, 24), (5, 25)]
    assert (steps.done, steps.samples, steps.bytes) == (6, 6 * 64, 6000)


def test_a_step_without_the_part_of_a_rank_that_died_is_whole_once_the_others_have_gone_on():
    steps = GlobalSteps(3)
    for rank in (0, 1):
        steps.add(rank, step(0, loss=float(rank)))
    assert steps.ready() == []
    for rank in (0, 1):
        steps.add(rank, {**step(1), "of": 2})
    assert [(s.step, s.loss, s.batch) for s in steps.ready()] == [(0, 0.5, 128), (1, 1.0, 128)]


def test_a_file_that_is_read_in_parts_does_not_make_its_rank_late():
    """As a panel reads a long run of free workers: equal parts of each file, and figures in between."""
    quick, slow = [0.1 * n for n in range(1, 401)], [0.8 * n for n in range(1, 51)]
    steps, found = GlobalSteps(2, runs_free=True), []
    for part in range(8):
        for rank, ends, each in ((0, quick, 50), (1, slow, 25)):
            for n, t in list(enumerate(ends))[each * part : each * (part + 1)]:
                steps.add(rank, step(n, t=t))
        found += steps.ready()
    found += steps.ready(ended=True)
    assert [done.seconds for done in found] == sorted([*quick, *slow])[1::2]


def test_an_empty_batch_after_a_resume_has_the_loss_before_it_and_not_a_lost_one():
    steps = GlobalSteps(1)
    for number in range(3):
        steps.add(0, step(number, loss=3.0 - number))
    steps.resume({"attempt": 1, "resumed": 2})
    steps.add(0, step(2, loss=None, samples=0))
    assert [done.loss for done in kept(steps.ready(ended=True))] == [3.0, 2.0, 2.0]
