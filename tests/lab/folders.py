"""Run folders for the tests of the lab: written by the recorder real ranks use."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from browser.ranks import write

from dlpar.config.experiment import Experiment
from dlpar.config.paths import private_folder, runs_folder
from dlpar.jobs.run import Run


def new_folder(experiment: Experiment) -> Path:
    """An empty run folder."""
    folder = private_folder(private_folder(runs_folder()) / f"{time.time_ns()}")
    (folder / "experiment.json").write_text(experiment.to_json())
    return folder


def finished(experiment: Experiment | None = None, **changes) -> Run:
    """A run that is done, written as fast as can be."""
    experiment = (experiment or Experiment(workers=2, steps=40)).replace(**changes)
    folder = new_folder(experiment)
    write(folder, experiment.workers, experiment.steps, 1e9)
    return Run(folder)


def end(folder: Path, status: str, reason: str = "") -> None:
    """What a supervisor writes last."""
    if not folder.is_dir():
        return  # a panel that is collected late stops a job whose folder its test has removed
    with open(folder / "job.jsonl", "a") as file:
        file.write(
            json.dumps({"k": "end", "at": time.time(), "status": status, "reason": reason, "rank": None})
            + "\n"
        )


class ThreadJob:
    """A job whose ranks are written by a thread, at `pace` steps a second."""

    def __init__(self, experiment: Experiment, pace: float = 1e9) -> None:
        folder = new_folder(experiment)
        self.run, self.stopped = Run(folder), False
        threading.Thread(
            target=write,
            args=(folder, experiment.workers, experiment.steps, pace, lambda: self.stopped),
            daemon=True,
        ).start()

    def stop(self) -> None:
        """End it with a last word; the thread may write another step, which nobody reads."""
        self.stopped = True
        end(self.run.path, "stopped", "stopped by its owner")


def until(condition, seconds: float = 10.0) -> None:
    """Wait for `condition()`; fail if it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
