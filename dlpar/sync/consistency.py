"""How stale a worker may be, as a server sees it: two numbers, and nothing else differs.

Sources: bsp, Valiant (CACM 1990); ssp, Ho et al. (NIPS 2013); asp, Dean et al.
(NIPS 2012); n-softsync, Gupta, Zhang and Wang, "Rudra" (arXiv 1509.04210).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.sync.parts import ParameterServer


@dataclass(frozen=True)
class Consistency:
    """When a server applies what was pushed, and when it lets a client go on.

    Attributes
    ----------
    gather : int
        Pushes that make one update.
    bound : int or None
        Clocks a client may be ahead of the slowest when it starts another; None: any number.
    """

    gather: int = 1
    bound: int | None = None

    def may_start(self, clock: int, slowest: int) -> bool:
        """Whether a client that has pushed `clock` times may start again, the slowest having pushed `slowest`."""
        return self.bound is None or clock - slowest <= self.bound


def consistency(sync: ParameterServer, clients: int) -> Consistency:
    """The consistency an experiment names, for a server with so many clients."""
    return {
        "bsp": Consistency(gather=clients, bound=0),
        "ssp": Consistency(bound=sync.staleness),
        "asp": Consistency(),
        "softsync": Consistency(gather=clients // sync.softsync),
    }[sync.consistency]
