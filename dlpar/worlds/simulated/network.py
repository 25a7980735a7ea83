"""When messages arrive: ports, latency and bandwidth, the same on every clock that is not the wall's.

A message of B bytes leaves when the sender's port is free, keeps that port for
B / bandwidth, and its head arrives a latency later; then it keeps the receiver's
port for B / bandwidth.  Ports of receivers are granted in the order in which heads
arrive, whoever receives what first.  So a queue in front of a parameter server is
a result, not an assumption (LogGP, Alexandrov et al. 1995, with a port at each end).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlpar.worlds.platforms import Link, Platform


class Port:
    """One direction of what joins a rank, or all ranks of a node, to a network.

    Attributes
    ----------
    free : float
        Seconds on the clock at which it has carried all it was given.
    pending : int
        Messages whose heads have not arrived yet, but which will need it.
    latency : float
        Seconds of what leaves here.
    per_byte : float
        Seconds a byte keeps it.
    """

    __slots__ = ("free", "latency", "pending", "per_byte")

    def __init__(self, latency: float, per_byte: float) -> None:
        self.free, self.pending, self.latency, self.per_byte = 0.0, 0, latency, per_byte


class Route(NamedTuple):
    """How a rank reaches others over one kind of link, and they it: the same port where the link is half duplex."""

    out: Port
    into: Port


class Network:
    """All routes between ranks that sit on the nodes of a platform.

    Parameters
    ----------
    platform : Platform
        Links, and who shares a port.
    nodes : sequence of int
        Node of each rank.
    scale : float
        Bytes charged for each byte sent: above 1 where a small model stands in for a larger one.

    Attributes
    ----------
    inside, between : list of Route
        Of each rank, to ranks of its own node and to others.
    least : float
        The shortest latency: nothing sent from now on gets to a port sooner.
    one_port : list of bool
        Whether each rank receives over one port only, so that messages to it are complete in order of arrival.
    """

    def __init__(self, platform: Platform, nodes: Sequence[int], scale: float = 1.0) -> None:
        self.nodes = list(nodes)
        shared: dict[int, Route] = {}
        self.between, self.inside = [], []
        far, near = (_kind_of_route(platform.link(same_node), scale) for same_node in (False, True))
        for node in self.nodes:
            if platform.nic == "each" or node not in shared:
                shared[node] = far()
            self.between.append(shared[node])
            self.inside.append(near())
        on = Counter(self.nodes)
        links = [platform.link(False)] * (len(on) > 1) + [platform.link(True)] * (max(on.values()) > 1)
        # What goes out of a half-duplex port can get in the way of what comes in at any time.
        full = all(link.duplex == "full" for link in links)
        self.least = min((link.latency for link in links), default=0.0) if full else -inf
        self.one_port = [on[node] == 1 or len(on) == 1 for node in self.nodes]


def _kind_of_route(link: Link, scale: float) -> Callable[[], Route]:
    """What makes routes over one kind of link; thousands of them hold the same two numbers, not copies."""
    latency, per_byte = link.latency, scale / link.bandwidth

    def route() -> Route:
        out = Port(latency, per_byte)
        return Route(out, out if link.duplex == "half" else Port(latency, per_byte))

    return route
