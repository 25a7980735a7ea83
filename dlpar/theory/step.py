"""Closed form of the time of an experiment's step: exact, a bound or an estimate.

:func:`predict` combines the forms of this package: computation, then an exchange. Workers that finish first
begin the next step first. The forms hold for the long run. A step without a closed form has no prediction:
simulate it with only sizes (``cluster.messages="sizes"``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from dlpar.collectives.auto import Speed, quickest
from dlpar.config.schema import BadExperiment
from dlpar.graphs import neighbours, receivers
from dlpar.jobs.control_groups import cores
from dlpar.theory.collectives import collective_seconds, incast
from dlpar.theory.counts import COLLECTIVES
from dlpar.theory.layers import sizes
from dlpar.theory.overlap import buckets, overlapped
from dlpar.theory.servers import Servers
from dlpar.worlds.platforms import Link, nodes_of, platform_of, workload
from dlpar.worlds.platforms.lookup import charges

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


PACKET_HEAD = 40
"""Bytes of an answer's header: five integers before the weights."""

LOSS_AND_COUNT = 2
"""Number of values that are sent to the driver with a gradient."""

EXACT, ABOVE, BELOW, ESTIMATE = "exact", "upper bound", "lower bound", "estimate"


class PredictedStep(NamedTuple):
    """Predicted step in the long run, averaged over workers.

    Attributes
    ----------
    seconds : float
        Seconds from one global step to the next. If workers run asynchronously, it is the time of N
        worker-steps.
    compute : float
        Part of these seconds in which a worker computes. In the rest it sends, receives or waits.
    kind : str
        ``exact``: equal to a simulation, apart from rounding and from the remainder if N does not divide a
        tensor; or ``upper bound``, ``lower bound`` or ``estimate`` of the seconds.
    """

    seconds: float
    compute: float
    kind: str


def predict(experiment: Experiment) -> PredictedStep | None:
    """Predict a step of an experiment on its platform.

    ================  ============================================  =======================================
    exchange          seconds besides computing; a = latency, b =   source
                      seconds of the tensor's bytes
    ================  ============================================  =======================================
    ring              2 (N-1) (a + b/N) for each bucket             Patarasuk and Yuan (JPDC 2009)
    star              2 a + N b, as answers overlap with the next   the network model
                      gradients
    tree              2 log2 N (a + b)                              Thakur et al. (IJHPCA 2005), 4.2, 4.4
    halving_doubling  2 log2 N a + 2 (N-1)/N b                      Thakur et al. (IJHPCA 2005), 4.5
    hierarchical      2 a + g b in a group, a ring between groups   Jia et al. (arXiv 1807.11205), 3.2
    driver            a + k b per level, of k messages to a rank,   Spark's treeAggregate; Thakur et al.
                      and a broadcast back, by a tree log2 N (a + b)
    servers           2 a + (N/S + 1) b                             Li et al. (OSDI 2014), section 4
    servers, free     the longer of a worker's cycle and N pushes   Lazowska et al. (1984), 5.2
                      at a busy server
    neighbours        a + degree b, of old weights during the       Lian et al. (arXiv 1705.09056), table 1
                      gradient
    ================  ============================================  =======================================

    Only communication that the backward pass does not hide counts
    (:func:`~dlpar.theory.overlap.overlapped`).  A form is not exact in the following cases:

    - Workers differ: an upper bound, which assumes that all begin an exchange with the slowest. With an all-reduce
      other than a ring or a tree, or with random peers: an estimate.
    - The number of ranks in a tree is not a power of two: an upper bound. In halving-doubling: an estimate.
    - A driver: an upper bound, because workers that get the weights first begin the next step first.
    - Several servers: a lower bound, because a worker may queue at one server while another is idle.
    - Several neighbours at different distances: a lower bound, because some messages queue at a port.
    - A ring or servers, and nodes of several workers: an estimate by the busiest link or port.
    - Real ranks, which are disturbed: an estimate. More of them than cores: a lower bound, because they take turns.

    Parameters
    ----------
    experiment : Experiment
        The experiment, whose cluster names the platform.  In the real world the platform is this machine, if
        calibrated.

    Returns
    -------
    PredictedStep or None
        None without a platform, or without a closed form.  There is no closed form for your own schemes,
        pairwise averages, compression, factors, synchronised norms, uneven shards, ZeRO, or a model on several
        ranks.  There is none if times vary from step to step. There is none for nodes of several ranks (except
        with a ring or servers), or for asynchronous workers of unequal speed. There is none for workers with
        unequal numbers of neighbours, groups of workers, separate pulls or fetches, copies of servers, a bound
        of 0, pushes during the backward pass, backup workers, or servers on the nodes of workers.

    Examples
    --------
    >>> from dlpar import Experiment
    >>> predict(Experiment(workers=8, cluster={"world": "simulated", "platform": "cpu-10gbe"})).kind
    'exact'
    """
    find = next((form for setting, form in FORMS.items() if hasattr(experiment.sync, setting)), None)
    is_split = experiment.replicas < experiment.workers or getattr(experiment.split, "zero", 0)
    is_odd = experiment.compression.codec != "none" or experiment.shards == "uneven"
    is_odd |= experiment.model.norm == "sync_batch" or getattr(experiment.sync, "factors", False)
    if find is None or is_split or is_odd:
        return None
    try:
        costs = Costs(experiment)
    except BadExperiment:
        return None
    return find(costs) if costs.is_steady else None


