"""The panel of a lab: set an experiment, run it, watch it, compare it with earlier runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.fork_server import warm_socket
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import theme
from dlpar.lab.captions import duration, quantity
from dlpar.lab.controls import Controls
from dlpar.lab.figure import Figure
from dlpar.lab.figures.consensus import Consensus, disagreement
from dlpar.lab.figures.convergence import Convergence, loss_title
from dlpar.lab.figures.staleness import Lead, Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.figures.timeline import Lanes, Timeline
from dlpar.lab.ghost import Foreseen, Ghost
from dlpar.lab.labels import labels, place_in_queue, same_batches, with_world
from dlpar.lab.offer import Offer
from dlpar.lab.page import Page, module
from dlpar.lab.plot import Board, Plot, Shown
from dlpar.lab.recordings import SEEN, SPEEDS, Meanwhile, recordings, speed_of
from dlpar.lab.status import Status, results
from dlpar.lab.watch import Replay, Watch, between

if TYPE_CHECKING:
    from dlpar.jobs.launch import Job
    from dlpar.lab.prediction import Prediction


KEPT = 5
"""Earlier runs that stay in the figures; more could not be distinguished."""

LONG = 10.0
"""Seconds from which a simulation is called long."""

GOAL = 0.95
"""Held-out accuracy to which the seconds of runs are compared."""

ACTIONS = [
    {"name": "run", "label": "Run", "means": "Start the ranks"},
    {"name": "stop", "label": "Stop", "means": "End the job and all its ranks"},
    {"name": "clear", "label": "Clear", "means": "Remove earlier runs from the figures; their folders stay"},
]
"""Buttons of a panel."""


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
    first : str
        Figure in front, by the title of its tab.
    goal : float
        Held-out accuracy to which the seconds of runs are compared.

    Raises
    ------
    ValueError
        If no tab is called `first`.
    """

    _esm = module("plotly", "preview", "table", "link", "results", "figure", "panel")
    _busy, _kept, _opening = False, KEPT, ""
    _watch: Watch | Replay | None = None

    def __init__(
        self,
        experiment: Experiment,
        plots: Sequence[Plot],
        title: str,
        question: str,
        first: str = "",
        goal: float = GOAL,
    ) -> None:
        super().__init__()
        self.job: Job | None = None
        self.runs: list[Run] = []
        self._board, self._guard_jobs = Board(plots, goal), RLock()
        self._started, self._has_facts = 0, False
        self._shown: dict[str, Shown] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._states: dict[str, str] = {}
        self.tell(
            title=title,
            question=question,
            runs=[],
            goal=goal,
            recordings=None,
            speeds=[],
            offer=None,
            ghost="",
        )
        self.tell(
            live=False,
            length=0.0,
            wrong=None,
            refused=False,
            fields=[],
            values={},
            hidden=[],
            actions=ACTIONS,
        )
        self._status = Status(self, experiment)
        self._choose(experiment)
        if first and first not in self.figures:
            raise ValueError(f"first: got {first!r}, allowed is one of {', '.join(self.figures)}")
        self.tell(front=first or next(iter(self.figures)))
        self._enable()

    @property
    def running(self) -> bool:
        """Return whether a job of this panel is running."""
        return self._busy

    def stop(self) -> None:
        """Do what the Stop button does; nothing happens if no job is running."""
        if not self._busy:
            return
        self.tell(stoppable=False)
        if self.job:
            self._status.say("Stopping …")
            self.flush()
            return self.job.stop()
        self._watch.cancel()  # a recording
        return self.ended("stopped", "stopped by its owner")

    def close(self) -> None:
        """Stop the job, if one is running, and remove the panel from the page."""
        self.stop()
        if self._watch:
            self._watch.cancel()
        super().close()

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
            case {"do": "moment", "t": moment} if not self._busy and self._shown:
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
                self._board.settle(ended=not self._busy)
        self._show_runs()
        self._enable()
        self.flush()

    # ---- called by the watch ---------------------------------------------------------

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Take a record; called by the watch."""
        if source == "job":
            return
        rank = rank_of(source)
        if record["k"] == "error":
            self._status.errors[rank] = record
        elif record["k"] == "event" and record.get("launch_s") is not None:
            self._status.launch_s = record["launch_s"]
        with self._guard:
            self._board.take(rank, record)
        self._has_facts = self._has_facts or record["k"] == "rank" or bool(record.get("slip"))

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far; called by the watch, at most ten times a second."""
        with self._guard:
            self._board.settle(ended=False)
        self._show_facts()
        self._status.progress(self._board.steps, self._rate())
        self.flush(alive)

    def ended(self, status: str, reason: str) -> None:
        """End the run; called by the watch."""
        with self._guard:
            self._board.settle(ended=True)
            for plot in self._board.fed:
                if plot.caption == "Starting …":
                    plot.set_caption("The run ended before its first step.")
        self._show_facts()
        self._status.ended(self._board.steps, self._board.accuracy, self._rate(), status, reason)
        key = next(reversed(self._shown))
        self._states[key] = status
        if self._board.steps.done and status != "unwatched":
            self._results[key] = results(Run(self._status.path), self._board.reached)
        last = self._board.steps.last
        self.tell(length=last.seconds if last else 0.0)
        with self._guard_jobs:
            self._busy = False
            self.tell(live=False)
            self._show_runs()
            self._enable()
        self.flush()

    # ---- inside ----------------------------------------------------------------------

    def _begin(self, run: Run, experiment: Experiment, name: str | None = None) -> None:
        """Add a run to the figures, in front of the others."""
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
                if name is None:
                    self._rename(other.key, with_world(own, other.experiment))
            self._started = self._started if self._shown else 0
            colour = self._colour(experiment)
            named = with_world(name or names[-1], experiment)
            shown = Shown(run.id, experiment, named, self._started, colour)
            self._shown[run.id], self._started = shown, self._started + 1
            self._board.begin(shown)
            self._choose(experiment)
            for plot in self._board.fed:
                plot.set_caption("Starting …")
        self._states[run.id] = "running"
        self._status.begin(experiment, run.path)
        self._has_facts = True
        self._show_facts()
        self._show_runs()

    def _follow(self, watch: Watch | Replay) -> None:
        self._busy, self._watch = True, watch
        self.tell(live=True, length=0.0, message="")
        self._enable()
        watch.start()
        self.flush()

    def _colour(self, experiment: Experiment) -> str:
        return theme.RUNS[self._started % len(theme.RUNS)]

    def _forget(self, key: str) -> None:
        for plot in self._board.plots:
            if key in plot.runs:
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
            state = self._states[key]
            name = run.name if state in ("done", "running") else f"{run.name} ({state})"
            looks = {"key": key, "name": name, "colour": run.colour}
            rows.append({**looks, "results": self._results.get(key)})
        self.tell(runs=rows if len(rows) > 1 else [])

    def _enable(self) -> None:
        self.tell(busy=self._busy and self.job is not None, stoppable=self._busy)
        self.tell(earlier=max(0, len(self._shown) - 1))

    def _show_facts(self) -> None:
        if self._has_facts:
            self._has_facts = False
            now, *earlier = [run.experiment for run in reversed(self._shown.values())]
            same = bool(earlier) and all(same_batches(now, other) for other in earlier)
            board = self._board
            self._status.show_facts(board.ranks, board.slip, "the same in all runs" if same else "")


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
        self._controls = Controls(experiment, controls)
        plots = [
            Convergence(),
            Throughput(prediction),
            Staleness(),
            Lead(),
            Lanes(),
            Timeline(),
            Waiting(),
            Consensus(),
        ]
        super().__init__(experiment, plots, title, question, first)
        self._meanwhile, self._offer, self._ghost = Meanwhile(self), Offer(self), Ghost(self)
        self.tell(recordings=[], speeds=list(SPEEDS.items()))
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
        if self._busy and self.job and self.job.run.status == "done":
            self._watch.join(5)  # the last records are being drawn
        with self._guard_jobs:
            self._refuse_if_busy()
            self._meanwhile.pressed()
            self.job = job = dlpar.launch(experiment)
            self.runs.insert(0, job.run)
            self._status.prefix = ""
            self._begin(job.run, experiment)
            self._follow(Watch(job.run.path, self))
            self.tell(message=disagreement(experiment))
            if experiment.cluster.world == "simulated":
                self._ghost.want(experiment)
        self.flush()
        return job

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
            self._refuse_if_busy()
            at_speed = "" if speed == 1 else f", at {speed:g} times its speed"
            what = "Recording; press Run for your own" if is_first else f"Recording of {run.id}"
            self.job, self._status.prefix = None, f"{what}{at_speed}: "
            self._begin(run, run.experiment, "recording" if is_first else None)
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
            case {"do": "simulate" | "watch" as how}:
                self.beside(getattr(self._meanwhile, how))
            case {"do": "take" | "undo" | "away" as how}:
                getattr(self._offer, how)()
            case _:
                super().hear(message)

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Take a record; called by the watch."""
        if source == "job":
            if record["k"] == "queued":
                where = place_in_queue(record["ahead"], record["paused"])
                self._status.say(f"{where}; it starts by itself; Stop leaves the queue")
                self._meanwhile.queued()
            else:
                self._meanwhile.over()
        super().take(source, record)

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far; called by the watch, at most ten times a second."""
        self._meanwhile.look()
        super().refresh(alive)

    def ended(self, status: str, reason: str) -> None:
        """End the run; called by the watch."""
        self._meanwhile.over()
        super().ended(status, reason)

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
            for plot in self._board.plots:
                if isinstance(plot, Throughput):
                    plot.foresee(name, rate)
        self.tell(ghost="" if rate is None else f"{quantity(rate)} samples/s")
        self.flush()

    def _refuse_if_busy(self) -> None:
        if self._busy:
            raise RuntimeError(f"panel: run {self.job.run.id} is still running; stop it first")

    def _end_recording(self) -> None:
        """End a recording that is being played: nobody has to wait for it."""
        if self._busy and not self.job:
            self.stop()
            self._watch.join(5)

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
