"""The time of each rank and the bytes it sent, as sums over a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab import captions, theme
from dlpar.lab.figure import Figure, Runs
from dlpar.lab.labels import rank_name
from dlpar.lab.plot import Plot, Shown, drawn

KINDS = {"compute": "forward", "comm": "communicate", "wait": "wait"}
"""Kinds of time in a record, each with the phase whose style its bars have."""


class Waiting(Plot):
    """Seconds and bytes of each rank of the run in front, then of a worker of each earlier run, on average."""

    title, pause = "Waiting", 0.5

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a rank can wait for another."""
        return experiment.ranks > 1

    def begin(self, run: Shown) -> None:
        """Add a run."""
        super().begin(run)
        self.kept[run.key] = np.zeros((run.experiment.ranks, 4))
        self.ranks = theme.ranks(run.experiment)
        self.remove()
        for kind, phase in KINDS.items():
            style = {**theme.phase_bar(phase), "name": theme.PHASES[phase].group}
            self.add_trace(kind, style, ("row", "seconds"), {"y": "row", "x": "seconds"})
        self.add_trace("bytes", theme.LOOKS["sent"], ("row", "MB"), {"y": "row", "x": "MB"})
        self._relayout(1.0, 1.0)

    def _relayout(self, most_seconds: float, most_mb: float) -> None:
        *earlier, front = self.runs.values()
        names = [rank_name(front.experiment, rank) for rank in self.ranks]
        names += [f"{run.name}, a worker" for run in earlier]
        title = theme.on_clock("time of a rank (s)", front.experiment.cluster.world)
        self.relayout(
            height=max(260, 34 * len(names) + 140),
            xaxis=theme.axis(title, (0, most_seconds), domain=[0, 0.6]),
            xaxis2=theme.axis("sent by a rank (MB)", (0, most_mb), domain=[0.66, 1], anchor="y"),
            yaxis=theme.rows(names, automargin=True),
            barmode="stack",
            bargap=0.25,
        )

    def forget(self, key: str) -> None:
        """Remove a run."""
        super().forget(key)
        if self.runs:
            self._relayout(*(self.looks["layout"][axis]["range"][1] for axis in ("xaxis", "xaxis2")))

    def take(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step, or the bytes that a server reports when it ends."""
        sums = self.kept[self.front.key][rank]
        if record["k"] == "step":
            sent = np.nan if record["bytes"] is None else record["bytes"] / 1e6
            sums += (record["compute"], record["comm"], record["wait"], sent)
        elif record.get("name") == "served":
            sums[3] += (record.get("bytes") or 0) / 1e6

    def settle(self, steps: GlobalSteps, ended: bool) -> None:
        """Bring bars, axes and sentence up to date."""
        front, sums = self.front.key, self.kept[self.front.key]
        if not sums[:, :3].any() or not self.is_due(ended):
            return
        means = {key: self._mean(key) for key in self.runs}
        rows = np.array([*sums[self.ranks], *(mean for key, mean in means.items() if key != front)])
        for column, key in enumerate((*KINDS, "bytes")):
            self.series(key).replace(np.stack([np.arange(len(rows)), rows[:, column]], axis=1))
        self.grow("xaxis", rows[:, :3].sum(1).max(), ended)
        self.grow("xaxis2", np.nan_to_num(rows[:, 3]).max(), ended)
        if len(means) > 1:
            shares = (f"{self.runs[k].name} {m[2] / (m[:3].sum() or 1):.0%}" for k, m in means.items())
            return self.set_caption(f"Share of its time that a worker waited: {captions.listed(shares)}.")
        return self.say(captions.waiting(sums[: self.front.experiment.workers, :3], sums[:, 3]))

    def _mean(self, key: str) -> np.ndarray:
        """Means of a run over its workers."""
        return self.kept[key][: self.runs[key].experiment.workers].mean(0)


def waiting(runs: Runs) -> Figure:
    """Draw the seconds each rank computed, communicated and waited, and what it sent; of earlier runs, means."""
    return drawn(Waiting(), runs)


def per_rank(run: Run) -> np.ndarray:
    """Seconds computing, communicating and waiting, and MB sent, of every rank: shape (ranks, 4)."""
    drawn(plot := Waiting(), run)
    return plot.kept[run.id]
