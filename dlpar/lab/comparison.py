"""A panel of several experiments that run one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlpar.config.experiment import Experiment
from dlpar.lab import theme
from dlpar.lab.figures.consensus import Consensus
from dlpar.lab.figures.convergence import X_AXES, Convergence, check_axis, check_goal, of_one_kind
from dlpar.lab.figures.staleness import Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.labels import labels
from dlpar.lab.panel import GOAL, RunPage

if TYPE_CHECKING:
    import pandas as pd


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
        check_axis(x)
        check_goal(goal)
        self.experiments, self.titles = experiments, list(titles or labels(experiments))
        self._colours, self._kept = theme.run_colours(experiments), len(experiments)
        plots = [Convergence(X_AXES[x]), Throughput(), Staleness(), Waiting(), Consensus()]
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
