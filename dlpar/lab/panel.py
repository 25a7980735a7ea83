"""The panel of a lab: set an experiment, run it, watch it, compare it with earlier runs."""

from __future__ import annotations

import math
import os
import platform
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.paths import runtime_folder
from dlpar.config.schema import BadExperiment
from dlpar.jobs.control_groups import usable_cores
from dlpar.jobs.fork_server import warm_socket
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.jobs.tail import ALL_RANKS, lines_of, rank_of
from dlpar.jobs.unix_sockets import ask
from dlpar.lab import theme
from dlpar.lab.captions import duration, quantity
from dlpar.lab.controls import Controls
from dlpar.lab.exchange import current_offer
from dlpar.lab.figure import Figure, require
from dlpar.lab.figures.consensus import Consensus, disagreement
from dlpar.lab.figures.convergence import Convergence, check_goal, first_at, loss_title, of_one_kind
from dlpar.lab.figures.scaling import twin
from dlpar.lab.figures.staleness import Lead, Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.figures.timeline import Lanes, Timeline
from dlpar.lab.labels import (
    labels,
    place_in_queue,
    platform_in_words,
    same_batches,
    scheme,
    split,
    with_world,
)
from dlpar.lab.page import Page, module
from dlpar.lab.plot import Board, Plot, Shown
from dlpar.lab.watch import SEEN, Replay, Watch, between, newest_like, recordings, speed_of

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.jobs.launch import Job
    from dlpar.lab.prediction import Prediction


KEPT = 5
"""Earlier runs that stay in the figures; more could not be distinguished."""

LONG = 10.0
"""Seconds from which a simulation is called long."""

GOAL = 0.95
"""Held-out accuracy to which the seconds of runs are compared."""

PATIENCE = 12.0
"""Seconds in the queue before something else is offered: less than 15, also on a busy machine."""

AT_FIRST: dict[str, Any] = {
    "runs": [], "recordings": None, "offer": None, "ghost": "", "live": False, "length": 0.0, "wrong": None,
    "fields": [], "values": {}, "hidden": [],
}  # fmt: skip
"""State of a page before its panel has said anything."""


