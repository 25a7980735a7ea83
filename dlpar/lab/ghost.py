"""An answer before Run: the speed of the settings chosen now, simulated by sizes in a process of its own."""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.config.paths import runtime_folder
from dlpar.jobs.fork_server import warm_socket
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.tail import ALL_RANKS, lines_of
from dlpar.jobs.unix_sockets import ask
from dlpar.lab.figures.scaling import twin

if TYPE_CHECKING:
    from dlpar.lab.panel import Panel

STEPS, WORKER_STEPS = 12, 200
"""Most steps that are simulated, and most steps of all workers together."""

LEAST = 3
"""Fewest steps: the first begins before anything has been sent."""

PATIENCE = 2.0
"""Seconds after which a simulation is too long to be an answer before Run."""

MESSAGES_A_SECOND = {"sizes": 300_000, "values": 30_000}
"""Messages of workers that one core simulates; what ranks compute, and answers of servers, come on top."""


class Foreseen(NamedTuple):
    """Forecast of a whole run by a simulation of a few steps."""

    rate: float | None = None
    """Samples a second, on the clock of its platform; None where sizes do not suffice."""
    seconds: float = 0.0
    """Seconds in which the whole run is simulated, at least."""


class Ghost:
    """Simulate the settings of a panel as they change, on a thread; of several changes the newest counts."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._guard, self._newest = weakref.ref(panel), Lock(), object()

    def want(self, experiment: Experiment | None) -> None:
        """Simulate an experiment soon, and show it in the panel; None: show none."""
        self._newest = token = object()
        Thread(target=self._work, args=(experiment, token), name="dlpar ghost", daemon=True).start()

    def _work(self, experiment: Experiment | None, token: object) -> None:
        foreseen = Foreseen()
        with self._guard, suppress(OSError, ValueError):  # one at a time; no server, or no such simulation
            if experiment and token is self._newest:
                foreseen = simulated(experiment)
        if token is self._newest and (panel := self._panel()):
            panel.foresee(experiment, foreseen)


def simulated(experiment: Experiment) -> Foreseen:
    """Simulate a few steps of an experiment on its platform, by sizes.

    The simulation runs in a process that the fork server has forked, as those of jobs are.
    """
    few, socket = twin(experiment) or experiment, warm_socket()
    steps = min(STEPS, max(LEAST, WORKER_STEPS // few.workers))
    if few.cluster.world != "simulated" or socket is None:
        return Foreseen()
    times = experiment.steps / steps
    few = few.replace(steps=steps, cluster={"messages": "sizes"})
    with tempfile.TemporaryDirectory("", "ghost-", runtime_folder(), ignore_cleanup_errors=True) as folder:
        Path(folder, "experiment.json").write_text(few.to_json())
        try:
            _fork(socket, folder)
        except TimeoutError:
            return Foreseen(seconds=times * PATIENCE)
        done, messages = GlobalSteps(few.workers - few.backup, few.sync.runs_free), 0
        for record in lines_of(Path(folder, f"{ALL_RANKS}.jsonl")):
            if record["k"] == "step":
                done.add(record["rank"], record)
                messages += record["messages"]
    done.ready(ended=True)
    seconds = times * messages / MESSAGES_A_SECOND[experiment.cluster.messages]
    if done.last is None or done.last.seconds <= done.first.seconds:
        return Foreseen(None, seconds)
    rate = (done.last.samples - done.first.samples) / (done.last.seconds - done.first.seconds)
    return Foreseen(rate, seconds)


def _fork(socket: Path, folder: str) -> None:
    """Have ranks forked that simulate a folder's experiment, and wait for their end; they die with this call."""
    dies, alive = os.pipe()
    with open(os.devnull, "r+b") as nothing:
        files = (*[nothing.fileno()] * 3, dies)
        request = {"env": dict(os.environ), "cwd": folder, "argv": [folder, "1"]}
        try:
            with ask(socket, request, files, PATIENCE) as server:
                next(status for status in server.messages() if isinstance(status, int))
        finally:
            os.close(dies)
            os.close(alive)
