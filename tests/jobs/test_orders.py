"""What somebody asks of a running rank: to die, to stop for a while, or to compute more slowly."""

import os
import signal
import time

import pytest
from conftest import eventually

import dlpar
from dlpar.jobs.diagnosis import pids_of
from dlpar.jobs.processes import state_of


def begun(world, steps=4000, **changes):
    """A job of three ranks whose steps take 10 ms, some steps after its start."""
    usual = {"workers": 3, "steps": steps, "batch": 60, "evaluate_every": 0}
    slow = {"kind": "constant", "delay_ms": 10.0} | changes.pop("delays", {})
    job = dlpar.launch(dlpar.Experiment(**usual, delays=slow, cluster={"world": world}, **changes))
    job.wait_steps(10)
    return job


def seconds_of_steps(run, rank):
    return run.steps.query(f"rank == {rank}")["t"].diff().dropna()


def computing_since(job, order):
    """Return the steps that began after a rank had taken this order, at least eight of each rank."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        taken = job.run.events.query("name == 'ordered'")["t"]
        if len(taken) >= order:
            steps = job.run.steps.query(f"t > {taken.iloc[order - 1] + 0.1}")
            if (steps["rank"].value_counts().reindex(range(3), fill_value=0) >= 8).all():
                return steps
        time.sleep(0.05)
    raise AssertionError(f"the steps after order {order} were not recorded within 30 s")


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "paced", "simulated"])
def test_a_rank_that_is_slowed_computes_longer_until_it_is_not(world):
    job = begun(world)
    computing = []
    for number, factor in enumerate((5.0, 1.0), 1):
        job.slow(1, factor)
        computing.append(computing_since(job, number).groupby("rank")["compute"].median())
    job.stop()
    assert job.run.events.query("name == 'ordered'")["factor"].tolist() == [5.0, 1.0]
    during, after = computing
    slowed, restored = during[1] / during[0], after[1] / after[0]
    if world == "real":
        assert 2.2 < slowed < 6 and 0.5 < restored < 2  # other programs use the cores, too
    else:
        assert slowed == pytest.approx(5, rel=1e-3) and restored == pytest.approx(1, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["paced", "simulated"])
def test_a_rank_on_its_own_clock_stalls_for_some_seconds_of_it(world):
    job = begun(world, delays={"stall": {2: 40.0}})  # halfway, which the job does not reach
    job.pause(2, 1.5)
    job.wait_steps(job.run.summary["steps"] + 15)
    job.stop()
    taken = seconds_of_steps(job.run, 2)
    assert taken.max() == pytest.approx(1.51, abs=1e-3) and (taken > 1).sum() == 1


def test_a_real_rank_stops_for_a_while_and_the_job_goes_on():
    job = begun("real")
    pid = next(pid for pid, rank in pids_of(job.folder).items() if rank == 1)
    job.pause(1, 1.0)
    deadline = time.monotonic() + 5
    while state_of(pid)[0] != "T" and time.monotonic() < deadline:
        time.sleep(0.005)
    assert state_of(pid)[0] == "T"
    job.wait_steps(job.run.summary["steps"] + 30)
    assert state_of(pid)[0] != "T" and job.run.status == "running"
    job.stop()
    assert 0.9 < seconds_of_steps(job.run, 0).max() < 3


def test_a_pause_within_another_does_not_cut_it_short():
    job = begun("real")
    pid = next(pid for pid, rank in pids_of(job.folder).items() if rank == 1)
    began = time.monotonic()
    job.pause(1, 2.0)
    job.pause(1, 0.2)
    eventually(lambda: state_of(pid)[0] == "T", 10, "rank 1 is stopped")
    eventually(lambda: state_of(pid)[0] != "T", 10, "rank 1 goes on")
    assert 1.9 < time.monotonic() - began < 4
    job.stop()


def test_many_orders_at_once_are_all_heard():
    job, heard = begun("real"), lambda: (job.folder / "job.jsonl").read_text().count('"order"')
    os.kill(job._guardian.pid, signal.SIGSTOP)
    for _ in range(300):  # more than the 4 kB of one write that a pipe keeps together
        job.pause(1, 0.001)
    os.kill(job._guardian.pid, signal.SIGCONT)
    eventually(lambda: heard() == 300, 20, "300 orders")
    assert job.run.status == "running"
    job.stop()


def test_a_job_with_a_stopped_rank_ends_at_once_and_leaves_nothing():
    job = begun("real")
    pid = next(pid for pid, rank in pids_of(job.folder).items() if rank == 0)
    job.pause(0, 20)
    eventually(lambda: state_of(pid)[0] == "T", 10, "rank 0 is stopped")
    began = time.monotonic()
    job.stop()
    assert time.monotonic() - began < 2 and job.alive == 0 and job.run.status == "stopped"


@pytest.mark.slow
@pytest.mark.timed
def test_others_go_on_when_a_rank_is_killed_and_the_slow_one_stays_slow():
    job = begun("real", steps=150, deaths={"on_death": "shrink"})
    job.slow(2, 3.0)
    job.wait_steps(30)
    job.kill(0)
    job.wait_steps(60)
    with pytest.raises(ValueError, match=r"rank: got 0, allowed is one of \[1, 2\]"):
        job.pause(0)
    run = job.wait(60)
    last = run.steps[run.steps["step"] > 100]
    computing = last.groupby("rank")["compute"].mean()
    assert set(computing.index) == {1, 2} and computing[2] > 2 * computing[1]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["paced", "simulated"])
def test_a_rank_that_is_killed_dies_after_its_step_in_other_worlds(world):
    job = begun(world)
    job.kill(1)
    with pytest.raises(dlpar.JobFailed, match="rank 1"):
        job.wait(30)


def test_a_job_that_ends_with_a_rank_killed_by_hand_says_so():
    job = begun("real")
    job.kill(1)
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(30)


def test_a_job_that_ends_with_a_rank_whose_death_was_planned_says_so():
    experiment = dlpar.Experiment(workers=2, steps=40, deaths={"die": {1: 0.5}})
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        dlpar.launch(experiment).wait(30)


def test_what_no_rank_can_do_is_refused_in_a_sentence():
    job = begun("real", sync={"scheme": "ps"})
    for order, said in (
        (lambda: job.kill(4), r"rank: got 4, allowed is one of \[0, 1, 2, 3\], alive now"),
        (lambda: job.slow(3), r"rank: got 3, allowed is one of \[0, 1, 2\]"),
        (lambda: job.slow(0, 0.5), "factor: got 0.5, allowed is 1 to 100"),
        (lambda: job.pause(0, 31), "seconds: got 31, allowed is above 0 and at most 30"),
    ):
        with pytest.raises(ValueError, match=said):
            order()
    job.stop()
    with pytest.raises(ValueError, match="rank: got 0, allowed is none: no rank is alive"):
        job.kill(0)
