import math

import pytest

from dlpar.config.experiment import Experiment
from dlpar.lab.board import KEPT, Board
from dlpar.lab.labels import differences, labels, run_labels, same_batches


def step(number, rank=0, loss=1.0, t=None, samples=64, staleness=0, spans=(), wait=0.0, lead=0):
    seconds = {"t": t if t is not None else number + 1.0, "compute": 0.5, "comm": 0.2, "wait": wait}
    counted = {"loss": loss, "samples": samples, "staleness": staleness, "lead": lead, "bytes": 1000}
    return {"k": "step", "step": number, **seconds, **counted, "spans": list(spans)}


@pytest.fixture
def board():
    made = Board(Experiment(workers=2, steps=10))
    made.begin(Experiment(workers=2, steps=10), "first")
    return made


def rows(board, key):
    return board.convergence.plot.series(key).rows.tolist()


def test_only_steps_all_ranks_finished_are_drawn(board):
    for number in range(3):
        board.take(0, step(number, loss=2.0))
    board.take(1, step(0, loss=4.0))
    board.settle(ended=False)
    assert rows(board, "first loss") == [[0, 128, 1.0, 0.002, 3.0]]


def test_accuracy_is_drawn_over_what_was_done_before_the_test(board):
    board.take(0, {"k": "eval", "step": 2, "t": 2.5, "accuracy": 0.9, "loss": 0.3, "samples": 360})
    for number in range(4):
        for rank in range(2):
            board.take(rank, step(number))
    board.take(0, {"k": "eval", "step": 4, "t": 4.5, "accuracy": 0.95, "loss": 0.3, "samples": 360})
    board.settle(ended=False)
    assert rows(board, "first test") == [[2, 2 * 128, 2.5, 0.004, 0.9], [4, 4 * 128, 4.5, 0.008, 0.95]]


def test_vertical_axis_grows_but_never_shrinks_during_a_run(board):
    tops = []
    for number, loss in enumerate((0.5, 2.3, 0.1, 9.0, 0.1)):
        for rank in range(2):
            board.take(rank, step(number, loss=loss))
        board.settle(ended=False)
        tops.append(board.convergence.plot._figure["layout"]["yaxis"]["range"][1])
    assert tops == [1.0, 2.5, 2.5, 10.0, 10.0]


def test_divergence_is_said_and_does_not_break_axes(board):
    for number, loss in enumerate((1.0, math.nan)):
        for rank in range(2):
            board.take(rank, step(number, loss=loss))
    board.settle(ended=True)
    assert "diverged" in board.convergence.plot.caption
    assert board.convergence.plot._figure["layout"]["yaxis"]["range"] == [0, 1.0]


def test_staleness_zero_says_why_and_other_values_are_told(board):
    board.take(0, step(0))
    board.settle(ended=False)
    assert (
        "Staleness is 0" in board.staleness.plot.caption
        and "waits for the gradients" in board.staleness.plot.caption
    )
    board.take(1, step(0, staleness=6))
    board.settle(ended=False)
    assert (
        board.staleness.plot.caption
        == "The weights behind a gradient were 3 updates old on average, 6 at most."
    )


def test_timeline_shows_the_last_eight_steps_and_splits_off_waiting(board):
    for number in range(20):
        spans = [["forward", number, number + 0.4], ["communicate", number + 0.5, number + 0.9]]
        for rank in range(2):
            board.take(rank, step(number, spans=spans, wait=0.1))
    board.settle(ended=True)
    plot = board.timeline.plot
    assert sorted(set(plot.series("forward").rows[:, 3])) == list(range(12, 20))
    assert plot.series("wait").rows[:, 2] == pytest.approx(100)
    assert plot.series("communicate").rows[:, 2] == pytest.approx(300)
    assert "Over the last 8 steps" in plot.caption


def test_earlier_runs_are_labelled_by_what_differs_and_can_be_cleared(board):
    board.begin(Experiment(workers=2, steps=10, lr=0.5), "second")
    board.begin(Experiment(workers=4, steps=10, lr=0.5), "third")
    plot = board.convergence.plot
    assert plot.style("first loss")["name"] == "lr=0.1, workers=2"
    assert plot.style("second loss")["name"] == "workers=2"
    assert plot.style("first loss")["opacity"] < 1 and plot.style("third loss")["opacity"] == 1
    styles = [plot.style(f"{key} loss") for key in ("first", "second", "third")]
    assert len({(s["line"].get("dash"), s.get("marker", {}).get("symbol")) for s in styles}) == 3
    board.forget_earlier()
    assert list(plot._traces) == ["third loss", "third test"]


