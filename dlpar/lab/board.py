"""The figures of one panel, fed record by record from one run folder."""

from __future__ import annotations

from typing import Any, Sequence

from dlpar.experiment import Experiment
from dlpar.lab.convergence import Convergence, loss_title
from dlpar.lab.global_steps import GlobalSteps
from dlpar.lab.live_plot import LivePlot
from dlpar.lab.staleness import Staleness
from dlpar.lab.throughput import Throughput
from dlpar.lab.timeline import Timeline

KEPT = 5
"""Earlier runs that stay in the figure; more could not be told apart."""


class Board:
    """Convergence, throughput, staleness and timeline of the present run; losses of earlier ones."""

    def __init__(self, experiment: Experiment) -> None:
        self.convergence, self.throughput = Convergence(experiment), Throughput(experiment)
        self.staleness, self.timeline = Staleness(experiment), Timeline(experiment)
        self.shown: dict[str, Experiment] = {}
        self.steps = GlobalSteps(experiment.workers)
        self.ranks: dict[int, dict[str, Any]] = {}
        self.slip: float | None = None

    @property
    def plots(self) -> dict[str, LivePlot]:
        """Figures by the title of their tab."""
        figures = (self.convergence, self.throughput, self.staleness, self.timeline)
        return {type(figure).__name__: figure.plot for figure in figures}

    def begin(self, experiment: Experiment, key: str) -> None:
        """Make room for run `key`; what was shown becomes an earlier run."""
        comparable = {k: e for k, e in self.shown.items() if loss_title(e) == loss_title(experiment)}
        kept = dict(list(comparable.items())[:KEPT])
        self.shown = {key: experiment, **kept}
        self.steps, self.ranks, self.slip = GlobalSteps(experiment.workers), {}, None
        labels = run_labels(experiment, kept)
        self.convergence.begin(experiment, key, this_label(experiment, kept), labels)
        for figure in (self.throughput, self.staleness, self.timeline):
            figure.begin(experiment)
        for plot in self.plots.values():
            plot.set_live(True)
            plot.say("Starting …")

    def forget_earlier(self) -> None:
        """Take earlier runs out of the figure; their folders stay."""
        self.shown = dict(list(self.shown.items())[:1])
        self.convergence.forget_earlier()
        self.flush()

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """One record of one rank."""
        kind = record["k"]
        if kind == "step":
            self.throughput.rank_step(rank, record)
            self.staleness.rank_step(rank, record)
            self.timeline.record(rank, record)
            done = self.steps.add(record)
            if done:
                self.convergence.step(done)
                self.throughput.step(done)
        elif kind == "eval":
            self.convergence.test(record)
            self.timeline.record(rank, record)
        elif kind == "rank":
            self.ranks[rank] = record
        elif kind == "event" and record.get("slip") is not None:
            self.slip = max(self.slip or 0.0, record["slip"])

    def settle(self, ended: bool) -> None:
        """Bring axes and sentences up to date."""
        self.convergence.settle(self.steps, ended)
        self.throughput.settle(self.steps.last, ended)
        self.staleness.settle()
        self.timeline.settle(ended)
        if ended:
            for plot in self.plots.values():
                plot.set_live(False)
                if plot.says == "Starting …":
                    plot.say("The run ended before its first step.")

    def flush(self, alive: bool = False) -> bool:
        """Send what is new to the page; returns whether there was anything."""
        return any([plot.flush(alive) for plot in self.plots.values()])


def differences(a: Experiment, b: Experiment) -> dict[str, Any]:
    """Fields of `b` that are not as in `a`: ``{"workers": 2, "model.width": 64}``."""
    mine, theirs = _flat(a.model_dump()), _flat(b.model_dump())
    return {name: value for name, value in theirs.items() if mine.get(name) != value}


def same_batches(a: Experiment, b: Experiment) -> bool:
    """Whether step t of both sees the same samples: it does if these are drawn by (seed, t) alone."""
    iid = a.shards == b.shards == "iid"
    return iid and (a.data, a.seed, a.global_batch) == (b.data, b.seed, b.global_batch)


def run_labels(now: Experiment, earlier: dict[str, Experiment]) -> dict[str, str]:
    """What tells each earlier run from the present one, in a few words."""
    labels, seen = {}, {}
    for key, experiment in earlier.items():
        label = _in_words(differences(now, experiment)) or "same settings"
        seen[label] = seen.get(label, 0) + 1
        labels[key] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return labels


def this_label(now: Experiment, earlier: dict[str, Experiment]) -> str:
    """What the present run is called beside the earlier ones."""
    own: dict[str, Any] = {}
    for experiment in earlier.values():
        own |= differences(experiment, now)
    return f"this run: {_in_words(own)}" if own else "this run"


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """What tells experiments from each other: ``workers=1``, ``workers=4``; equal ones are numbered."""
    flat = [_flat(e.model_dump()) for e in experiments]
    told = [name for name in flat[0] if any(f.get(name) != flat[0][name] for f in flat)]
    said = [_in_words({name: f.get(name) for name in told}) or str(e) for f, e in zip(flat, experiments)]
    return [
        text if said.count(text) == 1 else f"{text} ({said[: i + 1].count(text)})"
        for i, text in enumerate(said)
    ]


def _in_words(fields: dict[str, Any]) -> str:
    said = [
        f"{name.removeprefix('sync.').removeprefix('cluster.')}={value}" for name, value in fields.items()
    ]
    return ", ".join(said[:3]) + (" …" if len(said) > 3 else "")


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
