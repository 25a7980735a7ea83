"""``dlpar run``: start a job, watch it, stop it when told to, and say how it ended."""

from __future__ import annotations

import json
import signal
import sys
import time
from types import FrameType
from typing import Any

from dlpar.cli import listing
from dlpar.cli.terminal import view
from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import Job, JobFailed, launch
from dlpar.jobs.mpiexec import NoMPI

STOPS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
"""Signals that stop a run, and what people call them."""

LOOK = 0.05
"""Seconds between two looks at whether the job has ended."""


class Stops:
    """Notes the first signal that asks to stop, so that no job is left half started; a second one interrupts.

    Signals that whoever started us had ignored (``nohup``) stay ignored.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None

    def __enter__(self) -> Stops:
        heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)


class Interrupts(Stops):
    """The first signal that asks to stop interrupts; further ones change nothing, for to end jobs takes a second."""

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = signal.Signals(number)
            raise KeyboardInterrupt


def run(experiment: Experiment, as_json: bool) -> int:
    """Run an experiment in the foreground.

    Parameters
    ----------
    experiment : Experiment
    as_json : bool
        Print the summary as one JSON object at the end, nothing else on standard output.

    Returns
    -------
    int
        Exit status: 0 done, 1 failed, 128 + the signal's number when stopped.
    """
    _warn(experiment)
    with Stops() as stops:
        try:
            job = launch(experiment)
        except (NoMPI, JobFailed) as error:
            return _fail(f"{error}; `dlpar doctor` says what this machine can run")
        _watch(job, stops, as_json)
    if stops.asked is not None and job.poll() != "done":
        where = f"what it did is kept in {job.folder}"
        print(f"dlpar run: stopped by {STOPS[stops.asked]}; {where}", file=sys.stderr)
        return 128 + stops.asked
    try:
        finished = job.wait()
    except JobFailed as error:
        return _fail(f"{error}\n\nWhat it did is kept in {job.folder}")
    if as_json:
        print(json.dumps(finished.summary, indent=1))
    else:
        listing.print_outcome(finished)
    return 0


def _warn(experiment: Experiment) -> None:
    """Say what is allowed and yet hardly meant: a graph in pieces, whose workers cannot agree."""
    if experiment.sync.scheme == "gossip":
        from dlpar.graphs import warning

        if said := warning(experiment):
            print(f"dlpar run: {said}", file=sys.stderr)


def _watch(job: Job, stops: Stops, as_json: bool) -> None:
    """Until the job has ended; ends it when asked to."""
    with view(job.run, silent=as_json) as shown:
        while not job.ended and stops.asked is None:
            shown.look()
            time.sleep(LOOK)
        if stops.asked is not None:
            job.stop()
        shown.look(last=True)


def _fail(message: str) -> int:
    print(f"dlpar run: {message}", file=sys.stderr)
    return 1
