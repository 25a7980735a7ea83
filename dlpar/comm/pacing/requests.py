"""What a paced rank asks of the referee later on: whether a communication is complete, and the next number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dlpar.comm.base import Arrival
from dlpar.comm.pacing import frames
from dlpar.comm.pacing.line import Line

if TYPE_CHECKING:
    from dlpar.comm.paced import PacedComm


class PacedSending:
    """A send under way."""

    def __init__(self, line: Line, key: int, long: bool) -> None:
        self.line, self.key, self.long, self.complete = line, key, long, False

    def wait(self) -> None:
        if self.long and not self.complete:
            self.line.ask(frames.WAIT, key=self.key)
            self.complete = True
            self.line.follow()

    def test(self) -> bool:
        return not self.long or self.complete or bool(self.line.ask(frames.TEST, key=self.key).key)


class PacedReceiving:
    """A receive under way."""

    def __init__(self, comm: PacedComm, key: int, into: torch.Tensor) -> None:
        self.comm, self.key, self.into = comm, key, into
        self.arrival: Arrival | None = None

    def wait(self) -> Arrival:
        if self.arrival is None:
            self.arrival = self.comm._took(self.into, frames.WAIT, key=self.key)
        return self.arrival

    def test(self) -> bool:
        return self.arrival is not None or bool(self.comm.line.ask(frames.TEST, key=self.key).key)


class PacedCounter:
    """A number all ranks count up together, in the order of their clocks."""

    def __init__(self, line: Line, key: int) -> None:
        self.line, self.key = line, key

    def take(self) -> int:
        return self.line.ask(frames.TAKE, key=self.key).key
