"""The time line, in which every rank has bars, whatever its pace; and lanes, with arrows from reads to pushes."""

from functools import partial

import numpy as np
import pytest
from simulations import trained

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.lab import figures
from dlpar.lab.figures.timeline import LATE, Lanes, Timeline, clipped, neighbours_of, shares, spans_of
from dlpar.lab.plot import drawn
from dlpar.lab.watch import between
from lab.folders import finished
from lab.records import fed, free_running, paced, step, write_down

ASP = Experiment(workers=4, steps=100, sync={"scheme": "ps", "consistency": "asp"})


def fill(board, seconds, end):
    """Give a board all steps until `end` of ranks with so many seconds a step, in the order of time."""
    for record in free_running(seconds, end):
        board.take(record["rank"], record)
    board.settle(ended=True)


def bars(plot):
    """Rank, start, duration (ms) and step of every bar."""
    return np.concatenate([plot.series(name).rows for name in plot.names])


@pytest.mark.parametrize("times", [1, 4, 50])
def test_a_straggler_has_bars_beside_ranks_that_are_many_times_quicker(times):
    board = fed(plot := Timeline(), ASP)
    fill(board, [0.01, 0.01, 0.01, 0.01 * times], end=3.0)
    rows = bars(plot)
    for rank in range(4):
        own = rows[rows[:, 0] == rank]
        assert own[:, 2].sum() == pytest.approx(plot.looks["layout"]["xaxis"]["range"][1], rel=0.5), rank
    assert len(np.unique(rows[rows[:, 0] == 3, 3])) >= 2, "two steps of the slowest"
    assert len(np.unique(rows[rows[:, 0] == 0, 3])) >= 8, "eight of the quickest"
    assert rows[:, 1].min() >= 0 and (rows[:, 1] + rows[:, 2]).max() <= max(80, 20 * times) + 1e-6
    assert "On average the 4 ranks spent" in plot.caption and "in this window of" in plot.caption


def test_no_rank_is_left_out_where_a_window_would_have_too_many_bars():
    board = fed(plot := Timeline(), ASP.replace(workers=16, scaling="weak"))
    fill(board, [0.01] * 15 + [2.0], end=6.0)
    assert set(bars(plot)[:, 0]) == set(range(16))
    assert len(bars(plot)) == sum(len(plot.series(name)) for name in plot.names) < 4000


def test_the_sentence_states_the_window_and_what_it_was_spent_on():
    board = fed(plot := Timeline(), ASP)
    fill(board, [0.01] * 4, end=1.0)
    assert plot.caption == (
        "On average the 4 ranks spent 50% computing and 50% communicating in this window of 0.1 s."
    )


def test_a_run_of_few_steps_fills_its_window():
    board = fed(plot := Timeline(), ASP)
    fill(board, [0.01] * 4, end=0.03)
    assert plot.window() == (0, pytest.approx(0.03)) and bars(plot)[:, 1].min() == 0
    assert plot.caption.startswith("On average the 4 ranks spent 50% computing and 50% communicating")


def test_a_rank_that_says_nothing_any_more_does_not_hold_the_window_for_ever():
    board = fed(plot := Timeline(), ASP.replace(workers=2))
    for number in range(20):
        board.take(1, paced(1, number, 0.01))
    for number in range(2000):
        board.take(0, paced(0, number, 0.01))
    assert plot.window()[1] == pytest.approx(20 - LATE)


def test_waiting_is_drawn_at_the_beginning_of_each_communication():
    spans = spans_of(0, paced(0, 0, 1.0, wait=0.2))
    assert [(s.name, pytest.approx(s.start), pytest.approx(s.end)) for s in spans] == [
        ("forward", 0.0, 0.5),
        ("wait", 0.5, 0.7),
        ("communicate", 0.7, 1.0),
    ]
    inside = clipped(spans, 0.25, 0.75)
    assert [round(s.end - s.start, 6) for s in inside] == [0.25, 0.2, 0.05]
    assert shares(inside, 1, 0.5) == pytest.approx({"compute": 0.5, "communicate": 0.1, "wait": 0.4})


