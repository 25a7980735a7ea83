"""How one model is cut over ranks, as one chooses it: a kind of part for every split, with its settings.

Workers are dealt out along named axes whose sizes multiply to their number: the
axes of one model, and `data` for the replicas that are left.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from dlpar.config.schema import Part, shown

AXES = ("data", "pipeline", "tensor", "rows", "columns")
"""Axes of a mesh, the outermost first unless an experiment says otherwise."""


class ModelSplit(Part):
    """One model on several ranks."""

    kind: str
    order: str = Field(
        "",
        description="Axes from the outermost to the innermost, such as tensor,data: ranks that are neighbours on "
        "the innermost are neighbours in the job; default: data, pipeline, tensor, rows, columns.",
    )

    @field_validator("order")
    @classmethod
    def _names_axes(cls, order: str) -> str:
        named = order.split(",") if order else []
        if len(set(named)) < len(named) or not set(named) <= set(AXES):
            raise ValueError(
                f"split.order: got {shown(order)}, allowed is names of axes with commas, each once: {', '.join(AXES)}"
            )
        return order

    def axes(self, workers: int) -> dict[str, int]:
        """Ranks along each axis of the model; a size of 0 is all the workers there are."""
        return {}


class DataSplit(Part):
    """Every rank holds the whole model and a share of each batch."""

    kind: Literal["data"] = Field("data", description="How one model is cut over ranks.", title="split")
    microbatches: int = Field(
        1,
        ge=1,
        le=1024,
        description="Pieces a replica's share of a batch is computed in, one after the other.",
    )
    zero: Literal[0, 1, 3] = Field(
        0,
        description="What data-parallel ranks share out among them (ZeRO): nothing, 1: optimizer state, "
        "3: weights and gradients, too.",
    )

    @field_validator("zero", mode="before")
    @classmethod
    def _from_a_word(cls, zero: Any) -> Any:
        """On the command line a number is a word."""
        return int(zero) if isinstance(zero, str) and zero.isdecimal() else zero

    def axes(self, workers: int) -> dict[str, int]:
        """None: there is no axis but `data`."""
        return {}


class TensorSplit(ModelSplit):
    """Every layer is cut: by neurons, heads, characters or channels (Shoeybi et al., Megatron-LM, arXiv 1909.08053)."""

    kind: Literal["tensor"] = Field("tensor", description="How one model is cut over ranks.", title="split")
    tensor: int = Field(0, ge=0, le=64, description="Ranks a layer is cut over; 0: all workers.")
    redundancy: float = Field(
        0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the other ranks' neurons that each rank of an mlp computes, too, in place of receiving them.",
    )

    def axes(self, workers: int) -> dict[str, int]:
        return {"tensor": self.tensor or workers}


class SpatialSplit(ModelSplit):
    """Every image is cut: by height, or height and width; neighbours exchange halos."""

    kind: Literal["spatial"] = Field("spatial", description="How one model is cut over ranks.", title="split")
    rows: int = Field(
        0, ge=0, le=64, description="Pieces of an image's height; 0: as many as workers and columns allow."
    )
    columns: int = Field(1, ge=1, le=64, description="Pieces of an image's width.")

    def axes(self, workers: int) -> dict[str, int]:
        return {"rows": self.rows or max(1, workers // self.columns), "columns": self.columns}


class PipelineSplit(ModelSplit):
    """Each rank holds some layers; micro-batches go through (GPipe, arXiv 1811.06965)."""

    kind: Literal["pipeline"] = Field(
        "pipeline", description="How one model is cut over ranks.", title="split"
    )
    stages: int = Field(
        0, ge=0, le=64, description="Ranks one model's layers are spread over; 0: all workers."
    )
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "pipedream"] = Field(
        "1f1b", description="Order of forward and backward passes of micro-batches on each stage."
    )
    microbatches: int = Field(
        8,
        ge=1,
        le=1024,
        description="Pieces a replica's share of a batch is computed in, one after the other.",
    )
    chunks: int = Field(
        2, ge=1, le=16, description="Parts of the model each stage holds, in the interleaved schedule."
    )
    partition: str = Field(
        "balanced",
        min_length=1,
        description="Layers with weights of each stage (of each chunk, in turn): balanced by their FLOPs, measured: by "
        "their seconds, or numbers such as 2,1,1.",
    )
    recompute: bool = Field(
        False, description="Keep a micro-batch's input alone, and compute its activations again."
    )

    def axes(self, workers: int) -> dict[str, int]:
        return {"pipeline": self.stages or workers}


class HybridSplit(PipelineSplit):
    """Layers are spread over stages, and each layer cut: 3D parallelism (Narayanan et al., arXiv 2104.04473)."""

    kind: Literal["hybrid"] = Field("hybrid", description="How one model is cut over ranks.", title="split")
    stages: int = Field(2, ge=1, le=64, description="Ranks one model's layers are spread over.")
    tensor: int = Field(2, ge=1, le=64, description="Ranks a layer is cut over.")

    def axes(self, workers: int) -> dict[str, int]:
        return {"pipeline": self.stages, "tensor": self.tensor}


SPLITS = (DataSplit, TensorSplit, SpatialSplit, PipelineSplit, HybridSplit)
"""All kinds; the first is the default."""
