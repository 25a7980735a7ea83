"""Static figures of what ranks did: staleness, lead, arrows, waiting and bytes."""

import numpy as np
import pytest

from dlpar import lab
from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import captions, figures
from lab.folders import finished, new_folder

ASP = {"scheme": "ps", "consistency": "asp"}


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
