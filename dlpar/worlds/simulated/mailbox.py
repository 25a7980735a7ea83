"""Matching of messages with receives by source and tag, in posting order, as in MPI."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from dlpar.comm.base import ANY, Arrival, fill, too_long
from dlpar.worlds.simulated.simulator import Activity, Simulator


class Message:
    """Message in transit.

    Its sender fills it in, and its receiver reads it as an :class:`Arrival`.

    Attributes
    ----------
    left, done : float
        Times, in seconds, at which the message has left the sender's port and has arrived completely.
    payload : Any
        A copy of the tensor that was sent.
    sender : Activity or None
        The sender, if it waits until a matching receive is posted.
    met : float or None
        Time, in seconds, at which a matching receive was posted.
    overhead : float
        Seconds for which a processor is busy at each end, if messages keep processors busy.
    box : Mailbox
        The receiver's mailbox. Like the next two attributes, it is known once the message's head is under
        way.
    port, busy : Port, float
        The receiver's port, and the seconds for which the message occupies it.
    """

    __slots__ = "box busy done left met nbytes overhead payload port sender source tag".split()
    due = None  # never None for an activity, the other kind of event

    def arrive(self, time: float) -> None:
        """Grant the receiver's port to the message, whose header has arrived."""
        port = self.port
        port.pending -= 1
        if self.sender is not None and self.left < time:
            self.left = time  # only now can a waiting sender know of the match
        port.free = self.done = (time if port.free <= time else port.free) + self.busy
        self.box.deliver(self)

    # A separate Arrival for each message would cost more than all other work of a receive.

    def __getitem__(self, which: int) -> int:
        return (self.source, self.tag, self.nbytes)[which]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, Message)) else NotImplemented

    def __repr__(self) -> str:
        return repr(Arrival(*self))


def _in_words(receive: Receive | Mailbox) -> str:
    """Describe a receiving call."""
    tag = "" if receive.tag == ANY else f" (tag {receive.tag})"
    return f"recv from {'any rank' if receive.source == ANY else f'rank {receive.source}'}{tag}"


class Receive:
    """Posted receive."""

    __slots__ = ("arrival", "box", "into", "message", "posted", "source", "tag", "waiting")

    def __init__(self, box: Mailbox, into: Any, source: int, tag: int) -> None:
        self.box, self.into, self.source, self.tag, self.posted = box, into, source, tag, box.owner.clock
        self.message, self.waiting, self.arrival = None, False, None

    __str__ = _in_words

    def give_up(self, activity: Activity) -> None:
        """Stop waiting because of a death."""
        self.waiting = False

    def test(self) -> bool:
        """Return whether the message is complete."""
        message = self.message
        return self.arrival is not None or (message is not None and message.done <= self.box.owner.clock)

    def wait(self) -> Arrival:
        """Block until the message is complete, and take it."""
        if self.arrival is None:
            self.arrival = self.box.take(self)
        return self.arrival


class Mailbox:
    """Messages to one rank in one group, and the rank's posted receives.

    Parameters
    ----------
    simulator : Simulator
        Keeper of the clock.
    member : int
        The rank's number in the whole simulation.

    Attributes
    ----------
    node : int
        Node of the rank.
    near, far : Port
        Ports for messages from the rank's own node, and from other nodes.
    charged : bool
        Whether messages keep processors busy.
    in_order : bool
        Whether messages are complete in the order in which they are delivered.
    owner : Activity
        The activity that receives here, once it is ready.
    blocked : bool
        Whether the owner waits in a receiving call, with `source` and `tag`, for a matching message.
    message : Message
        The last message for such a call.
    waited : float
        Seconds that the owner has waited for messages.
    """

    def __init__(self, simulator: Simulator, member: int) -> None:
        self.simulator, network = simulator, simulator.network
        self.node, self.in_order = network.nodes[member], network.one_port[member]
        self.near, self.far = network.inside[member].into, network.between[member].into
        self.inbox: deque[Message] = deque()  # usually taken from its left end
        self.posted: list[Receive] = []  # receives with a message that has not been taken
        self.waited, self.blocked, self.charged = 0.0, False, network.charged

    __str__ = _in_words

    def give_up(self, activity: Activity) -> None:
        """Stop waiting because of a death."""
        self.blocked = False

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
        """Match a message that has its receive port and will be complete at ``message.done``."""
        if self.blocked:  # it takes the first matching message, and has posted nothing else
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
            if receive.source in (message.source, ANY) and receive.tag in (message.tag, ANY):
                earlier = receive.message
                if earlier is None:
                    self._match(receive, message)
                    return
                may_replace = receive.source == ANY or message.source == earlier.source
                if may_replace and message.done < earlier.done:
                    # Complete before a message that got another port sooner. The other message looks further.
                    self._match(receive, message)
                    message = earlier
        inbox = self.inbox
        if message.met is None:
            inbox.append(message)
        else:  # again in front of later messages of the same rank
            later = (i for i, m in enumerate(inbox) if m.source == message.source and m.done >= message.done)
            inbox.insert(next(later, len(inbox)), message)

    def take(self, receive: Receive) -> Arrival:
        """Block until the message of a posted receive is complete, and store it."""
        owner, simulator, message = self.owner, self.simulator, receive.message
        since = owner.clock
        if message is None or message.done > since:
            receive.waiting, owner.waits_for = True, receive
            simulator.next().switch() if message is None else simulator.advance(owner, message.done)
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
            store(message, receive.into)
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


def store(message: Message, into: Any) -> None:
    """Copy a message into a buffer that is large enough. Of a message that carries only sizes, copy the header."""
    if message.nbytes > into.nbytes:
        raise too_long(into.nbytes, message.source, message.tag, message.nbytes)
    if isinstance(into, torch.Tensor):
        fill(into, message.payload, message.nbytes)
    elif getattr(into, "head", None) is not None:
        into.head.copy_(message.payload)
