"""Live figure of each rank's time and of the bytes it sent."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions, theme
from dlpar.lab.labels import rank_name
from dlpar.lab.live_plot import LivePlot

KINDS = {"compute": "forward", "comm": "communicate", "wait": "wait"}
"""Kinds of time in a record, each with the phase whose style its bars have."""


def layout(experiment: Experiment, seconds: float = 1.0, megabytes: float = 1.0) -> dict[str, Any]:
    """Two bars a rank: seconds on the left, bytes on the right."""
    title = theme.on_clock("time of a rank (s)", experiment.cluster.world)
    return theme.layout(
        xaxis=theme.axis(title, (0, seconds), domain=[0, 0.6]),
        xaxis2=theme.axis("sent by a rank (MB)", (0, megabytes), domain=[0.66, 1], anchor="y"),
        yaxis=theme.rows([rank_name(experiment, rank) for rank in theme.ranks(experiment)]),
        barmode="stack",
        bargap=0.25,
    )


def styles() -> dict[str, dict[str, Any]]:
    """plotly attributes of the bars, by the key of the trace."""
    found = {
        kind: {**theme.phase_bar(phase), "name": theme.PHASES[phase].group} for kind, phase in KINDS.items()
    }
    sent = {"type": "bar", "orientation": "h", "name": "sent", "marker": {"color": theme.GREY}, "xaxis": "x2",
            "showlegend": False}  # fmt: skip
    return {**found, "bytes": sent}


class Waiting:
    """Sums over the run so far; drawn twice a second."""

    title = "Waiting"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment))

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Return whether a rank can wait for another."""
        return experiment.ranks > 1

    def begin(self, experiment: Experiment) -> None:
        """Start a run."""
        self.experiment, self._drawn, self._ends = experiment, 0.0, [1.0, 1.0]
        self.plot.refigure(layout(experiment), height=max(400, 34 * len(theme.ranks(experiment)) + 140))
        for key, style in styles().items():
            unit = "MB" if key == "bytes" else "seconds"
            self.plot.add_trace(key, style, ("row", "rank", unit), {"y": "row", "x": unit})
        self.sums = [[0.0, 0.0, 0.0, 0.0] for _ in range(experiment.ranks)]

    def rank_step(self, rank: int, record: dict[str, Any]) -> None:
        """Take one worker's step."""
        own, sent = self.sums[rank], record["bytes"]
        own[0] += record["compute"]
        own[1] += record["comm"]
        own[2] += record["wait"]
        own[3] += sent if sent is not None else float("nan")

    def served(self, rank: int, event: dict[str, Any]) -> None:
        """Take the bytes that a server reports when it ends."""
        self.sums[rank][3] += event.get("bytes") or 0.0

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring bars, axes and caption up to date."""
        if time.monotonic() - self._drawn < 0.5 and not ended:
            return
        self._drawn, sums = time.monotonic(), np.array(self.sums)
        if not sums[:, :3].any():
            return
        sums[:, 3] /= 1e6
        drawn = theme.ranks(self.experiment)
        for column, key in enumerate(styles()):
            rows = np.stack([np.arange(len(drawn)), drawn, sums[drawn, column]], axis=1)
            self.plot.series(key).replace(rows)
        largest = sums[drawn, :3].sum(1).max(), np.nan_to_num(sums[drawn, 3]).max()
        for n, (axis, most) in enumerate(zip(("xaxis", "xaxis2"), largest)):
            self._ends[n] = theme.rounded_up(most) if ended else theme.doubled(most, self._ends[n])
            self.plot.set_range(axis, 0, self._ends[n])
        sentence = captions.waiting(sums[: self.experiment.workers, :3], sums[:, 3])
        self.plot.set_caption(captions.shown_workers(self.experiment, sentence))
