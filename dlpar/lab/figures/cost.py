"""Static figures of what messages and collectives cost: measured, paced, simulated and predicted told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, saying
from dlpar.lab.timing import PingPong, Timing

LOOKS = {
    "ring": (theme.SCHEMES["ring"], "circle"),
    "star": (theme.SCHEMES["ps"], "star"),
    "tree": (theme.SCHEMES["mapreduce"], "triangle-up"),
    "halving_doubling": ("#7e83d3", "diamond"),
    "hierarchical": ("#975a9b", "square"),
    "library": ("#7f7f7f", "x"),
}
"""Colour and marker of each all-reduce: that of the scheme which is built on it, where there is one."""


LINKS = (("#0072B2", "#BF8300", "circle"), ("#009E73", "#D55E00", "square"))
"""Colour of the times and of the fit, and marker, of each link in one figure."""


def link_fit(*found: PingPong) -> Figure:
    """One-way time of a message over its bytes, and the line ``latency + bytes / bandwidth`` through it.

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
        marker = {
            "color": theme.faint(colour) if one.how == "simulated" else colour,
            "size": 9,
            "symbol": symbol,
        }
        figure.add_scatter(x=one.sizes, y=row, name=f"{one.where}, {one.how}", mode="markers", marker=marker)
        line = {"color": fitted, "width": 2.5, **theme.PREDICTED}
        figure.add_scatter(
            x=one.sizes, y=fit, name="fit: latency + bytes / bandwidth", mode="lines", line=line
        )
    return saying(figure, " ".join(_of_link(one, len(found) > 1) for one in found))


def _of_link(one: PingPong, several: bool) -> str:
    link = one.link
    text = f"A message takes {_time(link.latency)} and then a second for every {says.quantity(link.bandwidth / 1e6)} MB"
    text = f"{one.where[0].upper()}{one.where[1:]} ({one.how}): a{text[1:]}" if several else text
    return f"{text}; at {_bytes(link.latency * link.bandwidth)} the two are equal."