class RunPage(Page):
    """A page that follows jobs: their figures, status, log, and the table of their results.

    Parameters
    ----------
    experiment : Experiment
        Decides the figures at first.
    plots : sequence of Plot
        All figures; those that fit a run are shown.
    title, question : str
        Heading, and the question that runs answer.
    goal : float
        Held-out accuracy to which the seconds of runs are compared.
    """

    _esm = module("plotly", "preview", "table", "link", "results", "figure", "panel")
    _actions = ("run", "stop")
    """Buttons, as `panel.js` names them."""
    _instead: Sequence[str] = ()
    """What is offered instead of waiting for slots, by the names of buttons."""

    _kept, _opening, _colours = KEPT, "", theme.RUNS
    _watch: Watch | Replay | None = None

    def __init__(
        self, experiment: Experiment, plots: Sequence[Plot], title: str, question: str, goal: float = GOAL
    ) -> None:
        super().__init__()
        self.job: Job | None = None
        self.runs: list[Run] = []
        self._board, self._guard_jobs, self._over = Board(plots), RLock(), Event()
        self._asked: list[tuple[str, Experiment]] = []
        self._failure = "nothing was run"
        self._started, self._queued_at = 0, 0.0  # infinite: something else is offered
        self._shown: dict[str, Shown] = {}
        self._outcomes: dict[str, tuple[str, dict[str, Any] | None]] = {}
        self._over.set()
        self.tell(**AT_FIRST, title=title, question=question, goal=goal, actions=self._actions)
        self._status = Status(self, experiment)
        self._choose(experiment)
        self._enable()

    @property
    def running(self) -> bool:
        """Return whether a job of this panel is running, or a recording is being played."""
        return not self._over.is_set()

    def wait(self, timeout: float = 600.0) -> list[Run]:
        """Wait until all runs are done and drawn, and return them.

        Parameters
        ----------
        timeout : float, default 600
            Seconds.

        Raises
        ------
        TimeoutError
            If they are still running after that; they continue.
        JobFailed
            If a run failed or was stopped.
        """
        from dlpar.jobs.launch import JobFailed

        if not self._over.wait(timeout):
            raise TimeoutError(f"the panel is still running after {timeout:g} s")
        if self._failure:
            raise JobFailed(self._failure)
        return self.runs

    def stop(self) -> None:
        """Do what the Stop button does: end the job, and start no other; nothing happens if none is running."""
        if not self.running:
            return
        if self._asked:
            self._failure = f"{self._asked[0][0]} was not run: the panel was stopped before"
            self._asked = []
        self.tell(stoppable=False)
        if self.job:
            self._status.say("Stopping …")
            self.flush()
            return self.job.stop()
        self._watch.cancel()  # a recording
        return self.ended("stopped", "stopped by its owner")

    def close(self) -> None:
        """Stop the job, if one is running, and remove the panel from the page."""
        if self.comm:  # else it was refused, or is closed
            self.stop()
            if self._watch:
                self._watch.cancel()
            super().close()
            self._over.set()

    def picture(self) -> Figure:
        """The figure in front as a static figure, as it is drawn now."""
        return self.figures[self.state["front"]].static()

    def hear(self, message: dict[str, Any]) -> None:
        """Do what the page asks for."""
        match message:
            case {"do": "front", "figure": title} if title in self.figures:
                self.tell(front=title)
            case {"do": "axis", "figure": title, "x": x} if title in self.figures:
                self.figures[title].x = x
            case {"do": "moment", "t": moment} if not self.running and self._shown:
                with self._guard:
                    for plot in self._board.fed:
                        plot.look(float(moment), partial(between, self._status.path))
            case {"do": "run"}:
                self.run()
            case {"do": "stop"}:
                self.beside(self.stop)
            case {"do": "clear"}:
                self.clear_earlier()

    def clear_earlier(self) -> None:
        """Remove earlier runs from the figures; their folders stay."""
        with self._guard:
            for key in list(self._shown)[:-1]:
                self._forget(key)
            if self._shown:
                self._board.settle(ended=not self.running)
        self._show_runs()
        self.flush()

    # ---- called by the watch ---------------------------------------------------------

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Take a record; called by the watch."""
        if source == "job" and record["k"] == "queued":
            where = place_in_queue(record["ahead"], record["paused"])
            self._status.say(f"{where}; it starts by itself; Stop leaves the queue")
            self._queued_at = self._queued_at or time.monotonic()
        elif self._queued_at:
            self._leave_queue()
        if source == "job":
            return
        rank = rank_of(source)
        if record["k"] == "error":
            self._status.errors[rank] = record
        elif record["k"] == "event" and record.get("launch_s") is not None:
            self._status.launch_s = record["launch_s"]
        with self._guard:
            self._board.take(rank, record)

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far; called by the watch, at most ten times a second."""
        if self._instead and self._queued_at and time.monotonic() - self._queued_at >= PATIENCE:
            self._queued_at = math.inf
            self.tell(offer={"text": "Instead of waiting:", "actions": self._instead})
        with self._guard:
            self._board.settle(ended=False)
        self._show_facts()
        self._status.progress(self._board.steps, self._rate())
        self.flush(alive)

    def ended(self, status: str, reason: str) -> None:
        """End the run, and start the next if there is one; called by the watch."""
        self._leave_queue()
        with self._guard:
            self._board.settle(ended=True)
            for plot in self._board.fed:
                if plot.caption == "Starting …":
                    plot.set_caption("The run ended before its first step.")
        self._show_facts()
        self._status.ended(self._board.steps, self._board.accuracy, self._rate(), status, reason)
        run = self._front
        has_results = self._board.steps.done and status != "unwatched"
        found = results(Run(self._status.path), self.state["goal"]) if has_results else None
        self._outcomes[run.key] = status, found
        last = self._board.steps.last
        self.tell(length=last.seconds if last else 0.0, live=False)
        self._show_runs()
        with self._guard_jobs:
            if status != "done":
                self._failure = f"{run.name}: {reason or status}"
            elif self._asked:
                self.flush()
                try:
                    return self._next()
                except Exception as error:  # nobody would see it here
                    self._failure = f"{self._asked[0][0]} was not run: {type(error).__name__}: {error}"
                    self.tell(message=self._failure)
            self._over.set()
            self._enable()
        return self.flush()

    # ---- inside ----------------------------------------------------------------------

    def _start(self, asked: Sequence[tuple[str, Experiment]]) -> None:
        """Run experiments, each with its name, one after the other; raise if the first cannot be launched."""
        self._refuse_if_running()
        self._asked, self._count, self._failure = list(asked), len(asked), ""
        self._next()

    def _refuse_if_running(self) -> None:
        if self.running:
            raise RuntimeError(f"panel: run {self.job.run.id} is still running; stop it first")

    def _next(self) -> None:
        (name, experiment), *later = self._asked
        self.job = job = dlpar.launch(experiment)
        self._asked, number = later, self._count - len(later)
        self._status.prefix = f"{number} of {self._count}, {name}: " if self._count > 1 else ""
        self._begin(job.run, experiment, name)
        self._follow(Watch(job.run.path, self))

    def _begin(self, run: Run, experiment: Experiment, name: str = "") -> None:
        """Add a run to the figures, in front of the others; without names, runs are called by what differs."""
        with self._guard:
            for key, other in list(self._shown.items()):
                is_other = loss_title(other.experiment) != loss_title(experiment)
                if is_other or key in (run.id, self._opening):
                    self._forget(key)
            for key in list(self._shown)[: max(0, len(self._shown) - self._kept)]:
                self._forget(key)
            experiments = [*(other.experiment for other in self._shown.values()), experiment]
            names = labels(experiments) if len(experiments) > 1 else ["this run"]
            for other, own in zip(list(self._shown.values()), names):
                if not name:
                    self._rename(other.key, with_world(own, other.experiment))
            self._started = self._started if self._shown else 0
            colour = self._colours[self._started % len(self._colours)]
            named = with_world(name or names[-1], experiment)
            shown = Shown(run.id, experiment, named, self._started, colour)
            self._shown[run.id], self._started = shown, self._started + 1
            self._board.begin(shown)
            self._choose(experiment)
            for plot in self._board.fed:
                plot.set_caption("Starting …")
        self._outcomes[run.id] = "running", None
        self._status.begin(experiment, run.path)
        self._show_facts()
        self._show_runs()

    def _follow(self, watch: Watch | Replay) -> None:
        self._over.clear()
        self._watch = watch
        self.tell(live=True, length=0.0, message="")
        self._enable()
        watch.start()
        self.flush()

    @property
    def _front(self) -> Shown:
        """The run that began last."""
        return next(reversed(self._shown.values()))

    def _forget(self, key: str) -> None:
        for plot in self._board.plots:
            plot.forget(key)
        del self._shown[key]

    def _rename(self, key: str, name: str) -> None:
        for plot in self._board.plots:
            if key in plot.runs:
                plot.rename(key, name)
        self._shown[key] = self._shown[key]._replace(name=name)

    def _choose(self, experiment: Experiment) -> None:
        """Show the figures that fit an experiment; the one in front stays there if it is among them."""
        self.figures = {plot.title: plot for plot in self._board.plots if plot.fits(experiment)}
        front = self.state.get("front")
        kept = front if front in self.figures else next(iter(self.figures))
        self.tell(tabs=list(self.figures), front=kept)

    def _rate(self) -> float | None:
        """Mean samples/s of the run in front so far."""
        found = self.figures.get(Throughput.title)
        return found.kept[found.front.key].mean if found and found.runs else None

    def _show_runs(self) -> None:
        """Show the table of runs: what differs, and their ratios."""
        rows = []
        for key, run in self._shown.items():
            state, found = self._outcomes[key]
            name = run.name if state in ("done", "running") else f"{run.name} ({state})"
            rows.append({"key": key, "name": name, "colour": run.colour, "results": found})
        self.tell(runs=rows if len(rows) > 1 else [])

    def _enable(self) -> None:
        self.tell(busy=self.running and self.job is not None, stoppable=self.running)

    def _show_facts(self) -> None:
        now, *earlier = [run.experiment for run in reversed(self._shown.values())]
        same = bool(earlier) and all(same_batches(now, other) for other in earlier)
        board = self._board
        self._status.show_facts(board.ranks, board.slip, "the same in all runs" if same else "")

    def _leave_queue(self) -> None:
        """Offer nothing instead of waiting any longer."""
        if self._queued_at == math.inf:
            self.tell(offer=None)
        self._queued_at = 0.0


