"""Signals that ask a command to stop."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

STOPS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
"""Signals that stop a command, and their names for people."""


class Stops:
    """Note the first signal that asks to stop, so that no job is left half started; a second one interrupts.

    Signals that our parent process had ignored (``nohup``) stay ignored.

    Parameters
    ----------
    interrupting : bool
        Let the first signal interrupt instead, and ignore further ones: ending jobs takes a second.

    Attributes
    ----------
    asked : signal.Signals or None
        The signal that came.
    """

    def __init__(self, interrupting: bool = False) -> None:
        self.interrupting = interrupting
        self.asked: signal.Signals | None = None

    def __enter__(self) -> Stops:
        heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first = self.asked is None
        if is_first:
            self.asked = signal.Signals(number)
        if is_first == self.interrupting:
            raise KeyboardInterrupt
