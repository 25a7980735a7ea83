"""``dlpar runs`` lists the runs on this machine. ``dlpar show`` shows one run."""

from __future__ import annotations

import json
import shlex
import time
from typing import Annotated, Any

import typer

from dlpar.cli import AsJSON, BadRequest, flags, printable
from dlpar.cli.tables import ages, cell, console, print_pairs, table
from dlpar.config.paths import read_plain
from dlpar.config.schema import BadExperiment
from dlpar.jobs.run import NoSuchRun, Run
from dlpar.jobs.run import runs as kept_runs
from dlpar.jobs.summary import in_words
from dlpar.lab.captions import duration
from dlpar.lab.labels import with_world
from dlpar.worlds.simulated.failures import LOST

LOG_LINES = 20
"""Number of lines shown from the end of a run's log."""

SUMMED_UP = 16 << 20
"""Maximum bytes of records that are summarised without ``--json``, for a run without a summary."""

FIGURES = ("accuracy", "final_loss", "samples_per_s")
"""Figures of a run's summary in a list of runs."""

MAIN, MOST_SETTINGS = ("model", "data", "sync", "workers", "world"), 7
"""Settings that every list of runs shows, and maximum number of columns of settings."""


# ---- many runs ----------------------------------------------------------------


def runs(as_json: AsJSON = False, limit: Annotated[int, typer.Option(min=1)] = 20) -> int:
    """List the runs kept on this machine.

    Parameters
    ----------
    limit : N
        Number of runs to list, the newest first.
    """
    all_kept = kept_runs()
    listed = [_row(run) for run in all_kept[:limit]]
    if as_json:
        print(json.dumps(listed, indent=1))
    elif not listed:
        print("No runs yet: `dlpar run` makes one.")
    else:
        _print_runs(listed)
        if len(all_kept) > len(listed):
            print(f"and {len(all_kept) - len(listed):,} older ones: dlpar runs --limit {len(all_kept)}")
    return 0


def _print_runs(listed: list[dict[str, Any]]) -> None:
    """Print a table of the settings that differ between runs. Common settings follow below."""
    names = dict.fromkeys((*MAIN, *(flag.spelling[2:] for flag in flags.flags())))
    values = {name: [row[name] for row in listed if name in row] for name in names}
    differ = [name for name, found in values.items() if len(set(map(str, found))) > 1]
    heads = {name: name for name in ("run", *differ[:MOST_SETTINGS], "status", "accuracy")}
    console().print(table(heads | {"final_loss": "loss", "samples_per_s": "samples/s"}, listed))
    if same := [name for name in MAIN if values[name] and name not in differ]:
        print(f"the same in all: {', '.join(f'{name} {cell(name, values[name][0])}' for name in same)}")
    if more := differ[MOST_SETTINGS:]:
        print(f"they also differ in {', '.join(more)}")


