"""The panel of a lab: set an experiment, run it, watch it, compare it with the last."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Sequence
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.run import Run
from dlpar.lab.board import Board
from dlpar.lab.cell import all_below, prepare_in_background, take_place_of_earlier
from dlpar.lab.controls import Controls, button, first_screen, more
from dlpar.lab.labels import same_batches
from dlpar.lab.live.consensus import disagreement
from dlpar.lab.live_plot import answer_while_busy
from dlpar.lab.offer import Offer
from dlpar.lab.recordings import Recordings, newest_like
from dlpar.lab.status import Status
from dlpar.lab.watch import AT_MOST, Replay, Watch

if TYPE_CHECKING:
    from dlpar.jobs.launch import Job


LOG, RECORDINGS = 1, 2
"""Sections of "More"; 0 are all other settings."""


class Panel(widgets.VBox):
    """Controls, Run and Stop, and the figures of a run while it goes on.

    Parameters
    ----------
    experiment : Experiment, optional
        What the controls show at first; default: ``Experiment()``.
    controls : sequence of str
        Fields on the first screen, such as ``"workers"``, ``"model.width"`` or ``"world"``;
        all others are under "More".
    question : str
        What the run is to answer; shown above everything.
    title : str
        Heading.
    first : str, optional
        Figure in front, by the title of its tab, such as ``"Timeline"``; default: the first.

    Raises
    ------
    ValueError
        If a name in `controls` is no field, or no tab is called `first`.

    Notes
    -----
    Running the cell again closes the panel it showed before and stops its job.
    """

    def __init__(
        self,
        experiment: Experiment | None = None,
        controls: Sequence[str] = ("workers", "steps", "lr"),
        question: str = "",
        title: str = "Train",
        first: str = "",
    ) -> None:
        experiment = experiment or Experiment()
        self.job: Job | None = None
        self.runs: list[Run] = []
        self._guard, self._watch, self._busy, self._has_facts = RLock(), None, False, False
        self._controls = Controls(experiment, self._check)
        self._board, self._status = Board(experiment), Status(experiment)
        self._build_buttons()
        names = tuple(self._controls.path_of(name) or name for name in controls)
        head = first_screen(self._controls, names, question, title, (self._run, self._stop, self._clear))
        progress = widgets.Box([self._status.bar, self._status.words, self._says]).add_class("dlpar-progress")
        self._tabs = Tabs(self._board.plots, first)
        self._more_box = more(
            self._controls, names, {"Log": self._status.log, "Recordings": self._recordings}
        )
        self._more_box.observe(self._recordings.look, names="selected_index")
        told = [Offer(self._controls), progress, self._meanwhile, self._status.facts]
        super().__init__([*head, *told, self._tabs, self._more_box])
        self.add_class("dlpar-panel")
        for widget in [*all_below(self), *self._board.all_plots]:
            answer_while_busy(widget)
        take_place_of_earlier(self)

    @property
    def experiment(self) -> Experiment:
        """What the controls say now; raises `BadExperiment` if that cannot be run."""
        return self._controls.experiment()

    @property
    def running(self) -> bool:
        """Whether a job of this panel goes on."""
        return self._busy

    def run(self) -> Job:
        """Do what Run does, and return the job.

        Raises
        ------
        BadExperiment
            If the controls say something impossible.
        RuntimeError
            If a job of this panel still goes on.
        """
        with self._guard:
            self._refuse_if_busy()
            experiment = self.experiment
            self._meanwhile.pressed()
            self.job = job = dlpar.launch(experiment)
            self.runs.insert(0, job.run)
            self._status.prefix = ""
            self._follow(Watch(job.run.path, self), experiment, job.run)
            self._message(warning(experiment))
        self._board.flush()
        return job

    def replay(self, run: Run | str, speed: float = 1.0) -> None:
        """Play a recorded run back, marked as a recording; Stop ends it.

        Parameters
        ----------
        run : Run or str
            One that has ended, or its id.
        speed : float, default 1
            Seconds of the run's clock in a second.

        Raises
        ------
        NoSuchRun
            If there is none of that id.
        ValueError
            For a speed below 0.001 or above 1000, or a run that still goes on.
        RuntimeError
            If a job of this panel still goes on.
        """
        with self._guard:
            self._refuse_if_busy()
            run = run if isinstance(run, Run) else Run(run)
            replay = Replay(run, self, speed)
            self.job, self._status.prefix = None, f"Recording of {run.id}, at {speed:g} times its speed: "
            self._follow(replay, run.experiment, run)
            self._message("")
        self._board.flush()

    def _refuse_if_busy(self) -> None:
        if self._busy:
            what = f"run {self.job.run.id}" if self.job else "a recording"
            raise RuntimeError(f"panel: {what} still goes on; stop it first")

    def _follow(self, watch: Watch | Replay, experiment: Experiment, run: Run) -> None:
        self._busy, self._watch = True, watch
        self._board.begin(experiment, run.id)
        self._tabs.show(self._board.plots)
        self._status.begin(experiment, run.path)
        self._tell_facts()
        self._enable()
        watch.start()

    def stop(self) -> None:
        """Do what Stop does; nothing happens if no job goes on."""
        if not self._busy:
            return
        self._stop.disabled = True
        if self.job:
            self._status.say("Stopping …")
            return self.job.stop()
        self._watch.cancel()  # a recording
        self.ended("stopped", "stopped by its owner")

    def leave(self) -> None:
        """Stop, and wait until the figures know."""
        self.stop()
        if self._watch:
            self._watch.join(5)

    def choose(self, field: str, value: Any) -> None:
        """Set a control, by its path, such as ``"cluster.world"``."""
        self._controls.widgets[field].value = value

    def clear_earlier(self) -> None:
        """Take earlier runs out of the figure; their folders stay."""
        self._board.forget_earlier()
        self._tell_facts()
        self._enable()

    def close(self) -> None:
        """Stop the job, if one goes on, and take the panel off the page."""
        self.stop()
        if self._watch:
            self._watch.cancel()
        for widget in [*all_below(self), *self._board.all_plots]:
            if widget is not self:
                widget.close()
        super().close()

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Called by the watch with every record."""
        if source == "job":
            if record["k"] == "queued":
                self._status.queued(record["ahead"], record["paused"])
                self._meanwhile.queued()
            else:
                self._meanwhile.over()
            return
        rank = int(source[5:])
        if record["k"] == "error":
            self._status.errors[rank] = record
        elif record["k"] == "event" and record.get("launch_s") is not None:
            self._status.launch_s = record["launch_s"]
        self._board.take(rank, record)
        self._has_facts = self._has_facts or record["k"] == "rank" or bool(record.get("slip"))

    def refresh(self, alive: bool) -> None:
        """Called by the watch, at most ten times a second, to show what it passed on."""
        self._board.settle(ended=False)
        self._board.flush(alive)
        self._tell_new_facts()
        self._status.progress(self._board.steps)
        self._meanwhile.look()

    def ended(self, status: str, reason: str) -> None:
        """Called by the watch when the run is over."""
        self._board.settle(ended=True)
        self._board.flush()
        self._tell_new_facts()
        self._status.ended(self._board.steps, self._board.accuracy, status, reason)
        self._meanwhile.over()
        with self._guard:
            self._busy = False
            self._enable()
        if status == "failed":
            self._more_box.selected_index = LOG
        elif self._more_box.selected_index == RECORDINGS:  # the run that has ended is one
            self._recordings.look()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        prepare_in_background()
        return super()._repr_mimebundle_(**kwargs)

    def _build_buttons(self) -> None:
        self._run = button("Run", "play", "Start the ranks", lambda: self._pressed(self.run))
        self._run.button_style = "primary"
        self._stop = button("Stop", "stop", "End the job and all its ranks", lambda: self._beside(self.stop))
        clear = "Take the faint curves away"
        self._clear = button("Clear earlier runs", "eraser", clear, lambda: self._pressed(self.clear_earlier))
        self._stop.disabled = self._clear.disabled = True
        self._meanwhile = Meanwhile(self, self._beside)
        self._recordings = Recordings(lambda run, speed: self._pressed(lambda: self.replay(run, speed)))
        self._says = widgets.HTML().add_class("dlpar-message")

    def _beside(self, action: Any) -> None:
        """Ending a job takes a moment, in which the page must still be answered."""
        Thread(target=self._pressed, args=(action,), daemon=True).start()

    def _pressed(self, action: Any) -> None:
        try:
            action()
        except Exception as error:  # a callback must not raise: nobody would see it
            self._message(
                str(error) if isinstance(error, BadExperiment) else f"{type(error).__name__}: {error}"
            )

    def _check(self) -> None:
        try:
            self.experiment
        except BadExperiment as error:
            self._message(str(error))
            self._run.disabled = True
        else:
            self._message(warning(self.experiment))
            self._enable()

    def _enable(self) -> None:
        self._run.disabled, self._stop.disabled = self._busy, not self._busy
        self._clear.disabled = len(self._board.shown) < 2
        self._recordings.allow(not self._busy)

    def _message(self, sentence: str) -> None:
        self._says.value = f'<p role="alert">{html.escape(sentence)}</p>' if sentence else ""

    def _tell_new_facts(self) -> None:
        if self._has_facts:
            self._has_facts = False
            self._tell_facts()

    def _tell_facts(self) -> None:
        board = self._board
        now, *earlier = board.shown.values()
        same = [e for e in earlier if same_batches(now, e)]
        compared = "all saw the same batches" if earlier and len(same) == len(earlier) else ""
        self._status.show_facts(now, board.ranks, board.slip, compared)


