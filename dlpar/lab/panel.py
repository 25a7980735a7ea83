"""The panel of a lab: set an experiment, run it, watch it, compare it with the last."""

from __future__ import annotations

import html
from collections.abc import Sequence
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

import dlpar
from dlpar.experiment import Experiment
from dlpar.lab.board import Board
from dlpar.lab.cell import all_below, prepare_in_background, take_place_of_earlier
from dlpar.lab.controls import Controls
from dlpar.lab.face import button, first_screen, more
from dlpar.lab.labels import same_batches
from dlpar.lab.live_plot import answer_while_busy
from dlpar.lab.meanwhile import Meanwhile
from dlpar.lab.offer import Offer
from dlpar.lab.recordings import Recordings
from dlpar.lab.replay import Replay
from dlpar.lab.status import Status
from dlpar.lab.tabs import Tabs
from dlpar.lab.warned import warning
from dlpar.lab.watch import Watch
from dlpar.run import Run
from dlpar.schema import BadExperiment

if TYPE_CHECKING:
    from dlpar.launcher.job import Job


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