def in_lockstep(board, seconds, steps):
    """Give a board steps that all ranks end together, when the slowest has sent."""
    for number in range(steps):
        begun, slowest = number * (max(seconds) + 0.01), max(seconds)
        for rank, own in enumerate(seconds):
            sent, end = begun + own, begun + slowest + 0.01
            spans = [["forward", begun, sent], ["communicate", sent, end]]
            board.take(rank, step(number, rank, t=end, spans=spans, wait=slowest - own))
    board.settle(ended=True)


def test_an_arrow_leads_from_each_wait_to_the_rank_that_was_last_to_send():
    board = fed(plot := Timeline(), Experiment(workers=3))
    in_lockstep(board, [0.01, 0.04, 0.02], steps=3)
    found = plot.static().data
    (links,) = [trace for trace in found if trace.name.startswith("wait →")]
    tails, heads = links.y[0::3], links.y[1::3]
    assert set(heads) == {1} and set(tails) == {0, 2}
    assert np.allclose(links.x[0::3], links.x[1::3], atol=1e-6), "a wait ends when the last one sends"
    up, down = (len(plot.series(f"arrows {way}")) for way in ("up", "down"))
    assert up == down == len(heads) / 2 > 0


def test_on_a_graph_a_rank_waits_for_its_neighbours_only():
    gossip = Experiment(workers=4, sync={"scheme": "gossip", "topology": "ring"})
    board = fed(plot := Timeline(), gossip)
    in_lockstep(board, [0.01, 0.02, 0.04, 0.03], steps=2)
    rows = plot.series("arrows").rows
    pairs = {(int(tail), int(head)) for tail, head in zip(rows[0::3, 1], rows[1::3, 1])}
    assert (1, 2) in pairs and (0, 2) not in pairs


def test_ranks_that_share_a_model_get_no_arrow():
    """Arrows led from stage 3 to stage 0, which sends nothing to it, at a time after the wait."""
    cut = Experiment(
        workers=4, model={"depth": 6}, split={"kind": "pipeline", "stages": 4, "microbatches": 8}
    )
    assert not any(neighbours_of(cut).values())
    assert neighbours_of(cut.replace(split="data")) == {n: {0, 1, 2, 3} - {n} for n in range(4)}


def test_where_workers_run_free_no_arrow_claims_to_know_what_ended_a_wait():
    board = fed(plot := Timeline(), ASP)
    in_lockstep(board, [0.01, 0.04, 0.02, 0.02], steps=3)
    assert not [trace.name for trace in plot.static().data if "wait →" in trace.name]


def test_the_page_knows_at_which_moment_the_window_begins():
    board = fed(plot := Timeline(), ASP)
    fill(board, [0.01] * 4, end=1.0)
    begin, _ = plot.window()
    assert plot.snapshot()[0]["origin"] == pytest.approx(begin) != 0


def test_only_idle_time_is_hatched(runs):
    patterns = {t.name: t.marker.pattern.shape for t in figures.timeline(runs["asp"]).data}
    assert patterns.pop("wait") == "/" and not any(patterns.values())


def test_overlapping_phases_have_half_a_row_each():
    overlap = Experiment(workers=2, steps=9, sync={"overlap": True})
    board = fed(plot := Timeline(), overlap)
    fill(board, [0.1, 0.1], end=0.8)
    looks = {t.name: (t.width, t.offset) for t in plot.static().data}
    assert looks["compute: forward"] == (0.4, -0.4) and looks["communicate"] == (0.4, 0.0)


def test_a_moment_shows_the_window_that_ends_there_and_the_end_the_last_one_again(tmp_path):
    board, pace = fed(plot := Timeline(), ASP.replace(workers=3)), [1 / 64, 1 / 64, 1 / 16]
    fill(board, pace, end=4.0)
    write_down(free_running(pace, end=4.0), tmp_path)
    last, read = plot.static().to_json(), partial(between, tmp_path)
    assert plot.window() == (3.875, 4.0)
    plot.look(2.0, read)
    rows = bars(plot)
    assert set(rows[rows[:, 0] == 0, 3]) == set(range(120, 128))
    assert set(rows[rows[:, 0] == 2, 3]) == {30, 31}
    plot.look(0.0, read)
    assert not len(bars(plot))
    plot.look(4.0, read)
    assert plot.static().to_json() == last


def test_a_moment_of_a_run_without_spans_draws_nothing():
    board = fed(plot := Timeline(), ASP)
    board.take(0, step(0))
    board.settle(ended=True)
    plot.look(0.5, lambda begin, end: [])
    assert not plot.static().data