def warning(experiment: Experiment) -> str:
    """That workers cannot agree, that it takes long; empty where there is nothing to say."""
    return " ".join(filter(None, (disagreement(experiment), foreseen(experiment))))


class Tabs(widgets.Tab):
    """Figures by name, one in front: at the beginning `first`, or the first of them; ValueError if it is none."""

    def __init__(self, plots: dict[str, widgets.Widget], first: str = "") -> None:
        if first and first not in plots:
            raise ValueError(f"first: got {first!r}, allowed is one of {', '.join(plots)}")
        super().__init__()
        self._first = first
        self.show(plots)

    def show(self, plots: dict[str, widgets.Widget]) -> None:
        """Show these; the one in front stays there if it can."""
        if self.titles == tuple(plots):
            return
        front = self.titles[self.selected_index] if self.selected_index is not None else self._first
        self.selected_index = None
        self.children = tuple(plots.values())
        self.titles = tuple(
            plots
        )  # in a message of its own: the page forgets titles that come with the children
        self.selected_index = list(plots).index(front) if front in plots else 0


PATIENCE = 12.0
"""Seconds after Run until something else is offered to who waits in the queue: less than 15 on a busy machine, too."""

LONGEST = 30.0
"""Seconds that the recording takes: a run whose clock went on for longer is played back faster."""


