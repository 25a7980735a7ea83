"""Closed forms of averaging with neighbours."""

from __future__ import annotations

import pytest

from dlpar import Experiment
from dlpar.theory import Link, contraction, neighbour_seconds

LINK = Link(latency=1e-3, bandwidth=1e6)  # 1 ms, and 1 ms a kilobyte


def test_an_exchange_with_neighbours_costs_their_number_and_no_more_on_more_workers():
    assert 1e3 * neighbour_seconds(2, 6000, LINK) == pytest.approx(1 + 12)
    assert 1e3 * neighbour_seconds(2, 6000, Link(1e-3, 1e6, "half")) == pytest.approx(24)
    assert neighbour_seconds(0, 6000, LINK) == 0
    with pytest.raises(ValueError, match="degree: got -1"):
        neighbour_seconds(-1, 1, LINK)


@pytest.mark.parametrize(
    "workers, sync, factor",
    [
        (1, {}, 0.0),
        (4, {}, 1 / 3),
        (6, {"topology": "complete"}, 0.0),
        (8, {"exchange": "random", "peers": 3}, (4 / (4 * 7)) ** 0.5),
        (4, {"topology": "edges", "edges": "0-1,2-3"}, 1.0),
    ],
)
def test_the_graph_says_how_fast_replicas_agree(workers, sync, factor):
    experiment = Experiment(workers=workers, sync={"scheme": "gossip", **sync})
    assert contraction(experiment) == pytest.approx(factor, abs=1e-9)
