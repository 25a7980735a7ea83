"""A rank dies and the others go on: with the same global batches, equal states, and nothing left behind."""

import os
import random
import re
import signal
import time
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import pytest

import dlpar
from dlpar import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs import recovery
from dlpar.jobs.diagnosis import pids_of
from dlpar.jobs.processes import parent_of
from dlpar.jobs.rank import simulate
from dlpar.jobs.record import Recorder
from dlpar.jobs.run import Run
from dlpar.jobs.snapshot import Attempt, Keeper, begin, newest, shard
from dlpar.jobs.tail import lines_of
from dlpar.sync.membership import CannotGoOn, Crew, reseated
from tests.jobs.test_guard import eventually, guardians

STEPS = 40
SOON = 5.0
"""Seconds from a death to the next step, on a machine that may be busy; a quiet one needs less than 1."""


def dying(die, on_death="shrink", **changes):
    usual = {
        "model": {"name": "mlp", "width": 16}, "workers": 4, "steps": STEPS, "batch": 60, "lr": 0.05,
        "dtype": "float64", "optimizer": "momentum", "evaluate_every": 0, "cluster": {"timeout": 20.0},
        "deaths": {"on_death": on_death, "die": die},
    }  # fmt: skip
    return dlpar.Experiment(**{**usual, **changes})


@cache
def losses_alone(optimizer, lr):
    """Losses of one process without a death."""
    return dlpar.launch(dying({}, "end", workers=1, optimizer=optimizer, lr=lr)).wait().curve["loss"]


def deaths(run):
    """Ranks that the survivors of a run say have died, with the workers that went on."""
    events = run.events
    found = events[events["name"] == "death"]
    return {(int(row.dead), int(row.workers)) for row in found.itertuples()}


PS = {"scheme": "ps"}

