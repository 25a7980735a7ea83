"""How replicas agree, as one chooses it: a kind of part for every scheme, with its settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from dlpar.config.schema import Part, shown


class Ring(Part):
    """All-reduce, bulk-synchronous (Patarasuk and Yuan 2009; Horovod, arXiv 1802.05799)."""

    scheme: Literal["ring"] = Field("ring", description="How replicas agree.", title="sync")
    allreduce: Literal["ring", "library", "star", "tree", "halving_doubling", "hierarchical"] = Field(
        "ring", description="Which all-reduce: one of ours, or the library's own (MPI_Allreduce, NCCL)."
    )
    node_size: int = Field(2, ge=1, le=64, description="Ranks of a node, in the hierarchical all-reduce.")
    overlap: bool = Field(False, description="Send a bucket while the backward pass still computes the next.")
    bucket_mb: float = Field(
        25.0, gt=0, le=4096, allow_inf_nan=False, description="Size of a gradient bucket, in MB (10^6 bytes)."
    )


class MapReduce(Part):
    """Broadcast weights, sample, tree-aggregate gradients, update at the driver (Spark MLlib)."""

    scheme: Literal["mapreduce"] = Field("mapreduce", description="How replicas agree.", title="sync")
    fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the global batch that an iteration samples.",
    )
    depth: int = Field(
        2,
        ge=1,
        le=6,
        title="tree depth",
        description="Levels of the tree that aggregates; 1: straight to the driver.",
    )
    reduce: Literal["sum", "mean", "collect"] = Field(
        "sum",
        description="Sum over samples; mean of the partitions' means; or collect all and sum at the driver.",
    )
    regularizer: Literal["none", "l1", "l2"] = Field(
        "none", description="Penalty the driver adds to the loss."
    )
    regularization: float = Field(
        0.01, ge=0, le=1000, allow_inf_nan=False, description="Weight of that penalty."
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Stop when an update moves the weights by less than this share of their length; 0: never.",
    )


class ParameterServer(Part):
    """Servers hold the weights, workers push gradients (Li et al., OSDI 2014; DistBelief, Petuum, Rudra)."""

    scheme: Literal["ps"] = Field("ps", description="How replicas agree.", title="sync")
    servers: int = Field(1, ge=1, le=1024, description="Server ranks; each holds a range of the weights.")
    consistency: Literal["bsp", "ssp", "asp", "softsync"] = Field(
        "bsp",
        description="How stale a worker may be: not at all, bounded, unbounded, or every 1/n of the workers.",
    )
    staleness: int = Field(
        3, ge=0, le=1_000_000, description="Clocks a worker may run ahead of the slowest, under ssp."
    )
    softsync: int = Field(1, ge=1, le=64, description="n of n-softsync: an update takes N/n gradients.")
    pull: Literal["reply", "separate"] = Field(
        "reply",
        description="How weights come back: in the answer to a push, or asked for when they are needed.",
    )
    push_every: int = Field(
        1, ge=1, le=10_000, description="Steps between two pushes and fetches (Downpour)."
    )
    groups: int = Field(
        0, ge=0, le=1024, description="Leaf servers, each aggregating a group of workers; 0: none."
    )
    staleness_aware: bool = Field(False, description="Divide the learning rate of a push by its staleness.")

    @property
    def ranks(self) -> int:
        """Ranks beside the workers: servers, then leaves."""
        return self.servers + self.groups


def _edges(value: Any) -> Any:
    """A text is edges such as ``0-1,1-2``, or the path of a file with an edge a line: two worker numbers."""
    if not isinstance(value, str):
        return value
    pairs = [pair.strip() for pair in value.split(",") if pair.strip()]
    if all(re.fullmatch(r"\d+\s*-\s*\d+", pair) for pair in pairs):
        return [tuple(map(int, pair.split("-"))) for pair in pairs]
    try:
        lines = [line.split("#")[0].split() for line in Path(value).read_text().splitlines()]
    except (OSError, ValueError):
        raise ValueError(
            f"sync.edges: got {shown(value)}, allowed is pairs such as 0-1,1-2 or a text file that can be read"
        ) from None
    for number, words in enumerate(lines, 1):
        if words and not (len(words) == 2 and all(word.isdecimal() for word in words)):
            said = shown(" ".join(words))
            raise ValueError(
                f"sync.edges: got {said} in line {number} of {value}, allowed is two worker numbers such as 0 1"
            )
    return [tuple(map(int, words)) for words in lines if words]


Edges = Annotated[tuple[tuple[int, int], ...], BeforeValidator(_edges)]


class Gossip(Part):
    """No centre: each replica averages with neighbours in a graph (D-PSGD, Lian et al. 2017)."""

    scheme: Literal["gossip"] = Field("gossip", description="How replicas agree.", title="sync")
    exchange: Literal["neighbours", "random", "pairwise", "push_sum"] = Field(
        "neighbours",
        description="With whom: all neighbours every step (D-PSGD), random peers every step, one neighbour at a time "
        "and asynchronously (AD-PSGD), or along directed edges (push-sum).",
    )
    topology: Literal["ring", "grid", "exp2", "star", "complete", "random", "edges"] = Field(
        "ring", description="The graph; random: random-regular, edges: your own."
    )
    edges: Edges = Field(
        (), description="Your own graph: pairs of workers, or the path of a file with one pair a line."
    )
    degree: int = Field(3, ge=1, le=63, description="Neighbours of each worker in the random graph.")
    peers: int = Field(3, ge=1, le=63, description="Random peers a step, for exchange random.")
    start: Literal["same", "random"] = Field(
        "same", description="Weights workers begin with: all the same, or each its own."
    )


class Hogwild(Part):
    """Workers of one machine write to shared weights without locks (Recht, Ré, Wright and Niu 2011)."""

    scheme: Literal["hogwild"] = Field("hogwild", description="How replicas agree.", title="sync")
    sparse: bool = Field(False, description="Write only the weights whose gradient is not zero.")


class Own(Part):
    """A scheme or a collective typed in a cell; ``Experiment(sync=my_scheme)`` makes it."""

    listed: ClassVar[bool] = False

    scheme: Literal["own"] = Field("own", description="How replicas agree.", title="sync")
    name: str = Field("", description="What the function or class is called.")
    code: str = Field("", repr=False, description="It, pickled with cloudpickle, in base64.")

    def __str__(self) -> str:
        return self.name or "own"


SCHEMES: tuple[type[Part], ...] = (Ring, MapReduce, ParameterServer, Gossip, Hogwild, Own)
"""Every kind of agreement there is, in teaching order of their names in an experiment."""


def extra_ranks(sync: Part) -> int:
    """Ranks a scheme needs beside the workers."""
    return getattr(sync, "ranks", 0)