class Panel(RunPage):
    """Controls, Run and Stop, and the live figures of runs.

    Parameters
    ----------
    experiment : Experiment, optional
        Settings of the controls at first; default: ``Experiment()``.
    controls : sequence of str, default ("workers", "steps", "lr")
        Fields on the first screen, such as ``"workers"``, ``"model.width"`` or ``"world"``;
        all others are under "More settings".
    question : str, default ""
        Question that the run answers; shown above everything.
    title : str, default "Train"
        Heading.
    first : str, optional
        Figure in front, by the title of its tab, such as ``"Timeline"``; default: the first.
    prediction : Prediction, optional
        Of a throughput, in samples/s or in times that of the first run; drawn as a line, and said.
    recording : Run or path, optional
        A run that has ended, or its id or folder; it is played, marked as a recording, until Run is pressed.

    Raises
    ------
    ValueError
        If a name in `controls` is no field, or no tab is called `first`.
    NoSuchRun
        If there is no such recording.

    Notes
    -----
    Running the cell again closes the panel it showed before, and stops its job.
    """

    _actions, _instead = ("run", "stop", "clear"), ("simulate", "watch")

    def __init__(
        self,
        experiment: Experiment | None = None,
        controls: Sequence[str] = ("workers", "steps", "lr"),
        question: str = "",
        title: str = "Train",
        first: str = "",
        prediction: Prediction | None = None,
        recording: Run | str | os.PathLike | None = None,
    ) -> None:
        experiment = experiment or Experiment()
        self._throughput = Throughput(prediction)
        others = (Staleness(), Lead(), Lanes(), Timeline(), Waiting(), Consensus())
        super().__init__(experiment, [Convergence(), self._throughput, *others], title, question)
        fine = first in ("", *self.figures)
        require(fine, f"first: got {first!r}, allowed is one of {', '.join(self.figures)}")
        self.tell(front=first or self.state["front"])
        self._controls, self._offer, self._ghost = Controls(experiment, controls), Offer(self), Ghost(self)
        self.tell(recordings=[])
        self._check()
        if recording is not None:
            run = recording if isinstance(recording, Run) else Run(recording)
            self._opening = run.id
            self.replay(run, speed_of(run, SEEN))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self.beside(warm_socket)  # a head start for the first job
        return super()._repr_mimebundle_(**kwargs)

    @property
    def experiment(self) -> Experiment:
        """Experiment that the controls describe; raises `BadExperiment` if it cannot be run."""
        return self._controls.experiment()

    def run(self) -> Job:
        """Do what the Run button does, and return the job.

        Raises
        ------
        BadExperiment
            If the settings are impossible.
        RuntimeError
            If a job of this panel is still running.
        """
        experiment = self.experiment
        self._end_recording()
        if self.running and self.job and self.job.run.status == "done":
            self._watch.join(5)  # the last records are being drawn
        with self._guard_jobs:
            self._start([("", experiment)])
            self.runs.insert(0, self.job.run)
            self.tell(message=disagreement(experiment))
            if experiment.cluster.world == "simulated":
                self._ghost.want(experiment)
        self.flush()
        return self.job

    def replay(self, run: Run | str, speed: float = 1.0) -> None:
        """Play a recorded run, marked as a recording; Stop ends it.

        Parameters
        ----------
        run : Run or str
            A run that has ended, or its id.
        speed : float, default 1
            Seconds of the run's clock in a second.

        Raises
        ------
        NoSuchRun
            If no run has that id.
        ValueError
            For a speed below 0.001 or above 1000, or a run that is still running.
        RuntimeError
            If a job of this panel is still running.
        """
        run = run if isinstance(run, Run) else Run(run)
        replay, is_first = Replay(run, self, speed), run.id == self._opening
        self._end_recording()
        with self._guard_jobs:
            self._refuse_if_running()
            at_speed = "" if speed == 1 else f", at {speed:g} times its speed"
            what = "Recording; press Run for your own" if is_first else f"Recording of {run.id}"
            self.job, self._status.prefix = None, f"{what}{at_speed}: "
            self._begin(run, run.experiment, "recording" if is_first else "")
            self._follow(replay)

    def leave(self) -> None:
        """Stop, and wait until the figures have ended."""
        self.stop()
        if self._watch:
            self._watch.join(5)

    def choose(self, field: str, value: Any) -> None:
        """Set a control, by its path, such as ``"cluster.world"``."""
        self._controls.set(self._controls.path_of(field), value)
        self._check()
        self.flush()

    def show(self, experiment: Experiment) -> None:
        """Set all controls."""
        self._controls.show(experiment)
        self._check()

    def restore(self, values: dict[str, Any]) -> None:
        """Set all controls to what a page showed, which need not be an experiment that can run."""
        self._controls.values |= values
        self._check()

    def hear(self, message: dict[str, Any]) -> None:
        """Do what the page asks for."""
        match message:
            case {"do": "set", "path": path, "value": value}:
                self.choose(path, value)
                if not self.state["busy"]:  # a simulation would take time from the ranks that are measured
                    self._ghost.want(None if self.state["wrong"] else self.experiment)
            case {"ask": "recordings"}:
                self.tell(recordings=recordings())
            case {"do": "play", "run": run, "speed": speed}:
                self.replay(run, speed)
            case {"do": "simulate"}:
                self.beside(self._simulate_instead)
            case {"do": "watch"}:
                self.beside(self._watch_instead)
            case {"do": "take" | "undo" | "away" as how}:
                getattr(self._offer, how)()
            case _:
                super().hear(message)

    def _simulate_instead(self) -> None:
        """Leave the queue, and run the same in the simulated world."""
        self.leave()
        self.choose("cluster.world", "simulated")
        self.run()

    def _watch_instead(self) -> None:
        """Leave the queue, and play the newest run of this kind."""
        like = newest_like(self.experiment)
        if like is None:
            raise LookupError("you have no recording of a run of this kind yet")
        self.leave()
        self.replay(like, speed_of(like))

    def foresee(self, experiment: Experiment | None, foreseen: Foreseen) -> None:
        """Show the simulated samples/s of settings that have not run yet, and say if their simulation is long."""
        rate = foreseen.rate
        if experiment:
            is_long = experiment.cluster.world == "simulated" and foreseen.seconds > LONG
            said = f"This simulation takes {duration(foreseen.seconds)} or more." if is_long else ""
            self.tell(message=" ".join(filter(None, (disagreement(experiment), said))))
        with self._guard:
            shown = [run.experiment for run in self._shown.values()]
            what = labels([*shown, experiment])[-1] if shown and experiment not in shown and rate else ""
            name = f"simulated: {what}" if what else "simulated"
            self._throughput.foresee(name, rate)
        self.tell(ghost="" if rate is None else f"{quantity(rate)} samples/s")
        self.flush()

    def _end_recording(self) -> None:
        """End a recording that is being played: nobody has to wait for it."""
        if self.running and not self.job:
            self.leave()

    def _check(self) -> None:
        wrong, message = None, ""
        try:
            message = disagreement(self.experiment)
        except BadExperiment as error:
            message = str(error)
            wrong = message.partition(":")[0]
        controls = self._controls
        self.tell(fields=controls.fields(), values=dict(controls.values), hidden=controls.hidden())
        self.tell(message=message, wrong=wrong)


