"""The graph over which workers average."""

import numpy as np
import pytest

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.lab import figures


def test_a_disconnected_graph_is_warned_of_in_the_figures_sentence():
    islands = Experiment(workers=4, sync={"scheme": "gossip", "topology": "edges", "edges": [(0, 1), (2, 3)]})
    assert "cannot agree" in figures.caption(lab.show_graph(islands))


def graph(workers=8, **sync):
    return lab.show_graph(Experiment(workers=workers, sync={"scheme": "gossip", **sync}))


def test_a_graph_of_push_sum_has_arrows_to_those_each_worker_sends_to():
    shown = graph(5, exchange="push_sum", topology="exp2")
    edges, nodes = shown.data
    ends = np.array([edges.x, edges.y]).T.reshape(-1, 3, 2)
    places = [tuple(place) for place in zip(nodes.x, nodes.y)]
    arrows = {(places.index(tuple(a)), places.index(tuple(b))) for a, b, _ in ends}
    assert arrows == {(i, (i + hop) % 5) for i in range(5) for hop in (1, 2, 4)}
    assert edges.marker.symbol == "arrow" and "each sends to 3 others, along the arrows" in figures.caption(
        shown
    )


def test_a_graph_has_only_edges_that_are_used():
    peers = graph(exchange="random", topology="star", peers=2)
    assert not len(peers.data[0].x) and "each sends to 2 others, drawn anew" in figures.caption(peers)
    pairs = graph(
        4, exchange="pairwise", topology="complete"
    )  # active workers average with passive ones only
    assert len(pairs.data[0].x) == 3 * 4 and "4 workers with 2 partners each" in figures.caption(pairs)


def test_the_spectral_gap_is_told_where_the_graph_is_fixed(runs):
    assert "spectral gap" in figures.caption(graph())
    assert "spectral gap" not in figures.caption(graph(exchange="random"))
    with pytest.raises(ValueError, match="allowed is gossip"):
        lab.show_graph(runs["ring"])
