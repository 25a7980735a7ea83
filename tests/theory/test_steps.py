"""Predictions of whole experiments: what the virtual clock shows when the same experiment is simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from dlpar import Experiment, models
from dlpar.data import load
from dlpar.theory import predict, ps_step_seconds
from dlpar.theory.steps.sizes import sizes
from dlpar.train import serve, train
from dlpar.worlds.platforms import platform, workload
from dlpar.worlds.simulated.run import of_experiment, run_program

pytestmark = pytest.mark.slow

CLUSTER = {"world": "simulated", "messages": "sizes", "platform": "cpu-10gbe"}


class Watch:
    """In the place of a recorder: when each step of a rank ended, and what was sent."""

    def __init__(self, comm) -> None:
        self.comm, self.ends, self.sent = comm, [], 0

    def span(self, *_):
        return nullcontext()

    def step(self, *_, bytes=0, **__):
        self.ends.append(self.comm.now())
        self.sent += bytes or 0

    event = evaluation = end = lambda self, *_, **__: None


def simulated(experiment: Experiment, every: int = 1) -> tuple[float, float]:
    """Seconds of a step in the long run, the last exchange left out, and bytes all workers send a step."""
    simulator, comms = of_experiment(experiment)
    watches = [Watch(comm) for comm in comms]
    workers = watches[: experiment.workers]

    def program(comm):
        (train if comm.rank < experiment.workers else serve)(comm, experiment, watches[comm.rank])

    run_program(simulator, comms, program, 60.0)
    sent = sum(watch.sent for watch in workers) / experiment.steps
    if experiment.free_running:
        ends = sorted(end for watch in workers for end in watch.ends)
        first, last = len(ends) // 2, len(ends) * 19 // 20
        return (ends[last] - ends[first]) / (last - first) * experiment.workers, sent
    last = experiment.steps - every
    first = last // 2 // every * every
    return sum(w.ends[last - 1] - w.ends[first - 1] for w in workers) / (last - first) / len(workers), sent


def experiment(workers: int, sync, cluster=None, steps: int = 40, **fields) -> Experiment:
    cluster = {**CLUSTER, **(cluster or {})}
    return Experiment(
        workers=workers, sync=sync, cluster=cluster, steps=steps, evaluate_every=steps, **fields
    )


# ---- exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allreduce, workers",
    [(name, n) for name in ("ring", "star", "tree", "halving_doubling") for n in (1, 2, 3, 4, 6, 8, 16)]
    + [("hierarchical", n) for n in (2, 4, 6, 16)],
)
def test_a_step_of_every_all_reduce_takes_what_the_simulation_takes(allreduce, workers):
    ours = experiment(workers, {"scheme": "ring", "allreduce": allreduce}, batch=240 if workers != 3 else 256)
    told, (seconds, sent) = predict(ours), simulated(ours)
    assert told.exact and told.seconds == pytest.approx(seconds, rel=1e-3)
    assert told.bytes == sent


@pytest.mark.parametrize(
    "workers, servers", [(1, 1), (2, 1), (8, 1), (4, 2), (5, 2), (6, 4), (8, 8), (16, 4)]
)
def test_a_bsp_step_of_servers_takes_what_the_simulation_takes(workers, servers):
    ours = experiment(workers, {"scheme": "ps", "servers": servers})
    told = predict(ours)
    assert told.exact == (workers % servers == 0) and told.seconds == pytest.approx(
        simulated(ours)[0], rel=1e-3
    )


@pytest.mark.parametrize("workers, servers", [(8, 1), (8, 2), (8, 4), (16, 8)])
def test_the_closed_form_of_servers_is_what_following_their_messages_gives(workers, servers):
    """It leaves out what servers compute, and the heads of answers: on a large model next to nothing."""
    link, big = platform("cpu-10gbe").between, workload("resnet50")
    sync, cluster = {"scheme": "ps", "servers": servers}, {"stand_in_for": "resnet50"}
    told = predict(experiment(workers, sync, cluster, batch=workers))
    compute = platform("cpu-10gbe").seconds(big.flops, big)
    assert ps_step_seconds(workers, servers, big.nbytes, link, compute) == pytest.approx(
        told.seconds, rel=1e-3
    )


@pytest.mark.parametrize(
    "workers, sync, fields",
    [
        (8, {"scheme": "ps", "servers": 2, "groups": 4}, {}),
        (4, {"scheme": "ps", "servers": 2}, {"compression": "onebit"}),
        (4, {"scheme": "ps", "consistency": "asp"}, {"batch": 8192}),
        (16, {"scheme": "ps", "consistency": "asp"}, {}),
        (9, {"scheme": "mapreduce", "depth": 2}, {}),
        (16, {"scheme": "mapreduce", "depth": 3}, {}),
        (7, {"scheme": "mapreduce", "reduce": "collect"}, {"compression": "fp16"}),
        (2, {"scheme": "gossip"}, {}),
        (8, {"scheme": "gossip", "exchange": "random"}, {}),
        (4, "ring", {"compression": {"codec": "topk", "keep": 0.01}}),
        (4, "ring", {"delays": {"straggler": {1: 4.0}}}),
        (4, "mapreduce", {"delays": {"kind": "constant", "delay_ms": 1.0}}),
        (4, "ps", {"shards": "uneven"}),
        (4, "ring", {"dtype": "float64", "scaling": "weak"}),
        (4, "ring", {"model": {"name": "cnn", "width": 64}}),
    ],
)
def test_other_schemes_and_fields_are_exact_where_the_prediction_says_so(workers, sync, fields):
    ours = experiment(workers, sync, **fields)
    told = predict(ours)
    assert told.exact, told.how
    assert told.seconds == pytest.approx(simulated(ours)[0], rel=1e-3)


@pytest.mark.parametrize(
    "sync", ("ring", "ps", {"scheme": "ps", "consistency": "asp"}, "mapreduce", "gossip")
)
def test_local_steps_share_an_exchange(sync):
    ours = experiment(4, sync, averaging={"method": "local", "period": 4})
    told = predict(ours)
    assert told.seconds == pytest.approx(simulated(ours, every=4)[0], rel=1e-3)
    assert told.seconds < predict(experiment(4, sync)).seconds


@pytest.mark.parametrize("bucket_mb", (4.0, 100.0))
@pytest.mark.parametrize("overlap, speed", [(False, 1.0), (True, 1.0), (True, 0.6)])
def test_buckets_behind_the_backward_pass_of_vgg_are_exact(overlap, speed, bucket_mb, tmp_path):
    path = tmp_path / "beside.json"
    path.write_text(json.dumps({"extends": "cpu-10gbe", "name": "beside", "overlap": speed}))
    sync = {"scheme": "ring", "overlap": overlap, "bucket_mb": bucket_mb}
    cluster = {"platform": str(path), "stand_in_for": "vgg16"}
    ours = experiment(8, sync, cluster, steps=6, batch=8, scaling="weak")
    told = predict(ours)
    assert told.exact and told.seconds == pytest.approx(simulated(ours)[0], rel=1e-3)


@pytest.mark.parametrize(
    "sync",
    (
        "ring",
        "ps",
        "mapreduce",
        {"scheme": "ring", "allreduce": "tree"},
        {"scheme": "ring", "allreduce": "hierarchical", "node_size": 4},
    ),
)
def test_nodes_of_four_that_share_a_port_are_exact_too(sync):
    cluster = {"platform": "p100-25gbe", "stand_in_for": "resnet101"}
    ours = experiment(16, sync, cluster, steps=12, batch=64, scaling="weak")
    told = predict(ours)
    assert told.exact and told.seconds == pytest.approx(simulated(ours)[0], rel=1e-3)


# ---- estimates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workers, sync, cluster, within",
    [
        (8, {"scheme": "gossip"}, {}, 0.01),
        (8, {"scheme": "gossip", "topology": "exp2"}, {}, 0.03),
        (8, {"scheme": "ps", "servers": 4, "consistency": "asp"}, {}, 0.1),
        (8, {"scheme": "ps", "servers": 8}, {"placement": "colocated"}, 0.2),
        (8, {"scheme": "ring", "allreduce": "halving_doubling"}, {"platform": "p100-25gbe"}, 0.05),
    ],
)
def test_what_is_no_exact_prediction_says_why_and_is_close(workers, sync, cluster, within):
    ours = experiment(workers, sync, cluster, steps=60)
    told = predict(ours)
    assert not told.exact and "; " in told.how
    assert told.seconds == pytest.approx(simulated(ours)[0], rel=within)


def test_the_slowest_of_workers_whose_times_vary_sets_the_pace_of_a_ring(tmp_path):
    path = tmp_path / "unsteady.json"
    path.write_text(
        json.dumps({"extends": "cpu-10gbe", "name": "unsteady", "timing": {"kind": "gamma", "cv": 0.3}})
    )
    cluster = {"platform": str(path), "stand_in_for": "resnet50"}
    ours = experiment(8, "ring", cluster, steps=300, batch=8, scaling="weak")
    told = predict(ours)
    assert not told.exact and told.waiting > 0.2 * told.compute
    assert told.seconds == pytest.approx(simulated(ours)[0], rel=0.05)


def test_under_ssp_the_slowest_worker_sets_the_pace_and_the_others_wait():
    ours = experiment(
        4, {"scheme": "ps", "consistency": "ssp"}, steps=100, batch=8192, delays={"straggler": {1: 8.0}}
    )
    told = predict(ours)
    assert told.seconds == pytest.approx(simulated(ours)[0], rel=0.01)
    assert told.waiting > told.seconds / 2
    assert predict(ours.replace(sync={"consistency": "asp"})).seconds < told.seconds / 2


# ---- what a prediction is -------------------------------------------------------------------------------------


def test_its_parts_are_the_whole_and_a_small_batch_communicates_more():
    small, large = (predict(experiment(8, "ring", batch=batch)) for batch in (64, 65_536))
    for told in (small, large):
        assert told.compute + told.communicate + told.waiting == pytest.approx(told.seconds)
    assert small.communicate > small.compute and large.communicate < large.compute
    assert "2 (N-1) (a + b/N)" in small.how and "Patarasuk" in small.source


def test_there_is_none_without_a_form_or_a_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))  # where this machine was never measured
    assert predict(Experiment(sync="ring")) is None
    assert predict(Experiment(sync="hogwild", cluster={"world": "simulated"})) is None
    told = predict(Experiment(cluster={"platform": "cpu-10gbe"}))
    assert not told.exact and told.how.endswith("real ranks share cores and are disturbed")


@pytest.mark.parametrize(
    "model, data",
    [
        ("logistic", "digits"),
        ("linear", "diabetes"),
        ("mlp", "diabetes"),
        ("logistic", "docstrings"),
        ({"name": "mlp", "depth": 3, "norm": "batch"}, "digits"),
        ({"name": "cnn", "width": 64, "depth": 3}, "digits"),
        ({"name": "cnn", "norm": "batch"}, "digits"),
        ({"name": "transformer", "width": 32, "heads": 2}, {"name": "docstrings", "context": 16}),
    ],
)
def test_sizes_are_those_of_the_model_that_is_built(model, data):
    ours = Experiment(model=model, data=data, workers=1)
    dataset = load(ours.data, 0, torch.float32, ours.model.name)
    built = models.build(ours, dataset)
    counted, found = models.flops_per_sample(built, dataset), sizes(ours)
    weights = list(reversed(list(built.parameters())))
    assert found.flops == counted
    assert [tensor.elements for tensor in found.tensors] == [weight.numel() for weight in weights]
    assert [tensor.flops for tensor in found.tensors] == [getattr(weight, "flops", 0) for weight in weights]


def test_predicting_loads_no_torch():
    code = """
import sys
from dlpar import Experiment
from dlpar.theory import predict
for sync in ("ring", "ps", "mapreduce", "gossip"):
    assert predict(Experiment(sync=sync, cluster={"world": "simulated"})).seconds > 0
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
