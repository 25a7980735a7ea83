"""``dlpar sweep`` runs a grid of experiments and shows one table and one figure."""

from __future__ import annotations

import html
import json
import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dlpar.cli import STOPS, AsJSON, Failed, Stops, flags
from dlpar.cli.flags import Flag
from dlpar.cli.tables import console, table
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import check_machine
from dlpar.lab.captions import quantity
from dlpar.lab.sweep import Outcome, run_all
from dlpar.theory.scaling import gains

if TYPE_CHECKING:
    from dlpar.lab.figure import Figure

MOST = 1000
"""Maximum number of experiments in a sweep."""

HEADS = {
    "samples_per_s": "samples/s", "speedup": "speed-up", "efficiency": "efficiency", "step_s": "step (ms)",
    "predicted_step_s": "predicted (ms)", "accuracy": "accuracy", "clock": "clock",
}  # fmt: skip
"""Columns of the table after the fields that vary, by their names in JSON and CSV."""

STYLE = Path(__file__).with_suffix(".css")
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

    Every flag of `dlpar run` takes several values: --workers 2,4,8 --sync ring,ps. Separate values that
    contain commas by ; or repeat the flag. A flag that only some schemes have is omitted for the other
    schemes. Real and paced runs go one after the other, and simulated runs in parallel.

    Parameters
    ----------
    experiment : FILE
        Experiment in JSON, whose fields the flags override; - is standard input.
    jobs : N
        Number of simulations that run at the same time.
    csv : FILE
        File into which the table is also written.
    figure : FILE.html
        Page into which a figure is written.
    """
    asked = read(given, flags.fields_in(experiment))
    flags.tell_idle("sweep", given, [one.experiment for one in asked])
    for file in filter(None, (csv, figure)):
        # Refuse files that cannot be written before anything runs. Waiting for a pipe's reader would hang.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
    told: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        told.append(outcome)
        if not as_json or outcome.status == "failed":
            one = next(one for one in asked if one.experiment is outcome.experiment)
            rate = f"{quantity(outcome.samples_per_s)} samples/s" if outcome.samples_per_s else outcome.reason
            words = ", ".join(filter(None, (f"{len(told)} of {len(asked)}", _words(one.values))))
            print(f"dlpar sweep: {words}: {rate}", file=sys.stderr)

    with Stops() as stops:
        outcomes = run_all([one.experiment for one in asked], jobs, tell, lambda: stops.asked is not None)
    found = rows(asked, outcomes)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print_rows(list(asked[0].values), found)
    if csv:
        import pandas

        pandas.DataFrame(found).to_csv(csv, index=False)
    done = sum(outcome.status == "done" for outcome in outcomes)
    status = 0 if done == len(outcomes) else 1
    if stops.asked is not None and status:
        by, status = STOPS[stops.asked], 128 + stops.asked
        print(f"dlpar sweep: stopped by {by}; {done} of {len(outcomes)} runs are done", file=sys.stderr)
    if figure:
        with suppress(Failed) if stops.asked is not None else nullcontext():
            write_page(figure, outcomes)
    return status


# ---- from flags with several values to experiments ------------------------------


class Asked(NamedTuple):
    """One experiment of a sweep.

    Attributes
    ----------
    values : dict of str to str or None
        Typed value of each flag with several values, by name without hyphens; None if the flag has no effect
        here.
    experiment : Experiment
    """

    values: dict[str, str | None]
    experiment: Experiment


def _words(values: dict[str, str | None]) -> str:
    return " ".join(f"{name} {value}" for name, value in values.items() if value)


def read(given: dict[str, list[Any] | None], fields: Mapping[str, Any] | None = None) -> list[Asked]:
    """Return every combination of the typed values, in the schema's order.

    The number of workers varies fastest.

    Parameters
    ----------
    given : dict
        Lists of typed values by parameter name; None or empty if not typed.
    fields : mapping, optional
        Fields of an experiment that flags change.

    Raises
    ------
    BadExperiment
        With a line for each impossible combination.
    """
    typed = {flag: values for flag in flags.flags() if (values := _values(flag, given.get(flag.parameter)))}
    typed = dict(sorted(typed.items(), key=lambda one: one[0].spelling == "--workers"))
    several = [flag for flag, values in typed.items() if len(values) > 1]
    if (count := math.prod(map(len, typed.values()))) > MOST:
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
        shown = {True: "on", False: "off"}
        words = {flag.spelling[2:]: shown.get(meant.get(flag), meant.get(flag)) for flag in several}
        try:
            experiment = flags.read({flag.parameter: value for flag, value in meant.items()}, fields)
            with flags.named_as_flags():
                check_machine(experiment)
            found[key] = Asked(words, experiment)
        except BadExperiment as error:
            refused.setdefault(str(error), []).append(_words(words))
    if refused:
        raise BadExperiment("\n".join(_line(message, where) for message, where in refused.items()))
    return list(found.values())


def _values(flag: Flag, typed: list[Any] | None) -> list[Any]:
    """Return the distinct values in a flag's typed words."""
    if not typed or flag.is_switch:
        return list(dict.fromkeys(typed or []))
    between = ";" if flag.has_commas else ","
    return list(dict.fromkeys(value.strip() for text in typed for value in text.split(between)))


