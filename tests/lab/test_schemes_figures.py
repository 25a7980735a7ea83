"""Static figures of what differs between schemes: staleness, lead, arrows, waiting, agreement."""

import json

import numpy as np
import pytest

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import captions, figures
from lab.folders import finished, new_folder

ASP = {"scheme": "ps", "consistency": "asp"}
SSP = {"scheme": "ps", "consistency": "ssp", "staleness": 3}
GOSSIP = {"scheme": "gossip", "topology": "exp2", "start": "random"}


@pytest.fixture(scope="module")
def runs():
    made = {"ring": "ring", "asp": ASP, "ssp": SSP}
    found = {name: finished(workers=4, steps=40, sync=sync) for name, sync in made.items()}
    return found | {"gossip": finished(workers=8, steps=40, sync=GOSSIP)}


@pytest.fixture(scope="module")
def every_figure(runs):
    asp = runs["asp"]
    return {
        "staleness": lab.staleness(asp),
        "lead": lab.lead(runs["ssp"]),
        "lanes": lab.lanes(asp),
        "waiting": lab.waiting(asp),
        "waitings": lab.waiting([asp, runs["ring"]]),
        "bytes": lab.bytes_per_rank(asp),
        "consensus": lab.consensus(runs["gossip"]),
        "graph": lab.show_graph(runs["gossip"]),
        "overlay": lab.overlay(list(runs.values()), x="bytes"),
        "time": lab.time_to_accuracy([asp, runs["ring"]], goal=0.9),
    }


def test_every_figure_says_what_it_shows_and_gives_its_data(every_figure):
    for name, figure in every_figure.items():
        assert figures.caption(figure).endswith("."), name
        assert len(figures.table(figure)) == sum(len(trace.x) for trace in figure.data) > 0, name
        figure.to_json()


def test_histograms_count_every_worker_step(runs, every_figure):
    steps = runs["asp"].steps
    for rank, bars in enumerate(t for t in every_figure["staleness"].data if t.type == "bar"):
        own = steps[steps["rank"] == rank]["staleness"]
        assert dict(zip(bars.x, bars.y)) == own.value_counts().to_dict()
        title = every_figure["staleness"].layout[f"xaxis{rank + 2}"].title.text
        assert title == f"rank {rank}<br>mean {own.mean():.3g}"


def test_the_predicted_mean_is_drawn_only_where_theory_gives_one(runs, every_figure):
    dashed = [t for t in every_figure["staleness"].data if t.type == "scatter" and t.line.dash == "dash"]
    assert [list(t.y) for t in dashed] == [[3, 3]] and "N − 1 = 3" in figures.caption(
        every_figure["staleness"]
    )
    assert "theory" not in figures.caption(lab.staleness(runs["ssp"]))


def test_lead_says_whether_the_bound_held(runs, every_figure):
    assert figures.caption(every_figure["lead"]).endswith("never above s = 3: yes.")
    assert figures.caption(lab.lead(runs["asp"])).endswith("nothing bounds it.")
    assert "NO, the bound was broken" in captions.lead([1, 4], 3)


def test_an_arrow_leads_from_a_read_to_its_push(runs, every_figure):
    spans = runs["asp"].spans.query("rank == 2")
    pushes = spans[spans["name"] == "communicate"]["start"].to_numpy()
    traces = {t.name: t for t in every_figure["lanes"].data}
    lane = np.array([traces["rank 2"].x, traces["rank 2"].y]).T.reshape(-1, 3, 2)
    assert (
        (lane[:, 0, 0] < lane[:, 1, 0]).all() and (lane[:, :2, 1] == 2).all() and np.isnan(lane[:, 2]).all()
    )
    lengths = np.diff(lane[:, 1, 0])
    assert lengths == pytest.approx(np.diff(pushes[-len(lane) :]) * 1e3)
    labels = traces["staleness (updates)"]
    last = runs["asp"].steps.sort_values("t")["staleness"].tail(len(labels.text))
    assert sorted(labels.text) == sorted(last) and len(labels.text) == 20


def test_servers_have_a_row_of_bytes(runs, every_figure):
    bars = every_figure["bytes"].data[0]
    assert list(bars.x) == pytest.approx([0.04] * 4 + [0.16])
    assert every_figure["bytes"].layout.yaxis.ticktext[-1] == "server 4"


def test_waiting_adds_up_to_what_was_recorded(runs, every_figure):
    steps = runs["asp"].steps.groupby("rank")[["compute", "comm", "wait"]].sum()
    for bars, part in zip(every_figure["waiting"].data, steps):
        assert list(bars.x) == pytest.approx(list(steps[part]))


def test_contraction_of_the_graph_is_dashed_beside_what_was_measured(runs, every_figure):
    measured, predicted = every_figure["consensus"].data
    assert list(measured.y) == pytest.approx(list(runs["gossip"].consensus["distance"]))
    assert predicted.line.dash == "dash" and predicted.y[0] == measured.y[0]
    assert (
        predicted.y[-1] / predicted.y[0] == pytest.approx((1 / 3) ** 39, rel=1e-6) or predicted.y[-1] == 1e-16
    )


def test_a_disconnected_graph_is_warned_of_in_the_figures_sentence():
    islands = Experiment(workers=4, sync={"scheme": "gossip", "topology": "edges", "edges": [(0, 1), (2, 3)]})
    assert "cannot agree" in figures.caption(lab.show_graph(islands))


