"""What decks show of figures that live: a slider at a step, a growing figure as it stands."""

from __future__ import annotations

import numpy as np
import pytest
from dlpar.lab.live_plot import LivePlot

from dlpar.lab import slides
from dlpar.lab.figure import Figure, caption


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


def test_a_picture_of_a_live_figure_has_its_curves_its_axes_and_its_sentence():
    plot = LivePlot(
        {"yaxis": {"range": [0, 3]}}, {"step": {"range": [0, 9]}, "seconds": {"range": [0, 1]}}, height=300
    )
    series = plot.add_trace("a", {"name": "loss"}, ("step", "seconds", "loss"), {"x": "*", "y": "loss"})
    series.add((1, 0.5, 2.0)), series.add((2, 0.9, 1.0))
    plot.x = "seconds"
    plot.set_caption("It fell.")
    picture = plot.picture()
    (curve,) = picture.data
    assert curve.name == "loss" and np.allclose([curve.x, curve.y], [[0.5, 0.9], [2.0, 1.0]])
    assert picture.layout.xaxis.range == (0, 1) and picture.layout.yaxis.range == (0, 3)
    assert picture.layout.height == 300 and caption(picture) == "It fell."
