"""Graphs of gossip and their mixing matrices: what must hold for every number of workers."""

from __future__ import annotations

import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlpar import Experiment
from dlpar.config.experiment import BadExperiment
from dlpar.config.sync import Gossip
from dlpar.graphs import (
    _large_cut,
    components,
    grid_shape,
    mixing_matrix,
    neighbours,
    partners,
    pushing_matrix,
    receivers,
    second_eigenvalue,
    senders,
    warning,
)
from dlpar.sync.gossip import circle
from dlpar.theory import contraction

in_time = settings(deadline=None)
"""A busy machine is no failure."""

NAMED = ("ring", "grid", "exp2", "star", "complete")


@st.composite
def graphs(draw):
    """A gossip scheme that is allowed, and a number of workers."""
    workers = draw(st.integers(1, 24))
    topology = draw(st.sampled_from((*NAMED, "random", "edges")))
    if topology == "random" and workers > 1:
        degree = (
            draw(st.integers(1, workers - 1).filter(lambda d: d * workers % 2 == 0)) if workers > 2 else 1
        )
        return Gossip(topology=topology, degree=degree), workers
    if topology == "edges" and workers > 1:
        ends = st.integers(0, workers - 1)
        pairs = st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1])
        return Gossip(topology=topology, edges=tuple(draw(st.lists(pairs, min_size=1, max_size=40)))), workers
    return Gossip(topology=draw(st.sampled_from(NAMED))), workers


@in_time
@given(graphs(), st.integers(0, 100))
def test_an_undirected_graph_is_symmetric_and_without_loops(given, seed):
    graph = neighbours(*given, seed)
    assert len(graph) == given[1]
    assert all(i in graph[j] and i != j for i, others in enumerate(graph) for j in others)


@in_time
@given(graphs(), st.integers(0, 100))
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(given, seed):
    matrix = mixing_matrix(neighbours(*given, seed))
    assert (matrix >= 0).all() and (np.diag(matrix) > 0).all()
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, rtol=1e-14)


@in_time
@given(graphs(), st.integers(0, 100))
def test_workers_can_agree_if_and_only_if_their_graph_is_connected(given, seed):
    graph = neighbours(*given, seed)
    assert (second_eigenvalue(mixing_matrix(graph)) < 1 - 1e-9) == (len(components(graph)) == 1)


@in_time
@given(graphs(), st.integers(0, 100))
def test_push_sum_gives_all_it_has_and_who_sends_is_heard(given, seed):
    graph = receivers(*given, seed)
    np.testing.assert_allclose(pushing_matrix(graph).sum(axis=0), 1, rtol=1e-14)
    heard = senders(graph)
    assert {(i, j) for i, to in enumerate(graph) for j in to} == {
        (i, j) for j, own in enumerate(heard) for i in own
    }


@in_time
@given(graphs(), st.integers(0, 100))
def test_active_and_passive_workers_keep_everybody_in_touch(given, seed):
    graph = neighbours(*given, seed)
    active, kept = partners(graph)
    assert components(kept) == components(graph)
    assert 2 * len(active) >= len(graph)
    assert all((i in active) != (j in active) and j in graph[i] for i, own in enumerate(kept) for j in own)


@pytest.mark.parametrize(
    "topology, workers, lost", [("ring", 8, 0), ("grid", 12, 0), ("star", 5, 0), ("ring", 5, 1)]
)
def test_a_bipartite_graph_loses_no_edge_and_an_odd_ring_one(topology, workers, lost):
    graph = neighbours(Gossip(topology=topology), workers, 0)
    _, kept = partners(graph)
    assert sum(map(len, graph)) - sum(map(len, kept)) == 2 * lost


def test_of_the_complete_graph_half_the_workers_ask_half_answer():
    active, kept = partners(neighbours(Gossip(topology="complete"), 8, 0))
    assert len(active) == 4 and all(len(own) == 4 for own in kept)


@in_time
@given(st.integers(1, 64))
def test_on_the_complete_graph_every_weight_is_one_nth_to_the_last_bit(workers):
    matrix = mixing_matrix(neighbours(Gossip(topology="complete"), workers, 0))
    assert (matrix == 1 / workers).all()
    assert second_eigenvalue(matrix) < 1e-12


@in_time
@given(st.integers(3, 40), st.integers(0, 50), st.data())
def test_a_random_graph_is_regular_connected_and_fixed_by_the_seed(workers, seed, data):
    degree = data.draw(st.integers(2, workers - 1).filter(lambda d: d * workers % 2 == 0))
    scheme = Gossip(topology="random", degree=degree)
    graph = neighbours(scheme, workers, seed)
    assert {len(set(others)) for others in graph} == {degree}
    # Of two neighbours each, graphs in several rings are common; 20 draws nearly always hold a connected one.
    assert degree == 2 or len(components(graph)) == 1
    assert graph == neighbours(scheme, workers, seed)


