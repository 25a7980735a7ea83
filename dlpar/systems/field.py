"""Published systems in a notebook: a table of the works that a lab names, and a map of all systems."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, captioned, require
from dlpar.lab.labels import labels
from dlpar.lab.panel import compare
from dlpar.systems import SYSTEMS, BadSystem, System, find
from dlpar.systems.record import compare as compare_figures

if TYPE_CHECKING:
    from IPython.display import Markdown
    from ipywidgets import VBox

    from dlpar.jobs.run import Run
    from dlpar.lab.panel import Comparison

CONSISTENCY = ("synchronous", "bounded staleness", "asynchronous")
PARAMETERS = ("centralised", "sharded", "hierarchical", "decentralised")
TRAINING = ("one model", "averaged models")
"""Values on the three axes of the map. A sign stands for each kind of training."""


@cache
def works() -> dict[str, list[dict[str, Any]]]:
    """Return the works of each lab: authors, method, reported result, and the record run here."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def field(lab: str, slide: bool = False) -> Markdown:
    """Show a table of the published works that a lab names, and the parts that run here.

    Parameters
    ----------
    lab : str
        Number of the lab, such as ``"04"``.
    slide : bool, default False
        Show only the few works for a slide.

    Raises
    ------
    ValueError
        If no lab has that number.
    """
    if lab not in [*works()]:
        raise ValueError(f"lab: got {lab!r}, allowed is one of {', '.join(sorted(works()))}")
    chosen = works()[lab] or _all()
    if slide:
        chosen = [work for work in chosen if work.get("slide")][:3]
    rows = [(work["who"], work["did"], work["reported"], _here(work.get("system"), slide)) for work in chosen]
    told = "what they reported" if works()[lab] else "what is compared"
    return _table(("system or work", "what they did", told, "runs here"), rows)


