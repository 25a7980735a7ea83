"""A panel of several experiments that run one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.run import Run
from dlpar.lab import theme
from dlpar.lab.figures.consensus import Consensus
from dlpar.lab.figures.convergence import X_AXES, Convergence, check_axis, check_goal, of_one_kind
from dlpar.lab.figures.staleness import Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.labels import labels
from dlpar.lab.panel import ACTIONS, RunPage
from dlpar.lab.watch import Watch

if TYPE_CHECKING:
    import pandas as pd


class Comparison(RunPage):
    """Run and Stop, and the figures of all runs; made by :func:`compare`.

    Attributes
    ----------
    runs : list of Run
        Runs started so far, in order.
    """

    def __init__(
        self, experiments: list[Experiment], titles: list[str], question: str, x: str, goal: float
    ) -> None:
        self.experiments, self.titles = experiments, titles
        self._colours, self._kept = theme.run_colours(experiments), len(experiments)
        self._over, self._stopped, self._complaint = Event(), False, ""
        self._over.set()
        plots = [Convergence(X_AXES[x]), Throughput(), Staleness(), Waiting(), Consensus()]
        super().__init__(experiments[0], plots, "Compare", question, goal=goal)
        self.tell(actions=ACTIONS[:2])

    @property
    def running(self) -> bool:
        """Return whether a run is under way."""
        return not self._over.is_set()

    @property
    def table(self) -> pd.DataFrame:
        """One row per run, in numbers; the columns' names have units."""
        import pandas as pd

        rows = [{"run": title, **self._results.get(run.id, {})} for title, run in zip(self.titles, self.runs)]
        return pd.DataFrame(rows, columns=None if rows else ["run"])

    def run(self) -> Comparison:
        """Do what the Run button does and return at once.

        Raises
        ------
        RuntimeError
            If the comparison is already running.
        """
        with self._guard_jobs:
            if self.running:
                running = self.titles[len(self.runs) - 1]
                raise RuntimeError(f"comparison: {running} is still running; stop it first")
            self._over.clear()
            for key in list(self._shown):
                self._forget(key)
            self._stopped, self.runs, self._complaint, self._started = False, [], "", 0
            try:
                self._next()
            except BaseException:
                self._over.set()
                self._enable()
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
        self._stopped = True
        super().stop()

    def close(self) -> None:
        """Stop, and remove the comparison from the page."""
        super().close()
        self._over.set()

    def ended(self, status: str, reason: str) -> None:
        """End the current run, and start the next; called by the watch."""
        super().ended(status, reason)
        try:
            with self._guard_jobs:
                if status == "done" and not self._stopped and len(self.runs) < len(self.experiments):
                    return self._next()
        except Exception as error:  # nobody would see it here
            self._complaint = f"{type(error).__name__}: {error}"
            self.tell(message=self._complaint)
        self._over.set()
        self._enable()
        self.flush()

    def _next(self) -> None:
        """Start the next run."""
        number = len(self.runs)
        experiment, title = self.experiments[number], self.titles[number]
        self.job = job = dlpar.launch(experiment)
        self.runs.append(job.run)
        self._status.prefix = f"{number + 1} of {len(self.experiments)}, {title}: "
        self._begin(job.run, experiment, title)
        self._follow(Watch(job.run.path, self))

    def _colour(self, experiment: Experiment) -> str:
        return self._colours[self._started]

    def _enable(self) -> None:
        self.tell(busy=self.running, stoppable=self.running, earlier=0)


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
    check_axis(x)
    check_goal(goal)
    return Comparison(experiments, list(titles or labels(experiments)), question, x, goal)
