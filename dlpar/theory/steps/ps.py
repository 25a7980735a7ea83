"""A step of the parameter server: bsp, ssp, asp and softsync, with one level of servers or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlpar.theory.servers import ps_asp_seconds, ps_step_seconds
from dlpar.theory.steps.fabric import BOTH_WAYS, PACKET_HEAD, Fabric
from dlpar.theory.steps.form import Form, in_step, too_many, wire_bytes
from dlpar.theory.steps.rounds import Moments
from dlpar.theory.steps.serving import Shard, answer, gather
from dlpar.theory.steps.work import Work, exchanges
from dlpar.worlds.platforms.platform import Link

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


ASKED = "when a question comes before an answer is due is not followed"
"""Why a form is not exact where weights are asked for apart."""


def form(experiment: Experiment, fabric: Fabric, work: Work) -> Form:
    """The form of an experiment whose scheme is a parameter server."""
    servers = _Servers(experiment, fabric)
    if experiment.sync.consistency == "bsp":
        return _lockstep(experiment, fabric, work, servers)
    return _free_running(experiment, fabric, work, servers)


class _Servers:
    """Ranges of weights, what messages about them weigh, and who is whose client."""

    def __init__(self, experiment: Experiment, fabric: Fabric) -> None:
        sync, self.workers, self.fabric = experiment.sync, experiment.workers, fabric
        self.count, self.groups = sync.servers, sync.groups
        share, rest = divmod(fabric.sizes.elements, sync.servers)
        self.lengths = [share + (number < rest) for number in range(sync.servers)]
        self.push = [wire_bytes(experiment, length, fabric.itemsize) for length in self.lengths]
        self.answer = [PACKET_HEAD + length * fabric.itemsize for length in self.lengths]
        self.shards = [
            Shard(self.workers + number, push, back)
            for number, (push, back) in enumerate(zip(self.push, self.answer))
        ]
        self.coding = 4 * fabric.sizes.elements if experiment.compression.codec != "none" else 0
        # Two FLOPs a weight to add a gradient, and two to move the weights.
        self.adding = [
            fabric.seconds(2 * length, shard.server) for length, shard in zip(self.lengths, self.shards)
        ]
        self.leaves = range(self.workers + self.count, self.workers + self.count + self.groups)
        n = fabric.sizes.elements
        self.leaf_push, self.leaf_answer = (
            wire_bytes(experiment, n, fabric.itemsize),
            PACKET_HEAD + n * fabric.itemsize,
        )
        self.leaf_adding = fabric.seconds(2 * n)

    @property
    def sizes(self) -> list[float]:
        """Bytes of every kind of message."""
        leaves = [self.leaf_push, self.leaf_answer] if self.groups else []
        return [*self.push, *self.answer, *leaves]

    @property
    def sent(self) -> float:
        """Bytes of one push of every worker and of the answers to it, on all levels."""
        above = sum(self.push) + sum(self.answer)
        if not self.groups:
            return self.workers * above
        return self.workers * (self.leaf_push + self.leaf_answer) + self.groups * above

    def by_closed_form(self, moments: Moments) -> Moments:
        """When all workers are done by :func:`ps_step_seconds`, without leaves."""
        link = self.fabric.slowest
        port = Link(link.latency, link.bandwidth / self.fabric.scale, link.duplex)
        push, back = sum(self.push), sum(self.answer)
        servers = ps_step_seconds(self.workers, self.count, push, port, 0.0, back)
        nodes = 2 * link.latency + self.fabric.crowd * (push + back) / port.bandwidth
        return [max(moments) + max(servers, nodes)] * self.workers

    def group(self, leaf: int) -> list[int]:
        return [worker for worker in range(self.workers) if worker * self.groups // self.workers == leaf]


def _lockstep(experiment: Experiment, fabric: Fabric, work: Work, servers: _Servers) -> Form:
    """Bulk-synchronous."""
    separate, workers = experiment.sync.pull == "separate", experiment.workers
    until: dict[int, float] = {}

    def top(clients: list[int], ready: dict[int, float]) -> dict[int, float]:
        gathered = gather(clients, servers.shards, ready, fabric, servers.adding, until, separate)
        applied = [state._replace(at=state.at + seconds) for state, seconds in zip(gathered, servers.adding)]
        return answer(servers.shards, applied, fabric, until)

    def combine(moments: Moments) -> Moments:
        if too_many(messages):
            return servers.by_closed_form(moments)
        if not servers.groups:
            ends = top(list(range(workers)), dict(enumerate(moments)))
            return [ends[worker] for worker in range(workers)]
        below, added = {}, {}
        for number, leaf in enumerate(servers.leaves):
            group = servers.group(number)
            shard = Shard(leaf, servers.leaf_push, servers.leaf_answer)
            ready = {worker: moments[worker] for worker in group}
            below[leaf] = (
                shard,
                gather(group, [shard], ready, fabric, [servers.leaf_adding], until, separate)[0],
            )
            added[leaf] = below[leaf][1].at + fabric.seconds(servers.coding, leaf)
        back, ends = top(list(servers.leaves), added), {}
        for leaf, (shard, state) in below.items():
            ends |= answer([shard], [state._replace(at=back[leaf])], fabric, until)
        return [ends[worker] for worker in range(workers)]

    messages, least = (
        2 * (servers.groups or workers) * servers.count + 2 * workers * bool(servers.groups),
        0.0,
    )
    if fabric.half_duplex and not servers.groups:  # pushes and answers go through one port
        least = workers * max(
            fabric.busy(0, shard.server, shard.push + shard.answer) for shard in servers.shards
        )
    found = in_step(experiment, fabric, work, combine, servers.coding, 0, messages, least)
    how = f"compute + 2 a + (N/S + 1) b with S = {servers.count}, each step overlapping with the next"
    if servers.groups:
        how = f"{how}, N being {servers.groups} leaves; and 2 a + (m + 1) b in each group of m workers"
    return Form(
        *found[:3],
        servers.sent / exchanges(experiment),
        "Li et al. (OSDI 2014), 4; the network model",
        how,
        _unless(experiment, fabric, messages) or found.unless or fabric.unless_they_meet(*servers.sizes),
    )


def _unless(experiment: Experiment, fabric: Fabric, messages: int) -> str:
    if too_many(messages):
        return "so many messages are not followed one by one"
    if experiment.cluster.placement == "colocated":
        return "colocated servers share a port with workers: who gets it first is not followed"
    if fabric.half_duplex:
        return BOTH_WAYS
    if experiment.sync.servers > 1 and (not fabric.own_ports or experiment.workers % experiment.sync.servers):
        return "who gets a port first of those who come to several servers at once is not followed"
    return ASKED if experiment.sync.pull == "separate" else ""


def _unless_free(experiment: Experiment, fabric: Fabric) -> str:
    if not fabric.uniform:
        return "ranks of a node share a port: who gets it first is not followed"
    if fabric.half_duplex:
        return BOTH_WAYS
    return ASKED if experiment.sync.pull == "separate" else ""


def _free_running(experiment: Experiment, fabric: Fabric, work: Work, servers: _Servers) -> Form:
    """Nobody waits, or with ssp only for who is too far behind: a cycle of one worker, or the pace of a busy server."""
    sync, every, n = experiment.sync, exchanges(experiment), fabric.sizes.elements
    extra = servers.coding + (3 * n * every + 4 * n if experiment.averaging.method != "none" else 0)
    factor = work.slowest if sync.consistency == "ssp" else 1.0
    cycles = [
        factor * (every * seconds + fabric.seconds(extra, worker))
        for worker, seconds in enumerate(work.seconds)
    ]
    link, back, push = fabric.slowest, sum(servers.answer), sum(servers.push)
    port = Link(link.latency, link.bandwidth / fabric.scale, link.duplex)
    clients = experiment.workers
    if servers.groups:
        clients, size = servers.groups, -(-experiment.workers // servers.groups)
        mean = sum(cycles) / len(cycles) * work.slowest / factor
        cycles = [ps_step_seconds(size, 1, servers.leaf_push, port, mean, servers.leaf_answer)] * clients
    serving = 2 * max(servers.adding)
    blocking = fabric.blocks(max(servers.answer))
    alone = [
        ps_asp_seconds(1, 1, push / servers.count, port, cycle, back / servers.count, serving)
        + (servers.count - 1) * push / servers.count / port.bandwidth
        for cycle in cycles
    ]
    saturated = ps_asp_seconds(clients, min(servers.count, clients), push, port, 0.0, back, serving, blocking)
    # What all workers of a node send, and what they receive, goes through one port.
    saturated = max(saturated, fabric.crowd * max(push, back) / port.bandwidth)
    if fabric.half_duplex:  # both go through one port, of a server and of a node
        most = max(clients / min(servers.count, clients), fabric.crowd)
        saturated = max(saturated, most * (push + back) / port.bandwidth)
    free = len(alone) / sum(1 / seconds for seconds in alone)
    if sync.consistency == "ssp":
        # Whoever is quicker waits at the bound, and is answered before the slowest, which asked last.
        quicker = sum(cycle < (1 - 1e-9) * max(alone) for cycle in alone)
        free = max(alone) + quicker * back / servers.count / port.bandwidth
    seconds = max(free, saturated)
    mean = sum(alone) / len(alone) / factor
    why = _unless_free(experiment, fabric)
    if not work.equal or servers.count > 1 or servers.groups:
        why = "queues at the servers are not followed"
    how = "the longer of compute + 2 a + push + answer, and N pushes at a server that is always busy"
    return Form(
        seconds / every,
        fabric.seconds(extra) / every,
        max(0.0, seconds - mean) / every,
        servers.sent / every,
        "Lazowska et al. (1984), 5.2" + ("; Ho et al. (NIPS 2013)" if sync.consistency == "ssp" else ""),
        how + (", and the slowest worker's cycle" if sync.consistency == "ssp" else ""),
        why,
    )
