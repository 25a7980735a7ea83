"""What to run: one schema behind command-line flags, panel controls, JSON and error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from dlpar.schema import BadExperiment, Part, sentence, shown, spelled_as_head

MAX_WORKERS = 64
"""Real processes one job may start; more belong to the simulated world."""


class Model(Part):
    """The network every replica holds."""

    name: Literal["mlp", "linear", "logistic", "cnn", "transformer"] = Field(
        "mlp", description="Network to train.", title="model"
    )
    width: int = Field(256, ge=1, le=8192, description="Hidden units; 8 times the channels of a cnn; embedding size of a transformer.")
    depth: int = Field(2, ge=1, le=64, description="Hidden layers, convolution layers or transformer blocks.")
    heads: int = Field(4, ge=1, le=64, description="Attention heads of a transformer.")
    norm: Literal["none", "batch", "sync_batch"] = Field(
        "none", description="Batch normalisation of mlp and cnn: with each worker's own statistics, or synchronised."
    )


class Data(Part):
    """The samples, and where files of them lie."""

    name: Literal["digits", "diabetes", "docstrings", "mnist", "cifar10"] = Field(
        "digits", description="Data set.", title="data"
    )
    folder: str | None = Field(
        None, min_length=1, description="Folder with the mnist or cifar10 files; default: $DLPAR_DATA."
    )
    context: int = Field(32, ge=2, le=1024, description="Characters a docstrings sample shows the transformer.")


class DataSplit(Part):
    """Every rank holds the whole model and a share of each batch."""

    kind: Literal["data"] = Field("data", description="How one model is cut over ranks.", title="split")


class Ring(Part):
    """Ring all-reduce (Patarasuk and Yuan 2009; Horovod, arXiv 1802.05799)."""

    scheme: Literal["ring"] = Field("ring", description="How replicas agree.", title="sync")
    allreduce: Literal["ring", "library"] = Field(
        "ring", description="Our ring in 20 lines, or the library's own (MPI_Allreduce, NCCL)."
    )
    overlap: bool = Field(False, description="Send a bucket while the backward pass still computes the next.")
    bucket_mb: float = Field(
        25.0, gt=0, le=4096, allow_inf_nan=False, description="Size of a gradient bucket, in MB (10^6 bytes)."
    )


class Cluster(Part):
    """Where the ranks live and what carries their messages."""

    world: Literal["real"] = Field("real", description="What ranks and time are.", title="world")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where tensors live.")
    carrier: Literal["auto", "mpi", "nccl", "gloo"] = Field(
        "auto", description="What moves tensors; auto: nccl with one GPU a rank, else mpi."
    )
    threads: int | None = Field(None, ge=1, le=256, description="Compute threads a rank; default: a fair share of the cores.")
    hostfile: str | None = Field(None, min_length=1, description="Open MPI hostfile for more than one machine.")
    timeout: float = Field(
        60.0, gt=0, le=86_400, allow_inf_nan=False, description="Seconds without progress after which the job is ended."
    )


def _part(kind: type[Part]):
    return Annotated[kind, BeforeValidator(spelled_as_head(kind))]


class Experiment(Part):
    """One training run, complete: the same experiment gives the same batches on any number of workers.

    Parameters are the fields below; a part may be given by name (``model="cnn"``),
    as a mapping or as an object.

    Raises
    ------
    BadExperiment
        For any bad value or impossible combination, in one sentence that names
        the field, what was given and what is allowed.

    Examples
    --------
    >>> Experiment(workers=2, model={"name": "mlp", "width": 64}).local_batch(0)
    128
    """

    model: _part(Model) = Field(Model(), description="Network to train.")
    data: _part(Data) = Field(Data(), description="Data set.")
    batch: int = Field(256, ge=1, le=1_000_000, description="Samples a step: of all workers (strong), of each (weak).")
    scaling: Literal["strong", "weak"] = Field(
        "strong", description="strong: batch is divided among workers; weak: batch is each worker's own."
    )
    shards: Literal["iid", "by_label", "uneven"] = Field("iid", description="How samples are dealt to workers.")
    steps: int = Field(200, ge=1, le=10_000_000, description="Global batches; an epoch has train size / batch of them.")
    lr: float = Field(0.1, gt=0, le=1000, allow_inf_nan=False, description="Learning rate.")
    optimizer: Literal["sgd", "momentum", "adagrad", "adam"] = Field("sgd", description="Update rule.")
    dtype: Literal["float32", "float64"] = Field("float32", description="Type of weights and gradients.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Fixes weights, split and batches.")
    evaluate_every: int | None = Field(
        None, ge=1, le=10_000_000, description="Steps between tests on held-out samples; default: 20 tests a run."
    )
    workers: int = Field(4, ge=1, le=MAX_WORKERS, description="Ranks that train (servers not counted).")
    split: _part(DataSplit) = Field(DataSplit(), description="How one model is cut over ranks.")
    sync: _part(Ring) = Field(Ring(), description="How replicas agree.")
    cluster: _part(Cluster) = Field(Cluster(), description="Where the ranks live.")

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise BadExperiment(sentence(error, type(self))) from None

    @classmethod
    def head(cls) -> str:
        raise TypeError("an experiment has no head field")

    def __str__(self) -> str:
        return f"{self.model} on {self.data}, {self.workers} × {self.sync}"

    @model_validator(mode="after")
    def _combinations(self) -> Experiment:
        for rule in RULES:
            complaint = rule(self)
            if complaint:
                raise ValueError(complaint)
        return self

    @property
    def global_batch(self) -> int:
        """Samples all workers together take a step."""
        return self.batch if self.scaling == "strong" else self.batch * self.workers

    def local_batch(self, worker: int) -> int:
        """Samples `worker` (0-based) takes of every step; the first ones take the remainder."""
        share, rest = divmod(self.global_batch, self.workers)
        return share + (worker < rest)

    @property
    def evaluation_interval(self) -> int:
        """Steps between two tests on held-out samples."""
        return self.evaluate_every or max(1, self.steps // 20)

    def check_files(self) -> None:
        """Refuse an experiment whose files are not on this machine.

        The constructor does not look: a run is read again, elsewhere and later, when they are gone.

        Raises
        ------
        BadExperiment
            If the hostfile or the folder of the data is not there.
        """
        hostfile = self.cluster.hostfile
        if hostfile is not None and not Path(hostfile).is_file():
            raise BadExperiment(f"cluster.hostfile: got {shown(hostfile)}, allowed is the path of an existing file")
        if self.data.name in FROM_FILES:
            from dlpar import files  # here: reading files needs NumPy, an experiment does not

            try:
                files.folder_of(self.data.name, self.data.folder)
            except files.BadData as error:
                raise BadExperiment(str(error)) from None

    def replace(self, **changes: Any) -> Experiment:
        """A validated copy; a part is changed field by field: ``replace(model={"width": 64})``."""
        fields = self.model_dump()
        for name, value in changes.items():
            part = isinstance(value, dict) and isinstance(fields.get(name), dict)
            fields[name] = {**fields[name], **value} if part else value
        return Experiment(**fields)

    def to_json(self) -> str:
        """The experiment as indented JSON; :meth:`from_json` reads it back unchanged."""
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Experiment:
        """Read what :meth:`to_json` wrote; raises `BadExperiment` like the constructor."""
        import json

        try:
            fields = json.loads(text)
        except ValueError as error:
            raise BadExperiment(f"experiment: not valid JSON ({error})") from None
        if not isinstance(fields, dict):
            raise BadExperiment(f"experiment: got {shown(fields)}, allowed is a mapping of fields to values")
        return cls(**fields)


FITS = {
    "linear": ("diabetes",),
    "logistic": ("digits", "docstrings", "mnist", "cifar10"),
    "mlp": ("digits", "diabetes", "mnist", "cifar10"),
    "cnn": ("digits", "mnist", "cifar10"),
    "transformer": ("docstrings",),
}
"""Data sets each model can read."""

FROM_FILES = ("mnist", "cifar10")
"""Data sets that do not come with dlpar or its libraries."""


def _model_fits_data(e: Experiment) -> str | None:
    fits = FITS[e.model.name]
    if e.data.name not in fits:
        return f"data: got {e.data.name!r}, allowed with model {e.model.name} is {' or '.join(fits)}"
    if e.shards == "by_label" and (e.data.name == "diabetes" or e.model.name == "transformer"):
        return f"shards: got 'by_label', allowed with {e.model.name} on {e.data.name} is iid or uneven: it has no labels"
    return None


def _batch_reaches_every_worker(e: Experiment) -> str | None:
    if e.scaling == "strong" and e.batch < e.workers:
        return (
            f"batch: got {e.batch}, allowed with {e.workers} workers and strong scaling "
            f"is at least {e.workers}: every worker needs a sample"
        )
    return None


def _model_is_whole(e: Experiment) -> str | None:
    model = e.model
    if model.name == "transformer" and model.width % model.heads:
        return f"model.heads: got {model.heads}, allowed is a divisor of the width {model.width}"
    if model.norm != "none" and model.name not in ("mlp", "cnn"):
        return f"model.norm: got {model.norm!r}, allowed with model {model.name} is none"
    return None


def _statistics_exist(e: Experiment) -> str | None:
    """Batch normalisation of single numbers has no variance; an image holds many numbers, a row of an mlp one."""
    if e.model.norm == "none" or e.model.name != "mlp":
        return None
    # The smallest of uneven shares is about 1 of 1 + 2 + ... + workers.
    shares = {"uneven": e.workers * (e.workers + 1) // 2}.get(e.shards, e.workers) if e.model.norm == "batch" else 1
    if e.global_batch >= 2 * shares:
        return None
    least = 2 * shares if e.scaling == "strong" else -(-2 * shares // e.workers)
    return (
        f"batch: got {e.batch}, allowed with norm {e.model.norm}, {e.workers} workers, {e.scaling} scaling "
        f"and {e.shards} shards is at least {least}: a variance needs two samples"
    )


def _carrier_fits_device(e: Experiment) -> str | None:
    if e.cluster.carrier == "nccl" and e.cluster.device == "cpu":
        return "cluster.carrier: got 'nccl', allowed with device cpu is auto, mpi or gloo"
    if e.cluster.carrier == "gloo" and e.cluster.device == "cuda":
        return "cluster.carrier: got 'gloo', allowed with device cuda is auto, mpi or nccl"
    return None


RULES = (
    _model_fits_data, _batch_reaches_every_worker, _model_is_whole, _statistics_exist, _carrier_fits_device,
)  # fmt: skip
"""What fields must satisfy together; each gives a sentence, or None."""
