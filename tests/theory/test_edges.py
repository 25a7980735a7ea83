"""Predictions at the edges: workloads without computing, unusual links and times, and what is said not to be exact."""

from __future__ import annotations

import json
from math import inf

import pytest

from dlpar.config.schema import BadExperiment
from dlpar.theory import predict
from dlpar.worlds.platforms.lookup import charges
from theory.test_steps import experiment, simulated

pytestmark = pytest.mark.slow

BETWEEN = {"latency": 1e-4, "bandwidth": 1e9}


@pytest.fixture
def ours(tmp_path):
    """An experiment on a platform and with a workload of one's own."""

    def described(workers, sync, platform=None, work=None, messages="sizes", **fields):
        cluster = {"messages": messages}
        whole = {} if "layers" in (work or {}) else {"parameters": 1_000_000, "flops": 1e9}
        tables = {
            "platform": {
                "device": {"name": "d", "flops": 1e12},
                "nodes": 64,
                "between": BETWEEN,
                **(platform or {}),
            },
            "stand_in_for": {**whole, **(work or {})},
        }
        for field, table in tables.items():
            path = tmp_path / f"{field}{len(list(tmp_path.iterdir()))}.json"
            path.write_text(json.dumps(table))
            cluster[field] = str(path)
        return experiment(workers, sync, cluster, scaling="weak", batch=8, **fields)

    return described


@pytest.mark.parametrize("sync", ("ring", "ps", "mapreduce"))
@pytest.mark.parametrize("itemsize", (1, 2, 8))
def test_elements_of_a_workload_have_its_size_whatever_the_small_models_dtype(ours, sync, itemsize):
    mine = ours(4, sync, work={"itemsize": itemsize}, dtype="float64")
    told, usual = predict(mine), predict(ours(4, sync))
    assert told.exact and told.seconds == pytest.approx(simulated(mine)[0], rel=1e-3)
    assert told.bytes == pytest.approx(usual.bytes * itemsize / 4, rel=1e-3)


@pytest.mark.parametrize("messages", ("sizes", "values"))
def test_a_workload_that_only_sends_has_a_time_too(ours, messages):
    mine = ours(4, "ring", work={"flops": 0}, messages=messages, steps=8)
    told = predict(mine)
    assert told.exact and told.seconds == pytest.approx(simulated(mine)[0], rel=1e-3)
    assert (charges(mine)[1] == inf) == (messages == "values")  # there FLOPs are those of the workload


def test_a_small_model_cannot_send_in_place_of_one_without_parameters(ours):
    with pytest.raises(
        BadExperiment, match="^cluster.stand_in_for: got .*, which has no parameters, allowed with"
    ):
        charges(ours(2, "ring", work={"parameters": 0}, messages="values"))


@pytest.mark.parametrize("consistency", ("asp", "ssp"))
@pytest.mark.parametrize("trace", ([1, 2, 3, 4, 5, 6, 7], [1, 1, 1, 5]))
def test_workers_that_run_free_take_the_mean_of_a_trace(ours, consistency, trace):
    times = {"timing": {"kind": "trace", "trace": trace}}
    sync = {"scheme": "ps", "consistency": consistency}
    mine = ours(1, sync, times, {"parameters": 1000}, steps=84)
    assert predict(mine).seconds == pytest.approx(simulated(mine)[0], rel=0.05)


def test_the_overhead_of_a_step_comes_before_what_communication_hides_behind(ours):
    device = {"device": {"name": "d", "flops": 1e12, "overhead": 0.01}}
    mine = ours(4, {"scheme": "ring", "overlap": True}, device)
    told = predict(mine)
    assert told.exact and told.seconds == pytest.approx(simulated(mine)[0], rel=1e-3)


@pytest.mark.parametrize("consistency", ("asp", "ssp"))
def test_pushes_and_answers_share_the_port_of_a_server_that_is_half_duplex(ours, consistency):
    mine = ours(17, {"scheme": "ps", "consistency": consistency}, {"between": {**BETWEEN, "duplex": "half"}})
    told = predict(mine)
    assert not told.exact and told.seconds == pytest.approx(simulated(mine)[0], rel=1e-3)


@pytest.mark.parametrize(
    "workers, sync", [(16, "ring"), (12, {"scheme": "ring", "allreduce": "hierarchical"})]
)
def test_what_a_port_has_not_sent_yet_is_in_the_way_of_the_next_step(workers, sync):
    """A small model on quick devices: messages below the eager limit pile up at the one port of a node."""
    mine = experiment(workers, sync, {"platform": "h100-10gbe"})
    told = predict(mine)
    assert told.exact and told.seconds == pytest.approx(simulated(mine)[0], rel=1e-3)


def test_short_broadcasts_of_mapreduce_are_in_the_way_of_the_next_ones(ours):
    slow = {"between": {"latency": 1e-5, "bandwidth": 1e8}}
    mine = ours(17, {"scheme": "mapreduce", "depth": 1}, slow, {"parameters": 10_000, "flops": 1e8})
    told = predict(mine)
    assert told.exact and told.seconds == pytest.approx(simulated(mine)[0], rel=1e-3)


TWO_BUCKETS = [
    {"name": name, "parameters": n, "flops": 1e9} for name, n in (("a", 6_000_000), ("b", 1_000_000))
]
NODES_OF_TWO = {"devices": 2, "inside": {"latency": 1e-6, "bandwidth": 1e10}, "nic": "each", "eager": 0}


@pytest.mark.parametrize(
    "workers, sync, platform, work",
    [
        (3, {"scheme": "ring", "allreduce": "halving_doubling"}, {}, {"layers": TWO_BUCKETS}),
        (3, {"scheme": "ps", "consistency": "asp", "pull": "separate"}, {}, {"flops": 1e8}),
        (3, {"scheme": "ps", "consistency": "ssp", "pull": "separate"}, {}, {"flops": 1e8}),
        (9, "ring", NODES_OF_TWO, {"parameters": 300}),
        (17, {"scheme": "ring", "allreduce": "star"}, NODES_OF_TWO, {"parameters": 300}),
        (16, {"scheme": "ps"}, NODES_OF_TWO, {"parameters": 3000}),
    ],
)
def test_what_a_form_does_not_follow_it_does_not_call_exact(ours, workers, sync, platform, work):
    mine = ours(workers, sync, platform, work)
    told = predict(mine)
    assert not told.exact and "not followed" in told.how
    assert told.seconds != pytest.approx(simulated(mine)[0], rel=5e-3)


def test_what_bounds_a_time_from_above_says_so(ours):
    times = {"timing": {"kind": "exponential"}}
    stale = ours(8, {"scheme": "ps", "consistency": "ssp"}, times, {"parameters": 1000}, steps=100)
    behind = ours(8, {"scheme": "ring", "allreduce": "star", "overlap": True}, work={"layers": TWO_BUCKETS})
    for mine in (stale, behind):
        told = predict(mine)
        assert "bounds" in told.how and told.seconds > simulated(mine)[0]
