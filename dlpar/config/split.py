"""Splits of one model over ranks: one part of an experiment for each split, with its settings and its rules.

Workers are dealt out along named axes whose sizes multiply to their number: the
axes of one model, and `data` for the replicas that are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator

from dlpar.config.schema import Complaint, OneOf, Part, shown

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment

AXES = ("data", "pipeline", "tensor", "rows", "columns")
"""Axes of a mesh, the outermost first unless an experiment says otherwise."""


class Traits(NamedTuple):
    """Demands of a pipeline's schedule on the rest of an experiment.

    Attributes
    ----------
    has_chunks : bool
        Whether a stage holds several chunks: of P stages, stage s holds parts s, s + P, s + 2 P, …
    has_weight_pass : bool
        Whether gradients of weights are computed by actions of their own.
    has_flush : bool
        Whether all micro-batches of a step are done before the weights move.
    """

    has_chunks: bool = False
    has_weight_pass: bool = False
    has_flush: bool = True


SCHEDULES = {
    "gpipe": Traits(),
    "1f1b": Traits(),
    "interleaved": Traits(has_chunks=True),
    "zb-h1": Traits(has_weight_pass=True),
    "pipedream": Traits(has_flush=False),
}
"""Schedules by name; :func:`dlpar.split.schedules.register` adds one."""

MOST_PIECES = {"digits": (4,), "mnist": (8, 7), "cifar10": (9, 8, 4)}
"""Pieces of one axis of a cnn's images at most, by the depth of the cnn; the last number holds for deeper ones."""


class SplitPart(Part):
    """Base of every split's part.

    Attributes
    ----------
    implementation : str
        Module and class of the split, such as ``dlpar.split.tensor:TensorSplit``.
    """

    kind: str

    def axes(self, workers: int) -> dict[str, int]:
        """Ranks along each axis of the model; a size of 0 is all the workers there are."""
        return {}

    def ways(self, workers: int) -> int:
        """Ranks that share one model."""
        return math.prod(self.axes(workers).values())

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        """Say what else of an experiment does not fit this split."""
        yield from ()

    def too_few_layers(self, e: Experiment, model: str, layers: int) -> Iterator[Complaint]:
        """Say whether a model of so many layers with weights cannot be cut so."""
        yield from ()


class ModelSplit(SplitPart):
    """One model on several ranks."""

    holds_all_weights: ClassVar[bool] = False
    """True if each rank holds the whole model's weights."""

    order: str = Field("")
    """Axes from the outermost to the innermost, such as tensor,data: ranks that are neighbours on the
    innermost are neighbours in the job; default: data, pipeline, tensor, rows, columns."""

    @field_validator("order")
    @classmethod
    def _names_axes(cls, order: str) -> str:
        named = order.split(",") if order else []
        if len(set(named)) < len(named) or not set(named) <= set(AXES):
            raise ValueError(
                f"split.order: got {shown(order)}, allowed is names of axes with commas, each once: {', '.join(AXES)}"
            )
        return order

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        axes, ways, sync, of = self.axes(e.workers), self.ways(e.workers), e.sync, f"with split {self}"
        if e.workers % ways:
            product = " × ".join(f"{size} ({axis})" for axis, size in axes.items())
            name, size = max(axes.items(), key=lambda axis: axis[1])
            allowed = f"with {e.workers} workers is sizes whose product divides {e.workers}, not {product}"
            yield f"split.{ {'pipeline': 'stages'}.get(name, name) }", allowed, size
        if self.order and set(self.order.split(",")) != {"data", *axes}:
            yield "split.order", f"{of} is each of {', '.join(['data', *axes])} once"
        if ways == 1:
            return
        if sync.ranks:  # each part of the model has servers of its own
            for name, kind in (("servers", "servers"), ("groups", "leaves")):
                if getattr(sync, name) % ways:
                    allowed = f"with a model on {ways} ranks is a multiple of {ways}"
                    yield f"sync.{name}", f"{allowed}: each part has {kind} of its own"
        if getattr(sync, "tolerance", 0.0):
            yield "sync.tolerance", f"{of} is 0: each part would stop by itself"
        if e.model.norm != "none":
            yield "model.norm", f"{of} is none"
        if getattr(sync, "start", "same") != "same" and not self.holds_all_weights:
            why = "parts of a model would draw the same numbers, and copies of a weight different ones"
            yield "sync.start", f"{of} is same: {why}"
        if axes.get("tensor", 1) > 1:
            yield from self._tensor_complaints(e, axes["tensor"])

    def _tensor_complaints(self, e: Experiment, ranks: int) -> Iterator[Complaint]:
        """Say why the layers of the model cannot be cut over so many ranks."""
        cuts = {"mlp": "width", "transformer": "heads", "cnn": "channels"}
        if e.model.name not in cuts:
            yield "split.tensor", f"with model {e.model.name} is 1: it is a single layer", ranks
        elif (number := getattr(e.model, cuts[e.model.name])) % ranks:
            yield "split.tensor", f"is a divisor of the model's {cuts[e.model.name]}, {number}", ranks
        yield from self._activation_complaints(e)
        if e.compression.codec != "none":
            why = "ranks that hold copies of a weight would lose different digits of its gradient"
            yield "compression.codec", f"with split {self} is none: {why}"

    def _activation_complaints(self, e: Experiment) -> Iterator[Complaint]:
        """Say why layers cannot send activations, which only ranks that compute have."""
        if e.cluster.messages == "sizes":
            yield "cluster.messages", f"with split {self} is values: layers send what they compute"
        if e.cluster.stand_in_for is not None:
            why = "it sends activations, and a workload lists parameters"
            yield "cluster.stand_in_for", f"with split {self} is nothing: {why}"


