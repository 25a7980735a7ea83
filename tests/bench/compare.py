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


def show(title: str, taken: dict[str, list[float]], unit: str, bars: dict[str, float] | None = None,
         higher_is_better: bool = True) -> None:  # fmt: skip
    """Print a table: median and spread of each, and the median of pairwise ratios of the first to each other.

    `bars` gives, by the name of a peer, the ratio in our favour that is aimed at.
    """
    first, *peers = taken
    ours = taken[first]
    table = Table("what", f"median ({unit})", "min to max", "n", f"{first} against it", "aimed at", title=title, title_justify="left")
    table.add_row(first, f"{statistics.median(ours):,.4g}", _spread(ours), str(len(ours)), "", "")
    for peer in peers:
        theirs = taken[peer]
        ratios = [a / b if higher_is_better else b / a for a, b in zip(ours, theirs)]
        bar = (bars or {}).get(peer)
        verdict = "" if bar is None else f"≥ {bar:g} {'✓' if statistics.median(ratios) >= bar else '✗ MISSED'}"
        ratio = f"{statistics.median(ratios):.2f} × ({min(ratios):.2f} to {max(ratios):.2f})"
        table.add_row(peer, f"{statistics.median(theirs):,.4g}", _spread(theirs), str(len(theirs)), ratio, verdict)
    Console(width=130).print(table)


def limit(what: str, values: list[float], unit: str, bar: float) -> None:
    """Print one figure that must stay at or below a bar."""
    middle = statistics.median(values)
    verdict = "✓" if middle <= bar else "✗ MISSED"
    Console(width=130).print(f"{what}: {middle:.4g} {unit} (n = {len(values)}, {_spread(values)}); aimed at ≤ {bar:g} {verdict}")


def least(what: str, values: list[float], unit: str, bar: float) -> None:
    """Print one figure that must reach a bar."""
    middle = statistics.median(values)
    verdict = "✓" if middle >= bar else "✗ MISSED"
    Console(width=130).print(f"{what}: {middle:,.4g} {unit} (n = {len(values)}, {_spread(values)}); aimed at ≥ {bar:g} {verdict}")


def _spread(values: list[float]) -> str:
    return f"{min(values):,.4g} to {max(values):,.4g}"