SYNCHRONOUS = {
    "ring": ({2: 0.5}, {}),
    "ring, the first": ({0: 0.5}, {}),
    "ring, overlap": ({1: 0.5}, {"sync": {"overlap": True, "bucket_mb": 0.002}}),
    "ring, twice": ({0: 0.3, 2: 0.6}, {}),
    "map-reduce": ({1: 0.5}, {"sync": "mapreduce", "optimizer": "adam", "lr": 0.003}),
    "map-reduce, the driver": ({0: 0.5}, {"sync": "mapreduce", "optimizer": "sgd"}),
    "ps": ({1: 0.5}, {"sync": PS}),
    "ps, two servers": ({0: 0.5}, {"sync": PS | {"servers": 2}}),
    "ps, a server": ({5: 0.5}, {"sync": PS | {"servers": 2, "replicas": 1}}),
    "ps, servers": ({4: 0.3, 6: 0.6}, {"sync": PS | {"servers": 3, "replicas": 1, "overlap": True}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["shrink", "spare"])
@pytest.mark.parametrize("die, changes", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_survivors_of_a_synchronous_run_learn_what_one_process_learns(die, changes, on_death):
    experiment = dying(die, on_death, **changes)
    run = dlpar.launch(experiment).wait(90)
    counted = deaths(run)
    left = 4 - max(0, sum(rank < 4 for rank in die) - (on_death == "spare"))
    assert {rank for rank, _ in counted} == set(die) and min(workers for _, workers in counted) == left
    assert run.curve["step"].tolist() == list(range(STEPS)) and run.summary["steps"] == STEPS
    assert (run.curve["samples"].diff().dropna() == 60).all()  # the same global batches, divided anew
    assert np.allclose(
        run.curve["loss"], losses_alone(experiment.optimizer, experiment.lr), rtol=0, atol=1e-9
    )
    assert run.reason == "all ranks finished" and run.status == "done"


CALM = {"optimizer": "sgd", "lr": 0.2}
"""Learns in any order of the workers. Momentum may diverge where a busy machine holds one up."""

FREE = {
    "asp": {**CALM, "sync": PS | {"consistency": "asp", "servers": 2}},
    "asp, chain": {**CALM, "sync": PS | {"consistency": "asp", "servers": 2, "replicas": 1}},
    "ssp": {**CALM, "sync": PS | {"consistency": "ssp", "staleness": 2}},
    "backup worker": {"sync": PS | {"backup": 1}},
    "gossip": {"sync": "gossip"},
    "D-PSGD": {"sync": {"scheme": "gossip", "order": "combine_then_adapt"}},
    "random peers": {"sync": {"scheme": "gossip", "exchange": "random"}},
    "push-sum": {"sync": {"scheme": "gossip", "exchange": "push_sum", "topology": "exp2"}},
    "AD-PSGD": {**CALM, "sync": {"scheme": "gossip", "exchange": "pairwise"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["shrink", "spare"])
@pytest.mark.parametrize("changes", FREE.values(), ids=FREE)
def test_other_schemes_go_on_with_all_steps(changes, on_death):
    # 80 steps: after 40 of workers that do not wait, the accuracy depends on their order.
    run = dlpar.launch(dying({1: 0.5}, on_death, steps=80, evaluate_every=20, **changes)).wait(90)
    counted = deaths(run)
    assert {rank for rank, _ in counted} == {1} and run.status == "done"
    # How many worker-steps the dead one had begun, nobody knows exactly.
    assert abs(run.summary["steps"] - 80) <= 1 and run.summary["accuracy"] > 0.3
    bound = run.summary["lead"]["bound"]
    assert bound is None or run.summary["lead"]["max"] <= bound


@pytest.mark.slow
def test_global_batches_stay_as_large_where_the_backup_workers_have_died():
    changes = {"sync": PS | {"backup": 1}, "scaling": "weak", "batch": 8, "cluster": {"world": "simulated"}}
    run = dlpar.launch(dying({1: 0.2, 2: 0.5}, **changes)).wait(60)
    assert (run.curve["samples"].diff().dropna() == 24).all() and min(n for _, n in deaths(run)) == 2


@pytest.mark.slow
def test_softsync_asks_for_no_more_pushes_than_workers_are_left():
    sync = PS | {"consistency": "softsync", "softsync": 4}
    run = dlpar.launch(dying({1: 0.5}, sync=sync, cluster={"world": "simulated"})).wait(60)
    assert run.summary["steps"] == STEPS and deaths(run) == {(1, 3)}


@pytest.mark.slow
def test_push_sum_on_a_directed_ring_ends_with_its_reason():
    sync = {"scheme": "gossip", "exchange": "push_sum"}
    job = dlpar.launch(dying({1: 0.5}, sync=sync, cluster={"world": "simulated"}))
    with pytest.raises(
        dlpar.JobFailed, match="without the dead rank, no path leads back over some edge"
    ) as told:
        job.wait(60)
    assert "Traceback" not in str(told.value)


@pytest.mark.slow
def test_a_simulated_death_that_ends_the_job_is_told_in_a_sentence():
    with pytest.raises(dlpar.JobFailed, match="rank 1 died on request after 20 steps") as told:
        dlpar.launch(dying({1: 0.5}, "end", cluster={"world": "simulated"})).wait(60)
    assert "Traceback" not in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["shrink", "spare"])
@pytest.mark.parametrize("sync", [PS, PS | {"servers": 2, "replicas": 1}], ids=["ps", "chain"])
def test_a_death_before_the_last_step_leaves_the_weights_of_one_process(sync, on_death):
    """At the end servers answer early only where nothing can be undone."""
    short = {"workers": 2, "steps": 4, "cluster": {"world": "simulated"}, "evaluate_every": 4}
    run = dlpar.launch(dying({1: 0.75}, on_death, sync=sync, **short)).wait(60)
    alone = dlpar.launch(dying({}, "end", **short | {"workers": 1})).wait(60)
    assert run.summary["steps"] == 4 and run.curve["samples"].tolist() == [60, 120, 180, 240]
    assert run.evals["loss"].iloc[-1] == pytest.approx(alone.evals["loss"].iloc[-1], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4, 6])
def test_the_last_steps_of_survivors_that_gossip_are_counted(workers):
    short = {"workers": workers, "steps": 4, "cluster": {"world": "simulated"}, "sync": "gossip"}
    run = dlpar.launch(dying({0: 0.75}, **short)).wait(60)
    assert run.summary["steps"] == 4 == len(run.curve)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_spare_cannot_take_the_place_of_the_only_worker(share):
    """It has no weights but the first. With servers, these have them."""
    alone = {"workers": 1, "steps": 4, "cluster": {"world": "simulated"}}
    job = dlpar.launch(dying({0: share}, "spare", **alone))
    with pytest.raises(dlpar.JobFailed, match="the last worker died"):
        job.wait(60)
    assert dlpar.launch(dying({0: 0.5}, "spare", sync=PS, **alone)).wait(60).summary["steps"] == 4


PUSHING = {
    "ssp": {"consistency": "ssp"},
    "asp": {"consistency": "asp"},
    "every fourth step": {"push_every": 4},
    "Downpour": {"push_every": 4, "consistency": "asp"},
}


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "simulated"])
@pytest.mark.parametrize("sync", PUSHING.values(), ids=PUSHING)
def test_no_step_is_recorded_twice_or_lost_when_a_death_interrupts_pushes(sync, world):
    run = dlpar.launch(dying({2: 0.5}, sync=PS | sync, cluster={"world": world})).wait(90)
    steps = [(rank, record["step"]) for rank, record in run._of_kind("step")]
    assert deaths(run) == {(2, 3)} and len(set(steps)) == len(steps)
    own = {rank: sorted(step for each, step in steps if each == rank) for rank in range(4)}
    assert all(of == list(range(len(of))) for of in own.values())
    # What a worker of Downpour has not pushed is lost with it.
    assert run.summary["steps"] == STEPS or sync == PUSHING["Downpour"]
    # Pushes that the servers had counted before the death belong to steps of four workers.
    (done,) = set(run.events.query("name == 'death'")["step"])
    of_four = [record.get("of", 4) == 4 for _, record in run._of_kind("step")]
    assert sum(of_four) // 4 == done or "push_every" in sync


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["neighbours", "one_peer", "push_sum", "pairwise"])
def test_replicas_that_began_with_random_weights_go_on_with_their_trained_ones(exchange):
    sync = {"scheme": "gossip", "exchange": exchange, "start": "random"}
    sync |= {"topology": "exp2"} if exchange == "push_sum" else {}  # a directed ring would be cut
    changes = {"sync": sync, "optimizer": "sgd", "lr": 0.1, "cluster": {"world": "simulated"}}
    run = dlpar.launch(dying({3: 0.6}, steps=80, evaluate_every=80, **changes)).wait(60)
    before, after = (
        run.curve.query(which)["loss"].mean() for which in ("40 <= step < 48", "52 <= step < 60")
    )
    assert after < before and deaths(run) == {(3, 3)}
    assert run.summary["accuracy"] > 0.25  # the weights themselves, not only those of the losses


