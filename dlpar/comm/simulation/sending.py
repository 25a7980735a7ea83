"""A send under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.comm.simulated import SimulatedComm
    from dlpar.comm.simulation.mailbox import Message


class Sending:
    """A request, as MPI has it; in words it is what a rank waits for.

    Parameters
    ----------
    comm : SimulatedComm
        Who sends.
    message : Message
        What is under way.
    dest : int
        To whom.
    """

    __slots__ = ("comm", "dest", "message")

    def __init__(self, comm: SimulatedComm, message: Message, dest: int) -> None:
        self.comm, self.message, self.dest = comm, message, dest

    def __str__(self) -> str:
        return f"send of {self.message.nbytes:,} bytes to rank {self.dest} (tag {self.message.tag})"

    def wait(self) -> None:
        """Block until a long message has left and its receive is posted."""
        comm, message = self.comm, self.message
        if message.nbytes <= comm.eager:
            return
        activity = comm.activity
        if message.met is None:
            message.sender, activity.waits_for = activity, self
            comm.simulator.next().switch()
        elif message.left > activity.clock:
            comm.simulator.advance(activity, message.left)

    def test(self) -> bool:
        message, now = self.message, self.comm.activity.clock
        return message.nbytes <= self.comm.eager or (
            message.met is not None and max(message.left, message.met) <= now
        )
