"""What decks show of figures that live: a slider at a step, a growing figure as it stands."""

from __future__ import annotations

import pytest
from lab.folders import ThreadJob

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab import slides
from dlpar.lab.figure import Figure, caption
from dlpar.lab.panel import Panel


def with_slider() -> Figure:
    figure = Figure({"data": [{"type": "bar", "y": [0], "text": ["0"]}]})
    steps = [
        {"args": [{"text": [[f"{k}"]]}, {"annotations": [{"text": f"Round {k}"}]}, [0]]} for k in range(3)
    ]
    figure.layout.sliders = [{"steps": steps}]
    return figure


def test_a_figure_is_shown_at_the_step_of_its_slider():
    figure = slides.at(with_slider(), 2)
    assert figure.data[0].text == ("2",) and figure.layout.sliders[0].active == 2
    assert [note.text for note in figure.layout.annotations] == ["Round 2"]


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="^step: got 3, allowed is 0 to 2$"):
        slides.at(with_slider(), 3)
    with pytest.raises(ValueError, match="^figure: it has no slider$"):
        slides.at(Figure(), 0)


def test_a_picture_of_a_panel_is_its_figure_in_front_at_the_end_of_the_run(monkeypatch):
    class Job(ThreadJob):
        def wait(self, timeout):
            return self.run

    monkeypatch.setattr(dlpar, "launch", Job, raising=False)
    panel = Panel(Experiment(workers=2, steps=20), first="Throughput")
    picture = slides.still(panel)
    assert not panel.running and caption(picture).startswith("2 workers together train on ")
    assert picture.layout.yaxis.title.text == "throughput (samples/s)"
    assert picture.to_json() == panel.figures["Throughput"].static().to_json()
