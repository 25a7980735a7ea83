"""Closed forms of averaging with neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from dlpar import Experiment
from dlpar.graphs import mixing_matrix, neighbours, partners
from dlpar.theory import contraction


@pytest.mark.parametrize(
    "workers, sync, factor",
    [
        (1, {}, 0.0),
        (4, {}, 1 / 3),
        (6, {"topology": "complete"}, 0.0),
        (8, {"exchange": "random", "peers": 3}, (4 / (4 * 7)) ** 0.5),
        (16, {"exchange": "one_peer"}, 0.0),
        (3, {"exchange": "one_peer"}, 0.5),
        (4, {"topology": "edges", "edges": "0-1,2-3"}, 1.0),
        (2, {"exchange": "pairwise"}, 0.0),
        (3, {"exchange": "pairwise"}, 0.25),  # 0-1 then 1-2: projections 60° apart, cos² 60°
        (5, {"exchange": "pairwise", "topology": "edges", "edges": "0-1,2-3"}, 1.0),
    ],
)
def test_the_graph_says_how_fast_replicas_agree(workers, sync, factor):
    experiment = Experiment(workers=workers, sync={"scheme": "gossip", **sync})
    assert contraction(experiment) == pytest.approx(factor, abs=1e-9)


def test_replicas_of_a_cut_model_agree_as_whole_ones_do():
    whole = Experiment(workers=4, sync={"scheme": "gossip", "topology": "edges", "edges": "0-1,1-2,2-3"})
    assert (
        contraction(whole.replace(workers=8, split={"kind": "tensor", "tensor": 2})) == contraction(whole) < 1
    )


@pytest.mark.parametrize(
    "fields", [{}, {"sync": "gossip", "averaging": "local"}], ids=["a ring all-reduce", "local steps"]
)
def test_what_has_no_factor_of_a_step_is_refused(fields):
    with pytest.raises(ValueError, match="^sync: got .*, allowed is gossip in each step, without averaging$"):
        contraction(Experiment(workers=4, **fields))


@pytest.mark.parametrize("topology", ["ring", "star", "grid"])
def test_averages_with_neighbours_shrink_the_distance(topology):
    experiment = Experiment(workers=8, sync={"scheme": "gossip", "topology": topology})
    matrix = mixing_matrix(neighbours(experiment.sync, 8, 0))
    x, lengths = np.random.default_rng(1).normal(size=8), []
    for _ in range(60):
        x = matrix @ x
        lengths.append(np.linalg.norm(x - x.mean()))
    measured = (lengths[59] / lengths[29]) ** (1 / 30)
    assert measured == pytest.approx(contraction(experiment), rel=0.02)


def test_random_peers_shrink_the_squared_distance_in_expectation():
    sync = {"scheme": "gossip", "exchange": "random", "peers": 2}
    experiment, draw = Experiment(workers=6, sync=sync), np.random.default_rng(2)
    x, squares = draw.normal(size=6), []
    x -= x.mean()
    for _ in range(20_000):
        circle, shifts = draw.permutation(6), 1 + draw.permutation(5)[:2]
        mixed = x.copy()
        for shift in shifts:
            mixed[np.roll(circle, -shift)] += x[circle]
        mixed /= 3
        squares.append(mixed @ mixed / (x @ x))
    assert np.sqrt(np.mean(squares)) == pytest.approx(contraction(experiment), rel=0.01)


@pytest.mark.parametrize("topology, workers", [("ring", 8), ("star", 12), ("complete", 9), ("exp2", 16)])
def test_pairs_shrink_the_squared_distance_in_expectation(topology, workers):
    sync = {"scheme": "gossip", "exchange": "pairwise", "topology": topology}
    experiment, draw = Experiment(workers=workers, sync=sync), np.random.default_rng(3)
    active, to = partners(neighbours(experiment.sync, workers, 0))
    x = draw.normal(size=(50_000, workers))  # many teams, each with its own partners
    x, every, squares = x - x.mean(axis=1, keepdims=True), np.arange(len(x)), []
    for _ in range(16):
        for i in sorted(active):
            j = draw.choice(to[i], len(x))
            x[every, i] = x[every, j] = (x[every, i] + x[every, j]) / 2
        squares.append((x**2).mean())
    measured = (squares[15] / squares[9]) ** (1 / 12)
    assert measured == pytest.approx(contraction(experiment), rel=0.02)
