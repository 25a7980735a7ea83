"""The time of each rank and the bytes it sent, as sums over a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, single
from dlpar.lab.labels import rank_name
from dlpar.lab.plot import Plot, Shown, drawn

KINDS = {"compute": "forward", "comm": "communicate", "wait": "wait"}
"""Kinds of time in a record, each with the phase whose style its bars have."""

SENT = {"type": "bar", "orientation": "h", "name": "sent", "marker": {"color": theme.GREY}, "xaxis": "x2",
        "showlegend": False}  # fmt: skip


class Waiting(Plot):
    """Seconds and bytes of each rank of the run in front, then of a worker of each earlier run, on average.

    It is drawn twice a second.
    """

    title = "Waiting"

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, np.ndarray] = {}

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a rank can wait for another."""
        return experiment.ranks > 1

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        experiment, self._drawn, self._ends = run.experiment, 0.0, [1.0, 1.0]
        self.sums[run.key] = np.zeros((experiment.ranks, 4))
        self.ranks = theme.ranks(experiment)
        self.remove()
        for kind, phase in KINDS.items():
            style = {**theme.phase_bar(phase), "name": theme.PHASES[phase].group}
            self.add_trace(kind, style, ("row", "seconds"), {"y": "row", "x": "seconds"})
        self.add_trace("bytes", SENT, ("row", "MB"), {"y": "row", "x": "MB"})
        self._relayout()

    def _relayout(self) -> None:
        *earlier, front = self.runs.values()
        names = [rank_name(front.experiment, rank) for rank in self.ranks]
        names += [f"{run.name}, a worker" for run in earlier]
        title = theme.on_clock("time of a rank (s)", front.experiment.cluster.world)
        layout = theme.layout(
            xaxis=theme.axis(title, (0, self._ends[0]), domain=[0, 0.6]),
            xaxis2=theme.axis("sent by a rank (MB)", (0, self._ends[1]), domain=[0.66, 1], anchor="y"),
            yaxis=theme.rows(names, automargin=True),
            barmode="stack",
            bargap=0.25,
        )
        self.relayout(layout, height=max(260, 34 * len(names) + 140))

    def forget(self, key: str) -> None:
        """Remove a run."""
        super().forget(key)
        self.sums.pop(key, None)
        if self.runs:
            self._relayout()

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        if record["k"] == "step":
            sent = np.nan if record["bytes"] is None else record["bytes"] / 1e6
            self.sums[self.front.key][rank] += (record["compute"], record["comm"], record["wait"], sent)

    def served(self, rank: int, event: dict[str, Any]) -> None:
        """Take the bytes that a server reports when it ends."""
        self.sums[self.front.key][rank, 3] += (event.get("bytes") or 0) / 1e6

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring bars, axes and sentence up to date."""
        sums = self.sums[self.front.key]
        if (time.monotonic() - self._drawn < 0.5 and not ended) or not sums[:, :3].any():
            return
        self._drawn, means = time.monotonic(), {k: self._mean(k) for k in self.runs if k != self.front.key}
        rows = np.array([*sums[self.ranks], *means.values()])
        for column, key in enumerate((*KINDS, "bytes")):
            self.series(key).replace(np.stack([np.arange(len(rows)), rows[:, column]], axis=1))
        largest = rows[:, :3].sum(1).max(), np.nan_to_num(rows[:, 3]).max()
        for n, (axis, most) in enumerate(zip(("xaxis", "xaxis2"), largest)):
            self._ends[n] = theme.rounded_up(most) if ended else theme.doubled(most, self._ends[n])
            self.set_range(axis, 0, self._ends[n])
        experiment = self.front.experiment
        if means:
            all_means = {**means, self.front.key: self._mean(self.front.key)}
            shares = (f"{self.runs[k].name} {m[2] / (m[:3].sum() or 1):.0%}" for k, m in all_means.items())
            return self.set_caption(f"Share of its time that a worker waited: {captions.listed(shares)}.")
        sentence = captions.waiting(sums[: experiment.workers, :3], sums[:, 3])
        return self.set_caption(captions.shown_workers(experiment, sentence))

    def _mean(self, key: str) -> np.ndarray:
        """Means of a run over its workers."""
        return self.sums[key][: self.runs[key].experiment.workers].mean(0)


def waiting(runs: Run | Sequence[Run]) -> Figure:
    """Draw the seconds each rank computed, communicated and waited, and what it sent; of earlier runs, means."""
    return drawn(Waiting(), runs)


def per_rank(run: Run) -> np.ndarray:
    """Seconds computing, communicating and waiting, and MB sent, of every rank: shape (ranks, 4)."""
    drawn(plot := Waiting(), run)
    return plot.sums[run.id]


def bytes_per_rank(run: Run) -> Figure:
    """Draw the megabytes each rank sent, servers too: :func:`waiting` of a single run."""
    return drawn(Waiting(), single(run))
