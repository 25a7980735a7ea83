"""Closed forms of the parameter server: worked out by hand, and held against a published table."""

from __future__ import annotations

import pytest

from dlpar.theory import Link, Servers, collective_seconds

LINK = Link(latency=1e-3, bandwidth=1e6)  # 1 ms, and 1 ms a kilobyte


@pytest.mark.parametrize(
    "workers, servers, ms", [(1, 1, 2 + 16), (4, 1, 2 + 64), (4, 2, 2 + 32), (8, 8, 2 + 16)]
)
def test_a_round_of_dedicated_servers_of_8_kb_takes_as_long_as_worked_out_by_hand(workers, servers, ms):
    assert 1e3 * Servers(workers, servers, 8000, LINK).round_seconds() == pytest.approx(ms)


def test_colocated_servers_one_a_worker_take_as_long_as_a_ring_does_for_its_bytes():
    wide = Link(latency=0, bandwidth=1e6)
    ring = collective_seconds("ring", 8, 8000, wide)
    assert Servers(8, 8, 8000, wide).round_seconds(colocated=True) == pytest.approx(ring)
    assert Servers(1, 1, 8000, LINK).round_seconds(colocated=True) == 0


def test_an_answer_may_be_longer_than_a_push_and_a_slow_server_sets_the_pace():
    assert 1e3 * Servers(4, 1, 1000, LINK, answer=8000).round_seconds() == pytest.approx(2 + 4 + 32)
    assert 1e3 * Servers(4, 1, 1000, LINK, serving=5e-3).round_seconds() == pytest.approx(2 + 1 + 4 * 5 + 4)


def test_steps_that_follow_each_other_overlap_with_one_server_by_almost_half():
    step = Servers(8, 1, 8000, LINK).step_seconds(0.1)
    assert 1e3 * step == pytest.approx(100 + 2 + 9 * 8)
    assert step < 0.1 + Servers(8, 1, 8000, LINK).round_seconds()


def test_asynchronous_workers_are_as_fast_as_one_of_them_until_the_server_is_full():
    alone = Servers(1, 1, 8000, LINK).asp_seconds(0.1)
    assert 1e3 * alone == pytest.approx(100 + 2 + 8 + 8)
    assert Servers(4, 1, 8000, LINK).asp_seconds(0.1) == pytest.approx(alone)
    assert 1e3 * Servers(100, 1, 8000, LINK).asp_seconds(0.1) == pytest.approx(100 * 8)
    assert Servers(100, 2, 8000, LINK).asp_seconds(0.1) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "call, complaint",
    [
        (
            lambda: Servers(2, 3, 1, LINK).round_seconds(),
            "servers: got 3, allowed with 2 workers is from 1 to 2",
        ),
        (lambda: Servers(0, 1, 1, LINK), "workers: got 0"),
        (lambda: Servers(2, 0, 1, LINK), "servers: got 0, allowed is a whole number from 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


def test_mxnet_servers_fitted_on_1_and_8_predict_2_and_4_and_its_all_reduce():
    """Apache wiki, "Extend MXNet distributed training by MPI AllReduce": 400 MB, 8 workers, 10 GbE."""
    measured, payload, workers = {1: 6.5, 2: 3.4, 4: 2.0, 8: 1.2}, 400e6, 8

    def bytes_by_one_port(servers: int) -> float:
        return Servers(workers, servers, payload, Link(0, 1.0)).round_seconds()

    slope = (measured[1] - measured[8]) / (bytes_by_one_port(1) - bytes_by_one_port(8))
    constant = measured[8] - slope * bytes_by_one_port(8)
    link = Link(0, 1 / slope)
    for servers in (2, 4):
        seconds = constant + Servers(workers, servers, payload, link).round_seconds()
        assert seconds == pytest.approx(measured[servers], rel=0.05)
    assert constant + collective_seconds("ring", workers, payload, link) == pytest.approx(1.0, rel=0.15)
    assert 0.7 < link.bandwidth / 1.25e9 < 1  # of the nominal 10 Gb/s, as TCP reaches