def test_steps_that_are_asked_for_are_drawn():
    run = finished(workers=2, steps=40)
    table = figures.table(figures.timeline(run, steps=range(3, 5)))
    assert set(table["step"]) == {3, 4} and set(table["rank"]) == {0, 1}
    with pytest.raises(ValueError, match="steps: got range"):
        figures.timeline(run, steps=range(900, 910))
    with pytest.raises(ValueError, match="run: got 2 runs, allowed is one"):
        figures.timeline([run, run])


def test_a_static_time_line_is_the_one_of_a_panel(runs):
    drawn(plot := Timeline(), runs["asp"])
    assert figures.timeline(runs["asp"]).to_json() == plot.static().to_json()
    assert lab.figures.caption(plot.static()) == plot.caption


# ---- reads and pushes --------------------------------------------------------------------


ASYNCHRONOUS = {"scheme": "ps", "consistency": "asp"}


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


def drawn_arrows(plot):
    return plot.static().to_json()


def test_a_moment_shows_the_pushes_before_it_and_the_end_shows_the_last_again(tmp_path):
    records = free_running([1 / 64, 1 / 32, 1 / 32, 1 / 16], end=4.0)
    board = fed(plot := Lanes(), Experiment(workers=4, steps=10, sync=ASYNCHRONOUS))
    for record in records:
        board.take(record["rank"], record)
    board.settle(ended=True)
    write_down(records, tmp_path)
    last, read = drawn_arrows(plot), partial(between, tmp_path)
    plot.look(2.0, read)
    middle = [arrow.push for own in plot.recent for arrow in own]
    assert len(middle) >= plot.most and 1.9 < max(middle) < 2.0
    plot.look(1 / 32, read)  # at the first steps there are hardly any pushes
    plot.look(0.0, read)
    assert plot.caption == "Until then no worker has pushed." and not any(
        len(t.x) for t in plot.static().data
    )
    plot.look(4.0, read)
    assert drawn_arrows(plot) == last


@pytest.mark.slow
def test_all_ranks_are_drawn_in_whatever_order_their_records_come():
    run = finished(workers=4, steps=400, sync=ASYNCHRONOUS)
    board = fed(plot := Lanes(), run.experiment)
    for rank in range(4):
        for record in run.records():
            if record[0] == f"rank-{rank}":
                board.take(rank, record[1])
    board.settle(ended=True)
    assert drawn_arrows(plot) == lab.lanes(run).to_json()
    lanes = [t for t in plot.static().data if t.name.startswith("rank ")]
    assert len(lanes) == 4 and all(len(lane.x) >= 3 for lane in lanes)


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda runs: lab.lanes(runs["ring"]), "allowed is ps or hogwild"),
        (lambda runs: lab.lanes([runs["asp"], runs["ssp"]]), "run: got 2 runs, allowed is one"),
        (lambda runs: lab.lanes("asp"), "runs: got 'asp', allowed is one Run or several"),
    ],
)
def test_lanes_that_cannot_be_drawn_are_refused_in_a_sentence(runs, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(runs)


def test_a_single_worker_has_no_lanes():
    alone = finished(workers=1, steps=3, sync=ASYNCHRONOUS)
    with pytest.raises(ValueError, match="got sync ps with 1 worker, allowed is ps or hogwild with"):
        lab.lanes(alone)


def test_after_a_death_the_window_is_that_of_the_survivors():
    board = fed(plot := Timeline(), ASP)
    records = [r for r in free_running([0.01] * 4, 3.0) if r["rank"] != 2 or r["t"] < 1.0]
    board.take(0, {"k": "event", "name": "death", "dead": 2, "step": 99, "workers": 3, "t": 1.1})
    for record in records:
        board.take(record["rank"], record)
    board.settle(ended=True)
    rows = bars(plot)
    assert set(rows[:, 0]) == {0, 1, 3} and rows[:, 3].min() > 200


def test_a_window_is_drawn_though_all_of_its_ranks_have_died(tmp_path):
    deaths = {"on_death": "spare", "spares": 2, "die": {0: 0.3, 1: 0.6}}
    run = trained(tmp_path / "run", workers=2, steps=60, model="logistic", deaths=deaths)
    assert figures.caption(lab.figures.timeline(run)).startswith("On average the 2 ranks spent")
