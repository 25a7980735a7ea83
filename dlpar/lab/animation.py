"""Animation of a collective, round by round.

It shows each rank's contributions to each chunk, from real messages.

A communicator logs the messages, which are then divided into rounds. No clock is read: a message comes after
all messages that its sender received before. Source: Lamport, "Time, Clocks, and the Ordering of Events
in a Distributed System" (CACM 1978).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.jobs.launch import spmd
from dlpar.lab import theme
from dlpar.lab.figure import Figure, blank, captioned, gantt, require

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Arrival, Comm, Request
    from dlpar.comm.base import Collective

MOST = 16
"""Maximum numbers of ranks and of chunks. A figure and the digits of a float64 cannot distinguish more."""

CELL = 0.74
"""Width of a cell. The rest of its column is for arrows."""

SENT = theme.PHASES["communicate"].colour
UNKNOWN = "#9a9a9a"


def animate(
    collective: Collective, workers: int = 4, chunks: int | None = None, scheme: str = "ring", at: int = 0
) -> Figure:
    """Run a collective on real ranks. Show the messages and all ranks' contents round by round.

    A row is a rank, and a column is a chunk of one element. A cell lists the ranks whose contributions it
    holds. A cell with more contributions is darker. In a round, a rank sends at most one message, receives at
    most one, and forwards only earlier data. So rounds are the cost of a collective on links that carry one
    message each way at a time. The order of messages in this run does not matter.

    Parameters
    ----------
    collective : callable
        ``collective(comm, tensor)``, in place, made of send and receive: one of
        :mod:`dlpar.collectives` or your own.
    workers : int, default 4
        Ranks, 1 to 16.
    chunks : int, optional
        Elements of the tensor, 1 to 16; default: one for each rank.
    scheme : str, default "ring"
        Scheme whose colour marks a complete sum.
    at : int, default 0
        Round shown at first. 0 is the start.

    Returns
    -------
    Figure
        Figure with a slider over the rounds. ``caption(figure)`` is its caption, and ``table(figure)`` lists
        its messages.

    Raises
    ------
    ValueError
        If `collective` is not a function, a number is out of range, or no message was seen, as with the library's
        own collectives.
    JobFailed
        If the collective raised or hung on a rank.
    """
    allowed = "allowed is a function of (comm, tensor), as dlpar.collectives.ring_allreduce is"
    require(callable(collective), f"collective: got {collective!r:.60}, {allowed}")
    chunks = workers if chunks is None else chunks
    for name, number in {"workers": workers, "chunks": chunks}.items():
        fine = isinstance(number, Integral) and 1 <= number <= MOST
        require(fine, f"{name}: got {number!r}, allowed is a whole number from 1 to {MOST}")
    whole = getattr(collective, "func", collective)  # the function of a functools.partial
    name = getattr(whole, "__name__", type(whole).__name__)
    rounds = record(collective, [[_share(rank, workers)] * chunks for rank in range(workers)])
    seen = "which sends nothing that can be seen, allowed is one made of send and receive"
    require(workers == 1 or len(rounds.messages) > 0, f"collective: got {name}, {seen}")
    last = len(rounds.held) - 1
    require(0 <= at <= last, f"at: got {at}, allowed is a round from 0 to {last}")
    return _figure(rounds, workers, chunks, name, scheme, at)


def contributions(value: float, workers: int) -> Counter[int] | None:
    """Return how often a value contains each rank's contribution.

    Return None if it is not a sum of contributions.

    Rank r contributes its own digit, ``B ** r``, so that no other sum has the same value.
    """
    base = int(_share(1, workers))
    if value != value or value < 0 or value >= base**workers or value != int(value):
        return None
    digits = {rank: int(value) // base**rank % base for rank in range(workers)}
    return Counter({rank: times for rank, times in digits.items() if times})


def _share(rank: int, workers: int) -> float:
    return float(2 ** (52 // workers)) ** rank


def _figure(rounds: Rounds, workers: int, chunks: int, name: str, scheme: str, at: int) -> Figure:
    last, colour = len(rounds.held) - 1, theme.scheme_colour(scheme)
    views = [_view(rounds, k, workers, colour) for k in range(last + 1)]
    steps = []
    for k, (cells, notes) in enumerate(views):
        changes = [{key: [values] for key, values in cells.items()}, {"annotations": notes}, [0]]
        steps.append({"label": str(k or "start"), "method": "update", "args": changes})
    cells, notes = views[at]
    figure = blank(46 * workers + 54 + 140, **_layout(workers, chunks, steps, at, notes))
    bars = [(rank, chunk, CELL, "") for rank in range(workers) for chunk in range(chunks)]
    hover = "rank %{y}, chunk %{base}: contributions of %{hovertext}<extra></extra>"
    text = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "insidetextfont_size": 14}
    gantt(figure, bars, width=0.8, showlegend=False, name="contributions", hovertemplate=hover, **text)
    looks = {key.replace(".", "_"): values for key, values in cells.items()}
    figure.update_traces(marker_line_color=SENT, **looks)
    sent = [sum(m.nbytes for m in rounds.messages if m.source == rank) for rank in range(workers)]
    busiest = max(sent)
    sentence = (
        f"{name} on {workers} rank{'s' * (workers > 1)}, {chunks} chunk{'s' * (chunks > 1)} of 8 bytes: "
        f"{len(rounds.messages)} messages and {sum(sent):,} bytes in {last} round{'s' * (last != 1)}; "
        f"the busiest rank sends {busiest:,} bytes, {busiest / (8 * chunks):.3g} times the tensor."
    )
    rows = [(m.round, m.source, m.dest, m.nbytes, ", ".join(map(str, m.changed))) for m in rounds.messages]
    return captioned(figure, sentence, (("round", "from rank", "to rank", "bytes", "chunks changed"), rows))


def _view(rounds: Rounds, k: int, workers: int, colour: str) -> tuple[dict[str, list], list[dict]]:
    """Return the style of cells after round k, and the arrows and text of that round."""
    cells: dict[str, list] = defaultdict(list)
    now = [m for m in rounds.messages if m.round == k]
    arrived = {(m.dest, chunk) for m in now for chunk in m.changed}
    for rank, values in enumerate(rounds.held[k]):
        for chunk, value in enumerate(values):
            held = contributions(value, workers)
            share = len(held or ()) / workers
            shade = theme.lighter(colour, 0.88 * (1 - share) if share else 1)
            whose = "no rank: not a sum of contributions" if held is None else _names(held) or "no rank"
            cells["text"].append("?" if held is None else _short(held, workers, room=64 // len(values)))
            cells["hovertext"].append(whose)
            cells["marker.color"].append(fill := UNKNOWN if held is None else shade)
            cells["insidetextfont.color"].append(_ink(fill))
            cells["marker.line.width"].append(3 if (rank, chunk) in arrived else 0)
    sent = [f"{m.source}→{m.dest}" for m in now]
    shown = ", ".join(sent[:MOST]) + (f" and {len(sent) - MOST} more" if len(sent) > MOST else "")
    text = f"<b>Round {k} of {len(rounds.held) - 1}</b>: {shown}"
    text = text if k else "<b>Start</b>: every rank holds its own contribution"
    return cells, [*_arrows(now), theme.annotation(text, 0, 1, xanchor="left", yshift=8)]


def _ink(fill: str) -> str:
    """Return black or white, whichever has more contrast (WCAG 2.1, relative luminance)."""
    red, green, blue = ((int(fill[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5))
    return "#111111" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def _names(held: Counter[int]) -> str:
    return "+".join(f"{times}×{rank}" if times > 1 else str(rank) for rank, times in sorted(held.items()))


def _short(held: Counter[int], workers: int, room: int) -> str:
    """Return the contributions in a cell, shortened to about `room` characters."""
    if set(held.values()) == {1} and len(held) == workers > 4:
        return "all"
    count = sum(held.values())  # a contribution that arrived twice appears as 5 of 4
    texts = [_names(held), f"{count} of {workers}", f"{count}/{workers}"]
    return next((text for text in texts if len(text) <= room), texts[-1])


def _arrows(messages: list[LoggedMessage]) -> list[dict[str, Any]]:
    """Return an arrow beside each chunk that a message changed. Arrows of one chunk are adjacent."""
    head = {"arrowhead": 2, "arrowsize": 1.2, "arrowwidth": 2, "arrowcolor": SENT, "arrowside": "end+start"}
    head |= {"startarrowhead": 6, "startarrowsize": 0.6, "showarrow": True, "text": ""}
    arrows = []
    for chunk in sorted({chunk for message in messages for chunk in message.changed}):
        own = [message for message in messages if chunk in message.changed]
        for place, message in enumerate(own, start=1):
            x = chunk + CELL + (1 - CELL) * place / (len(own) + 1)
            ends = {"ax": x, "ay": message.source, "x": x, "y": message.dest, "axref": "x", "ayref": "y"}
            arrows.append({**ends, **head})
    return arrows


def _layout(workers: int, chunks: int, steps: list[dict], at: int, notes: list[dict]) -> dict[str, Any]:
    # The slider is below the title of the axis. Its position is a share of the plot's height.
    grey = "rgba(128,128,128,0.35)"
    slider = {
        "active": at, "steps": steps, "x": 0, "len": 1, "y": -66 / (46 * workers), "yanchor": "top",
        "pad": {"t": 0, "b": 0}, "currentvalue": {"visible": False}, "bgcolor": grey, "bordercolor": grey,
        "tickcolor": grey, "activebgcolor": SENT, "font": {"size": 13},
    }  # fmt: skip
    plain = {"showgrid": False, "showline": False, "ticks": "", "fixedrange": True}
    columns = {"tickvals": [c + CELL / 2 for c in range(chunks)], "ticktext": [*map(str, range(chunks))]}
    xaxis = theme.axis("chunk", (-0.006 * chunks, chunks), **columns, **plain)
    yaxis = theme.rows([f"rank {r}" for r in range(workers)], **plain)
    look = {"barmode": "overlay", "margin": {"l": 76, "r": 16, "t": 54, "b": 140}}
    return {"xaxis": xaxis, "yaxis": yaxis, "sliders": [slider], "annotations": notes, **look}


# ---- the log of messages -------------------------------------------------------------


class LoggedMessage(NamedTuple):
    """Message that was sent and received.

    Attributes
    ----------
    source, dest : int
        Ranks.
    nbytes : int
        Payload.
    round : int
        Number of the round, from 1. In a round a rank sends at most one message, receives at most
        one, and forwards only earlier data.
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
        ``held[k][rank]``: the rank's tensor after round k. ``held[0]`` has the initial tensors.
    """

    messages: list[LoggedMessage]
    held: list[list[list[float]]]


class Event(NamedTuple):
    """Send or receive of a message, logged by its rank.

    It holds ``send`` or ``recv``, and the rank's tensor before the event.
    """

    kind: str
    peer: int
    tag: int
    nbytes: int
    before: list[float]


class LoggingComm:
    """Communicator that logs every message. The inner communicator does everything else.

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

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Request:
        to = self.ranks[dest] if 0 <= dest < len(self.ranks) else dest
        self.events.append(Event("send", to, tag, tensor.nbytes, self.tensor.tolist()))
        return self.inner.isend(tensor, dest, tag)

    def send(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> None:
        self.isend(tensor, dest, tag).wait()

    def recv(self, *into: Any, **named: Any) -> Arrival:
        return self.received(self.tensor.tolist(), self.inner.recv(*into, **named))

    def irecv(self, *into: Any, **named: Any) -> Request:
        return _Receiving(self, self.inner.irecv(*into, **named))

    def sendrecv(
        self, tensor: torch.Tensor, dest: int, into: torch.Tensor, source: int, tag: int = 0
    ) -> Arrival:
        sending, arrival = self.isend(tensor, dest, tag), self.recv(into, source, tag)
        sending.wait()
        return arrival

    def start(self, collective: Callable[..., Any], bucket: torch.Tensor) -> Request:
        def logged(comm: Comm, bucket: torch.Tensor) -> Any:
            return collective(LoggingComm(comm, self.tensor, self.ranks, self.events), bucket)

        return self.inner.start(logged, bucket)

    def split(self, color: int, key: int = 0) -> LoggingComm:
        group = self.inner.split(color, key)
        ranks = group.broadcast(group.gather(self.ranks[self.inner.rank]))
        return LoggingComm(group, self.tensor, ranks, self.events)

    def received(self, before: list[float], arrival: Arrival) -> Arrival:
        """Log a message that has arrived. `before` holds the tensor's earlier values."""
        self.events.append(Event("recv", self.ranks[arrival.source], arrival.tag, arrival.nbytes, before))
        return arrival


class _Receiving:
    """Pending receive. It is logged once, when it is complete."""

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
        Initial tensor of each rank. The number of lists is the number of ranks.
    timeout : float, default 20
        Seconds after which ranks that wait for each other are killed.

    Raises
    ------
    JobFailed
        If the collective raised or hung on a rank.
    """
    return in_rounds(spmd(_logged, collective, starts, workers=len(starts), timeout=timeout), starts)


def _logged(comm: Comm, collective: Callable[..., Any], starts: list[list[float]]) -> list[Event]:
    """Run the collective on this rank and return its events. The last event holds the final tensor."""
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
                    received[rank] = max(under_way[event.peer, rank, event.tag].popleft(), 1 + received[rank])
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