@pytest.mark.slow
def test_of_two_workers_that_gossip_one_goes_on_alone():
    run = dlpar.launch(dying({1: 0.5}, workers=2, sync="gossip", cluster={"world": "simulated"})).wait(60)
    assert run.summary["steps"] == STEPS and deaths(run) == {(1, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("on_death, sync", [("shrink", "ring"), ("spare", "ring"), ("shrink", "ps")])
def test_an_error_ends_a_job_that_survives_deaths_at_once(on_death, sync, tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(
        "from dlpar.jobs.record import Recorder\n"
        "step = Recorder.step\n"
        "def failing(record, number, **facts):\n"
        "    step(record, number, **facts)\n"
        "    assert record.comm.rank != 1 or number < 3, 'after step 3'\n"
        "Recorder.step = failing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DLPAR_PLUGINS", "failing")
    monkeypatch.setattr("dlpar.jobs.record.Recorder.step", Recorder.step)  # the plug-in changes it here, too
    job = dlpar.launch(dying({}, on_death, sync=sync, cluster={"timeout": 60.0}))
    with pytest.raises(dlpar.JobFailed, match="rank 1 raised AssertionError: after step 3"):
        job.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["paced", "simulated"])
def test_a_worker_may_die_after_its_last_push(world):
    run = dlpar.launch(dying({1: 1.0}, workers=2, steps=4, sync="ps", cluster={"world": world})).wait(60)
    assert run.status == "done" and run.summary["steps"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "die, on_death", [({0: 0.5, 1: 0.75}, "shrink"), ({0: 0.3, 2: 0.8, 1: 0.9}, "spare")]
)
def test_a_job_of_which_nobody_is_left_has_failed(die, on_death):
    job = dlpar.launch(dying(die, on_death, workers=2, steps=8, cluster={"world": "simulated"}))
    with pytest.raises(dlpar.JobFailed, match=r"^rank 1 died on request after \d steps$"):
        job.wait(60)
    assert job.run.status == "failed"


ON_PAPER = SYNCHRONOUS | {name: ({1: 0.5}, changes) for name, changes in FREE.items()}
TRIED = [
    "ring, overlap",
    "ring, twice",
    "map-reduce, the driver",
    "ps, a server",
    "asp, chain",
    "gossip",
    "AD-PSGD",
]


@pytest.mark.slow
@pytest.mark.parametrize("n, name", [*enumerate(TRIED)], ids=TRIED)
def test_paced_and_simulated_ranks_die_alike(n, name):
    die, changes = ON_PAPER[name]
    experiment = dying(die, ("shrink", "spare")[n % 2], **changes)
    runs = [
        dlpar.launch(experiment.replace(cluster={"world": world})).wait(90)
        for world in ("paced", "simulated")
    ]
    paced, simulated = (run.steps.sort_values(["rank", "t"]) for run in runs)
    assert np.allclose(paced["t"], simulated["t"], rtol=0, atol=1e-9)
    assert np.allclose(paced["loss"], simulated["loss"], rtol=0, atol=1e-9)
    for run in runs:
        assert {rank for rank, _ in deaths(run)} == set(die) and run.status == "done"
    if name in SYNCHRONOUS:
        # Until all were told, and until they continued; a step that all finished is recorded in between.
        seconds = runs[0].steps.groupby("rank")["t"].diff().max()
        assert 0.1 <= seconds < 0.22
        assert np.allclose(
            runs[0].curve["loss"], losses_alone(experiment.optimizer, experiment.lr), rtol=0, atol=1e-9
        )


@pytest.mark.slow
def test_nobody_misses_as_many_dead_workers_as_there_are_backups():
    fields = {"steps": 100, "delays": {"kind": "constant", "delay_ms": 5.0}, "sync": PS | {"backup": 1}}
    for die, steps in (({1: 0.4}, {100}), ({1: 0.3, 2: 0.6}, {60})):
        run = dlpar.launch(dying(die, **fields)).wait(60)
        events = run.events[run.events["name"] == "death"]
        assert {rank for rank, _ in deaths(run)} == set(die) and run.summary["steps"] == 100
        # With one death the survivors learn of it at the end; a second one stops the updates.
        assert all(min(abs(step - each) for each in steps) <= 3 for step in events["step"]), events["step"]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "simulated"])
