"""Predictions of whole steps: exact, or on the side they say, beside the simulation of the same experiment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, note, reject, settings
from hypothesis import strategies as st

from dlpar import BadExperiment, Experiment, launch
from dlpar.systems.record import platform_file
from dlpar.theory import Servers, predict
from dlpar.train import serve, train
from dlpar.worlds.platforms import platform, workload
from dlpar.worlds.simulated.run import of_experiment, run_program

pytestmark = pytest.mark.slow

CLUSTER = {"world": "simulated", "messages": "sizes", "platform": "cpu-10gbe"}


class Watch:
    """Note when each step of a rank ended, as a recorder would."""

    def __init__(self, comm) -> None:
        self.comm, self.ends = comm, []

    def span(self, *_):
        return nullcontext()

    def step(self, *_, **__):
        self.ends.append(self.comm.now())

    event = evaluation = end = lambda self, *_, **__: None


def simulated(experiment: Experiment, every: int = 1, window=(0.5, 0.95)) -> float:
    """Seconds of a step in the long run, the last exchange left out; `window`: of all free-running steps.

    Of free-running workers, all windows of whole rounds that begin in the same round count, because workers may
    end their steps together.
    """
    simulator, comms = of_experiment(experiment)
    watches = [Watch(comm) for comm in comms]
    workers = watches[: experiment.workers]

    def program(comm):
        (train if comm.rank < experiment.workers else serve)(comm, experiment, watches[comm.rank])

    run_program(simulator, comms, program, 60.0)
    if experiment.sync.runs_free:
        ends, n = sorted(end for watch in workers for end in watch.ends[::every]), len(workers)
        first, last = (int(share * (len(ends) // n)) * n for share in window)
        return (sum(ends[last - n : last]) - sum(ends[first - n : first])) / (last - first) / every
    last = experiment.steps - every
    first = last // 2 // every * every
    return sum(w.ends[last - 1] - w.ends[first - 1] for w in workers) / (last - first) / len(workers)


TINY = {"model": {"width": 8}, "data": "diabetes", "cluster": {"platform": "cpu-10gbe"}}
"""A small model on links that keep processors busy."""


def experiment(workers: int, sync, cluster=None, steps: int = 16, **fields) -> Experiment:
    cluster = {**CLUSTER, **(cluster or {})}
    mine = Experiment(
        workers=workers, sync=sync, cluster=cluster, steps=steps, evaluate_every=steps, **fields
    )
    return mine.replace(steps=40, evaluate_every=40) if mine.sync.runs_free else mine


@pytest.fixture
def ours(tmp_path):
    """An experiment on a platform and with a workload of one's own."""

    def described(workers, sync, platform=None, work=None, messages="sizes", **fields):
        cluster = {"messages": messages}
        whole = {} if "layers" in (work or {}) else {"parameters": 1_000_000, "flops": 1e9}
        link = {"latency": 1e-4, "bandwidth": 1e9}
        machine = {"device": {"name": "d", "flops": 1e12}, "nodes": 64, "between": link, **(platform or {})}
        for field, table in {"platform": machine, "stand_in_for": {**whole, **(work or {})}}.items():
            path = tmp_path / f"{field}{len(list(tmp_path.iterdir()))}.json"
            path.write_text(json.dumps(table))
            cluster[field] = str(path)
        return experiment(workers, sync, cluster, scaling="weak", batch=8, **fields)

    return described


