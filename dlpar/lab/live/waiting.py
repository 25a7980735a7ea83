"""The live figure of where each rank's time went, and of the bytes it sent."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab import captions as says
from dlpar.lab import theme
from dlpar.lab.live import rank_lines as shown
from dlpar.lab.live_plot import LivePlot

KINDS = {"compute": "forward", "comm": "communicate", "wait": "wait"}
"""Kinds of time as a record names them, and a phase of each that gives the looks."""


def layout(experiment: Experiment, seconds: float = 1.0, megabytes: float = 1.0) -> dict[str, Any]:
    """A row per rank, twice: seconds on the left, bytes on the right."""
    names = [name_of(experiment, rank) for rank in shown.ranks(experiment)]
    rows = len(names)
    yaxis = theme.axis("", (rows - 0.5, -0.5), tickvals=list(range(rows)), ticktext=names, showgrid=False)
    return theme.layout(
        xaxis=theme.axis(
            theme.on_clock("time of a rank (s)", experiment.cluster.world), (0, seconds), domain=[0, 0.6]
        ),
        xaxis2=theme.axis("sent by a rank (MB)", (0, megabytes), domain=[0.66, 1], anchor="y"),
        yaxis=yaxis,
        barmode="stack",
        bargap=0.25,
    )


def name_of(experiment: Experiment, rank: int) -> str:
    """``rank 3``, and what it is if it does not train."""
    if rank < experiment.workers:
        return f"rank {rank}"
    return f"server {rank}" if rank < experiment.workers + experiment.sync.servers else f"leaf {rank}"


def styles() -> dict[str, dict[str, Any]]:
    """plotly attributes of the bars, by the key of the trace."""
    found = {
        kind: {**theme.phase_bar(phase), "name": theme.PHASES[phase].group} for kind, phase in KINDS.items()
    }
    sent = {"type": "bar", "orientation": "h", "name": "sent", "marker": {"color": "#7f7f7f"}, "xaxis": "x2",
            "showlegend": False}  # fmt: skip
    return {**found, "bytes": sent}


class Waiting:
    """Sums over the run so far; drawn anew twice a second."""

    title = "Waiting"

    def __init__(self, experiment: Experiment) -> None:
        self.plot = LivePlot(layout(experiment))

    @staticmethod
    def fits(experiment: Experiment) -> bool:
        """Where there is somebody to wait for."""
        return experiment.ranks > 1

    def begin(self, experiment: Experiment) -> None:
        """Start anew for a run."""
        self.experiment, self._drawn, self._ends = experiment, 0.0, [1.0, 1.0]
        self.plot.refigure(layout(experiment), height=max(400, 34 * len(shown.ranks(experiment)) + 140))
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
        """Take what a server says at its end."""
        self.sums[rank][3] += event.get("bytes") or 0.0

    def settle(self, _steps: GlobalSteps, ended: bool) -> None:
        """Bring bars, axes and sentence up to date."""
        if time.monotonic() - self._drawn < 0.5 and not ended:
            return
        self._drawn, sums = time.monotonic(), np.array(self.sums)
        if not sums[:, :3].any():
            return
        sums[:, 3] /= 1e6
        drawn = shown.ranks(self.experiment)
        for column, key in enumerate(styles()):
            self.plot.series(key).replace(
                np.stack([np.arange(len(drawn)), drawn, sums[drawn, column]], axis=1)
            )
        largest = sums[drawn, :3].sum(1).max(), np.nan_to_num(sums[drawn, 3]).max()
        for n, (axis, most) in enumerate(zip(("xaxis", "xaxis2"), largest)):
            self._ends[n] = theme.rounded_up(most) if ended else theme.doubled(most, self._ends[n])
            self.plot.set_range(axis, 0, self._ends[n])
        workers = self.experiment.workers
        self.plot.say(shown.note(self.experiment, says.waiting(sums[:workers, :3], sums[:, 3])))
