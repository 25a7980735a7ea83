"""Style of all figures: one colour per scheme, a second sign besides colour, axes with the same titles.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color, 2008). The light ones are darkened
to a contrast of at least 3:1 on a white and on a dark page (WCAG 2.1, 1.4.11), so that a
curve keeps its colour when the theme changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment

GREY = "#7f7f7f"
"""Colour of everything that belongs to no scheme and to no rank."""

SCHEMES = {
    "ring": "#0072B2", "ps": "#D55E00", "mapreduce": "#009E73", "gossip": "#C56C9E", "hogwild": "#BF8300",
}  # fmt: skip
"""Colour of each scheme, the same in every figure of every lab."""

RUNS = ("#0072B2", "#D55E00", "#009E73", "#BF8300", "#C56C9E", "#7e83d3", "#2f8f9d", "#a95f23")
"""Colours of runs that are compared."""

ALLREDUCES = {
    "ring": (SCHEMES["ring"], "circle"),
    "star": (SCHEMES["ps"], "star"),
    "tree": (SCHEMES["mapreduce"], "triangle-up"),
    "halving_doubling": ("#7e83d3", "diamond"),
    "hierarchical": ("#975a9b", "square"),
    "library": (GREY, "x"),
}
"""Colour and marker of each all-reduce; the colour is that of the scheme built on it, if there is one."""

RANKS = ("#7e83d3", "#975a9b", "#c96b7b", "#a95f23", "#9d8d26", "#418646", "#00a39c", "#007eb0")
"""Colours of ranks: even steps around the hue circle, lightness alternating."""

DASHES = ("solid", "2px,3px", "10px,3px,2px,3px", "16px,4px", "12px,3px,2px,3px,2px,3px")
"""Dashes of ranks; plotly's plain "dash" is not among them, because it means predicted."""

PATTERNS = ("", "/", "\\", "x", "-", "|", "+", ".")
"""Patterns of ranks where they are drawn as bars."""

MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon")

PREDICTED = {"dash": "dash"}
"""Line of predictions; lines of measurements are solid."""

ASKED = "#BF8300"
"""Colour of a student's prediction."""

IDEAL = {"color": GREY, "width": 2, "dash": "dot"}
"""Line of the ideal."""

FAINT = 0.6
"""Opacity of earlier runs, and of simulated ones."""

BROAD = 5.0
"""Width of a simulated run's line; width and faintness distinguish it from measurements."""


class Phase(NamedTuple):
    """Style of a phase of a step."""

    group: str
    colour: str
    pattern: str = ""


PHASES = {
    "forward": Phase("compute", "#3A97CC"),
    "backward": Phase("compute", "#1F73AE"),
    "delay": Phase("compute", "#5A96BB"),
    "update": Phase("compute", "#4B7FA0"),
    "weight": Phase("compute", "#2B86B8"),
    "recompute": Phase("compute", "#6E94BC"),
    "communicate": Phase("communicate", "#B8860B"),
    "send": Phase("communicate", "#A87400"),
    "receive": Phase("communicate", "#B58A25"),
    "halo": Phase("communicate", "#9C7A1C"),
    "gather": Phase("communicate", "#BF8A3D"),
    "reduce": Phase("communicate", "#8F6A10"),
    "wait": Phase("wait", "#8a8a8a", "/"),
    "evaluate": Phase("evaluate", "#8c6bb1"),
}
"""Phases that a rank writes as spans: the colour shows the kind of work, its shade the phase.

Only idle time is hatched.
"""

KINDS = ("compute", "communicate", "wait", "evaluate", "other")
"""Kinds of work, in the order of captions."""

OTHER = Phase("other", GREY)

TITLES = {
    "step": "global step",
    "samples": "samples, all workers together",
    "seconds": "time since all ranks were ready (s)",
    "MB sent": "sent by all workers together (MB)",
}
"""Titles of the horizontal axes of curves, by their columns."""


CLOCKS = {"real": "wall", "paced": "logical", "simulated": "virtual"}
"""The clock of each world."""

HOW = {"real": "measured", "paced": "paced", "simulated": "simulated"}
"""Name of a result from each world."""

ORDER = ("measured", "paced", "simulated", "predicted")
"""Sources of results, from the one that counts most."""


def titles(worlds: Iterable[str]) -> dict[str, str]:
    """`TITLES`, with the clocks of these worlds in the title of seconds."""
    clocks = {CLOCKS[world] for world in worlds}
    if clocks <= {"wall"}:
        return TITLES
    whose = f" on the {clocks.pop()} clock" if len(clocks) == 1 else ", each run on its own clock"
    return {**TITLES, "seconds": f"time{whose} (s)"}


