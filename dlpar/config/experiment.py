"""Experiment to run: one schema behind command-line flags, panel controls, JSON and error messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, model_validator

from dlpar.config import rules
from dlpar.config.parts import Averaging, Cluster, Compression, Data, Deaths, Delays, Model, Snapshot
from dlpar.config.schema import BadExperiment, FromFile, Only, kinds, load_plugins, shown
from dlpar.config.split import SPLITS, DataSplit
from dlpar.config.sync import SCHEMES, Ring, SyncPart
from dlpar.config.user_code import as_part


def _any_of(kinds: list[Any]) -> Any:
    """Return the type of a part with several kinds.

    The first kind is the default, and a bare word names a kind.
    """
    head = kinds[0].head()

    def spelled_out(value: Any) -> Any:
        if isinstance(value, str):
            return {head: value}
        return {head: kinds[0].model_fields[head].default, **value} if isinstance(value, dict) else value

    return Annotated[Union[tuple(kinds)], Field(discriminator=head), BeforeValidator(spelled_out)]


class Experiment(FromFile):
    """Complete description of a training run. It gives the same batches on any number of workers.

    Parameters are the fields below. A part may be given by name (``model="cnn"``), as a mapping or as an
    object.

    Raises
    ------
    BadExperiment
        For any bad value or impossible combination, in one sentence that names
        the field, the given value and the allowed values.

    Examples
    --------
    >>> Experiment(workers=2, model={"name": "mlp", "width": 64}).local_batch(0)
    128
    """

    model: Model = Field(Model())
    """Network to train."""
    data: Data = Field(Data())
    """Data set."""
    batch: int = Field(256, ge=1, le=1000000)
    """Samples a step: of all replicas (strong), or of each (weak)."""
    scaling: Literal["strong", "weak"] = Field("strong")
    """strong: batch is divided among replicas; weak: batch is each replica's own."""
    shards: Literal["iid", "by_label", "uneven"] = Field("iid")
    """Distribution of the samples over workers."""
    steps: int = Field(200, ge=1, le=10000000)
    """Number of global batches; an epoch has train size / batch of them."""
    lr: float = Field(0.1, ge=0, le=1000)
    """Learning rate."""
    optimizer: Literal["sgd", "momentum", "adagrad", "adam"] = Field("sgd")
    """Update rule."""
    momentum: Annotated[float, Only("optimizer", "momentum")] = Field(0.9, ge=0, lt=1)
    """Momentum of the momentum optimizer."""
    dtype: Literal["float32", "float64"] = Field("float32")
    """Type of weights and gradients."""
    precision: Literal["full", "tf32", "bf16"] = Field("full")
    """tf32: GPUs round the factors of float32 products to 10 bits; bf16: products in bfloat16 (mixed precision).
    Weights, gradients and optimizer state stay in dtype."""
    seed: int = Field(0, ge=0, le=2**31 - 1)
    """Seed of weights, of held-out samples and of batches."""
    evaluate_every: int | None = Field(None, ge=0, le=10000000)
    """Steps between tests on held-out samples, besides the one at the end; default: 20 to 39 tests a run; 0: none.
    """
    workers: int = Field(4, ge=1, le=rules.MOST["simulated"])
    """Ranks that train (servers not counted)."""
    split: _any_of(SPLITS) = Field(DataSplit())  # type: ignore[valid-type]
    """Split of one model over ranks."""
    sync: Annotated[_any_of(SCHEMES), BeforeValidator(as_part)] = Field(Ring())  # type: ignore[valid-type]
    """Scheme by which replicas agree."""
    averaging: Averaging = Field(Averaging())
    """Local steps between exchanges."""
    compression: Compression = Field(Compression())
    """Compressed gradients."""
    delays: Delays = Field(Delays())
    """Slow and unsteady workers."""
    snapshot: Snapshot = Field(Snapshot())
    """Snapshots to resume from."""
    deaths: Deaths = Field(Deaths())
    """Ranks that die, and how the others continue."""
    cluster: Cluster = Field(Cluster())
    """Machines of the ranks."""

    def __init__(self, /, **fields: Any) -> None:
        load_plugins()
        super().__init__(**fields)

    def __str__(self) -> str:
        return f"{self.model} on {self.data}, {self.workers} × {self.sync}"

    @model_validator(mode="after")
    def _combinations(self) -> Experiment:
        rules.check(self)
        try:
            self.of_replicas()  # all other rules hold for each part of the model
        except BadExperiment as error:
            raise BadExperiment(f"{error} (of each part of the model: {self.replicas} replicas)") from None
        return self

    @property
    def members(self) -> int:
        """Number of ranks in the training: workers, then servers, then leaf servers."""
        return self.workers + self.sync.server_ranks + self.sync.leaf_ranks

    @property
    def spare_ranks(self) -> int:
        """Number of spare ranks, after all others. A spare rank waits to replace a rank that dies."""
        return self.deaths.spares if self.deaths.on_death == "spare" else 0

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return self.members + self.spare_ranks

    @property
    def processes(self) -> int:
        """Number of processes of the job: one for each rank, or one for all simulated ranks."""
        return 1 if self.cluster.world == "simulated" else self.ranks

    @property
    def replicas(self) -> int:
        """Number of copies of the model: workers divided by the ranks that share a model."""
        return max(1, self.workers // self.split.ways(self.workers))

    @property
    def has_outline(self) -> bool:
        """Return whether the layers of a workload replace the model's. Nothing is then computed."""
        return self.cluster.stand_in_for is not None and self.cluster.messages == "sizes"

    def of_replicas(self) -> Experiment:
        """Return the experiment as the ranks of one part of the model see it: replicas in a data split.

        Each part of the model has an equal share of the servers.
        """
        ways = self.workers // self.replicas
        if ways == 1:
            return self if self.split.kind == "data" else self.replace(split="data")
        sync = self.sync.of_one_part(ways)
        return self.replace(workers=self.replicas, split="data", delays="none", deaths={"die": {}}, sync=sync)

    @property
    def backup(self) -> int:
        """Number of workers whose gradients an update does not need."""
        return getattr(self.sync, "backup", 0)

    @property
    def itemsize(self) -> int:
        """Bytes of a number of type `dtype`."""
        return 8 if self.dtype == "float64" else 4

    @property
    def global_batch(self) -> int:
        """Number of samples in a step, excluding those of backup workers."""
        return self.batch if self.scaling == "strong" else self.batch * (self.replicas - self.backup)

    @property
    def mean_batch(self) -> float:
        """Mean number of samples in a step. Map-reduce keeps a fraction of the global batch."""
        return self.global_batch * getattr(self.sync, "fraction", 1.0)

    @property
    def batch_parts(self) -> int:
        """Number of equal parts of a batch. The smallest share of a replica is about one part."""
        n = max(1, self.replicas - self.backup)
        return n * (n + 1) // 2 if self.shards == "uneven" else n  # uneven shares are 1, 2, ..., n parts

    def local_batch(self, replica: int) -> int:
        """Return the samples of `replica` (0-based) in every step. The first replicas take the remainder.

        Uneven shards have other shares (:class:`~dlpar.data.sampler.Sampler`).
        """
        share, rest = divmod(self.global_batch, self.replicas - self.backup)
        return share + (replica < rest)

    def replace(self, **changes: Any) -> Experiment:
        """Return a validated copy. A part is changed field by field: ``replace(model={"width": 64})``."""
        fields = self.model_dump()
        for name, value in changes.items():
            before = fields.get(name)
            if isinstance(before, dict) and isinstance(value, dict):
                head = next(iter(before))
                # Another split or scheme keeps no field of the old one.
                another_kind = name in ("split", "sync") and value.get(head, before[head]) != before[head]
                value = value if another_kind else {**before, **value}
            fields[name] = value
        return Experiment(**fields)

    def to_json(self) -> str:
        """Return the experiment as indented JSON. :meth:`from_json` reads it back unchanged."""
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Experiment:
        """Read the JSON of :meth:`to_json`. Raises `BadExperiment` like the constructor."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadExperiment(f"experiment: not valid JSON ({error})") from None
        if not isinstance(fields, dict):
            raise BadExperiment(f"experiment: got {shown(fields)}, allowed is a mapping of fields to values")
        if isinstance(fields.get("data"), dict):
            fields["data"].pop("reading", None)  # older runs have this field, which changed no result
        return cls(**fields)


def missing(path: str, value_of: Callable[[str], Any]) -> tuple[str, tuple[str, ...]] | None:
    """Find the field and the values that another field needs in order to have an effect.

    Parameters
    ----------
    path : str
        Path of the field without effect: ``sync.staleness``.
    value_of : callable
        Function from the path of a field to its value.

    Returns
    -------
    tuple or None
        Path of the field that needs another value, and the values it may have; None if nothing is missing.
    """
    part, _, name = path.rpartition(".")
    for kind in kinds(Experiment.model_fields[part]) if part else [Experiment]:
        field = kind.model_fields.get(name)
        for mark in field.metadata if field else ():
            if isinstance(mark, Only):
                fits = value_of(mark.beside) in mark.values
                return missing(mark.beside, value_of) if fits else (mark.beside, mark.values)
    return None


def register(kind: type[SyncPart]) -> None:
    """Add a scheme that experiments can name. Its part's ``implementation`` says where the scheme is."""
    SCHEMES.append(kind)
    Experiment.model_fields["sync"].annotation = Union[tuple(SCHEMES)]  # type: ignore[assignment]
    Experiment.model_rebuild(force=True)
