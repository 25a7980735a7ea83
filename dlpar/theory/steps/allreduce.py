"""A step of all-reduce, bulk-synchronous: every algorithm, in buckets, behind the backward pass or after it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from dlpar.theory.collectives import collective_seconds
from dlpar.theory.counts import closed_form
from dlpar.theory.overlap import buckets, overlapped
from dlpar.theory.steps.fabric import BOTH_WAYS, Fabric
from dlpar.theory.steps.form import FOLLOWED, Form, InStep, in_step, wire_bytes
from dlpar.theory.steps.rounds import (
    Moments,
    Ports,
    around,
    binomial_children,
    down,
    halved_and_doubled,
    star_children,
    up,
)
from dlpar.theory.steps.work import Work, exchanges

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


RING_FOLLOWED = 128
"""Ranks up to which a ring that is begun at different moments is followed message by message."""

FORMS = {
    "ring": ("2 (N-1) (a + b/N)", "Patarasuk and Yuan (JPDC 2009)"),
    "library": ("2 (N-1) (a + b/N), as a ring", "Patarasuk and Yuan (JPDC 2009)"),
    "star": ("2 a + N b, as answers overlap with the next gradients", "from the network model"),
    "tree": ("2 log2 N (a + b)", "Thakur et al. (IJHPCA 2005), 4.2 and 4.4"),
    "halving_doubling": ("2 log2 N a + 2 (N-1)/N b", "Thakur et al. (IJHPCA 2005), 4.5"),
    "hierarchical": ("2 a + g b in each group, a ring between groups", "Jia et al. (arXiv 1807.11205), 3.2"),
}
"""What an all-reduce takes in the long run, and who derived it."""


def form(experiment: Experiment, fabric: Fabric, work: Work) -> Form | None:
    """The form of an experiment whose scheme is all-reduce."""
    sync, workers, n = experiment.sync, experiment.workers, fabric.sizes.elements
    if sync.allreduce == "library" and experiment.cluster.world != "simulated":
        return None  # nobody knows what it does
    cut = buckets(
        [tensor.elements * fabric.itemsize for tensor in fabric.sizes.tensors], sync.bucket_mb * 1e6
    )
    lengths = [sum(fabric.sizes.tensors[i].elements for i in members) for members in cut]
    reduce = (_Allreduce if experiment.compression.codec == "none" else _Compressed)(experiment, fabric)

    def combine(moments: Moments) -> Moments:
        for length in lengths:
            moments = reduce(moments, length)
        return moments

    behind = sync.overlap and workers > 1
    if behind:
        found = _overlapped(experiment, fabric, work, cut, lengths, reduce)
    else:
        # On a half-duplex link all that goes into the root of a star and out of it goes through one port.
        whole = 2 * (workers - 1) * fabric.busy(0, workers - 1, fabric.bytes(n))
        least = whole if sync.allreduce == "star" and fabric.half_duplex else 0.0
        # A round of a ring, followed for all ranks at once, takes as long as 8 messages one by one.
        messages = (16 if sync.allreduce == "ring" else 2) * workers * len(lengths)
        found = in_step(experiment, fabric, work, combine, 0, 2 * n, messages, least)
    every = exchanges(experiment)
    how, source = FORMS[sync.allreduce]
    if experiment.compression.codec != "none":
        how, source = (
            "(N-1) (a + w/N), w being the coded bytes of all ranks",
            "Seide et al. (Interspeech 2014)",
        )
    how = f"compute + {how}, for each of {len(lengths)} buckets" if len(lengths) > 1 else f"compute + {how}"
    if behind:
        how = f"{how}, as far as the backward pass does not hide it"
    if every > 1:
        how = f"{how}, every {every} steps"
    unless = reduce.unless(work, behind, lengths) or found.unless if workers > 1 else ""
    return Form(*found[:3], _bytes(experiment, fabric, lengths, every), source, how, unless)


class _Allreduce:
    """From when ranks begin an all-reduce to when they are done."""

    def __init__(self, experiment: Experiment, fabric: Fabric) -> None:
        self.name, self.workers, self.fabric = experiment.sync.allreduce, experiment.workers, fabric
        self.group = experiment.sync.node_size
        self.adding, self.ports = fabric.seconds(1.0), Ports(fabric)

    def __call__(self, moments: Moments, elements: int) -> Moments:
        n = self.workers
        nbytes, adding = self.fabric.bytes(elements), self.adding * elements
        if n == 1:
            return moments
        if self.name in ("ring", "library"):
            return _ring(moments, range(n), elements, self.fabric, self.ports, self.adding)
        if self.name == "halving_doubling" and not self._follows(moments):
            whole, link = nbytes * self.fabric.scale * self.fabric.crowd, self.fabric.slowest
            a_byte = adding / whole if whole else 0.0
            return [max(moments) + collective_seconds(self.name, n, whole, link, adding=a_byte)] * n
        if self.name == "halving_doubling":
            return halved_and_doubled(moments, elements, self.fabric, self.adding, self.ports)
        if self.name == "hierarchical":
            return self._hierarchical(moments, elements, nbytes, adding)
        children = star_children(n) if self.name == "star" else binomial_children(n)
        root = up(children, moments, nbytes, self.fabric, self.ports, adding)[0]
        return down(
            _backwards(children) if self.name == "tree" else children, root, nbytes, self.fabric, self.ports
        )

    def _follows(self, moments: Moments) -> bool:
        """Whether halving and doubling is followed message by message: not where its closed form says as much."""
        n = self.workers
        alike = self.fabric.uniform and not n & (n - 1) and _equal(moments)
        return not alike and n * n.bit_length() <= FOLLOWED // 100

    def _hierarchical(self, moments: Moments, elements: int, nbytes: float, adding: float) -> Moments:
        groups = [
            range(start, min(start + self.group, self.workers))
            for start in range(0, self.workers, self.group)
        ]
        views = [_View(self.fabric, group) for group in groups]
        children = [star_children(len(group)) for group in groups]
        have = [
            up(below, [moments[i] for i in group], nbytes, view, self.ports, adding)[0]
            for below, group, view in zip(children, groups, views)
        ]
        have = _ring(have, [group[0] for group in groups], elements, self.fabric, self.ports, self.adding)
        return [
            moment
            for below, begins, view in zip(children, have, views)
            for moment in down(below, begins, nbytes, view, self.ports)
        ]

    def unless(self, work: Work, behind: bool, lengths: list[int]) -> str:
        """Why the form is not exact with buckets of so many elements, or nothing."""
        n, name = self.workers, self.name
        if self.fabric.half_duplex and not (name in ("ring", "library") and self.fabric.uniform):
            return BOTH_WAYS
        alike = work.equal and self.fabric.uniform
        parts = {
            "ring": (n,),
            "library": (n,),
            "hierarchical": (1, -(-n // self.group)),
            "halving_doubling": [1 << k for k in range(n.bit_length())],
        }.get(name, (1,))
        if name == "hierarchical" and self.fabric.one_link and (n % self.group or not work.equal):
            return "messages of a group that is early queue with those of others, which is not followed"
        if name == "halving_doubling" and not self._follows([0.0, 1.0]) and (n & (n - 1) or not alike):
            return "so many ranks that differ are not followed message by message: the form is a bound"
        if name == "halving_doubling" and n & (n - 1) and len(lengths) > 1:
            return "ranks that fold are early with their next bucket: who gets a port first is not followed"
        if name == "halving_doubling" and not self.fabric.own_ports:
            return "ranks of a node share a port: who gets it first in the next round is not followed"
        if behind and (name not in ("ring", "library") or not self.fabric.uniform):
            bound = ", which bounds it from above" if self.fabric.uniform else ""
            return (
                f"buckets are taken one after the other, although ranks that are done begin the next{bound}"
            )
        if behind and not work.equal:
            return (
                "workers differ: each step is as long as the slowest's, though the others save some latency"
            )
        if n > RING_FOLLOWED and not alike and name in ("ring", "library"):
            return f"a ring of more than {RING_FOLLOWED} unequal ranks or links is not followed message by message"
        return self.fabric.unless_they_meet(
            *(self.fabric.bytes(length) / part for length in lengths for part in parts)
        )


class _View:
    """A fabric as the ranks of a group count themselves."""

    def __init__(self, fabric: Fabric, members: Sequence[int]) -> None:
        self.link = lambda a, b: fabric.link(members[a], members[b])
        self.port = lambda a, b: fabric.port(members[a], members[b])
        self.busy = lambda a, b, nbytes: fabric.busy(members[a], members[b], nbytes)
        self.blocks = fabric.blocks


class _Compressed:
    """Every rank's code goes round a ring to all ranks, and each adds all of them."""

    def __init__(self, experiment: Experiment, fabric: Fabric) -> None:
        self.workers, self.fabric = experiment.workers, fabric
        self.wire = partial(wire_bytes, experiment, itemsize=fabric.itemsize)

    def __call__(self, moments: Moments, elements: int) -> Moments:
        n, fabric = self.workers, self.fabric
        begins = [moment + fabric.seconds(4 * elements, rank) for rank, moment in enumerate(moments)]
        whole = n * self.wire(elements) * fabric.scale
        ends = max(begins) + (
            collective_seconds("ring_allgather", n, whole, fabric.slowest) if n > 1 else 0.0
        )
        return [ends + fabric.seconds(2 * n * elements, rank) for rank in range(n)]

    def unless(self, work: Work, behind: bool, lengths: list[int]) -> str:
        if not work.equal:
            return (
                "workers differ: each step is as long as the slowest's, though the others save some latency"
            )
        if behind and self.fabric.half_duplex:
            return BOTH_WAYS
        return (
            ""
            if self.fabric.uniform
            else "links differ: each round is taken to be as slow as its slowest message"
        )