class Meanwhile(widgets.HBox):
    """Two buttons, shown to who still waits in the queue `PATIENCE` seconds after Run.

    Parameters
    ----------
    panel : Panel
        Whose job waits.
    do : callable
        Does what it is given on another thread: leaving the queue takes a moment.
    """

    def __init__(self, panel: Panel, do: Callable[[Callable[[], None]], None]) -> None:
        self._panel, self._pressed, self._waits = panel, 0.0, False
        simulate = "Leave the queue; run the same in the simulated world, where nobody waits"
        recording = "Leave the queue; play back your newest run of this kind"
        super().__init__(
            [
                widgets.Label("Rather than wait:"),
                button("Simulate it now", "forward", simulate, lambda: do(self._simulate)),
                button("Watch a recording", "film", recording, lambda: do(self._play)),
            ]
        )
        self.over()

    def pressed(self) -> None:
        """A job is on its way."""
        self._pressed = time.monotonic()

    def queued(self) -> None:
        """It waits; the offer comes in a while."""
        self._waits = True

    def look(self) -> None:
        """Called every now and then: show the offer when it is time."""
        if self._waits and time.monotonic() - self._pressed >= PATIENCE and self.layout.display == "none":
            self.layout.display = None

    def over(self) -> None:
        """It waits no more."""
        self._waits, self.layout.display = False, "none"

    def _simulate(self) -> None:
        self._panel.leave()
        self._panel.choose("cluster.world", "simulated")
        self._panel.run()

    def _play(self) -> None:
        like = newest_like(self._panel.experiment)
        if like is None:
            raise LookupError("you have no recording of a run of this kind yet")
        seconds = float(like.curve["seconds"].iloc[-1])
        speed = min(AT_MOST, max(1.0, math.ceil(seconds / LONGEST)))
        self._panel.leave()
        self._panel.replay(like, speed)