class Costs:
    """Costs of an experiment's messages and computations. The simulated world charges the same costs.

    Raises
    ------
    BadExperiment
        If there is no such platform, or if it cannot hold the ranks.

    Attributes
    ----------
    experiment : Experiment
        Experiment whose costs these are.
    platform : Platform
        Platform of the ranks.
    nodes : list of int
        Node of each rank.
    model : Sizes or Workload
        Parameters and FLOPs of the model.
    flops : float
        FLOP/s that a device sustains.
    eager : float
        Largest message (bytes) for which a sender does not wait for its receiver.
    inside, between : Link
        Links inside and between nodes, with less bandwidth if a small model stands in for a larger one.
    link : Link
        The slowest link in use: between nodes, if there are several.
    is_crowded : bool
        Whether there are several nodes, and some have several ranks.
    crowd : int
        Maximum number of ranks that share a port to other nodes.
    every : int
        Number of steps from one exchange to the next.
    beside : float
        FLOPs of a worker's updates between two exchanges, without gradients.  After each gradient the worker
        updates its own weights.  Then it sends the change, and takes the common result.
    training, overhead, work : list of float
        Seconds of each worker in a step: for forward and backward pass, for what does not depend on FLOPs, and for
        all work before an exchange.
    differ : bool
        Whether some workers take longer than others.
    is_steady : bool
        Whether all steps of a worker take equally long.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, own = experiment, sizes(experiment)
        cluster, delays, averaging = experiment.cluster, experiment.delays, experiment.averaging
        self.platform, self.nodes = platform_of(experiment), nodes_of(experiment)
        scale, self.flops = charges(experiment, (own.nbytes, own.flops))
        is_big = cluster.stand_in_for and cluster.messages == "sizes"
        self.model = workload(cluster.stand_in_for) if is_big else own
        self.eager = self.platform.eager / scale
        self.inside, self.between = (
            Link(link.latency, link.bandwidth / scale, link.overhead)
            for link in (self.platform.link(True), self.platform.link(False))
        )
        on_node, workers = Counter(self.nodes), range(experiment.workers)
        self.link = self.between if len(on_node) > 1 else self.inside
        self.is_crowded = 1 < len(on_node) < len(self.nodes)
        self.crowd = max(on_node.values()) if self.is_crowded and self.platform.nic == "shared" else 1
        is_averaging, pushing = averaging.method != "none", getattr(experiment.sync, "push_every", 1)
        self.every = averaging.period if is_averaging else pushing
        self.beside = (3 * self.every + 4) * self.model.parameters if is_averaging else 0.0
        self.training = [self.seconds(self.model.flops * experiment.local_batch(w), w) for w in workers]
        self.overhead = [self.platform.device.overhead * max(self.slower([w])) for w in workers]
        self.work = self.working()
        longest = max(self.work)
        self.differ = len(self.slower(workers)) > 1 or longest - min(self.work) > 1e-12 * longest
        is_drawn = self.platform.timing.kind != "constant" or delays.kind not in ("none", "constant")
        self.is_steady = not (is_drawn or delays.stall or getattr(experiment.sync, "fraction", 1.0) < 1)

    def slower(self, ranks: Sequence[int]) -> set[float]:
        """Return the factors by which the platform slows these ranks."""
        return {self.platform.stragglers.get(rank, 1.0) for rank in ranks}

    def seconds(self, flops: float, *ranks: int) -> float:
        """Return the mean time in seconds of a computation on the slowest of `ranks`. Default: all workers."""
        return flops / self.flops * max(self.slower(ranks or range(self.experiment.workers)))

    def working(self, slowed: float = 0.0) -> list[float]:
        """Return the seconds of each worker's work, if communication slows its training by this many seconds."""
        delays = self.experiment.delays
        longer = slowed + (delays.delay_ms / 1000 if delays.kind != "none" else 0.0)
        return [
            self.overhead[worker] + delays.straggler.get(worker, 1.0) * (training + longer)
            for worker, training in enumerate(self.training)
        ]

    def bytes(self, elements: float) -> float:
        """Return the bytes of this number of elements."""
        return elements * self.model.itemsize

    def ring(self, members: range, elements: int) -> float:
        """Return the time of a ring all-reduce, in seconds.

        Either the bytes of the slow links set the pace, or the latencies of all links.
        """
        n, rounds = len(members), 2 * (len(members) - 1)
        if n == 1:
            return 0.0
        chunk = -(-elements // n)
        nbytes = self.bytes(chunk)
        nodes = [self.nodes[member] for member in members]
        hops = [self.inside if node == nodes[i - 1] else self.between for i, node in enumerate(nodes)]
        busiest = max(nbytes / link.bandwidth for link in hops)
        taking = [link.seconds(nbytes) for link in hops]
        last = max(taking) if nbytes > self.eager else busiest  # short messages do not wait for receivers
        return max(rounds * sum(taking) / n, (rounds - 1) * busiest + last) + (n - 1) * self.seconds(chunk)

    def step(self, exchange: float, flops: float, kind: str) -> PredictedStep:
        """Predict a step that ends in an exchange among all workers.

        `exchange` is in seconds. `flops` counts each worker's FLOPs in an exchange, without those of `beside`.
        """
        flops += self.beside
        return self.prediction((self.cycle(flops) + exchange) / self.every, flops / self.every, kind)

    def cycle(self, flops: float) -> float:
        """Return the seconds for which the slowest worker computes from one exchange to the next."""
        return max(self.every * work + self.seconds(flops, worker) for worker, work in enumerate(self.work))

    def prediction(self, seconds: float, flops: float, kind: str) -> PredictedStep:
        """Predict a step of a given duration in seconds.

        For the exchange, a worker also computes `flops` FLOPs.

        `kind` holds for equal, undisturbed workers.
        """
        cluster = self.experiment.cluster
        kinds = {kind, ESTIMATE if cluster.world == "real" else ABOVE if self.differ else EXACT} - {EXACT}
        kind = EXACT if not kinds else ESTIMATE if len(kinds) > 1 else kinds.pop()
        if cluster.world == "real" and not cluster.hostfile and len(self.nodes) > cores():
            kind = BELOW  # the ranks take turns
        working = [work + self.seconds(flops, worker) for worker, work in enumerate(self.work)]
        return PredictedStep(seconds, min(seconds, sum(working) / len(working)), kind)


def _allreduce(costs: Costs) -> PredictedStep | None:
    """Predict a bucketed all-reduce, during the backward pass or after it."""
    sync, n, tensors = costs.experiment.sync, costs.experiment.workers, costs.model.layers
    is_library = sync.allreduce == "library"  # its algorithm is unknown, and the simulation uses a ring
    is_wide = is_library and costs.model.itemsize < 4  # it adds, and here sends, float32
    name = "ring" if is_library and costs.experiment.cluster.world == "simulated" else sync.allreduce
    cut = buckets([costs.bytes(tensor.parameters) for tensor in tensors], sync.bucket_mb * 1e6)
    lengths = [sum(tensors[i].parameters for i in members) for members in cut]
    if name == "auto" and len(names := {_chosen(costs, length) for length in lengths}) == 1:
        name = names.pop()
    if name not in COLLECTIVES or name == "double_tree" or is_wide or (costs.is_crowded and name != "ring"):
        return None
    is_uneven = (name == "hierarchical" and n % sync.node_size) or len(set(lengths)) > 1
    if n > 1 and name in ("star", "hierarchical") and is_uneven:
        return None
    taking = [_bucket_seconds(name, costs, length) for length in lengths]
    is_above = (name == "tree" and n & (n - 1)) or (sync.overlap and name != "ring")
    is_odd = (name == "halving_doubling" and n & (n - 1)) or (name not in ("ring", "tree") and costs.differ)
    kind = ESTIMATE if costs.is_crowded or is_odd else ABOVE if is_above else EXACT
    if sync.overlap and n > 1:
        return _beside_backward(costs, cut, taking, kind)
    return costs.step(sum(taking), 2 * costs.model.parameters, kind)


def _chosen(costs: Costs, elements: int) -> str:
    """Return the all-reduce that ``auto`` chooses for a bucket."""
    byte = 1 / costs.link.bandwidth
    speed = Speed(costs.link.latency, byte, costs.crowd * byte, costs.link.overhead)
    return quickest(len(costs.work), costs.bytes(elements), speed)


def _bucket_seconds(name: str, costs: Costs, elements: int) -> float:
    """Return the long-run time of one all-reduce, in seconds."""
    n, sync, link, eager = len(costs.work), costs.experiment.sync, costs.link, costs.eager
    nbytes, adding = costs.bytes(elements), costs.seconds(1.0) / costs.model.itemsize
    if name == "ring":
        return costs.ring(range(n), elements)
    if name in ("tree", "halving_doubling"):
        return collective_seconds(name, n, nbytes, link, adding=adding, eager=eager)
    group = n if name == "star" else min(sync.node_size, n)
    between_groups = costs.ring(range(0, n, group), elements)
    if sync.overlap or group == 1:
        return between_groups + collective_seconds("star", group, nbytes, link, adding=adding, eager=eager)
    # Workers that are answered first send first, so in the long run the root acts as a parameter server.
    root = Servers(group - 1, 1, nbytes, link, serving=adding * nbytes, eager=eager)
    return between_groups + root.step_seconds()


def _beside_backward(costs: Costs, cut: list[range], taking: list[float], kind: str) -> PredictedStep:
    """Predict a step in which one progress thread sends the buckets one after the other."""
    # A delay follows the pass, so the buckets wait for the worker with the longest pass.
    experiment, passes = costs.experiment, [sum(each) for each in zip(costs.overhead, costs.training)]
    worker = passes.index(max(passes))
    shares = list(accumulate(sum(costs.model.layers[i].flops for i in members) for members in cut))
    begins, training = costs.overhead[worker], costs.training[worker]
    # The backward pass of the last micro-batch finishes the gradient. No micro-batch has fewer samples.
    samples = experiment.local_batch(worker)
    last = 2 / 3 * max(1, samples // getattr(experiment.split, "microbatches", 1)) / samples
    ready = [begins + training * (1 - last + last * share / (shares[-1] or 1.0)) for share in shares]
    computed, sent = overlapped(ready, taking, begins + training, costs.platform.overlap)
    working, update = max(costs.working(computed - max(passes))), 2 * costs.model.parameters
    return costs.prediction(max(working, sent) + costs.seconds(update), update, kind)


def _driver(costs: Costs) -> PredictedStep | None:
    """Predict gradients sent up a tree to the driver, and weights sent down a tree from the driver."""
    sync, workers, n, link = costs.experiment.sync, len(costs.work), costs.model.parameters, costs.link
    if costs.is_crowded:
        return None
    gradient, weights = costs.bytes(n + LOSS_AND_COUNT), PACKET_HEAD + costs.bytes(n)
    depth = 1 if sync.reduce == "collect" else sync.depth
    # The gradient that is added first may arrive last, and then nothing overlaps with an arrival.
    each = gradient / link.bandwidth + link.overhead + costs.seconds(n + LOSS_AND_COUNT)
    in_turn = Link(link.latency - link.overhead, gradient / each)
    up = collective_seconds("tree_aggregate", workers, gradient, in_turn, depth=depth)
    down = collective_seconds(f"{sync.broadcast}_broadcast", workers, weights, link, eager=costs.eager)
    return costs.step(up + costs.seconds(5 * n) + down, 2 * n, ABOVE)


def _servers(costs: Costs) -> PredictedStep | None:
    """Predict parameter servers on separate nodes, bulk-synchronous or not."""
    experiment, n, workers = costs.experiment, costs.model.parameters, costs.experiment.workers
    sync, is_colocated = experiment.sync, experiment.cluster.placement == "colocated"
    on_its_own = sync.pull == "separate" or sync.fetch_every or sync.replicas
    if sync.groups or sync.overlap or sync.backup or on_its_own or is_colocated:
        return None
    push, back = costs.bytes(n), sync.servers * PACKET_HEAD + costs.bytes(n)
    of_servers = range(workers, workers + sync.servers)
    adding, cycle = costs.seconds(2 * -(-n // sync.servers), *of_servers), costs.cycle(costs.beside)
    summed = workers // sync.softsync if sync.consistency == "softsync" else 1
    is_estimate = costs.is_crowded or len(costs.slower(of_servers)) > 1
    kind = ESTIMATE if is_estimate or summed > 1 else BELOW if sync.servers > 1 else EXACT
    servers = Servers(workers, sync.servers, push, costs.link, back, adding, costs.eager)
    if not sync.runs_free:
        seconds = servers.step_seconds(cycle)
        if costs.crowd > 1:  # the workers of a node share its port, as all workers share a server's port
            of_node = Servers(costs.crowd, 1, push, costs.link, back, eager=costs.eager)
            seconds = max(seconds, of_node.step_seconds(cycle))
        return costs.step(seconds - cycle + adding, 0, kind)
    if costs.differ or sync.lead_bound == 0:
        return None
    # A server adds each gradient to a sum, and updates the weights with each sum.
    free = replace(servers, serving=adding + adding / summed)
    seconds = free.asp_seconds(cycle)
    if costs.crowd > 1:  # a node's port carries its workers' messages one after the other
        alone, port = replace(free, workers=1).asp_seconds(cycle), max(push, back) / costs.link.bandwidth
        nodes = Counter(costs.nodes[:workers]).values()
        seconds = max(seconds, workers / sum(min(k / alone, 1 / port) for k in nodes))
    return costs.prediction(seconds / costs.every, costs.beside / costs.every, kind)


def _neighbours(costs: Costs) -> PredictedStep | None:
    """Predict an exchange of weights with a few neighbours. It costs a + degree b for any number of workers.

    If workers have neighbours at different distances, some messages queue at a port. The time is then up to a
    + (2 degree - 1) b.  Old weights are sent while the gradient is computed.

    Source: Lian et al. (arXiv 1705.09056), table 1: the communication of the busiest node is its degree.
    """
    experiment, sync, n = costs.experiment, costs.experiment.sync, costs.model.parameters
    if experiment.sync.runs_free or costs.is_crowded:
        return None
    is_directed, workers = sync.exchange == "push_sum", experiment.workers
    if sync.has_graph:
        graph = (receivers if is_directed else neighbours)(sync, workers, experiment.seed)
        degree, *others = {len(each) for each in graph}
        if others:
            return None
        distances = {frozenset((peer - i) % workers for peer in each) for i, each in enumerate(graph)}
        mixing = degree + 2 if is_directed else 2 * (degree + 1)
        kind = BELOW if degree > 1 and len(distances) > 1 else EXACT
    else:
        degree = min(1 if sync.exchange == "one_peer" else sync.peers, workers - 1)
        mixing, kind = degree + 1, ESTIMATE if costs.differ else EXACT
    exchange, busy = incast(degree, costs.link, costs.bytes(n + is_directed)), degree * costs.link.overhead
    if sync.has_graph and kind == EXACT and degree:  # the message that a worker takes first arrives last
        exchange += busy - costs.link.overhead
    exchange = max(exchange, 2 * busy)  # a worker's processor sends all its messages before it takes any
    flops = ((10 if is_directed else 5) + mixing) * n  # per weight: sketch, scale the gradient, update, mix
    if sync.order == "adapt_then_combine":
        return costs.step(exchange, flops, kind)
    alone, beside = max(costs.training), max(0.0, exchange - min(costs.overhead))
    slowed = overlapped([0.0], [beside], alone, costs.platform.overlap).computed - alone
    return costs.prediction(max(*costs.working(slowed), exchange) + costs.seconds(flops), flops, kind)


FORMS = {"allreduce": _allreduce, "servers": _servers, "topology": _neighbours, "depth": _driver}
"""Closed forms, by a setting that only one kind of scheme has."""
