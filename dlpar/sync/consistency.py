"""Consistency models of a server. Two numbers define each model.

Sources: bsp, Valiant (CACM 1990); ssp, Ho et al. (NIPS 2013); asp, Dean et al.
(NIPS 2012); backup workers, Chen et al. (arXiv 1604.00981); n-softsync, Gupta,
Zhang and Wang, "Rudra" (arXiv 1509.04210).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.config.sync import ParameterServer


@dataclass(frozen=True)
class Consistency:
    """Rules that decide when a server applies pushes and when it lets a client continue.

    Attributes
    ----------
    gather : int
        Number of pushes in one update.
    bound : int or None
        Maximum lead, in clocks, of a client over the slowest when the client starts a clock. None: no bound.
    """

    gather: int = 1
    bound: int | None = None

    def may_start(self, clock: int, slowest: int) -> bool:
        """Return whether a client with `clock` pushes may start again if the slowest has `slowest` pushes."""
        return self.bound is None or clock - slowest <= self.bound


class Clocks:
    """Counts of each client's pushes, and the slowest client.

    A push costs the same for any number of clients.

    Parameters
    ----------
    clients : sequence of int
        Ranks of the clients. Each client begins at clock 0.
    """

    def __init__(self, clients: Sequence[int]) -> None:
        self._of = dict.fromkeys(clients, 0)
        self._at = Counter(self._of.values())  # number of clients at each clock
        self.slowest = 0

    kept = ("of",)

    @property
    def of(self) -> dict[int, int]:
        """Return the number of pushes by each client."""
        return self._of

    @of.setter
    def of(self, pushes: Mapping[int, int]) -> None:
        # If clients have left or died, all continue from the clock of the slowest.
        level = dict.fromkeys(self._of, min(pushes.values(), default=0))
        self._of = dict(pushes) if pushes.keys() == level.keys() else level
        self._at, self.slowest = Counter(self._of.values()), min(self._of.values())

    def __getitem__(self, client: int) -> int:
        return self._of[client]

    def __len__(self) -> int:
        return len(self._of)

    def push(self, client: int) -> None:
        """Count another push of `client`."""
        self._at[self._of[client] + 1] += 1
        self._remove(self._of[client])
        self._of[client] += 1

    def leave(self, client: int) -> None:
        """Remove `client`, so that no client waits for it."""
        self._remove(self._of.pop(client))

    def _remove(self, clock: int) -> None:
        self._at[clock] -= 1
        if not self._at[clock]:
            del self._at[clock]
            while self.slowest == clock and self._at and clock not in self._at:
                clock += 1
                self.slowest = clock


def consistency(sync: ParameterServer, clients: int) -> Consistency:
    """Return the experiment's consistency for a server with this many clients."""
    return {
        "bsp": Consistency(gather=clients - sync.backup, bound=0),
        "ssp": Consistency(bound=sync.staleness),
        "asp": Consistency(),
        "softsync": Consistency(gather=clients // sync.softsync),
    }[sync.consistency]


def of_group(sync: ParameterServer, workers: int) -> Consistency:
    """Return the consistency of a leaf server for a group of this many workers."""
    return Consistency() if sync.group_consistency == "asp" else Consistency(gather=workers, bound=0)
