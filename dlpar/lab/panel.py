"""The panel of a lab: set an experiment, run it, watch it, compare it with the last."""

from __future__ import annotations

import html
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, Sequence

import ipywidgets as widgets

import dlpar
from dlpar.experiment import Experiment
from dlpar.lab.board import Board
from dlpar.lab.cell import all_below, prepare_in_background, take_place_of_earlier
from dlpar.lab.controls import Controls
from dlpar.lab.labels import same_batches
from dlpar.lab.live.consensus import disagreement
from dlpar.lab.live_plot import answer_while_busy
from dlpar.lab.long_simulation import foreseen
from dlpar.lab.status import Status
from dlpar.lab.watch import Watch
from dlpar.schema import BadExperiment

if TYPE_CHECKING:
    from dlpar.launcher.job import Job
    from dlpar.run import Run

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

    Raises
    ------
    ValueError
        If a name in `controls` is no field.

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
    ) -> None:
        experiment = experiment or Experiment()
        self.job: Job | None = None
        self.runs: list[Run] = []
        self._guard, self._watch, self._busy, self._has_facts = RLock(), None, False, False
        self._controls = Controls(experiment, self._check)
        self._board, self._status = Board(experiment), Status(experiment)
        self._build_buttons()
        names = tuple(self._controls.path_of(name) or name for name in controls)
        super().__init__([*self._first_screen(names, question, title), self._more(names)])
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
            if self._busy:
                raise RuntimeError(f"panel: run {self.job.run.id} still goes on; stop it first")
            experiment = self.experiment
            job = dlpar.launch(experiment)
            self.job, self._busy = job, True
            self.runs.insert(0, job.run)
            self._board.begin(experiment, job.run.id)
            self._show_tabs()
            self._status.begin(experiment, job.run.path)
            self._tell_facts()
            self._message(_to_be_known(experiment))
            self._enable()
            self._watch = Watch(job.run.path, self)
            self._watch.start()
        self._board.flush()
        return job

    def stop(self) -> None:
        """Do what Stop does; nothing happens if no job goes on."""
        job = self.job
        if job is not None and self._busy:
            self._stop.disabled = True
            self._status.say("Stopping …")
            job.stop()

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

    def ended(self, status: str, reason: str) -> None:
        """Called by the watch when the run is over."""
        self._board.settle(ended=True)
        self._board.flush()
        self._tell_new_facts()
        self._status.ended(self._board.steps, self._board.accuracy, status, reason)
        with self._guard:
            self._busy = False
            self._enable()
        if status == "failed":
            self._more_box.selected_index = 1

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        prepare_in_background()
        return super()._repr_mimebundle_(**kwargs)

    def _build_buttons(self) -> None:
        self._run = widgets.Button(
            description="Run", icon="play", button_style="primary", tooltip="Start the ranks"
        )
        self._stop = widgets.Button(
            description="Stop", icon="stop", tooltip="End the job and all its ranks", disabled=True
        )
        self._clear = widgets.Button(
            description="Clear earlier runs",
            icon="eraser",
            tooltip="Take the faint curves away",
            disabled=True,
        )
        self._run.on_click(lambda _button: self._pressed(self.run))
        # Ending a job takes a moment, in which the page must still be answered.
        self._stop.on_click(
            lambda _button: Thread(target=self._pressed, args=(self.stop,), daemon=True).start()
        )
        self._clear.on_click(lambda _button: self._pressed(self.clear_earlier))
        self._says = widgets.HTML().add_class("dlpar-message")

    def _first_screen(self, names: tuple[str, ...], question: str, title: str) -> list[widgets.Widget]:
        unknown = [name for name in names if name not in self._controls.widgets]
        if unknown:
            fields = ", ".join(self._controls.widgets)
            raise ValueError(f"controls: got {unknown[0]!r}, allowed are {fields}")
        asked = f"<p>{html.escape(question)}</p>" if question else ""
        head = widgets.HTML(f"<h3>{html.escape(title)}</h3>{asked}").add_class("dlpar-head")
        chosen = [self._controls.widgets[name] for name in names]
        for widget in chosen:
            widget.style.description_width, widget.layout.width = "initial", "auto"
        first = widgets.Box([*chosen, self._run, self._stop, self._clear]).add_class("dlpar-controls")
        progress = widgets.Box([self._status.bar, self._status.words, self._says]).add_class("dlpar-progress")
        self._tabs = widgets.Tab()
        self._show_tabs()
        return [head, first, progress, self._status.facts, self._tabs]

    def _show_tabs(self) -> None:
        """A tab for each figure of the board; the one in front stays there if it can."""
        plots, tabs = self._board.plots, self._tabs
        if tabs.titles == tuple(plots):
            return
        front = tabs.titles[tabs.selected_index] if tabs.selected_index is not None else ""
        tabs.selected_index = None
        tabs.children = tuple(plots.values())
        tabs.titles = tuple(plots)  # in a message of its own: the page forgets titles that come with the children
        tabs.selected_index = list(plots).index(front) if front in plots else 0

    def _more(self, shown: tuple[str, ...]) -> widgets.Accordion:
        groups = [
            widgets.VBox([widgets.HTML(f"<h4>{name}</h4>"), widgets.Box(found).add_class("dlpar-fields")])
            for name, found in self._controls.groups(shown).items()
        ]
        titles = ("More settings", "Log")
        self._more_box = widgets.Accordion([widgets.VBox(groups), self._status.log], titles=titles)
        return self._more_box

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
            self._message(_to_be_known(self.experiment))
            self._enable()

    def _enable(self) -> None:
        self._run.disabled, self._stop.disabled = self._busy, not self._busy
        self._clear.disabled = len(self._board.shown) < 2

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


def _to_be_known(experiment: Experiment) -> str:
    """What a student should know of an experiment before it is run: that workers cannot agree, that it takes long."""
    return " ".join(filter(None, (disagreement(experiment), foreseen(experiment))))
