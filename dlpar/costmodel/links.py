"""The two numbers of a link, found from timed messages."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.platforms.link import Link


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """The link on which messages of `sizes` bytes would take about `seconds`.

    Least squares of the relative error, so that short messages fix the latency and
    long ones the bandwidth.

    Raises
    ------
    ValueError
        Unless there are two sizes or more and a positive time for each, longer for more bytes.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or not min(seconds) > 0:
        raise ValueError(
            f"sizes: got {len(sizes)} for {len(seconds)} times, allowed are two different ones or more, "
            f"and a time above 0 for each"
        )
    # Minimise the sum of (latency / t + slope B / t - 1)^2.
    rows = [(1 / t, size / t) for size, t in zip(sizes, seconds)]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(r[i] for r in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    latency, slope = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    if latency < 0:
        latency, slope = 0.0, b / bb
    if slope <= 0:
        raise ValueError("seconds: got times that do not grow with the bytes, so there is no bandwidth")
    return Link(latency, 1 / slope)