class DataSplit(SplitPart):
    """Every rank holds the whole model and a share of each batch."""

    implementation = "dlpar.split.split:Split"

    kind: Literal["data"] = Field("data", title="split")
    """Split of one model over ranks."""
    microbatches: int = Field(1, ge=1, le=1024)
    """Pieces a replica's share of a batch is computed in, one after the other."""
    zero: Literal[0, 1, 3] = Field(0)
    """Stage of ZeRO, which shards state over data-parallel ranks; 0: none, 1: optimizer state, 3: weights and
    gradients, too."""

    @field_validator("zero", mode="before")
    @classmethod
    def _from_a_word(cls, zero: Any) -> Any:
        """On the command line a number is a word."""
        return int(zero) if isinstance(zero, str) and zero.isdecimal() else zero

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        if self.zero:
            yield from self._zero_complaints(e)
        # The smallest of uneven shares is about 1 of 1 + 2 + ... + workers.
        parts = e.workers * (e.workers + 1) // 2 if e.shards == "uneven" else e.workers
        share = e.global_batch // parts
        most = max(1, share // (2 if e.model.norm != "none" else 1))  # a variance needs two samples
        if self.microbatches > most:
            given = f"with norm {e.model.norm} and {share} samples of a worker"
            yield "split.microbatches", f"{given} is at most {most}"

    def _zero_complaints(self, e: Experiment) -> Iterator[Complaint]:
        """Say why the two halves of an all-reduce cannot carry what ZeRO shares out."""
        of = f"with zero {self.zero} is"
        allreduce = getattr(e.sync, "allreduce", None)
        if allreduce is None:
            yield "sync.scheme", f"{of} ring: its all-reduce comes in two halves"
        elif allreduce not in ("ring", "library"):
            yield "sync.allreduce", f"{of} ring or library: others have no two halves"
        if e.averaging.method != "none":
            yield "averaging.method", f"{of} none: no worker can step by itself"
        if e.compression.codec != "none":
            yield "compression.codec", f"{of} none: codes do not add up on their way"
        if self.zero == 3 and getattr(e.sync, "overlap", False):
            yield "sync.overlap", f"{of} False: gradients are summed between layers, not beside them"
        if self.zero == 3 and e.cluster.messages == "sizes":
            yield "cluster.messages", f"{of} values: weights travel between layers that compute"
        if self.zero == 3 and e.precision != "full":
            yield "precision", f"{of} full: weights in bfloat16 would outlive those that are let go"


class TensorSplit(ModelSplit):
    """Every layer is cut: by neurons, heads, characters or channels (Shoeybi et al., Megatron-LM, arXiv 1909.08053)."""

    implementation = "dlpar.split.tensor:TensorSplit"

    kind: Literal["tensor"] = Field("tensor", title="split")
    """Split of one model over ranks."""
    tensor: int = Field(0, ge=0, le=64)
    """Ranks a layer is cut over; 0: all workers."""
    redundancy: float = Field(0.0, ge=0, le=1)
    """Share of the other ranks' neurons that each rank of an mlp computes itself instead of receiving them."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"tensor": self.tensor or workers}

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        yield from super().complaints(e)
        if self.redundancy and e.model.name != "mlp":
            yield "split.redundancy", f"with model {e.model.name} is 0: neurons of an mlp overlap"
        if self.redundancy and e.precision != "full":
            yield "precision", "with redundancy is full: copies of neurons travel as they are"


def most_pieces(data: str, depth: int) -> int:
    """Return the most pieces of one axis of a cnn's images: no piece is empty, and halos come from the next piece."""
    by_depth = MOST_PIECES.get(data, (1,))
    return by_depth[min(depth, len(by_depth)) - 1]


class SpatialSplit(ModelSplit):
    """Every image is cut: by height, or height and width; neighbours exchange halos."""

    holds_all_weights = True

    implementation = "dlpar.split.spatial:SpatialSplit"

    kind: Literal["spatial"] = Field("spatial", title="split")
    """Split of one model over ranks."""
    rows: int = Field(0, ge=0, le=64)
    """Pieces of an image's height; 0: as many as workers and columns allow."""
    columns: int = Field(1, ge=1, le=64)
    """Pieces of an image's width."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"rows": self.rows or max(1, workers // self.columns), "columns": self.columns}

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        yield from super().complaints(e)
        yield from self._activation_complaints(e)
        of, sync = f"with split {self}", e.sync
        if e.model.name != "cnn":
            yield "model.name", f"{of} is cnn: it cuts images"
        if e.model.norm != "none":
            yield "model.norm", f"{of} is none"
        largest = most_pieces(e.data.name, e.model.depth)
        for axis, pieces in self.axes(e.workers).items():
            if pieces > largest:
                why = "no piece is empty, and halos come from the next piece, at every layer"
                given = f"with a cnn of depth {e.model.depth} on {e.data.name}"
                yield f"split.{axis}", f"{given} is at most {largest}: {why}", pieces
        if getattr(sync, "overlap", False):
            yield "sync.overlap", f"{of} is False: gradients are first summed over pieces"
        if e.free_running and self.ways(e.workers) > 1 and e.replicas > 1:
            name, allowed = ("exchange", "neighbours") if sync.has_graph else ("consistency", "bsp")
            yield f"sync.{name}", f"{of} is {allowed}: its ranks hold the same weights"


class PipelineSplit(ModelSplit):
    """Each rank holds some layers; micro-batches go through (GPipe, arXiv 1811.06965)."""

    implementation = "dlpar.split.pipeline:PipelineSplit"

    kind: Literal["pipeline"] = Field("pipeline", title="split")
    """Split of one model over ranks."""
    stages: int = Field(0, ge=0, le=64)
    """Ranks one model's layers are spread over; 0: all workers."""
    schedule: Annotated[str, OneOf(SCHEDULES)] = Field("1f1b")
    """Order of forward and backward passes of micro-batches on each stage."""
    microbatches: int = Field(8, ge=1, le=1024)
    """Pieces a replica's share of a batch is computed in, one after the other."""
    chunks: int = Field(2, ge=1, le=16)
    """Parts of the model each stage holds, in the interleaved schedule."""
    partition: str = Field("balanced", min_length=1)
    """Layers with weights of each stage (of each chunk, in turn): balanced by their FLOPs, measured: by their
    seconds, or numbers such as 2,1,1."""
    recompute: bool = Field(False)
    """Keep a micro-batch's input alone, and compute its activations again."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"pipeline": self.stages or workers}

    @property
    def traits(self) -> Traits:
        """Return the demands of the schedule on the rest."""
        return SCHEDULES[self.schedule]

    def parts(self, workers: int) -> int:
        """Pieces the model is cut into: stages times chunks."""
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
        if getattr(e.sync, "overlap", False):
            why = "gradients are whole when the last micro-batch is"
            yield "sync.overlap", f"with split {self} is False: {why}"
        if layers is not None:
            yield from self.too_few_layers(e, e.model.name, layers)
        if self.partition not in ("balanced", "measured"):
            numbers = [int(n) if n.strip().isdigit() else 0 for n in self.partition.split(",")]
            whole = layers is None or sum(numbers) == layers
            if len(numbers) != parts or min(numbers) < 1 or not whole:
                total = "all layers" if layers is None else f"{layers}, the model's layers with weights"
                allowed = f"is balanced, measured, or {parts} numbers from 1 that add up to {total}"
                yield "split.partition", allowed
        least = e.local_batch(e.replicas - 1)
        if self.microbatches > least:
            yield "split.microbatches", f"with {least} samples a replica is at most {least}"
        if self.traits.has_chunks and self.microbatches % stages:
            why = "micro-batches go round in groups of as many as stages"
            allowed = f"with schedule {self.schedule} and {stages} stages is a multiple of {stages}: {why}"
            yield "split.microbatches", allowed
        if not self.traits.has_flush:
            yield from self._flush_complaints(e)
        if e.model.name == "transformer" and layers is not None and parts > 1:
            if e.compression.codec in ("onebit", "topk"):
                why = (
                    "its first and last stage share a weight, and would lose different digits of its gradient"
                )
                of = f"with split {self} of a transformer"
                yield "compression.codec", f"{of} is none, fp16 or bf16: {why}"

    def _flush_complaints(self, e: Experiment) -> Iterator[Complaint]:
        """Say what does not fit a schedule without a flush: each batch is a step, read ahead of the updates."""
        of = f"with schedule {self.schedule} is"
        if self.microbatches != 1:
            yield "split.microbatches", f"{of} 1: each batch goes through whole, and moves the weights"
        if e.model.name == "transformer" and layers_of(e) is not None:
            why = "its first and last layer share a weight, so that these stages would wait for each other"
            yield "model.name", f"{of} another: {why} at every update"
        if e.averaging.method != "none":
            yield "averaging.method", f"{of} none: stages hold weights of different steps"
        if e.free_running:
            name = "exchange" if e.sync.has_graph else "consistency"
            yield f"sync.{name}", f"{of} one in which replicas do the same steps: batches are read ahead"


def layers_of(e: Experiment) -> int | None:
    """Count the layers with weights a pipeline can be cut between; None where a workload's layers stand for them."""
    if e.has_outline:
        return None
    depth = e.model.depth
    counts = {"linear": 1, "logistic": 1, "mlp": depth + 1, "cnn": depth + 1, "transformer": depth + 3}
    return counts[e.model.name]


class HybridSplit(PipelineSplit):
    """Layers are spread over stages, and each layer cut: 3D parallelism (Narayanan et al., arXiv 2104.04473)."""

    kind: Literal["hybrid"] = Field("hybrid", title="split")  # type: ignore[assignment]  # its own word
    """Split of one model over ranks."""
    stages: int = Field(2, ge=1, le=64)
    """Ranks one model's layers are spread over."""
    tensor: int = Field(2, ge=1, le=64)
    """Ranks a layer is cut over."""

    def axes(self, workers: int) -> dict[str, int]:
        return {"pipeline": self.stages, "tensor": self.tensor}


SPLITS: list[type[SplitPart]] = [DataSplit, TensorSplit, SpatialSplit, PipelineSplit, HybridSplit]
"""All kinds; the first is the default."""
