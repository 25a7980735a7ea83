"""Schemes by which replicas agree. Each is a part of an experiment: settings, capabilities and rules.

The rest of the code asks a part for its capabilities, never for its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from dlpar.config.paths import read_plain
from dlpar.config.rules import ANY, NONE, SOME, Complaint, Other, PartWithRules, if_chosen
from dlpar.config.schema import OneOf, Only, Share

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


class SyncPart(PartWithRules):
    """Base class of every scheme's part.

    Attributes
    ----------
    implementation : str
        Module and class of the scheme, such as ``dlpar.sync.ring:Ring``.
    shares_memory : bool
        Whether all workers write to one copy of the weights, in the memory of one machine.
    sends_gradients : bool
        Whether the scheme sends gradients, which a codec may compress.
    needs_loss_everywhere : bool
        Whether the scheme may ask every rank of a replica for its loss.
    counts_lead : bool
        Whether workers know how far they lead.
    has_graph : bool
        Whether workers average with their neighbours in a graph.
    runs_free : bool
        Whether workers do as many steps as they can, instead of all doing the same steps.
    has_driver : bool
        Whether only rank 0 keeps the state of the optimizer.
    survives : bool
        Whether the other ranks have all state of a worker, so that they can continue when it dies.
    """

    shares_memory: ClassVar[bool] = False
    sends_gradients: ClassVar[bool] = True
    needs_loss_everywhere: ClassVar[bool] = False
    counts_lead: ClassVar[bool] = True
    has_graph: ClassVar[bool] = False
    runs_free: ClassVar[bool] = False
    has_driver: ClassVar[bool] = False
    survives: ClassVar[bool] = True

    @property
    def lead_bound(self) -> int | None:
        """Return how many clocks a worker may lead the slowest, or None if the scheme sets no bound."""
        return 0 if self.counts_lead and not self.runs_free else None

    @property
    def server_ranks(self) -> int:
        """Return the number of ranks, after the workers, that hold the weights."""
        return getattr(self, "servers", 0)

    @property
    def leaf_ranks(self) -> int:
        """Return the number of leaf servers, after the servers. Each leaf server serves a group of workers."""
        return getattr(self, "groups", 0)

    def of_one_part(self, parts: int) -> dict[str, Any]:
        """Return the fields of the scheme for one of a model's `parts`."""
        return {name: getattr(self, name) // parts for name in ("servers", "groups") if hasattr(self, name)}


FACTORED: dict[str, Any] = {
    "sync.overlap": (False,), "split.kind": ("data",), "averaging.method": NONE, "compression.codec": NONE,
    "cluster.messages": ("values",), "shards": ("iid", "by_label"),
}  # fmt: skip
"""Settings that factors require, because factors belong to whole batches and whole layers."""

ALLREDUCES = ["ring", "library", "star", "tree", "double_tree", "halving_doubling", "hierarchical", "auto"]
"""All-reduces by name."""


class Ring(SyncPart):
    """Bulk-synchronous all-reduce (Patarasuk and Yuan 2009, and Horovod, arXiv 1802.05799)."""

    implementation = "dlpar.sync.ring:Ring"
    rules = if_chosen(
        "sync.factors", (True,), "replicas exchange factors of whole batches and layers",
        {**FACTORED, "split.zero": (0,)})  # fmt: skip

    scheme: Literal["ring"] = Field("ring", title="sync")
    """Scheme by which replicas agree."""
    allreduce: Annotated[str, OneOf(ALLREDUCES)] = Field("ring")
    """All-reduce: one of ours, the library's own (MPI_Allreduce, NCCL), or the quickest of ours by the link (auto)."""
    node_size: Annotated[int, Only("sync.allreduce", "hierarchical")] = Field(2, ge=1, le=64)
    """Ranks of a node, in the hierarchical all-reduce."""
    factors: bool = Field(False)
    """Send activations and errors of a fully connected layer if shorter than its gradient (Poseidon)."""
    overlap: bool = Field(False)
    """Send a bucket while the backward pass still computes the next; with zero 3, also fetch weights ahead."""
    bucket_mb: float = Field(25.0, gt=0, le=4096)
    """Size of a gradient bucket, in MB (10^6 bytes)."""


class MapReduce(SyncPart):
    """Map-reduce: broadcast weights, sample, tree-aggregate gradients, update at the driver (Spark MLlib)."""

    implementation = "dlpar.sync.mapreduce:MapReduce"
    needs_loss_everywhere = True
    has_driver = True

    scheme: Literal["mapreduce"] = Field("mapreduce", title="sync")
    """Scheme by which replicas agree."""
    fraction: Share = Field(1.0)
    """Share of the global batch that an iteration samples."""
    depth: Annotated[int, Only("sync.reduce", "sum", "mean")] = Field(2, ge=1, le=6, title="tree depth")
    """Levels of the tree that aggregates; 1: straight to the driver."""
    reduce: Literal["sum", "mean", "collect"] = Field("sum")
    """Sum over samples; mean of the partitions' means; or collect all and sum at the driver."""
    broadcast: Literal["tree", "torrent"] = Field("tree")
    """Route of the weights from the driver: down a binomial tree, or in blocks between workers (Spark)."""
    regularizer: Literal["none", "l1", "l2"] = Field("none")
    """Penalty that the driver adds to the loss."""
    regularization: Annotated[float, Only("sync.regularizer", "l1", "l2")] = Field(0.01, ge=0, le=1000)
    """Weight of that penalty."""
    tolerance: float = Field(0.0, ge=0, le=1)
    """Stop when an update moves the weights by less than this share of their length; 0: never."""


class ParameterServer(SyncPart):
    """Parameter server: servers hold weights, and workers push gradients (Li et al., OSDI 2014)."""

    implementation = "dlpar.sync.parameter_server:ParameterServer"
    rules = (
        ("sync.staleness_aware", (True,), "optimizer", ("sgd", "momentum"), "others undo this division"),
        ("sync.staleness_aware", (True,), "sync.group_consistency", ("bsp",), "a leaf hides how old a push is"),
        *if_chosen("sync.group_consistency", ("asp",), "a leaf passes on each push, and waits for its answer",
                   {"sync.groups": Other([0]), "sync.consistency": ("bsp", "asp"), "sync.overlap": (False,)}),
        *if_chosen("sync.group_period", Other([0]), "groups average whole models, each after updates of its own",
                   {"sync.groups": Other([0]), "sync.group_consistency": ("bsp",), "sync.push_every": (1,),
                    "sync.consistency": ("bsp", "asp"), "averaging.method": NONE, "sync.overlap": (False,)}),
        *if_chosen("sync.replicas", Other([0]), "the next server copies each update before a worker is answered",
                   {"sync.servers": Other([1]), "sync.groups": (0,), "sync.fetch_every": (0,)}),
        *if_chosen("sync.fetch_every", Other([0]), "a worker fetches on its own, not at every push",
                   {"sync.consistency": ("asp",), "sync.groups": (0,), "sync.overlap": (False,),
                    "averaging.method": NONE}),
        *if_chosen("sync.factors", (True,), "a push has the factors of a whole batch and of whole layers",
                   {**FACTORED, "sync.push_every": (1,), "sync.groups": (0,)}),
        ("averaging.method", SOME, "sync.push_every", (1,), "its period sets how often workers push"),
        ("sync.overlap", (True,), "sync.push_every", (1,), "a bucket is pushed as soon as it is finished"),
        *if_chosen("sync.backup", Other([0]), "the last whole pushes of a step to the one server are dropped",
                   {"sync.consistency": ("bsp",), "sync.servers": (1,), "sync.groups": (0,), "sync.overlap": (False,),
                    "sync.push_every": (1,), "averaging.method": NONE, "split.kind": ("data",),
                    "shards": ("iid", "by_label")}),
    )  # fmt: skip

    scheme: Literal["ps"] = Field("ps", title="sync")
    """Scheme by which replicas agree."""
    servers: int = Field(1, ge=1, le=1024)
    """Server ranks; each holds a range of the weights."""
    replicas: int = Field(0, ge=0, le=1)
    """Copies of each server's range on the next server, which takes over after a death (chain replication)."""
    consistency: Literal["bsp", "ssp", "asp", "softsync"] = Field("bsp")
    """Staleness allowed to a worker: none, bounded, unbounded, or that of an update every N/n gradients."""
    staleness: Annotated[int, Only("sync.consistency", "ssp")] = Field(3, ge=0, le=1000000)
    """Clocks that a worker may run ahead of the slowest, under ssp."""
    softsync: Annotated[int, Only("sync.consistency", "softsync")] = Field(1, ge=1, le=64)
    """n of n-softsync: an update takes N/n gradients."""
    pull: Literal["reply", "separate"] = Field("reply")
    """Route of the weights to a worker: in the reply to its push, or pulled separately when needed."""
    push_every: int = Field(1, ge=1, le=10000)
    """Steps between two pushes (Downpour's n_push)."""
    fetch_every: int = Field(0, ge=0, le=10000)
    """Steps between two fetches (Downpour's n_fetch); 0: a fetch with each push."""
    groups: int = Field(0, ge=0, le=1024)
    """Leaf servers, each aggregating a group of workers; 0: none."""
    group_consistency: Literal["bsp", "asp"] = Field("bsp")
    """Whether workers of a group wait for each other, or each push goes up alone (MXNet's two levels)."""
    group_period: int = Field(0, ge=0, le=10000)
    """Updates of a leaf's own model between two averages with the other groups; 0: no own model."""
    staleness_aware: Annotated[bool, Only("sync.consistency", "ssp", "asp", "softsync")] = Field(False)
    """Divide the learning rate of a push by its staleness."""
    factors: bool = Field(False)
    """Push activations and errors of a fully connected layer if shorter than its gradient (Adam)."""
    overlap: bool = Field(False)
    """Send a bucket while the backward pass still computes the next."""
    bucket_mb: float = Field(25.0, gt=0, le=4096)
    """Size of a gradient bucket, in MB (10^6 bytes)."""

    backup: Annotated[int, Only("sync.consistency", "bsp")] = Field(0, ge=0, le=1024)
    """Backup workers b, of all workers: an update takes the first N - b pushes of a step and drops later ones."""

    @property
    def runs_free(self) -> bool:
        return self.consistency != "bsp" or self.group_consistency != "bsp"

    @property
    def lead_bound(self) -> int | None:
        bounds = {"bsp": 0, "ssp": self.staleness}
        return bounds.get(self.consistency) if self.group_consistency == "bsp" else None

    @property
    def steps_a_fetch(self) -> int:
        """Return the number of steps of a worker between two answers from the servers."""
        return self.fetch_every or self.push_every

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        n = e.workers
        if self.groups > n:
            yield "sync.groups", f"with {n} workers is at most {n}"
        if self.backup >= n:
            yield "sync.backup", f"with {n} workers is at most {n - 1}"
        elif self.backup and e.global_batch % (n - self.backup):
            yield "batch", f"with backup {self.backup} and {n} workers is a multiple of {n - self.backup}"
        if self.groups and self.runs_free and n % self.groups:
            why = "independent groups must have the same size"
            yield "sync.groups", f"with {n} workers and {self.consistency} is a divisor of {n}: {why}"
        if self.consistency == "softsync" and self.softsync > (self.groups or n):
            yield "sync.softsync", f"with {n} workers and {self.groups} groups is at most {self.groups or n}"
        for name in ("push_every", "fetch_every", "group_period"):
            if (every := getattr(self, name)) and e.steps % every:
                yield f"sync.{name}", f"with {e.steps} steps is a divisor of {e.steps}"
        if self.fetch_every % self.push_every:
            allowed = f"with push_every {self.push_every} is a multiple of it: a fetch drops unpushed updates"
            yield "sync.fetch_every", allowed


def _edges(value: Any) -> Any:
    """Read edges from ``0-1,1-2``, or from a file with one edge (two worker numbers) per line."""
    if not isinstance(value, str):
        return value
    pairs = [pair.strip() for pair in value.split(",") if pair.strip()]
    if all(re.fullmatch(r"\d+\s*-\s*\d+", pair) for pair in pairs):
        return [tuple(map(int, pair.split("-"))) for pair in pairs]
    import numpy as np  # imported here, because most experiments read no edges

    with suppress(OSError, ValueError):
        return np.loadtxt(read_plain(value, most=1 << 20).splitlines(), dtype=int, ndmin=2).tolist()
    return value  # pydantic refuses it


Edges = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_edges)]

