"""Log of the messages of a collective: a communicator that records them, and their division into rounds.

No clock is read: a message comes after all messages that its sender had received before
(Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", CACM 1978).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.jobs.launch import spmd

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Arrival, Comm, Request


class LoggedMessage(NamedTuple):
    """A message that was sent and received.

    Attributes
    ----------
    source, dest : int
        Ranks.
    nbytes : int
        Payload.
    round : int
        From 1. In a round a rank sends at most one message, receives at most one, and passes on
        only data that it had before.
    changed : list of int
        Elements of the receiver's tensor that the message changed.
    """

    source: int
    dest: int
    nbytes: int
    round: int
    changed: list[int]


class Rounds(NamedTuple):
    """Messages of a collective, and the tensors after each round.

    Attributes
    ----------
    messages : list of LoggedMessage
        In the order of rounds.
    held : list of list of list of float
        ``held[k][rank]``: the rank's tensor after round k; ``held[0]`` has the initial tensors.
    """

    messages: list[LoggedMessage]
    held: list[list[list[float]]]


class Event(NamedTuple):
    """One end of a message, as its rank saw it: ``send`` or ``recv``, and the rank's tensor before it."""

    kind: str
    peer: int
    tag: int
    nbytes: int
    before: list[float]


class LoggingComm:
    """A communicator that logs every message; everything else is done by the inner communicator.

    Parameters
    ----------
    comm : Comm
        Carries the messages.
    tensor : Tensor
        Tensor whose values are followed.
    ranks : list of int
        Ranks of the group in the whole world.
    events : list of Event
        Receives the events.
    """

    def __init__(self, comm: Comm, tensor: torch.Tensor, ranks: list[int], events: list[Event]) -> None:
        self.inner, self.tensor, self.ranks, self.events = comm, tensor, ranks, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        self._sent(tensor, dest, tag)
        self.inner.send(tensor, dest, tag)

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        self._sent(tensor, dest, tag)
        return self.inner.isend(tensor, dest, tag)

    def recv(self, *into: Any, **named: Any) -> Arrival:
        return self.received(self.tensor.tolist(), self.inner.recv(*into, **named))

    def irecv(self, *into: Any, **named: Any) -> Request:
        return _Receiving(self, self.inner.irecv(*into, **named))

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        self._sent(tensor, dest, tag)
        return self.received(self.tensor.tolist(), self.inner.sendrecv(tensor, dest, into, source, tag))

    def start(self, collective: Callable[..., Any], bucket: torch.Tensor) -> Request:
        def logged(comm: Comm, bucket: torch.Tensor) -> Any:
            return collective(LoggingComm(comm, self.tensor, self.ranks, self.events), bucket)

        return self.inner.start(logged, bucket)

    def split(self, color: int, key: int = 0) -> LoggingComm:
        group = self.inner.split(color, key)
        ranks = group.broadcast(group.gather(self.ranks[self.inner.rank]))
        return LoggingComm(group, self.tensor, ranks, self.events)

    def _sent(self, tensor: torch.Tensor, dest: int, tag: int) -> None:
        dest = self.ranks[dest] if 0 <= dest < len(self.ranks) else dest
        self.events.append(Event("send", dest, tag, tensor.nbytes, self.tensor.tolist()))

    def received(self, before: list[float], arrival: Arrival) -> Arrival:
        """Log a message that has arrived; the tensor was `before`."""
        self.events.append(Event("recv", self.ranks[arrival.source], arrival.tag, arrival.nbytes, before))
        return arrival


class _Receiving:
    """A receive under way, logged once, when it is complete."""

    def __init__(self, comm: LoggingComm, request: Request) -> None:
        self._comm, self._request, self._arrival = comm, request, None

    def wait(self) -> Arrival:
        if self._arrival is None:
            self._arrival = self._comm.received(self._comm.tensor.tolist(), self._request.wait())
        return self._arrival

    def test(self) -> bool:
        before = self._comm.tensor.tolist()
        if self._arrival is None and self._request.test():
            self._arrival = self._comm.received(before, self._request.wait())
        return self._arrival is not None


def record(collective: Callable[..., Any], starts: list[list[float]], timeout: float = 20.0) -> Rounds:
    """Run ``collective(comm, tensor)`` on real ranks and divide its messages into rounds.

    Parameters
    ----------
    collective : callable
        Works in place on a flat float64 tensor.
    starts : list of list of float
        Initial tensor of each rank; there are as many ranks as lists.
    timeout : float, default 20
        Seconds after which ranks that wait for each other are ended.

    Raises
    ------
    JobFailed
        If the collective raised or hung on a rank.
    """
    logs = spmd(_logged, collective, starts, workers=len(starts), timeout=timeout)
    return in_rounds(logs, starts)


def _logged(comm: Comm, collective: Callable[..., Any], starts: list[list[float]]) -> list[Event]:
    """Run the collective on this rank and return its events, and at last one with the final tensor."""
    import torch

    tensor, events = torch.tensor(starts[comm.rank], dtype=torch.float64, device=comm.device), list[Event]()
    collective(LoggingComm(comm, tensor, list(range(comm.size)), events), tensor)
    return [*events, Event("end", comm.rank, 0, 0, tensor.tolist())]


def in_rounds(logs: list[list[Event]], starts: list[list[float]]) -> Rounds:
    """Pair sends with receives, and assign each message to a round.

    A message leaves one round after the last message that its sender sent or received. It
    arrives at least one round after the last message that its receiver received.
    """
    under_way: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)  # rounds in which messages left
    sent, received, done = [0] * len(logs), [0] * len(logs), [0] * len(logs)
    messages: list[LoggedMessage] = []
    states: list[list[tuple[int, list[float]]]] = [[(0, start)] for start in starts]
    before = -1
    while before < sum(done):
        before = sum(done)
        for rank, log in enumerate(logs):
            for event, (*_, held) in pairwise(log[done[rank] :]):
                if event.kind == "send":
                    sent[rank] = 1 + max(sent[rank], received[rank])
                    under_way[rank, event.peer, event.tag].append(sent[rank])
                elif under_way[event.peer, rank, event.tag]:
                    left = under_way[event.peer, rank, event.tag].popleft()
                    received[rank] = max(left, 1 + received[rank])
                    changed = [i for i, (a, b) in enumerate(zip(event.before, held)) if a != b]
                    messages.append(LoggedMessage(event.peer, rank, event.nbytes, received[rank], changed))
                else:
                    break  # its message is not sent yet, so other ranks come first
                states[rank].append((received[rank], held))
                done[rank] += 1
    messages.sort(key=lambda m: (m.round, m.source))
    last = max((m.round for m in messages), default=0)
    held = [[[s for at, s in state if at <= k][-1] for state in states] for k in range(last + 1)]
    return Rounds(messages, held)
