"""``dlpar sweep``: run a grid of experiments, and show one table and one figure."""

from __future__ import annotations

import csv as csv_format
import html
import json
import math
import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dlpar.cli import AsJSON, flags
from dlpar.cli.flags import Flag
from dlpar.cli.signals import STOPS, Stops
from dlpar.cli.tables import NONE, console, status, table
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import check_machine
from dlpar.lab.captions import quantity
from dlpar.lab.sweep import Outcome, run_all
from dlpar.theory.scaling import gains

MOST = 1000
"""Experiments of a sweep."""

TOLD = 10
"""Combinations that are refused by name; of more, how many there are."""

HEADS = {
    "samples_per_s": "samples/s", "speedup": "speed-up", "efficiency": "efficiency", "step_s": "step (ms)",
    "predicted_step_s": "predicted (ms)", "accuracy": "accuracy", "clock": "clock",
}  # fmt: skip
"""Columns of the table after the fields that vary, by their names in JSON and CSV."""

STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #111; --line: #444; } }
body { margin: 1em auto; max-width: 1200px; padding: 0 1em; color: var(--text); background: var(--page);
       font: 15px/1.45 system-ui, sans-serif; }
.main-svg text:not(.hoverlayer text) { fill: var(--text) !important; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 2px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
"""
"""Style sheet of the page with the figure."""


def sweep(
    as_json: AsJSON = False,
    experiment: str | None = None,
    jobs: Annotated[int, typer.Option(min=1, max=256)] = 2,
    csv: str | None = None,
    figure: str | None = None,
    **given: Any,
) -> int:
    """Train with every combination of some settings, and compare.

    Every flag of `dlpar run` takes several values: --workers 2,4,8 --sync ring,ps.
    Values with commas of their own are separated by ; or the flag is repeated.
    A flag that only some of the schemes know is left out where the others run.
    Real and paced runs go one after the other, simulated ones side by side.

    Parameters
    ----------
    experiment : FILE
        Experiment in JSON, which flags change; - is standard input.
    jobs : N
        Simulations at work at a time.
    csv : FILE
        Write the table there, too.
    figure : FILE.html
        Write a figure there, a page.
    """
    asked = read(given, flags.text_of(experiment))
    flags.tell_idle("sweep", given, [one.experiment for one in asked])
    for file in filter(None, (csv, figure)):
        open(file, "a").close()  # a file that cannot be written is refused before anything runs
    progress = Progress(asked, silent=as_json)
    with Stops() as stops:
        outcomes = run_all([one.experiment for one in asked], jobs, progress, lambda: stops.asked is not None)
    found = rows(asked, outcomes)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print_rows(asked, found)
    if csv:
        with open(csv, "w", newline="", encoding="utf-8") as opened:
            writer = csv_format.DictWriter(opened, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    has_figure = not figure or write_page(figure, outcomes)
    done = sum(outcome.status == "done" for outcome in outcomes)
    if stops.asked is not None and done < len(outcomes):
        by = STOPS[stops.asked]
        print(f"dlpar sweep: stopped by {by}; {done} of {len(outcomes)} runs are done", file=sys.stderr)
        return 128 + stops.asked
    return 0 if done == len(outcomes) and has_figure else 1


# ---- from flags with several values to experiments ------------------------------


class Asked(NamedTuple):
    """One experiment of a sweep.

    Attributes
    ----------
    values : dict of str to str or None
        The value typed for each flag that has several, by its name without the hyphens; None where the
        flag means nothing beside the others.
    experiment : Experiment
    """

    values: dict[str, str | None]
    experiment: Experiment

    def __str__(self) -> str:
        return " ".join(f"{name} {value}" for name, value in self.values.items() if value)


def read(given: dict[str, list[Any] | None], file: str | None = None) -> list[Asked]:
    """Every combination of the values typed, in the schema's order; numbers of workers vary fastest.

    Parameters
    ----------
    given : dict
        Lists of the values typed, by parameter name; None or empty was not typed.
    file : str, optional
        JSON of an experiment, which flags change.

    Raises
    ------
    BadExperiment
        A line for each combination that cannot be.
    """
    typed = {flag: values for flag in flags.flags() if (values := _values(flag, given.get(flag.parameter)))}
    typed = dict(sorted(typed.items(), key=lambda one: one[0].spelling == "--workers"))
    several = [flag for flag, values in typed.items() if len(values) > 1]
    count = math.prod(map(len, typed.values()))
    if count > MOST:
        names = ", ".join(flag.spelling for flag in several)
        raise BadExperiment(f"{names}: got {count:,} combinations, allowed are at most {MOST:,}")
    found: dict[tuple, Asked] = {}
    refused: dict[str, list[str]] = {}
    for values in product(*typed.values()):
        combination = dict(zip(typed, values))
        meant = {flag: value for flag, value in combination.items() if not _idle(flag, combination, typed)}
        key = tuple(meant.items())
        if key in found:
            continue
        words = {flag.spelling[2:]: _shown(meant.get(flag)) for flag in several}
        try:
            experiment = flags.read({flag.parameter: value for flag, value in meant.items()}, file)
            _check(experiment)
            found[key] = Asked(words, experiment)
        except BadExperiment as error:
            where = " ".join(f"{name} {value}" for name, value in words.items() if value)
            refused.setdefault(str(error), []).append(where)
    if refused:
        raise BadExperiment("\n".join(_line(message, where) for message, where in refused.items()))
    return list(found.values())


def _check(experiment: Experiment) -> None:
    """Refuse an experiment that this machine cannot run, fields named as flags."""
    try:
        check_machine(experiment)
    except BadExperiment as error:
        raise BadExperiment(flags.as_flags(str(error))) from None


def _values(flag: Flag, typed: list[Any] | None) -> list[Any]:
    """The values in the words typed for a flag, each once."""
    if not typed or flag.is_switch:
        return list(dict.fromkeys(typed or []))
    between = ";" if flag.has_commas else ","
    return list(dict.fromkeys(value.strip() for text in typed for value in text.split(between)))


def _idle(flag: Flag, combination: dict[Flag, Any], typed: dict[Flag, list[Any]]) -> bool:
    """Whether a flag belongs to another kind of part than this combination has, but to one that others have."""
    if flag.is_head or not flag.kinds:
        return False
    head = next((f for f in combination if f.is_head and f.path[0] == flag.path[0]), None)
    return head is not None and combination[head] not in flag.kinds and bool({*typed[head]} & {*flag.kinds})


def _shown(value: Any) -> str | None:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _line(message: str, where: list[str]) -> str:
    """One complaint, and the combinations it is about."""
    where = [re.sub(r"\s+", " ", words) for words in where if words]
    if not where:
        return message
    more = f" and {len(where) - TOLD} more" if len(where) > TOLD else ""
    return f"{message} ({'; '.join(where[:TOLD])}{more})"


# ---- results --------------------------------------------------------------------


class Progress:
    """Say on standard error how each run ended, as soon as it has; if `silent`, failures alone."""

    def __init__(self, asked: Sequence[Asked], silent: bool) -> None:
        self.words = {id(one.experiment): str(one) for one in asked}
        self.done, self.silent = 0, silent

    def __call__(self, outcome: Outcome) -> None:
        self.done += 1
        rate = f"{quantity(outcome.samples_per_s)} samples/s" if outcome.samples_per_s else outcome.reason
        if not self.silent or outcome.status == "failed":
            words = self.words[id(outcome.experiment)]
            said = f"{self.done} of {len(self.words)}{words and f', {words}'}: {rate}"
            print(f"dlpar sweep: {said}", file=sys.stderr)


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
    last = ["status"] if any(row["status"] != "done" for row in found) else []
    right = {
        name for name in fields if all((row[name] or "0").replace(".", "", 1).isdecimal() for row in found)
    }
    cells = [
        [
            *(row[f] or NONE for f in fields),
            *(_cell(name, row[name]) for name in heads),
            *(status(row[s]) for s in last),
        ]
        for row in found
    ]
    console().print(table([*fields, *heads.values(), *last], cells, right | {*HEADS.values()} - {"clock"}))
    if "speedup" in heads:
        print("speed-up and efficiency: over the fastest of those with the fewest workers that do the same")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return NONE
    if name in ("accuracy", "efficiency"):
        return f"{value:.1%}"
    if isinstance(value, str):
        return value
    return quantity(1e3 * value if name.endswith("step_s") else value)


def write_page(file: str, outcomes: Sequence[Outcome]) -> bool:
    """Write the figure, its sentence and its numbers as a page that fetches nothing; False where no run is done."""
    done = [outcome for outcome in outcomes if outcome.samples_per_s]
    if not done:
        if not Path(file).stat().st_size:
            Path(file).unlink()
        print("dlpar sweep: no run is done, so there is no figure", file=sys.stderr)
        return False
    from dlpar.lab.figure import say  # these load plotly and pandas
    from dlpar.lab.figure import table as numbers
    from dlpar.lab.figures.scaling import sweep as drawing

    figure = drawing(done)
    plot = figure.to_html(
        full_html=False, include_plotlyjs=True, config={"responsive": True, "displaylogo": False}
    )
    cells = numbers(figure).to_html(index=False, border=0, na_rep="", float_format="{:.5g}".format)
    Path(file).write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sweep</title>'
        f"<style>{STYLE}</style></head><body><h1>Sweep</h1><p>{html.escape(say(figure))}</p>"
        f"{plot}{cells}</body></html>",
        encoding="utf-8",
    )
    return True
