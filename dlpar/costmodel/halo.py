"""Closed form of a halo: what a rank sends where images are cut and neighbours exchange their edges."""

from __future__ import annotations

from typing import NamedTuple


class HaloCost(NamedTuple):
    """Payload one rank sends for one layer, in one direction.

    Attributes
    ----------
    messages, elements : int
        One message to each neighbour, and the numbers in all of them.
    """

    messages: int
    elements: int


def halo(
    samples: int,
    channels: int,
    height: int,
    width: int,
    radius: int,
    above: bool = True,
    below: bool = True,
    left: bool = True,
    right: bool = True,
) -> HaloCost:
    """Of a convolution with stride 1 that keeps the size of its images: kernel 2r + 1, padding r.

    With N samples and C channels an interior rank, which has a piece of h = H / p_h rows and
    w = W / p_w columns, sends N C (2 r (h + w) + 4 r²) elements in 8 messages: r rows or columns
    along each edge, and a square of r × r across each corner.  At the edge of the image there
    are fewer.  The backward pass sends as many, of the gradient (Dryden et al., IPDPS 2019,
    arXiv 1903.06681).

    Parameters
    ----------
    samples, channels : int
        Of the layer's input.
    height, width : int
        Rows and columns of the rank's own piece, no less than `radius`.
    radius : int
        r.
    above, below, left, right : bool, default True
        Where the rank has neighbours.

    Examples
    --------
    >>> halo(samples=1, channels=1, height=4, width=4, radius=1)
    HaloCost(messages=8, elements=20)
    """
    if not 0 <= radius <= min(height, width):
        most = min(height, width)
        raise ValueError(f"radius: got {radius}, allowed with a piece of {height} × {width} is 0 to {most}")
    if radius == 0:
        return HaloCost(0, 0)
    vertical, horizontal = above + below, left + right
    edges = radius * (vertical * width + horizontal * height)
    corners = radius * radius * vertical * horizontal
    return HaloCost(vertical + horizontal + vertical * horizontal, samples * channels * (edges + corners))
