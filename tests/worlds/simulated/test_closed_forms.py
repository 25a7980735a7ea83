"""Simulated collectives take the seconds their closed forms say, where all ranks have ports of their own."""

from __future__ import annotations

from functools import partial

import pytest
from simulations import KB, MS, cluster, ends

from dlpar import collectives as c
from dlpar.theory import Link, collective_seconds
from dlpar.worlds.platforms import PLATFORMS

SIZES = [*range(2, 18), 24, 31, 32, 33, 48, 63, 64]
POWERS = [2, 4, 8, 16, 32, 64]
LINKS = {
    "short messages": Link(50e-6, 1.25e9),
    "long messages": Link(2e-6, 1e8),
    "a gigabyte a second": Link(10e-6, 1e9),
    "nothing but bytes": Link(0.0, 1e9),
    "busy processors": Link(50e-6, 1.25e9, 20e-6),
    "busier than ports": Link(500e-6, 1e10, 250e-6),
}
EXACT = 1e-3
"""The bar: a thousandth."""


def measured(collective, ranks: int, elements: int, link: Link) -> float:
    """Seconds until the last rank is done with a collective of so many float32."""
    return max(ends(lambda comm: collective(comm, comm.empty(elements)), ranks, cluster(link=link)))


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("name", ["ring", "star"])
def test_ring_and_star_take_what_their_closed_forms_say_on_any_number_of_ranks(name, link):
    for ranks in SIZES:
        elements = 64 * 63 * 100 if name == "star" else 1000 * ranks  # a ring's chunks are equal then
        said = collective_seconds(name, ranks, 4 * elements, link)
        assert measured(c.ALLREDUCE[name], ranks, elements, link) == pytest.approx(said, rel=EXACT), ranks


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("name", ["tree", "halving_doubling"])
def test_trees_take_what_their_closed_forms_say_at_powers_of_two(name, link):
    for ranks in POWERS:
        said = collective_seconds(name, ranks, 4 * 64_000, link)
        assert measured(c.ALLREDUCE[name], ranks, 64_000, link) == pytest.approx(said, rel=EXACT), ranks


@pytest.mark.parametrize("latency", [0.0, 5e-6, 50e-6, 500e-6])
@pytest.mark.parametrize("name", ["tree", "halving_doubling"])
def test_elsewhere_their_closed_forms_bound_them(name, latency):
    for ranks in set(SIZES) - set(POWERS):
        said = collective_seconds(name, ranks, 4 * 64_000, Link(latency, 1.25e9))
        assert measured(c.ALLREDUCE[name], ranks, 64_000, Link(latency, 1.25e9)) <= said * (1 + EXACT), ranks


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_two_levels_take_what_their_closed_form_says(group):
    link = LINKS["short messages"]
    for ranks in range(2 * group, 65, group):
        elements = 840 * ranks // group
        said = collective_seconds("hierarchical", ranks, 4 * elements, link, group=group)
        took = measured(partial(c.hierarchical_allreduce, group=group), ranks, elements, link)
        assert took == pytest.approx(said, rel=EXACT), ranks


@pytest.mark.parametrize("between", [Link(30e-6, 1.9e9), Link(9.6e-6, 12e9)])
def test_two_levels_on_nodes_of_four_use_both_links_as_their_closed_form_says(between):
    inside, elements = Link(5.7e-6, 10e9), 1_000_000
    platform = cluster(16, between, devices=4, inside=inside)
    for nodes in (2, 3, 7, 16):
        where = [rank // 4 for rank in range(4 * nodes)]
        took = max(
            ends(lambda comm: c.hierarchical_allreduce(comm, comm.empty(elements), 4), where, platform)
        )
        said = collective_seconds("hierarchical", 4 * nodes, 4 * elements, inside, group=4, between=between)
        assert took == pytest.approx(said, rel=EXACT), nodes


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_sparks_tree_takes_what_its_closed_form_says(depth):
    link = LINKS["short messages"]
    scales = {1: SIZES, 2: [4, 9, 16, 25, 36, 64], 3: [8, 27, 64], 4: [16]}  # levels are full
    for ranks in scales[depth]:
        said = collective_seconds("tree_aggregate", ranks, 4 * 64_000, link, depth=depth)
        assert measured(partial(c.tree_aggregate, depth=depth), ranks, 64_000, link) == pytest.approx(
            said, rel=EXACT
        )


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_a_torrent_takes_what_its_closed_form_says_on_any_number_of_ranks(link):
    for ranks in SIZES:
        elements = 1000 * (ranks - 1)  # blocks are equal then
        said = collective_seconds("torrent_broadcast", ranks, 4 * elements, link)
        assert measured(c.torrent_broadcast, ranks, elements, link) == pytest.approx(said, rel=EXACT), ranks


def test_with_the_work_of_a_message_a_tree_of_thousands_beats_a_star():
    """Messages to one rank cross the network at the same time, but its processor takes one after the other."""
    link = PLATFORMS["cpu-10gbe"].between
    star, tree = (measured(c.ALLREDUCE[name], 4096, 2, link) for name in ("star", "tree"))
    assert star == pytest.approx(collective_seconds("star", 4096, 8, link), rel=EXACT)
    assert tree == pytest.approx(collective_seconds("tree", 4096, 8, link), rel=EXACT)
    assert tree < star / 20 and link.overhead == 2e-6


def test_a_torrent_of_a_long_message_beats_a_tree():
    tree, torrent = (
        measured(each, 64, 6_300_000, LINKS["a gigabyte a second"])
        for each in (c.tree_broadcast, c.torrent_broadcast)
    )
    assert torrent < tree / 2.8


def test_half_a_collective_takes_the_time_of_that_half():
    link = LINKS["long messages"]
    halves = {
        "star_reduce": c.star_reduce,
        "star_broadcast": c.star_broadcast,
        "tree_reduce": c.tree_reduce,
        "tree_broadcast": c.tree_broadcast,
        "ring_reduce_scatter": lambda comm, whole: c.ring_reduce_scatter(comm, whole.tensor_split(comm.size)),
        "ring_allgather": lambda comm, whole: c.ring_allgather(comm, whole.tensor_split(comm.size)),
    }
    for name, half in halves.items():
        said = collective_seconds(name, 16, 4 * 64_000, link)
        assert measured(half, 16, 64_000, link) == pytest.approx(said, rel=EXACT), name


def test_adding_takes_its_time():
    """10 FLOP/s, a FLOP an element: on slow devices a ring's additions are most of what it takes."""
    from dlpar.worlds.platforms import Device

    platform = cluster(device=Device(name="slow", flops=1e4))
    took = max(ends(lambda comm: c.ring_allreduce(comm, comm.empty(4 * KB)), 4, platform))
    said = collective_seconds("ring", 4, 16 * KB, platform.between, adding=1e-4 / 4)
    assert took == pytest.approx(said, rel=EXACT) and said > 300 * MS