# ---- exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allreduce, workers",
    [(name, n) for name in ("ring", "star") for n in (1, 2, 3, 4, 6, 8, 16)]
    + [(name, n) for name in ("tree", "halving_doubling") for n in (1, 2, 4, 8, 16)]
    + [("hierarchical", n) for n in (2, 4, 6, 16)],
)
def test_a_step_of_every_all_reduce_takes_what_the_simulation_takes(allreduce, workers):
    mine = experiment(workers, {"scheme": "ring", "allreduce": allreduce}, batch=240)
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_a_bsp_step_of_one_server_takes_what_the_simulation_takes(workers):
    mine = experiment(workers, "ps", batch=240)
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize("workers, servers", [(8, 1), (8, 2), (8, 4), (16, 8), (1, 4)])
def test_of_a_large_model_the_form_of_servers_is_exact_without_what_they_compute(workers, servers):
    link, big = platform("cpu-10gbe").between, workload("resnet50")
    mine = experiment(
        workers, {"scheme": "ps", "servers": servers}, {"stand_in_for": "resnet50"}, 24, batch=workers
    )
    compute = platform("cpu-10gbe").device.seconds(big.flops, big)
    told = Servers(workers, servers, big.nbytes, link).step_seconds(compute)
    assert told == pytest.approx(predict(mine).seconds, rel=1e-3)
    assert told == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize(
    "workers, sync, fields",
    [
        (4, {"scheme": "ps", "consistency": "asp"}, {"batch": 8192}),
        (16, {"scheme": "ps", "consistency": "asp"}, {}),
        (1, "gossip", {}),
        (2, "gossip", {}),
        (8, "gossip", {}),
        (8, {"scheme": "gossip", "topology": "exp2"}, {}),
        (12, {"scheme": "gossip", "topology": "exp2", "exchange": "push_sum"}, {"batch": 240}),
        *(
            (n, {"scheme": "gossip", "topology": graph, "exchange": "push_sum"}, {"batch": 64 * n, **TINY})
            for n, graph in ((6, "complete"), (12, "complete"), (5, "exp2"))
        ),
        (8, {"scheme": "gossip", "exchange": "random"}, {}),
        (8, {"scheme": "gossip", "exchange": "one_peer"}, {"batch": 240}),
        (8, {"scheme": "gossip", "order": "combine_then_adapt"}, {}),
        (8, {"scheme": "gossip", "order": "combine_then_adapt"}, {"batch": 8192}),
        (8, {"scheme": "gossip", "order": "combine_then_adapt", "exchange": "random"}, {"batch": 8192}),
        (4, "ring", {"dtype": "float64", "scaling": "weak"}),
        (4, "ring", {"model": {"name": "cnn", "width": 64}}),
        (4, "ring", {"delays": {"kind": "constant", "delay_ms": 1.0}}),
    ],
)
def test_other_schemes_and_fields_are_exact_too(workers, sync, fields):
    mine = experiment(workers, sync, **fields)
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize(
    "sync, within",
    [
        ("ring", 1e-3),
        ("ps", 1e-3),
        ({"scheme": "ps", "consistency": "asp"}, 1e-3),
        ("mapreduce", 0.03),
        ("gossip", 1e-3),
    ],
)
def test_local_steps_share_an_exchange(sync, within):
    mine = experiment(4, sync, averaging={"method": "local", "period": 4})
    told = predict(mine)
    assert told.seconds == pytest.approx(simulated(mine, every=4), rel=within)
    assert told.seconds < predict(experiment(4, sync)).seconds


@pytest.mark.parametrize("bucket_mb", (4.0, 100.0))
@pytest.mark.parametrize("overlap, speed", [(False, 1.0), (True, 1.0), (True, 0.6)])
def test_buckets_behind_the_backward_pass_of_vgg_are_exact(overlap, speed, bucket_mb, tmp_path):
    path = tmp_path / "beside.json"
    path.write_text(json.dumps({"extends": "cpu-10gbe", "name": "beside", "overlap": speed}))
    sync = {"scheme": "ring", "overlap": overlap, "bucket_mb": bucket_mb}
    cluster = {"platform": str(path), "stand_in_for": "vgg16"}
    mine = experiment(8, sync, cluster, steps=6, batch=8, scaling="weak")
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize("straggler", ({}, {0: 2.2}, {1: 1.3}, {1: 2.2}, {1: 5.0}))
def test_buckets_wait_for_the_longest_pass_and_the_step_for_the_longest_delay(straggler):
    sync = {"scheme": "ring", "overlap": True, "bucket_mb": 25.0}
    delays = {"kind": "constant", "straggler": straggler}
    mine = experiment(2, sync, {"stand_in_for": "resnet101"}, batch=3, delays=delays)
    assert predict(mine).seconds == pytest.approx(simulated(mine), rel=1e-3)


