"""What an experiment's messages and computations are charged: its platform, its nodes, its sizes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from dlpar.theory.steps.sizes import Sizes, Tensor, sizes

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment
    from dlpar.worlds.platforms import Link, Platform, Workload


PACKET_HEAD = 40
"""Bytes in front of the weights in an answer: five whole numbers."""

BOTH_WAYS = "both directions share a port: how messages that cross take turns is not followed"
"""Why a form is not exact on half-duplex links."""


MEETING = "short messages wait for their receivers on links that differ: who comes first is not followed"
"""Why a form is not exact where messages above the eager limit are shorter than a latency."""


class Fabric:
    """The ranks of an experiment on the nodes of a platform.

    Parameters
    ----------
    platform : Platform
        Its links, device and timing.
    nodes : list of int
        Node of each rank.
    sizes : Sizes
        What is sent and computed.
    itemsize : int
        Bytes of an element.
    flops : float
        FLOP/s a device sustains.
    scale : float, default 1
        Bytes charged for each byte: above 1 where a small model stands in for a larger one.
    """

    def __init__(
        self,
        platform: Platform,
        nodes: list[int],
        sizes: Sizes,
        itemsize: int,
        flops: float,
        scale: float = 1.0,
    ) -> None:
        self.platform, self.nodes, self.sizes, self.itemsize = platform, nodes, sizes, itemsize
        self.scale, self.flops = scale, flops
        self.inside, self.between = platform.link(True), platform.link(False)
        self.many = len(set(nodes)) > 1
        crowded = len(set(nodes)) < len(nodes)
        self.one_link = not (self.many and crowded and self.inside != self.between)
        self.own_ports = platform.nic == "each" or not (self.many and crowded)

    @classmethod
    def of(cls, experiment: Experiment) -> Fabric:
        """As the simulated world has it; raises `BadExperiment` where there is no such platform, or nothing to send."""
        from dlpar.worlds.platforms import nodes_of, platform_of, workload

        cluster, own, itemsize = experiment.cluster, sizes(experiment), int(experiment.dtype[-2:]) // 8
        platform, scale = platform_of(experiment), 1.0
        big = workload(cluster.stand_in_for) if cluster.stand_in_for else None
        flops = _sustained(platform, big)
        if (
            big is not None and cluster.messages == "values"
        ):  # the small model's costs and bytes, times so many
            scale, work = big.in_place_of(own.elements * itemsize, own.flops)
            flops = flops / work if work else inf
        elif big is not None:
            itemsize = big.itemsize
            own = Sizes(tuple(Tensor(layer.parameters, layer.flops) for layer in big.layers), big.flops)
        return cls(platform, nodes_of(experiment), own, itemsize, flops, scale)

    @property
    def uniform(self) -> bool:
        """Whether all ranks have ports of their own on links that are all alike."""
        return self.one_link and self.own_ports

    @property
    def crowd(self) -> int:
        """Most ranks that share a port to other nodes."""
        return 1 if self.own_ports else max(map(self.nodes.count, set(self.nodes)))

    @property
    def half_duplex(self) -> bool:
        """Whether any link in use is."""
        return "half" in ((self.inside.duplex, self.between.duplex) if self.many else (self.inside.duplex,))

    @property
    def slowest(self) -> Link:
        """The link that a message which leaves a node takes; that of the one node, if there is one only."""
        return self.between if self.many else self.inside

    def link(self, source: int, dest: int) -> Link:
        return self.inside if self.nodes[source] == self.nodes[dest] else self.between

    def port(self, rank: int, other: int) -> tuple[str, int]:
        """Whose port `rank` uses to and from `other`: its own, or its node's."""
        if self.nodes[rank] == self.nodes[other] or self.platform.nic == "each":
            return ("inside" if self.nodes[rank] == self.nodes[other] else "between"), rank
        return "node", self.nodes[rank]

    def busy(self, source: int, dest: int, nbytes: float) -> float:
        """Seconds for which a message of so many bytes keeps a port."""
        return nbytes * self.scale / self.link(source, dest).bandwidth

    def bytes(self, elements: float) -> float:
        return elements * self.itemsize

    def blocks(self, nbytes: float) -> bool:
        """Whether a sender waits until the message has left."""
        return nbytes * self.scale > self.platform.eager

    def unless_they_meet(self, *nbytes: float) -> str:
        """Why messages of these sizes are not followed exactly, or nothing."""
        link = self.slowest
        brief = any(
            self.blocks(size) and size * self.scale < link.latency * link.bandwidth for size in nbytes
        )
        return MEETING if brief and not self.uniform else ""

    def seconds(self, flops: float, rank: int | None = None) -> float:
        """Mean seconds of a computation, on `rank` or on one that is no straggler."""
        return flops / self.flops * self.platform.stragglers.get(rank, 1.0)


def _sustained(platform: Platform, big: Workload | None) -> float:
    """FLOP/s on the workload."""
    return 1 / (platform.seconds(1.0, big) - platform.seconds(0.0, big))
