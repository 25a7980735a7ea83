"""Splits of one model over ranks. Each split is a part of an experiment, with its settings and rules.

Workers are arranged along named axes: those of one model, and `data` for its replicas.  The product of the
axes' sizes is the number of workers.  Each split holds its own rows of rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from dlpar.config.rules import ANY, NONE, Complaint, Other, PartWithRules, Rule, broken, if_chosen
from dlpar.config.schema import LINE, OneOf, Only

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment


class Traits(NamedTuple):
    """Requirements that a pipeline's schedule places on the rest of an experiment.

    Attributes
    ----------
    has_chunks : bool
        Whether a stage holds several chunks: of P stages, stage s holds parts s, s + P, s + 2 P, …
    has_weight_pass : bool
        Whether separate actions compute the gradients of weights.
    has_flush : bool
        Whether all micro-batches of a step end before the weights are updated.
    in_order : bool
        Whether each stage takes a neighbour's messages in the order in which the neighbour sends them. If so,
        NCCL carries them, which has no tags.
    """

    has_chunks: bool = False
    has_weight_pass: bool = False
    has_flush: bool = True
    in_order: bool = False


SCHEDULES = {
    "gpipe": Traits(in_order=True),
    "1f1b": Traits(in_order=True),
    "interleaved": Traits(has_chunks=True, in_order=True),
    "zb-h1": Traits(has_weight_pass=True, in_order=True),
    "pipedream": Traits(has_flush=False, in_order=True),
}
"""Schedules by name. :func:`dlpar.split.schedules.register` adds a schedule."""

MOST_PIECES = {"digits": (4,), "mnist": (8, 7), "cifar10": (9, 8, 4)}
"""Maximum pieces of one axis of a cnn's images, by depth of the cnn. The last number also applies to deeper
cnns.
"""


UNROUNDED = ("full", "tf32")
"""Precisions in which tensors keep their type."""

CUT_ALONG = {"mlp": "width", "cnn": "channels", "transformer": "heads"}
"""The dimension of each network that tensor parallelism divides among ranks."""

IN_STEP = {"sync.consistency": ("bsp",), "sync.exchange": ("neighbours", "random", "one_peer", "push_sum")}
"""Values with which all workers do the same steps."""

WEIGHTS_ARE_CUT: tuple[Rule, ...] = (
    ("split", ANY, "sync.start", ("same",), "parts would draw the same numbers, and copies different ones"),
)
"""Rules of a split whose ranks hold parts of the weights."""

LAYERS_SEND: tuple[Rule, ...] = (
    ("split", ANY, "cluster.messages", ("values",), "layers send what they compute"),
    ("split", ANY, "cluster.stand_in_for", (None,), "it sends activations, and a workload lists parameters"),
)
"""Rules of a split whose layers send activations, because only ranks that compute have activations."""

LAYERS_ARE_CUT: tuple[Rule, ...] = (
    ("split", ANY, "model.name", tuple(CUT_ALONG), "others are a single layer"),
    ("split", ANY, "compression.codec", NONE, "a codec would round copies of a weight differently"),
)
"""Rules of a split that cuts every layer."""

WITHOUT_FLUSH: tuple[Rule, ...] = (
    ("split.schedule", ANY, "split.microbatches", (1,), "each batch passes through undivided and updates the weights"),
    ("split.schedule", ANY, "model.name", ("linear", "logistic", "mlp", "cnn"),
     "the first and last layer of a transformer share a weight, so that their stages would wait at every update"),
    ("split.schedule", ANY, "averaging.method", NONE, "stages hold weights of different steps"),
    *if_chosen("split.schedule", ANY, "batches are read ahead", IN_STEP),
)  # fmt: skip
"""Rules of a schedule in which each batch is a step, and batches are read ahead of updates."""


class SplitPart(PartWithRules):
    """Base class of every split's part.

    Attributes
    ----------
    implementation : str
        Module and class of the split, such as ``dlpar.split.tensor:TensorSplit``.
    """

    kind: str

    def axes(self, workers: int) -> dict[str, int]:
        """Return the number of ranks along each axis of the model. A size of 0 means all workers."""
        return {}

    def ways(self, workers: int) -> int:
        """Return the number of ranks that share one model."""
        return math.prod(self.axes(workers).values())

    def too_few_layers(self, e: Experiment, model: str, layers: int) -> Iterator[Complaint]:
        """Yield complaints if a model has too few layers for this split. Only layers with weights count."""
        yield from ()


class ModelSplit(SplitPart):
    """Base class of a split of one model over several ranks."""

    rules: ClassVar[tuple[Rule, ...]] = (
        ("split", ANY, "sync.tolerance", (0,), "each part would stop by itself"),
        ("split", ANY, "model.norm", NONE, "statistics are of a whole layer and batch"),
    )

    order: str = Field("")
    """Axes, the outermost first, such as tensor,data; ranks along the last are consecutive; default: data,
    pipeline, tensor, rows, columns."""

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        axes, ways = self.axes(e.workers), self.ways(e.workers)
        if e.workers % ways:
            product = " × ".join(f"{size} ({axis})" for axis, size in axes.items())
            name, size = max(axes.items(), key=lambda axis: axis[1])
            allowed = f"with {e.workers} workers is sizes whose product divides {e.workers}, not {product}"
            yield f"split.{ {'pipeline': 'stages'}.get(name, name) }", allowed, size
        if self.order and sorted(self.order.split(",")) != sorted(["data", *axes]):
            yield "split.order", f"with split {self} is each of {', '.join(['data', *axes])} once"
        for name, ranks in (("servers", e.sync.server_ranks), ("groups", e.sync.leaf_ranks)):
            if ranks % ways:
                why = "each part has its own"
                yield f"sync.{name}", f"with a model on {ways} ranks is a multiple of {ways}: {why}"
        tensor, cut = axes.get("tensor", 1), CUT_ALONG.get(e.model.name, "width")
        if getattr(e.model, cut) % tensor:
            yield "split.tensor", f"is a divisor of the model's {cut}, {getattr(e.model, cut)}", tensor


class DataSplit(SplitPart):
    """Data parallelism: every rank holds the whole model and a share of each batch."""

    implementation = "dlpar.split.split:Split"
    rules = (
        ("split.zero", (1, 3), "sync.scheme", ("ring",), "its all-reduce has two halves"),
        ("split.zero", (1, 3), "sync.allreduce", ("ring", "library"), "others do not have two halves"),
        ("split.zero", (1, 3), "averaging.method", NONE, "no worker can make a step alone"),
        ("split.zero", (1, 3), "compression.codec", NONE, "intermediate ranks cannot add codes"),
        ("split.zero", (3,), "cluster.messages", ("values",), "weights travel between layers that compute"),
        ("split.zero", (3,), "precision", UNROUNDED, "bfloat16 copies would outlive the released weights"),
    )

    kind: Literal["data"] = Field("data", title="split")
    """Split of one model over ranks."""
    microbatches: int = Field(1, ge=1, le=1024)
    """Number of pieces, computed one after the other, of a replica's share of a batch."""
    zero: Literal[0, 1, 3] = Field(0)
    """Stage of ZeRO, which shards state over data-parallel ranks; 0: none, 1: optimizer state, 3: weights and
    gradients, too."""

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        share = e.global_batch // e.batch_parts
        most = max(1, share // (2 if e.model.norm != "none" else 1))  # a variance needs two samples
        if self.microbatches > most:
            given = f"with norm {e.model.norm} and {share} samples of a worker"
            yield "split.microbatches", f"{given} is at most {most}"


class TensorSplit(ModelSplit):
    """Tensor parallelism: layers are cut by neurons, heads, characters or channels (arXiv 1909.08053)."""

    implementation = "dlpar.split.tensor:TensorSplit"
    rules = (
        *ModelSplit.rules, *WEIGHTS_ARE_CUT, *LAYERS_SEND, *LAYERS_ARE_CUT,
        ("split.redundancy", Other([0.0]), "model.name", ("mlp",), "neurons of an mlp overlap"),
        ("split.redundancy", Other([0.0]), "precision", UNROUNDED, "copies of neurons are sent unchanged"),
        ("split.redundancy", Other([0.0]), "split.async_allreduce", (False,), "layers are not in pairs"),
        ("split.async_allreduce", (True,), "model.name", ("mlp", "transformer"), "convolutions do not overlap"),
        ("split.async_allreduce", (True,), "precision", UNROUNDED, "products in bfloat16 do not overlap"),
    )  # fmt: skip

    kind: Literal["tensor"] = Field("tensor", title="split")
    """Split of one model over ranks."""
    tensor: int = Field(0, ge=0, le=64)
    """Ranks over which a layer is cut; 0: all workers."""
    redundancy: Annotated[float, Only("model.name", "mlp")] = Field(0.0, ge=0, le=1)
    """Share of the other ranks' neurons that each rank of an mlp computes instead of receiving them."""
    async_allreduce: Annotated[bool, Only("model.name", "mlp", "transformer")] = Field(False)
    """Whether the gradient of a layer's input travels while that of its weights is computed (Megatron-LM)."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"tensor": self.tensor or workers}


def most_pieces(data: str, depth: int) -> int:
    """Return the maximum number of pieces along one axis of a cnn's images.

    No piece may be empty, and halos come only from neighbours.
    """
    by_depth = MOST_PIECES.get(data, (1,))
    return by_depth[min(depth, len(by_depth)) - 1]


class SpatialSplit(ModelSplit):
    """Spatial parallelism: images are cut by height, or by height and width. Neighbours exchange halos."""

    implementation = "dlpar.split.spatial:SpatialSplit"
    rules = (
        *ModelSplit.rules, *LAYERS_SEND,
        ("split", ANY, "model.name", ("cnn",), "it cuts images"),
        ("split", ANY, "sync.overlap", (False,), "gradients are first summed over pieces"),
        *if_chosen("split", ANY, "its ranks hold the same weights", IN_STEP),
        ("split.tiled", (True,), "data.name", ("digits", "cifar10"), "tiles are halved evenly"),
    )  # fmt: skip

    kind: Literal["spatial"] = Field("spatial", title="split")
    """Split of one model over ranks."""
    rows: int = Field(0, ge=0, le=64)
    """Pieces of an image's height; 0: as many as workers and columns allow."""
    columns: int = Field(1, ge=1, le=64)
    """Pieces of an image's width."""
    tiled: bool = Field(False)
    """Give each piece its own convolutions, which see no other piece: no halo, and no shared weights."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"rows": self.rows or max(1, workers // self.columns), "columns": self.columns}

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        yield from super().complaints(e)
        largest = most_pieces(e.data.name, e.model.depth)
        for axis, pieces in self.axes(e.workers).items():
            if pieces > largest:
                why = "no piece is empty, and halos come from the next piece, at every layer"
                given = f"with a cnn of depth {e.model.depth} on {e.data.name}"
                yield f"split.{axis}", f"{given} is at most {largest}: {why}", pieces
            if self.tiled and pieces & (pieces - 1):
                yield f"split.{axis}", "with tiled is a power of two, so that tiles are equal", pieces


class PipelineSplit(ModelSplit):
    """Pipeline parallelism: ranks hold layers, and micro-batches pass through (GPipe, arXiv 1811.06965)."""

    implementation = "dlpar.split.pipeline:PipelineSplit"
    rules = (
        *ModelSplit.rules, *WEIGHTS_ARE_CUT,
        ("split", ANY, "sync.overlap", (False,), "gradients are whole when the last micro-batch is"),
        ("model.name", ("transformer",), "compression.codec", Other(["onebit", "topk"]),
         "its first and last stage share a weight, and would round its gradient differently"),
    )  # fmt: skip

    kind: Literal["pipeline"] = Field("pipeline", title="split")
    """Split of one model over ranks."""
    stages: int = Field(0, ge=0, le=64)
    """Ranks over which one model's layers are spread; 0: all workers."""
    schedule: Annotated[str, OneOf(SCHEDULES)] = Field("1f1b")
    """Order of forward and backward passes of micro-batches on each stage."""
    microbatches: int = Field(8, ge=1, le=1024)
    """Number of pieces, computed one after the other, of a replica's share of a batch."""
    chunks: Annotated[int, Only("split.schedule", "interleaved")] = Field(2, ge=1, le=16)
    """Parts of the model in each stage, in the interleaved schedule."""
    partition: str = Field("balanced", pattern=LINE)
    """Layers with weights of each stage (of each chunk, in turn): balanced by their FLOPs, measured: by their
    seconds, or numbers such as 2,1,1."""
    recompute: bool = Field(False)
    """Keep only a micro-batch's input, and compute its activations again."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"pipeline": self.stages or workers}

    @property
    def traits(self) -> Traits:
        """Return the schedule's requirements on the rest of the experiment."""
        return SCHEDULES[self.schedule]

    def parts(self, workers: int) -> int:
        """Return the number of parts of the model: stages times chunks."""
        stages = self.axes(workers)["pipeline"]
        return stages * (self.chunks if self.traits.has_chunks and stages > 1 else 1)

    def too_few_layers(self, e: Experiment, model: str, layers: int) -> Iterator[Complaint]:
        stages = self.axes(e.workers)["pipeline"]
        if self.parts(e.workers) > layers:
            of = f"with model {model}, which has {layers} layers with weights,"
            if stages > layers:
                yield "split.stages", f"{of} is at most {layers}", stages
            else:
                yield "split.chunks", f"{of} and {stages} stages is at most {layers // stages}"

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        yield from super().complaints(e)
        layers, stages, parts = layers_of(e), self.axes(e.workers)["pipeline"], self.parts(e.workers)
        if layers is not None:
            yield from self.too_few_layers(e, e.model.name, layers)
        if self.partition not in ("balanced", "measured"):
            numbers = [int(n) if n.strip().isdecimal() else 0 for n in self.partition.split(",")]
            whole = layers is None or sum(numbers) == layers
            if len(numbers) != parts or min(numbers) < 1 or not whole:
                total = "all layers" if layers is None else f"{layers}, the model's layers with weights"
                allowed = f"is balanced, measured, or {parts} numbers from 1 that add up to {total}"
                yield "split.partition", allowed
        least = e.global_batch // e.batch_parts
        if self.microbatches > least:
            yield "split.microbatches", f"with {least} samples a replica is at most {least}"
        if self.traits.has_chunks and self.microbatches % stages:
            why = "micro-batches go round in groups of as many as stages"
            allowed = f"with schedule {self.schedule} and {stages} stages is a multiple of {stages}: {why}"
            yield "split.microbatches", allowed
        if not self.traits.has_flush:
            yield from broken(e, WITHOUT_FLUSH)


def layers_of(e: Experiment) -> int | None:
    """Count the layers that a pipeline distributes: those with weights.

    Return None if a workload replaces the model.
    """
    if e.has_outline:
        return None
    depth = e.model.depth
    counts = {"linear": 1, "logistic": 1, "mlp": depth + 1, "cnn": depth + 1, "transformer": depth + 3}
    return counts[e.model.name]


class HybridSplit(PipelineSplit):
    """Hybrid parallelism: stages hold layers, and each layer is cut (Narayanan et al., arXiv 2104.04473)."""

    rules = (*PipelineSplit.rules, *LAYERS_SEND, *LAYERS_ARE_CUT)

    kind: Literal["hybrid"] = Field("hybrid", title="split")  # type: ignore[assignment]  # its own word
    """Split of one model over ranks."""
    stages: int = Field(2, ge=1, le=64)
    """Ranks over which one model's layers are spread."""
    tensor: int = Field(2, ge=1, le=64)
    """Ranks over which a layer is cut."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"pipeline": self.stages, "tensor": self.tensor}


class StackingSplit(ModelSplit):
    """Stacking: each rank trains a block that sees the input and earlier outputs.

    Source: Deng et al., ICASSP 2012.
    """

    implementation = "dlpar.split.stacking:StackingSplit"
    rules = (
        *ModelSplit.rules, *WEIGHTS_ARE_CUT, *LAYERS_SEND,
        ("split", ANY, "model.name", ("linear", "logistic", "mlp"), "blocks read vectors of numbers"),
        *if_chosen("split", ANY, "outputs are sent unchanged", {"sync.overlap": (False,), "precision": UNROUNDED}),
    )  # fmt: skip

    kind: Literal["stacking"] = Field("stacking", title="split")
    """Split of one model over ranks."""
    blocks: int = Field(0, ge=0, le=64)
    """Ranks of one model, with a block each; 0: all workers."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"blocks": self.blocks or workers}


SPLITS: list[type[SplitPart]] = [
    DataSplit, TensorSplit, SpatialSplit, PipelineSplit, HybridSplit, StackingSplit]  # fmt: skip
"""All kinds. The first is the default."""
