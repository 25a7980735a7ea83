"""Which rank lives on which node."""

from __future__ import annotations

from dlpar.platforms.platform import Platform
from dlpar.schema import BadExperiment


def placement(workers: int, extra: int, platform: Platform, colocated: bool = False) -> list[int]:
    """The node of every rank: workers fill one node after the other, a device each.

    Parameters
    ----------
    workers : int
        Ranks 0 to ``workers - 1``.
    extra : int
        Servers and leaf servers, the ranks after them.  They need no device.
    platform : Platform
        Where they live.
    colocated : bool, default False
        False: each has a node of its own, and so a port of its own; where the platform is
        a single node, they share it, a device each.  True: they share the workers' nodes,
        dealt out one by one.

    Returns
    -------
    list of int, length ``workers + extra``

    Raises
    ------
    BadExperiment
        If the platform has too few devices or nodes.
    """
    used = -(-workers // platform.devices)
    nodes = [platform.node_of(worker) for worker in range(workers)]
    if colocated:
        platform.check(workers)
        return nodes + [server % used for server in range(extra)]
    platform.check(workers + extra)
    if platform.nodes == 1:
        return nodes + [0] * extra
    if used + extra > platform.nodes:
        raise BadExperiment(
            f"cluster.platform: got {platform.name!r} for {used:,} nodes of workers and {extra:,} of servers, "
            f"allowed there is at most {platform.nodes:,}"
        )
    return nodes + list(range(used, used + extra))
