"""A link: what a message takes, by two numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Link:
    """What carries a rank's messages: B bytes take ``latency + B / bandwidth`` seconds (Hockney 1994: alpha and beta).

    Attributes
    ----------
    latency : float
        Seconds a message takes however short it is: alpha, from 0.
    bandwidth : float
        Bytes a second: beta, above 0.
    duplex : str, default ``"full"``
        ``"full"``: a port carries one message out and one in at a time.  ``"half"``: one of either.

    Raises
    ------
    ValueError
        If a value is not allowed; the sentence names the field.
    """

    latency: float
    bandwidth: float
    duplex: Literal["full", "half"] = "full"

    def __post_init__(self) -> None:
        if not (_is_number(self.latency) and 0 <= self.latency < math.inf):
            raise ValueError(f"latency: got {self.latency!r}, allowed is a number of seconds from 0")
        if not (_is_number(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"bandwidth: got {self.bandwidth!r}, allowed is a number of bytes a second above 0"
            )
        if self.duplex not in ("full", "half"):
            raise ValueError(f"duplex: got {self.duplex!r}, allowed is full or half")

    def seconds(self, nbytes: float) -> float:
        """Seconds of one message of `nbytes`."""
        return self.latency + nbytes / self.bandwidth


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