WITH_GRAPH = ("neighbours", "pairwise", "push_sum")
"""Exchanges between neighbours in a graph."""

ADAPT_FIRST = ("adapt_then_combine",)

TOPOLOGIES = ["ring", "grid", "exp2", "star", "complete", "random", "edges"]
"""Graphs by name. :func:`dlpar.graphs.register` adds a graph."""


class Gossip(SyncPart):
    """Gossip: each replica averages with neighbours in a graph, without a central node (Lian et al. 2017)."""

    implementation = "dlpar.sync.gossip:gossip"
    sends_gradients = counts_lead = False  # no worker hears of all others, which may be far behind
    rules = (
        ("sync", ANY, "averaging.method", ("none", "local"), "it has no centre"),
        ("averaging.method", SOME, "sync.order", ADAPT_FIRST, "local steps already move the weights"),
        ("sync.exchange", ("pairwise", "push_sum"), "sync.order", ADAPT_FIRST, "it averages after each gradient"),
    )  # fmt: skip

    scheme: Literal["gossip"] = Field("gossip", title="sync")
    """Scheme by which replicas agree."""
    exchange: Literal["neighbours", "random", "one_peer", "pairwise", "push_sum"] = Field("neighbours")
    """Partners of a worker in a step: all neighbours (D-PSGD), random peers, one peer 1, 2, 4 … places ahead,
    one neighbour asynchronously (AD-PSGD), or receivers along directed edges (push-sum)."""
    topology: Annotated[str, OneOf(TOPOLOGIES), Only("sync.exchange", *WITH_GRAPH)] = Field("ring")
    """The graph; random: random-regular, edges: your own."""
    edges: Annotated[Edges, Only("sync.topology", "edges")] = Field(())
    """Your own graph: pairs of workers, or the path of a file with one pair a line."""
    degree: Annotated[int, Only("sync.topology", "random")] = Field(3, ge=1, le=63)
    """Neighbours of each worker in the random graph."""
    peers: Annotated[int, Only("sync.exchange", "random")] = Field(3, ge=1, le=63)
    """Random peers a step, for exchange random."""
    order: Annotated[
        Literal["adapt_then_combine", "combine_then_adapt"],
        Only("sync.exchange", "neighbours", "random", "one_peer"),
    ] = Field("adapt_then_combine", title="step order")
    """Average the updated weights, or the old weights while the gradient is computed (D-PSGD)."""
    start: Literal["same", "random"] = Field("same")
    """Initial weights of workers: all the same, or random for each."""

    @property
    def runs_free(self) -> bool:
        return self.exchange == "pairwise"

    @property
    def has_graph(self) -> bool:
        return self.exchange in WITH_GRAPH

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        n = e.workers
        if not self.has_graph:
            if self.exchange == "random" and 1 < n <= self.peers:
                yield "sync.peers", f"with {n} workers is at most {n - 1}"
            return
        if (self.topology == "edges") != bool(self.edges):
            yield "sync.edges", "is pairs with topology edges, else none", f"{len(self.edges)} edges"
        for a, b in self.edges:
            if a == b or min(a, b) < 0 or max(a, b) >= n:
                yield "sync.edges", f"with {n} workers is two different workers from 0 to {n - 1}", f"{a}-{b}"
        if n > 1 and self.topology == "random" and (self.degree >= n or self.degree * n % 2):
            yield "sync.degree", f"with {n} workers is below {n}, and degree times workers even"
        if self.exchange == "push_sum" and (pair := without_return(self.edges)):
            why = "a worker that only sends runs out of weight"
            got = f"{pair[0]}-{pair[1]} and no way back"
            yield "sync.edges", f"with push_sum is edges with a way back: {why}", got


