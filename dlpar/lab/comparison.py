"""Several experiments run one after the other, in one figure and one table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.captions import quantity
from dlpar.lab.cell import all_below, prepare_in_background, take_place_of_earlier
from dlpar.lab.figures.training import X_AXES, of_one_kind
from dlpar.lab.labels import consistency, labels, scheme, with_world
from dlpar.lab.live.convergence import RunCurve, ends, grow, layout, x_axes
from dlpar.lab.live_plot import LivePlot, answer_while_busy
from dlpar.lab.status import Status
from dlpar.lab.watch import Watch

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.jobs.launch import Job


class Comparison(widgets.VBox):
    """Run and Stop, one figure and one table; made by :func:`compare`.

    Attributes
    ----------
    runs : list of Run
        Those started so far, in order.
    """

    def __init__(
        self, experiments: list[Experiment], titles: list[str], question: str, x: str, goal: float
    ) -> None:
        self.experiments, self.titles, self.runs = experiments, titles, []
        self.job: Job | None = None
        self._guard, self._over, self._stopped = RLock(), Event(), False
        self._over.set()
        self._complaint = ""
        self._watch: Watch | None = None
        self._figure, self._scores = (
            ComparisonFigure(experiments, titles, X_AXES[x]),
            Scores(experiments, titles, goal),
        )
        self._status = Status(experiments[0])
        self._table = widgets.HTML(self._scores.html())
        self._says = widgets.HTML().add_class("dlpar-message")
        super().__init__(self._layout(question))
        self.add_class("dlpar-panel")
        for widget in all_below(self):
            answer_while_busy(widget)
        take_place_of_earlier(self)

    @property
    def running(self) -> bool:
        """Whether a run goes on."""
        return not self._over.is_set()

    @property
    def table(self) -> pd.DataFrame:
        """One row a run, in numbers; its columns have units."""
        import pandas as pd

        return pd.DataFrame(self._scores.rows, columns=self._scores.columns)

    def run(self) -> Comparison:
        """Do what Run does and return at once; RuntimeError if the comparison still goes on."""
        with self._guard:
            if self.running:
                raise RuntimeError(
                    f"comparison: {self.titles[len(self.runs) - 1]} still goes on; stop it first"
                )
            self._over.clear()
            self._stopped, self.runs, self._complaint = False, [], ""
            self._figure.clear()
            self._scores = Scores(self.experiments, self.titles, self._scores.goal)
            self._enable()
            try:
                self._next()
            except BaseException:
                self._finish()
                raise
        return self

    def wait(self, timeout: float = 600.0) -> list[Run]:
        """Wait until all runs are done.

        Parameters
        ----------
        timeout : float
            Seconds.

        Raises
        ------
        TimeoutError
            If they still go on after that; they go on.
        JobFailed
            If one failed or was stopped.
        """
        from dlpar.jobs.launch import JobFailed

        if not self._over.wait(timeout):
            raise TimeoutError(f"the comparison is still going on after {timeout:g} s")
        bad = next((n for n, run in enumerate(self.runs) if run.status != "done"), None)
        if bad is not None:
            raise JobFailed(f"{self.titles[bad]}: {self.runs[bad].reason or self.runs[bad].status}")
        if len(self.runs) < len(self.experiments):
            why = self._complaint or "the comparison was stopped before"
            raise JobFailed(f"{self.titles[len(self.runs)]} was not run: {why}")
        return self.runs

    def stop(self) -> None:
        """Do what Stop does: end the present run, and start no other."""
        with self._guard:
            self._stopped = True
            job = self.job if self.running else None
        if job is not None:
            self._stop.disabled = True
            self._status.say("Stopping …")
            job.stop()

    def close(self) -> None:
        """Stop, and take the comparison off the page."""
        self.stop()
        if self._watch:
            self._watch.cancel()
        self._over.set()
        for widget in all_below(self):
            if widget is not self:
                widget.close()
        super().close()

    # ---- called by the watch -------------------------------------------------

    def take(self, source: str, record: dict[str, Any]) -> None:
        """A record of the present run."""
        if source == "job":
            return
        rank = int(source[5:])
        if record.get("slip") is not None:
            self._slip, self._has_facts = max(self._slip or 0.0, record["slip"]), True
        if record["k"] == "rank":
            self._ranks[rank], self._has_facts = record, True
        elif record["k"] == "error":
            self._status.errors[rank] = record
        else:
            self._figure.take(rank, record)

    def refresh(self, alive: bool) -> None:
        """Show what was taken."""
        self._tell_facts()
        self._figure.settle(ended=False)
        self._figure.plot.flush(alive)
        self._status.progress(self._figure.steps)

    def ended(self, status: str, reason: str) -> None:
        """The present run is over: fill its row, start the next."""
        self._tell_facts()
        self._figure.settle(ended=True)
        self._status.ended(self._figure.steps, self._figure.curve.accuracy, status, reason)
        self._scores.status[len(self.runs) - 1] = status
        try:
            if self._figure.steps.done:
                self._scores.fill(len(self.runs) - 1, self.runs[-1])
            with self._guard:
                if status == "done" and not self._stopped and len(self.runs) < len(self.experiments):
                    return self._next()
        except Exception as error:  # nobody would see it here
            self._complaint = f"{type(error).__name__}: {error}"
            self._says.value = f'<p role="alert">{html.escape(self._complaint)}</p>'
        self._finish()

    def _tell_facts(self) -> None:
        if self._has_facts:
            self._has_facts = False
            self._status.show_facts(self._experiment, self._ranks, self._slip, "")

    # ---- inside --------------------------------------------------------------

    def _next(self) -> None:
        """Start the next run."""
        number = len(self.runs)
        self._experiment, self._ranks = self.experiments[number], {}
        self._slip, self._has_facts = None, True
        self._figure.begin(number)
        self.job = dlpar.launch(self._experiment)
        self.runs.append(self.job.run)
        self._scores.status[number] = "runs now"
        self._table.value = self._scores.html()
        self._status.prefix = f"{number + 1} of {len(self.experiments)}, {self.titles[number]}: "
        self._status.begin(self._experiment, self.job.run.path)
        self._figure.plot.set_live(True)
        self._figure.plot.flush()
        self._watch = Watch(self.job.run.path, self)
        self._watch.start()

    def _finish(self) -> None:
        self._table.value = self._scores.html()
        self._figure.plot.set_live(False)
        self._figure.plot.flush()
        self._over.set()
        self._enable()

    def _layout(self, question: str) -> list[widgets.Widget]:
        asked = f"<p>{html.escape(question)}</p>" if question else ""
        head = widgets.HTML(f"<h3>Compare</h3>{asked}").add_class("dlpar-head")
        self._run = widgets.Button(
            description="Run",
            icon="play",
            button_style="primary",
            tooltip="Run all of them, one after the other",
        )
        self._stop = widgets.Button(
            description="Stop", icon="stop", disabled=True, tooltip="End the present run and start no other"
        )
        self._run.on_click(lambda _button: self._pressed(self.run))
        # Ending a job takes a moment, in which the page must still be answered.
        self._stop.on_click(
            lambda _button: Thread(target=self._pressed, args=(self.stop,), daemon=True).start()
        )
        buttons = widgets.Box([self._run, self._stop]).add_class("dlpar-controls")
        progress = widgets.Box([self._status.bar, self._status.words, self._says]).add_class("dlpar-progress")
        log = widgets.Accordion([self._status.log], titles=("Log",))
        return [head, buttons, progress, self._status.facts, self._figure.plot, self._table, log]

    def _pressed(self, action: Any) -> None:
        self._says.value = ""
        try:
            action()
        except Exception as error:  # a callback must not raise: nobody would see it
            self._says.value = f'<p role="alert">{html.escape(str(error))}</p>'

    def _enable(self) -> None:
        self._run.disabled, self._stop.disabled = self.running, not self.running

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        prepare_in_background()
        return super()._repr_mimebundle_(**kwargs)


def compare(
    experiments: Sequence[Experiment],
    titles: Sequence[str] | None = None,
    question: str = "",
    x: str = "seconds",
    goal: float = 0.95,
) -> Comparison:
    """A panel that runs experiments one after the other and shows them in one figure and one table.

    Nothing runs before Run is pressed or ``.run()`` is called; ``.wait()`` waits for the end.

    Parameters
    ----------
    experiments : sequence of Experiment
        Two or more of one kind of task.
    titles : sequence of str, optional
        What each is called; default: what tells them apart.
    question : str
        What the comparison is to answer.
    x : {"step", "samples", "seconds", "bytes"}
        What the curves are drawn over at first.
    goal : float
        Held-out accuracy the table times, above 0 and at most 1.

    Raises
    ------
    ValueError
        If there are fewer than two, they do not fit into one figure, or titles do not fit to them.
    """
    experiments = [experiments] if isinstance(experiments, Experiment) else list(experiments)
    other = next((each for each in experiments if not isinstance(each, Experiment)), None)
    if other is not None:
        raise ValueError(f"experiments: got {other!r:.60}, allowed are experiments only")
    if len(experiments) < 2:
        raise ValueError(f"experiments: got {len(experiments)}, allowed are two or more")
    of_one_kind(experiments, "experiments")
    sizes = next((e for e in experiments if e.cluster.messages == "sizes"), None)
    if sizes:
        raise ValueError(
            f"experiments: got {sizes} with messages sizes, allowed is values: nothing is trained with "
            f"sizes only, so there is no loss to compare; dlpar.lab.scaling compares speeds"
        )
    if titles is not None and len(titles) != len(experiments):
        raise ValueError(
            f"titles: got {len(titles)}, allowed is one for each of {len(experiments)} experiments"
        )
    if x not in X_AXES:
        raise ValueError(f"x: got {x!r}, allowed is one of {', '.join(X_AXES)}")
    if not 0 < goal <= 1:
        raise ValueError(f"goal: got {goal:g}, allowed is a share above 0 and at most 1")
    return Comparison(experiments, list(titles or labels(experiments)), question, x, goal)


class ComparisonFigure:
    """Curves of `experiments`, one after the other.

    Parameters
    ----------
    experiments : sequence of Experiment
        Of one kind of task.
    titles : sequence of str
        What each is called.
    x : str
        Column of the horizontal axis at first.
    """

    def __init__(self, experiments: Sequence[Experiment], titles: Sequence[str], x: str) -> None:
        self.experiments, self.titles = experiments, titles
        self._reach: dict[str, float] = {}
        for each in map(ends, experiments):
            self._reach |= {name: max(end, self._reach.get(name, 0.0)) for name, end in each.items()}
        axes = x_axes(self._reach, {experiment.cluster.world for experiment in experiments})
        self.plot = LivePlot(layout(experiments[0]), axes, height=430, logarithmic=True)
        self.plot.x = x
        self.plot.say("Not started. Press Run.")
        self.curves: dict[int, RunCurve] = {}
        self._latest: dict[str, float] = {}
        self._room()

    def _room(self) -> None:
        # Without a trace plotly leaves the accuracy's axes out, and the figure would jump at the first point.
        self.plot.add_trace(
            "room", {"yaxis": "y2", "showlegend": False}, ("step", "y"), {"x": "step", "y": "y"}
        )

    def clear(self) -> None:
        """Take all curves away."""
        for number in self.curves:
            for kind in ("loss", "test"):
                self.plot.remove(f"{number} {kind}")
        self.curves.clear()
        self._room()

    def begin(self, number: int) -> None:
        """Start the curve of experiment `number`."""
        if number in self.curves:
            self.plot.remove(f"{number} loss"), self.plot.remove(f"{number} test")
        self.plot.remove("room")
        experiment = self.experiments[number]
        style = theme.beside(theme.scheme_colour(experiment.sync.scheme), number, experiment.cluster.world)
        style["name"] = with_world(self.titles[number], experiment)
        self.curves[number] = RunCurve(self.plot, str(number), experiment, style)
        self.steps = GlobalSteps(experiment.workers, experiment.free_running)
        self.curve = self.curves[number]

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """A record of a step or a test of the present run."""
        if record["k"] == "step":
            self.steps.add(rank, record)
        elif record["k"] == "eval":
            self.curve.test(record, self.steps.last)

    def settle(self, ended: bool) -> None:
        """Bring axes and sentence up to date; `ended`: the present run has."""
        self._all_ended = ended and len(self.curves) == len(self.experiments)
        for done in self.steps.ready(ended):
            self.curve.step(done)
        if ended:
            self.curve.finish(self.steps)
        if self.steps.last:
            top = max(curve.top for curve in self.curves.values())
            self.plot.set_range("yaxis", 0, max(theme.rounded_up(top), 1.0))
            self._latest = grow(self.plot, self._reach, self._latest, self.steps.last, ended)
        self.plot.say(self._sentence())

    def _sentence(self) -> str:
        said = []
        for number, curve in self.curves.items():
            if len(curve.loss):
                loss = f"loss {says.quantity(curve.loss.rows[-1, -1])}"
                tested = "" if curve.accuracy is None else f", accuracy {curve.accuracy:.1%}"
                said.append(f"{self.titles[number]} {loss}{tested}")
        when = "At the end" if self._all_ended else "So far"
        return f"{when}: {'; '.join(said)}." if said else "Starting …"


NONE = "–"

BOTH = "staleness"
"""Mean and maximum of it, as a page shows them."""

MEANINGS = {
    "run": "what is compared",
    "scheme": "how replicas agree",
    "consistency": "how stale a worker may be: bsp not at all, ssp(s) bounded, asp unbounded",
    "steps": "global steps done: N worker-steps each",
    "samples/s": "of all workers together",
    "final loss": "training loss of the last global step",
    "accuracy": "on held-out samples, at the end",
    "staleness mean": "updates between a worker's read and its push, on average",
    "staleness max": "the most updates between a worker's read and its push",
    "lead max": "the most clocks a worker was ahead of the slowest",
    "MB sent": "by all ranks together",
    "waiting (s)": "of a worker, on average",
}
"""Columns, and what each means; one more says when the goal was reached."""


class Scores:
    """Rows of figures by run.

    Parameters
    ----------
    experiments : sequence of Experiment
        What is compared.
    titles : sequence of str
        What each is called.
    goal : float
        Held-out accuracy whose first crossing is timed.
    """

    def __init__(self, experiments: Sequence[Experiment], titles: Sequence[str], goal: float) -> None:
        self.goal, self.timed = goal, f"to {goal:.0%} (s)"
        self.experiments = experiments
        self.rows = [
            {
                "run": title,
                "scheme": scheme(e).split()[0] if e.averaging.method == "none" else scheme(e),
                "consistency": consistency(e),
            }
            for title, e in zip(titles, experiments)
        ]
        self.status = ["not yet run"] * len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Heads of the columns."""
        timed = [] if self.experiments[0].data.name == "diabetes" else [self.timed]
        return [*MEANINGS, *timed]

    def fill(self, number: int, run: Run) -> None:
        """Put the figures of a finished run into row `number`."""
        summary, evals = run.summary, run.evals
        good = evals[evals["accuracy"].astype(float) >= self.goal]
        sent = summary["bytes_sent"]
        self.rows[number] |= {
            "steps": summary["steps"],
            "samples/s": summary["samples_per_s"],
            "final loss": summary["final_loss"],
            "accuracy": summary["accuracy"],
            "staleness mean": summary["staleness"]["mean"],
            "staleness max": summary["staleness"]["max"],
            "lead max": summary["lead"]["max"],
            "MB sent": None if sent is None else sent / 1e6,
            "waiting (s)": summary["seconds"]["wait"],
            self.timed: float(good["t"].iloc[0]) if len(good) else None,
        }
        self.status[number] = run.status

    def html(self) -> str:
        """The table, as a page shows it: mean and maximum in one column, no scheme where the run's name says it."""
        timed = f"seconds until a test on held-out samples gave {self.goal:.0%}"
        said = {**MEANINGS, self.timed: timed, BOTH: MEANINGS["staleness mean"]}
        heads = [(html.escape(said[column]), html.escape(column)) for column in self._shown_columns()]
        head = "".join(f'<th scope="col" title="{means}">{column}</th>' for means, column in heads)
        body = "".join(f"<tr>{self._row(number)}</tr>" for number in range(len(self.rows)))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="dlpar-data dlpar-scores">{table}</div>'

    def _shown_columns(self) -> list[str]:
        named = all(row["run"].startswith(row["scheme"]) for row in self.rows)
        hidden = {"staleness max", *(["scheme"] if named else [])}
        return [BOTH if c == "staleness mean" else c for c in self.columns if c not in hidden]

    def _row(self, number: int) -> str:
        row, status = self.rows[number], self.status[number]
        first, *others = self._shown_columns()
        row = row | {BOTH: _both(row.get("staleness mean"), row.get("staleness max"))}
        cells = [f'<th scope="row">{html.escape(row[first])}</th>']
        if "steps" not in row:
            known = others[: others.index("steps")]
            cells += [f"<td>{html.escape(row[c])}</td>" for c in known]
            return "".join(cells) + f'<td colspan="{len(others) - len(known)}">{html.escape(status)}</td>'
        shown = [_shown(column, row.get(column)) for column in others]
        if status != "done":
            shown[others.index("steps")] += f" ({status})"
        return "".join(cells) + "".join(f"<td>{html.escape(text)}</td>" for text in shown)


def _both(mean: float | None, most: int | None) -> str:
    return NONE if mean is None else "0" if not most else f"{quantity(mean)}, at most {most:,}"


def _shown(column: str, value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    if column == "accuracy":
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else quantity(value)
