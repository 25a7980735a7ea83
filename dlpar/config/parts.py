"""The parts an experiment is made of, apart from how replicas agree and how one model is cut.

For these two see :mod:`dlpar.config.sync` and :mod:`dlpar.config.split`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dlpar.config.schema import Part

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Model(Part):
    """The network every replica holds."""

    name: Literal["mlp", "linear", "logistic", "cnn", "transformer"] = Field(
        "mlp", description="Network to train.", title="model"
    )
    width: int = Field(
        256,
        ge=1,
        le=8192,
        description="Hidden units; 8 times the channels of a cnn; embedding size of a transformer.",
    )
    depth: int = Field(2, ge=1, le=64, description="Hidden layers, convolution layers or transformer blocks.")
    heads: int = Field(4, ge=1, le=64, description="Attention heads of a transformer.")
    norm: Literal["none", "batch", "sync_batch"] = Field(
        "none",
        description="Batch normalisation of mlp and cnn: with each worker's own statistics, or synchronised.",
    )

    @property
    def channels(self) -> int:
        """Of each convolution of a cnn."""
        return max(4, self.width // 8)


class Data(Part):
    """The samples, and where files of them lie."""

    name: Literal["digits", "diabetes", "docstrings", "mnist", "cifar10"] = Field(
        "digits", description="Data set.", title="data"
    )
    folder: str | None = Field(
        None, min_length=1, description="Folder with the mnist or cifar10 files; default: $DLPAR_DATA."
    )
    context: int = Field(
        32, ge=2, le=1024, description="Characters a docstrings sample shows the transformer."
    )
    reading: Literal["whole", "batches"] = Field(
        "whole",
        description="What a rank reads of mnist: all images, at the start, or of every batch its own share.",
    )

    @model_validator(mode="after")
    def _can_be_read_in_parts(self) -> Data:
        if self.reading != "whole" and self.name != "mnist":
            raise ValueError(
                f"data.reading: got {self.reading!r}, allowed with data {self.name} is whole: only mnist's files hold "
                "image after image"
            )
        return self


class Averaging(Part):
    """Several local steps between two exchanges; any scheme then carries what the workers moved, not gradients."""

    method: Literal["none", "local", "elastic", "block_momentum"] = Field(
        "none",
        title="averaging",
        description="What is exchanged: gradients every step (none), or models every period: local SGD, "
        "elastic averaging, block momentum.",
    )
    period: int = Field(8, ge=1, le=100_000, description="Local steps between two exchanges.")
    elasticity: float = Field(
        0.9,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Elastic averaging: how far the centre moves to the workers' mean; a worker moves 1/N of it.",
    )
    block_momentum: float | None = Field(
        None, ge=0, lt=1, allow_inf_nan=False, description="Momentum from block to block; default: 1 - 1/N."
    )


class Compression(Part):
    """Fewer bytes for a gradient; what is lost is remembered and sent later (error feedback)."""

    codec: Literal["none", "onebit", "topk", "fp16", "bf16"] = Field(
        "none",
        title="compression",
        description="How gradients are compressed on the wire; in a ring each code goes to all others, for codes do not add up.",
    )
    keep: float = Field(
        0.01, gt=0, le=1, allow_inf_nan=False, description="Share of the elements topk sends."
    )


def _by_rank(value: Any) -> Any:
    """``"1=4.0,2=2"`` as ``{1: 4.0, 2: 2.0}``; anything else for pydantic to judge."""
    if not isinstance(value, str):
        return value
    pairs = [piece.split("=") for piece in value.split(",") if piece.strip()]
    try:
        return {int(worker): float(number) for worker, number in pairs}
    except ValueError:
        return value


ByRank = Annotated[dict[int, Positive], BeforeValidator(_by_rank)]
"""A number for some of the workers: a mapping, or text such as ``1=4.0,2=2``."""


class Delays(Part):
    """Slow and unsteady workers: what a step takes beyond its computing."""

    kind: Literal["none", "constant", "exponential", "gamma"] = Field(
        "none", description="Distribution of a delay added to every worker's every step.", title="delay"
    )
    delay_ms: float = Field(
        10.0, gt=0, le=60_000, allow_inf_nan=False, description="Mean of that delay, in ms."
    )
    delay_cv: float = Field(
        0.5, gt=0, le=10, allow_inf_nan=False, description="Standard deviation over mean of a gamma delay."
    )
    straggler: ByRank = Field(
        {}, description="Workers that are slower by a factor: 1=4.0 is worker 1, four times slower."
    )
    stall: ByRank = Field({}, description="Workers that stall once, halfway, for so many seconds: 2=1.5.")


class Cluster(Part):
    """Where the ranks live and what carries their messages."""

    world: Literal["real", "paced", "simulated"] = Field(
        "real",
        title="world",
        description="real: processes and the wall clock; paced: processes that keep a platform's time; simulated: "
        "thousands of ranks in one process.",
    )
    platform: str | None = Field(
        None,
        min_length=1,
        title="platform",
        description="Cluster that paced and simulated ranks live on: a name `dlpar platforms` lists, or a file.",
    )
    stand_in_for: str | None = Field(
        None,
        min_length=1,
        title="stand_in_for",
        description="Workload whose FLOPs and bytes are charged in place of the model's: resnet101, or a file.",
    )
    messages: Literal["values", "sizes"] = Field(
        "values",
        title="messages",
        description="Simulated: whether ranks really compute and messages carry values, or sizes only.",
    )
    placement: Literal["dedicated", "colocated"] = Field(
        "dedicated",
        title="placement",
        description="Servers on nodes of their own, or on those of the workers.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where tensors live; auto: on GPUs where every rank sees one."
    )
    carrier: Literal["auto", "mpi", "nccl", "gloo"] = Field(
        "auto", description="What moves tensors; auto: nccl with one GPU a rank, else mpi."
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Compute threads a rank; default: a fair share of the cores, simulated one.",
    )
    hostfile: str | None = Field(
        None, min_length=1, description="Open MPI hostfile for more than one machine."
    )
    timeout: float = Field(
        60.0,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds without progress after which the job is ended.",
    )
