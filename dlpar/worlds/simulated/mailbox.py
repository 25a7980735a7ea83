"""Matching messages with receives, as MPI does: by source and tag, in the order in which both were posted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from dlpar.comm.base import ANY, Arrival
from dlpar.worlds.simulated.simulator import Simulator


class Message:
    """A message since its send, filled in by its sender and read by its receiver as an :class:`Arrival`.

    Attributes
    ----------
    left, done : float
        Seconds at which it has left the sender's port, and at which all of it is there.
    payload : Any
        A copy of the tensor that was sent.
    sender : Activity or None
        The sender, if it waits until a matching receive is posted.
    met : float or None
        Seconds at which a matching receive was there.
    overhead : float
        Seconds of a processor at each end, where messages cost any.
    box : Mailbox
        The receiver's; like the next two known of messages whose head is on its way.
    port, busy : Port, float
        The receiver's port, and the seconds the message keeps it.
    """

    __slots__ = (
        "box", "busy", "done", "left", "met", "nbytes", "overhead", "payload", "port", "sender", "source", "tag",
    )  # fmt: skip
    due = None  # which an activity, the other kind of event, never has

    def arrive(self, time: float) -> None:
        """Grant the receiver's port to the message, whose head has arrived."""
        port = self.port
        port.pending -= 1
        if self.sender is not None and self.left < time:
            self.left = time  # a sender that waits cannot know before that it was met
        port.free = self.done = (time if port.free <= time else port.free) + self.busy
        self.box.deliver(self)

    # An Arrival of its own for each message would cost more than the rest of receiving it.

    def __iter__(self) -> Iterator[int]:
        return iter((self.source, self.tag, self.nbytes))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, Message)) else NotImplemented

    def __repr__(self) -> str:
        return repr(Arrival(*self))


class Receive:
    """The request of a receive that was posted."""

    __slots__ = ("arrival", "box", "into", "message", "posted", "source", "tag", "waiting")

    def __init__(self, box: Mailbox, into: Any, source: int, tag: int) -> None:
        self.box, self.into, self.source, self.tag, self.posted = box, into, source, tag, box.owner.clock
        self.message, self.waiting, self.arrival = None, False, None

    def __str__(self) -> str:
        return _in_words(self.source, self.tag)

    def matches(self, message: Message) -> bool:
        return (self.source == message.source or self.source == ANY) and (
            self.tag == message.tag or self.tag == ANY
        )

    def test(self) -> bool:
        """Return whether the message is complete."""
        return self.arrival is not None or (
            self.message is not None and self.message.done <= self.box.owner.clock
        )

    def wait(self) -> Arrival:
        """Block until the message is there, and take it."""
        if self.arrival is None:
            self.arrival = self.box.take(self)
        return self.arrival


class Mailbox:
    """The messages to one rank in one group, and the receives it has posted.

    Parameters
    ----------
    simulator : Simulator
        Keeper of the clock.
    store : callable
        ``store(message, into)`` copies a message into its buffer.
    member : int
        The rank's number in the whole simulation.

    Attributes
    ----------
    node : int
        Node of the rank.
    near, far : Port
        Ports of messages from its own node, and from others.
    charged : bool
        Whether messages cost processors time.
    in_order : bool
        Whether messages are complete in the order in which they are delivered.
    owner : Activity
        The activity that receives here, once it is ready.
    blocked : bool
        Whether it waits in a call that receives, of `source` and `tag`, for a message that fits.
    message : Message
        The last message for such a call.
    waited : float
        Seconds its owner has waited for messages.
    """

    __slots__ = (
        "blocked", "charged", "far", "in_order", "inbox", "message", "near", "node", "owner", "posted", "simulator",
        "source", "store", "tag", "waited",
    )  # fmt: skip

    def __init__(self, simulator: Simulator, store: Callable[[Message, Any], None], member: int) -> None:
        self.simulator, self.store, network = simulator, store, simulator.network
        self.node, self.in_order = network.nodes[member], network.one_port[member]
        self.near, self.far = network.inside[member].into, network.between[member].into
        self.inbox: deque[Message] = deque()  # taken from its left end, as a rule
        self.posted: list[Receive] = []  # those whose message has not been taken
        self.waited, self.blocked, self.charged = 0.0, False, network.charged

    def __str__(self) -> str:
        return _in_words(self.source, self.tag)

    def post(self, into: Any, source: int, tag: int) -> Receive:
        """Post a receive, and match it with the waiting message that is complete first."""
        receive = Receive(self, into, source, tag)
        inbox = self.inbox
        if inbox:
            found = place = None
            for i, message in enumerate(inbox):
                if (source == message.source or source == ANY) and (tag == message.tag or tag == ANY):
                    if found is None or message.done < found.done:
                        found, place = message, i
                    if self.in_order or source != ANY:
                        break
            if found is not None:
                del inbox[place]
                self._match(receive, found)
        self.posted.append(receive)
        return receive

    def deliver(self, message: Message) -> None:
        """Match a message that has its receive port, and will be complete at ``message.done``."""
        if self.blocked:  # it takes the first that fits, and has posted nothing else
            source, tag = self.source, self.tag
            if (source == message.source or source == ANY) and (tag == message.tag or tag == ANY):
                owner = self.owner
                self.message, self.blocked, message.met = message, False, owner.clock
                if message.sender is not None:
                    self.release(message, owner.clock)
                owner.due = message.done
                self.simulator.plan(message.done, owner)
                return
        for receive in self.posted:
            if receive.matches(message):
                earlier = receive.message
                if earlier is None:
                    self._match(receive, message)
                    return
                if message.done < earlier.done and (
                    receive.source == ANY or message.source == earlier.source
                ):
                    # Complete before one that was granted another port sooner: that one looks further.
                    self._match(receive, message)
                    message = earlier
        inbox = self.inbox
        if message.met is None:
            inbox.append(message)
        else:  # once more in front of later messages of the same rank
            later = (i for i, m in enumerate(inbox) if m.source == message.source and m.done >= message.done)
            inbox.insert(next(later, len(inbox)), message)

    def take(self, receive: Receive) -> Arrival:
        """Block until the message of a posted receive is complete, and store it."""
        owner, simulator, message = self.owner, self.simulator, receive.message
        since = owner.clock
        if message is None:
            receive.waiting, owner.waits_for = True, receive
            simulator.next().switch()
        elif message.done > since:
            receive.waiting, owner.waits_for = True, receive
            simulator.advance(owner, message.done)
        message = receive.message
        self.waited += owner.clock - since
        if self.charged:
            simulator.advance(owner, owner.clock + message.overhead)
        posted = self.posted
        if posted[-1] is receive:
            posted.pop()
        else:
            posted.remove(receive)
        if message.payload is not None or message.nbytes > receive.into.nbytes:
            self.store(message, receive.into)
        return message

    def _match(self, receive: Receive, message: Message) -> None:
        receive.message, message.met = message, receive.posted
        if message.sender is not None:
            self.release(message, receive.posted)
        if receive.waiting:
            self.simulator.wake(self.owner, message.done)

    def release(self, message: Message, met: float) -> None:
        """Let a waiting sender continue once the message has left."""
        self.simulator.wake(message.sender, max(message.left, met, message.sender.clock))
        message.sender = None


def _in_words(source: int, tag: int) -> str:
    """Describe a call that receives."""
    return f"recv from {'any rank' if source == ANY else f'rank {source}'}{'' if tag == ANY else f' (tag {tag})'}"