def _equal(moments: Moments) -> bool:
    return max(moments) - min(moments) <= 1e-12 * max(moments)


def _ring(
    moments: Moments, members: Sequence[int], elements: int, fabric: Fabric, ports: Ports, adding: float
) -> Moments:
    """Message by message; from a common start on equal links, or on very many ranks, by the closed form."""
    n = len(members)
    if n == 1:
        return moments
    equal = _equal(moments)
    links = {fabric.link(a, b) for a, b in zip(members, [*members[1:], members[0]])}
    if n <= RING_FOLLOWED and not (equal and len(links) == 1):
        return around(moments, members, elements, fabric, ports, adding)
    chunk = -(-elements // n)
    nbytes = n * fabric.bytes(chunk) * fabric.scale
    link = next(iter(links)) if len(links) == 1 else fabric.slowest
    seconds = collective_seconds(
        "ring", n, nbytes, link, adding=adding * chunk * n / nbytes if nbytes else 0.0
    )
    if len(links) > 1:
        seconds = _ring_on_nodes(members, chunk, fabric) + (n - 1) * adding * chunk
    return [max(moments) + seconds] * n


def _ring_on_nodes(members: Sequence[int], chunk: int, fabric: Fabric) -> float:
    """The slow links set the pace with their bandwidth, or all links with their latencies."""
    pairs = list(zip(members, [*members[1:], members[0]]))
    busy = [fabric.busy(a, b, fabric.bytes(chunk)) for a, b in pairs]
    hops = [fabric.link(a, b).latency + seconds for (a, b), seconds in zip(pairs, busy)]
    rounds = 2 * (len(members) - 1)
    return max((rounds - 1) * max(busy) + max(hops), rounds * sum(hops) / len(hops))


def _overlapped(experiment, fabric, work, cut, lengths, reduce) -> InStep:
    """A step in which one progress thread sends bucket after bucket."""
    n, tensors = experiment.workers, fabric.sizes.tensors
    shares = list(accumulate(sum(tensors[i].flops for i in members) for members in cut))
    slowest = max(range(n), key=lambda worker: work.seconds[worker])
    training, delay = work.training[slowest] * work.slowest, work.delay[slowest] * work.slowest
    # Of micro-batches the last one's backward pass finishes the gradient; it has no more samples than any other.
    samples = experiment.local_batch(slowest)
    last = 2 / 3 * max(1, samples // getattr(experiment.split, "microbatches", 1)) / samples
    begins = work.overhead[slowest]
    ready = [begins + training * (1 - last + last * share / (shares[-1] or 1.0)) for share in shares]
    ends = [0.0]  # of the buckets, if they were sent without a pause
    for length in lengths:
        ends.append(max(reduce([ends[-1]] * n, length)))
    taking = [then - before for before, then in zip(ends, ends[1:])]
    after = max(fabric.seconds(2 * fabric.sizes.elements, worker) for worker in range(n))
    computed, sent = overlapped(ready, taking, begins + training, fabric.platform.overlap)
    waiting = max(0.0, begins + training + delay - sum(work.seconds) / n)
    return InStep(max(computed + delay, sent) + after, after, waiting)


def _bytes(experiment: Experiment, fabric: Fabric, lengths: list[int], every: int) -> float | None:
    sync, n = experiment.sync, experiment.workers
    if sync.allreduce == "library":
        return None
    if experiment.compression.codec != "none":
        return (
            n * (n - 1) * sum(wire_bytes(experiment, length, fabric.itemsize) for length in lengths) / every
        )
    costs = (closed_form(sync.allreduce, n, length, fabric.itemsize, sync.node_size) for length in lengths)
    return sum(cost.bytes for cost in costs) / every


def _backwards(children: list[Sequence[int]]) -> list[Sequence[int]]:
    return [list(reversed(others)) for others in children]
