"""Where the time of a run went: kinds that add up to its wall time, whatever died in it."""

import json
import math

import pytest

import dlpar
from dlpar import Experiment
from dlpar.jobs import goodput as goodput_of_runs
from dlpar.jobs.goodput import TimeSpent
from dlpar.jobs.tail import lines_of
from dlpar.worlds.simulated.failures import LOST, USEFUL, goodput


def step(number, t, compute=0.5, comm=0.2, wait=0.1, **more):
    return {"k": "step", "step": number, "t": t, "compute": compute, "comm": comm, "wait": wait, **more}


def spent(found: TimeSpent) -> tuple[float, dict[str, float]]:
    """Wall time and seconds by kind, which add up to it."""
    wall, seconds, _ = found.result()
    assert list(seconds) == [*USEFUL, *LOST] and math.isclose(sum(seconds.values()), wall, abs_tol=1e-9)
    return wall, {kind: round(value, 9) for kind, value in seconds.items() if round(value, 9)}


def test_gaps_of_a_step_are_computing_and_those_around_a_rank_are_waiting():
    found = TimeSpent()
    found.steps(0, [step(0, 1.0), step(1, 2.0)])
    found.steps(1, [step(0, 1.2), step(1, 2.2, snapshot=0.05)])
    wall, seconds = spent(found)
    assert wall == pytest.approx(2.0)
    # From 0.2 to 2.2: rank 0 waits 0.2 at the end, rank 1 begins 0.2 later.
    assert seconds == {"computing": 1.175, "communicating": 0.4, "waiting": 0.4, "snapshot": 0.025}
    assert goodput(found.result()[1]) == pytest.approx(1.975 / 2.0)


def test_an_exchange_behind_computing_counts_as_computing():
    found = TimeSpent()
    found.steps(0, [step(0, 1.0, 0.5, 0.3, 0.2), step(1, 1.6, 0.5, 0.3, 0.2)])
    wall, seconds = spent(found)
    assert wall == pytest.approx(1.6) and seconds == {
        "computing": 1.0,
        "communicating": 0.36,
        "waiting": 0.24,
    }


def test_steps_of_an_attempt_that_a_later_one_repeats_are_done_again():
    found = TimeSpent([(105.0, {0: 2, 1: 3})])
    for rank in (0, 1):  # they run free: each has its own first step in the next attempt
        found.header(rank, {"role": "worker"})
        found.event({"name": "start", "t": 0.0, "at": 100.0})
        found.steps(rank, [step(n, 1.0 + n, wait=0.3) for n in range(4)])
    for rank in (0, 1):
        found.header(rank, {"role": "worker", "attempt": 1})
        found.event({"name": "start", "t": 4.0, "at": 110.0})
        found.steps(rank, [step(2 + rank, 6.0, 0.5, 0.3, 0.2)])
    wall, seconds = spent(found)
    # Steps end at 104 s, the job at 105 s; the next attempt's first step begins at 111 s.
    assert wall == pytest.approx(4 + 7 + 1)
    lost = {"detecting": 1.0, "restarting": 6.0, "done again": 1.5}
    assert lost.items() <= seconds.items() and sum(seconds[kind] for kind in USEFUL) == pytest.approx(3.5)


def test_the_seat_of_a_dead_rank_is_lost_time_until_a_spare_takes_it():
    found = TimeSpent()
    for rank, role in enumerate(("worker", "worker", "spare")):
        found.header(rank, {"role": role})
    usual = {"compute": 0.6, "comm": 0.3, "wait": 0.1}
    found.steps(1, [step(0, 1.0, **usual)])
    lost = {"done again": 0.2, "detecting": 0.3, "restarting": 0.5}
    found.steps(0, [step(0, 1.0, **usual), step(1, 3.0, **usual, **lost)])
    found.event({"name": "death", "dead": 1, "step": 1, "t": 1.8})
    found.steps(2, [step(1, 3.0, **usual)])
    wall, seconds = spent(found)
    assert wall == 3.0
    assert seconds == {
        "computing": 1.2, "communicating": 0.6, "waiting": 0.2, "done again": 0.1, "detecting": 0.15,
        "restarting": 0.25 + 0.5,  # the survivor's, and the empty seat's
    }  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_the_seat_of_a_rank_that_died_before_its_first_step_is_lost_until_a_spare_takes_it(workers):
    found = TimeSpent()
    for rank, role in enumerate(["worker"] * workers + ["spare"]):
        found.header(rank, {"role": role})
    usual = {"compute": 0.6, "comm": 0.3, "wait": 0.1}
    if workers == 2:
        found.steps(0, [step(0, 1.0, **usual), step(1, 3.0, **usual, restarting=1.0)])
    found.event({"name": "death", "dead": workers - 1, "step": 1, "t": 1.8})
    found.steps(workers, [step(1, 3.0, **usual)])
    wall, seconds = spent(found)
    # Of two seats one is empty for two of three seconds; a single seat's time begins with the spare's step.
    assert wall == (3.0 if workers == 2 else 1.0) and min(seconds.values()) > 0
    assert seconds.get("restarting", 0.0) == (1.5 if workers == 2 else 0.0)


