"""The consensus distance: measured from sketches, beside what the graph predicts; and the graph."""

import numpy as np
import pytest
from simulations import trained

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import launch
from dlpar.lab import figures
from dlpar.lab.figures.consensus import Consensus
from dlpar.lab.plot import drawn
from lab.folders import finished
from lab.records import fed, step

TWO = Experiment(workers=2, steps=10, sync={"scheme": "gossip", "start": "random"})


def test_the_distance_is_measured_from_the_sketches_of_all_workers():
    board = fed(plot := Consensus(), TWO)
    for number in range(3):
        for rank in range(2):
            board.take(rank, step(number, rank, sketch=[(-1) ** rank * 2.0**-number] + [0.0] * 31))
    board.settle(ended=True)
    assert plot.series("run0 measured").rows.tolist() == [[0, 1.0], [1, 0.5], [2, 0.25]]
    assert plot.caption.startswith("From step 0 to step 2 the consensus distance went from 1 to 0.25")


def test_before_all_have_reported_nothing_is_drawn():
    board = fed(plot := Consensus(), TWO)
    board.take(0, step(0))
    board.settle(ended=False)
    assert plot.caption == "No replica has reported its weights yet."


def test_a_run_whose_replicas_are_equal_in_its_only_step_has_reported_them():
    board = fed(plot := Consensus(), TWO)
    for rank in range(2):
        board.take(rank, step(0, rank, sketch=[1.0] * 32))
    board.settle(ended=True)
    assert plot.caption.startswith("All replicas stay equal")


def test_steps_that_a_resumed_run_repeats_are_drawn_once():
    board = fed(plot := Consensus(), TWO)
    for attempt, numbers in ((0, range(6)), (1, range(4, 10))):
        for rank in range(2):
            board.take(rank, {"k": "rank", "rank": rank, "attempt": attempt, "resumed": numbers[0]})
        for number in numbers:
            for rank in range(2):
                apart = (-1) ** rank * 2.0 ** -(number + attempt)
                board.take(rank, step(number, rank, sketch=[apart] + [0.0] * 31))
    board.settle(ended=True)
    drawn = plot.series("run0 measured").rows.tolist()
    assert drawn == [[n, 2.0 ** -(n + (n >= 4))] for n in range(10)]


def test_messages_of_sizes_have_no_replicas_to_compare():
    sizes = {"world": "simulated", "messages": "sizes"}
    assert Consensus.fits(TWO) and not Consensus.fits(TWO.replace(cluster=sizes))


def test_contraction_of_the_graph_is_dashed_beside_what_was_measured(runs, every_figure):
    measured, predicted = every_figure["consensus"].data
    assert list(measured.y) == pytest.approx(list(runs["gossip"].consensus["distance"]))
    assert predicted.line.dash == "dash" and predicted.y[0] == measured.y[0]
    least = predicted.y[0] * (1 / 3) ** 39
    assert predicted.y[-1] == pytest.approx(max(least, 1e-16), rel=1e-6)
    assert measured.line.color == predicted.line.color
    assert len(lab.consensus(runs["gossip"], predicted=False).data) == 1


def test_runs_that_are_compared_have_a_line_and_a_sentence_each():
    made = [
        finished(workers=4, steps=20, sync={"scheme": "gossip", "topology": t}) for t in ("ring", "complete")
    ]
    figure = drawn(Consensus(), made)
    lines = {t.name: t.line.color for t in figure.data}
    assert len(set(lines.values())) == 2
    for name in lines:
        assert f"{name}: From step 0 to step 19 the consensus distance went from" in figures.caption(figure)


def test_replicas_that_never_differ_are_said_to_be_equal():
    complete = {"scheme": "gossip", "topology": "complete"}
    run = launch(Experiment(workers=4, steps=5, sync=complete, cluster="simulated")).wait(60)
    assert figures.caption(drawn(Consensus(), run)).startswith("All replicas stay equal; mixing alone")


def test_the_spectral_gap_stands_beside_the_distance_where_the_graph_is_fixed(every_figure):
    assert "multiply it by 0.333 a step (spectral gap 0.667)" in figures.caption(every_figure["consensus"])


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda runs: lab.consensus(runs["ring"]), "allowed is gossip, or averaging"),
        (
            lambda runs: lab.consensus(finished(workers=1)),
            "with 1 worker, allowed is gossip, or averaging, with two",
        ),
        (lambda runs: lab.consensus([runs["gossip"]] * 2, titles=["one"]), "titles: got 1, allowed is one"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(runs, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(runs)


# ---- the graph ---------------------------------------------------------------------------


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
    assert not len(peers.data[0].x) and "each sends to 2 random others each time" in figures.caption(peers)
    # Active workers average with passive ones only.
    pairs = graph(4, exchange="pairwise", topology="complete")
    assert len(pairs.data[0].x) == 3 * 4 and "4 workers with 2 partners each" in figures.caption(pairs)
    assert "mixing alone" not in figures.caption(pairs)  # an average may take many steps


def test_the_spectral_gap_is_told_where_the_graph_is_fixed(runs):
    assert "spectral gap" in figures.caption(graph())
    assert "spectral gap" not in figures.caption(graph(exchange="random"))
    with pytest.raises(ValueError, match="allowed is gossip"):
        lab.show_graph(runs["ring"])


def test_the_graph_of_split_replicas_joins_replicas():
    split = {"kind": "tensor", "tensor": 2}
    experiment = Experiment(workers=8, sync={"scheme": "gossip", "topology": "ring"}, split=split)
    assert "4 workers with 2 neighbours each" in lab.figures.caption(lab.figures.show_graph(experiment))


def test_the_distance_of_a_run_that_diverged_is_no_number(tmp_path):
    run = trained(tmp_path / "run", workers=4, sync="gossip", lr=10, steps=60, data="diabetes", model="mlp")
    assert np.isnan(run.consensus["distance"].iloc[-1])
    assert "to not a number" in figures.caption(lab.figures.consensus(run))
