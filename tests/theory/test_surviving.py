"""Runs that die: formulas against published figures, draws, searches and all sets of nodes."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from dlpar.theory import best_interval, copies_lost, daly_interval, goodput, mtbf_of, young_interval

HOURS = 3600.0
M = 3.09 * HOURS


@pytest.mark.parametrize(
    "recovery, published",
    [(120, (0.948, 0.918, 0.890)), (300, (0.933, 0.904, 0.876)), (600, (0.908, 0.880, 0.853))],
)
def test_goodput_at_the_best_interval_is_that_of_the_published_table(recovery, published):
    ours = [goodput(best_interval(cost, M), cost, M, recovery) for cost in (10, 30, 60)]
    assert ours == pytest.approx(published, abs=0.001)


def test_failures_of_nodes_shrink_the_time_between_failures_of_a_job():
    assert mtbf_of(16_384 / 8, 6.50) / HOURS == pytest.approx(1.8, rel=0.05)
    assert mtbf_of(131_072 / 8, 6.50) / HOURS == pytest.approx(0.23, rel=0.05)
    assert mtbf_of(200, 3) == mtbf_of(100, 3) / 2


def drawn_goodput(interval: float, snapshot: float, mtbf: float, recovery: float, failures: int) -> float:
    """Draw Daly's process, one attempt of an interval after the other."""
    draw, kept, spent = np.random.default_rng(0), 0.0, 0.0
    for left in draw.exponential(mtbf, failures):
        whole = left // (interval + snapshot)
        kept, spent = kept + whole * interval, spent + left
        while (again := draw.exponential(mtbf)) < recovery:
            spent += again
        spent += recovery
    return kept / spent


@pytest.mark.parametrize(
    "interval, snapshot, recovery", [(465, 10, 120), (3000, 60, 600), (20_000, 600, 4000)]
)
def test_the_exact_form_is_the_mean_of_many_draws(interval, snapshot, recovery):
    ours = drawn_goodput(interval, snapshot, M, recovery, 100_000)
    assert goodput(interval, snapshot, M, recovery) == pytest.approx(ours, abs=0.003)


def test_a_job_that_fails_long_before_its_snapshot_gets_nowhere():
    assert 0 <= goodput(3600, 60, 5) < 1e-300 and goodput(36_000, 60, 40, 1e6) == 0


@pytest.mark.parametrize("share", (1e-4, 1e-3, 0.01, 0.1, 0.5, 3.0))
def test_the_best_interval_is_a_maximum_and_the_other_two_come_close_where_a_snapshot_is_short(share):
    cost, best = share * M, best_interval(share * M, M)
    around = [goodput(best * factor, cost, M, 60) for factor in (0.98, 1.0, 1.02)]
    assert max(around) == around[1]
    young, daly = young_interval(cost, M), daly_interval(cost, M)
    assert young == pytest.approx(math.sqrt(2 * share) * M)
    assert daly == pytest.approx(best, rel=0.06)
    if share <= 0.01:
        assert daly == pytest.approx(best, rel=0.001) and young == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize(
    "nodes, copies, placement",
    [(*sizes, each) for sizes in ((6, 1), (8, 2), (12, 3), (12, 4), (6, 6)) for each in ("group", "ring")]
    + [(7, 3, "ring")],
)
def test_lost_copies_are_counted_as_by_all_sets_of_nodes(nodes, copies, placement):
    step = copies if placement == "group" else 1
    holders = [{(first + j) % nodes for j in range(copies)} for first in range(0, nodes, step)]
    for failed in range(nodes + 1):
        down = [set(each) for each in combinations(range(nodes), failed)]
        share = sum(any(own <= each for own in holders) for each in down) / len(down)
        assert copies_lost(nodes, copies, failed, placement) == pytest.approx(share, abs=1e-12)


def test_groups_lose_less_than_a_ring_as_gemini_says():
    group, ring = (copies_lost(16, 2, 2, placement) for placement in ("group", "ring"))
    assert group == pytest.approx(8 / math.comb(16, 2)) and ring == pytest.approx(2 * group)
    assert copies_lost(1000, 2, 2) < 0.002  # thousands of nodes are no trouble


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: young_interval(0, 1), "snapshot: got 0, allowed is above 0"),
        (lambda: daly_interval(1, -1), "mtbf: got -1"),
        (lambda: goodput(0, 1, 1), "interval: got 0"),
        (lambda: mtbf_of(0, 6.5), "nodes: got 0"),
        (lambda: copies_lost(7, 2, 2), "got 7, 2, 2, group; allowed are groups of copies that divide"),
        (lambda: copies_lost(4, 5, 2, "ring"), "got 4, 5, 2, ring"),
        (lambda: copies_lost(4, 2, 2, "star"), "got 4, 2, 2, star"),
    ],
)
def test_what_makes_no_sense_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
