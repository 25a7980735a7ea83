"""Several experiments: how they are run, and what more workers gain."""

import pytest

from dlpar import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.lab import sweep
from dlpar.systems import record
from dlpar.theory.scaling import crossings, gains
from lab.fake_job import FakeJob, fake_jobs

# ---- running ----------------------------------------------------------------------


@pytest.fixture
def jobs(monkeypatch):
    return fake_jobs(monkeypatch)


SIMULATED = Experiment(steps=2, cluster="simulated")


def test_simulations_run_side_by_side_and_real_ranks_alone(jobs):
    real = Experiment(steps=2)
    outcomes = sweep.run_all([real, SIMULATED, SIMULATED, SIMULATED, real, SIMULATED], jobs=2)
    assert [outcome.status for outcome in outcomes] == ["done"] * 6
    assert max(map(len, jobs.together)) == 2
    assert all(len(worlds) == 1 or set(worlds) == {"simulated"} for worlds in jobs.together)
    assert [outcome.experiment.cluster.world for outcome in outcomes] == [
        "real",
        "simulated",
        "simulated",
        "simulated",
        "real",
        "simulated",
    ]


def test_one_that_fails_does_not_keep_the_others_from_running(jobs):
    told = []
    outcomes = sweep.run_all([SIMULATED.replace(seed=seed) for seed in (0, 1, 0)], jobs=1, told=told.append)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert outcomes[1].reason == "seed 1 fails" and told == outcomes


def test_a_launch_that_is_refused_is_a_failure_of_that_one(jobs, monkeypatch):
    def launch(experiment):
        if experiment.seed:
            raise BadExperiment("cluster.device: got 'cuda', allowed here is auto or cpu")
        return FakeJob(experiment)

    monkeypatch.setattr(sweep, "launch", launch)
    outcomes = sweep.run_all([SIMULATED.replace(seed=seed) for seed in (1, 0)])
    assert [outcome.status for outcome in outcomes] == ["failed", "done"] and "cuda" in outcomes[0].reason


def test_stopping_ends_what_is_at_work_and_starts_no_other(jobs):
    done = []
    outcomes = sweep.run_all([SIMULATED] * 5, jobs=2, told=done.append, stop=lambda: len(done) >= 2)
    assert [outcome.status for outcome in outcomes].count("done") == 2
    assert outcomes[-1].status == "not run" and jobs.at_work == []


def test_an_interrupt_ends_what_is_at_work(jobs):
    def interrupt(outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run_all([SIMULATED] * 3, jobs=2, told=interrupt)
    assert jobs.at_work == []


def test_the_time_of_a_step_counts_only_the_samples_that_map_reduce_keeps():
    kept = Experiment(workers=4, steps=40, batch=512, cluster="simulated").replace(
        sync={"scheme": "mapreduce", "fraction": 0.5}
    )
    (outcome,) = sweep.all_done([kept])
    measured = outcome.run.curve["seconds"].iloc[-1] / 40
    assert outcome.step_s == pytest.approx(measured, rel=0.1)
    assert record.rate(outcome.run) == pytest.approx(0.5 * 512 / measured, rel=0.1)


# ---- what more workers gain -------------------------------------------------------


def test_speed_up_is_over_the_fastest_with_the_fewest_workers():
    ring, ps = Experiment(workers=1), Experiment(workers=1, sync="ps")
    found = gains([ring, ps, ring.replace(workers=4), ps.replace(workers=4)], [100.0, 50.0, 300.0, None])
    assert (
        found[0] == (1.0, 1.0, 1)
        and found[1] == (0.5, 0.5, 1)
        and found[2] == (3.0, 0.75, 1)
        and found[3] is None
    )


def test_experiments_that_differ_in_more_than_how_replicas_agree_have_bases_of_their_own():
    small, large = Experiment(workers=2), Experiment(workers=2, batch=1024)
    assert gains([small, large], [10.0, 1000.0]) == [(1.0, 1.0, 2), (1.0, 1.0, 2)]


def test_two_curves_cross_where_the_logarithm_of_their_ratio_is_zero():
    first, second = {1: 100.0, 2: 200.0, 8: 800.0}, {1: 400.0, 2: 400.0, 8: 400.0}
    assert crossings(first, second) == crossings(second, first) == pytest.approx([4.0])
    assert crossings(first, {n: rate / 2 for n, rate in first.items()}) == []
    assert crossings({1: 1.0, 2: 3.0}, {1: 1.0000001, 2: 2.0}) == [], "equal but for rounding is no crossing"