@pytest.mark.parametrize("die", [{1: 0.5}, {1: 0.99}])
def test_a_death_hides_no_step_from_workers_that_have_skipped_some(world, die):
    fields = {"delays": {"kind": "exponential", "delay_ms": 20.0}, "sync": PS | {"backup": 1}, "seed": 2}
    run = dlpar.launch(dying(die, **fields, cluster={"world": world})).wait(60)
    assert any(record.get("dropped") for _, record in run.records())
    assert run.curve["step"].tolist() == list(range(STEPS)) and run.summary["steps"] == STEPS


KILLED = int(os.environ.get("DLPAR_DEATHS", "8"))
"""Random deaths by SIGKILL; 200 take some ten minutes: ``DLPAR_DEATHS=200 pytest -s … -k random``."""

CHAIN = PS | {"servers": 2, "replicas": 1}
CASES = [
    ("ring", "shrink", "worker"), ("ring", "spare", "worker"), ("ring", "spare", "spare"),
    ("mapreduce", "shrink", "worker"), ("mapreduce", "spare", "worker"),
    (CHAIN, "shrink", "server"), (CHAIN, "spare", "server"), (CHAIN, "shrink", "worker"), (CHAIN, "spare", "worker"),
    (CHAIN | {"consistency": "asp"}, "shrink", "server"), (PS | {"consistency": "asp"}, "spare", "worker"),
    ("gossip", "shrink", "worker"), ("gossip", "spare", "worker"), ("gossip", "spare", "spare"),
    ({"scheme": "gossip", "exchange": "pairwise"}, "shrink", "worker"),
]  # fmt: skip