def without_return(edges: tuple[tuple[int, int], ...]) -> tuple[int, int] | None:
    """Find an edge between two strong components: no path leads from its end back to its start."""
    import networkx as nx  # imported here, because most experiments list no edges

    component = nx.condensation(nx.DiGraph(edges)).graph["mapping"]
    return next((edge for edge in edges if component[edge[0]] != component[edge[1]]), None)


class Hogwild(SyncPart):
    """Hogwild: workers on one machine write to shared weights without locks (Recht et al. 2011)."""

    implementation = "dlpar.sync.hogwild:Hogwild"
    shares_memory = True
    sends_gradients = False
    runs_free = True
    survives = False
    rules = (
        ("sync", ANY, "split.kind", ("data",), "its workers share one whole model"),
        ("sync", ANY, "averaging.method", NONE, "its workers share one model"),
        ("sync", ANY, "optimizer", ("sgd",), "other rules keep a state that writers would share"),
        ("sync", ANY, "cluster.world", ("real", "simulated"), "how writers race is not known there"),
        ("sync", ANY, "cluster.messages", ("values",), "how writers race is not known there"),
        ("sync", ANY, "cluster.device", ("auto", "cpu"), "its workers share host memory"),
        ("sync", ANY, "cluster.carrier", ("auto", "mpi", "gloo"), "its workers share host memory"),
        ("sync", ANY, "cluster.hostfile", (None,), "its workers share a machine"),
    )

    scheme: Literal["hogwild"] = Field("hogwild", title="sync")
    """Scheme by which replicas agree."""
    sparse: bool = Field(False)
    """Write only the weights whose gradient is not zero."""


def _as_word(name: str) -> str:
    """Return at most 64 letters, digits and _, so that a name cannot lead out of a folder."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)[:64] or "own"


class Own(SyncPart):
    """Scheme or collective typed in a cell. ``Experiment(sync=my_scheme)`` makes it."""

    listed: ClassVar[bool] = False
    implementation = "dlpar.sync.user_code:own"
    sends_gradients = False
    survives = False
    needs_loss_everywhere = True

    scheme: Literal["own"] = Field("own", title="sync")
    """Scheme by which replicas agree."""
    name: Annotated[str, AfterValidator(_as_word)] = Field("own")
    """Name of the function or class, which becomes a part of the run's name."""
    code: str = Field("", repr=False)
    """Function or class, pickled with cloudpickle, in base64."""

    def __str__(self) -> str:
        return self.name

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        if not self.code:
            yield "sync.scheme", "is a function or class: Experiment(sync=my_scheme)"


SCHEMES: list[type[SyncPart]] = [Ring, MapReduce, ParameterServer, Gossip, Hogwild, Own]
"""All schemes in teaching order. :func:`dlpar.config.experiment.register` adds a scheme."""
