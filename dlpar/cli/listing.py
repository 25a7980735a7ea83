"""Runs in words: what ``dlpar runs``, ``dlpar show`` and the end of ``dlpar run`` print."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlpar.cli import flags
from dlpar.jobs.diagnosis import errors_in
from dlpar.jobs.run import Run, runs
from dlpar.lab.captions import duration, quantity

LOG_LINES = 20
"""Last lines of a run's log that are shown."""

FIGURES = ("accuracy", "final_loss", "samples_per_s")
"""Of a run's summary, what a list of runs shows."""

NONE = "–"

STYLES = {"done": "green", "failed": "red", "lost": "red", "stopped": "yellow"}


# ---- many runs ----------------------------------------------------------------


def rows(limit: int) -> tuple[list[dict[str, Any]], int]:
    """The newest `limit` runs, one mapping each, and how many there are; reads no record of a step."""
    kept = runs()
    return [_row(run) for run in kept[:limit]], len(kept)


def _row(run: Run) -> dict[str, Any]:
    row: dict[str, Any] = {"run": run.id} | dict.fromkeys(("when", "what", "workers", "status", *FIGURES))
    written, summary = run.path / "experiment.json", run.path / "summary.json"
    try:
        e = json.loads(written.read_bytes())
        row["when"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(written.stat().st_mtime))
        row["what"] = f"{e['model']['name']} on {e['data']['name']}, {e['sync']['scheme']}"
        row["workers"] = e["workers"]
        row["status"] = run.status
        if summary.exists():  # else it has not ended yet, or nobody was left to write it
            figures = json.loads(summary.read_bytes())
            row |= {name: figures[name] for name in FIGURES}
    except (OSError, ValueError, KeyError, TypeError):
        row["status"] = "unreadable"
    return row


def print_runs(rows: list[dict[str, Any]], total: int) -> None:
    """A table, or a sentence where there are none."""
    if not rows:
        print("No runs yet: `dlpar run` makes one.")
        return
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("run", "when", "what"):
        table.add_column(name, overflow="fold")
    for name in ("workers", "status", "accuracy", "loss", "samples/s"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["run"],
            row["when"],
            row["what"],
            str(row["workers"] or NONE),
            Text(row["status"] or NONE, style=STYLES.get(row["status"], "")),
            _percent(row["accuracy"]),
            _quantity(row["final_loss"]),
            _quantity(row["samples_per_s"]),
        )
    console().print(table)
    if total > len(rows):
        print(f"and {total - len(rows):,} older ones: dlpar runs --limit {total}")


# ---- one run ------------------------------------------------------------------


def whole(run: Run) -> dict[str, Any]:
    """All about one run: its summary, and how it came to be and to end."""
    return {
        **run.summary,
        "status": run.status,
        "reason": run.reason,
        "folder": str(run.path),
        "command": command(run),
        "experiment": run.experiment.model_dump(),
        "errors": {rank: record for rank, record in errors_in(run.path)},
        "log": run.log.splitlines()[-LOG_LINES:],
    }


def command(run: Run) -> str:
    """The command that repeats a run; what was typed in a notebook can only be run there."""
    if run.experiment.sync.scheme == "own":
        return f"in a notebook: Experiment(sync={run.experiment.sync})"
    return shlex.join(["dlpar", "run", *flags.to_flags(run.experiment)])


def print_outcome(run: Run) -> None:
    """How a run went, and where it is kept."""
    print_pairs([*figures(run), ("kept in", str(run.path))])


def print_run(run: Run) -> None:
    """Everything a reader wants to know first."""
    status = run.status
    said = "it ended without a word: was the machine switched off?" if status == "lost" else run.reason
    console().print(Text(run.id, style="bold"), Text(status, style=STYLES.get(status, "")))
    if said:
        print(said)
    print_pairs([*figures(run), ("again", command(run)), ("kept in", str(run.path))])
    for traceback, ranks in _tracebacks(run).items():
        print(f"\n--- rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} ---\n{traceback}")
    log = run.log.splitlines()
    if log:
        more = f", the last {LOG_LINES} of {len(log):,} lines" if len(log) > LOG_LINES else ""
        print(f"\n--- log{more} ---")
        print("\n".join(log[-LOG_LINES:]))


def _tracebacks(run: Run) -> dict[str, list[int]]:
    """Each traceback once, the earliest first, with the ranks that raised it."""
    found: dict[str, list[int]] = {}
    for rank, record in errors_in(run.path):
        found.setdefault(record["traceback"].rstrip(), []).append(rank)
    return found


def figures(run: Run) -> list[tuple[str, str]]:
    """A run's summary as labels and words."""
    s, experiment = run.summary, run.experiment
    said = [("what", str(experiment)), ("steps", f"{s['steps']:,} of {experiment.steps:,}")]
    if not s["steps"]:
        return said
    if s["accuracy"] is not None:
        reached = [f"{float(goal):.0%} after {duration(t)}" for goal, t in s["time_to_accuracy"].items()]
        when = f" ({', '.join(reached)})" if reached else ""
        said.append(("held-out accuracy", _percent(s["accuracy"]) + when))
    said.append(("final loss", _quantity(s["final_loss"])))
    said.append(("samples/s", _quantity(s["samples_per_s"])))
    parts = zip(("compute", "comm", "wait"), ("computing", "communicating", "waiting"))
    spent = [f"{duration(s['seconds'][part])} {name}" for part, name in parts]
    said.append(("time of a rank", ", ".join(spent)))
    sent = "not told by the library" if s["bytes_sent"] is None else f"{s['bytes_sent'] / 1e6:,.1f} MB"
    said.append(("sent", sent))
    stale = s["staleness"]
    if stale["max"]:
        said.append(("staleness", f"{quantity(stale['mean'])} on average, {stale['max']} at most"))
    if s["lead"]["max"]:
        bound = "nothing bounds it" if s["lead"]["bound"] is None else f"the bound is {s['lead']['bound']}"
        said.append(("lead", f"{s['lead']['max']} clocks at most; {bound}"))
    if s["launch_s"] is not None:
        said.append(("start", f"{s['launch_s']:.2f} s until all ranks were ready"))
    return said


def print_pairs(pairs: list[tuple[str, str]]) -> None:
    """Labels and words, one pair a line."""
    wide = max(len(label) for label, _ in pairs)
    for label, text in pairs:
        print(f"{label:{wide}}  {text}")


def console() -> Console:
    """Colours in a terminal only; elsewhere lines are as long as they need to be."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=200)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def _quantity(value: float | None) -> str:
    return NONE if value is None else quantity(value)
