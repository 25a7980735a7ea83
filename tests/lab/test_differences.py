"""Figure of where an image computed in pieces is not what one process computes."""

import pytest
import torch

from dlpar.lab import figures

RIGHT = torch.arange(1.0, 33.0, dtype=torch.float64).view(1, 2, 4, 4)


def test_rounding_is_not_drawn_and_of_channels_the_largest_difference_is():
    got = RIGHT.clone()
    got[0, 1, 2, 3] += 8  # a quarter of the largest number, 32
    got[0, 0, 2, 3] -= 4
    got[0, 0, 0, 0] += 1e-14
    figure = figures.differences([RIGHT, got], [RIGHT, RIGHT], ["whole", "in pieces"])
    first, second = (torch.tensor(trace.z, dtype=torch.float64) for trace in figure.data)
    assert first.isnan().all() and second[2, 3] == 0.25 and second.isnan().sum() == 15
    assert figures.table(figure)["elements that differ"].tolist() == [0, 1]
    assert "whole: none of 16; in pieces: 1 of 16, by up to 25% of the largest number" in figures.caption(
        figure
    )


def test_each_image_has_its_title_above_its_middle():
    figure = figures.differences([RIGHT] * 3, [RIGHT] * 3, ["a", "b", "c"])
    for note, name in zip(figure.layout.annotations, ("xaxis", "xaxis2", "xaxis3"), strict=True):
        assert note.x == pytest.approx(sum(figure.layout[name].domain) / 2) and note.xanchor == "center"


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(
        ValueError, match=r"got: got shape \(1, 2, 4, 3\), allowed is the expected one, \(1, 2, 4, 4\)"
    ):
        figures.differences([RIGHT[..., :3]], [RIGHT], ["a"])
    with pytest.raises(ValueError, match="got: got 0, allowed is as many as expected"):
        figures.differences([], [], [])
