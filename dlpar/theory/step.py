"""The time of an experiment's step in closed form: exact, a bound, or an estimate, and it says which.

:func:`predict` puts the forms of this room together: computing and waiting for the slowest, then an
exchange.  Workers that are done first begin the next step first; the forms hold for the long run.
Quantities without a closed form are simulated instead (``cluster.messages="sizes"``).
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from dlpar.config.schema import BadExperiment
from dlpar.graphs import neighbours, receivers
from dlpar.theory.collectives import NAMES, collective_seconds
from dlpar.theory.layers import Sizes, Tensor, sizes
from dlpar.theory.mixing import neighbour_seconds
from dlpar.theory.overlap import buckets, overlapped
from dlpar.theory.servers import ps_asp_seconds, ps_round_seconds, ps_step_seconds
from dlpar.theory.waiting import expected_slowest
from dlpar.worlds.platforms import Link, Timing, nodes_of, platform_of, workload

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


PACKET_HEAD = 40
"""Bytes in front of the weights in an answer: five whole numbers."""

LOSS_AND_COUNT = 2
"""Numbers that travel beside a gradient to the driver."""

EXACT, ABOVE, BELOW, ESTIMATE = "exact", "upper bound", "lower bound", "estimate"


class Prediction(NamedTuple):
    """A step in the long run; averages over workers.

    Attributes
    ----------
    seconds : float
        From one global step to the next; where workers run free, in which N worker-steps are done.
    compute : float
        Seconds of them in which a worker computes; in the others it sends, receives or waits.
    kind : str
        ``exact``: it is what a simulation takes, to rounding; or ``upper bound``, ``lower bound`` or
        ``estimate`` of the seconds.
    """

    seconds: float
    compute: float
    kind: str


def predict(experiment: Experiment) -> Prediction | None:
    """Predict a step of an experiment on its platform.

    ================  ============================================  =======================================
    exchange          seconds beside computing; a = latency, b =    source
                      seconds of the tensor's bytes
    ================  ============================================  =======================================
    ring              2 (N-1) (a + b/N) for each bucket             Patarasuk and Yuan (JPDC 2009)
    star              2 a + N b, as answers overlap with the next   the network model
                      gradients
    tree              2 log2 N (a + b)                              Thakur et al. (IJHPCA 2005), 4.2, 4.4
    halving_doubling  2 log2 N a + 2 (N-1)/N b                      Thakur et al. (IJHPCA 2005), 4.5
    hierarchical      2 a + g b in a group, a ring between groups   Jia et al. (arXiv 1807.11205), 3.2
    driver            a + k b a level, of k messages to a rank,     Spark's treeAggregate; Thakur et al.
                      and log2 N (a + b) back
    servers           2 a + (N/S + 1) b                             Li et al. (OSDI 2014), section 4
    servers, free     the longer of a worker's cycle and N pushes   Lazowska et al. (1984), 5.2;
                      at a busy server; bounded, the slowest's      Ho et al. (NIPS 2013)
    neighbours        a + degree b                                  Lian et al. (arXiv 1705.09056), table 1
    ================  ============================================  =======================================

    Communication beside the backward pass counts as far as that does not hide it
    (:func:`~dlpar.theory.overlap.overlapped`).  A form is no longer exact in these cases:

    - Workers differ: all are taken to begin an exchange with the slowest, an upper bound.
    - Times vary from step to step: the slowest is expected (:func:`~dlpar.theory.waiting.expected_slowest`).
    - Links or ports differ, as on nodes of several ranks: the busiest set the pace.
    - Ranks of a tree or of halving and doubling are no power of two: an upper bound.
    - Several servers: a worker may queue at one while another is idle, so it is a lower bound.
    - A driver: workers that have the weights first begin the next step first, an upper bound.
    - Neighbours: workers that begin with the same neighbour queue at its port.
    - Real ranks share cores and are disturbed.

    Parameters
    ----------
    experiment : Experiment
        Its cluster names the platform; for the real world that is this machine, if it was calibrated.

    Returns
    -------
    Prediction or None
        None without a closed form (a scheme of your own, pairwise averages, compression, uneven shards,
        half-duplex links, ZeRO, a model on several ranks), or without a platform to base it on.

    Examples
    --------
    >>> from dlpar import Experiment
    >>> predict(Experiment(workers=8, cluster={"world": "simulated", "platform": "cpu-10gbe"})).kind
    'exact'
    """
    find = next((form for setting, form in FORMS.items() if hasattr(experiment.sync, setting)), None)
    is_split = experiment.replicas < experiment.workers or getattr(experiment.split, "zero", 0)
    is_odd = experiment.compression.codec != "none" or experiment.shards == "uneven"
    if find is None or is_split or is_odd:
        return None
    try:
        costs = Costs(experiment)
    except BadExperiment:
        return None
    form = find(experiment, costs) if costs.link.duplex == "full" else None
    if form is None:
        return None
    kinds = {form.kind if experiment.workers > 1 else EXACT}
    if costs.is_crowded or not costs.is_steady or experiment.cluster.world == "real":
        kinds.add(ESTIMATE)
    elif max(costs.work) - min(costs.work) > 1e-12 * max(costs.work):
        kinds.add(ESTIMATE if experiment.free_running else ABOVE)
    kinds.discard(EXACT)
    kind = EXACT if not kinds else ESTIMATE if len(kinds) > 1 else kinds.pop()
    compute = sum(costs.work) / experiment.workers + form.extra
    return Prediction(form.seconds, min(form.seconds, compute), kind)


class Costs:
    """Charges for an experiment's messages and computations, as the simulated world has them.

    Raises
    ------
    BadExperiment
        If there is no such platform, or it does not hold the ranks.

    Attributes
    ----------
    platform : Platform
        Where ranks live.
    nodes : list of int
        Node of each rank.
    sizes : Sizes
        Elements and FLOPs of the model.
    itemsize : int
        Bytes of an element.
    flops : float
        FLOP/s a device sustains.
    eager : float
        Bytes up to which a sender does not wait for its receiver.
    inside, between : Link
        Links; narrower where a small model stands in for a larger one.
    link : Link
        The slowest link in use: between nodes, if there are several.
    crowd : int
        Most ranks that share a port to other nodes.
    is_crowded : bool
        Whether there are several nodes, and some have several ranks.
    training, work : list of float
        Seconds of each worker for forward and backward pass, and for all before an exchange; means over steps.
    slowest : float
        Factor by which the slowest of all workers' steps is longer than the mean, where times vary.
    is_steady : bool
        Whether every step takes a worker equally long.
    """

    def __init__(self, experiment: Experiment) -> None:
        cluster, self.sizes = experiment.cluster, sizes(experiment)
        self.itemsize = 8 if experiment.dtype == "float64" else 4
        self.platform, self.nodes, scale, flops = platform_of(experiment), nodes_of(experiment), 1.0, 1.0
        big = workload(cluster.stand_in_for) if cluster.stand_in_for else None
        if big is not None and cluster.messages == "values":
            scale, flops = big.in_place_of(self.sizes.elements * self.itemsize, self.sizes.flops)
        elif big is not None:
            self.itemsize = big.itemsize
            tensors = tuple(Tensor(layer.parameters, layer.flops) for layer in big.layers)
            self.sizes = Sizes(tensors, big.flops)
        self.flops = 1 / self.platform.seconds(flops, big) if flops else inf
        self.eager = self.platform.eager / scale
        self.inside, self.between = (
            Link(link.latency, link.bandwidth / scale, link.duplex)
            for link in (self.platform.link(True), self.platform.link(False))
        )
        on_node = Counter(self.nodes)
        self.link = self.between if len(on_node) > 1 else self.inside
        self.is_crowded = 1 < len(on_node) < len(self.nodes)
        self.crowd = max(on_node.values()) if self.is_crowded and self.platform.nic == "shared" else 1
        self._compute(experiment)

    def _compute(self, experiment: Experiment) -> None:
        """Find what workers compute for a step, as the training loop charges it."""
        delays, timing, workers = experiment.delays, self.platform.timing, range(experiment.workers)
        fraction = getattr(experiment.sync, "fraction", 1.0)
        # Drawn factors have mean 1; those of a trace have any.
        usual = sum(timing.trace) / len(timing.trace) if timing.kind == "trace" else 1.0
        flops = usual * fraction * self.sizes.flops
        self.training = [self.seconds(flops * experiment.local_batch(worker), worker) for worker in workers]
        added = delays.delay_ms / 1000 if delays.kind != "none" else 0.0
        self.work = [
            self.overhead(worker) + delays.straggler.get(worker, 1.0) * (self.training[worker] + added)
            for worker in workers
        ]
        # Of two things that vary the one that makes workers differ more is taken.
        varying = [(sum(self.training) / len(workers) / usual, timing, usual)]
        if added:
            varying.append((added, Timing(kind=delays.kind, cv=delays.delay_cv), 1.0))
        meet = period(experiment) * (1 + (experiment.sync.lead_bound or 0))
        apart = max(part * (expected_slowest(len(workers), how, meet) - mean) for part, how, mean in varying)
        self.slowest = 1 + apart * len(workers) / (sum(self.work) or inf)
        is_drawn = timing.kind != "constant" or delays.kind not in ("none", "constant") or delays.stall
        self.is_steady = not is_drawn and fraction == 1

    def seconds(self, flops: float, rank: int | None = None) -> float:
        """Return the mean seconds of a computation, on `rank` or on one that is no straggler."""
        return flops / self.flops * self.platform.stragglers.get(rank, 1.0)

    def overhead(self, rank: int) -> float:
        """Return the seconds of a step beside its FLOPs."""
        return self.platform.device.overhead * self.platform.stragglers.get(rank, 1.0)

    def bytes(self, elements: float) -> float:
        """Return the bytes of so many elements."""
        return elements * self.itemsize

    def hop(self, source: int, dest: int) -> Link:
        """Return the link that joins two ranks."""
        return self.inside if self.nodes[source] == self.nodes[dest] else self.between

    def ring(self, members: range, elements: int) -> float:
        """Return the seconds of a ring all-reduce.

        Slow links set the pace with their bytes, or all links with their latencies.
        """
        n, rounds = len(members), 2 * (len(members) - 1)
        if n == 1:
            return 0.0
        chunk = -(-elements // n)
        nbytes = self.bytes(chunk)
        hops = [self.hop(member, members[i - 1]) for i, member in enumerate(members)]
        busiest = max(nbytes / link.bandwidth for link in hops)
        mean, longest = (
            sum(link.seconds(nbytes) for link in hops) / n,
            max(link.seconds(nbytes) for link in hops),
        )
        last = longest if nbytes > self.eager else busiest  # short messages are sent ahead
        return max(rounds * mean, (rounds - 1) * busiest + last) + (n - 1) * self.seconds(chunk)

    def step(
        self, experiment: Experiment, exchange: float, before: float, after: float
    ) -> tuple[float, float]:
        """Return the seconds of a step that ends in an exchange of all workers, and its computing beside `work`.

        `exchange` is in seconds; `before` and `after` are FLOPs of each worker between its work and the
        exchange, and after it.
        """
        every, n = period(experiment), self.sizes.elements
        if experiment.averaging.method != "none":
            # A step of one's own after each gradient; then what was moved is offered, and what was agreed is taken.
            before, after = before + 3 * n * every + 2 * n, after + 2 * n
        cycle = max(
            (every * work + self.seconds(before, worker)) * self.slowest + self.seconds(after, worker)
            for worker, work in enumerate(self.work)
        )
        return (cycle + exchange) / every, self.seconds(before + after) / every


def period(experiment: Experiment) -> int:
    """Return the steps from one exchange to the next."""
    averaging = experiment.averaging
    return averaging.period if averaging.method != "none" else getattr(experiment.sync, "push_every", 1)


class Form(NamedTuple):
    """Seconds of a step, its computing beside the workers' work, and the kind of the form."""

    seconds: float
    extra: float
    kind: str = EXACT


