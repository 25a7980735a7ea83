"""A model is cut into parts that cost about the same."""

from __future__ import annotations

from itertools import combinations

import pytest
from trained_ranks import SMALL, trained

from dlpar.split.partition import cut


def held_weights(partition: str) -> list[int]:
    """Bytes of weights on each of two ranks."""
    fields = {**SMALL["mlp"], "split": {"kind": "pipeline", "microbatches": 5, "partition": partition}}
    return [facts[0]["memory"]["weights"] for facts in trained(steps=1, workers=2, **fields).facts]


def test_layers_are_cut_by_their_flops_and_measured_seconds_say_the_same_where_they_follow_from_flops():
    assert held_weights("measured") == held_weights("balanced") == held_weights("1,3") != held_weights(" 2,2")


@pytest.mark.parametrize(
    "costs, parts, wanted",
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([4, 1, 1, 1, 1], 2, [1, 4]),
        ([0, 5, 5, 0, 1], 4, None),
        ([3, 1, 4, 1, 5, 9, 2, 6], 3, None),
    ],
)
def test_no_other_cut_has_a_cheaper_costliest_part(costs, parts, wanted):
    def costliest(ends) -> int:
        return max(sum(costs[start:stop]) for start, stop in zip((0, *ends), (*ends, len(costs))))

    found = cut(costs, parts)
    assert [unit for part in found for unit in part] == list(range(len(costs)))
    possible = combinations(range(1, len(costs)), parts - 1)
    assert costliest([part.stop for part in found[:-1]]) == min(map(costliest, possible))
    assert wanted is None or [len(part) for part in found] == wanted
