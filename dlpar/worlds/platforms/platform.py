"""A platform: nodes of devices, the links inside and between them, and how unsteady they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from dlpar.config.parts import ByRank
from dlpar.config.schema import BadExperiment, Part, sentence, shown, spelled_as_head
from dlpar.worlds.platforms.workloads import WORKLOADS, Workload


class Device(Part):
    """What a rank computes on.

    Attributes
    ----------
    name : str
    flops : float
        Floating-point operations a second it sustains in training, not its peak.
    rates : dict
        Training samples a second of workloads that were measured on it; they win over `flops`.
    overhead : float, default 0
        Seconds of a worker's step beside its FLOPs: its batch, the interpreter, kernel launches.
    memory_gib : float or None
        GiB; None: not known.
    """

    name: str = Field(min_length=1, description="Name.")
    flops: float = Field(
        gt=0, allow_inf_nan=False, description="Floating-point operations a second, sustained."
    )
    rates: Annotated[dict[str, float], BeforeValidator(_rates)] = Field(
        {}, description="Training samples a second, by workload."
    )
    overhead: float = Field(0.0, ge=0, allow_inf_nan=False, description="Seconds of a step beside its FLOPs.")
    memory_gib: float | None = Field(None, gt=0, allow_inf_nan=False, description="Memory in GiB.")

    def seconds(self, flops: float, workload: Workload | None = None) -> float:
        """Mean seconds of a computation, without the overhead of the step it belongs to.

        Parameters
        ----------
        flops : float
            Floating-point operations of it.
        workload : Workload, optional
            What is trained; a measured rate of it says how many operations a second are sustained.
        """
        rate = self.rates.get(workload.name) if workload is not None else None
        return flops / (rate * workload.flops if rate and workload.flops else self.flops)


def _factors(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(map(_is_positive, value)):
        raise ValueError(f"timing.trace: got {shown(value)}, allowed is a list of factors above 0")
    return tuple(value)


class Timing(Part):
    """How the times of equal computations vary: a factor for every rank and step.

    Attributes
    ----------
    kind : str, default ``"constant"``
        ``"constant"``: 1.  ``"gamma"`` and ``"exponential"``: drawn, with mean 1.  ``"trace"``: given.
    cv : float, default 0.1
        Standard deviation over mean of the gamma distribution; the exponential's is 1.
    trace : tuple of float
        Factors, taken in turn for ever; rank r begins with element r.  Their mean is whatever it is.
    """

    kind: Literal["constant", "gamma", "exponential", "trace"] = Field(
        "constant", description="Distribution of a computation's time over its mean."
    )
    cv: float = Field(
        0.1, gt=0, le=10, allow_inf_nan=False, description="Standard deviation over mean of gamma."
    )
    trace: Annotated[tuple[float, ...], BeforeValidator(_factors)] = Field((), description="Factors above 0.")

    @model_validator(mode="after")
    def _trace_is_given(self) -> Timing:
        if (self.kind == "trace") != bool(self.trace):
            got = f"{len(self.trace)} factors" if self.trace else "none"
            wanted = "at least one factor" if self.kind == "trace" else "none"
            raise ValueError(f"timing.trace: got {got}, allowed with kind {self.kind} is {wanted}")
        return self

    def factor(self, seed: int, rank: int, number: int) -> float:
        """What the mean time of each computation of a step is multiplied by.

        Parameters
        ----------
        seed, rank : int
            Of the experiment, and who computes.
        number : int
            Of the step on that rank, from 0; equal arguments give equal factors.
        """
        if self.kind == "constant":
            return 1.0
        if self.kind == "trace":
            return self.trace[(rank + number) % len(self.trace)]
        from dlpar.config.generator import (
            generator,  # here: needs NumPy, a description of a platform does not
        )

        draw = generator(seed, "compute", rank, number)
        if self.kind == "exponential":
            return float(draw.exponential())
        shape = self.cv**-2
        return float(draw.gamma(shape, 1 / shape))


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


@dataclass(frozen=True)
class Link:
    """What carries a rank's messages: B bytes take ``latency + B / bandwidth`` seconds (Hockney 1994: alpha and beta).

    Attributes
    ----------
    latency : float
        Seconds a message takes however short it is: alpha, from 0.
    bandwidth : float
        Bytes a second: beta, above 0.
    duplex : str, default ``"full"``
        ``"full"``: a port carries one message out and one in at a time.  ``"half"``: one of either.

    Raises
    ------
    ValueError
        If a value is not allowed; the sentence names the field.
    """

    latency: float
    bandwidth: float
    duplex: Literal["full", "half"] = "full"

    def __post_init__(self) -> None:
        if not (_is_number(self.latency) and 0 <= self.latency < math.inf):
            raise ValueError(f"latency: got {self.latency!r}, allowed is a number of seconds from 0")
        if not (_is_number(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"bandwidth: got {self.bandwidth!r}, allowed is a number of bytes a second above 0"
            )
        if self.duplex not in ("full", "half"):
            raise ValueError(f"duplex: got {self.duplex!r}, allowed is full or half")

    def seconds(self, nbytes: float) -> float:
        """Seconds of one message of `nbytes`."""
        return self.latency + nbytes / self.bandwidth


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


LINK_FIELDS = ("latency", "bandwidth", "duplex")


def _link(value: Any, info: ValidationInfo) -> Any:
    """A mapping as a link, complaints naming the field it is in."""
    if value is None or isinstance(value, Link):
        return value
    if not isinstance(value, dict):
        raise ValueError(
            f"{info.field_name}: got {shown(value)}, allowed is a mapping of {', '.join(LINK_FIELDS)}"
        )
    for name in value:
        if name not in LINK_FIELDS:
            raise ValueError(
                f"{info.field_name}.{name}: got {shown(value[name])}, but there is no such field; "
                f"allowed are {', '.join(LINK_FIELDS)}"
            )
    for name in ("latency", "bandwidth"):
        if name not in value:
            raise ValueError(f"{info.field_name}.{name}: missing; allowed is a number")
    try:
        return Link(**value)
    except ValueError as error:
        raise ValueError(f"{info.field_name}.{error}") from None


def _device(value: Any) -> Any:
    """A device by its name."""
    from dlpar.worlds.platforms.named import DEVICES  # here: the named platforms are made of this class

    if isinstance(value, (dict, Device)):
        return value
    if not isinstance(value, str) or value not in DEVICES:
        allowed = f"one of {', '.join(DEVICES)}, or a mapping of {', '.join(Device.model_fields)}"
        raise ValueError(f"device: got {shown(value)}, allowed is {allowed}")
    return DEVICES[value]


class Platform(Part):
    """A cluster on paper.

    A message between ranks of one node takes the `inside` link, on which every rank has
    a port of its own; between nodes it takes the `between` link.

    Attributes
    ----------
    name, source : str
        What it is called, and where its figures come from.
    device : Device
        What each rank computes on; one of :data:`~dlpar.worlds.platforms.DEVICES` may be given by its name.
    devices : int, default 1
        Ranks' devices a node holds.
    nodes : int, default 1
        Most nodes a job may have.
    inside, between : Link or None
        What joins ranks of one node, and of two: needed with several devices, and with several nodes.
    nic : str, default ``"shared"``
        ``"shared"``: all ranks of a node share one port to the other nodes.  ``"each"``: every rank has its own.
    eager : int, default 65536
        Bytes up to which a send does not wait for its receiver.
    timing : Timing
        How compute times vary.
    stragglers : dict
        Factors by which some ranks' computing takes longer.
    overlap : float, default 1
        Speed at which a rank goes on computing while it communicates beside that: 1 as if it did not, 0 not at all.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence that names the field.
    """

    name: str = Field(min_length=1, description="Name.")
    source: str = Field("", description="Where the figures come from.")
    device: Annotated[Device, BeforeValidator(_device)] = Field(description="What each rank computes on.")
    devices: int = Field(1, ge=1, le=1024, description="Ranks' devices a node holds.")
    nodes: int = Field(1, ge=1, le=65_536, description="Most nodes a job may have.")
    inside: Annotated[Link | None, BeforeValidator(_link)] = Field(
        None, description="Link of ranks of one node."
    )
    between: Annotated[Link | None, BeforeValidator(_link)] = Field(
        None, description="Link of ranks of two nodes."
    )
    nic: Literal["shared", "each"] = Field(
        "shared", description="Whether ranks of a node share its port to others."
    )
    eager: int = Field(65_536, ge=0, le=1 << 40, description="Bytes up to which a send does not wait.")
    timing: Annotated[Timing, BeforeValidator(spelled_as_head(Timing))] = Field(
        Timing(), description="How compute times vary."
    )
    stragglers: ByRank = Field({}, description="Ranks whose computing takes longer by a factor: 1=4.0.")

    overlap: float = Field(
        1.0, ge=0, le=1, allow_inf_nan=False, description="Speed of computing beside communication."
    )

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise BadExperiment(sentence(error, type(self))) from None

    @model_validator(mode="before")
    @classmethod
    def _has_a_device(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "device" not in fields:
            _device(None)
        return fields

    @model_validator(mode="after")
    def _is_joined(self) -> Platform:
        for link, count, what in (
            ("inside", self.devices, "devices a node"),
            ("between", self.nodes, "nodes"),
        ):
            if count > 1 and getattr(self, link) is None:
                raise ValueError(f"{link}: got nothing, allowed with {count:,} {what} is a link")
        if self.inside is None and self.between is None:
            raise ValueError("inside: got nothing, allowed without between is a link")
        beyond = [rank for rank in self.stragglers if not 0 <= rank < self.ranks]
        if beyond:
            raise ValueError(f"stragglers: got rank {beyond[0]}, allowed is 0 to {self.ranks - 1}")
        return self

    @property
    def ranks(self) -> int:
        """Most ranks it holds."""
        return self.devices * self.nodes

    def check(self, ranks: int) -> None:
        """Raise `BadExperiment` if it does not hold so many ranks."""
        if ranks > self.ranks:
            nodes = "1 node" if self.nodes == 1 else f"{self.nodes:,} nodes"
            raise BadExperiment(
                f"cluster.platform: got {self.name!r} for {ranks:,} ranks, allowed there is at most {self.ranks:,} "
                f"({nodes} of {self.devices:,})"
            )

    def node_of(self, rank: int) -> int:
        """The node of a rank, where ranks fill one node after the other."""
        return rank // self.devices

    def seconds(self, flops: float, workload: Workload | None = None) -> float:
        """Mean seconds of a computation on a device; see :meth:`Device.seconds`."""
        return self.device.seconds(flops, workload)

    def link(self, same_node: bool) -> Link:
        """The link of two ranks; where a platform has one kind only, it joins all of them."""
        return (self.inside or self.between) if same_node else (self.between or self.inside)


def _rates(value: Any) -> Any:
    if not isinstance(value, dict):
        value = {value: value}
    for name, rate in value.items():
        if name not in WORKLOADS or not _is_positive(rate):
            allowed = f"numbers of samples a second above 0 for some of {', '.join(WORKLOADS)}"
            raise ValueError(f"device.rates: got {shown(value)}, allowed are {allowed}")
    return value
