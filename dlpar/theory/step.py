"""The time of an experiment's step in closed form: exact, a bound, or an estimate, and it says which.

:func:`predict` puts the forms of this room together: computing and waiting for the slowest, then an
exchange.  Workers that are done first begin the next step first; the forms hold for the long run.
What has no closed form is simulated instead (``cluster.messages="sizes"``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from dlpar.config.schema import BadExperiment
from dlpar.graphs import neighbours, receivers
from dlpar.theory.collectives import collective_seconds
from dlpar.theory.counts import wire_bytes
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

ABOVE, BELOW, ESTIMATE = "upper bound", "lower bound", "estimate"

Doubt = tuple[str, str]
"""Kind of a form that is not exact, and why."""


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
    why : str
        Why it is not exact, or nothing.
    """

    seconds: float
    compute: float
    kind: str
    why: str


def predict(experiment: Experiment) -> Prediction | None:
    """Predict a step of an experiment on its platform.

    ================  ============================================  ===================================
    exchange          seconds beside computing; a = latency, b =    source
                      seconds of the tensor's bytes
    ================  ============================================  ===================================
    all-reduce        2 (N-1) (a + b/N) by a ring; for each bucket  Patarasuk and Yuan (JPDC 2009)
    star              2 a + N b, as answers overlap with the next   the network model
                      gradients
    tree              2 log2 N (a + b)                              Thakur et al. (IJHPCA 2005), 4.2, 4.4
    halving_doubling  2 log2 N a + 2 (N-1)/N b                      Thakur et al. (IJHPCA 2005), 4.5
    hierarchical      2 a + g b in a group, a ring between groups   Jia et al. (arXiv 1807.11205), 3.2
    coded gradients   (N-1) (a + w/N), w of all ranks' codes        Seide et al. (Interspeech 2014)
    driver            a + k b a level, of k messages to a rank,     Spark's treeAggregate; Thakur et al.
                      and log2 N (a + b) back
    servers           2 a + (N/S + 1) b                             Li et al. (OSDI 2014), section 4
    servers, free     the longer of a worker's cycle and N pushes   Lazowska et al. (1984), 5.2;
                      at a busy server; bounded, the slowest's      Ho et al. (NIPS 2013)
    neighbours        a + degree b                                  Lian et al. (arXiv 1705.09056), table 1
    pairs, free       nothing                                       Lian et al. (arXiv 1710.06952)
    ================  ============================================  ===================================

    What overlaps with the backward pass counts as far as it is not hidden
    (:func:`~dlpar.theory.overlap.overlapped`).

    Parameters
    ----------
    experiment : Experiment
        Its cluster names the platform; for the real world that is this machine, if it was calibrated.

    Returns
    -------
    Prediction or None
        None where there is no closed form (a scheme of your own, ZeRO, a model on several ranks), or
        no platform to base it on.

    Examples
    --------
    >>> from dlpar import Experiment
    >>> predict(Experiment(workers=8, cluster={"world": "simulated", "platform": "cpu-10gbe"})).kind
    'exact'
    """
    find = next((form for setting, form in FORMS.items() if hasattr(experiment.sync, setting)), None)
    if find is None or getattr(experiment.split, "zero", 0) or experiment.replicas < experiment.workers:
        return None
    try:
        costs = Costs(experiment)
    except BadExperiment:
        return None
    form = find(experiment, costs)
    if form is None:
        return None
    doubts = _doubts(experiment, costs, form)
    kinds = {kind for kind, _ in doubts} or {"exact"}
    kind = kinds.pop() if len(kinds) == 1 else ESTIMATE
    compute = sum(costs.work) / experiment.workers + form.extra
    return Prediction(form.seconds, min(form.seconds, compute), kind, "; ".join(why for _, why in doubts))