MESSAGES_A_SECOND = {"sizes": 300_000, "values": 30_000}
"""That one core simulates, a little below what ``make bench`` finds; with values the mathematics comes on top."""

LONG = 10.0
"""Seconds from which there is a word."""


def foreseen(experiment: Experiment) -> str:
    """How many messages a simulation has to pass on, and how long that takes; empty if not long, or not known."""
    if experiment.cluster.world != "simulated":
        return ""
    count = messages(experiment)
    seconds = (count or 0) / MESSAGES_A_SECOND[experiment.cluster.messages]
    if seconds < LONG:
        return ""
    rounded = round(seconds, -1) if seconds < 120 else round(seconds / 60) * 60
    time = f"{rounded:.0f} s" if rounded < 120 else f"{rounded / 60:,.0f} min"
    return f"This simulation passes on about {count / 1e6:,.1f} million messages: some {time}."


def messages(experiment: Experiment) -> int | None:
    """Messages of a whole run of replicas that are not split; None for schemes whose messages nobody counts here."""
    from dlpar.theory.step import period

    a_step = {"ring": _allreduce, "mapreduce": _mapreduce, "ps": _servers, "gossip": _gossip}
    if experiment.split.kind != "data" or experiment.sync.scheme not in a_step:
        return None
    count = a_step[experiment.sync.scheme](experiment)
    return count and count * experiment.steps // period(experiment)


def _allreduce(experiment: Experiment) -> int:
    from dlpar.theory import buckets, closed_form, sizes
    from dlpar.worlds.platforms import workload

    n, sync, big = experiment.workers, experiment.sync, experiment.cluster.stand_in_for
    if big and experiment.cluster.messages == "sizes":
        bytes_of = [4 * layer.parameters for layer in workload(big).layers]
    else:
        itemsize = 8 if experiment.dtype == "float64" else 4
        bytes_of = [tensor.elements * itemsize for tensor in sizes(experiment).tensors]
    cut = len(buckets(bytes_of, sync.bucket_mb * 1e6))
    if experiment.compression.codec != "none":
        return cut * n * (n - 1)  # each code goes once around
    name = "ring" if sync.allreduce == "library" else sync.allreduce
    return cut * closed_form(name, n, 0, 4, group=sync.node_size).messages


def _mapreduce(experiment: Experiment) -> int:
    return 2 * (experiment.workers - 1)


def _servers(experiment: Experiment) -> int:
    sync, n = experiment.sync, experiment.workers
    a_push = 2 if sync.pull == "reply" else 3
    return a_push * (n + sync.groups * sync.servers if sync.groups else n * sync.servers)


def _gossip(experiment: Experiment) -> int | None:
    from dlpar.graphs import neighbours

    sync, n = experiment.sync, experiment.workers
    if sync.exchange == "neighbours":
        return sum(map(len, neighbours(sync, n, experiment.seed)))
    return n * sync.peers if sync.exchange == "random" else None
