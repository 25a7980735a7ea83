"""Parameter servers: how stale workers get, how far they lead, and what a straggler costs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import trained_ranks
from simulations import run as of_ranks
from simulations import simulation_of, trained
from trained_ranks import OneProcess, flat, images_a_second

import dlpar
from dlpar import Experiment
from dlpar.config.generator import generator
from dlpar.config.schema import BadExperiment
from dlpar.config.sync import ParameterServer
from dlpar.sync.consistency import Consistency, consistency
from dlpar.sync.parameter_server import Kind, leaf_of
from dlpar.sync.server import Server

pytestmark = pytest.mark.slow

SMALL = dict(model={"name": "mlp", "width": 16, "depth": 1}, batch=64, evaluate_every=10_000)
OVERLAPPED = {"overlap": True, "bucket_mb": 0.002}
STEADY = {"kind": "constant", "delay_ms": 5.0}


def ps(**fields) -> dict:
    return {"scheme": "ps", **fields}


def run(**fields) -> dlpar.Run:
    return dlpar.launch(Experiment(**{**SMALL, **fields})).wait(60)


def simulated(folder: Path, **fields) -> dlpar.Run:
    """The same in the simulated world, in this process."""
    return trained(folder, **{**SMALL, **fields})


def served(finished: dlpar.Run) -> dict:
    """What the first server counted."""
    return next(r for _, r in finished.records() if r["k"] == "event" and r["name"] == "served")


# ---- without ranks ----------------------------------------------------------------


@pytest.mark.quick
def test_a_consistency_is_two_numbers():
    assert consistency(ParameterServer(), 4) == Consistency(gather=4, bound=0)
    assert consistency(ParameterServer(consistency="asp"), 4) == Consistency(gather=1, bound=None)
    assert consistency(ParameterServer(consistency="ssp", staleness=2), 4) == Consistency(gather=1, bound=2)
    assert consistency(ParameterServer(consistency="softsync", softsync=2), 4).gather == 2
    bounded = Consistency(bound=2)
    assert bounded.may_start(5, 3) and not bounded.may_start(6, 3)
    assert Consistency().may_start(10**6, 0)


@pytest.mark.quick
def test_leaves_share_the_workers_evenly():
    for workers in (1, 2, 5, 8):
        for groups in range(1, workers + 1):
            e = Experiment(workers=workers, batch=64, sync=ps(servers=2, groups=groups))
            leaves = [leaf_of(e, worker) for worker in range(workers)]
            assert sorted(set(leaves)) == list(range(workers + 2, workers + 2 + groups))
            counts = [leaves.count(leaf) for leaf in set(leaves)]
            assert max(counts) - min(counts) <= 1


WAYS = [
    {},
    {"servers": 3},
    {"servers": 2, "groups": 2},
    {"servers": 2, "pull": "separate"},
    {"optimizer": "adam", "servers": 2},
    {"compression": "fp16", "servers": 2},
    {"split": {"kind": "tensor", "tensor": 2}, "servers": 2},
    {"batch": 60, "split": {"kind": "data", "microbatches": 3}},
]


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_buckets_pushed_beside_the_backward_pass_change_no_loss(way):
    """More buckets than one, of which some have fewer weights than there are servers."""
    way = dict(way)
    sync = ps(**{name: way.pop(name) for name in ("servers", "groups", "pull") if name in way})
    fields = {**SMALL, "workers": 4, "steps": 15, "lr": 0.02, **way}
    after, beside = (
        [facts["loss"] for facts in trained_ranks.trained(sync={**sync, **more}, **fields).facts[0]]
        for more in ({}, {"overlap": True, "bucket_mb": 1e-5})
    )
    assert beside == pytest.approx(after, rel=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize("consistency", ["ssp", "asp", "softsync"])
def test_leaves_that_leave_with_one_bucket_still_serve_the_others(consistency):
    """A leaf that waited for the final weights of a bucket would hold up leaves that wait for its pushes of another."""
    sync = ps(servers=2, groups=2, consistency=consistency, **OVERLAPPED)
    delays = {"kind": "exponential", "delay_ms": 5.0}
    for seed in range(6):
        found = trained_ranks.trained(
            workers=4, steps=8, batch=64, model=SMALL["model"], sync=sync, delays=delays, seed=seed
        )
        assert sum(map(len, found.facts)) == 4 * 8


@pytest.mark.quick
@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
def test_servers_keep_up_with_a_ring_if_both_overlap(placement, tmp_path):
    """VGG-16 on 8 workers and 8 servers, one GPU a node, 10 GbE: as many bytes pass each port."""
    (tmp_path / "one.json").write_text(json.dumps({"extends": "p100-10gbe", "devices": 1, "nodes": 16}))
    cluster = {"platform": str(tmp_path / "one.json"), "stand_in_for": "vgg16", "placement": placement}
    servers, after, ring = (
        images_a_second(workers=8, sync=sync, cluster=cluster)
        for sync in (ps(servers=8, overlap=True), ps(servers=8), {"scheme": "ring", "overlap": True})
    )
    assert servers > 0.97 * ring and servers > 1.1 * after


# ---- staleness and lead ------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_with_equal_workers_and_weights_in_the_answer_staleness_is_n_minus_1_on_average(workers):
    steps = 60
    finished = run(workers=workers, steps=steps, sync=ps(consistency="asp"), delays=STEADY)
    ages = finished.steps["staleness"]
    assert len(ages) == steps * workers == served(finished)["version"] == served(finished)["pushes"]
    assert ages.mean() == pytest.approx(workers - 1, rel=0.15)


def test_asking_for_the_weights_apart_lowers_staleness():
    fields = dict(workers=4, steps=150)
    reply = run(sync=ps(consistency="asp"), **fields).steps["staleness"].mean()
    separate = run(sync=ps(consistency="asp", pull="separate"), **fields).steps["staleness"].mean()
    assert separate < 0.9 * reply


def test_bsp_is_never_stale_and_its_version_counts_steps(tmp_path):
    ways = [ps(), ps(servers=2), ps(pull="separate"), ps(**OVERLAPPED), ps(servers=2, groups=2)]
    runs = [
        simulated(tmp_path / str(number), workers=4, steps=25, sync=sync) for number, sync in enumerate(ways)
    ]
    for finished in (*runs, run(workers=4, steps=25, sync=ways[-1])):
        assert set(finished.steps["staleness"]) == {0} and set(finished.steps["lead"]) == {0}
        assert served(finished)["version"] == 25
        assert (finished.steps.groupby("rank").size() == 25).all()


def random_ssp(case: int) -> Experiment:
    draw = generator(7, "ssp cases", case)
    workers, every = int(draw.integers(2, 6)), int(draw.integers(1, 3))
    divisors = [groups for groups in range(1, workers + 1) if workers % groups == 0]
    groups = int(draw.choice(divisors)) if draw.random() < 0.3 else 0
    sync = ps(
        consistency="ssp",
        staleness=int(draw.integers(0, 5)),
        servers=int(draw.integers(1, 4)),
        groups=groups,
        pull=("reply", "separate")[draw.integers(2)],
        push_every=every,
    )
    delays = {"kind": ("exponential", "gamma", "none")[draw.integers(3)], "delay_ms": 2.0}
    if draw.random() < 0.5:
        delays["straggler"] = {int(draw.integers(workers)): 4.0}
    if every == 1 and draw.random() < 0.4:
        sync |= OVERLAPPED
    return Experiment(**SMALL, workers=workers, steps=8 * every, sync=sync, delays=delays)


@pytest.mark.parametrize("block", range(5))
def test_ssp_bounds_lead_by_s_and_staleness_by_n_minus_1_times_2s_plus_1(block, tmp_path):
    cases = [random_ssp(case) for case in range(10 * block, 10 * block + 10)]
    real = [dlpar.launch(e) for e in cases[:3]]
    # In the simulated world nothing but the draw decides who comes first.
    drawn = [simulation_of(e, tmp_path / str(number)) for number, e in enumerate(cases[3:])]
    for finished in (*drawn, *(job.wait(90) for job in real)):
        e = finished.experiment
        s, clients = e.sync.staleness, e.sync.groups or e.workers
        assert finished.steps["lead"].max() <= s, e
        assert finished.steps["staleness"].max() <= (clients - 1) * (2 * s + 1), e
        assert len(finished.steps) == e.steps * e.workers, e
        pushes = e.steps * clients // e.sync.push_every
        assert (served(finished)["pushes"], served(finished)["version"]) == (pushes, pushes)


def test_n_softsync_makes_one_update_of_every_n_th_of_the_workers():
    for n, gather in ((1, 4), (2, 2), (4, 1)):
        finished = run(workers=4, steps=30, sync=ps(consistency="softsync", softsync=n), delays=STEADY)
        assert served(finished)["pushes"] == 120
        assert served(finished)["version"] == 120 // gather
        # As Rudra (arXiv 1509.04210) finds: hardly ever above 2n.
        assert finished.steps["staleness"].mean() <= 2 * n


def test_downpour_pushes_and_fetches_every_n_steps():
    finished = run(workers=2, steps=40, sync=ps(consistency="asp", push_every=5))
    assert served(finished)["pushes"] == 2 * 40 // 5
    sent = finished.steps.groupby("rank")["bytes"].apply(lambda b: (b > 0).sum())
    assert sent.sum() == 2 * 40 // 5  # one push in five steps of each worker


def test_the_first_step_sends_no_more_than_the_others():
    sent = run(workers=2, steps=6, sync=ps(groups=2, group_period=2)).steps.groupby("rank")["bytes"].agg(list)
    assert sent[0] == sent[1] and sent[0][0] == sent[0][2]


# ---- backup workers ------------------------------------------------------------------


def first_pushes(experiment: Experiment, in_time: list[list[int]]) -> tuple[list[float], torch.Tensor]:
    """Losses, and weights in the end, if the update of step t takes the gradients of the workers ``in_time[t]``."""
    alone, losses = OneProcess(experiment), []
    weights = alone.weights
    for step, workers in enumerate(in_time):
        found = [alone.gradient(weights, step, worker) for worker in workers]
        losses.append(float(np.mean([loss for loss, _ in found])))
        weights = weights - experiment.lr * torch.stack([gradient for _, gradient in found]).mean(dim=0)
    return losses, weights


BACKUP = dict(workers=5, steps=20, batch=60, dtype="float64", sync=ps(backup=2))


@pytest.mark.parametrize("messages", ["values", "sizes"])
@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_chain_of_servers_sends_each_update_once_more(consistency, messages, tmp_path):
    """The sum of an update's pushes goes to the next server and is confirmed; at the start the weights go there."""
    steps, sent, fields = 12, [], {"workers": 4, "steps": 12, "batch": 32, "cluster": {"messages": messages}}
    fields["model"] = {"width": 32}
    for replicas in (0, 1):
        sync = {"scheme": "ps", "servers": 3, "replicas": replicas, "consistency": consistency}
        finished = trained(tmp_path / f"{replicas}", sync=sync, **fields)
        served = finished.events[finished.events["name"] == "served"]
        sent.append(served[["bytes", "messages"]].sum())
        assert len(finished.curve) == steps
    updates = steps * (1 if consistency == "bsp" else 4)
    weights = 4 * (64 * 32 + 32 + 33 * 32 + 33 * 10)
    more = sent[1] - sent[0]
    assert more["bytes"] == (updates + 1) * weights
    assert more["messages"] == 3 * (2 * updates + 1)