def _doubts(experiment: Experiment, costs: Costs, form: Form) -> list[Doubt]:
    """Say why a prediction is not exact."""
    found: list[Doubt] = []
    if experiment.workers > 1:
        found += [form.doubt] if form.doubt else []
        several = len(set(costs.nodes)) > 1
        if (
            several
            and len(set(costs.nodes)) < len(costs.nodes)
            and (costs.crowd > 1 or costs.inside != costs.between)
        ):
            found.append((ESTIMATE, "links or ports differ, and the busiest set the pace"))
        if costs.link.duplex == "half":
            found.append((ESTIMATE, "both directions share a port, and messages that cross are not followed"))
    if not costs.is_steady:
        found.append((ESTIMATE, "times vary, and workers are taken to wait for the slowest where they meet"))
    elif max(costs.work) - min(costs.work) > 1e-12 * max(costs.work):
        kind = ESTIMATE if experiment.free_running else ABOVE
        found.append((kind, "workers differ, and are taken to begin an exchange with the slowest"))
    if experiment.cluster.world == "real":
        found.append((ESTIMATE, "real ranks share cores and are disturbed"))
    return found


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
        links = self.platform.link(True), self.platform.link(False)
        self.inside, self.between = (
            Link(link.latency, link.bandwidth / scale, link.duplex) for link in links
        )
        on_node = Counter(self.nodes)
        self.link = self.between if len(on_node) > 1 else self.inside
        is_shared = len(on_node) > 1 and self.platform.nic == "shared"
        self.crowd = max(on_node.values()) if is_shared else 1
        self._compute(experiment)

    def _compute(self, experiment: Experiment) -> None:
        """Find what workers compute for a step, as the training loop charges it."""
        delays, timing, workers = experiment.delays, self.platform.timing, range(experiment.workers)
        fraction = getattr(experiment.sync, "fraction", 1.0)
        samples = [experiment.local_batch(worker) for worker in workers]
        if experiment.shards == "uneven":
            from dlpar.data.sampler import proportional  # here: loads torch

            samples = proportional(experiment.global_batch, experiment.workers)
        # Drawn factors have mean 1; those of a trace have any.
        usual = sum(timing.trace) / len(timing.trace) if timing.kind == "trace" else 1.0
        flops = usual * fraction * self.sizes.flops
        self.training = [self.seconds(flops * samples[worker], worker) for worker in workers]
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

    def hop(self, source: int, dest: int) -> Link:
        """Return the link that joins two ranks."""
        return self.inside if self.nodes[source] == self.nodes[dest] else self.between

    def coding(self, experiment: Experiment) -> int:
        """Return the FLOPs to code a gradient."""
        return 4 * self.sizes.elements if experiment.compression.codec != "none" else 0

    def bytes(self, elements: float) -> float:
        """Return the bytes of so many elements."""
        return elements * self.itemsize

    def step(
        self, experiment: Experiment, exchange: float, before: float, after: float, busy: float = 0.0
    ) -> tuple[float, float]:
        """Return the seconds of a step that ends in an exchange of all workers, and its computing beside `work`.

        Parameters
        ----------
        exchange : float
            Seconds.
        before, after : float
            FLOPs of each worker between its work and the exchange, and after it.
        busy : float
            Seconds of an exchange for which the busiest port is in use.
        """
        every, n = period(experiment), self.sizes.elements
        if experiment.averaging.method != "none":
            # A step of one's own after each gradient; then what was moved is offered, and what was agreed is taken.
            before, after = before + 3 * n * every + 2 * n, after + 2 * n
        cycle = max(
            (every * work + self.seconds(before, worker)) * self.slowest + self.seconds(after, worker)
            for worker, work in enumerate(self.work)
        )
        return max(cycle + exchange, busy) / every, self.seconds(before + after) / every


def period(experiment: Experiment) -> int:
    """Return the steps from one exchange to the next."""
    averaging = experiment.averaging
    return averaging.period if averaging.method != "none" else getattr(experiment.sync, "push_every", 1)


class Form(NamedTuple):
    """Seconds of a step, its computing beside the workers' work, and why it is not exact."""

    seconds: float
    extra: float
    doubt: Doubt | None = None


ALLREDUCE = ("ring", "library", "star", "tree", "halving_doubling", "hierarchical")
"""All-reduces that have a form; a library's is taken for a ring where it is simulated as one."""