def next_step_after(run, victim, is_missed):
    """Seconds of the wall until a survivor records a step; if the dead rank is missed, one after it was told."""
    since, before = time.monotonic(), len(run.steps)
    while time.monotonic() - since < 30:
        for path in run.path.glob("rank-*.jsonl") if is_missed else ():
            told = [r for r in lines_of(path) if r["k"] == "step" or r.get("name") == "death"]
            at = next((n for n, r in enumerate(told) if r.get("dead") == victim), len(told))
            if any(r["k"] == "step" for r in told[at + 1 :]):
                return time.monotonic() - since
        if not is_missed and len(run.steps) > before:
            return time.monotonic() - since
        time.sleep(0.005)
    return np.inf


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * KILLED)
def test_random_deaths_by_a_signal_stop_nobody_else():
    seed = int(os.environ.get("DLPAR_SEED", time.time_ns()))
    draw, seconds, wrong = random.Random(seed), {"shrink": [], "spare": []}, []
    fields = {"steps": 100, "delays": {"kind": "constant", "delay_ms": 5.0}, "optimizer": "sgd"}
    fields["evaluate_every"] = 50
    alone = dying({}, **fields, workers=1).replace(deaths={"on_death": "end"}, delays="none")
    expected = dlpar.launch(alone).wait(60).curve["loss"]
    for n in range(KILLED):
        sync, on_death, role = CASES[n % len(CASES) if KILLED >= len(CASES) else draw.randrange(len(CASES))]
        experiment = dying({}, on_death, sync=sync, **fields)
        e, what = experiment, f"death {n} of seed {seed}: {sync}, {on_death}, {role}"
        ranks = {"worker": range(4), "server": range(4, e.members), "spare": range(e.members, e.ranks)}
        job, victim = dlpar.launch(experiment), draw.choice(ranks[role])
        job.wait_steps(draw.randrange(10, 50))
        time.sleep(draw.random() * 0.02)
        pids = {rank: pid for pid, rank in pids_of(job.folder).items()}
        starter = next(
            p for p in map(psutil.Process, guardians(job.folder)) if p.name() in ("prterun", "mpiexec")
        )
        scratch = [Path(starter.environ()[name]) for name in ("TMPDIR", "OMPI_MCA_btl_sm_backing_directory")]
        os.kill(pids[victim], signal.SIGKILL)
        seconds[on_death].append(next_step_after(job.run, victim, role != "spare"))
        print(f"{what}, rank {victim}: {seconds[on_death][-1]:.2f} s", flush=True)
        try:
            run = job.wait(90)
            assert [dead for dead, _ in deaths(run)] == [victim], f"counted {deaths(run)}"
            assert run.reason == "all ranks finished"
            if Experiment(sync=sync).sync.runs_free or sync == "gossip":
                assert abs(run.summary["steps"] - 100) <= 2 and run.summary["accuracy"] > 0.5
            else:
                # A killed rank's records of the last 20 ms are lost, so its share of these steps is missing.
                off, whole = abs(run.curve["loss"] - expected), run.curve["samples"].diff() == 60
                assert off[whole].max() < 1e-9 and whole.sum() > 85, (
                    f"losses: {off[whole].max()}, {whole.sum()}"
                )
            eventually(lambda: not any(map(parent_of, pids.values())), 2, "its ranks are gone")
            eventually(lambda: not guardians(job.folder), 2, "its launcher is gone")
            assert not any(path.exists() for path in scratch)
        except Exception as error:
            wrong.append(f"{what}: {error}")
    for on_death, times in seconds.items():
        quantiles = np.quantile(times, [0, 0.5, 0.9, 1]) if times else ()
        print(f"{on_death}: {len(times)} deaths, next step after", *(f"{q:.2f}" for q in quantiles), "s")
    print("load", os.getloadavg())
    assert not wrong, "\n".join(wrong)
    assert max(seconds["shrink"], default=0) < SOON and max(seconds["spare"], default=0) < 2 * SOON


