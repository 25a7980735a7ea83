"""The network model: ports, latency and bandwidth, the same on every clock that is not the wall's.

The sender's processor is busy with a message of B bytes for the link's overhead o.  Then the message leaves when
the sender's port is free, and keeps that port for B / bandwidth.  Its head arrives a latency - 2 o later and keeps the
receiver's port for B / bandwidth.  The receiver's processor is busy for another o when it takes the message.  Ports of
receivers are granted in the order in which heads arrive, not of receive calls.  So a queue in front of a parameter
server is a result, not an assumption (LogGP, Alexandrov et al. 1995, with a port at each end).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.worlds.platforms import Link, Platform


class Port:
    """One direction of the connection of a rank, or of all ranks of a node, to a network.

    Attributes
    ----------
    free : float
        Moment at which it has carried all messages given to it so far, in seconds.
    pending : int
        Messages that will need it once their heads arrive.
    latency : float
        Seconds until the head of a message that leaves here arrives.
    per_byte : float
        Seconds each byte keeps it.
    overhead : float
        Seconds of a processor at each end of a message.
    """

    __slots__ = ("free", "latency", "overhead", "pending", "per_byte")

    def __init__(self, link: Link, scale: float) -> None:
        self.free, self.pending, self.overhead = 0.0, 0, link.overhead
        self.latency, self.per_byte = link.latency - 2 * link.overhead, scale / link.bandwidth


class Route:
    """The ports of a rank on one kind of link, out and in; bytes are charged `scale` times."""

    def __init__(self, link: Link, scale: float) -> None:
        self.out, self.into = Port(link, scale), Port(link, scale)


class Network:
    """All routes between ranks that sit on the nodes of a platform.

    Parameters
    ----------
    platform : Platform
        Gives the links, and whether a node shares a port.
    nodes : sequence of int
        Node of each rank.
    scale : float
        Bytes charged for each byte sent: above 1 where a small model stands in for a larger one.

    Attributes
    ----------
    inside, between : list of Route
        Of each rank, to ranks of its own node and to others.
    least : float
        The shortest time from a port to another: no later message gets to one sooner.
    charged : bool
        Whether messages cost processors time.
    one_port : list of bool
        Whether each rank receives over one port only, so that messages to it are complete in order of arrival.
    """

    def __init__(self, platform: Platform, nodes: Sequence[int], scale: float = 1.0) -> None:
        self.nodes = list(nodes)
        shared: dict[int, Route] = {}
        self.between, self.inside = [], []
        far, near = platform.link(same_node=False), platform.link(same_node=True)
        for node in self.nodes:
            if platform.nic == "each" or node not in shared:
                shared[node] = Route(far, scale)
            self.between.append(shared[node])
            self.inside.append(Route(near, scale))
        on = Counter(self.nodes)
        links = [far] * (len(on) > 1) + [near] * (max(on.values()) > 1)
        self.least = min((link.latency - 2 * link.overhead for link in links), default=0.0)
        self.charged = any(link.overhead for link in links)
        self.one_port = [on[node] == 1 or len(on) == 1 for node in self.nodes]