def _allreduce(experiment: Experiment, costs: Costs) -> Form | None:
    """All-reduce in buckets, beside the backward pass or after it."""
    sync, n, tensors = experiment.sync, experiment.workers, costs.sizes.tensors
    # Nobody knows what a library does; where it is simulated it is a ring.
    name = (
        "ring" if (sync.allreduce, experiment.cluster.world) == ("library", "simulated") else sync.allreduce
    )
    if name not in NAMES:
        return None
    cut = buckets([costs.bytes(tensor.elements) for tensor in tensors], sync.bucket_mb * 1e6)
    lengths = [sum(tensors[i].elements for i in members) for members in cut]
    taking = [_bucket_seconds(name, experiment, costs, length) for length in lengths]
    kind = EXACT
    if (name == "hierarchical" and n % sync.node_size) or (
        name in ("star", "hierarchical") and len(set(lengths)) > 1
    ):
        kind = ESTIMATE
    if (name in ("tree", "halving_doubling") and n & (n - 1)) or (sync.overlap and name != "ring"):
        kind = ABOVE
    if sync.overlap and n > 1:
        return Form(*_beside_backward(experiment, costs, cut, taking), kind)
    return Form(*costs.step(experiment, sum(taking), 0, 2 * costs.sizes.elements), kind)


