"""Measuring two or more things in turns, and saying how they compare."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from rich.console import Console
from rich.table import Table


def in_turns(measures: dict[str, Callable[[], float]], n: int) -> dict[str, list[float]]:
    """Call each measure n times, A B A B …, so that a drifting machine touches all alike."""
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(n):
        for name, measure in measures.items():
            taken[name].append(measure())
    return taken


def show(
    title: str,
    taken: dict[str, list[float]],
    unit: str,
    bars: dict[str, float] | None = None,
    higher_is_better: bool = True,
) -> None:
    """Print a table: median and spread of each, and the median of pairwise ratios of the first to each other.

    `bars` gives, by the name of a peer, the ratio in our favour that is aimed at.
    """
    first, *peers = taken
    ours = taken[first]
    table = Table(
        "what",
        f"median ({unit})",
        "min to max",
        "n",
        f"{first} against it",
        "aimed at",
        title=title,
        title_justify="left",
    )
    table.add_row(first, _figure(statistics.median(ours)), _spread(ours), str(len(ours)), "", "")
    for peer in peers:
        theirs = taken[peer]
        ratios = [a / b if higher_is_better else b / a for a, b in zip(ours, theirs)]
        bar = (bars or {}).get(peer)
        verdict = (
            "" if bar is None else f"≥ {bar:g} {'✓' if statistics.median(ratios) >= bar else '✗ MISSED'}"
        )
        ratio = f"{statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"
        table.add_row(
            peer, _figure(statistics.median(theirs)), _spread(theirs), str(len(theirs)), ratio, verdict
        )
    Console(width=130).print(table)


def limit(what: str, values: list[float], unit: str, bar: float) -> None:
    """Print one figure that must stay at or below a bar."""
    _judge(what, values, unit, f"≤ {_figure(bar)}", statistics.median(values) <= bar)


def least(what: str, values: list[float], unit: str, bar: float) -> None:
    """Print one figure that must reach a bar."""
    _judge(what, values, unit, f"≥ {_figure(bar)}", statistics.median(values) >= bar)


def _judge(what: str, values: list[float], unit: str, aim: str, met: bool) -> None:
    middle, verdict = _figure(statistics.median(values)), "✓" if met else "✗ MISSED"
    told = f"{what}: {middle} {unit} (n = {len(values)}, {_spread(values)}); aimed at {aim} {verdict}"
    Console(width=130).print(told)


def _spread(values: list[float]) -> str:
    return f"{_figure(min(values))} to {_figure(max(values))}"


def _figure(value: float) -> str:
    """Four digits at least, and no powers of ten a reader has to undo."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
