"""Records of ranks, as a recorder writes them, with the figures a test asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.lab.plot import Board, Plot, shown


def step(
    number: int,
    rank: int = 0,
    loss: float | None = 1.0,
    t: float | None = None,
    samples: int = 64,
    **facts: Any,
) -> dict[str, Any]:
    """A worker's step that ends at `t`; default: a step a second."""
    seconds = {"t": number + 1.0 if t is None else t, "compute": 0.5, "comm": 0.2, "wait": 0.0}
    counted = {"loss": loss, "samples": samples, "staleness": 0, "lead": 0, "bytes": 1000, "spans": []}
    return {"k": "step", "rank": rank, "step": number, **seconds, **counted, **facts}


def evaluated(number: int, t: float, accuracy: float | None = 0.9) -> dict[str, Any]:
    """A test on held-out samples after `number` steps."""
    return {"k": "eval", "step": number, "t": t, "accuracy": accuracy, "loss": 0.3, "samples": 360}


def fed(plot: Plot, *experiments: Experiment) -> Board:
    """A board with one figure, and runs begun one after the other: ``run 0``, ``run 1`` and so on."""
    board = Board([plot])
    for run in shown(experiments, [f"run{number}" for number in range(len(experiments))]):
        board.begin(run)
    return board


def take_steps(board: Board, workers: int, losses: list[float], **facts: Any) -> None:
    """Give a board a step of each worker for each loss, and draw."""
    for number, loss in enumerate(losses):
        for rank in range(workers):
            board.take(rank, step(number, rank, loss, **facts))
        board.settle(ended=False)


def paced(rank: int, number: int, seconds: float, **facts: Any) -> dict[str, Any]:
    """A step of a rank that does each in so many seconds: half computing, half communicating."""
    begun = number * seconds
    middle, end = begun + 0.5 * seconds, begun + seconds
    return step(
        number, rank, t=end, spans=[["forward", begun, middle], ["communicate", middle, end]], **facts
    )


def free_running(pace: list[float], end: float) -> list[dict[str, Any]]:
    """Steps until `end` of ranks with so many seconds a step, in the order of time."""
    every = [paced(rank, n, each) for rank, each in enumerate(pace) for n in range(int(end / each))]
    return sorted(every, key=lambda record: record["t"])


def write_down(records: list[dict[str, Any]], folder: Path) -> None:
    """Write records as ranks do: each to a file of its own."""
    for record in records:
        with open(folder / f"rank-{record['rank']}.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
