"""Closed forms of schemes: worked out by hand, tied to each other, and held against published tables."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dlpar import Experiment
from dlpar.theory import (
    Link,
    bubble,
    buckets,
    collective_seconds,
    expected_slowest,
    exposed_seconds,
    gossip_seconds,
    local_sgd_seconds,
    overlapped,
    predict,
    ps_asp_seconds,
    ps_round_seconds,
    ps_step_seconds,
    ssp_bounds,
    two_level_ps_seconds,
)
from dlpar.worlds.platforms import Timing

LINK = Link(latency=1e-3, bandwidth=1e6)  # 1 ms, and 1 ms a kilobyte


# ---- parameter servers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workers, servers, ms", [(1, 1, 2 + 16), (4, 1, 2 + 64), (4, 2, 2 + 32), (8, 8, 2 + 16)]
)
def test_a_round_of_dedicated_servers_of_8_kb_takes_as_long_as_worked_out_by_hand(workers, servers, ms):
    assert 1e3 * ps_round_seconds(workers, servers, 8000, LINK) == pytest.approx(ms)


def test_colocated_servers_one_a_worker_take_as_long_as_a_ring_does_for_its_bytes():
    wide = Link(latency=0, bandwidth=1e6)
    ring = collective_seconds("ring", 8, 8000, wide)
    assert ps_round_seconds(8, 8, 8000, wide, colocated=True) == pytest.approx(ring)
    assert ps_round_seconds(1, 1, 8000, LINK, colocated=True) == 0


def test_an_answer_may_be_longer_than_a_push_and_a_slow_server_sets_the_pace():
    assert 1e3 * ps_round_seconds(4, 1, 1000, LINK, answer=8000) == pytest.approx(2 + 4 + 32)
    assert 1e3 * ps_round_seconds(4, 1, 1000, LINK, serving=5e-3) == pytest.approx(2 + 1 + 4 * 5 + 4)


def test_steps_that_follow_each_other_overlap_with_one_server_by_almost_half():
    step = ps_step_seconds(8, 1, 8000, LINK, compute=0.1)
    assert 1e3 * step == pytest.approx(100 + 2 + 9 * 8)
    assert step < 0.1 + ps_round_seconds(8, 1, 8000, LINK)


def test_asynchronous_workers_are_as_fast_as_one_of_them_until_the_server_is_full():
    alone = ps_asp_seconds(1, 1, 8000, LINK, compute=0.1)
    assert 1e3 * alone == pytest.approx(100 + 2 + 8 + 8)
    assert ps_asp_seconds(4, 1, 8000, LINK, compute=0.1) == pytest.approx(alone)
    assert 1e3 * ps_asp_seconds(100, 1, 8000, LINK, compute=0.1) == pytest.approx(100 * 8)
    assert ps_asp_seconds(100, 2, 8000, LINK, compute=0.1) == pytest.approx(0.4)


def test_two_levels_are_a_round_of_each_group_around_a_round_of_the_leaves():
    expected = ps_round_seconds(4, 1, 8000, LINK) + ps_round_seconds(2, 2, 8000, LINK)
    assert two_level_ps_seconds(8, 2, 2, 8000, LINK) == pytest.approx(expected)
    assert two_level_ps_seconds(64, 8, 1, 8000, LINK) < ps_round_seconds(64, 1, 8000, LINK)


# ---- overlap, local steps, neighbours ------------------------------------------------------------------------


def test_what_the_backward_pass_does_not_hide_is_exposed():
    assert exposed_seconds([1, 2, 3], [0.5, 0.5, 0.5], computed=3) == 0.5  # only the last bucket
    assert exposed_seconds([3], [2], computed=3) == 2  # one bucket: nothing hidden
    assert exposed_seconds([1, 2], [5, 1], computed=3) == 4  # the second waits for the first
    assert exposed_seconds([0.5], [1], computed=3) == 0
    with pytest.raises(ValueError, match="taking: got 1 buckets, allowed is 2"):
        exposed_seconds([1, 2], [1], computed=3)


def test_a_computation_that_is_disturbed_goes_on_more_slowly_while_buckets_are_sent():
    assert overlapped([1], [1], computed=3, beside=0.5) == (3.5, 2)  # a second at half speed
    assert overlapped([1], [1], computed=3, beside=0) == (4, 2)  # it stands still meanwhile
    assert overlapped([1, 2], [2, 1], computed=2, beside=0.5) == (3, 4)  # all the rest at half speed
    assert (
        exposed_seconds([1, 2, 3], [0.5, 0.5, 0.5], computed=3, beside=0) == 1.5
    )  # as if nothing overlapped


def test_buckets_hold_what_fits_and_a_tensor_that_does_not_is_one_of_its_own():
    assert buckets([5, 5, 5], most=10) == [range(2), range(2, 3)]
    assert buckets([50, 5], most=10) == [range(1), range(1, 2)]
    assert buckets([1, 2, 3], most=math.inf) == [range(3)]


def test_local_steps_share_one_exchange():
    assert local_sgd_seconds(compute=0.1, communicate=0.4, period=8) == pytest.approx(0.15)
    assert local_sgd_seconds(compute=0.1, communicate=0.4, period=1) == pytest.approx(0.5)


def test_gossip_costs_its_degree_and_no_more_on_more_workers():
    assert 1e3 * gossip_seconds(2, 6000, LINK) == pytest.approx(1 + 12)
    assert 1e3 * gossip_seconds(2, 6000, Link(1e-3, 1e6, "half")) == pytest.approx(24)
    assert gossip_seconds(0, 6000, LINK) == 0


# ---- waiting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", (1, 2, 8, 64))
def test_the_slowest_of_exponential_workers_is_a_harmonic_number_of_means(workers):
    harmonic = sum(1 / k for k in range(1, workers + 1))
    assert expected_slowest(workers, Timing(kind="exponential")) == pytest.approx(harmonic, rel=1e-12)
    assert expected_slowest(workers, Timing(kind="gamma", cv=1.0)) == pytest.approx(harmonic, rel=1e-6)


@pytest.mark.parametrize("workers, cv", [(2, 0.05), (16, 0.1), (64, 0.5), (8, 2.0)])
def test_the_slowest_of_gamma_workers_is_what_many_draws_say(workers, cv):
    shape = cv**-2
    draws = np.random.default_rng(0).gamma(shape, 1 / shape, (20_000, workers)).max(axis=1)
    error = draws.std() / math.sqrt(len(draws))
    assert expected_slowest(workers, Timing(kind="gamma", cv=cv)) == pytest.approx(
        draws.mean(), abs=4 * error
    )


@pytest.mark.parametrize("cv", (0.01, 0.1, 1.0, 3.0, 10.0))
def test_one_worker_waits_for_nobody(cv):
    assert expected_slowest(1, Timing(kind="gamma", cv=cv)) == pytest.approx(1, rel=1e-5)


def test_the_slowest_on_a_trace_is_the_mean_of_its_windows_largest():
    timing = Timing(kind="trace", trace=[1.0, 3.0, 1.0, 1.0])
    assert expected_slowest(2, timing) == pytest.approx((3 + 3 + 1 + 1) / 4)
    assert expected_slowest(8, timing) == 3
    assert expected_slowest(2, timing, steps=4) == pytest.approx(1.5)


def test_meeting_less_often_waits_less_and_staleness_bounds_it():
    timing = Timing(kind="exponential")
    factors = [expected_slowest(8, timing, steps) for steps in (1, 2, 4, 16, 256)]
    assert factors == sorted(factors, reverse=True) and factors[-1] < 1.1
    assert ssp_bounds(8, timing, 0) == (1.0, factors[0])
    assert ssp_bounds(8, timing, 3) == (1.0, factors[2])
    assert expected_slowest(8, Timing()) == 1


# ---- pipelines ----------------------------------------------------------------------------------------------


def test_bubbles_are_those_of_megatron_and_of_zero_bubble():
    for p, m in ((4, 8), (8, 8), (2, 32)):
        assert bubble("gpipe", p, m) == bubble("1f1b", p, m) == (p - 1) / m
        for v in (1, 2, 4):
            assert bubble("interleaved", p, m, chunks=v) == (p - 1) / (v * m)
        assert bubble("zb-h1", p, m) == pytest.approx((p - 1) / (3 * m))
        assert bubble("zb-h2", p, m) == 0
    assert bubble("1f1b", 1, 8) == 0


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: ps_round_seconds(2, 3, 1, LINK), "servers: got 3, allowed with 2 workers is from 1 to 2"),
        (lambda: ps_round_seconds(0, 1, 1, LINK), "workers: got 0"),
        (lambda: two_level_ps_seconds(4, 5, 1, 1, LINK), "groups: got 5"),
        (lambda: exposed_seconds([1], [1], 1, beside=2), "beside: got 2"),
        (lambda: gossip_seconds(-1, 1, LINK), "degree: got -1"),
        (lambda: local_sgd_seconds(1, 1, 0), "period: got 0"),
        (lambda: expected_slowest(0, Timing()), "workers: got 0"),
        (lambda: ssp_bounds(4, Timing(), -1), "staleness: got -1"),
        (lambda: bubble("dapple", 4, 8), "schedule: got 'dapple', allowed is one of gpipe"),
        (lambda: bubble("1f1b", 4, 8, chunks=2), "chunks: got 2, allowed with schedule 1f1b is 1"),
        (lambda: bubble("1f1b", 0, 8), "stages: got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


# ---- published ----------------------------------------------------------------------------------------------


def test_mxnet_servers_fitted_on_1_and_8_predict_2_and_4_and_its_all_reduce():
    """Apache wiki, "Extend MXNet distributed training by MPI AllReduce": 400 MB, 8 workers, 10 GbE."""
    measured, payload, workers = {1: 6.5, 2: 3.4, 4: 2.0, 8: 1.2}, 400e6, 8

    def bytes_by_one_port(servers: int) -> float:
        return ps_round_seconds(workers, servers, payload, Link(0, 1.0))

    slope = (measured[1] - measured[8]) / (bytes_by_one_port(1) - bytes_by_one_port(8))
    constant = measured[8] - slope * bytes_by_one_port(8)
    link = Link(0, 1 / slope)
    for servers in (2, 4):
        seconds = constant + ps_round_seconds(workers, servers, payload, link)
        assert seconds == pytest.approx(measured[servers], rel=0.05)
    assert constant + collective_seconds("ring", workers, payload, link) == pytest.approx(1.0, rel=0.15)
    assert 0.7 < link.bandwidth / 1.25e9 < 1  # of the nominal 10 Gb/s, as TCP reaches


def horovod(model: str, gpus: int, sync, platform: str = "p100-25gbe-roce") -> float:
    """Seconds a step of 64 images a GPU."""
    cluster = {"world": "simulated", "messages": "sizes", "platform": platform, "stand_in_for": model}
    return predict(Experiment(workers=gpus, batch=64, scaling="weak", sync=sync, cluster=cluster)).seconds


@pytest.fixture
def pascal(tmp_path) -> str:
    """Nodes of 4 P100 on 25 GbE RoCE; the one parameter of overlap, for all models."""
    path = tmp_path / "pascal.json"
    path.write_text(json.dumps({"extends": "p100-25gbe-roce", "name": "pascal", "overlap": 0.55}))
    return str(path)


@pytest.mark.parametrize("model, efficiency", [("inception3", 0.90), ("resnet101", 0.90), ("vgg16", 0.68)])
def test_one_overlap_gives_the_efficiencies_of_horovod_on_512_gpus(model, efficiency, pascal):
    """Horovod's README: 128 servers of 4 Pascal GPUs, 25 GbE RoCE; tensors fused to 64 MB."""
    sync = {"scheme": "ring", "overlap": True, "bucket_mb": 64.0}
    assert horovod(model, 1, sync, pascal) / horovod(model, 512, sync, pascal) == pytest.approx(
        efficiency, abs=0.08
    )


@pytest.mark.parametrize("gpus", (8, 32, 128, 512))
def test_a_ring_is_above_a_parameter_server_from_8_gpus_on(gpus):
    for servers in {1, gpus // 4}:
        assert horovod("resnet101", gpus, "ring") < horovod(
            "resnet101", gpus, {"scheme": "ps", "servers": servers}
        )
