"""Closed forms of time: they are those of the textbook, and paced and simulated ranks keep to them."""

from __future__ import annotations

import pytest

from dlpar import lab
from dlpar.theory import Link, collective_seconds, fitted
from dlpar.worlds.platforms import platform

LINK = Link(latency=1e-3, bandwidth=1e6)  # 1 ms, and 1 ms a kilobyte


@pytest.mark.parametrize(
    "name, ranks, ms",
    [
        ("star", 8, 2 * 1 + 14 * 6),
        ("star_reduce", 8, 1 + 7 * 6),
        ("tree", 8, 6 * 7),
        ("tree", 5, 4 * 1 + 6 * 6),
        ("tree", 3, 2 * 1 + 4 * 6),
        ("tree_reduce", 8, 3 * 7),
        ("ring", 6, 10 * (1 + 1)),
        ("ring_reduce_scatter", 6, 5 * 2),
        ("halving_doubling", 4, 4 * 1 + 2 * 0.75 * 6),
        ("halving_doubling", 5, 4 * 1 + 2 * 0.75 * 6 + 2 * 7 + 6 / 4),
        ("hierarchical", 6, 2 * (1 + 6) + 4 * (1 + 2)),
        ("tree_aggregate", 9, (1 + 2 * 6) + (1 + 2 * 6)),
        ("torrent_broadcast", 4, 3 * 1 + 5 * 2),
        ("torrent_broadcast", 2, 1 + 6),
        ("ring_allreduce", 1, 0),
    ],
)
def test_times_of_6_kb_are_those_worked_out_by_hand(name, ranks, ms):
    assert 1e3 * collective_seconds(name, ranks, 6000, LINK) == pytest.approx(ms)


def test_two_levels_of_one_rank_a_group_are_a_ring_and_one_group_is_a_star():
    assert collective_seconds("hierarchical", 4, 6000, LINK, group=1) == collective_seconds(
        "ring", 4, 6000, LINK
    )
    assert collective_seconds("hierarchical", 4, 6000, LINK, group=9) == collective_seconds(
        "star", 4, 6000, LINK
    )


def test_groups_may_be_joined_by_a_slower_link_than_their_ranks():
    far = Link(latency=2e-3, bandwidth=5e5)  # 2 ms, and 2 ms a kilobyte
    inside, between = 2 * (1 + 6), 4 * (2 + 2 * 2)
    assert 1e3 * collective_seconds("hierarchical", 6, 6000, LINK, between=far) == pytest.approx(
        inside + between
    )


def test_adding_is_charged_where_a_rank_adds():
    adding = 1e-6  # a second for a megabyte, as long as the bytes take
    plain, adds = (1e3 * collective_seconds("ring", 6, 6000, LINK, adding=g) for g in (0, adding))
    assert adds == pytest.approx(plain + 5 * 1)
    assert 1e3 * collective_seconds("tree", 8, 6000, LINK, adding=adding) == pytest.approx(6 * 7 + 3 * 6)
    assert 1e3 * collective_seconds("star_reduce", 8, 6000, LINK, adding=2e-6) == pytest.approx(
        1 + 6 + 7 * 12
    )
    assert 1e3 * collective_seconds("star_broadcast", 8, 6000, LINK, adding=adding) == pytest.approx(1 + 42)


def test_a_fit_finds_latency_and_bandwidth_again():
    link = fitted((16, 1000, 10**6), [LINK.seconds(size) for size in (16, 1000, 10**6)])
    assert (link.latency, link.bandwidth) == (pytest.approx(1e-3), pytest.approx(1e6))


def test_a_fit_is_never_a_negative_latency():
    assert fitted((1000, 2000), (1e-3, 3e-3)).latency == 0


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: collective_seconds("circle", 4, 1, LINK), "name: got 'circle', allowed is one of star"),
        (lambda: collective_seconds("ring", 0, 1, LINK), "ranks: got 0"),
        (
            lambda: collective_seconds("ring", 4, -1e6, LINK),
            "nbytes: got -1000000.0, allowed is a number from 0",
        ),
        (lambda: Link(-1, 1), "latency: got -1"),
        (lambda: Link(0, 0), "bandwidth: got 0"),
        (lambda: fitted((8,), (1.0,)), "sizes: got 1 for 1 times"),
        (lambda: fitted((8, 16), (1.0, 0.5)), "times that do not grow"),
        (lambda: lab.time_collectives(["circle"], 2, [4]), "names: got 'circle'"),
    ],
)
def test_what_makes_no_sense_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("world", ["paced", "simulated"])
def test_ping_pong_by_the_clock_of_a_platform_finds_its_link(world):
    found = lab.ping_pong(sizes=(1_000, 400_000), world=world, platform="cpu-1gbe")
    link = platform("cpu-1gbe").between
    assert (found.how, found.where) == (world, "cpu-1gbe")
    assert found.link.latency == pytest.approx(link.latency, rel=1e-3)
    assert found.link.bandwidth == pytest.approx(link.bandwidth, rel=1e-3)


@pytest.mark.slow
def test_collectives_of_paced_and_of_simulated_ranks_keep_to_the_closed_form():
    names, sizes, where = ("ring", "star", "tree"), (200_000,), "cpu-1gbe"
    predicted = lab.predict_collectives(names, 3, sizes, platform(where).between)
    for world in ("paced", "simulated"):
        for told, timed in zip(predicted, lab.time_collectives(names, 3, sizes, world, where), strict=True):
            assert told[:3] == timed[:3] and timed.how == world
            assert timed.seconds == pytest.approx(told.seconds, rel=1e-3)