def test_number_of_earlier_runs_is_bounded(board):
    for number in range(12):
        board.begin(Experiment(workers=2, steps=10, seed=number), f"run {number}")
    assert len(board.shown) == KEPT + 1 and len(board.convergence.plot._traces) == 2 * (KEPT + 1)


def test_runs_of_another_kind_of_task_are_not_compared(board):
    board.begin(Experiment(workers=2, steps=10, model="linear", data="diabetes"), "squares")
    assert list(board.shown) == ["squares"]
    for rank in range(2):
        board.take(rank, step(0))
    board.take(0, {"k": "eval", "step": 1, "t": 6.0, "accuracy": None, "loss": 0.3, "samples": 80})
    board.settle(ended=False)
    assert rows(board, "squares test")[0][-1] == 0.3


def test_differences_and_labels():
    a, b = Experiment(), Experiment(workers=2, model={"width": 64})
    assert differences(a, b) == {"workers": 2, "model.width": 64}
    assert labels([a, b, b]) == [
        "model.width=256, workers=4",
        "model.width=64, workers=2 (1)",
        "model.width=64, workers=2 (2)",
    ]
    assert run_labels(a, {"x": a, "y": a}) == {"x": "same settings", "y": "same settings (2)"}


SAME = [{"workers": 2}, {"lr": 1}]
OTHER = [{"seed": 1}, {"batch": 64}, {"shards": "uneven"}, {"scaling": "weak"}]


@pytest.mark.parametrize("change, same", [(c, True) for c in SAME] + [(c, False) for c in OTHER])
def test_same_batches_is_claimed_only_if_true(change, same):
    assert same_batches(Experiment(), Experiment(**change)) is same


PS = {"scheme": "ps", "consistency": "asp"}
ALWAYS = ["Convergence", "Throughput", "Staleness"]


@pytest.mark.parametrize(
    "made, tabs",
    [
        ({}, ["Timeline", "Waiting"]),
        ({"workers": 1}, ["Timeline"]),
        ({"sync": "ps"}, ["Lanes", "Timeline", "Waiting"]),
        ({"sync": PS}, ["Lead", "Lanes", "Timeline", "Waiting"]),
        ({"sync": "gossip"}, ["Timeline", "Waiting", "Consensus"]),
        ({"averaging": "local"}, ["Timeline", "Waiting", "Consensus"]),
        ({"sync": "hogwild"}, ["Lead", "Lanes", "Timeline", "Waiting"]),
    ],
)
def test_only_figures_that_mean_something_are_shown(made, tabs):
    experiment = Experiment(**{"workers": 4, "steps": 8, **made})
    board = Board(experiment)
    assert list(board.plots) == ALWAYS + tabs
    board.begin(experiment, "one")
    assert list(board.plots) == ALWAYS + tabs


def test_staleness_of_free_running_workers_is_counted_worker_by_worker():
    experiment = Experiment(workers=2, steps=10, sync=PS)
    board = Board(experiment)
    board.begin(experiment, "one")
    for number, age in enumerate((0, 1, 1, 3)):
        board.take(0, step(number, staleness=age, lead=number))
        board.take(1, step(number, staleness=1, t=number + 1.2))
    board.settle(ended=True)
    plot = board.plots["Staleness"]
    assert plot.series("histogram 0").rows.tolist() == [[0, 1], [1, 2], [3, 1]]
    assert plot._figure["layout"]["xaxis2"]["title"]["text"] == "rank 0<br>mean 1.25"
    assert plot.caption.startswith(
        "The weights behind a gradient were 1.12 updates old on average, 3 at most"
    )
    assert plot.caption.endswith("theory predicts N − 1 = 1 on average.")
    assert plot.series("predicted").rows[:, 1].tolist() == [1, 1]
    assert (
        board.plots["Lead"].caption
        == "The largest lead over the slowest was 3 clocks (rank 0); nothing bounds it."
    )


def test_consensus_is_measured_from_the_sketches_of_all_workers():
    experiment = Experiment(workers=2, steps=10, sync={"scheme": "gossip", "start": "random"})
    board = Board(experiment)
    board.begin(experiment, "one")
    for number in range(3):
        for rank in range(2):
            sketch = [(-1) ** rank * 2.0**-number] + [0.0] * 31
            board.take(rank, {**step(number, rank), "sketch": sketch})
    board.settle(ended=True)
    assert board.plots["Consensus"].series("measured").rows.tolist() == [[0, 1.0], [1, 0.5], [2, 0.25]]
