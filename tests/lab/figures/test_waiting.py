"""Waiting: the time of each rank and the bytes it sent."""

import pytest

from dlpar.lab import figures
from dlpar.lab.figures.throughput import Waiting, per_rank
from dlpar.lab.plot import drawn
from lab.records import fed, take_steps


def test_times_add_up_to_what_was_recorded(runs, every_figure):
    steps = runs["asp"].steps.groupby("rank")[["compute", "comm", "wait"]].sum()
    for bars, part in zip(every_figure["waiting"].data, steps):
        assert list(bars.x)[:4] == pytest.approx(list(steps[part]))
    assert per_rank(runs["asp"])[:4, :3] == pytest.approx(steps.to_numpy())


def test_servers_have_a_row_of_bytes(runs, every_figure):
    bars = next(t for t in every_figure["waiting"].data if t.name == "sent")
    assert list(bars.x) == pytest.approx([0.04] * 4 + [0.16])
    assert every_figure["waiting"].layout.yaxis.ticktext[-1] == "server 4"
    assert "0.32 MB were sent in all." in figures.caption(every_figure["waiting"])


def test_of_an_earlier_run_the_mean_worker_is_drawn_and_the_sentence_compares(runs):
    figure = drawn(plot := Waiting(), [runs["asp"], runs["ring"]])
    *own, earlier = figure.layout.yaxis.ticktext
    assert own == [f"rank {rank}" for rank in range(4)] and earlier == "ps asp, a worker"
    waited = next(t for t in figure.data if t.name == "wait")
    assert waited.x[-1] == pytest.approx(runs["asp"].steps["wait"].sum() / 4)
    caption = figures.caption(figure)
    assert caption.startswith("Share of its time that a worker waited: ps asp ") and " and ring " in caption
    plot.forget(runs["asp"].id)
    assert "ps asp, a worker" not in plot.static().layout.yaxis.ticktext


def test_bytes_that_a_library_moved_are_not_made_up(runs):
    board = fed(plot := Waiting(), runs["ring"].experiment)
    take_steps(board, 4, [1.0], bytes=None)
    board.settle(ended=True)
    assert plot.caption.endswith("the library does not report how much was sent.")
