"""Style of all figures: each scheme has its own colour and a second cue, and axis titles are consistent."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dlpar.config.experiment import Experiment

_KEPT: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

GREY, ASKED, SCALE = (_KEPT[name] for name in ("grey", "asked", "scale"))
"""Colours of neutral elements, of a student's prediction, and a colour scale."""

RUNS, RANKS = tuple(_KEPT["runs"]), tuple(_KEPT["ranks"])
"""Colours of compared runs and of ranks."""

DASHES, PATTERNS, MARKERS = (tuple(_KEPT[name]) for name in ("dashes", "patterns", "markers"))
"""Dashes, patterns and markers that distinguish ranks, besides colours."""

SCHEMES: dict[str, str] = _KEPT["schemes"]
"""Colour of each scheme, the same in every figure of every lab."""

ALLREDUCES, PIPELINE, MEMORY, SPENT = (_KEPT[name] for name in ("allreduces", "pipeline", "memory", "spent"))
"""Colour and marker of each all-reduce; colours of a pipeline's bars, of kinds of memory and of a job's time."""

LOOKS, LANES = _KEPT["looks"], _KEPT["lanes"]
"""plotly attributes of traces and marks, by name, and of lanes, in drawing order."""

TITLES: dict[str, str] = _KEPT["titles"]
"""Titles of the horizontal axes of curves, by their columns."""

CARRIES, NEVER_STALE = _KEPT["carries"], _KEPT["never_stale"]
"""Messages along each axis of a mesh, and reasons why a scheme's staleness is 0."""

CLOCKS, HOW = _KEPT["clocks"], _KEPT["how"]
"""Clock of each world, and name of a result from this world."""

IDEAL, INSIDE = _KEPT["ideal"], _KEPT["inside"]
"""Style of the ideal line, and attributes of text in bars."""

ORDER = (*HOW.values(), "predicted")
"""Sources of results, the most trusted first."""

DRAWN = ("simulated", "paced", "measured", "predicted")
"""Sources of results in drawing order, so that broad lines are behind."""

PREDICTED = {"dash": "dash"}
"""Dash of predicted lines. Measured lines are solid."""

FAINT = 0.6
"""Opacity of earlier runs, and of simulated runs."""

BROAD = 5.0
"""Width of a simulated run's line. Width and faintness distinguish it from measurements."""


Look = dict[str, Any]
"""plotly attributes of a trace, an axis or a layout."""


class Phase(NamedTuple):
    """Style of a phase of a step."""

    group: str
    colour: str
    pattern: str = ""


PHASES = {name: Phase(*style) for name, style in _KEPT["phases"].items()}
"""Phases that a rank records as spans."""

KINDS = ("compute", "communicate", "wait", "evaluate", "other")
"""Kinds of work, in the order of captions."""

OTHER = Phase("other", GREY)


def titles(worlds: Iterable[str]) -> dict[str, str]:
    """Return `TITLES` with these worlds' clocks in the title of the seconds axis."""
    clocks = {CLOCKS[world] for world in worlds}
    if clocks <= {"wall"}:
        return TITLES
    whose = f" on the {clocks.pop()} clock" if len(clocks) == 1 else ", each run on its own clock"
    return {**TITLES, "seconds": f"time{whose} (s)"}


def on_clock(title: str, *worlds: str) -> str:
    """Title an axis of time with its clocks, except the wall clock: ``time of a rank, virtual clock (s)``."""
    (name, unit), clocks = title.rsplit(" (", 1), dict.fromkeys(CLOCKS[world] for world in worlds)
    return title if clocks.keys() <= {"wall"} else f"{name}, {' and '.join(clocks)} clock ({unit}"


WORKERS = 16
"""Maximum number of workers with their own line, lane or row. Readers could not distinguish more."""

OTHERS = 4
"""Maximum number of servers and leaves drawn beside the workers."""


