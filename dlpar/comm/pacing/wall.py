"""The wall clock follows a logical one by sleeping, and by how much it could not is its slip."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.comm.pacing.parcels import Parcels

AHEAD = 0.01
"""Seconds a computation may begin before its time: ranks sleep seldom and long, and one late wake-up delays nobody."""

EARLY = 0.25
"""Seconds a message may come before its time: while the wall sleeps through a computation, ranks exchange what follows.

Two cores take longer to carry the messages of many ranks than the network on paper does.
"""

BEAT = 0.5
"""Seconds of the longest sleep in one piece."""

NAP = 4e-3
"""Seconds between looks at parcels that are under way."""


class Wall:
    """The wall clock as all activities of one rank see it.

    Attributes
    ----------
    zero : float or None
        ``time.monotonic()`` of second 0; None until the first rank's time goes on.
    slip, lag : float
        Seconds by which the wall was behind the logical clock: the most so far, and now.
    """

    def __init__(self) -> None:
        self.zero: float | None = None
        self.slip = self.lag = 0.0

    def follow(self, clock: float, ahead: float, parcels: Parcels, asleep: Callable[[], None]) -> None:
        """Sleep until it is `clock`, if that is more than `ahead` seconds off.

        Meanwhile keep `parcels` moving; ``asleep()`` is called every :data:`BEAT`.
        """
        if self.zero is None:
            return
        lag = time.monotonic() - self.zero - clock
        if lag <= -ahead:
            beat = lag + BEAT
            while lag < 0:
                time.sleep(min(-lag, NAP if parcels.moving else BEAT))
                parcels.move()
                lag = time.monotonic() - self.zero - clock
                if lag > beat:
                    asleep()
                    beat += BEAT
        self.lag = max(lag, 0.0)
        self.slip = max(self.slip, lag)