def _allreduce(experiment: Experiment, costs: Costs) -> Form | None:
    """All-reduce in buckets, beside the backward pass or after it."""
    sync, n, tensors = experiment.sync, experiment.workers, costs.sizes.tensors
    is_known = sync.allreduce != "library" or experiment.cluster.world == "simulated"
    if sync.allreduce not in ALLREDUCE or not is_known:
        return None
    cut = buckets([costs.bytes(tensor.elements) for tensor in tensors], sync.bucket_mb * 1e6)
    lengths = [sum(tensors[i].elements for i in members) for members in cut]
    doubt, busy = None, 0.0
    if n == 1:
        taking = [0.0] * len(lengths)
    elif experiment.compression.codec != "none":
        taking = [_coded(experiment, costs, length) for length in lengths]
    elif sync.allreduce in ("ring", "library"):
        taking, ports = zip(*(_ring(costs, range(n), length) for length in lengths))
        busy = sum(ports)
    else:
        taking = _through_a_root_or_in_pairs(experiment, costs, lengths)
        if sync.allreduce in ("tree", "halving_doubling") and n & (n - 1):
            doubt = ABOVE, "the ranks are no power of two"
        elif sync.overlap:
            doubt = ABOVE, "ranks that are done with a bucket begin the next"
    if sync.overlap and n > 1:
        return Form(*_beside_backward(experiment, costs, cut, taking), doubt)
    return Form(*costs.step(experiment, sum(taking), 0, 2 * costs.sizes.elements, busy), doubt)


def _coded(experiment: Experiment, costs: Costs, elements: int) -> float:
    """Return the seconds in which every rank's code goes round a ring to all ranks, and each adds all of them."""
    n = experiment.workers
    nbytes = n * wire_bytes(experiment, elements, costs.itemsize)
    return collective_seconds("ring_allgather", n, nbytes, costs.link) + costs.seconds((4 + 2 * n) * elements)