def workers(experiment: Experiment) -> int:
    """Return the number of drawn workers. The drawn workers are the first ranks."""
    return min(experiment.workers, WORKERS)


def crowded(experiment: Experiment) -> bool:
    """Return whether some workers are left out of a figure."""
    return experiment.workers > WORKERS


def ranks(experiment: Experiment) -> list[int]:
    """Return the drawn ranks, including servers."""
    others = range(experiment.workers, experiment.ranks)
    return [*range(workers(experiment)), *(others[:OTHERS] if crowded(experiment) else others)]


def scheme_colour(scheme: str) -> str:
    """Return the colour of a scheme. An unknown scheme, such as a student's own, is grey."""
    return SCHEMES.get(scheme, GREY)


def predicted_line(name: str, colour: str = GREY, width: float = 2.0) -> Look:
    """Return the trace of a prediction as a dashed line."""
    return {"mode": "lines", "name": name, "line": line_by_source(colour, "predicted", width)}


def line_by_source(colour: str, source: str, width: float = 2.5) -> Look:
    """Return the line of a result by source.

    Predicted lines are dashed, and simulated lines are broad and faint. Others are solid.
    """
    if source == "predicted":
        return {"color": colour, "width": width, **PREDICTED}
    if source == "simulated":
        return {"color": faint(colour), "width": BROAD}
    return {"color": colour, "width": width}


def result(name: str, colour: str, source: str, symbol: str = "circle", **more: Any) -> Look:
    """Return the trace of results by source. Predictions have open, larger markers."""
    marker = {"color": colour, "size": 10, "symbol": symbol}
    if source == "predicted":
        marker |= {"size": 14, "symbol": f"{symbol}-open"}
    line = line_by_source(colour, source)
    return {"name": name, "mode": "lines+markers", "line": line, "marker": marker, **more}


def rank_line(rank: int, crowded: bool = False) -> Look:
    """Return plotly attributes of `rank`: name, line and marker, distinct with and without colour.

    With `crowded`, the legend has no ranks, and hovering shows the rank.
    """
    hidden = {"showlegend": False} if crowded else {}
    return {"name": f"rank {rank}", **_line(RANKS[rank % len(RANKS)], rank, 1.5, 7, 8), **hidden}


def _line(colour: str, number: int, width: float, size: int, shown: int) -> Look:
    """Return a line with its dash and some `shown` markers. Markers are complete even at a figure's edges."""
    line = {"color": colour, "width": width, "dash": DASHES[number % len(DASHES)]}
    marker = {"color": colour, "size": size, "symbol": MARKERS[number % len(MARKERS)], "maxdisplayed": shown}
    return {"mode": "lines+markers", "line": line, "marker": marker, "cliponaxis": False}


def run_colours(experiments: Sequence[Experiment]) -> list[str]:
    """Choose each run's colour.

    If each run has a different scheme, use the scheme's colour, otherwise the next colour.
    """
    schemes = [experiment.sync.scheme for experiment in experiments]
    if len(schemes) > 1 and len(set(schemes)) == len(schemes):
        return [scheme_colour(scheme) for scheme in schemes]
    return [RUNS[number % len(RUNS)] for number in range(len(schemes))]


def beside(colour: str, number: int, world: str = "real") -> Look:
    """Return the line of one of several runs. Each run has its own dash and symbols.

    Only simulated lines are faint.
    """
    look = _line(colour, number, 2.0, 11, 6)
    if world == "simulated":
        look["line"] |= line_by_source(colour, world)
    look["marker"]["line"] = {"width": 1.5, "color": "#ffffff"}  # separates lines of the same colour
    return look