def test_of_a_rank_s_own_file_only_the_first_step_is_read(monkeypatch, tmp_path):
    for name in ("rank-0.0.jsonl", "rank-0.jsonl"):
        lines = [{"k": "rank", "rank": 0}, *(step(number, 1.0 + number) for number in range(3, 50))]
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    both = [{"k": "step", "rank": rank, "step": number} for number in (5, 6) for rank in (0, 1)]
    (tmp_path / "rank-all.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in both))
    seen = []

    def counted(path):
        for line in lines_of(path):
            seen.append(path.name)
            yield line

    monkeypatch.setattr(goodput_of_runs, "lines_of", counted)
    ((end, again),) = goodput_of_runs.ended_in(tmp_path)
    assert math.isnan(end) and again == {0: 3, 1: 5}
    assert seen.count("rank-0.jsonl") == 2 and seen.count("rank-all.jsonl") == 4


def test_nothing_was_spent_without_a_step():
    wall, seconds, _ = TimeSpent().result()
    assert wall == 0 and not any(seconds.values()) and goodput(seconds) is None


def told(run: dlpar.Run) -> dict[str, float]:
    """Seconds by kind of a real run, which add up to its wall time and give its goodput."""
    summary = run.summary
    seconds, wall = summary["time_spent"], summary["wall_s"]
    assert math.isclose(sum(seconds.values()), wall, rel_tol=0, abs_tol=1e-9) and min(seconds.values()) >= 0
    lost = sum(seconds[kind] for kind in LOST) / wall
    assert math.isclose(summary["goodput"], 1 - lost, rel_tol=0, abs_tol=1e-9)
    return seconds


def test_a_run_that_nothing_interrupts_loses_its_snapshots_only():
    run = dlpar.launch(dlpar.Experiment(workers=2, steps=30, batch=60, snapshot={"every": 10})).wait(60)
    seconds = told(run)
    steps = run.steps
    first = (steps["t"] - steps["compute"] - steps["comm"] - steps["wait"]).min()
    assert run.summary["wall_s"] == pytest.approx(steps["t"].max() - first, abs=1e-9)
    assert (
        seconds["snapshot"] > 0 and max(seconds[k] for k in ("detecting", "restarting", "done again")) < 1e-9
    )


@pytest.mark.slow
def test_a_resumed_run_lost_the_steps_it_did_again_and_the_time_between():
    experiment = dlpar.Experiment(
        workers=2, steps=40, batch=60, snapshot={"every": 10}, deaths={"die": {1: 0.65}}
    )
    job = dlpar.launch(experiment)
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(60)
    before, wall = told(job.run), job.run.summary["wall_s"]
    assert before["done again"] == 0
    resumed = dlpar.resume(job.run)
    run = resumed.wait(60)
    seconds = told(run)
    assert seconds["done again"] > 0 and seconds["detecting"] > 0
    assert 0 < seconds["restarting"] < run.summary["wall_s"] - wall
    repeated = run.attempts["lost"].sum() / 26  # of the first attempt's time, about
    assert 0.2 * repeated * wall < seconds["done again"] < 5 * repeated * wall


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["shrink", "spare"])
def test_paced_and_simulated_ranks_lose_the_same_time(on_death):
    experiment = dlpar.Experiment(
        workers=4, steps=20, batch=60, deaths={"on_death": on_death, "die": {2: 0.5}}
    )
    paced, simulated = (
        told(dlpar.launch(experiment.replace(cluster={"world": world})).wait(60))
        for world in ("paced", "simulated")
    )
    assert paced == pytest.approx(simulated, abs=1e-9) and simulated["detecting"] > 0.05


@pytest.mark.slow
def test_survivors_lose_the_interrupted_step_and_the_empty_seat():
    experiment = dlpar.Experiment(
        workers=3,
        steps=40,
        batch=60,
        deaths={"on_death": "shrink", "die": {1: 0.5}},
        delays={"kind": "constant"},
    )
    run = dlpar.launch(experiment).wait(60)
    seconds, wall = told(run), run.summary["wall_s"]
    died = run.steps.query("rank == 1")["t"].max()
    assert seconds["done again"] > 0 and seconds["detecting"] > 0
    # A third of the time after the death is the empty seat's, and the survivors' new start comes on top.
    assert seconds["restarting"] > 0.9 * (run.steps["t"].max() - died) / 3
    assert seconds["restarting"] < wall / 2


def test_the_time_between_two_attempts_is_not_added_to_a_logical_clock():
    fields = dict(workers=2, steps=40, snapshot={"every": 10}, deaths={"die": {1: 0.5}}, evaluate_every=1000)
    job = dlpar.launch(Experiment(**fields, cluster={"world": "paced"}))
    with pytest.raises(dlpar.JobFailed, match="^rank 1 was killed by SIGKILL on request"):
        job.wait(60)
    summary = dlpar.resume(job.run).wait(60).summary
    assert summary["clock"] == "logical" and summary["wall_s"] < 0.1  # starting again takes longer
    assert summary["time_spent"]["restarting"] < 0.1
