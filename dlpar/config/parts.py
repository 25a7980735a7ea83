"""Parts of an experiment, except for the scheme between replicas and the split of a model.

For these two see :mod:`dlpar.config.sync` and :mod:`dlpar.config.split`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from dlpar.config.schema import LINE, BadData, OneOf, Only, Part, Share

FROM_FILES = {"mnist": ["*-idx?-ubyte*"], "cifar10": ["data_batch_1", "*-batches-py/data_batch_1"]}
"""Data sets that neither dlpar nor its libraries contain, with their files. At least one must exist."""


class Model(Part):
    """The network that every replica holds."""

    name: Literal["mlp", "linear", "logistic", "cnn", "transformer"] = Field("mlp", title="model")
    """Network to train."""
    width: Annotated[int, Only("model.name", "mlp", "cnn", "transformer")] = Field(256, ge=1, le=8192)
    """Hidden units; 8 times the channels of a cnn, which has at least 4; embedding size of a transformer."""
    depth: Annotated[int, Only("model.name", "mlp", "cnn", "transformer")] = Field(2, ge=1, le=64)
    """Hidden layers, convolution layers or transformer blocks."""
    heads: Annotated[int, Only("model.name", "transformer")] = Field(4, ge=1, le=64)
    """Attention heads of a transformer."""
    norm: Annotated[Literal["none", "batch", "sync_batch"], Only("model.name", "mlp", "cnn")] = Field("none")
    """Batch normalisation of mlp and cnn: with each worker's own statistics, or synchronised."""

    @property
    def channels(self) -> int:
        """Channels of each convolution of a cnn."""
        return max(4, self.width // 8)

    @property
    def hidden_weights(self) -> int:
        """Number of weights between hidden layers. This is a model's minimum for any data."""
        return {
            "mlp": (self.depth - 1) * self.width**2,
            "cnn": (self.depth - 1) * 9 * self.channels**2,
            "transformer": self.depth * 12 * self.width**2,
        }.get(self.name, 0)


class Data(Part):
    """Samples, and the folder of their files."""

    name: Literal["digits", "diabetes", "docstrings", "mnist", "cifar10"] = Field("digits", title="data")
    """Data set."""
    folder: Annotated[str | None, Only("data.name", "mnist", "cifar10")] = Field(None, pattern=LINE)
    """Folder with the mnist or cifar10 files; default: $DLPAR_DATA."""
    context: Annotated[int, Only("data.name", "docstrings")] = Field(32, ge=2, le=1024)
    """Characters of a docstrings sample that the transformer sees."""

    def path(self) -> Path | None:
        """Folder with the data set's files: ``folder`` or ``$DLPAR_DATA``. None if it needs no files.

        Raises
        ------
        BadData
            If neither is given, there is no such folder, or it holds none of the files.
        """
        if self.name not in FROM_FILES:
            return None
        given = self.folder or os.environ.get("DLPAR_DATA")
        path = Path(os.path.expanduser(given or ""))
        if given and os.path.isdir(path) and any(any(path.glob(file)) for file in FROM_FILES[self.name]):
            return path
        field = "data.folder" if self.folder or not given else "$DLPAR_DATA"
        got = repr(given) if given else "nothing, nor is $DLPAR_DATA set"
        some = " or ".join(FROM_FILES[self.name])
        raise BadData(f"{field}: got {got}, allowed for {self.name} is an existing folder that holds {some}")


MODELS = ("local", "elastic", "block_momentum")
"""Methods that average models, not gradients."""

PAPER = ("paced", "simulated")
"""Worlds with a cluster on paper."""

OnPaper = Only("cluster.world", *PAPER)
Delayed = Only("delays.kind", "constant", "exponential", "gamma")


class Averaging(Part):
    """Several local steps between two exchanges of weight changes, with any scheme."""

    method: Literal["none", "local", "elastic", "block_momentum"] = Field("none", title="averaging")
    """Exchange gradients every step (none), or models every period: by local SGD, elastic averaging or block
    momentum."""
    period: Annotated[int, Only("averaging.method", *MODELS)] = Field(8, ge=1, le=100000)
    """Local steps between two exchanges."""
    elasticity: Annotated[Share, Only("averaging.method", "elastic")] = Field(0.9)
    """Elastic averaging: how far the centre moves to the workers' mean; a worker moves 1/N of it."""
    block_momentum: Annotated[float | None, Only("averaging.method", "block_momentum")] = Field(
        None, ge=0, lt=1
    )
    """Momentum from block to block; default: 1 - 1/N."""


CODECS = ["none", "onebit", "topk", "fp16", "bf16"]
"""Codecs by name. :func:`dlpar.compression.codecs.register` adds a codec."""


class Compression(Part):
    """Compressed gradients.

    The error of each code is kept and added to the next gradient (error feedback).
    """

    codec: Annotated[str, OneOf(CODECS)] = Field("none", title="compression")
    """Code of gradients on the wire; in a ring, each rank decodes, sums and encodes one slice again."""
    keep: Annotated[Share, Only("compression.codec", "topk")] = Field(0.01)
    """Share of the elements that topk sends."""


def _by_rank(value: Any) -> Any:
    """Convert ``"1=4.0,2=2"`` to ``{1: 4.0, 2: 2.0}``, and leave anything else to pydantic."""
    if not isinstance(value, str):
        return value
    pairs = [piece.split("=") for piece in value.split(",") if piece.strip()]
    try:
        return {int(worker): float(number) for worker, number in pairs}
    except ValueError:
        return value


Number = TypeVar("Number")
ByRank = Annotated[dict[int, Number], BeforeValidator(_by_rank)]
"""A number for some of the workers: a mapping, or text such as ``1=4.0,2=2``."""


class Delays(Part):
    """Slow and unsteady workers: delays added to the computation of a step."""

    kind: Literal["none", "constant", "exponential", "gamma"] = Field("none", title="delay")
    """Distribution of a delay that is added to every step of every worker."""
    delay_ms: Annotated[float, Delayed] = Field(10.0, gt=0, le=60000)
    """Mean of that delay, in ms."""
    delay_cv: Annotated[float, Only("delays.kind", "gamma")] = Field(0.5, gt=0, le=10)
    """Standard deviation over mean of a gamma delay."""
    straggler: ByRank[Annotated[float, Field(ge=1, le=1000)]] = Field({})
    """Workers that are slower by a factor: 1=4.0 is worker 1, four times slower."""
    stall: ByRank[Annotated[float, Field(gt=0, le=600)]] = Field({})
    """Workers that stall once, halfway, for some seconds: 2=1.5."""


class Snapshot(Part):
    """Snapshots of the full state, used to resume a run."""

    every: int = Field(0, ge=0, le=10000000, title="snapshot every")
    """Global steps between two snapshots; 0: none."""
    keep: int = Field(2, ge=1, le=1000, title="snapshots kept")
    """Number of newest snapshots that are kept."""


class Deaths(Part):
    """Ranks that die, and how the others continue."""

    on_death: Literal["end", "shrink", "spare"] = Field("end", title="on death")
    """Reaction to a rank's death: end the job, continue without it, or let a spare rank take its place."""
    spares: Annotated[int, Only("deaths.on_death", "spare")] = Field(1, ge=1, le=16)
    """Ranks that wait to take the place of one that dies."""
    die: ByRank[Share] = Field({})
    """Ranks that die on request, and when: 2=0.5 is rank 2, halfway through the steps."""
    mtbf: float | None = Field(None, gt=0, le=1e9)
    """Mean seconds between deaths of workers on request, exponential and drawn by the seed."""

    @property
    def goes_on(self) -> bool:
        """Whether the job continues after a death."""
        return self.on_death != "end"


class Cluster(Part):
    """Machines of the ranks, and the carrier of their messages."""

    world: Literal["real", "paced", "simulated"] = Field("real", title="world")
    """real: processes and the wall clock; paced: processes that keep a platform's time; simulated: thousands
    of ranks in one process."""
    platform: Annotated[str | None, OnPaper] = Field(None, pattern=LINE)
    """Cluster of paced and simulated ranks: a name that `dlpar platforms` lists, or a file; default: p100-25gbe."""
    stand_in_for: Annotated[str | None, OnPaper] = Field(None, pattern=LINE)
    """Workload whose FLOPs and bytes are charged instead of the model's: a name such as resnet101, or a file.
    Records count the bytes of the messages that ranks send: with values, the model's own."""
    messages: Annotated[Literal["values", "sizes"], Only("cluster.world", "simulated")] = Field("values")
    """Content of simulated messages: values that ranks really compute, or sizes only."""
    placement: Annotated[Literal["dedicated", "colocated"], OnPaper] = Field("dedicated")
    """Nodes of servers: their own, or the workers' nodes; a leaf server is on a node of its group."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Only("cluster.world", "real")] = Field("auto")
    """Device of tensors; auto: GPUs if each rank has one of its own, else the CPU; cuda: ranks may share one."""
    carrier: Annotated[Literal["auto", "mpi", "nccl", "gloo"], Only("cluster.world", "real")] = Field("auto")
    """Library that moves tensors; auto: nccl with one GPU a rank, else mpi."""
    graphs: Annotated[bool, Only("cluster.world", "real")] = Field(True)
    """Whether a GPU replays CUDA graphs of a whole model: one for each pass, or one for a step without messages."""
    threads: Annotated[int | None, Only("cluster.world", "real", "paced")] = Field(None, ge=1, le=256)
    """Compute threads a rank; default: a fair share of the cores, simulated one."""
    hostfile: Annotated[str | None, Only("cluster.world", "real")] = Field(None, pattern=LINE)
    """Open MPI hostfile for more than one machine."""
    timeout: float = Field(60.0, gt=0, le=86400)
    """Seconds without progress after which the job is ended."""