def _ring(costs: Costs, members: range, elements: int) -> tuple[float, float]:
    """Return the seconds of a ring, and those of its busiest port.

    Slow links set the pace with their bytes, or all links with their latencies.
    """
    n, rounds = len(members), 2 * (len(members) - 1)
    chunk = -(-elements // n)
    nbytes, adding = costs.bytes(chunk), (n - 1) * costs.seconds(chunk)
    links = [costs.hop(member, members[i - 1]) for i, member in enumerate(members)]
    if len(set(links)) == 1:
        return collective_seconds("ring", n, n * nbytes, links[0]) + adding, 0.0
    hops, busiest = [link.seconds(nbytes) for link in links], max(nbytes / link.bandwidth for link in links)
    around = rounds * sum(hops) / n
    if nbytes > costs.eager:  # a rank waits until its message has left
        around = max(around, (rounds - 1) * busiest + max(hops))
    return around + adding, rounds * busiest


def _through_a_root_or_in_pairs(experiment: Experiment, costs: Costs, lengths: Sequence[int]) -> list[float]:
    """Return the seconds of each bucket's all-reduce that is no ring, on two ranks or more."""
    name, n, link = experiment.sync.allreduce, experiment.workers, costs.link
    adding = costs.seconds(1.0) / costs.itemsize
    if name in ("tree", "halving_doubling"):
        on = {"link": Link(link.latency, link.bandwidth / costs.crowd, link.duplex)}
        if name == "tree":
            on = {"link": costs.inside, "between": link, "group": costs.platform.devices}
        return [collective_seconds(name, n, costs.bytes(length), adding=adding, **on) for length in lengths]
    group = n if name == "star" else min(experiment.sync.node_size, n)
    leaders, found = range(0, n, group), []
    for answered, summed in zip([lengths[-1], *lengths], lengths):
        # Whoever is answered first sends first: in the long run the root is a parameter server of the others.
        push, back, add = costs.bytes(summed), costs.bytes(answered), costs.seconds(summed)
        near = (
            ps_step_seconds(group - 1, 1, push, costs.hop(0, group - 1), 0.0, back, add) if group > 1 else 0.0
        )
        found.append(near + (_ring(costs, leaders, summed)[0] if len(leaders) > 1 else 0.0))
    return found


def _beside_backward(
    experiment: Experiment, costs: Costs, cut: list[range], taking: Sequence[float]
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


def _tree(experiment: Experiment, costs: Costs) -> Form:
    """Gradients up a tree to the driver, weights down a tree from it."""
    sync, workers, n = experiment.sync, experiment.workers, costs.sizes.elements
    gradient = wire_bytes(experiment, n, costs.itemsize) + costs.bytes(LOSS_AND_COUNT)
    weights, coding = PACKET_HEAD + costs.bytes(n), costs.coding(experiment)
    depth, group = 1 if sync.reduce == "collect" else sync.depth, costs.platform.devices
    adding = costs.seconds(n + LOSS_AND_COUNT + coding / 2) / gradient
    # Every level first packs what it sends.
    near, far = (
        Link(link.latency + costs.seconds(coding), link.bandwidth, link.duplex)
        for link in (costs.inside, costs.link)
    )
    up = collective_seconds("tree_aggregate", workers, gradient, near, group, depth, far, adding)
    down = collective_seconds("tree_broadcast", workers, weights, costs.inside, group, between=costs.link)
    step = costs.step(experiment, up + costs.seconds(5 * n) + down, n, n)
    return Form(*step, (ABOVE, "whoever has the weights first begins the next step first"))


def _servers(experiment: Experiment, costs: Costs) -> Form | None:
    """Parameter servers, bulk-synchronous."""
    sync, n, workers, link = experiment.sync, costs.sizes.elements, experiment.workers, costs.link
    share, rest = divmod(n, sync.servers)
    lengths = [share + (number < rest) for number in range(sync.servers)]
    push = sum(wire_bytes(experiment, length, costs.itemsize) for length in lengths)
    back, adding = sync.servers * PACKET_HEAD + costs.bytes(n), costs.seconds(2 * lengths[0])
    doubt = None
    if sync.servers > 1:
        doubt = BELOW, "workers queue at one server while another is idle"
    if sync.pull == "separate":
        doubt = ESTIMATE, "a question may come before its answer is due"
    if experiment.free_running:
        return None if sync.groups else _free_running(experiment, costs, push, back, 2 * adding, doubt)
    if sync.groups:
        members = -(-workers // sync.groups)
        exchange = ps_step_seconds(members, 1, push, link, 0.0, back, costs.seconds(2 * n))
        exchange += ps_step_seconds(sync.groups, sync.servers, push, link, 0.0, back, adding)
        doubt = ESTIMATE, "leaves that are early push before others, which is left out"
    elif experiment.cluster.placement == "colocated":
        exchange = ps_round_seconds(workers, sync.servers, push, link, back, True, adding)
    else:
        exchange = ps_step_seconds(workers, sync.servers, push, link, 0.0, back, adding)
        if costs.crowd > 1:  # the workers of a node share its port, as all workers share a server's
            exchange = max(exchange, ps_step_seconds(costs.crowd, 1, push, link, 0.0, back))
    return Form(*costs.step(experiment, exchange + adding, costs.coding(experiment), 0), doubt)


def _free_running(
    experiment: Experiment, costs: Costs, push: float, back: float, serving: float, doubt: Doubt | None
) -> Form:
    """Servers whose workers wait for nobody, or only for one too far behind: a worker's cycle, or a busy server."""
    sync, n, every, link = experiment.sync, costs.sizes.elements, period(experiment), costs.link
    is_bounded = sync.lead_bound is not None
    extra = costs.coding(experiment) + (3 * n * every + 4 * n if experiment.averaging.method != "none" else 0)
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
    return Form(max(free, busy) / every, costs.seconds(extra) / every, doubt)


def _neighbours(experiment: Experiment, costs: Costs) -> Form:
    """Every worker exchanges weights with a few others."""
    sync, n, workers = experiment.sync, costs.sizes.elements, experiment.workers
    is_directed = sync.exchange == "push_sum"
    adapting = (10 if is_directed else 5) * n  # to sketch weights, to scale a gradient, to move
    if experiment.free_running:
        extra = costs.seconds(adapting + 2 * n)
        seconds = workers / sum(1 / (work + extra) for work in costs.work)
        return Form(seconds, extra, (BELOW, "averages go on beside it, how many is not known"))
    doubt, nbytes, busy = None, costs.bytes(n), 0.0
    if sync.has_graph:
        graph = (receivers if is_directed else neighbours)(sync, workers, experiment.seed)
        degree, far = max(map(len, graph)), Counter()
        mixing = degree + 2 if is_directed else 2 * (degree + 1)
        for worker, others in enumerate(graph):
            far[costs.nodes[worker]] += sum(costs.nodes[other] != costs.nodes[worker] for other in others)
        if costs.crowd > 1:
            busy = max(far.values()) * nbytes / costs.link.bandwidth
        if degree > 1:
            doubt = ESTIMATE, "queues of workers that begin with the same neighbour are left out"
    else:
        degree = min(sync.peers, workers - 1)
        mixing = degree + 1
    exchange = neighbour_seconds(degree, nbytes, costs.link)
    return Form(*costs.step(experiment, exchange, adapting, mixing * n, busy), doubt)


FORMS = {"allreduce": _allreduce, "servers": _servers, "topology": _neighbours, "depth": _tree}
"""Forms by a setting that only schemes of that kind have."""
