"""How experiments scale with workers: run them, and draw measurement, simulation and prediction in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment
from dlpar.jobs.launch import check_machine
from dlpar.lab.figures.scaling import curve_names, curves
from dlpar.lab.figures.scaling import scaling as drawing
from dlpar.lab.sweep import Outcome, all_done, check

if TYPE_CHECKING:
    from dlpar.lab.figure import Figure


def scaling(
    experiments: Experiment | Sequence[Experiment],
    workers: Sequence[int] = (1, 2, 4, 8),
    simulated: bool = True,
    predicted: bool = True,
    jobs: int = 2,
) -> Figure:
    """Run experiments with several numbers of workers, and draw their speed-up and efficiency.

    Returns when all runs are done; a table of them is under the figure, and in ``figures.table``.

    Parameters
    ----------
    experiments : Experiment or sequence of Experiment
        In their own worlds; several differ in how replicas agree.
    workers : sequence of int
        Two or more numbers of workers.
    simulated : bool
        Beside real and paced runs simulate the same on the same platform: of real ones, on
        this machine as ``dlpar doctor --calibrate`` has measured it, if it has.
    predicted : bool
        Draw what :func:`dlpar.theory.predict` says, too.
    jobs : int
        Simulations at work at a time.

    Raises
    ------
    BadExperiment
        If one of them cannot be, before any is run.
    JobFailed
        If a run fails; the others are run first.
    """
    experiments = [experiments] if isinstance(experiments, Experiment) else list(experiments)
    if not experiments:
        raise ValueError("experiments: got none, allowed is one or more")
    counts = sorted(set(workers))
    if len(counts) < 2:
        raise ValueError(f"workers: got {list(workers)}, allowed are two numbers or more")
    wanted = [experiment.replace(workers=n) for experiment in experiments for n in counts]
    names = curve_names(wanted)
    twins = [(found, name) for e, name in zip(wanted, names) if (found := twin(e))] if simulated else []
    everything = [*wanted, *(experiment for experiment, _ in twins)]
    check(everything)
    with _Progress(len(everything)) as progress:
        outcomes = all_done(everything, jobs, progress.one_more)
    own, beside = outcomes[: len(wanted)], outcomes[len(wanted) :]
    return drawing(
        [*curves(own, names, predicted), *curves(beside, [name for _, name in twins], predicted=False)]
    )


def twin(experiment: Experiment) -> Experiment | None:
    """The same simulated on the same platform; None if it cannot be, or is already."""
    cluster = experiment.cluster
    if cluster.world == "simulated":
        return None
    platform = cluster.platform or ("here" if cluster.world == "real" else None)
    changes = {
        "world": "simulated",
        "platform": platform,
        "device": "auto",
        "carrier": "auto",
        "hostfile": None,
    }
    try:
        found = experiment.replace(cluster=changes)
        check_machine(found)
    except BadExperiment:
        return None
    return found


class _Progress:
    """Says under a running cell how many runs are done; outside a notebook, nothing."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.bar = total, 0, None

    def __enter__(self) -> _Progress:
        try:
            from IPython import get_ipython
        except ImportError:
            return self
        if getattr(get_ipython(), "kernel", None) is not None:
            import ipywidgets as widgets
            from IPython.display import display

            self.bar = widgets.IntProgress(max=self.total, description=f"0 of {self.total}")
            display(self.bar)
        return self

    def one_more(self, _outcome: Outcome) -> None:
        """A run has ended."""
        self.done += 1
        if self.bar is not None:
            self.bar.value, self.bar.description = self.done, f"{self.done} of {self.total}"

    def __exit__(self, *_error: object) -> None:
        if self.bar is not None:
            self.bar.close()