# ---- offers of a teacher -------------------------------------------------------------

LOOK = 2.0
"""Seconds between two checks for an offer, for all panels of a kernel together; only on a hub."""


class Offer:
    """The offer in a panel: "Take it" sets the controls, "Undo" sets them to their values before."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._id = panel, None
        self._before: dict[str, Any] | None = None
        self._experiment: Experiment | None = None
        if "JUPYTERHUB_USER" in os.environ:  # elsewhere none can arrive
            with _offering:
                _waiting.add(self)
            _look_for_offers()

    def see(self, offer: dict[str, Any] | None) -> None:
        """Show the current offer; an offer that was shown before changes nothing."""
        if (offer and offer["id"]) == self._id:
            return
        self._id, self._experiment = offer and offer["id"], None
        with suppress(Exception):  # another version of dlpar sent it
            self._experiment = Experiment(**offer["experiment"]) if offer else None
        if self._experiment is not None:
            undo = ["undo"] if self._before else []
            self._tell(f"Your teacher ({offer['by']}) sent:", "take", *undo, "away")
        elif self._before is None:
            self.away()
        self._panel.flush()

    def take(self) -> None:
        """Set the panel's controls."""
        self._before = self._before or self._panel.state["values"]
        self._panel.show(self._experiment)
        words = "The controls are as your teacher sent them. Press Run to run it."
        self._panel.tell(offer={"text": words, "actions": ["undo", "away"]})

    def undo(self) -> None:
        """Set the controls as they were before the first press of "Take it", and show the offer again."""
        self._panel.restore(self._before)
        self.away()
        if self._experiment is not None:
            self._tell("As before. Your teacher sent:", "take", "away")

    def away(self) -> None:
        """Hide the offer; controls that were set stay."""
        self._before = None
        self._panel.tell(offer=None)

    def _tell(self, words: str, *actions: str) -> None:
        e = self._experiment
        workers = f"{e.workers} worker{'s' * (e.workers != 1)}"
        parts = [f"{e.model.name} on {e.data.name}", *([] if e.split.kind == "data" else [split(e)])]
        what = ", ".join([*parts, scheme(e), workers, e.cluster.world])
        self._panel.tell(offer={"text": words, "what": what, "actions": list(actions)})