def faint(colour: str) -> str:
    """Return a colour (``#rrggbb``) with the opacity of simulated lines."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{FAINT})"


def lighter(colour: str, share: float) -> str:
    """Mix a colour (``#rrggbb``) with a share of white, from 0 to 1."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (255 - part)):02x}" for part in parts)


def phase_bar(name: str) -> Look:
    """Return the bar of a phase as plotly trace attributes."""
    phase = PHASES.get(name, OTHER)
    named = name if name == phase.group else f"{phase.group}: {name}"
    marker = {"color": phase.colour, "pattern": hatch(phase.pattern)}
    return {"type": "bar", "orientation": "h", "name": named, "marker": marker}


def hatch(shape: str) -> Look:
    """Return plotly's pattern for a bar's shape."""
    hatch = {"fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.6, "size": 6, "solidity": 0.25}
    return {"shape": shape, **hatch} if shape else {}


def axis(title: str, limits: tuple[float, float] | None = None, **more: Any) -> Look:
    """Return an axis with title and unit. `limits` fix the range and so prevent jumps during a run."""
    fixed = {"range": list(limits)} if limits else {}
    return {"title": {"text": title, "standoff": 10, "font": {"size": 14}}, **_KEPT["axis"], **fixed, **more}


def round_numbers(low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Return round numbers from at most `low` to at least `high`.

    If there are many, return powers of ten.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [step * 10.0**power for power in powers for step in steps]
    first = max(n for n in numbers if n <= low * (1 + 1e-9))
    last = min(n for n in numbers if n >= high * (1 - 1e-9))
    inside = [n for n in numbers if first <= n <= last]
    return inside if len(inside) <= TICKS or len(steps) == 1 else round_numbers(low, high, (1,))


TICKS = 10
"""Maximum number of ticks on a logarithmic axis."""


def log_axis(
    title: str,
    values: Sequence[float],
    text: Callable[[float], str] = "{:,.10g}".format,
    ends: tuple[float, float] | None = None,
    **more: Any,
) -> Look:
    """Return a logarithmic axis between `ends`. Its ticks are at some of `values`.

    The default ends are the first and last value.
    """
    shown = values[:: -(-len(values) // TICKS)]
    first, last = map(math.log10, ends or (values[0], values[-1]))
    margin = 0.03 * (last - first) or 0.5
    ticks = {"type": "log", "tickvals": list(shown), "ticktext": [text(value) for value in shown]}
    return axis(title, (first - margin, last + margin), **ticks, **more)


def rows(names: Sequence[str], **more: Any) -> Look:
    """Return a vertical axis with a row for each name. The first row is on top."""
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names), "showgrid": False}
    return axis("", (len(names) - 0.5, -0.5), **{**ticks, **more})


def annotation(text: str, x: float, y: float, **more: Any) -> Look:
    """Return text without an arrow. `x` and `y` are shares of the plot. `y` positions the lower edge."""
    place = {"x": x, "xref": "paper", "y": y, "yref": "paper", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 14}, **place, **more}


def layout(**more: Any) -> Look:
    """Return the layout that all figures share."""
    return {**_KEPT["layout"], **more}


def unit_of(nbytes: float) -> tuple[float, str]:
    """Return the scale and the name of the unit for bars of at most this many bytes."""
    return (1e6, "MB") if nbytes >= 1e6 else (1e3, "kB")


def columns(number: int, gap: float) -> list[list[float]]:
    """Return the domains of adjacent axes. Domains and `gap` are shares of the figure's width."""
    width = (1 + gap) / number
    return [[n * width, (n + 1) * width - gap] for n in range(number)]


def doubled(value: float, least: float = 1.0) -> float:
    """Return the limit of a growing axis: the first of `least`, 2 × `least`, … that is not below `value`."""
    return least * 2.0 ** math.ceil(math.log2(value / least)) if least < value < math.inf else least


def rounded_up(value: float) -> float:
    """Return the first round number not below a positive `value`. A final axis ends there."""
    if not 0 < value < float("inf"):
        return 1.0
    ends = (step * 10.0 ** math.floor(math.log10(value)) for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return next(end for end in ends if end >= value * (1 - 1e-9))
