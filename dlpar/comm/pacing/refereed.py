"""Simulated ranks behind which stand paced ones: what meets what, and who has to hear of it."""

from __future__ import annotations

from typing import Any

from dlpar.comm.simulated import SimulatedComm
from dlpar.comm.simulation.mailbox import Mailbox, Message


class Parcel:
    """A tensor by its bytes, which travels with the number its values are sent under: both ghost and head."""

    __slots__ = ("key", "nbytes")

    def __init__(self, nbytes: int, key: int) -> None:
        self.nbytes, self.key = nbytes, key

    @property
    def head(self) -> Parcel:
        return self

    detach = clone = lambda self: self


class Room:
    """A buffer for any message: whether the rank's own is large enough, the rank will see."""

    nbytes = 1 << 62


class WatchedMailbox(Mailbox):
    """Tells proxies when a message has met a receive."""

    __slots__ = ("boxes", "proxies")

    def deliver(self, message: Message) -> None:
        super().deliver(message)
        self.settle(message)

    def settle(self, message: Message) -> None:
        """It may be all that its receiver, or its sender, has waited for."""
        for box in (self, self.boxes[message.source]):
            proxy = self.proxies.get(getattr(box, "owner", None))
            if proxy is not None:
                proxy.settle()


class RefereedComm(SimulatedComm):
    """A simulated rank whose messages carry the numbers of parcels."""

    def __init__(self, simulator: Any, group: Any, *rest: Any) -> None:
        if not group.boxes:
            for member in group.members:
                box = WatchedMailbox(simulator, lambda *_: None, member)
                box.proxies, box.boxes = simulator.proxies, group.boxes
                group.boxes.append(box)
        super().__init__(simulator, group, *rest)