def collective_times(times: Sequence[Timing], over: str = "bytes") -> Figure:
    """Times of all-reduce algorithms, on logarithmic axes; the axis says by which clock.

    Solid is measured or paced, broad and faint simulated, dashed predicted.

    Parameters
    ----------
    times : sequence of Timing
        From :func:`dlpar.lab.time_collectives` and :func:`dlpar.lab.predict_collectives`, in any order.
    over : {"bytes", "ranks"}
        What the times are drawn over; there is a line for every value of the other.

    Raises
    ------
    ValueError
        If `over` is neither, or nothing is given.
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
            own = sorted(
                (t for t in drawn if (t.name, _other(t, over)) == key), key=lambda t: _place(t, over)
            )
            figure.add_scatter(
                x=[_place(t, over) for t in own],
                y=[1e3 * t.seconds for t in own],
                **_style(how, key, over, others),
            )
    return saying(figure, " ".join([_ends(times, over, len(others) > 1), *_off(times)]))


def _place(timing: Timing, over: str) -> float:
    return timing.nbytes if over == "bytes" else timing.ranks


def _other(timing: Timing, over: str) -> float:
    return timing.ranks if over == "bytes" else timing.nbytes


def _style(how: str, key: tuple[str, float], over: str, others: list[float]) -> dict:
    """The colour tells the algorithm; where there are lines for several sizes or ranks, the marker tells which."""
    name, other = key
    colour, symbol = LOOKS.get(name, ("#7f7f7f", "cross"))
    several, more = len(others) > 1, ""
    if several:
        more = f", {_bytes(other)}" if over == "ranks" else f", {other} ranks"
        symbol = theme.MARKERS[others.index(other) % len(theme.MARKERS)]
    label = f"{name.replace('_', '-')}{more}, {how}"
    if how == "predicted":
        line = {"color": colour, "width": 2, **theme.PREDICTED}
        marker = {"color": colour, "size": 9, "symbol": f"{symbol}-open"}
        return {
            "name": label,
            "mode": "lines+markers" if several else "lines",
            "line": line,
            "marker": marker,
        }
    line, marker = {"color": colour, "width": 2.5}, {"color": colour, "size": 10, "symbol": symbol}
    if how == "simulated":  # the points stand out: only the line between them is faint
        line = {"color": theme.faint(colour), "width": theme.BROAD}
    return {"name": label, "mode": "lines+markers", "line": line, "marker": marker}


def _ends(times: Sequence[Timing], over: str, several: bool) -> str:
    """Who takes how long at both ends of the longest lines; of equally long ones, of those that count most."""
    places = {how: [_place(t, over) for t in times if t.how == how] for how in theme.ORDER}
    how = max(
        (how for how in theme.ORDER if places[how]), key=lambda how: max(places[how]) / min(places[how])
    )
    said = []
    for place in dict.fromkeys((min(places[how]), max(places[how]))):
        here = sorted(
            (t for t in times if t.how == how and _place(t, over) == place), key=lambda t: t.seconds
        )
        where = _bytes(place) if over == "bytes" else f"{place} ranks"
        each = (
            f"{t.name.replace('_', '-')} {f'({_bytes(t.nbytes)}) ' if several and over == 'ranks' else ''}"
            f"{_time(t.seconds)}"
            for t in here
        )
        said.append(f"{where}: {says.listed(each)}")
    return f"{how.capitalize()} at {'; at '.join(said)}."


def _off(times: Sequence[Timing]) -> list[str]:
    """How far simulation and prediction are from what counts most; of what is far off, nothing."""
    weight = min((t.how for t in times), key=theme.ORDER.index)
    seconds = {how: {t[:3]: t.seconds for t in times if t.how == how} for how in theme.ORDER}
    said = []
    for how, noun in (("simulated", "simulation"), ("predicted", "prediction")):
        common = seconds[weight].keys() & seconds[how].keys() if how != weight else ()
        apart = max((abs(seconds[how][key] / seconds[weight][key] - 1) for key in common), default=math.inf)
        said += [says.off(noun, apart)] if apart < 10 else []
    return said


def _clock(hows: Sequence[str]) -> str:
    """Title of an axis of time that is told by the clocks of what was found so."""
    clocks = [theme.CLOCKS[world] for world, how in theme.HOW.items() if how in hows]
    return "time (ms)" if clocks in ([], ["wall"]) else f"time, {says.listed(clocks)} clock (ms)"


def _layout(title: str, places: Sequence[float], times_ms: Sequence[float], hows: Sequence[str]) -> dict:
    across: dict = {"type": "log"}
    if title != "ranks":
        at = [
            10.0**k
            for k in range(math.floor(math.log10(min(places))), math.ceil(math.log10(max(places))) + 1)
        ]
        across |= {"tickvals": at, "ticktext": [_bytes(b) for b in at]}
    low, high = 0.9 * min(times_ms), 1.1 * max(times_ms)
    round_numbers = [step * 10.0**k for k in range(-6, 9) for step in (1, 2, 5)]
    below, above = max(n for n in round_numbers if n <= low), min(n for n in round_numbers if n >= high)
    ticks = [n for n in round_numbers if below <= n <= above]
    if len(ticks) > 8:
        ticks = [n for n in ticks if math.isclose(math.log10(n), round(math.log10(n)), abs_tol=1e-6)]
    up = {"type": "log", "tickvals": ticks, "ticktext": [f"{n:,g}" for n in ticks]}
    limits = math.log10(below), math.log10(above)
    return theme.layout(xaxis=theme.axis(title, **across), yaxis=theme.axis(_clock(hows), limits, **up))


def _bytes(count: float) -> str:
    """12 B, 1.2 kB, 178 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{says.quantity(count / size)} {unit}"
    return f"{says.quantity(count)} B"


def _time(seconds: float) -> str:
    """2 s, 12.1 ms, 7 µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{says.quantity(seconds / size)} {unit}"
    return f"{says.quantity(seconds / 1e-6)} µs"