class DiesAgain(Keeper):
    """Kills the rank on one seat when it restarts, before any rank has its whole state."""

    seat = 2

    def hold(self, **parts):
        if self.state is not None and self.experiment.members > self.members - 2:
            if self.rank == self.seat:
                self.record.comm.world.before_death("the second death")
            if not self.experiment.sync.server_ranks:
                self.record.comm.barrier()
        super().hold(**parts)


AGAIN = {
    "ring": ({}, 2),
    "mapreduce": ({"sync": "mapreduce"}, 2),
    "gossip": ({"sync": {"scheme": "gossip", "topology": "complete"}}, 2),
    "ps": ({"sync": PS | {"servers": 2, "replicas": 1}}, 2),
    "ps, asp": ({"sync": PS | {"servers": 2, "replicas": 1, "consistency": "asp"}}, 2),
    "ps, a server": ({"sync": PS | {"servers": 2, "replicas": 1}}, 3),
}


def dying_again(monkeypatch, folder, changes, seat):
    """The exit status and the run of a simulation in which a second rank dies while the others restart."""
    experiment = dying({1: 0.5}, cluster={"world": "simulated"}, **changes)
    monkeypatch.setattr(DiesAgain, "seat", seat)
    monkeypatch.setattr(DiesAgain, "members", experiment.members, raising=False)
    monkeypatch.setattr(recovery, "Keeper", DiesAgain)
    (folder / "experiment.json").write_text(experiment.to_json())
    return simulate(folder, experiment), Run(folder)


@pytest.mark.parametrize("changes, seat", [*AGAIN.values()][:-1], ids=[*AGAIN][:-1])
def test_a_second_death_during_the_restart_loses_no_step(changes, seat, monkeypatch, tmp_path):
    status, run = dying_again(monkeypatch, tmp_path, changes, seat)
    assert status == 0, run.errors
    assert {rank for rank, _ in deaths(run)} == {1, 3} and min(workers for _, workers in deaths(run)) == 2
    assert run.events.query("name == 'death'")["step"].min() >= STEPS // 2 - 1
    assert abs(run.summary["steps"] - STEPS) <= run.experiment.sync.runs_free
    assert run.steps[["rank", "step"]].duplicated().sum() == 0
    if not run.experiment.sync.runs_free and run.experiment.sync.scheme != "gossip":
        assert np.allclose(
            run.curve["loss"], losses_alone(run.experiment.optimizer, run.experiment.lr), rtol=0, atol=1e-9
        )


def test_a_server_that_dies_before_its_successor_has_a_copy_ends_the_job_in_a_sentence(monkeypatch, tmp_path):
    status, run = dying_again(monkeypatch, tmp_path, *AGAIN["ps, a server"])
    assert status == 1 and {error["type"] for error in run.errors.values()} == {"CannotGoOn"}
    assert "a server died before its successor had a copy" in next(iter(run.errors.values()))["message"]


def test_deaths_during_the_start_of_a_resumed_run_lose_no_step_either(monkeypatch, tmp_path):
    experiment = dying({4: 0.8}, sync=PS, snapshot={"every": 8, "keep": 9}, cluster={"world": "simulated"})
    (tmp_path / "experiment.json").write_text(experiment.to_json())
    assert simulate(tmp_path, experiment) == 1  # the only server has died
    begin(tmp_path, newest(tmp_path, experiment))
    monkeypatch.setattr(DiesAgain, "seat", 1)
    monkeypatch.setattr(DiesAgain, "members", experiment.members, raising=False)
    monkeypatch.setattr(recovery, "Keeper", DiesAgain)
    status, run = simulate(tmp_path, experiment, attempt=Attempt.of(tmp_path)), Run(tmp_path)
    assert status == 0 and {dead for dead, _ in deaths(run)} >= {1, 2}
    assert run.curve["step"].tolist() == list(range(STEPS))
    assert np.allclose(
        run.curve["loss"], losses_alone(experiment.optimizer, experiment.lr), rtol=0, atol=1e-9
    )