def _row(run: Run) -> dict[str, Any]:
    """Return one run for the list, with settings by flag name. Read no step records."""
    row: dict[str, Any] = {"run": run.id} | dict.fromkeys(("when", "status", *FIGURES))
    written, summary = run.path / "experiment.json", run.path / "summary.json"
    try:
        e = json.loads(read_plain(written))
        row["when"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written.stat().st_mtime))
        row["status"] = run.status
        if summary.exists():  # without a summary the run has not ended, or its guardian was killed
            figures = json.loads(read_plain(summary))
            row |= {name: figures[name] for name in FIGURES}
        for flag in flags.flags():
            part = e if len(flag.path) == 1 else e.get(flag.path[0], {})
            if flag.path[-1] in part:
                row[flag.spelling[2:]] = part[flag.path[-1]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        row["status"] = "unreadable"
    return row


# ---- one run ------------------------------------------------------------------


def show(
    which: Annotated[str | None, typer.Argument()] = None,
    as_json: AsJSON = False,
    csv: str | None = None,
    perfetto: str | None = None,
) -> int:
    """Show one run.

    The command prints its figures, why it ended, the command that repeats it, its errors, and the end of its
    log.

    Parameters
    ----------
    which : RUN
        A run's id, a unique prefix of it, or the run's folder.
    csv : FOLDER
        Folder into which the run's tables are written as CSV files.
    perfetto : FILE
        File into which a trace for ui.perfetto.dev is written.
    """
    run = found(which)
    try:
        written = [str(path) for path in run.to_csv(csv)] if csv is not None else []
        written += [str(run.to_perfetto(perfetto))] if perfetto is not None else []
        if as_json:
            more = {"status": run.status, "reason": run.reason, "folder": str(run.path)}
            more |= {"command": command(run), "experiment": run.experiment.model_dump(), "errors": run.errors}
            print(json.dumps(run.summary | more | {"log": run.log.splitlines()[-LOG_LINES:]}, indent=1))
        elif written:
            print("\n".join(f"written: {path}" for path in written))
        else:
            _print_run(run)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadRequest(f"RUN: got {run.id}, with records that this version cannot read ({why})") from None
    return 0


def found(which: str | None) -> Run:
    """Find the run that the user means. Its experiment must be readable."""
    if which is None:
        raise BadRequest("RUN: missing; allowed is a run folder or one of the ids `dlpar runs` lists")
    try:
        run = Run(which)
        run.experiment  # noqa: B018 (is read here)
        return run
    except NoSuchRun as error:
        raise BadRequest(str(error).replace("run:", "RUN:", 1)) from None
    except BadExperiment as error:
        raise BadRequest(f"RUN: got {which!r}, which this version cannot read ({error})") from None


def command(run: Run) -> str:
    """Return the command that repeats a run.

    A scheme that was typed in a notebook can only run there.
    """
    if not run.experiment.sync.listed:
        return f"in a notebook: Experiment(sync={run.experiment.sync})"
    return shlex.join(["dlpar", "run", *flags.to_flags(run.experiment)])


def print_outcome(run: Run, *more: tuple[str, str]) -> None:
    """Print the figures and folder of a run."""
    print_pairs([*figures(run), *more, ("kept in", str(run.path))])


def _print_run(run: Run) -> None:
    """Print the most important facts about a run."""
    console().print(printable(run.id), cell("status", run.status))
    if run.reason:
        print(printable(run.reason))
    print_outcome(run, ("again", command(run)))
    # Each error once, in time order, with the ranks that raised it.
    tracebacks: dict[str, list[str]] = {}
    for rank, record in run.errors.items():
        tracebacks.setdefault(record["traceback"].rstrip(), []).append(str(rank))
    for traceback, ranks in tracebacks.items():
        print(f"\n--- rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} ---\n{printable(traceback)}")
    if log := run.log.splitlines():
        more = f", the last {LOG_LINES} of {len(log):,} lines" if len(log) > LOG_LINES else ""
        print(f"\n--- log{more} ---")
        print(printable("\n".join(log[-LOG_LINES:])))


def figures(run: Run) -> list[tuple[str, str]]:
    """Return a run's summary as pairs of label and text."""
    size = sum(file.lstat().st_size for file in run.path.glob("rank-*.jsonl"))
    if size > SUMMED_UP and not (run.path / "summary.json").exists():
        return [("records", f"{size / 1e6:,.0f} MB, not summed up yet: --json sums them up")]
    s, e = run.summary, run.experiment
    said = [("what", with_world(str(e), e)), ("steps", f"{s['steps']:,} of {e.steps:,}")]
    if not s["steps"]:
        return said
    if s["accuracy"] is not None:
        reached = [f"{float(goal):.0%} after {duration(t)}" for goal, t in s["time_to_accuracy"].items()]
        when = f" ({', '.join(reached)})" if reached else ""
        said.append(("held-out accuracy", f"{s['accuracy']:.1%}{when}"))
    said += [("final loss", cell("", s["final_loss"])), ("samples/s", cell("", s["samples_per_s"]))]
    parts = {"compute": "computing", "comm": "communicating", "wait": "waiting"}
    times = [f"{duration(s['seconds'][part])} {name}" for part, name in parts.items()]
    said.append(("time of a rank", ", ".join(times)))
    sent, stale, lead = s["bytes_sent"], s["staleness"], s["lead"]
    said.append(("sent", "not reported by the library" if sent is None else f"{sent / 1e6:,.1f} MB"))
    if stale["max"]:
        said.append(("staleness", ages(stale)))
    if lead["max"]:
        bound = "nothing bounds it" if lead["bound"] is None else f"the bound is {lead['bound']}"
        said.append(("lead", f"{lead['max']} clocks at most; {bound}"))
    said += in_words(s.get("chosen", {})).items()
    spent = (s.get("time_spent") or {}).items()
    lost = {kind: seconds for kind, seconds in spent if kind in LOST and seconds >= 0.01}
    if lost:
        parts = ", ".join(f"{duration(seconds)} {kind}" for kind, seconds in lost.items())
        said.append(("goodput", f"{s['goodput']:.1%} of {duration(s['wall_s'])}; lost: {parts}"))
    if s["launch_s"] is not None:
        said.append(("start", f"{s['launch_s']:.2f} s until all ranks were ready"))
    return said