def _idle(flag: Flag, combination: dict[Flag, Any], typed: dict[Flag, list[Any]]) -> bool:
    """Return whether a flag belongs to a kind of part that only other combinations use."""
    if flag.is_head or not flag.kinds:
        return False
    head = next((f for f in combination if f.is_head and f.path[0] == flag.path[0]), None)
    return head is not None and combination[head] not in flag.kinds and bool({*typed[head]} & {*flag.kinds})


def _line(message: str, where: list[str]) -> str:
    """Return one complaint with the combinations that cause it."""
    said = textwrap.shorten("; ".join(filter(None, where)), width=500, placeholder=" and more")
    return f"{message} ({said})" if said else message


# ---- results --------------------------------------------------------------------


def rows(asked: Sequence[Asked], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a mapping of figures for each experiment: seconds, shares and samples/s.

    A missing figure is None.
    """
    measured = gains([o.experiment for o in outcomes], [o.samples_per_s for o in outcomes])
    return [
        {
            **one.values,
            "samples_per_s": outcome.samples_per_s,
            "speedup": gain and gain.speedup,
            "efficiency": gain and gain.efficiency,
            "step_s": outcome.step_s,
            "predicted_step_s": outcome.predicted_step_s,
            "accuracy": outcome.summary.get("accuracy"),
            "clock": outcome.summary.get("clock"),
            "status": outcome.status,
            "run": outcome.run and outcome.run.id,
        }
        for one, outcome, gain in zip(asked, outcomes, measured)
    ]


def print_rows(fields: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """Print a table of the varying fields and of the available figures."""
    heads = dict(zip(fields, fields))
    heads |= {name: head for name, head in HEADS.items() if any(row[name] is not None for row in found)}
    if any(row["status"] != "done" for row in found):
        heads["status"] = "status"
    console().print(table(heads, found))
    if "speedup" in heads:
        print("speed-up and efficiency: over the fastest of those with the fewest workers that do the same")


def throughputs(outcomes: Sequence[Outcome]) -> Figure:
    """Draw each experiment's throughput as a bar. The bars of simulated experiments are faint.

    A stroke marks the closed form.
    """
    from dlpar.lab import theme  # these load plotly and pandas
    from dlpar.lab.figure import captioned, stacked
    from dlpar.lab.labels import labels, scheme

    experiments = [outcome.experiment for outcome in outcomes]
    names = labels(experiments) if len(outcomes) > 1 else [scheme(experiments[0])]
    rates, predicted = zip(*((o.samples_per_s, o.predicted_samples_per_s) for o in outcomes))
    how, parts = [theme.HOW[e.cluster.world] for e in experiments], {}
    for kind in dict.fromkeys(how):
        look = {"marker_color": theme.run_colours(experiments)}
        look["opacity"] = theme.FAINT if kind == "simulated" else 1.0
        parts[kind] = look, [rate * (own == kind) for rate, own in zip(rates, how)]
    figure = stacked("throughput (samples/s)", names, parts, ("predicted", predicted))
    fastest, slowest = (f(range(len(rates)), key=rates.__getitem__) for f in (max, min))
    sentence = f"{names[fastest]} is the fastest with {quantity(rates[fastest])} samples/s"
    ratio = rates[fastest] / rates[slowest]
    sentence += f", {ratio:.2f} times as fast as {names[slowest]}" if len(outcomes) > 1 else ""
    heads = ("experiment", "how", "samples/s", "predicted samples/s")
    return captioned(figure, f"{sentence}.", (heads, list(zip(names, how, rates, predicted))), open=True)


def write_page(file: str, outcomes: Sequence[Outcome]) -> None:
    """Write the figure, its caption and its numbers as a self-contained page."""
    from dlpar.lab.figure import caption  # these load plotly and pandas
    from dlpar.lab.figure import table as numbers
    from dlpar.lab.figures.scaling import curves, draw

    done = [outcome for outcome in outcomes if outcome.samples_per_s]
    if not done:
        if not Path(file).stat().st_size:
            Path(file).unlink()
        raise Failed("no run is done, so there is no figure")
    drawn = curves(done)
    figure = draw(drawn) if any(len(curve.points) > 1 for curve in drawn) else throughputs(done)
    config = {"responsive": True, "displaylogo": False}
    plot = figure.to_html(full_html=False, include_plotlyjs=True, config=config)
    cells = numbers(figure).to_html(index=False, border=0, na_rep="", float_format="{:.5g}".format)
    head = f'<meta charset="utf-8"><title>Sweep</title><style>{STYLE.read_text()}</style>'
    body = f"<h1>Sweep</h1><p>{html.escape(caption(figure))}</p>{plot}{cells}"
    page = f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'
    Path(file).write_text(page, encoding="utf-8")
