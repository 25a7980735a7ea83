"""A static figure of where an image that was computed in pieces is not what one process computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying

if TYPE_CHECKING:
    import torch

ROUNDING = 1e-12
"""Share of the largest number up to which a difference of float64 is rounding, and is not drawn."""

SCALE = "Cividis"
"""Made to read the same with and without red-green blindness (Nuñez, Anderton and Renslow, PLOS ONE 2018)."""

GAP = 0.06
"""Between two images, of the figure's width."""


def differences(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], titles: Sequence[str]
) -> Figure:
    """Where images differ, and by what share of the largest number expected; what is rounding stays empty.

    Parameters
    ----------
    got, expected : sequence of Tensor, shape (..., height, width)
        Images to compare, one with one; of several channels the largest difference is drawn.
    titles : sequence of str
        What each is called.

    Raises
    ------
    ValueError
        If there is none, or the lengths or shapes differ.
    """
    if not len(got) == len(expected) == len(titles) > 0:
        raise ValueError(
            f"got: got {len(got)}, allowed is as many as expected, {len(expected)}, and titles, from 1"
        )
    shares = [_share(mine, right) for mine, right in zip(got, expected)]
    figure, number = blank(_layout(shares, titles), 430), len(shares)
    most = max(float(share.max()) for share in shares)
    for place, share in enumerate(shares, start=1):
        figure.add_heatmap(
            z=share.where(share > ROUNDING, float("nan")).tolist(),
            zmin=0,
            zmax=most or 1.0,
            colorscale=SCALE,
            showscale=place == number,
            hoverongaps=False,
            name=titles[place - 1],
            xaxis=f"x{place}",
            yaxis=f"y{place}",
            hovertemplate="row %{y}, column %{x}: %{z:.1%}<extra></extra>",
            colorbar={"title": {"text": "difference", "side": "right"}, "tickformat": ".0%", "thickness": 14},
        )
    saying(figure, _sentence(shares, titles))
    figure.layout.meta = {
        **figure.layout.meta,
        "table": {
            "image": list(titles),
            "elements that differ": [int((share > ROUNDING).sum()) for share in shares],
            "of": [share.numel() for share in shares],
            "largest difference / largest number": [float(share.max()) for share in shares],
        },
    }
    return figure


def _share(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Shape (height, width): the largest difference of all channels, over the largest number expected."""
    if got.shape != expected.shape:
        raise ValueError(
            f"got: got shape {tuple(got.shape)}, allowed is the expected one, {tuple(expected.shape)}"
        )
    apart = (got.detach() - expected.detach()).abs().flatten(0, -3).amax(0)
    return apart / expected.detach().abs().max()


def _layout(shares: Sequence[torch.Tensor], titles: Sequence[str]) -> dict[str, Any]:
    layout, wide = theme.layout(showlegend=False), (1 - GAP * (len(shares) - 1)) / len(shares)
    notes = []
    for place, (share, title) in enumerate(zip(shares, titles), start=1):
        left = (place - 1) * (wide + GAP)
        height, width = share.shape
        fixed = {"showgrid": False, "constrain": "domain", "constraintoward": "center"}
        across = {"domain": [left, left + wide], "anchor": f"y{place}", **fixed}
        down = {"anchor": f"x{place}", "scaleanchor": f"x{place}", **fixed}
        layout[f"xaxis{place}"] = theme.axis("column", (-0.5, width - 0.5), **across)
        layout[f"yaxis{place}"] = theme.axis("row" * (place == 1), (height - 0.5, -0.5), **down)
        middle = {"x": left + wide / 2, "xanchor": "center", "y": 1, "yanchor": "bottom"}
        notes.append({"text": title, **middle, "xref": "paper", "yref": "paper", "showarrow": False})
    return {**layout, "annotations": notes}


def _sentence(shares: Sequence[torch.Tensor], titles: Sequence[str]) -> str:
    said = []
    for share, title in zip(shares, titles):
        off = int((share > ROUNDING).sum())
        most = f", by up to {says.quantity(100 * float(share.max()))}% of the largest number" if off else ""
        said.append(f"{title}: {f'{off:,}' if off else 'none'} of {share.numel():,}{most}")
    return f"Elements that are not as in one process, {'; '.join(said)}."