def test_the_overhead_of_a_step_comes_before_what_communication_hides_behind(ours):
    device = {"device": {"name": "d", "flops": 1e12, "overhead": 0.01}}
    mine = ours(4, {"scheme": "ring", "overlap": True}, device)
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize("messages", ("sizes", "values"))
def test_a_workload_that_only_sends_has_a_time_too(ours, messages):
    mine = ours(4, "ring", work={"flops": 0}, messages=messages, steps=8)
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize("allreduce", ("ring", "star", "tree", "halving_doubling", "hierarchical"))
def test_a_workload_without_parameters_only_computes_and_waits(ours, allreduce):
    mine = ours(4, {"scheme": "ring", "allreduce": allreduce}, work={"parameters": 0})
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


@pytest.mark.parametrize("sync", ("ring", "ps"))
@pytest.mark.parametrize("itemsize", (1, 2, 8))
def test_elements_of_a_workload_have_its_size_whatever_the_small_models_dtype(ours, sync, itemsize):
    mine = ours(4, sync, work={"itemsize": itemsize}, dtype="float64")
    told = predict(mine)
    assert told.kind == "exact" and told.seconds == pytest.approx(simulated(mine), rel=1e-3)


# ---- bounds and estimates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workers, sync, fields, kind, within",
    [
        (6, {"scheme": "ring", "allreduce": "tree"}, {}, "upper bound", 0.05),
        (6, {"scheme": "ring", "allreduce": "halving_doubling"}, {}, "estimate", 0.07),
        (4, "ring", {"delays": {"straggler": {1: 4.0}}}, "upper bound", 0.07),
        (3, "ps", {"batch": 256}, "upper bound", 0.001),
        (9, "mapreduce", {}, "upper bound", 0.03),
        (16, {"scheme": "mapreduce", "depth": 3}, {}, "upper bound", 0.03),
        (7, {"scheme": "mapreduce", "reduce": "collect"}, {}, "upper bound", 0.2),
        (9, {"scheme": "mapreduce", "broadcast": "torrent"}, {}, "upper bound", 0.1),
        (4, {"scheme": "ps", "servers": 2}, {}, "lower bound", 0.001),
        (16, {"scheme": "ps", "servers": 4}, {}, "lower bound", 0.05),
        (8, {"scheme": "ps", "servers": 4, "consistency": "asp"}, {}, "lower bound", 0.1),
        (12, {"scheme": "gossip", "topology": "random"}, {"batch": 240}, "lower bound", 0.25),
    ],
)
def test_a_bound_is_on_its_side_and_all_are_close(workers, sync, fields, kind, within):
    mine = experiment(workers, sync, **fields)
    told, seconds = predict(mine), simulated(mine)
    assert told.kind == kind
    assert told.seconds == pytest.approx(seconds, rel=within)
    if kind == "upper bound":
        assert told.seconds > seconds * (1 - 1e-3)
    if kind == "lower bound":
        assert told.seconds < seconds * (1 + 1e-3)


@pytest.mark.parametrize(
    "sync, within", [("ring", 1e-3), ("ps", 1e-3), ({"scheme": "ps", "servers": 4}, 0.05)]
)
def test_nodes_of_four_that_share_a_port_are_close(sync, within):
    cluster = {"platform": "p100-25gbe", "stand_in_for": "resnet101"}
    mine = experiment(16, sync, cluster, steps=8, batch=64, scaling="weak")
    told = predict(mine)
    assert told.kind == "estimate" and told.seconds == pytest.approx(simulated(mine), rel=within)