def test_random_graphs_differ_between_seeds():
    assert len({str(neighbours(Gossip(topology="random"), 16, seed)) for seed in range(5)}) == 5


@in_time
@given(st.integers(1, 40), st.integers(0, 10), st.integers(0, 1000), st.data())
def test_with_random_peers_everybody_sends_and_hears_equally_often(workers, seed, round, data):
    peers = data.draw(st.integers(0, workers - 1))
    order, shifts = circle(seed, round, workers, peers)
    matrix = np.eye(workers)
    for shift in shifts:
        for place, worker in enumerate(order):
            matrix[order[(place + shift) % workers], worker] += 1
    assert set(matrix.flat) <= {0, 1}  # nobody twice, nobody itself
    assert (matrix.sum(axis=0) == peers + 1).all() and (matrix.sum(axis=1) == peers + 1).all()


def test_the_factor_said_of_random_peers_is_that_of_many_rounds():
    experiment = Experiment(workers=8, batch=8, sync={"scheme": "gossip", "exchange": "random", "peers": 2})
    apart = np.random.default_rng(0).normal(size=(8, 4000))
    apart -= apart.mean(axis=0)
    squares = []
    for round in range(200):
        order, shifts = circle(0, round, 8, 2)
        mixed = apart.copy()
        for shift in shifts:
            mixed[[order[(place + shift) % 8] for place in range(8)]] += apart[order]
        squares.append(((mixed / 3) ** 2).sum() / (apart**2).sum())
    assert contraction(experiment) ** 2 == pytest.approx(np.mean(squares), rel=0.05)


@pytest.mark.parametrize(
    "topology, workers, expected",
    [
        ("ring", 8, 1 / 3 + 2 / 3 * np.cos(2 * np.pi / 8)),  # circulant: a cosine sum
        ("exp2", 8, 1 / 3),
        ("complete", 6, 0.0),
        ("star", 5, 1 - 1 / 5),
    ],
)
def test_known_eigenvalues_and_gaps(topology, workers, expected):
    matrix = mixing_matrix(neighbours(Gossip(topology=topology), workers, 0))
    assert second_eigenvalue(matrix) == pytest.approx(expected, abs=1e-12)


def test_a_grid_is_as_square_as_it_can_be():
    assert [grid_shape(n) for n in (1, 6, 7, 9, 12, 16)] == [(1, 1), (2, 3), (1, 7), (3, 3), (3, 4), (4, 4)]
    assert neighbours(Gossip(topology="grid"), 6, 0) == [(1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4)]


def test_two_islands_are_warned_of_and_a_connected_graph_is_not():
    islands = Experiment(workers=4, sync={"scheme": "gossip", "topology": "edges", "edges": "0-1,2-3"})
    assert warning(islands) == ("The graph is in 2 parts (workers 0 1 | 2 3), so its replicas cannot agree")
    assert warning(islands.replace(sync={"edges": "0-1,2-3,1-2"})) is None
    assert warning(Experiment()) is None
    assert contraction(islands) == 1


def test_push_sum_refuses_an_edge_with_no_way_back():
    fields = {"scheme": "gossip", "exchange": "push_sum", "topology": "edges"}
    Experiment(workers=3, sync={**fields, "edges": "0-1,1-2,2-0"})
    with pytest.raises(BadExperiment, match="sync.edges: got 1-2 and no way back"):
        Experiment(workers=3, sync={**fields, "edges": "0-1,1-0,1-2"})


def test_edges_may_be_typed_with_spaces():
    sync = {"scheme": "gossip", "topology": "edges"}
    assert Experiment(sync={**sync, "edges": " 0-1, 1 - 2,"}).sync.edges == ((0, 1), (1, 2))


def test_an_edge_from_a_worker_to_itself_is_refused():
    with pytest.raises(
        BadExperiment,
        match="sync.edges: got 1-1, allowed with 3 workers is two different workers from 0 to 2",
    ):
        Experiment(workers=3, sync={"scheme": "gossip", "topology": "edges", "edges": "0-1,1-1"})


def test_a_notebook_that_draws_graphs_does_not_load_torch():
    code = (
        "import sys, dlpar.jobs.run; from dlpar.graphs import *; from dlpar.config.sync import Gossip;"
        "neighbours(Gossip(topology='random'), 8, 0); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("seed", range(5))
def test_the_cut_of_partners_is_that_of_a_search_which_counts_the_whole_cut_each_time(seed):
    drawn = nx.gnp_random_graph(15, 0.4, seed=seed)
    graph = [tuple(sorted(drawn[worker])) for worker in range(15)]
    _, (theirs, _) = nx.approximation.one_exchange(drawn, initial_cut=set(range(1, 15, 2)), seed=0)
    side = _large_cut(graph)
    assert nx.cut_size(drawn, side) == nx.cut_size(drawn, theirs)
    assert all(nx.cut_size(drawn, side ^ {worker}) <= nx.cut_size(drawn, side) for worker in range(15))
