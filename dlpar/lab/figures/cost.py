"""Static figures of the cost of messages and collectives: measured, paced, simulated and predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    everything = [ms for row in (*times, *fits) for ms in row]
    sizes = [size for one in found for size in one.sizes]
    figure = blank(_layout("message (bytes)", sizes, everything, [one.how for one in found]))
    for one, row, fit, (colour, fitted, symbol) in zip(found, times, fits, LINKS):
        colour = theme.line_by_source(colour, one.how)["color"]
        marker = {"color": colour, "size": 9, "symbol": symbol}
        figure.add_scatter(x=one.sizes, y=row, name=f"{one.where}, {one.how}", mode="markers", marker=marker)
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
    at = [_place(t, over) for t in times]
    title = "tensor (bytes)" if over == "bytes" else "ranks"
    figure = blank(_layout(title, at, [1e3 * t.seconds for t in times], [t.how for t in times]))
    if over == "ranks":
        figure.update_xaxes(tickvals=sorted(set(at)), ticktext=[str(n) for n in sorted(set(at))])
    others = sorted({_other(t, over) for t in times})
    for how in ("simulated", "paced", "measured", "predicted"):
        drawn = [t for t in times if t.how == how]
        for key in dict.fromkeys((t.name, _other(t, over)) for t in drawn):
            own = [t for t in drawn if (t.name, _other(t, over)) == key]
            x, y = zip(*sorted((_place(t, over), 1e3 * t.seconds) for t in own))
            figure.add_scatter(x=x, y=y, **_style(how, key, over, others))
    seconds = {how: {t[:3]: t.seconds for t in times if t.how == how} for how in theme.ORDER}
    sentences = [_ends(times, over, len(others) > 1), *captions.errors(seconds, most=10)]
    return captioned(figure, " ".join(sentences))


def _place(timing: CollectiveTime, over: str) -> float:
    return timing.nbytes if over == "bytes" else timing.ranks


def _other(timing: CollectiveTime, over: str) -> float:
    return timing.ranks if over == "bytes" else timing.nbytes


def _style(how: str, key: tuple[str, float], over: str, others: list[float]) -> dict:
    """Style of a line: its colour tells the algorithm; its marker tells sizes or ranks, if there are several."""
    name, other = key
    colour, symbol = theme.ALLREDUCES.get(name, (theme.GREY, "cross"))
    several, more = len(others) > 1, ""
    if several:
        more = f", {captions.nbytes(other)}" if over == "ranks" else f", {other} ranks"
        symbol = theme.MARKERS[others.index(other) % len(theme.MARKERS)]
    label = f"{name.replace('_', '-')}{more}, {how}"
    if how == "predicted":
        marker = {"color": colour, "size": 9, "symbol": f"{symbol}-open"}
        mode = "lines+markers" if several else "lines"
        return {**theme.predicted_line(label, colour), "mode": mode, "marker": marker}
    # Simulated points stand out: only the line between them is faint.
    line, marker = theme.line_by_source(colour, how), {"color": colour, "size": 10, "symbol": symbol}
    return {"name": label, "mode": "lines+markers", "line": line, "marker": marker}


def _ends(times: Sequence[CollectiveTime], over: str, several: bool) -> str:
    """Times at both ends of the longest lines; of equally long ones, of the source that counts most."""
    places = {how: [_place(t, over) for t in times if t.how == how] for how in theme.ORDER}
    known = [how for how in theme.ORDER if places[how]]
    how = max(known, key=lambda how: max(places[how]) / min(places[how]))
    parts = []
    for place in dict.fromkeys((min(places[how]), max(places[how]))):
        here = sorted((t.seconds, t) for t in times if t.how == how and _place(t, over) == place)
        where = captions.nbytes(place) if over == "bytes" else f"{place} ranks"
        each = []
        for seconds, timing in here:
            size = f"({captions.nbytes(timing.nbytes)}) " if several and over == "ranks" else ""
            each.append(f"{timing.name.replace('_', '-')} {size}{captions.short_time(seconds)}")
        parts.append(f"{where}: {captions.listed(each)}")
    return f"{how.capitalize()} at {'; at '.join(parts)}."


def _clock(hows: Sequence[str]) -> str:
    """Title of an axis of time, with the clocks of its sources."""
    clocks = [theme.CLOCKS[world] for world, how in theme.HOW.items() if how in hows]
    return "time (ms)" if clocks in ([], ["wall"]) else f"time, {captions.listed(clocks)} clock (ms)"


def _layout(title: str, places: Sequence[float], times_ms: Sequence[float], hows: Sequence[str]) -> dict:
    across: dict = {"type": "log"}
    if title != "ranks":
        at = [
            10.0**k
            for k in range(math.floor(math.log10(min(places))), math.ceil(math.log10(max(places))) + 1)
        ]
        across |= {"tickvals": at, "ticktext": [captions.nbytes(b) for b in at]}
    low, high = 0.9 * min(times_ms), 1.1 * max(times_ms)
    round_numbers = [step * 10.0**k for k in range(-6, 9) for step in (1, 2, 5)]
    below, above = max(n for n in round_numbers if n <= low), min(n for n in round_numbers if n >= high)
    ticks = [n for n in round_numbers if below <= n <= above]
    if len(ticks) > 8:
        ticks = [n for n in ticks if math.isclose(math.log10(n), round(math.log10(n)), abs_tol=1e-6)]
    up = {"type": "log", "tickvals": ticks, "ticktext": [f"{n:,g}" for n in ticks]}
    limits = math.log10(below), math.log10(above)
    return theme.layout(xaxis=theme.axis(title, **across), yaxis=theme.axis(_clock(hows), limits, **up))
