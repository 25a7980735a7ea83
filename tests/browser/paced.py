"""Lets a notebook's panel start the stand-in ranks of ``ranks.py`` instead of ``dlpar.launch``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.paths import private_folder, runs_folder
from dlpar.jobs.run import Run


class PacedJob:
    """The part of a `Job` a panel uses."""

    def __init__(self, experiment: Experiment, pace: float) -> None:
        folder = private_folder(private_folder(runs_folder()) / f"{time.time_ns()}")
        (folder / "experiment.json").write_text(experiment.to_json())
        script = str(Path(__file__).with_name("ranks.py"))
        arguments = [str(folder), str(experiment.workers), str(experiment.steps), str(pace)]
        self.run = Run(folder)
        # Its own session, as a real job's: a kernel that shuts down waits for children in its process group.
        self._process = subprocess.Popen([sys.executable, script, *arguments], start_new_session=True)

    def stop(self) -> None:
        """End the writer as a guardian would, with a last word."""
        self._process.kill()
        self._process.wait()
        end = {
            "k": "end",
            "at": time.time(),
            "status": "stopped",
            "reason": "stopped by its owner",
            "rank": None,
        }
        with open(self.run.path / "job.jsonl", "a") as file:
            file.write(json.dumps(end) + "\n")


def install(pace: float) -> None:
    """From now on ``dlpar.launch`` writes `pace` steps a second."""
    dlpar.launch = lambda experiment: PacedJob(experiment, pace)