@pytest.mark.parametrize(
    "workers, platform", [(12, "v100-100gb-ib"), (9, "v100-100gb-ib"), (5, "p100-10gbe")]
)
def test_free_running_workers_of_a_node_that_is_not_full_do_more_steps(workers, platform):
    sync = {"scheme": "ps", "consistency": "asp", "servers": 4}
    model, cluster = {"name": "mlp", "width": 2048}, {"platform": platform, "messages": "sizes"}
    mine = experiment(workers, sync, cluster, batch=32, scaling="weak", model=model)
    while_all_compute = simulated(mine, window=(0.2, 0.6))
    assert predict(mine).seconds == pytest.approx(while_all_compute, rel=0.05)


@pytest.mark.parametrize("name", ("p100-25gbe", "h100-10gbe"))
def test_short_messages_of_a_ring_pile_up_at_the_one_port_of_a_node(name):
    """A small model on quick devices: messages below the eager limit."""
    mine = experiment(16 if name == "h100-10gbe" else 8, "ring", {"platform": name}, batch=240)
    assert predict(mine).seconds == pytest.approx(simulated(mine), rel=0.02)


def test_a_library_that_adds_weights_of_two_bytes_is_not_predicted(tmp_path):
    file = tmp_path / "half.json"
    file.write_text('{"parameters": 4000000, "flops": 1e9, "itemsize": 2}')
    ring, library = (
        experiment(8, {"scheme": "ring", "allreduce": name}, {"stand_in_for": str(file)}, steps=8)
        for name in ("ring", "library")
    )
    assert predict(ring).seconds == pytest.approx(simulated(ring)) and predict(library) is None


LINKS = [
    {"latency": latency, "bandwidth": bandwidth, "overhead": share * latency}
    for latency in (1e-5, 1e-4, 1e-3)
    for bandwidth in (1e8, 1e9, 1e10)
    for share in (0, 0.1, 0.5)
]
ALLREDUCES = ("ring", "star", "tree", "halving_doubling", "hierarchical", "library", "auto")
SCHEMES = {
    "ring": {
        "allreduce": ALLREDUCES,
        "overlap": (False, True),
        "bucket_mb": (0.01, 25.0),
        "node_size": (2, 4),
    },
    "ps": {"consistency": ("bsp", "asp", "ssp", "softsync"), "servers": (1, 2, 4), "push_every": (1, 3)},
    "mapreduce": {"reduce": ("tree", "collect"), "depth": (2, 3), "broadcast": ("tree", "torrent", "star")},
    "gossip": {
        "topology": ("ring", "complete", "exp2"),
        "exchange": ("neighbours", "push_sum", "random", "one_peer"),
        "order": ("adapt_then_combine", "combine_then_adapt"),
        "peers": (1, 2, 3),
    },
}
WORK = [(parameters, flops) for parameters in (1000, 100_000, 30_000_000) for flops in (1e6, 1e8, 1e10)]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_the_experiment_a_prediction_keeps_its_word(scheme, data):
    def one(*choices):
        return data.draw(st.sampled_from(choices))

    workers = one(1, 2, 3, 4, 5, 8, 12)
    chosen = {name: one(*values) for name, values in SCHEMES[scheme].items()}
    device = {"name": "d", "flops": one(1e9, 1e11, 1e13), "overhead": one(0.0, 1e-4, 1e-2)}
    machine = {"device": device, "nodes": 64, "between": one(*LINKS), "eager": one(0, 65_536, 10_000_000)}
    machine["overlap"], (parameters, flops) = one(1.0, 0.6), one(*WORK)
    machine["stragglers"] = {one(*range(workers + 1)): 4.0} if one(False, False, True) else {}
    delays = {"kind": "constant", "straggler": {one(*range(workers)): 2.0} if one(False, False, True) else {}}
    averaging = {"method": "local", "period": 3} if one(False, False, False, True) else {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"platform": machine, "stand_in_for": {"parameters": parameters, "flops": flops}}
        for name, table in files.items():
            Path(folder, f"{name}.json").write_text(json.dumps(table))
        cluster = {**CLUSTER, **{name: f"{folder}/{name}.json" for name in files}}
        try:
            mine = Experiment(
                workers=workers, sync={"scheme": scheme, **chosen}, cluster=cluster, steps=36, evaluate_every=36,
                batch=4, scaling="weak", delays=delays, averaging=averaging,
            )  # fmt: skip
        except BadExperiment:
            reject()
        every = mine.averaging.period if averaging else getattr(mine.sync, "push_every", 1)
        mine = mine.replace(steps=108, evaluate_every=108) if mine.sync.runs_free or every > 1 else mine
        told = predict(mine)
        assume(told is not None)
        ratio = simulated(mine, every, (1 / 3, 2 / 3)) / told.seconds
    note(f"{told} but {ratio} times as long")
    least = {"exact": 1 - 2e-3, "lower bound": 1 - 2e-3, "estimate": 0.5}.get(told.kind, 0.0)
    most = {"exact": 1 + 2e-3, "upper bound": 1 + 2e-3, "estimate": 2.0}.get(told.kind, inf)
    assert least < ratio < most