_waiting: weakref.WeakSet[Offer] = weakref.WeakSet()
_offering = Lock()


@cache
def _look_for_offers() -> None:
    """Show every panel the offers that arrive; once in a kernel."""
    Thread(target=_look, name="dlpar offers", daemon=True).start()


def _look() -> None:
    while True:
        offer = current_offer()
        with _offering:
            shown = list(_waiting)
        for one in shown:
            one.see(offer)
        del shown
        time.sleep(LOOK)


# ---- an answer before Run ------------------------------------------------------------

FEW, WORKER_STEPS = 12, 200
"""Most steps that are simulated, and most steps of all workers together."""

FEWEST = 3
"""Fewest steps: the first begins before anything has been sent."""

TOO_LONG = 2.0
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
    steps = min(FEW, max(FEWEST, WORKER_STEPS // few.workers))
    if few.cluster.world != "simulated" or socket is None:
        return Foreseen()
    times = experiment.steps / steps
    few = few.replace(steps=steps, cluster={"messages": "sizes"})
    with tempfile.TemporaryDirectory("", "ghost-", runtime_folder(), ignore_cleanup_errors=True) as folder:
        Path(folder, "experiment.json").write_text(few.to_json())
        try:
            _fork(socket, folder)
        except TimeoutError:
            return Foreseen(seconds=times * TOO_LONG)
        done, messages = GlobalSteps(few.workers, few.sync.runs_free), 0
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
            with ask(socket, request, files, TOO_LONG) as server:
                next(status for status in server.messages() if isinstance(status, int))
        finally:
            os.close(dies)
            os.close(alive)


# ---- several experiments, one after the other ----------------------------------------


class Comparison(RunPage):
    """A panel that runs experiments one after the other, with one figure and one table.

    Nothing runs before Run is pressed or ``.run()`` is called; ``.wait()`` waits for the end.

    Parameters
    ----------
    experiments : sequence of Experiment
        Two or more of one kind of task.
    titles : sequence of str, optional
        Name of each experiment; default: the settings in which it differs from the others.
    question : str, default ""
        Question that the comparison answers; shown above it.
    x : {"step", "samples", "seconds", "bytes"}, default "seconds"
        Horizontal axis of the curves at first.
    goal : float, default 0.95
        Held-out accuracy, above 0 and at most 1; the table has the time until it is reached.

    Attributes
    ----------
    runs : list of Run
        Runs started so far, in order.

    Raises
    ------
    ValueError
        If there are fewer than two experiments, they do not fit into one figure, or an argument is not allowed.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        titles: Sequence[str] | None = None,
        question: str = "",
        x: str = "seconds",
        goal: float = GOAL,
    ) -> None:
        experiments = [experiments] if isinstance(experiments, Experiment) else list(experiments)
        _check(experiments, titles)
        check_goal(goal)
        self.experiments, self.titles = experiments, list(titles or labels(experiments))
        self._colours, self._kept = theme.run_colours(experiments), len(experiments)
        plots = [Convergence(x), Throughput(), Staleness(), Waiting(), Consensus()]
        super().__init__(experiments[0], plots, "Compare", question, goal=goal)

    @property
    def table(self) -> pd.DataFrame:
        """One row per run, in numbers; the columns' names have units."""
        import pandas as pd

        found = (self._outcomes[run.id][1] or {} for run in self.runs)
        rows = [{"run": title, **results} for title, results in zip(self.titles, found)]
        return pd.DataFrame(rows, columns=None if rows else ["run"])

    def run(self) -> Comparison:
        """Do what the Run button does and return at once.

        Raises
        ------
        RuntimeError
            If the comparison is already running.
        """
        with self._guard_jobs:
            self._refuse_if_running()
            for key in list(self._shown):
                self._forget(key)
            self.runs = []
            self._start(list(zip(self.titles, self.experiments)))
        return self

    def _next(self) -> None:
        super()._next()
        self.runs.append(self.job.run)


compare = Comparison


def _check(experiments: list[Experiment], titles: Sequence[str] | None) -> None:
    """Raise a ValueError if experiments do not fit into one figure, or `titles` does not fit them."""
    for each in experiments:
        fine = isinstance(each, Experiment)
        require(fine, f"experiments: got {each!r:.60}, allowed are experiments only")
    got = len(experiments)
    require(got > 1, f"experiments: got {got}, allowed are two or more")
    of_one_kind(experiments, "experiments")
    why = "nothing is trained with sizes only, so there is no loss to compare; dlpar.lab.scaling compares speeds"
    for each in experiments:
        fine = Convergence.fits(each)
        require(fine, f"experiments: got {each} with messages sizes, allowed is values: {why}")
    told = len(experiments if titles is None else titles)
    require(told == got, f"titles: got {told}, allowed is one for each of {got} experiments")


# ---- words about a run ---------------------------------------------------------------

LOG_BYTES = 16_000
"""Bytes shown of the end of the log; all of it is in the run folder."""


def results(run: Run, goal: float) -> dict[str, Any]:
    """Results of a run that has ended, with the seconds to an accuracy; None for what it does not have."""
    summary, (step, reached) = run.summary, first_at(run, goal)
    sent = summary["bytes_sent"]
    return {
        "world": run.world,
        "steps": summary["steps"],
        "samples/s": summary["samples_per_s"],
        "final loss": summary["final_loss"],
        "accuracy": summary["accuracy"],
        "to goal (s)": None if step is None else reached,
        "staleness mean": summary["staleness"]["mean"],
        "staleness max": summary["staleness"]["max"],
        "lead max": summary["lead"]["max"],
        "MB sent": None if sent is None else sent / 1e6,
        "waiting (s)": summary["seconds"]["wait"],
    }


class Status:
    """Progress, facts and log of the run in front, told to a page."""

    def __init__(self, page: Page, experiment: Experiment) -> None:
        self.page, self.prefix = page, ""
        self.begin(experiment)
        self.say("Not started. Press Run.")
        self.show_facts({}, None, "")

    def say(self, words: str) -> None:
        """Show `words` beside the bar."""
        self.page.tell(words=self.prefix + words)

    def begin(self, experiment: Experiment, path: Path | None = None) -> None:
        """Start a run; None: there is none yet."""
        self.experiment, self.path = experiment, path
        self.errors: dict[int, dict[str, Any]] = {}
        self._log_size, self._shown, self.launch_s, self._seen = -1, 0.0, None, None
        status = "running" if path else ""
        self.page.tell(
            done=0, steps=experiment.steps, status=status, message="", log="", path=str(path or "")
        )
        self.say(f"Starting {experiment.ranks} rank{'s' * (experiment.ranks != 1)} …")

    def progress(self, so_far: GlobalSteps, rate: float | None) -> None:
        """Show the progress of the run, at most four times a second; `rate` is in samples/s."""
        now = time.monotonic()
        if now - self._shown < 0.25:
            return
        self._shown, done, steps = now, so_far.done, self.experiment.steps
        if done:
            spent, world = so_far.last.seconds, self.experiment.cluster.world
            each = self._seconds_a_step(now, done) if world == "simulated" else spent / done
            rest = f"about {duration(each * (steps - done))} left" if each is not None else "working …"
            left = rest if done < steps else "finishing …"
            self.page.tell(done=done)
            self.say(" · ".join([f"step {done:,} of {steps:,}", *self._speed(spent, rate), left]))
        self.show_log()

    def _speed(self, seconds: float, rate: float | None) -> list[str]:
        """Words for the time that was spent, with its clock, and for the samples/s."""
        world = self.experiment.cluster.world
        clock = "" if world == "real" else f" on the {theme.CLOCKS[world]} clock"
        return [f"{duration(seconds)}{clock}", *([f"{quantity(rate)} samples/s"] if rate else [])]

    def _seconds_a_step(self, now: float, done: int) -> float | None:
        """Seconds of the reader's clock per step, since the first call with finished steps; None in that call."""
        self._seen = self._seen or (now, done)
        return (now - self._seen[0]) / (done - self._seen[1]) if done > self._seen[1] else None

    def ended(
        self, steps: GlobalSteps, accuracy: float | None, rate: float | None, status: str, reason: str
    ) -> None:
        """Show the result of the run."""
        done, cluster, all_steps = steps.done, self.experiment.cluster, self.experiment.steps
        whole = status == "done" and done == all_steps
        parts = [f"done: {done:,} steps" if whole else f"{status} after {done:,} of {all_steps:,} steps"]
        if status not in ("done", "stopped"):
            parts = [f"{parts[0]} — {reason}"]
        elif steps.last:
            parts += self._speed(steps.last.seconds, rate)
            trained = cluster.messages == "values"
            parts.append(f"loss {quantity(steps.last.loss)}" if trained else "nothing was trained")
            parts += [] if accuracy is None else [f"held-out accuracy {accuracy:.1%}"]
        if self.launch_s is not None and status in ("done", "stopped"):
            parts.append(f"launched in {duration(self.launch_s)}")
        self.page.tell(done=done, status=status)
        self.say(" · ".join(parts))
        self._log_size = -1
        self.show_log()

    def show_facts(self, ranks: dict[int, dict], slip: float | None, batches: str) -> None:
        """Show the facts that a reader must know to trust the figures: world, platform, clock, slip."""
        cluster = self.experiment.cluster
        where = _platform(ranks) if cluster.world == "real" else platform_in_words(self.experiment)
        facts = {"world": cluster.world, "platform": where}
        if cluster.world != "real":
            behind = "none" if slip is None else f"{slip * 1e3:.0f} ms"
            facts |= {"clock": theme.CLOCKS[cluster.world], "slip": behind}
        facts |= {"batches": batches} if batches else {}
        self.page.tell(facts=list(facts.items()))

    def show_log(self) -> None:
        """Show the end of the ranks' output, and every traceback with its rank."""
        log = self.path / "log.txt"
        size = log.stat().st_size if log.exists() else 0
        if size + len(self.errors) == self._log_size:
            return
        self._log_size, text = size + len(self.errors), ""
        if size:
            with open(log, "rb") as file:
                file.seek(max(0, size - LOG_BYTES))
                text = file.read().decode(errors="replace")
        for rank, error in sorted(self.errors.items()):
            lines = str(error.get("traceback") or error.get("message")).rstrip().splitlines()
            text += "\n" + "\n".join(f"[rank {rank}] {line}" for line in lines) + "\n"
        self.page.tell(log=text.strip())


def _platform(ranks: dict[int, dict]) -> str:
    here = f"{platform.node()}, {usable_cores()} cores"
    if not ranks:
        return here
    hosts = sorted({r["host"] for r in ranks.values()})
    if hosts != [platform.node()]:
        here = f"{len(hosts)} hosts" if len(hosts) > 1 else hosts[0]
    kinds = {
        f"{r['device']}, {r['carrier']}, {r['threads']} thread{'s' * (r['threads'] != 1)} a rank"
        for r in ranks.values()
    }
    return f"{here} ({'; '.join(sorted(kinds))})"
