"""Static figures of what messages and collectives cost: solid is measured, dashed predicted."""

from __future__ import annotations

import math
from typing import Sequence

from dlpar.lab import says, theme
from dlpar.lab.figure import Figure
from dlpar.lab.figures.drawing import blank, saying
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


def link_fit(measured: PingPong) -> Figure:
    """One-way time of a message over its bytes, and the line ``latency + bytes / bandwidth`` through it."""
    link, sizes = measured.link, measured.sizes
    predicted = [1e3 * link.seconds(size) for size in sizes]
    times = [1e3 * seconds for seconds in measured.seconds]
    figure = blank(_layout("message (bytes)", sizes, [*times, *predicted]))
    figure.add_scatter(x=sizes, y=times, name="measured", mode="markers", marker={"color": "#0072B2", "size": 9})
    line = {"color": "#BF8300", "width": 2.5, **theme.PREDICTED}
    figure.add_scatter(x=sizes, y=predicted, name="predicted: latency + bytes / bandwidth", mode="lines", line=line)
    half = link.latency * link.bandwidth
    rate = says.quantity(link.bandwidth / 1e6)
    text = f"A message takes {_time(link.latency)} and then a second for every {rate} MB"
    return saying(figure, f"{text}; at {_bytes(half)} the two are equal.")


def collective_times(measured: Sequence[Timing] = (), predicted: Sequence[Timing] = (), over: str = "bytes") -> Figure:
    """Times of all-reduce algorithms, on logarithmic axes.

    Parameters
    ----------
    measured, predicted : sequence of Timing
        From :func:`dlpar.lab.time_collectives` and :func:`dlpar.lab.predict_collectives`; one may be empty.
    over : {"bytes", "ranks"}
        What the times are drawn over; there is a line for every value of the other.

    Raises
    ------
    ValueError
        If `over` is neither, or nothing is given.
    """
    if over not in ("bytes", "ranks"):
        raise ValueError(f"over: got {over!r}, allowed is bytes or ranks")
    everything = [*measured, *predicted]
    if not everything:
        raise ValueError("measured: got nothing, and nothing predicted; allowed is one time or more")
    at = [_place(t, over) for t in everything]
    title = "tensor (bytes)" if over == "bytes" else "ranks"
    figure = blank(_layout(title, at, [1e3 * t.seconds for t in everything]))
    if over == "ranks":
        figure.update_xaxes(tickvals=sorted(set(at)), ticktext=[str(n) for n in sorted(set(at))])
    others = sorted({_other(t, over) for t in everything})
    for kind, timings in {"measured": measured, "predicted": predicted}.items():
        for key in dict.fromkeys((t.name, _other(t, over)) for t in timings):
            own = sorted((t for t in timings if (t.name, _other(t, over)) == key), key=lambda t: _place(t, over))
            figure.add_scatter(x=[_place(t, over) for t in own], y=[1e3 * t.seconds for t in own],
                               **_style(kind, key, over, others))  # fmt: skip
    return saying(figure, _in_words(measured, predicted, over, len(others) > 1))


def _place(timing: Timing, over: str) -> float:
    return timing.nbytes if over == "bytes" else timing.ranks


def _other(timing: Timing, over: str) -> float:
    return timing.ranks if over == "bytes" else timing.nbytes


def _style(kind: str, key: tuple[str, float], over: str, others: list[float]) -> dict:
    """The colour tells the algorithm; where there are lines for several sizes or ranks, the marker tells which."""
    name, other = key
    colour, symbol = LOOKS.get(name, ("#7f7f7f", "cross"))
    several, more = len(others) > 1, ""
    if several:
        more = f", {_bytes(other)}" if over == "ranks" else f", {other} ranks"
        symbol = theme.MARKERS[others.index(other) % len(theme.MARKERS)]
    label = f"{name.replace('_', '-')}{more}, {kind}"
    if kind == "predicted":
        line = {"color": colour, "width": 2, **theme.PREDICTED}
        marker = {"color": colour, "size": 9, "symbol": f"{symbol}-open"}
        return {"name": label, "mode": "lines+markers" if several else "lines", "line": line, "marker": marker}
    line, marker = {"color": colour, "width": 2.5}, {"color": colour, "size": 10, "symbol": symbol}
    return {"name": label, "mode": "lines+markers", "line": line, "marker": marker}


def _in_words(measured: Sequence[Timing], predicted: Sequence[Timing], over: str, several: bool) -> str:
    shown, kind = (measured, "measured") if measured else (predicted, "predicted")
    said = []
    for place in sorted({_place(t, over) for t in shown})[:: max(1, len({_place(t, over) for t in shown}) - 1)]:
        here = [t for t in shown if _place(t, over) == place]
        where = _bytes(place) if over == "bytes" else f"{place} ranks"
        each = (f"{t.name.replace('_', '-')} {f'({_bytes(t.nbytes)}) ' if several and over == 'ranks' else ''}"
                f"{_time(t.seconds)}" for t in sorted(here, key=lambda t: t.seconds))  # fmt: skip
        said.append(f"{where}: {says.listed(each)}")
    text = f"{kind.capitalize()} at {'; at '.join(said)}."
    known = {(t.name, t.ranks, t.nbytes): t.seconds for t in predicted}
    off = [abs(t.seconds / known[key] - 1) for t in measured if (key := (t.name, t.ranks, t.nbytes)) in known]
    return text + (f" Prediction and measurement are at most {max(off):.0%} apart." if off and max(off) < 10 else "")


def _layout(title: str, places: Sequence[float], times_ms: Sequence[float]) -> dict:
    across: dict = {"type": "log"}
    if title != "ranks":
        at = [10.0**k for k in range(math.floor(math.log10(min(places))), math.ceil(math.log10(max(places))) + 1)]
        across |= {"tickvals": at, "ticktext": [_bytes(b) for b in at]}
    low, high = 0.9 * min(times_ms), 1.1 * max(times_ms)
    round_numbers = [step * 10.0**k for k in range(-6, 9) for step in (1, 2, 5)]
    below, above = max(n for n in round_numbers if n <= low), min(n for n in round_numbers if n >= high)
    ticks = [n for n in round_numbers if below <= n <= above]
    if len(ticks) > 8:
        ticks = [n for n in ticks if math.isclose(math.log10(n), round(math.log10(n)), abs_tol=1e-6)]
    up = {"type": "log", "tickvals": ticks, "ticktext": [f"{n:,g}" for n in ticks]}
    limits = math.log10(below), math.log10(above)
    return theme.layout(xaxis=theme.axis(title, **across), yaxis=theme.axis("time (ms)", limits, **up))


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