# ---- what a prediction is -------------------------------------------------------------------------------------


def test_a_small_batch_communicates_more():
    small, large = (predict(experiment(8, "ring", batch=batch)) for batch in (64, 65_536))
    assert small.seconds > 2 * small.compute and large.seconds < 2 * large.compute


def test_there_is_none_without_a_form_or_a_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))  # where this machine was never measured
    assert predict(Experiment(sync="ring")) is None
    assert predict(Experiment(sync="hogwild", cluster={"world": "simulated"})) is None
    library = {"scheme": "ring", "allreduce": "library"}
    assert predict(Experiment(sync=library, cluster={"platform": "cpu-10gbe"})) is None
    for odd in ({"compression": "onebit"}, {"shards": "uneven"}, {"split": {"kind": "data", "zero": 1}}):
        assert predict(Experiment(cluster={"world": "simulated"}, **odd)) is None
    # Real ranks are disturbed.
    assert predict(Experiment(workers=1, cluster={"platform": "cpu-10gbe"})).kind == "estimate"


@pytest.mark.parametrize("sync, ranks", [("ring", 4), ({"scheme": "ps", "servers": 2}, 6), ("mapreduce", 4)])
def test_more_real_ranks_than_cores_take_at_least_the_predicted_time(sync, ranks, monkeypatch):
    mine = Experiment(workers=4, sync=sync, cluster={"platform": "cpu-10gbe"})
    monkeypatch.setattr("dlpar.theory.step.cores", lambda: ranks)
    assert predict(mine).kind == "estimate"
    monkeypatch.setattr("dlpar.theory.step.cores", lambda: ranks - 1)
    assert predict(mine).kind == "lower bound"
    simulated = mine.replace(cluster={"world": "simulated", "platform": "cpu-10gbe"})
    assert predict(simulated).kind in ("exact", "lower bound", "upper bound")


ASP, SSP = ({"scheme": "ps", "consistency": each} for each in ("asp", "ssp"))
NODES_OF_FOUR = {"platform": "p100-25gbe"}


