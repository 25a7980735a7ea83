"""Static figures of the cost of messages and collectives: measured, paced, simulated and predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, blank, captioned
from dlpar.lab.timing import CollectiveTime, PingPong

LINKS = (("#0072B2", "#BF8300", "circle"), ("#009E73", "#D55E00", "square"))
"""Colours of times and fit, and marker, of each link in a figure."""


def link_fit(*found: PingPong) -> Figure:
    """Draw the one-way time of a message over its bytes, and the fit ``latency + bytes / bandwidth``.

    Parameters
    ----------
    *found : PingPong
        One or two, from :func:`dlpar.lab.ping_pong`.

    Raises
    ------
    ValueError
        If there are more or fewer.
    """
    if not 1 <= len(found) <= len(LINKS):
        raise ValueError(f"found: got {len(found)} ping-pongs, allowed is 1 or 2")
    fits = [[1e3 * one.link.seconds(size) for size in one.sizes] for one in found]
    times = [[1e3 * seconds for seconds in one.seconds] for one in found]
    sizes = [size for one in found for size in one.sizes]
    everything = [ms for row in (*times, *fits) for ms in row]
    across, up = _bytes("message (bytes)", sizes), _times(everything, [one.how for one in found])
    figure = blank(theme.layout(xaxis=across, yaxis=up))
    for one, row, fit, (colour, fitted, symbol) in zip(found, times, fits, LINKS):
        look = theme.result(f"{one.where}, {one.how}", colour, one.how, symbol)
        figure.add_scatter(x=one.sizes, y=row, **{**look, "mode": "markers"})
        line = theme.predicted_line("fit: latency + bytes / bandwidth", fitted, 2.5)
        figure.add_scatter(x=one.sizes, y=fit, **line)
    return captioned(figure, " ".join(_link_in_words(one, len(found) > 1) for one in found))


def _link_in_words(one: PingPong, several: bool) -> str:
    latency, bandwidth = one.link.latency, one.link.bandwidth
    text = f"A message takes {captions.short_time(latency)} plus 1 s for every "
    text += captions.nbytes(bandwidth)
    text = f"{one.where[0].upper()}{one.where[1:]} ({one.how}): a{text[1:]}" if several else text
    return f"{text}; at {captions.nbytes(latency * bandwidth)} the two parts are equal."


def collective_times(times: Sequence[CollectiveTime], over: str = "bytes") -> Figure:
    """Draw the times of all-reduce algorithms on logarithmic axes; the axis names the clock.

    Solid lines are measured or paced, broad and faint ones simulated, dashed ones predicted.

    Parameters
    ----------
    times : sequence of CollectiveTime
        Results of :func:`dlpar.lab.time_collectives` and :func:`dlpar.lab.predict_collectives`, in any order.
    over : {"bytes", "ranks"}, default "bytes"
        Horizontal axis; there is a line for every value of the other.

    Raises
    ------
    ValueError
        If `over` is neither, or there are no times.
    """
    if over not in ("bytes", "ranks"):
        raise ValueError(f"over: got {over!r}, allowed is bytes or ranks")
    if not times:
        raise ValueError("times: got none, allowed is one or more")
    here = {t: (t.nbytes, t.ranks) if over == "bytes" else (t.ranks, t.nbytes) for t in times}
    places, others = (sorted(set(column)) for column in zip(*here.values()))
    across = _bytes("tensor (bytes)", places) if over == "bytes" else theme.log_axis("ranks", places)
    up = _times([1e3 * t.seconds for t in times], [t.how for t in times])
    figure = blank(theme.layout(xaxis=across, yaxis=up))
    for how in ("simulated", "paced", "measured", "predicted"):
        lines: dict[tuple[str, float], list[CollectiveTime]] = defaultdict(list)
        for timing, (_, other) in sorted(here.items(), key=lambda item: item[1]):
            if timing.how == how:
                lines[timing.name, other].append(timing)
        for (name, other), own in lines.items():
            colour, symbol = theme.ALLREDUCES.get(name, (theme.GREY, "cross"))
            label = name.replace("_", "-")
            if len(others) > 1:  # the marker tells sizes or ranks
                label += f", {captions.nbytes(other)}" if over == "ranks" else f", {other} ranks"
                symbol = theme.MARKERS[others.index(other) % len(theme.MARKERS)]
            look = theme.result(f"{label}, {how}", colour, how, symbol)
            figure.add_scatter(x=[here[t][0] for t in own], y=[1e3 * t.seconds for t in own], **look)
    seconds = {how: {t[:3]: t.seconds for t in times if t.how == how} for how in theme.ORDER}
    sentences = [_ends(here, over, len(others) > 1), *captions.errors(seconds, most=10)]
    return captioned(figure, " ".join(sentences))


def _ends(here: dict[CollectiveTime, tuple[float, float]], over: str, several: bool) -> str:
    """Times at both ends of the longest lines; of equally long ones, of the source that counts most."""
    places = {how: [place for t, (place, _) in here.items() if t.how == how] for how in theme.ORDER}
    known = [how for how in theme.ORDER if places[how]]
    how = max(known, key=lambda how: max(places[how]) / min(places[how]))
    parts = []
    for place in dict.fromkeys((min(places[how]), max(places[how]))):
        where = captions.nbytes(place) if over == "bytes" else f"{place} ranks"
        each = []
        for timing in sorted(here, key=lambda t: t.seconds):
            if timing.how == how and here[timing][0] == place:
                size = f"({captions.nbytes(timing.nbytes)}) " if several and over == "ranks" else ""
                each.append(f"{timing.name.replace('_', '-')} {size}{captions.short_time(timing.seconds)}")
        parts.append(f"{where}: {captions.listed(each)}")
    return f"{how.capitalize()} at {'; at '.join(parts)}."


def _bytes(title: str, sizes: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis of bytes."""
    ends = min(sizes), max(sizes)
    return theme.log_axis(title, theme.round_numbers(*ends, (1,)), captions.nbytes, ends)


def _times(times_ms: Sequence[float], hows: Sequence[str]) -> dict[str, Any]:
    """A logarithmic axis of time, with the clocks of its sources."""
    clocks = [theme.CLOCKS[world] for world, how in theme.HOW.items() if how in hows]
    title = "time (ms)" if clocks in ([], ["wall"]) else f"time, {captions.listed(clocks)} clock (ms)"
    return theme.log_axis(title, theme.round_numbers(0.9 * min(times_ms), 1.1 * max(times_ms)))
