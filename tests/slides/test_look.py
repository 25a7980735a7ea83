"""Figures of decks: an animation at a round, a growing figure at the end of its run, and the style."""

from __future__ import annotations

import pytest
from lab.folders import ThreadJob

import dlpar
from dlpar import lab
from dlpar.collectives import tree_allreduce
from dlpar.config.experiment import Experiment
from dlpar.lab.figure import caption
from dlpar.lab.panel import Panel


@pytest.mark.slow
def test_an_animation_is_shown_at_a_round():
    figure = lab.animate(tree_allreduce, workers=2, at=1)
    slider, *_ = figure.layout.sliders
    traces, layout, _ = slider.steps[1].args
    assert slider.active == 1 and list(figure.data[0].text) == traces["text"][0]
    assert [note.text for note in figure.layout.annotations] == [
        note["text"] for note in layout["annotations"]
    ]
    with pytest.raises(ValueError, match="^at: got 3, allowed is a round from 0 to 2$"):
        lab.animate(tree_allreduce, workers=2, at=3)


def test_the_style_of_a_deck_is_for_the_deck_mode_alone():
    rules = lab.deck().data.removeprefix("<style>").removesuffix("</style>").splitlines()
    selectors = [
        line for line in rules if line.endswith("}") and not line.startswith((" ", ":root", "@media", "}"))
    ]
    assert selectors and all(line.startswith(".jp-Deck") for line in selectors)


def test_a_picture_of_a_panel_is_its_figure_in_front_at_the_end_of_the_run(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", ThreadJob, raising=False)
    panel = Panel(Experiment(workers=2, steps=20), first="Throughput")
    panel.run()
    assert panel.wait(60) == panel.runs
    picture = panel.picture()
    assert not panel.running and caption(picture).startswith("2 workers together train on ")
    assert picture.layout.yaxis.title.text == "throughput (samples/s)"
    assert picture.to_json() == panel.figures["Throughput"].static().to_json()
