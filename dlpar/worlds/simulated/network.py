"""Network model of paced and simulated ranks: ports, latency and bandwidth.

The sender's processor is busy with a message of B bytes for the link's overhead o.  Then the message leaves
when the sender's port is free, and occupies that port for B / bandwidth.  Its head arrives latency - 2 o
later, and the message occupies the receiver's port for B / bandwidth.  The receiver's processor is busy for
another o when it takes the message.  Ports of receivers are granted in the order of arriving heads, not of
receive calls.  So a queue in front of a parameter server is a result, not an assumption (LogGP, Alexandrov et
al. 1995, with a port at each end).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dlpar.worlds.platforms import Link, Platform


class Port:
    """One direction of the connection of a rank, or of all ranks of a node, to a network.

    Attributes
    ----------
    free : float
        Moment, in seconds, at which the port has carried all messages given to it so far.
    pending : int
        Messages that will need the port once their heads arrive.
    latency : float
        Seconds until the head of a message that leaves here arrives.
    per_byte : float
        Seconds for which each byte occupies the port.
    overhead : float
        Seconds for which a message keeps a processor at each end.
    """

    def __init__(self, link: Link, scale: float) -> None:
        self.free, self.pending, self.overhead = 0.0, 0, link.overhead
        self.latency, self.per_byte = link.latency - 2 * link.overhead, scale / link.bandwidth


class Route:
    """Two ports of a rank, out and in, on one kind of link. Bytes are charged `scale` times."""

    def __init__(self, link: Link, scale: float) -> None:
        self.out, self.into = Port(link, scale), Port(link, scale)


class Network:
    """All routes between ranks on the nodes of a platform.

    Parameters
    ----------
    platform : Platform
        Gives the links, and whether the ranks of a node share a port.
    nodes : sequence of int
        Node of each rank.
    scale : float
        Bytes charged for each byte sent: above 1 if a small model stands in for a larger one.

    Attributes
    ----------
    inside, between : list of Route
        Routes of each rank, to ranks of its own node and to others.
    charged : bool
        Whether messages take processor time.
    one_port : list of bool
        Whether each rank receives over only one port, so that messages to it are complete in order of
        arrival.
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
        self.charged = bool((len(on) > 1 and far.overhead) or (max(on.values()) > 1 and near.overhead))
        self.one_port = [on[node] == 1 or len(on) == 1 for node in self.nodes]