def test_shards_from_before_a_death_complete_no_later_snapshot(tmp_path):
    experiment = dying({1: 0.5}, cluster={"world": "simulated"})
    (tmp_path / "experiment.json").write_text(experiment.to_json())
    old = shard(tmp_path, STEPS, 0)
    old.parent.mkdir(parents=True)
    old.write_bytes(b"of the larger crew")
    assert simulate(tmp_path, experiment) == 0 and not old.exists()


def test_what_nobody_else_has_ends_the_job_in_a_sentence():
    for changes, died, said in (
        ({"sync": PS}, 4, "rank 4 .server. died, and with it its range of the weights"),
        ({"sync": "mapreduce"}, 0, "rank 0 .the driver. died, and with it the state of momentum"),
        ({"sync": {"scheme": "gossip", "topology": "star"}}, 0, "the rank that joined all others"),
    ):
        e = dying({}, **changes)
        with pytest.raises(CannotGoOn, match=said):
            reseated(Crew(tuple(range(e.ranks)), e), [rank for rank in range(e.ranks) if rank != died])


def test_spares_take_empty_seats_first_and_delays_stay_with_their_worker():
    e = dying({}, "spare", deaths={"on_death": "spare", "spares": 1}, delays={"straggler": {3: 2.0}})
    crew = reseated(Crew((0, 1, 2, 3, 4), e), [0, 2, 3, 4])
    assert crew.seats == (0, 4, 2, 3) and crew.experiment.workers == 4 and crew.experiment.spare_ranks == 0
    crew = reseated(crew, [0, 3, 4])
    assert crew.seats == (0, 4, 3) and crew.experiment.workers == 3
    assert crew.experiment.global_batch == 60 and crew.experiment.delays.straggler == {2: 2.0}


def test_a_graph_loses_a_node_and_keeps_its_other_edges():
    e = dying({}, sync={"scheme": "gossip", "topology": "ring"})
    assert reseated(Crew((0, 1, 2, 3), e), [0, 2, 3]).experiment.sync.edges == ((0, 2), (1, 2))


def test_a_codec_or_leaves_do_not_survive():
    for changes in ({"compression": "onebit"}, {"sync": PS | {"groups": 2}}):
        with pytest.raises(BadExperiment, match="a part of the state would be lost"):
            dying({}, **changes)


def test_the_readme_says_who_survives_what():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (yes|no)[^|]*\| (yes|no)[^|]*\| ([^|]*)\|", text, re.M)
    assert [row[0] for row in rows] == ["ring", "mapreduce", "ps", "gossip", "hogwild"]
    for scheme, shrink, spare, other in rows:
        changes = {"sync": scheme, "optimizer": "sgd" if scheme == "hogwild" else "momentum"}
        for on_death, promised in (("shrink", shrink), ("spare", spare)):
            if promised == "yes":
                e = dying({}, on_death, **changes)
                crew = reseated(
                    Crew(tuple(range(e.ranks)), e), [rank for rank in range(e.ranks) if rank != 1]
                )
                assert crew.experiment.workers == 3 + (on_death == "spare")
            else:
                with pytest.raises(BadExperiment, match="deaths.on_death"):
                    dying({}, on_death, **changes)
        if other.strip() != "–":
            with pytest.raises(CannotGoOn):
                star = {"scheme": "gossip", "topology": "star"}
                e = dying({}, sync=star if scheme == "gossip" else scheme)
                died = 4 if scheme == "ps" else 0
                reseated(Crew(tuple(range(e.ranks)), e), [rank for rank in range(e.ranks) if rank != died])
    chain = dying({}, sync={"scheme": "ps", "servers": 2, "replicas": 1})
    crew = reseated(Crew(tuple(range(6)), chain), [0, 1, 2, 3, 5])
    assert "a server: with `--replicas 1`" in text and crew.experiment.sync.servers == 1
    with pytest.raises(CannotGoOn):  # the last copy
        reseated(crew, [0, 1, 2, 3])