def _all() -> list[dict[str, Any]]:
    """Return all records as works, for lab 11."""
    rows = []
    for each in SYSTEMS:
        numbers = [f"{f.what}: {f.published:g}" for f in each.figures if f.basis != "shape"]
        rows.append((each, "; ".join(numbers or [f.what for f in each.figures])))
    return [
        {"system": each.name, "who": f"{each.title} ({each.year})", "did": each.mechanism, "reported": told,
         "slide": any(f.basis == "reported" for f in each.figures)}
        for each, told in rows
    ]  # fmt: skip


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markdown:
    from IPython.display import Markdown

    return Markdown("\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)))


def _here(name: str | None, in_short: bool = False) -> str:
    if name is None:
        return "—"
    missing = "" if in_short else find(name, SYSTEMS).missing
    return f"`dlpar systems {name}`" + f"<br>without: {missing}" * bool(missing)


def place(system: System) -> tuple[str, str, str]:
    """Return a system's place on the map: consistency, parameters, training."""
    return system.consistency.partition(" or ")[0].partition(",")[0], system.parameters, system.training


def place_of(experiment: Experiment) -> tuple[str, str, str]:
    """Return an experiment's place on the map. The combination may be unpublished."""
    sync = experiment.sync
    bounded = sync.lead_bound is not None or getattr(sync, "consistency", "") == "softsync"
    stashed = getattr(experiment.split, "schedule", "") == "pipedream"
    consistency = CONSISTENCY[1 if stashed else 0 if not sync.runs_free else 1 if bounded else 2]
    if sync.leaf_ranks or getattr(sync, "allreduce", "") == "hierarchical":
        parameters = "hierarchical"
    elif sync.server_ranks > 1 or experiment.split.kind != "data" or getattr(experiment.split, "zero", 0):
        parameters = "sharded"
    elif sync.server_ranks:
        parameters = "centralised"
    else:
        parameters = "centralised" if sync.scheme in ("mapreduce", "hogwild") else "decentralised"
    own_models = sync.scheme == "gossip" or bool(getattr(sync, "group_period", 0))
    return consistency, parameters, TRAINING[own_models or experiment.averaging.method != "none"]


def field_map(
    yours: Experiment | Sequence[Experiment] = (), systems: Sequence[System] | None = None
) -> Figure:
    """Draw the systems on the axes of Ben-Nun and Hoefler (ACM Computing Surveys 52(4), 2019, section 7).

    Parameters
    ----------
    yours : Experiment or sequence of Experiment
        Experiments to draw beside them.
    systems : sequence of System, optional
        Default: all.
    """
    listed = [yours] if isinstance(yours, Experiment) else list(yours)
    entries = [(each.title, place(each)) for each in systems or SYSTEMS]
    names = [f"yours: {name}" for name in labels(listed)] if len(listed) > 1 else ["yours"]
    entries += [(name, place_of(each)) for name, each in zip(names, listed)]
    cells = defaultdict(list)
    for title, (consistency, parameters, training) in entries:
        cells[consistency, parameters].append((title, training))
    # The first column has most systems, two beside each other.
    tall = {at: -(-len(each) // (1 + (at[0] == CONSISTENCY[0]))) for at, each in cells.items()}
    edges = (0.0, 2.4, 3.4, 4.6)
    lines = [max(1, *(tall.get((column, row), 0) for column in CONSISTENCY)) for row in PARAMETERS]
    ends = list(accumulate(lines, initial=0))
    middles = [(start + end) / 2 for start, end in pairwise(ends)]
    xaxis = theme.axis("consistency of the model", edges[::3], tickvals=[1.2, 2.9, 4], ticktext=CONSISTENCY)
    yaxis = theme.axis("distribution of parameters", (ends[-1], 0), tickvals=middles, ticktext=PARAMETERS)
    still = {"showgrid": False, "zeroline": False, "fixedrange": True}
    lines_between = [{"type": "line", "x0": 0, "x1": edges[3], "y0": end, "y1": end} for end in ends[1:-1]]
    lines_between += [{"type": "line", "x0": x, "x1": x, "y0": 0, "y1": ends[-1]} for x in edges[1:3]]
    shapes = [{**line, "line": {"color": theme.GREY, "width": 1}} for line in lines_between]
    figure = blank(120 + 23 * ends[-1], xaxis=xaxis | still, yaxis=yaxis | still, shapes=shapes)
    figure.update_layout(margin_l=124)
    for number, kind in enumerate(TRAINING):
        at = [
            (start + 0.04 + 1.2 * (n // tall[where]), ends[row] + n % tall[where] + 0.5, title)
            for start, consistency in zip(edges, CONSISTENCY)
            for row, parameters in enumerate(PARAMETERS)
            for where in [(consistency, parameters)]
            for n, (title, training) in enumerate(cells[where])
            if training == kind
        ]
        marker = {"symbol": theme.MARKERS[number], "size": 9, "color": theme.RUNS[number]}
        x, y, text = zip(*at) if at else ((), (), ())
        figure.add_scatter(x=x, y=y, text=text, name=kind, marker=marker, **theme.LOOKS["system"])
    rows = [(title, *where) for title, where in entries]
    sentence = f"{len(rows) - len(listed)} systems by the consistency of their model and the place of its parameters."
    return captioned(figure, sentence, (("system", "consistency", "parameters", "training"), rows))


def task_bound(gradients: int = 8, updates: int = 2, most: int = 10) -> Figure:
    """Draw the time of a step's task graph, list-scheduled on 1 to `most` workers, and its bounds.

    A gradient takes a second.  An update needs all gradients and takes a quarter of a second.  All tasks
    together take W seconds, and the longest path takes D.  On p workers ``max(W/p, D) <= T <= W/p + D``
    (Graham 1969).
    """
    from dlpar.split.task_graph import From, Task, depth, schedule, work  # here: loads torch

    graph = [Task(f"gradient {n}", abs, 1, cost=1.0) for n in range(gradients)]
    shuffled = tuple(From(task.name) for task in graph)
    graph += [Task(f"update {n}", abs, 1, shuffled, cost=0.25) for n in range(updates)]
    workers, all_work, path = range(1, most + 1), work(graph), depth(graph)
    curves = {
        "max(W/p, D)": [max(all_work / p, path) for p in workers],
        "T, by list scheduling": [schedule(graph, p)[1] for p in workers],
        "W/p + D": [all_work / p + path for p in workers],
    }
    yaxis = theme.axis("seconds of a step", (0, 1.05 * (all_work + path)))
    figure = blank(xaxis=theme.axis("workers p", (0.5, most + 0.5), dtick=1), yaxis=yaxis)
    for number, (name, seconds) in enumerate(curves.items()):
        line = {"color": theme.RUNS[number], "dash": "solid" if name.startswith("T") else "dash"}
        figure.add_scatter(x=list(workers), y=seconds, name=name, mode="lines+markers", line=line)
    sentence = f"W = {all_work:g} s, D = {path:g} s: no number of workers makes a step shorter than D."
    return captioned(figure, sentence, (("workers", *curves), list(zip(workers, *curves.values()))))


def _training(system: System) -> dict[str, Experiment]:
    """Return the experiments of a system that train a model."""
    own = {key: each for key, each in system.experiments().items() if isinstance(each, Experiment)}
    return {key: each for key, each in own.items() if each.cluster.messages == "values"}


def system_panel(name: str) -> Comparison:
    """Return a panel that runs a system's experiments. Its question asks about the mechanism.

    Raises
    ------
    BadSystem
        If no system has that name, or if fewer than two of its experiments train a model.
    """
    system = find(name, SYSTEMS)
    experiments = _training(system)
    if len(experiments) < 2:
        raise BadSystem(
            f"NAME: got {name!r}, allowed is one with two training runs; `dlpar systems {name}` runs this one"
        )
    question = f"{system.title} ({system.year}): {system.mechanism}"
    return compare(list(experiments.values()), titles=list(experiments), question=question)


def choose_system(name: str = "rudra") -> VBox:
    """Show a list of the systems with two training runs or more, with the panel of the chosen system below."""
    from ipywidgets import Dropdown, VBox

    below = VBox([system_panel(name)])
    options = [(each.title, each.name) for each in SYSTEMS if len(_training(each)) > 1]
    choice = Dropdown(options=options, value=name, description="system")

    def show(change: dict[str, str]) -> None:
        below.children[0].close()
        below.children = (system_panel(change["new"]),)

    choice.observe(show, "value")
    return VBox([choice, below])


def published(name: str, runs: Sequence[Run]) -> Markdown:
    """Show a system's published figures beside those of its runs, in the order of its experiments.

    The runs may also be only those of :func:`system_panel`. Figures of other runs are then left out.
    """
    system = find(name, SYSTEMS)
    every = system.experiments()
    names = every if len(runs) == len(every) else _training(system)
    require(len(runs) == len(names), f"runs: got {len(runs)}, allowed is one of each experiment of {name}")
    found = compare_figures(system, dict(zip(names, runs)), some=len(names) < len(every))
    held = {True: "yes", False: "**no**", None: "not judged"}
    rows = [
        (f.what, f.basis, f"{f.published:g}", f"{f.ours:.3g}", f"{f.tolerance:.0%}", held[f.held])
        for f in found
    ]
    return _table(("figure", "basis", "published", "here", "tolerance", "holds"), rows)
