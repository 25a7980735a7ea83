"""A run for other tools: CSV for spreadsheets, a trace for ui.perfetto.dev."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.run import Run

TABLES = ("steps", "curve", "evals", "spans", "events", "ranks", "consensus")


def to_csv(run: Run, folder: str | os.PathLike) -> list[Path]:
    """Write each table of `run` as ``<table>.csv`` into `folder` (made if missing); empty tables are left out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in TABLES:
        table = getattr(run, name)
        if len(table):
            path = folder / f"{name}.csv"
            table.to_csv(path, index=name == "ranks")
            written.append(path)
    return written


def to_perfetto(run: Run, path: str | os.PathLike) -> Path:
    """Write the run's spans, losses and events in the Trace Event format (times in microseconds).

    Every rank is a process of the trace with one thread for its spans; the loss
    of its samples is a counter.  Source: "Trace Event Format", Google, 2016.
    """
    events: list[dict] = []
    for source, r in run.records():
        if source == "job":
            continue
        pid = int(source[5:])
        if r["k"] == "rank":
            events.append(
                {
                    "ph": "M",
                    "pid": pid,
                    "tid": 0,
                    "name": "process_name",
                    "args": {"name": f"rank {pid} ({r['role']})"},
                }
            )
        for name, start, end, *of in r.get("spans", ()):
            args = {"step": r["step"], **dict(zip(("micro", "chunk"), of))}
            events.append(
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": 0,
                    "name": name,
                    "cat": r["k"],
                    "args": args,
                    "ts": start * 1e6,
                    "dur": (end - start) * 1e6,
                }
            )
        if r["k"] == "step":
            events.append(
                {"ph": "C", "pid": pid, "name": "loss", "ts": r["t"] * 1e6, "args": {"loss": r["loss"]}}
            )
        elif r["k"] in ("event", "error"):
            events.append(
                {"ph": "i", "pid": pid, "tid": 0, "s": "p", "ts": r["t"] * 1e6, "name": r.get("name", r["k"])}
            )
    path = Path(path)
    path.write_text(json.dumps({"traceEvents": events, "otherData": {"run": run.id, "clock": run.clock}}))
    return path