def test_a_chain_of_servers_changes_no_loss_of_synchronous_steps(tmp_path):
    fields = {"workers": 4, "steps": 12, "batch": 32, "dtype": "float64", "optimizer": "adam", "lr": 0.003}
    with_and_without = [
        trained(tmp_path / f"{replicas}", sync=ps(servers=2, replicas=replicas), **fields).curve["loss"]
        for replicas in (0, 1)
    ]
    assert len(with_and_without[0]) == 12 and np.allclose(*with_and_without, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind, updates", [("ssp", 48), ("asp", 48), ("softsync", 24)])
def test_a_chain_of_servers_makes_as_many_updates_of_workers_that_do_not_wait(kind, updates, tmp_path):
    sync = ps(servers=2, replicas=1, consistency=kind, **{"softsync": 2} if kind == "softsync" else {})
    finished = trained(tmp_path / "one", workers=4, steps=12, batch=32, sync=sync)
    assert served(finished)["version"] == updates and len(finished.steps) == 48


@pytest.mark.parametrize(
    "sync", [ps(consistency="softsync"), ps(consistency="softsync", staleness_aware=True), ps()]
)
def test_snapshots_change_no_update(sync, tmp_path):
    """Under softsync a quick worker pushes twice to one update."""
    slow = {"kind": "constant", "delay_ms": 10.0, "straggler": {3: 5.0}}
    fields = {**SMALL, "workers": 4, "steps": 20, "dtype": "float64", "delays": slow, "sync": sync}
    kept = [
        trained(tmp_path / f"{every}", snapshot={"every": every}, **fields).curve["loss"] for every in (0, 5)
    ]
    assert np.allclose(*kept, rtol=1e-9, atol=0)


def test_a_server_divides_the_rate_of_a_push_by_its_staleness():
    """Three workers read the first weights. Their pushes are 0, 1 and 2 updates old."""
    gradient, steps = torch.full((5,), 0.5), []

    def pushes(comm) -> list[float] | None:
        e = Experiment(workers=3, lr=0.3, steps=1, sync=ps(consistency="asp", staleness_aware=True))
        if comm.rank:
            answer = comm.packet(5, torch.float32)
            for turn in (1, 2, 3):  # one after the other
                comm.barrier()
                if comm.rank == turn:
                    comm.send(gradient, 0, Kind.PUSH)
            comm.recv(answer.wire, 0, Kind.WEIGHTS)
            return None
        packet = comm.packet(5, torch.float32)
        packet.body.zero_()
        server = Server(comm, [1, 2, 3], packet, e, consistency(e.sync, 3))
        for client in (1, 2, 3):
            comm.barrier()
            before = packet.body.clone()
            inbox = comm.empty(packet.wire.nbytes, torch.uint8)
            comm.recv(inbox, client, Kind.PUSH)
            server.take(Kind.PUSH, client, inbox)
            steps.append(float((before - packet.body)[0]))
        server.finish()
        return steps

    assert of_ranks(pushes, 4)[0] == pytest.approx([0.15, 0.15, 0.075])


def test_what_cannot_be_chained_is_refused():
    for sync in (
        {"servers": 1},
        {"servers": 2, "groups": 2},
        {"servers": 2, "consistency": "asp", "fetch_every": 2},
    ):
        with pytest.raises(BadExperiment, match="with replicas 1 is .*the next server copies each update"):
            Experiment(sync={"scheme": "ps", "replicas": 1, **sync})


@pytest.mark.quick
def test_an_update_with_backup_workers_takes_the_first_pushes_and_drops_the_others():
    delays = {"kind": "exponential", "delay_ms": 20.0, "straggler": {4: 3.0}}
    found = trained_ranks.trained(**{**SMALL, **BACKUP}, delays=delays)
    counted = [
        (facts["step"], rank, facts["loss"])
        for rank, steps in enumerate(found.facts)
        for facts in steps
        if not facts["dropped"]
    ]
    in_time = [[rank for at, rank, _ in counted if at == step] for step in range(20)]
    assert [len(ranks) for ranks in in_time] == [3] * 20
    assert len({rank for ranks in in_time for rank in ranks}) == 5  # everybody was in time now and then
    experiment = Experiment(**{**SMALL, **BACKUP})
    assert experiment.global_batch == 60 and experiment.local_batch(4) == 20
    losses, weights = first_pushes(experiment, in_time)
    measured = [np.mean([loss for at, _, loss in counted if at == step]) for step in range(20)]
    assert measured == pytest.approx(losses, rel=1e-9)
    assert (flat(found.models[0]) - weights).abs().max() < 1e-9 * weights.abs().max()


@pytest.mark.parametrize(
    "world, pull",
    [
        ("real", "reply"),
        ("paced", "reply"),
        ("simulated", "reply"),
        ("real", "separate"),
        ("simulated", "separate"),
    ],
)
def test_backup_workers_make_all_steps_in_every_world(world, pull):
    delays = {"kind": "constant", "delay_ms": 3.0, "straggler": {1: 20.0}}
    sync = ps(backup=2, pull=pull)
    finished = run(**{**BACKUP, "sync": sync, "cluster": {"world": world}, "delays": delays})
    steps, counted = finished.steps, finished.steps.query("staleness == 0")
    assert finished.summary["steps"] == 20 == len(finished.curve) == served(finished)["version"]
    assert (counted.groupby("step").size() == 3).all() and len(counted) == 60
    assert served(finished)["pushes"] == len(steps)
    own = counted.sort_values(["step", "rank"]).groupby("step")["rank"].apply(list)
    losses, _ = first_pushes(finished.experiment, own.tolist())
    assert finished.curve["loss"].tolist() == pytest.approx(losses, rel=1e-9)
    assert len(steps.query("rank == 1")) < 10 and set(steps["lead"]) == {0}  # the straggler skips steps


def test_a_few_backup_workers_raise_the_throughput_of_a_machine():
    """Chen et al. (arXiv 1604.00981): 50 workers and 1 to 4 for backup, 2 to 4 % more of each machine in a trial."""
    delays = {"kind": "gamma", "delay_ms": 1000.0, "delay_cv": 0.15}

    def steps_a_second(backup: int) -> float:
        found = trained_ranks.trained(
            workers=50 + backup,
            batch=4,
            scaling="weak",
            steps=60,
            model="linear",
            data="diabetes",
            sync=ps(backup=backup),
            delays=delays,
            cluster={"platform": "cpu-10gbe", "messages": "sizes"},
        ).facts
        return 60 / max(step["t"] for steps in found for step in steps if not step.get("dropped"))

    alone = steps_a_second(0)
    gains = [steps_a_second(backup) / alone * 50 / (50 + backup) for backup in (1, 2, 3, 4)]
    assert all(1.02 < gain < 1.05 for gain in gains)


# ---- what it costs ------------------------------------------------------------------


def seconds_a_step(finished: dlpar.Run) -> float:
    """Of global steps, from the median distance of ten."""
    ends = finished.curve["seconds"].to_numpy()
    return float(np.median(ends[10:] - ends[:-10]) / 10)


@pytest.mark.timed
def test_a_permanent_straggler_holds_up_bsp_and_in_the_end_ssp_but_not_asp():
    fields = dict(workers=4, steps=18, delays={"kind": "constant", "delay_ms": 25.0, "straggler": {1: 4.0}})
    bsp = run(sync=ps(), **fields)
    own_pace = bsp.steps.query("rank == 1")["compute"].median()
    assert seconds_a_step(bsp) == pytest.approx(own_pace, rel=0.10)
    ssp = run(sync=ps(consistency="ssp", staleness=4), **fields)
    assert seconds_a_step(ssp) == pytest.approx(seconds_a_step(bsp), rel=0.15)
    asp = run(sync=ps(consistency="asp"), **fields)
    assert seconds_a_step(asp) < seconds_a_step(bsp) / 2


def test_of_equal_workers_with_exponential_delays_a_bound_lets_through_what_bsp_holds_up(tmp_path):
    fields = dict(workers=4, steps=150, delays={"kind": "exponential", "delay_ms": 20.0})
    bsp = simulated(tmp_path / "bsp", sync=ps(), **fields)
    ssp = simulated(tmp_path / "ssp", sync=ps(consistency="ssp", staleness=4), **fields)
    assert seconds_a_step(bsp) > 1.3 * seconds_a_step(ssp)


# ---- faults -------------------------------------------------------------------------


def test_more_servers_than_parameters_is_refused_in_one_sentence():
    e = Experiment(model="linear", data="diabetes", batch=64, workers=2, sync=ps(servers=12))
    with pytest.raises(dlpar.JobFailed) as told:
        dlpar.launch(e).wait(60)
    assert str(told.value) == "sync.servers: got 12, allowed with 11 parameters is at most 11"


@pytest.mark.quick
def test_more_servers_than_parameters_of_any_bucket_are_refused():
    """The linear model has 10 weights and a bias; buckets so small hold one or the other."""
    fields = dict(model="linear", data="diabetes", batch=64, workers=2)
    with pytest.raises(
        ValueError, match="got 11, allowed with 10 parameters of the largest bucket is at most 10"
    ):
        trained_ranks.trained(sync=ps(servers=11, overlap=True, bucket_mb=1e-6), **fields)
    found = trained_ranks.trained(sync=ps(servers=10, overlap=True, bucket_mb=1e-6), **fields)
    assert found.losses == pytest.approx(trained_ranks.trained(sync=ps(), **fields).losses, rel=1e-9)


def test_leaves_serve_buckets_shorter_than_the_number_of_servers():
    fields = dict(model="linear", data="diabetes", batch=64, workers=4, dtype="float64", steps=6)
    sync = ps(servers=2, groups=2, overlap=True, bucket_mb=1e-5)
    found = trained_ranks.trained(sync=sync, **fields)
    assert found.losses == pytest.approx(trained_ranks.trained(sync="ring", **fields).losses, rel=1e-9)


@pytest.mark.parametrize("role", ["server", "worker", "leaf"])
def test_killing_any_rank_ends_the_job_with_a_sentence(role):
    job = dlpar.launch(
        Experiment(workers=2, steps=10**6, evaluate_every=10**6, sync=ps(consistency="asp", groups=2))
    )
    ranks = job.wait_steps(20).ranks
    rank = ranks.index[ranks["role"] == role][-1]
    os.kill(int(ranks.loc[rank, "pid"]), signal.SIGKILL)
    whose = "" if role == "worker" else rf" \({role}\)"
    with pytest.raises(dlpar.JobFailed, match=rf"rank {rank}{whose} was killed by SIGKILL"):
        job.wait(5)
    assert not any(psutil.pid_exists(pid) for pid in ranks["pid"])


@pytest.mark.parametrize("sync", ["ring", "mapreduce", "ps", "gossip", "hogwild"])
def test_one_worker_is_enough_for_any_scheme(sync, tmp_path):
    fields = dict(workers=1, steps=10, sync=sync)
    finished = run(**fields) if sync in ("ps", "hogwild") else simulated(tmp_path / "run", **fields)
    assert finished.summary["steps"] == 10 and finished.summary["staleness"]["max"] == 0