def on_clock(title: str, world: str) -> str:
    """Title of an axis of time, with its clock unless that is the wall's: ``time of a rank, virtual clock (s)``."""
    name, unit = title.rsplit(" (", 1)
    return title if world == "real" else f"{name}, {CLOCKS[world]} clock ({unit}"


WORKERS = 16
"""Most workers with a line, a lane or a row of their own; more could not be distinguished."""

OTHERS = 4
"""Most servers and leaves drawn beside them."""


def workers(experiment: Experiment) -> int:
    """Number of workers that are drawn: ranks 0 to that."""
    return min(experiment.workers, WORKERS)


def crowded(experiment: Experiment) -> bool:
    """Return whether some workers are left out of a figure."""
    return experiment.workers > WORKERS


def ranks(experiment: Experiment) -> list[int]:
    """Ranks that are drawn where servers are drawn, too."""
    others = range(experiment.workers, experiment.ranks)
    return [*range(workers(experiment)), *(others[:OTHERS] if crowded(experiment) else others)]


def scheme_colour(scheme: str) -> str:
    """Colour of a scheme; grey for one the table does not know, such as a student's own."""
    return SCHEMES.get(scheme, GREY)


def predicted_line(name: str, colour: str = GREY, width: float = 2.0) -> dict[str, Any]:
    """Trace of a prediction: a dashed line."""
    return {"mode": "lines", "name": name, "line": {**PREDICTED, "color": colour, "width": width}}


def predicted_mark(name: str) -> dict[str, Any]:
    """Trace of predictions across horizontal bars: an upright stroke on each."""
    symbol = {"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": GREY}}
    return {"mode": "markers", "name": name, "marker": symbol}


def line_by_source(colour: str, source: str, width: float = 2.5) -> dict[str, Any]:
    """Line of a result by its source: dashed if predicted, broad and faint if simulated, otherwise solid."""
    if source == "predicted":
        return {"color": colour, "width": width, **PREDICTED}
    if source == "simulated":
        return {"color": faint(colour), "width": BROAD}
    return {"color": colour, "width": width}


def result(name: str, colour: str, source: str, symbol: str = "circle", **more: Any) -> dict[str, Any]:
    """Trace of results by their source; predicted ones have open markers, larger than those they are beside."""
    marker = {"color": colour, "size": 10, "symbol": symbol}
    if source == "predicted":
        marker |= {"size": 14, "symbol": f"{symbol}-open"}
    line = line_by_source(colour, source)
    return {"name": name, "mode": "lines+markers", "line": line, "marker": marker, **more}


def rank_line(rank: int, crowded: bool = False) -> dict[str, Any]:
    """Line and marker of `rank`, distinct with and without colour, as plotly trace attributes.

    With `crowded`, the legend leaves the ranks out, and hovering shows the rank.
    """
    colour = RANKS[rank % len(RANKS)]
    return {
        "mode": "lines+markers",
        "line": {"color": colour, "width": 1.5, "dash": DASHES[rank % len(DASHES)]},
        "marker": {"color": colour, "size": 7, "symbol": MARKERS[rank % len(MARKERS)], "maxdisplayed": 8},
        **({"showlegend": False} if crowded else {}),
    }


def rank_bar(rank: int) -> dict[str, Any]:
    """Bars of `rank`."""
    return {"type": "bar", "marker": {"color": RANKS[rank % len(RANKS)]}}


def run_colours(experiments: Sequence[Experiment]) -> list[str]:
    """Colour of each run: that of its scheme where several schemes are compared, one each, otherwise the next one."""
    schemes = [experiment.sync.scheme for experiment in experiments]
    if len(schemes) > 1 and len(set(schemes)) == len(schemes):
        return [scheme_colour(scheme) for scheme in schemes]
    return [RUNS[number % len(RUNS)] for number in range(len(schemes))]


def mark(colour: str, number: int) -> dict[str, Any]:
    """Marker of one of several runs, with an edge that separates it from a line of the same colour."""
    edge = {"width": 1.5, "color": "#ffffff"}
    return {"color": colour, "size": 11, "symbol": MARKERS[number % len(MARKERS)], "line": edge}


def beside(colour: str, number: int, world: str = "real") -> dict[str, Any]:
    """Line of one of several runs of equal rank, with its own dash and symbols; only simulated lines are faint."""
    line = {"color": colour, "width": 2.0, "dash": DASHES[number % len(DASHES)]}
    if world == "simulated":
        line |= line_by_source(colour, world)
    return {"mode": "lines+markers", "line": line, "marker": {**mark(colour, number), "maxdisplayed": 6}}


