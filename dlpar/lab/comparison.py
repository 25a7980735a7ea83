"""Several experiments run one after the other, in one figure and one table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from threading import Event, RLock
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.jobs.tail import rank_of
from dlpar.lab import theme
from dlpar.lab.captions import quantity
from dlpar.lab.cell import JobWidget, button, heading
from dlpar.lab.figures.training import X_AXES, check_goal, first_at, of_one_kind
from dlpar.lab.labels import consistency, labels, scheme, with_world
from dlpar.lab.live.convergence import CurvePlot, RunCurve, ends, is_regression, joint
from dlpar.lab.status import Status
from dlpar.lab.watch import Watch

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.jobs.launch import Job


class Comparison(JobWidget):
    """Run and Stop, one figure and one table; made by :func:`compare`.

    Attributes
    ----------
    runs : list of Run
        Runs started so far, in order.
    """

    def __init__(
        self, experiments: list[Experiment], titles: list[str], question: str, x: str, goal: float
    ) -> None:
        super().__init__()
        self.experiments, self.titles, self.runs = experiments, titles, []
        self.job: Job | None = None
        self._guard, self._over, self._stopped = RLock(), Event(), False
        self._over.set()
        self._complaint = ""
        self._watch: Watch | None = None
        self._figure = ComparisonFigure(experiments, titles, X_AXES[x])
        self._scores = Scores(experiments, titles, goal)
        self._status = Status(experiments[0])
        self._table = widgets.HTML(self._scores.html())
        run, stop = "Run all of them, one after the other", "End the current run and start no other"
        self._run = button("Run", "play", run, lambda: self._try(self.run))
        self._run.button_style = "primary"
        self._stop = button("Stop", "stop", stop, lambda: self._beside(self.stop))
        self._stop.disabled = True
        buttons = widgets.Box([self._run, self._stop]).add_class("dlpar-controls")
        log = widgets.Accordion([self._status.log], titles=("Log",))
        progress, facts = self._status.progress_line(self._alert), self._status.facts
        self._fill(
            [heading("Compare", question), buttons, progress, facts, self._figure.plot, self._table, log]
        )

    @property
    def running(self) -> bool:
        """Return whether a run is under way."""
        return not self._over.is_set()

    @property
    def table(self) -> pd.DataFrame:
        """One row per run, in numbers; the columns' names have units."""
        import pandas as pd

        return pd.DataFrame(self._scores.rows, columns=self._scores.columns)

    def run(self) -> Comparison:
        """Do what the Run button does and return at once.

        Raises
        ------
        RuntimeError
            If the comparison is already running.
        """
        with self._guard:
            if self.running:
                raise RuntimeError(
                    f"comparison: {self.titles[len(self.runs) - 1]} is still running; stop it first"
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
            raise TimeoutError(f"the comparison is still running after {timeout:g} s")
        bad = next((n for n, run in enumerate(self.runs) if run.status != "done"), None)
        if bad is not None:
            raise JobFailed(f"{self.titles[bad]}: {self.runs[bad].reason or self.runs[bad].status}")
        if len(self.runs) < len(self.experiments):
            why = self._complaint or "the comparison was stopped before"
            raise JobFailed(f"{self.titles[len(self.runs)]} was not run: {why}")
        return self.runs

    def stop(self) -> None:
        """Do what the Stop button does: end the current run, and start no other."""
        with self._guard:
            self._stopped = True
            job = self.job if self.running else None
        if job is not None:
            self._stop.disabled = True
            self._status.show("Stopping …")
            job.stop()

    def close(self) -> None:
        """Stop, and remove the comparison from the page."""
        self.stop()
        if self._watch:
            self._watch.cancel()
        self._over.set()
        super().close()

    # ---- called by the watch -------------------------------------------------

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Take a record of the current run."""
        if source == "job":
            return
        rank = rank_of(source)
        if record.get("slip") is not None:
            self._slip, self._has_facts = max(self._slip or 0.0, record["slip"]), True
        if record["k"] == "rank":
            self._ranks[rank], self._has_facts = record, True
        elif record["k"] == "error":
            self._status.errors[rank] = record
        else:
            self._figure.take(rank, record)

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far."""
        self._show_facts()
        self._figure.settle(ended=False)
        self._figure.plot.flush(alive)
        self._status.progress(self._figure.steps)

    def ended(self, status: str, reason: str) -> None:
        """End the current run: fill its row, start the next."""
        self._show_facts()
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
            self._message(self._complaint)
        self._finish()

    # ---- inside --------------------------------------------------------------

    def _show_facts(self) -> None:
        if self._has_facts:
            self._has_facts = False
            self._status.show_facts(self._experiment, self._ranks, self._slip, "")

    def _next(self) -> None:
        """Start the next run."""
        number = len(self.runs)
        self._experiment, self._ranks = self.experiments[number], {}
        self._slip, self._has_facts = None, True
        self._figure.begin(number)
        self.job = dlpar.launch(self._experiment)
        self.runs.append(self.job.run)
        self._scores.status[number] = "running"
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

    def _try(self, action: Any) -> None:
        self._message("")
        self._pressed(action)

    def _enable(self) -> None:
        self._run.disabled, self._stop.disabled = self.running, not self.running


def compare(
    experiments: Sequence[Experiment],
    titles: Sequence[str] | None = None,
    question: str = "",
    x: str = "seconds",
    goal: float = 0.95,
) -> Comparison:
    """Make a panel that runs experiments one after the other, with one figure and one table.

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

    Raises
    ------
    ValueError
        If there are fewer than two experiments, they do not fit into one figure, or an argument is not allowed.
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
    check_goal(goal)
    return Comparison(experiments, list(titles or labels(experiments)), question, x, goal)


class ComparisonFigure:
    """Curves of experiments that run one after the other.

    Parameters
    ----------
    experiments : sequence of Experiment
        Experiments of one kind of task.
    titles : sequence of str
        Name of each experiment.
    x : str
        Column of the horizontal axis at first.
    """

    def __init__(self, experiments: Sequence[Experiment], titles: Sequence[str], x: str) -> None:
        self.experiments, self.titles = experiments, titles
        self._reach = joint(*map(ends, experiments))
        worlds = {experiment.cluster.world for experiment in experiments}
        self.plot = CurvePlot(experiments[0], self._reach, worlds, height=430)
        self.plot.x = x
        self.plot.set_caption("Not started. Press Run.")
        self.curves: dict[int, RunCurve] = {}
        self._latest: dict[str, float] = {}

    def clear(self) -> None:
        """Remove all curves."""
        for number in self.curves:
            self.plot.remove_run(str(number))
        self.curves.clear()
        self.plot.make_room()

    def begin(self, number: int) -> None:
        """Start the curve of experiment `number`."""
        self.plot.remove_run(str(number))
        self.plot.remove(CurvePlot.ROOM)
        experiment = self.experiments[number]
        style = theme.beside(theme.scheme_colour(experiment.sync.scheme), number, experiment.cluster.world)
        style["name"] = with_world(self.titles[number], experiment)
        self.curves[number] = self.curve = RunCurve(self.plot, str(number), experiment, style)
        self.steps = GlobalSteps(experiment.workers, experiment.free_running)

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Take a record of a step or of a test of the current run."""
        if record["k"] == "step":
            self.steps.add(rank, record)
        elif record["k"] == "eval":
            self.curve.test(record, self.steps.last)

    def settle(self, ended: bool) -> None:
        """Bring axes and caption up to date; `ended`: the current run has ended."""
        for done in self.steps.ready(ended):
            self.curve.step(done)
        if ended:
            self.curve.finish(self.steps)
        if self.steps.last:
            top = max(curve.top for curve in self.curves.values())
            self.plot.set_range("yaxis", 0, max(theme.rounded_up(top), 1.0))
            self._latest = self.plot.grow(self._reach, self._latest, self.steps.last, ended)
        self.plot.set_caption(self._caption(ended and len(self.curves) == len(self.experiments)))

    def _caption(self, all_ended: bool) -> str:
        parts = []
        for number, curve in self.curves.items():
            if len(curve.loss):
                loss = f"loss {quantity(curve.loss.rows[-1, -1])}"
                tested = "" if curve.accuracy is None else f", accuracy {curve.accuracy:.1%}"
                parts.append(f"{self.titles[number]} {loss}{tested}")
        when = "At the end" if all_ended else "So far"
        return f"{when}: {'; '.join(parts)}." if parts else "Starting …"


NONE = "–"

BOTH = "staleness"
"""Column of a page with the mean and the maximum staleness."""

MEANINGS = {
    "run": "the run",
    "scheme": "how replicas agree",
    "consistency": "how stale a worker may be: bsp not at all, ssp(s) bounded, asp unbounded",
    "steps": "global steps done: N worker-steps each",
    "samples/s": "throughput of all workers together",
    "final loss": "training loss of the last global step",
    "accuracy": "accuracy on held-out samples at the end",
    "staleness mean": "mean number of updates between a worker's read and its push",
    "staleness max": "largest number of updates between a worker's read and its push",
    "lead max": "largest number of clocks that a worker was ahead of the slowest",
    "MB sent": "sent by all ranks together",
    "waiting (s)": "mean waiting time of a worker",
}
"""Columns and their meanings; one more has the time until the goal was reached."""


class Scores:
    """Table of results, one row per run.

    Parameters
    ----------
    experiments : sequence of Experiment
        Experiments to compare.
    titles : sequence of str
        Name of each experiment.
    goal : float
        Held-out accuracy; the time until a test first reaches it is a column.
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
        """Names of the columns."""
        return [*MEANINGS, *([] if is_regression(self.experiments[0]) else [self.timed])]

    def fill(self, number: int, run: Run) -> None:
        """Put the results of a finished run into row `number`."""
        summary = run.summary
        sent, (step, seconds) = summary["bytes_sent"], first_at(run, self.goal)
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
            self.timed: None if step is None else seconds,
        }
        self.status[number] = run.status

    def html(self) -> str:
        """The table of a page: mean and maximum in one column, no scheme if the run's name contains it."""
        timed = f"seconds until a test on held-out samples first reached {self.goal:.0%}"
        meanings = {**MEANINGS, self.timed: timed, BOTH: MEANINGS["staleness mean"]}
        heads = [(html.escape(meanings[column]), html.escape(column)) for column in self._shown_columns()]
        head = "".join(f'<th scope="col" title="{meaning}">{column}</th>' for meaning, column in heads)
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
