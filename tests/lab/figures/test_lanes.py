"""Lanes: an arrow from each read of the weights to the push of the gradient computed on them."""

from functools import partial

import numpy as np
import pytest

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.lab.figures.timeline import Lanes
from dlpar.lab.watch import between
from lab.folders import finished
from lab.records import fed, free_running, write_down

ASP = {"scheme": "ps", "consistency": "asp"}


def test_an_arrow_leads_from_a_read_to_its_push(runs, every_figure):
    spans = runs["asp"].spans.query("rank == 2")
    pushes = spans[spans["name"] == "communicate"]["start"].to_numpy()
    traces = {t.name: t for t in every_figure["lanes"].data}
    lane = np.array([traces["rank 2"].x, traces["rank 2"].y]).T.reshape(-1, 3, 2)
    assert (lane[:, 0, 0] < lane[:, 1, 0]).all() and (lane[:, :2, 1] == 2).all()
    assert np.isnan(lane[:, 2]).all()
    assert np.diff(lane[:, 1, 0]) == pytest.approx(np.diff(pushes[-len(lane) :]) * 1e3)
    numbers = traces["staleness (updates)"]
    steps = runs["asp"].spans.query("name == 'communicate'").merge(runs["asp"].steps, on=["rank", "step"])
    last = steps.sort_values("start").tail(20)
    ages = {(a.rank, round((a.start - last["start"].min()) * 1e3, 6)): a.staleness for a in last.itertuples()}
    shown = {(round(y + 0.3), round(x, 6)): n for x, y, n in zip(numbers.x, numbers.y, numbers.text)}
    assert len(shown) > 4 and shown.items() <= ages.items()


def arrows(plot):
    return plot.static().to_json()


def test_a_moment_shows_the_pushes_before_it_and_the_end_shows_the_last_again(tmp_path):
    records = free_running([1 / 64, 1 / 32, 1 / 32, 1 / 16], end=4.0)
    board = fed(plot := Lanes(), Experiment(workers=4, steps=10, sync=ASP))
    for record in records:
        board.take(record["rank"], record)
    board.settle(ended=True)
    write_down(records, tmp_path)
    last, read = arrows(plot), partial(between, tmp_path)
    plot.look(2.0, read)
    middle = [arrow.push for own in plot.recent for arrow in own]
    assert len(middle) >= plot.most and 1.9 < max(middle) < 2.0
    plot.look(1 / 32, read)  # at the first steps there are hardly any pushes
    plot.look(0.0, read)
    assert plot.caption == "Until then no worker has pushed." and not any(
        len(t.x) for t in plot.static().data
    )
    plot.look(4.0, read)
    assert arrows(plot) == last


def test_all_ranks_are_drawn_in_whatever_order_their_records_come():
    run = finished(workers=4, steps=400, sync=ASP)
    board = fed(plot := Lanes(), run.experiment)
    for rank in range(4):
        for record in run.records():
            if record[0] == f"rank-{rank}":
                board.take(rank, record[1])
    board.settle(ended=True)
    assert arrows(plot) == lab.lanes(run).to_json()
    lanes = [t for t in plot.static().data if t.name.startswith("rank ")]
    assert len(lanes) == 4 and all(len(lane.x) >= 3 for lane in lanes)


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda runs: lab.lanes(runs["ring"]), "allowed is ps or hogwild"),
        (lambda runs: lab.lanes([runs["asp"], runs["ssp"]]), "run: got 2 runs, allowed is one"),
        (lambda runs: lab.lanes("asp"), "runs: got 'a', allowed is a run or several"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(runs, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(runs)


def test_a_single_worker_has_no_lanes():
    alone = finished(workers=1, steps=3, sync=ASP)
    with pytest.raises(ValueError, match="got sync ps with 1 worker, allowed is ps or hogwild with"):
        lab.lanes(alone)
