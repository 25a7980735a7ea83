"""The real program `dlpar` in a process of its own, and its traces on this machine."""

from __future__ import annotations

import json
import subprocess
import sys

import dlpar
from dlpar import Run
from dlpar.config.paths import runtime_folder
from dlpar.jobs.processes import parent_of
from dlpar.jobs.scratch import Scratch

KEYS = [
    "run", "workers", "steps", "samples_per_s", "final_loss", "accuracy", "staleness", "lead", "bytes_sent",
    "seconds", "time_to_accuracy", "launch_s", "clock", "slip", "wall_s", "goodput", "time_spent",
]  # fmt: skip
"""Keys of the object that `dlpar run --json` prints."""

PROGRAM = [sys.executable, "-m", "dlpar.cli"]


def program(*words: str, **more) -> subprocess.CompletedProcess:
    """Run the real program to its end."""
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=60, **more)


def newest() -> Run | None:
    """The newest run once its ranks train."""
    found = dlpar.runs()
    return found[0] if found and (found[0].path / "rank-1.jsonl").exists() else None


def job_folders() -> list[str]:
    """Those of all jobs, for sockets and in shared memory; they go with the job."""
    memory = Scratch("x").memory
    return [*map(str, runtime_folder().glob("job-*")), *map(str, memory.parent.glob(memory.name[:-1] + "*"))]


def left_of(run: Run, there: list[str] = ()) -> list[str]:
    """Processes of a job that has ended, and folders of any job but those that were there."""
    told = [path.read_text().splitlines() for path in run.path.glob("rank-*.jsonl")]
    # Who was stopped at its very first line has told nothing.
    headers = [json.loads(lines[0]) for lines in told if lines]
    alive = [str(record["pid"]) for record in headers if parent_of(record["pid"]) is not None]
    return alive + [folder for folder in job_folders() if folder not in there]
