"""How long a computation takes on a device, where the clock is not the wall's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.platforms import Platform


class Pace:
    """Seconds of one rank's computations.

    Parameters
    ----------
    platform : Platform
        Its device, how its times vary, its stragglers.
    flops : float
        FLOP/s the device sustains on the experiment's model.
    rank, seed : int
        What a varying time is drawn by.
    """

    def __init__(self, platform: Platform, flops: float, rank: int, seed: int) -> None:
        self.timing, self.rank, self.seed = platform.timing, rank, seed
        slower = platform.stragglers.get(rank, 1.0)
        self.per_flop, self.overhead = slower / flops, slower * platform.device.overhead
        self.overlap = platform.overlap
        self.varies, self.factor = platform.timing.kind != "constant", 1.0

    def new_step(self, step: int) -> None:
        """Draw how quick this rank is in a step."""
        if self.varies:
            self.factor = self.timing.factor(self.seed, self.rank, step)

    def seconds(self, cost: float) -> float:
        """Of so many FLOPs, in this step."""
        return cost * self.per_flop * self.factor