def faint(colour: str) -> str:
    """A colour (``#rrggbb``) with the opacity of simulated lines."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{FAINT})"


def lighter(colour: str, share: float) -> str:
    """A colour (``#rrggbb``) mixed with a share of white, from 0 to 1."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (255 - part)):02x}" for part in parts)


def phase_bar(name: str) -> dict[str, Any]:
    """Bar of a phase, as plotly trace attributes."""
    phase = PHASES.get(name, OTHER)
    named = name if name == phase.group else f"{phase.group}: {name}"
    marker = {"color": phase.colour, "pattern": hatch(phase.pattern)}
    return {"type": "bar", "orientation": "h", "name": named, "marker": marker}


def hatch(shape: str) -> dict[str, Any]:
    """plotly's pattern of a bar, by its shape."""
    hatch = {"fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.6, "size": 6, "solidity": 0.25}
    return {"shape": shape, **hatch} if shape else {}


AXIS = {
    "gridcolor": "rgba(128,128,128,0.25)", "linecolor": "rgba(128,128,128,0.7)", "showgrid": True, "showline": True,
    "zeroline": False, "ticks": "outside", "tickfont": {"size": 13}, "separatethousands": True,
    "exponentformat": "none",
}  # fmt: skip
"""Attributes of every axis."""


def axis(title: str, limits: tuple[float, float] | None = None, **more: Any) -> dict[str, Any]:
    """An axis with its title and unit; `limits` fix it, so that it does not jump during a run."""
    fixed = {"range": list(limits)} if limits else {}
    return {"title": {"text": title, "standoff": 10, "font": {"size": 14}}, **AXIS, **fixed, **more}


def round_numbers(low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Round numbers, from the last one not above `low` to the first one not below `high`; powers of ten if many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [step * 10.0**power for power in powers for step in steps]
    first = max(n for n in numbers if n <= low * (1 + 1e-9))
    last = min(n for n in numbers if n >= high * (1 - 1e-9))
    inside = [n for n in numbers if first <= n <= last]
    return inside if len(inside) <= TICKS or len(steps) == 1 else round_numbers(low, high, (1,))


TICKS = 10
"""Most numbers on a logarithmic axis."""


def log_axis(
    title: str,
    values: Sequence[float],
    text: Callable[[float], str] = "{:,.10g}".format,
    ends: tuple[float, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A logarithmic axis with ticks at some of `values`, between `ends`: by default the first and the last of them."""
    shown = values[:: -(-len(values) // TICKS)]
    first, last = map(math.log10, ends or (values[0], values[-1]))
    margin = 0.03 * (last - first) or 0.5
    ticks = {"type": "log", "tickvals": list(shown), "ticktext": [text(value) for value in shown]}
    return axis(title, (first - margin, last + margin), **ticks, **more)


def rows(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """A vertical axis with a row for each name, the first on top."""
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names), "showgrid": False}
    return axis("", (len(names) - 0.5, -0.5), **{**ticks, **more})


def annotation(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """Text without an arrow; `x` and `y` are shares of the plot, `y` for the lower edge."""
    place = {"x": x, "xref": "paper", "y": y, "yref": "paper", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 14}, **place, **more}


LAYOUT = {
    "font": {"size": 14, "color": "#222222"}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    "margin": {"l": 92, "r": 16, "t": 54, "b": 54}, "hovermode": "closest",
    "hoverlabel": {"bgcolor": "#ffffff", "font": {"color": "#111111"}},
    # Above the plot, in reserved space, so that the figure does not move when entries are added.
    "legend": {"orientation": "h", "traceorder": "normal", "x": 0, "xanchor": "left", "y": 1, "yref": "container",
               "yanchor": "top", "maxheight": 53, "font": {"size": 12}},
}  # fmt: skip
"""Attributes of every figure; ``lab.css`` gives text and grid the colours of the page."""


def layout(**more: Any) -> dict[str, Any]:
    """Layout that all figures share."""
    return {**LAYOUT, **more}


def doubled(value: float, least: float = 1.0) -> float:
    """The first of `least`, 2 × `least`, 4 × `least` … not below `value`: the end of a growing axis."""
    top = least
    while top < value < float("inf"):
        top *= 2
    return top


def rounded_up(value: float) -> float:
    """The first round number not below a positive `value`: the end of a final axis."""
    if not 0 < value < float("inf"):
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    ends = (step * scale for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10))
    return next(end for end in ends if end >= value * (1 - 1e-9))