@pytest.mark.parametrize(
    "sync, fields",
    [
        ("ring", {"delays": {"kind": "exponential", "delay_ms": 1.0}}),
        ("ring", {"delays": {"stall": {1: 3}}}),
        ({"scheme": "mapreduce", "fraction": 0.5}, {}),
        (ASP, {"delays": {"straggler": {1: 4.0}}}),
        (SSP, {"delays": {"straggler": {1: 4.0}}}),
        ({"scheme": "ps", "servers": 2, "groups": 4}, {}),
        ({"scheme": "ps", "pull": "separate"}, {}),
        ({"scheme": "ps", "overlap": True}, {}),
        ("ps", {"cluster": {"placement": "colocated"}}),
        ({"scheme": "ring", "allreduce": "star", "bucket_mb": 0.01}, {}),
        ({"scheme": "ring", "allreduce": "hierarchical", "node_size": 3}, {}),
        ({"scheme": "ring", "allreduce": "tree"}, {"cluster": NODES_OF_FOUR}),
        ({"scheme": "ring", "factors": True}, {"cluster": {"messages": "values"}}),
        ("ring", {"model": {"norm": "sync_batch"}, "cluster": {"messages": "values"}}),
        ({"scheme": "ps", "consistency": "asp", "fetch_every": 4}, {}),
        ({"scheme": "ps", "servers": 2, "replicas": 1}, {}),
        ({"scheme": "ps", "consistency": "ssp", "staleness": 0}, {}),
        ("mapreduce", {"cluster": NODES_OF_FOUR}),
        ("gossip", {"cluster": NODES_OF_FOUR}),
        ({"scheme": "gossip", "topology": "star"}, {}),
    ],
    ids=str,
)
def test_a_step_that_has_to_be_simulated_is_not_predicted(sync, fields):
    assert predict(experiment(8, sync, **fields)) is None


@pytest.mark.parametrize("timing", ["exponential", {"kind": "gamma", "cv": 0.3}])
def test_times_that_vary_are_simulated(ours, timing):
    timing = {"kind": timing} if isinstance(timing, str) else timing
    assert predict(ours(8, "ring", {"timing": timing})) is None


def test_predicting_loads_no_torch():
    code = """
import sys
from dlpar import Experiment, launch
from dlpar.theory import predict
for sync in ("ring", "ps", "mapreduce", "gossip"):
    assert predict(Experiment(sync=sync, cluster={"world": "simulated"})).seconds > 0
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


# ---- published ----------------------------------------------------------------------------------------------


def horovod(model: str, gpus: int, sync, platform: str = "p100-25gbe-roce") -> float:
    """Seconds a step of 64 images a GPU."""
    cluster = {"world": "simulated", "messages": "sizes", "platform": platform, "stand_in_for": model}
    return predict(Experiment(workers=gpus, batch=64, scaling="weak", sync=sync, cluster=cluster)).seconds


@pytest.mark.parametrize("model, efficiency", [("inception3", 0.90), ("resnet101", 0.90), ("vgg16", 0.68)])
def test_one_overlap_gives_the_efficiencies_of_horovod_on_512_gpus(model, efficiency):
    """Horovod's README: 128 servers of 4 Pascal GPUs, 25 GbE RoCE; tensors fused to 64 MB; one overlap for all."""
    sync, pascal = {"scheme": "ring", "overlap": True, "bucket_mb": 64.0}, platform_file("horovod")
    share = horovod(model, 1, sync, pascal) / horovod(model, 512, sync, pascal)
    assert share == pytest.approx(efficiency, abs=0.08)


@pytest.mark.parametrize("gpus", (8, 32, 128, 512))
def test_a_ring_is_above_a_parameter_server_from_8_gpus_on(gpus):
    for servers in {1, gpus // 4}:
        of_servers = horovod("resnet101", gpus, {"scheme": "ps", "servers": servers})
        assert horovod("resnet101", gpus, "ring") < of_servers


def test_push_sum_sends_one_number_more_than_the_weights():
    sync = {"scheme": "gossip", "topology": "exp2", "exchange": "push_sum"}
    small = {"model": "linear", "data": "diabetes", "cluster": {"platform": "cpu-1gbe", "messages": "values"}}
    mine = experiment(4, sync, **small)
    told, taken = predict(mine), launch(mine).wait(60).curve["seconds"].diff().median()
    assert told.kind == "exact" and told.seconds == pytest.approx(taken, rel=1e-9)