def test_overlay_over_bytes_counts_what_all_workers_sent(runs, every_figure):
    ring = every_figure["overlay"].data[0]
    assert list(ring.x) == pytest.approx([0.004 * (step + 1) for step in range(40)])
    assert every_figure["overlay"].layout.xaxis.title.text == "sent by all workers together (MB)"
    assert len({t.line.color for t in every_figure["overlay"].data if t.name != "accuracy"}) == 3


def test_seconds_to_a_goal_are_steps_times_time_of_a_step(runs, every_figure):
    seconds, steps, ms = (trace.x[0] for trace in every_figure["time"].data[:3])
    assert seconds == pytest.approx(steps * ms / 1e3)
    good = runs["asp"].evals.query("accuracy >= 0.9").iloc[0]
    assert (seconds, steps) == (good["t"], good["step"])
    assert (
        figures.caption(lab.time_to_accuracy(runs["asp"], goal=1.0)) == "None reached 100% held-out accuracy."
    )
    assert figures.caption(lab.time_to_accuracy(runs["asp"], 0.9, ["mine"])).startswith("mine reached 90%")


def test_who_was_first_to_an_accuracy_is_said_of_each_clock_alone(runs):
    virtual = finished(workers=2, steps=40, cluster={"world": "simulated"})
    figure = lab.time_to_accuracy([virtual, runs["ring"]], 0.8, ["a", "b"])
    said = figures.caption(figure)
    for clock, name in {"virtual": "a, simulated", "wall": "b"}.items():
        assert f"n the {clock} clock {name} reached 80% first" in said
    assert "a, simulated and b took the fewest steps" in said and "different clocks do not compare" in said
    assert figure.layout.xaxis.title.text == "seconds to 80%<br>each on its own clock"


def test_runs_of_two_kinds_of_task_share_no_figure_and_a_regression_has_no_accuracy(runs):
    diabetes = finished(workers=2, steps=5, model="linear", data="diabetes")
    with pytest.raises(
        ValueError, match="runs: got classification and regression, allowed is one kind of task"
    ):
        lab.overlay([runs["ring"], diabetes])
    with pytest.raises(ValueError, match="got data diabetes, a regression, allowed is a task with classes"):
        lab.time_to_accuracy(diabetes)


def rewritten(run, **changed):
    """The run with these values in every record that has them."""
    for path in run.path.glob("rank-*.jsonl"):
        records = [json.loads(line) for line in open(path)]
        changes = [{name: value for name, value in changed.items() if name in record} for record in records]
        path.write_text(
            "".join(json.dumps(record | change) + "\n" for record, change in zip(records, changes))
        )
    return run


def test_a_run_that_does_not_say_what_it_sent_is_not_drawn_over_bytes(runs):
    silent = rewritten(finished(workers=1, steps=5), bytes=None)
    with pytest.raises(ValueError, match="the library moved the data and does not report how much"):
        lab.overlay([runs["ring"], silent], x="bytes")


def test_a_run_that_drew_no_sample_has_not_diverged():
    empty = rewritten(
        finished(workers=2, steps=3, sync={"scheme": "mapreduce", "fraction": 1e-6}), samples=0, loss=0.0
    )
    diverged = rewritten(finished(workers=2, steps=3), loss=None)  # as JSON tells a NaN
    assert figures.caption(lab.overlay(empty)).startswith(
        "In 3 of 3 steps no sample was drawn, so there is no loss;"
    )
    assert "the run diverged" in figures.caption(lab.overlay(diverged))
    both = figures.caption(lab.overlay([empty, diverged], titles=["empty", "diverged"]))
    assert "empty no sample, so no loss" in both and "diverged loss not a number" in both


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


def test_the_spectral_gap_stands_beside_the_measured_distance_where_the_graph_is_fixed(runs, every_figure):
    assert "multiply it by 0.333 a step (spectral gap 0.667)" in figures.caption(every_figure["consensus"])
    assert "spectral gap" in figures.caption(graph()) and "spectral gap" not in figures.caption(
        graph(exchange="random")
    )


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (lambda runs: lab.lanes(runs["ring"]), "allowed is ps or hogwild"),
        (lambda runs: lab.consensus(runs["ring"]), "allowed is gossip, or averaging"),
        (
            lambda runs: lab.lanes(finished(workers=1, sync=ASP)),
            "got sync ps with 1 worker, allowed is ps or hogwild with",
        ),
        (
            lambda runs: lab.consensus(finished(workers=1)),
            "with 1 worker, allowed is gossip, or averaging, with two",
        ),
        (lambda runs: lab.show_graph(runs["ring"]), "allowed is gossip"),
        (lambda runs: lab.time_to_accuracy(runs["ring"], goal=2), "goal: got 2"),
        (lambda runs: lab.lead(Run(new_folder(Experiment()))), "has no finished step"),
        (lambda runs: lab.lanes([runs["asp"], runs["ssp"]]), "run: got 2 runs, allowed is one"),
        (lambda runs: lab.lanes("asp"), "runs: got 'a', allowed is a run or several"),
        (lambda runs: lab.lanes(runs["asp"], last=-3), "last: got -3, allowed is a whole number from 1"),
        (
            lambda runs: lab.overlay([runs["asp"], runs["ssp"]], titles=["one"]),
            "titles: got 1, allowed is one for",
        ),
        (
            lambda runs: lab.consensus([runs["gossip"]] * 2, titles=["one"]),
            "titles: got 1, allowed is one for",
        ),
        (
            lambda runs: lab.time_to_accuracy([runs["asp"]] * 2, titles=["one"]),
            "titles: got 1, allowed is one for",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(runs, ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask(runs)
