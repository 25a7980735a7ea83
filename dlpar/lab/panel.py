"""The panel of a lab: set an experiment, run it, watch it, compare it with the last run."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.graphs import neighbours
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab.board import Board
from dlpar.lab.cell import JobWidget, all_below, button
from dlpar.lab.controls import Controls, first_screen, more
from dlpar.lab.labels import has_peers, same_batches
from dlpar.lab.live.consensus import disagreement
from dlpar.lab.offer_widget import Offer
from dlpar.lab.recordings import Meanwhile, Recordings
from dlpar.lab.status import Status
from dlpar.lab.watch import Replay, Watch
from dlpar.theory import buckets, closed_form, sizes
from dlpar.theory.step import period
from dlpar.worlds.platforms import workload

if TYPE_CHECKING:
    from dlpar.jobs.launch import Job


LOG, RECORDINGS = 1, 2
"""Sections of "More"; section 0 has all other settings."""


class Panel(JobWidget):
    """Controls, Run and Stop, and the live figures of a run.

    Parameters
    ----------
    experiment : Experiment, optional
        Settings of the controls at first; default: ``Experiment()``.
    controls : sequence of str, default ("workers", "steps", "lr")
        Fields on the first screen, such as ``"workers"``, ``"model.width"`` or ``"world"``;
        all others are under "More".
    question : str, default ""
        Question that the run answers; shown above everything.
    title : str, default "Train"
        Heading.
    first : str, optional
        Figure in front, by the title of its tab, such as ``"Timeline"``; default: the first.

    Raises
    ------
    ValueError
        If a name in `controls` is no field, or no tab is called `first`.

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
    ) -> None:
        super().__init__()
        experiment = experiment or Experiment()
        self.job: Job | None = None
        self.runs: list[Run] = []
        self._guard, self._watch, self._busy, self._has_facts = RLock(), None, False, False
        self._controls = Controls(experiment, self._check)
        self._board, self._status = Board(experiment), Status(experiment)
        self._build_buttons()
        names = tuple(self._controls.path_of(name) or name for name in controls)
        head = first_screen(self._controls, names, question, title, (self._run, self._stop, self._clear))
        self._tabs = Tabs(self._board.plots, first)
        sections = {"Log": self._status.log, "Recordings": self._recordings}
        self._more_box = more(self._controls, names, sections)
        self._more_box.observe(self._recordings.look, names="selected_index")
        progress = self._status.progress_line(self._alert)
        below = [Offer(self._controls), progress, self._meanwhile, self._status.facts]
        self._fill([*head, *below, self._tabs, self._more_box])

    @property
    def experiment(self) -> Experiment:
        """Experiment that the controls describe; raises `BadExperiment` if it cannot be run."""
        return self._controls.experiment()

    @property
    def running(self) -> bool:
        """Return whether a job of this panel is running."""
        return self._busy

    def run(self) -> Job:
        """Do what the Run button does, and return the job.

        Raises
        ------
        BadExperiment
            If the settings are impossible.
        RuntimeError
            If a job of this panel is still running.
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
            task = f"run {self.job.run.id}" if self.job else "a recording"
            raise RuntimeError(f"panel: {task} is still running; stop it first")

    def _follow(self, watch: Watch | Replay, experiment: Experiment, run: Run) -> None:
        self._busy, self._watch = True, watch
        self._board.begin(experiment, run.id)
        self._tabs.show(self._board.plots)
        self._status.begin(experiment, run.path)
        self._show_facts()
        self._enable()
        watch.start()

    def stop(self) -> None:
        """Do what the Stop button does; nothing happens if no job is running."""
        if not self._busy:
            return
        self._stop.disabled = True
        if self.job:
            self._status.show("Stopping …")
            return self.job.stop()
        self._watch.cancel()  # a recording
        self.ended("stopped", "stopped by its owner")

    def leave(self) -> None:
        """Stop, and wait until the figures have ended."""
        self.stop()
        if self._watch:
            self._watch.join(5)

    def choose(self, field: str, value: Any) -> None:
        """Set a control, by its path, such as ``"cluster.world"``."""
        self._controls.widgets[field].value = value

    def clear_earlier(self) -> None:
        """Remove earlier runs from the figure; their folders stay."""
        self._board.forget_earlier()
        self._show_facts()
        self._enable()

    def close(self) -> None:
        """Stop the job, if one is running, and remove the panel from the page."""
        self.stop()
        if self._watch:
            self._watch.cancel()
        super().close()

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Take a record; called by the watch."""
        if source == "job":
            if record["k"] == "queued":
                self._status.queued(record["ahead"], record["paused"])
                self._meanwhile.queued()
            else:
                self._meanwhile.over()
            return
        rank = rank_of(source)
        if record["k"] == "error":
            self._status.errors[rank] = record
        elif record["k"] == "event" and record.get("launch_s") is not None:
            self._status.launch_s = record["launch_s"]
        self._board.take(rank, record)
        self._has_facts = self._has_facts or record["k"] == "rank" or bool(record.get("slip"))

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far; called by the watch, at most ten times a second."""
        self._board.settle(ended=False)
        self._board.flush(alive)
        self._show_new_facts()
        self._status.progress(self._board.steps)
        self._meanwhile.look()

    def ended(self, status: str, reason: str) -> None:
        """End the run; called by the watch."""
        self._board.settle(ended=True)
        self._board.flush()
        self._show_new_facts()
        self._status.ended(self._board.steps, self._board.accuracy, status, reason)
        self._meanwhile.over()
        with self._guard:
            self._busy = False
            self._enable()
        if status == "failed":
            self._more_box.selected_index = LOG
        elif self._more_box.selected_index == RECORDINGS:  # the run that has ended is one
            self._recordings.look()

    def picture(self) -> Any:
        """The figure in front as a static figure, as it is drawn now."""
        return self._tabs.children[self._tabs.selected_index].picture()

    def _everything(self) -> list[widgets.Widget]:
        return [*all_below(self), *self._board.all_plots]

    def _build_buttons(self) -> None:
        self._run = button("Run", "play", "Start the ranks", lambda: self._pressed(self.run))
        self._run.button_style = "primary"
        self._stop = button("Stop", "stop", "End the job and all its ranks", lambda: self._beside(self.stop))
        clear = "Remove the faint curves"
        self._clear = button("Clear earlier runs", "eraser", clear, lambda: self._pressed(self.clear_earlier))
        self._stop.disabled = self._clear.disabled = True
        self._meanwhile = Meanwhile(self, self._beside)
        self._recordings = Recordings(lambda run, speed: self._pressed(lambda: self.replay(run, speed)))

    def _check(self) -> None:
        try:
            experiment = self.experiment
        except BadExperiment as error:
            self._message(str(error))
            self._run.disabled = True
        else:
            self._message(warning(experiment))
            self._enable()

    def _enable(self) -> None:
        self._run.disabled, self._stop.disabled = self._busy, not self._busy
        self._clear.disabled = len(self._board.shown) < 2
        self._recordings.allow(not self._busy)

    def _show_new_facts(self) -> None:
        if self._has_facts:
            self._has_facts = False
            self._show_facts()

    def _show_facts(self) -> None:
        board = self._board
        now, *earlier = board.shown.values()
        same = [e for e in earlier if same_batches(now, e)]
        compared = "all saw the same batches" if earlier and len(same) == len(earlier) else ""
        self._status.show_facts(now, board.ranks, board.slip, compared)


class Tabs(widgets.Tab):
    """Figures by their titles, with `first` in front; raises ValueError if no figure has that title."""

    def __init__(self, plots: dict[str, widgets.Widget], first: str = "") -> None:
        if first and first not in plots:
            raise ValueError(f"first: got {first!r}, allowed is one of {', '.join(plots)}")
        super().__init__()
        self._first = first
        self.show(plots)

    def show(self, plots: dict[str, widgets.Widget]) -> None:
        """Show these figures; the one in front stays there if it is among them."""
        if self.titles == tuple(plots):
            return
        front = self.titles[self.selected_index] if self.selected_index is not None else self._first
        self.selected_index = None
        self.children = tuple(plots.values())
        # In a separate message, because the page forgets titles that come with the children.
        self.titles = tuple(plots)
        self.selected_index = list(plots).index(front) if front in plots else 0


def warning(experiment: Experiment) -> str:
    """Warning of workers that cannot agree and of a long simulation; empty if neither applies."""
    return " ".join(filter(None, (disagreement(experiment), foreseen(experiment))))


MESSAGES_A_SECOND = {"sizes": 300_000, "values": 30_000}
"""Messages that one core simulates, a little below what ``make bench`` measures; mathematics is not included."""

LONG = 10.0
"""Seconds from which a simulation is called long."""


def foreseen(experiment: Experiment) -> str:
    """Number of messages and duration of a long simulation; empty if it is short, or if neither is known."""
    if experiment.cluster.world != "simulated":
        return ""
    count = messages(experiment)
    seconds = (count or 0) / MESSAGES_A_SECOND[experiment.cluster.messages]
    if seconds < LONG:
        return ""
    rounded = round(seconds, -1) if seconds < 120 else round(seconds / 60) * 60
    time = f"{rounded:.0f} s" if rounded < 120 else f"{rounded / 60:,.0f} min"
    return f"This simulation sends about {count / 1e6:,.1f} million messages and takes about {time}."


def messages(experiment: Experiment) -> int | None:
    """Number of messages of a whole run; None for split replicas and for schemes without a count."""
    sync = experiment.sync
    if experiment.split.kind != "data":
        return None
    if hasattr(sync, "allreduce"):
        count = _of_allreduce(experiment)
    elif sync.server_ranks:
        count = _of_servers(experiment)
    elif has_peers(sync):
        count = _of_graph(experiment)
    elif hasattr(sync, "depth"):  # down and up a tree
        count = 2 * (experiment.workers - 1)
    else:
        return None
    return count and count * experiment.steps // period(experiment)


def _of_allreduce(experiment: Experiment) -> int:
    n, sync, big = experiment.workers, experiment.sync, experiment.cluster.stand_in_for
    model = workload(big) if big and experiment.cluster.messages == "sizes" else sizes(experiment)
    bytes_of = [model.itemsize * layer.parameters for layer in model.layers]
    cut = len(buckets(bytes_of, sync.bucket_mb * 1e6))
    if experiment.compression.codec != "none":
        return cut * n * (n - 1)  # each code goes once around
    name = "ring" if sync.allreduce == "library" else sync.allreduce
    return cut * closed_form(name, n, 0, 4, group=sync.node_size).messages


def _of_servers(experiment: Experiment) -> int:
    sync, n = experiment.sync, experiment.workers
    a_push = 2 if sync.pull == "reply" else 3
    return a_push * (n + sync.groups * sync.servers if sync.groups else n * sync.servers)


def _of_graph(experiment: Experiment) -> int | None:
    sync, n = experiment.sync, experiment.workers
    if sync.exchange == "neighbours":
        return sum(map(len, neighbours(sync, n, experiment.seed)))
    return n * sync.peers if sync.exchange == "random" else None
