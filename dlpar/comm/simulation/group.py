"""Who belongs together in a simulation, and meeting each other."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlpar.comm.simulated import SimulatedComm
    from dlpar.comm.simulation.mailbox import Mailbox
    from dlpar.comm.simulation.network import Network


class Group:
    """Ranks that count from 0 among themselves, and hear nobody else.

    Parameters
    ----------
    members : sequence of int
        Their numbers in the whole simulation.
    network : Network
        What joins them.
    """

    def __init__(self, members: Sequence[int], network: Network) -> None:
        self.members, self.network = list(members), network
        self.size = len(self.members)
        self.boxes: list[
            Mailbox
        ] = []  # made by the first that takes its own: some are sent to before they listen
        self._beside: Group | None = None
        self._made: dict[str, Any] = {}
        self._meeting = _Meeting(len(self.members))

    def beside(self) -> Group:
        """The same ranks once more: messages of what runs beside their computation never meet the others."""
        if self._beside is None:
            self._beside = Group(self.members, self.network)
        return self._beside

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that is alike on every rank, made by the first that asks."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def together(self, comm: SimulatedComm, thing: Any, result: Callable[[list[Any]], Any] = list) -> Any:
        """Wait for all; every rank gets ``result(things)``, computed once, of the things in the order of ranks."""
        meeting, activity = self._meeting, comm.activity
        meeting.things[comm.rank] = thing
        meeting.present.append(activity)
        if len(meeting.present) == len(self.members):
            self._meeting = _Meeting(len(self.members))
            meeting.result = result(meeting.things)
            for other in meeting.present[:-1]:
                comm.simulator.wake(other, activity.clock)
        else:
            since, activity.waits_for = (
                activity.clock,
                "a meeting of all ranks (barrier, gather or broadcast)",
            )
            comm.simulator.next().switch()
            comm.box.waited += activity.clock - since
        return meeting.result

    def parts(self, asked: list[tuple[int, int]]) -> dict[int, Group]:
        """The groups that ranks form which asked for (color, key): MPI_Comm_split."""
        colors = dict.fromkeys(color for color, _ in asked)
        return {
            color: Group(
                [
                    self.members[rank]
                    for _, rank in sorted((k, r) for r, (c, k) in enumerate(asked) if c == color)
                ],
                self.network,
            )
            for color in colors
        }


PLAIN = (type(None), bool, int, float, str)
"""Types of which a rank cannot change the value another holds."""


def packed(thing: Any) -> Callable[[], Any]:
    """What gives a copy of its own to each rank that calls it, as a message would."""
    return (lambda: thing) if type(thing) in PLAIN else partial(pickle.loads, pickle.dumps(thing))


class _Meeting:
    def __init__(self, size: int) -> None:
        self.things: list[Any] = [None] * size
        self.present: list[Any] = []
        self.result: Any = None
