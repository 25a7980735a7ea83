"""Closed forms of averaging with neighbours."""

from __future__ import annotations

import pytest

from dlpar import Experiment
from dlpar.theory import contraction


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
