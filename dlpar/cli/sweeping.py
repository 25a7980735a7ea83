"""``dlpar sweep``: run a grid of experiments, and show one table and one figure."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dlpar.cli.grid import Asked
from dlpar.cli.listing import NONE, STYLES, console
from dlpar.cli.running import STOPS, Stops
from dlpar.lab.captions import quantity
from dlpar.lab.sweep import Outcome, run_all
from dlpar.theory.scaling import gains

HEADS = {
    "samples_per_s": "samples/s", "speedup": "speed-up", "efficiency": "efficiency", "step_s": "step (ms)",
    "predicted_step_s": "predicted (ms)", "accuracy": "accuracy", "clock": "clock",
}  # fmt: skip
"""Columns of the table after the fields that vary, by their names in JSON and CSV."""


def sweep(asked: Sequence[Asked], jobs: int, as_json: bool, csv_file: str | None, page: str | None) -> int:
    """Run all experiments in the foreground; the exit status is 0 done, 1 failed, 128 + a signal's number.

    Parameters
    ----------
    asked : sequence of Asked
    jobs : int
        Simulations at work at a time.
    as_json : bool
        Print the rows as a JSON list, nothing else on standard output.
    csv_file, page : str, optional
        Where the table goes as CSV, and the figure as a page of its own.
    """
    for file in filter(None, (csv_file, page)):
        open(file, "a").close()  # what cannot be written is said before anything runs
    told = Told(asked, silent=as_json)
    with Stops() as stops:
        outcomes = run_all([one.experiment for one in asked], jobs, told, lambda: stops.asked is not None)
    found = rows(asked, outcomes)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print_rows(asked, found)
    if csv_file:
        write_csv(csv_file, asked, found)
    status = _how_it_ended(outcomes, stops)
    if page:
        status = _write_page(page, outcomes) or status
    return status


class Told:
    """Says on standard error how each run ended, as soon as it has."""

    def __init__(self, asked: Sequence[Asked], silent: bool) -> None:
        self.words = {id(one.experiment): _words(one) for one in asked}
        self.total, self.done, self.silent = len(asked), 0, silent

    def __call__(self, outcome: Outcome) -> None:
        self.done += 1
        rate = f"{quantity(outcome.samples_per_s)} samples/s" if outcome.samples_per_s else outcome.reason
        if not self.silent or outcome.status == "failed":
            words = self.words[id(outcome.experiment)]
            print(
                f"dlpar sweep: {self.done} of {self.total}{words and f', {words}'}: {rate}", file=sys.stderr
            )


def _words(one: Asked) -> str:
    return " ".join(f"{name} {value}" for name, value in one.values.items() if value is not None)


def rows(asked: Sequence[Asked], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One mapping for each experiment, in numbers: seconds, shares, samples/s; None where there is no figure."""
    measured = gains([o.experiment for o in outcomes], [o.samples_per_s for o in outcomes])
    return [
        {
            **one.values,
            "samples_per_s": outcome.samples_per_s,
            "speedup": gain and gain.speedup,
            "efficiency": gain and gain.efficiency,
            "step_s": outcome.step_s,
            "predicted_step_s": outcome.prediction and outcome.prediction.seconds,
            "accuracy": outcome.summary.get("accuracy"),
            "clock": outcome.summary.get("clock"),
            "status": outcome.status,
            "run": outcome.run and outcome.run.id,
        }
        for one, outcome, gain in zip(asked, outcomes, measured)
    ]


def print_rows(asked: Sequence[Asked], found: Sequence[dict[str, Any]]) -> None:
    """A table of the figures there are."""
    fields = list(asked[0].values)
    heads = {name: head for name, head in HEADS.items() if any(row[name] is not None for row in found)}
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in fields:
        table.add_column(name, justify="right" if _is_number(found, name) else "left", overflow="fold")
    for name, head in heads.items():
        table.add_column(head, justify="left" if name == "clock" else "right", no_wrap=True)
    unfinished = any(row["status"] != "done" for row in found)
    if unfinished:
        table.add_column("status", no_wrap=True)
    for row in found:
        status = [Text(row["status"], style=STYLES.get(row["status"], ""))] if unfinished else []
        table.add_row(*(row[f] or NONE for f in fields), *(_cell(name, row[name]) for name in heads), *status)
    console().print(table)
    if "speedup" in heads:
        print("speed-up and efficiency: over the fastest of those with the fewest workers that do the same")


def _is_number(found: Sequence[dict[str, Any]], name: str) -> bool:
    return all((row[name] or "0").replace(".", "", 1).isdecimal() for row in found)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return NONE
    if name in ("accuracy", "efficiency"):
        return f"{value:.1%}"
    if isinstance(value, str):
        return value
    return quantity(1e3 * value if name.endswith("step_s") else value)


def write_csv(file: str, asked: Sequence[Asked], found: Sequence[dict[str, Any]]) -> None:
    """The rows as CSV, each with what there is to say of its run."""
    with open(file, "w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def _write_page(file: str, outcomes: Sequence[Outcome]) -> int:
    """The figure as a page; the exit status."""
    from dlpar.cli.page import write
    from dlpar.lab.figures.scaling import sweep as drawing

    done = [outcome for outcome in outcomes if outcome.samples_per_s]
    if not done:
        if not Path(file).stat().st_size:
            Path(file).unlink()
        print("dlpar sweep: no run is done, so there is no figure", file=sys.stderr)
        return 1
    write(file, drawing(done), "Sweep")
    return 0


def _how_it_ended(outcomes: Sequence[Outcome], stops: Stops) -> int:
    done = sum(outcome.status == "done" for outcome in outcomes)
    if stops.asked is not None and done < len(outcomes):
        by = STOPS[stops.asked]
        print(f"dlpar sweep: stopped by {by}; {done} of {len(outcomes)} runs are done", file=sys.stderr)
        return 128 + stops.asked
    return 0 if done == len(outcomes) else 1
