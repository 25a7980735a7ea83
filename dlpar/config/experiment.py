"""What to run: one schema behind command-line flags, panel controls, JSON and error messages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from dlpar.config.parts import Averaging, Cluster, Compression, Data, Delays, Model
from dlpar.config.rules import FROM_FILES, RULES, RULES_OF_ALL_RANKS, SPLIT_RULES, has_outline, too_few_layers
from dlpar.config.schema import BadExperiment, Part, sentence, shown, spelled_as_head
from dlpar.config.split import SPLITS, DataSplit
from dlpar.config.sync import SCHEMES, Ring, extra_ranks
from dlpar.config.user_code import as_part
from dlpar.jobs.summary import free_running

MAX_WORKERS = 4096
"""Workers of one job; real processes are fewer (:data:`dlpar.config.rules.MOST`)."""


def _part(*kinds: type[Part]):
    return BeforeValidator(spelled_as_head(*kinds))


def _sync(value: Any) -> Any:
    """A function or class becomes the part that carries it; words and mappings are spelled out."""
    if callable(value) and not isinstance(value, Part):
        return as_part(value)
    return spelled_as_head(*SCHEMES)(value)


Split = Annotated[Union[SPLITS], Field(discriminator="kind")]  # noqa: UP007 (a tuple of kinds)
Sync = Annotated[Union[SCHEMES], Field(discriminator="scheme")]  # noqa: UP007


OF_SEVERAL_KINDS = ("split", "sync")
"""Parts of which another kind takes nothing over when one is replaced."""


def _changed(name: str, part: Any, value: Any) -> Any:
    """A part with some fields changed."""
    if not (isinstance(part, dict) and isinstance(value, dict)):
        return value
    head = next(iter(part))
    if name in OF_SEVERAL_KINDS and value.get(head, part[head]) != part[head]:
        return value
    return {**part, **value}


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

    model: Annotated[Model, _part(Model)] = Field(Model(), description="Network to train.")
    data: Annotated[Data, _part(Data)] = Field(Data(), description="Data set.")
    batch: int = Field(
        256, ge=1, le=1_000_000, description="Samples a step: of all replicas (strong), of each (weak)."
    )
    scaling: Literal["strong", "weak"] = Field(
        "strong", description="strong: batch is divided among replicas; weak: batch is each replica's own."
    )
    shards: Literal["iid", "by_label", "uneven"] = Field(
        "iid", description="How samples are dealt to workers."
    )
    steps: int = Field(
        200, ge=1, le=10_000_000, description="Global batches; an epoch has train size / batch of them."
    )
    lr: float = Field(0.1, ge=0, le=1000, allow_inf_nan=False, description="Learning rate.")
    optimizer: Literal["sgd", "momentum", "adagrad", "adam"] = Field("sgd", description="Update rule.")
    momentum: float = Field(0.9, ge=0, lt=1, allow_inf_nan=False, description="Of the momentum optimizer.")
    dtype: Literal["float32", "float64"] = Field("float32", description="Type of weights and gradients.")
    precision: Literal["full", "bf16"] = Field(
        "full",
        description="bf16: matrix products in bfloat16 (mixed precision); weights, gradients and optimizer "
        "state stay in dtype.",
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Fixes weights, split and batches.")
    evaluate_every: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Steps between tests on held-out samples, besides the one at the end; default: 20 tests a run; 0: none.",
    )
    workers: int = Field(4, ge=1, le=MAX_WORKERS, description="Ranks that train (servers not counted).")
    split: Annotated[Split, _part(*SPLITS)] = Field(
        DataSplit(), description="How one model is cut over ranks."
    )
    sync: Annotated[Sync, BeforeValidator(_sync)] = Field(Ring(), description="How replicas agree.")
    averaging: Annotated[Averaging, _part(Averaging)] = Field(
        Averaging(), description="Local steps between exchanges."
    )
    compression: Annotated[Compression, _part(Compression)] = Field(
        Compression(), description="Fewer bytes for a gradient."
    )
    delays: Annotated[Delays, _part(Delays)] = Field(Delays(), description="Slow and unsteady workers.")
    cluster: Annotated[Cluster, _part(Cluster)] = Field(Cluster(), description="Where the ranks live.")

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
        for rule in (*SPLIT_RULES, *(RULES if self.replicas == self.workers else RULES_OF_ALL_RANKS)):
            complaint = rule(self)
            if complaint:
                raise ValueError(complaint)
        try:
            self.of_replicas()  # the other rules hold for each part of the model and its twins
        except BadExperiment as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def ranks(self) -> int:
        """Processes of the job: workers, then servers, then leaf servers."""
        return self.workers + extra_ranks(self.sync)

    @property
    def processes(self) -> int:
        """Processes of the job: one a rank, but one for all where they are simulated."""
        return 1 if self.cluster.world == "simulated" else self.ranks

    @property
    def free_running(self) -> bool:
        """Whether workers do as many steps as they can, in place of the same steps all of them."""
        return free_running(self.sync.model_dump())

    @property
    def replicas(self) -> int:
        """Copies of the model: workers over the ranks that share one."""
        return max(1, self.workers // math.prod(self.split.axes(self.workers).values()))

    def of_replicas(self) -> Experiment:
        """The experiment as one of a model's ranks and its twins in the other replicas see it: split by data alone.

        They are its workers, and each part of the model has its own, equal share of the servers.
        """
        ways = self.workers // self.replicas
        if ways == 1:
            return self if self.split.kind == "data" else self.replace(split="data")
        servers = (
            {}
            if self.sync.scheme != "ps"
            else {"servers": self.sync.servers // ways, "groups": self.sync.groups // ways}
        )
        return self.replace(workers=self.replicas, split="data", delays="none", sync=servers)

    @property
    def global_batch(self) -> int:
        """Samples all replicas together take a step."""
        return self.batch if self.scaling == "strong" else self.batch * self.replicas

    def local_batch(self, replica: int) -> int:
        """Samples `replica` (0-based) takes of every step; the first ones take the remainder."""
        share, rest = divmod(self.global_batch, self.replicas)
        return share + (replica < rest)

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
            If the hostfile, the platform, the workload or the folder of the data is not there, or a workload
            has too few layers for a pipeline's stages.
        """
        if self.cluster.world != "real":
            from dlpar.worlds.platforms import nodes_of, workload

            nodes_of(self)
            if self.cluster.stand_in_for is not None:
                charged = workload(self.cluster.stand_in_for)
                if has_outline(self) and (
                    complaint := too_few_layers(self, charged.name, len(charged.layers))
                ):
                    raise BadExperiment(complaint)
        hostfile = self.cluster.hostfile
        if hostfile is not None and not Path(hostfile).is_file():
            raise BadExperiment(
                f"cluster.hostfile: got {shown(hostfile)}, allowed is the path of an existing file"
            )
        if self.data.name in FROM_FILES:
            from dlpar.data import files  # here: reading files needs NumPy, an experiment does not

            try:
                files.folder_of(self.data.name, self.data.folder)
            except files.BadData as error:
                raise BadExperiment(str(error)) from None

    def replace(self, **changes: Any) -> Experiment:
        """A validated copy; a part is changed field by field: ``replace(model={"width": 64})``."""
        fields = self.model_dump()
        for name, value in changes.items():
            fields[name] = _changed(name, fields.get(name), value)
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
