"""Real messages over a link that was made slow: each is held back until a link of that kind would have brought it.

So a laptop shows what a network does to a collective: processes, messages and
seconds are real, only the link is chosen.  The rules are those of
:mod:`dlpar.costmodel`: a message leaves when its sender's link is free, the first
byte arrives `latency` later, and its bytes come in when the receiver's link is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Arrival, Comm
    from dlpar.costmodel import Link

STAMP = 8
"""Bytes in front of each message: when it left."""


class SlowLink:
    """`comm`, its messages between tensors delayed as on `link`; all else is the inner communicator's.

    Parameters
    ----------
    comm : Comm
        What carries the bytes; its ranks are on one machine, because they compare their clocks.
    link : Link
        Every rank's; not quicker than the real one, or nothing is delayed.
    """

    def __init__(self, comm: Comm, link: Link) -> None:
        self.inner, self.link = comm, link
        self._out_free = self._in_free = 0.0  # when this rank's link has sent and received all so far

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        self.inner.send(self._stamped(tensor), dest, tag)

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Any:
        return self.inner.isend(self._stamped(tensor), dest, tag)

    def irecv(self, *_: Any) -> Any:
        """Refused: when such a message would have come is known only once it is waited for."""
        raise ValueError("irecv: got a call on a slow link, allowed there are recv and sendrecv")

    def recv(self, into: torch.Tensor, source: int = -1, tag: int = -1) -> Arrival:
        import torch

        from dlpar.comm import Arrival

        room = self.inner.empty(STAMP + into.nbytes, torch.uint8)
        arrival = self.inner.recv(room, source, tag)
        nbytes = arrival.nbytes - STAMP
        left = room[:STAMP].view(torch.float64).item()
        begins = max(left + self.link.latency, self._in_free)
        self._in_free = begins + nbytes / self.link.bandwidth
        self.inner.pause(self._in_free - self.inner.now())
        into.view(torch.uint8)[:nbytes] = room[STAMP : STAMP + nbytes]
        return Arrival(arrival.source, arrival.tag, nbytes)

    def sendrecv(self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0) -> Arrival:
        sending = self.isend(tensor, dest, tag)
        arrival = self.recv(into, source, tag)
        sending.wait()
        return arrival

    def _stamped(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        left = max(self.inner.now(), self._out_free)
        self._out_free = left + tensor.nbytes / self.link.bandwidth
        stamp = torch.tensor([left], dtype=torch.float64).view(torch.uint8)
        return torch.cat([stamp, tensor.contiguous().view(-1).view(torch.uint8)])
