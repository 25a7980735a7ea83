"""Log of the messages of a collective: a communicator that records them, and their division into rounds.

No clock is read: a message comes after all messages that its sender had received before
(Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", CACM 1978).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlpar.jobs.launch import spmd

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Arrival, Comm, Request


@dataclass
class LoggedMessage:
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


@dataclass
class Rounds:
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


@dataclass
class _Event:
    """One end of a message, as its rank saw it; `held` is filled in at the next event."""

    kind: str
    peer: int
    tag: int
    nbytes: int
    before: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)


class LoggingComm:
    """A communicator that logs every message; everything else is done by the inner communicator.

    Parameters
    ----------
    comm : Comm
        Carries the messages.
    tensor : Tensor
        Tensor whose values are followed.
    """

    def __init__(
        self, comm: Comm, tensor: torch.Tensor, ranks: list[int] | None = None, events: list | None = None
    ):
        self.inner, self._tensor = comm, tensor
        self._ranks = ranks or list(range(comm.size))  # ranks have new numbers in a group
        self.events: list[_Event] = [] if events is None else events

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        self._sent(tensor, dest, tag)
        self.inner.send(tensor, dest, tag)

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        self._sent(tensor, dest, tag)
        return self.inner.isend(tensor, dest, tag)

    def recv(self, into: torch.Tensor, *where: Any, **named: Any) -> Arrival:
        before = self.look()
        return self._received(before, self.inner.recv(into, *where, **named))

    def irecv(self, into: torch.Tensor, *where: Any, **named: Any) -> Request:
        return _Receiving(self, self.inner.irecv(into, *where, **named))

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        self._sent(tensor, dest, tag)
        before = self.look()
        return self._received(before, self.inner.sendrecv(tensor, dest, into, source, tag))

    def start(self, collective: Callable[..., Any], bucket: torch.Tensor) -> Request:
        def logged(comm: Comm, bucket: torch.Tensor) -> Any:
            return collective(LoggingComm(comm, self._tensor, self._ranks, self.events), bucket)

        return self.inner.start(logged, bucket)

    def split(self, color: int, key: int = 0) -> LoggingComm:
        group = self.inner.split(color, key)
        ranks = group.broadcast(group.gather(self._ranks[self.inner.rank]))
        return LoggingComm(group, self._tensor, ranks, self.events)

    def look(self) -> list[float]:
        """Read the tensor, and note it as the result of the last event."""
        now = self._tensor.tolist()
        if self.events:
            self.events[-1].held = now
        return now

    def _sent(self, tensor: torch.Tensor, dest: int, tag: int) -> None:
        before = self.look()
        dest = self._ranks[dest] if 0 <= dest < len(self._ranks) else dest
        self.events.append(_Event("send", dest, tag, tensor.nbytes, before, before))

    def _received(self, before: list[float], arrival: Arrival) -> Arrival:
        source = self._ranks[arrival.source]
        self.events.append(_Event("recv", source, arrival.tag, arrival.nbytes, before, before))
        self.look()
        return arrival


class _Receiving:
    """A receive under way, logged once, when it is complete."""

    def __init__(self, comm: LoggingComm, request: Request) -> None:
        self._comm, self._request, self._logged = comm, request, False

    def wait(self) -> Arrival:
        return self._log(self._comm.look())

    def test(self) -> bool:
        before = self._comm.look()
        if self._request.test():
            self._log(before)
        return self._logged

    def _log(self, before: list[float]) -> Arrival:
        arrival = self._request.wait()
        if not self._logged:
            self._logged = True
            self._comm._received(before, arrival)
        return arrival


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


def _logged(comm: Comm, collective: Callable[..., Any], starts: list[list[float]]) -> list[_Event]:
    """Run the collective on this rank and return its events."""
    import torch

    tensor = torch.tensor(starts[comm.rank], dtype=torch.float64, device=comm.device)
    logging = LoggingComm(comm, tensor)
    collective(logging, tensor)
    logging.look()
    return logging.events


def in_rounds(logs: list[list[_Event]], starts: list[list[float]]) -> Rounds:
    """Pair sends with receives, and assign each message to a round.

    A message leaves one round after the last message that its sender sent or received. It
    arrives at least one round after the last message that its receiver received.
    """
    # Rounds in which the messages left.
    under_way: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    sent, received = [0] * len(logs), [0] * len(logs)
    messages: list[LoggedMessage] = []
    states: list[list[tuple[int, list[float]]]] = [[(0, start)] for start in starts]
    todo = [deque(log) for log in logs]
    progress = True
    while progress:
        progress = False
        for rank, events in enumerate(todo):
            while events:
                event = events[0]
                if event.kind == "send":
                    sent[rank] = 1 + max(sent[rank], received[rank])
                    under_way[rank, event.peer, event.tag].append(sent[rank])
                elif under_way[event.peer, rank, event.tag]:
                    left = under_way[event.peer, rank, event.tag].popleft()
                    received[rank] = max(left, 1 + received[rank])
                    changed = [i for i, (a, b) in enumerate(zip(event.before, event.held)) if a != b]
                    messages.append(LoggedMessage(event.peer, rank, event.nbytes, received[rank], changed))
                else:
                    break  # its message is not sent yet, so other ranks come first
                states[rank].append((received[rank], event.held))
                events.popleft()
                progress = True
    messages.sort(key=lambda m: (m.round, m.source))
    last = max((m.round for m in messages), default=0)
    held = [[[s for at, s in state if at <= k][-1] for state in states] for k in range(last + 1)]
    return Rounds(messages, held)