def _bucket_seconds(name: str, experiment: Experiment, costs: Costs, elements: int) -> float:
    """Return the seconds of one all-reduce in the long run."""
    n, link, nbytes, adding = experiment.workers, costs.link, costs.bytes(elements), costs.seconds(elements)
    if name == "ring":
        return costs.ring(range(n), elements)
    if name == "tree":
        devices = costs.platform.devices
        return collective_seconds(
            name, n, nbytes, costs.inside, devices, between=link, adding=adding / nbytes
        )
    if name == "halving_doubling":
        shared = Link(link.latency, link.bandwidth / costs.crowd)
        return collective_seconds(name, n, nbytes, shared, adding=adding / nbytes)
    group = n if name == "star" else min(experiment.sync.node_size, n)
    between_groups = costs.ring(range(0, n, group), elements)
    if group == 1 or n == 1:
        return between_groups
    # Workers answered first send first: in the long run the root is a parameter server of the others.
    return between_groups + ps_step_seconds(
        group - 1, 1, nbytes, costs.hop(0, group - 1), 0.0, serving=adding
    )


def _beside_backward(
    experiment: Experiment, costs: Costs, cut: list[range], taking: list[float]
) -> tuple[float, float]:
    """Return the seconds of a step in which one progress thread sends bucket after bucket; and of its update."""
    worker = max(range(experiment.workers), key=costs.work.__getitem__)
    shares = list(accumulate(sum(costs.sizes.tensors[i].flops for i in members) for members in cut))
    begins, training = costs.overhead(worker), costs.training[worker] * costs.slowest
    delay = costs.work[worker] * costs.slowest - begins - training
    # Of micro-batches the last one's backward pass finishes the gradient; it has no more samples than any other.
    samples = experiment.local_batch(worker)
    last = 2 / 3 * max(1, samples // getattr(experiment.split, "microbatches", 1)) / samples
    ready = [begins + training * (1 - last + last * share / (shares[-1] or 1.0)) for share in shares]
    computed, sent = overlapped(ready, taking, begins + training, costs.platform.overlap)
    update = costs.seconds(2 * costs.sizes.elements)
    return max(computed + delay, sent) + update, update


def _driver(experiment: Experiment, costs: Costs) -> Form:
    """Gradients up a tree to the driver, weights down a tree from it."""
    sync, workers, n = experiment.sync, experiment.workers, costs.sizes.elements
    tree = {"group": costs.platform.devices, "between": costs.link}
    gradient, adding = costs.bytes(n + LOSS_AND_COUNT), costs.seconds(1.0) / costs.itemsize
    depth = 1 if sync.reduce == "collect" else sync.depth
    up = collective_seconds(
        "tree_aggregate", workers, gradient, costs.inside, depth=depth, adding=adding, **tree
    )
    down = collective_seconds("tree_broadcast", workers, PACKET_HEAD + costs.bytes(n), costs.inside, **tree)
    return Form(*costs.step(experiment, up + costs.seconds(5 * n) + down, n, n), ABOVE)


def _servers(experiment: Experiment, costs: Costs) -> Form | None:
    """Parameter servers, bulk-synchronous or not."""
    sync, n, workers, link = experiment.sync, costs.sizes.elements, experiment.workers, costs.link
    push, back = costs.bytes(n), sync.servers * PACKET_HEAD + costs.bytes(n)
    adding = costs.seconds(2 * -(-n // sync.servers))
    kind = ESTIMATE if sync.pull == "separate" or sync.groups else BELOW if sync.servers > 1 else EXACT
    if experiment.free_running:
        return None if sync.groups else Form(*_free_running(experiment, costs, push, back, 2 * adding), kind)
    if sync.groups:
        members = -(-workers // sync.groups)
        exchange = ps_step_seconds(members, 1, push, link, 0.0, back, costs.seconds(2 * n))
        exchange += ps_step_seconds(sync.groups, sync.servers, push, link, 0.0, back, adding)
    elif experiment.cluster.placement == "colocated":
        exchange = ps_round_seconds(workers, sync.servers, push, link, back, True, adding)
    else:
        exchange = ps_step_seconds(workers, sync.servers, push, link, 0.0, back, adding)
        if costs.crowd > 1:  # the workers of a node share its port, as all workers share a server's
            exchange = max(exchange, ps_step_seconds(costs.crowd, 1, push, link, 0.0, back))
    return Form(*costs.step(experiment, exchange + adding, 0, 0), kind)


def _free_running(
    experiment: Experiment, costs: Costs, push: float, back: float, serving: float
) -> tuple[float, float]:
    """Return the seconds of a step whose workers wait for nobody, or only for one too far behind; and its extra."""
    sync, n, every, link = experiment.sync, costs.sizes.elements, period(experiment), costs.link
    is_bounded = sync.lead_bound is not None
    extra = 3 * n * every + 4 * n if experiment.averaging.method != "none" else 0
    alone = []
    for worker, work in enumerate(costs.work):
        cycle = (every * work + costs.seconds(extra, worker)) * (costs.slowest if is_bounded else 1.0)
        alone.append(ps_asp_seconds(1, sync.servers, push, link, cycle, back, serving))
    is_blocking = back / sync.servers > costs.eager
    busy = ps_asp_seconds(experiment.workers, sync.servers, push, link, 0.0, back, serving, is_blocking)
    busy = max(busy, costs.crowd * max(push, back) / link.bandwidth)
    free = len(alone) / sum(1 / seconds for seconds in alone)
    if is_bounded:
        # Whoever is quicker waits at the bound, and is answered before the slowest, which asked last.
        quicker = sum(seconds < (1 - 1e-9) * max(alone) for seconds in alone)
        free = max(alone) + quicker * back / sync.servers / link.bandwidth
    return max(free, busy) / every, costs.seconds(extra) / every


def _neighbours(experiment: Experiment, costs: Costs) -> Form | None:
    """Every worker exchanges weights with a few others."""
    sync, n = experiment.sync, costs.sizes.elements
    if experiment.free_running:
        return None
    is_directed = sync.exchange == "push_sum"
    if sync.has_graph:
        graph = (receivers if is_directed else neighbours)(sync, experiment.workers, experiment.seed)
        degree = max(map(len, graph))
        mixing, kind = degree + 2 if is_directed else 2 * (degree + 1), ESTIMATE if degree > 1 else EXACT
    else:
        degree = min(sync.peers, experiment.workers - 1)
        mixing, kind = degree + 1, EXACT
    exchange = neighbour_seconds(degree, costs.bytes(n), costs.link)
    adapting = 10 if is_directed else 5  # FLOPs a weight to sketch it, to scale its gradient and to move it
    return Form(*costs.step(experiment, exchange, adapting * n, mixing * n), kind)


FORMS = {"allreduce": _allreduce, "servers": _servers, "topology": _neighbours, "depth": _driver}
"""Forms by a setting that only schemes of that kind have."""
