"""Platforms: nodes of devices, links inside and between nodes, and variation of times."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dlpar.config.parts import ByRank
from dlpar.config.schema import BadExperiment, FromFile, Part, shown
from dlpar.worlds.platforms.workloads import TABLES, WORKLOADS, Workload, workload


class Device(Part):
    """Hardware of a rank.

    Attributes
    ----------
    name : str
    flops : float
        Floating-point operations per second that the device sustains in training, not its peak.
    rates : dict
        Training samples per second of workloads that were measured on the device. These rates take precedence
        over `flops`.
    overhead : float, default 0
        Seconds that a worker's step takes in addition to its FLOPs: for the batch, the interpreter and kernel
        launches.
    memory_gib : float or None
        Memory in GiB; None if not known.
    """

    name: str = Field(min_length=1)
    flops: float = Field(gt=0)
    rates: dict[Literal[*WORKLOADS], Annotated[float, Field(gt=0, strict=True)]] = Field({})
    overhead: float = Field(0.0, ge=0)
    memory_gib: float | None = Field(None, gt=0)

    def seconds(self, flops: float, trained: Workload | None = None) -> float:
        """Return the mean time of a computation in seconds, without the overhead of its step.

        Parameters
        ----------
        flops : float
            Its floating-point operations.
        trained : Workload, optional
            The trained model. If there is a measured rate of the workload of this name, it gives the operations
            per second.
        """
        rate = self.rates.get(trained.name) if trained is not None else None
        return flops / (rate * workload(trained.name).flops if rate else self.flops)


class Timing(Part):
    """Variation of computation times, as a factor for every rank and step.

    Attributes
    ----------
    kind : str, default ``"constant"``
        ``"constant"``: always 1.  ``"gamma"`` and ``"exponential"``: random, with mean 1.
    cv : float, default 0.1
        Standard deviation over mean of the gamma distribution. For the exponential distribution, it is 1.
    """

    kind: Literal["constant", "gamma", "exponential"] = "constant"
    cv: float = Field(0.1, gt=0, le=10)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return the factor that multiplies the mean time of each computation of a step.

        Parameters
        ----------
        seed, rank : int
            The experiment's seed, and the rank that computes.
        number : int
            The step of that rank, from 0. Equal arguments give equal factors.
        """
        if self.kind == "constant":
            return 1.0
        from dlpar.delays import drawn  # imported here, because a description of a platform needs no NumPy

        return drawn(self.kind, 1.0, self.cv, seed, "compute", rank, number)


class Link(FromFile):
    """Network link with a latency and a bandwidth.

    B bytes take ``latency + B / bandwidth`` seconds, the model of Hockney (1994).

    The processors at both ends are busy for a part of the latency: o in LogP (Culler et al., PPoPP 1993).

    Attributes
    ----------
    latency : float
        Seconds that even the shortest message takes, at least 0. Many authors call it alpha.
    bandwidth : float
        Bytes per second, above 0. A port carries one message out and one message in at a time.  Many authors
        call the inverse beta (Thakur 2005), but the labs write beta for the bandwidth.
    overhead : float, default 0
        Seconds of the latency for which a message keeps the sender's processor busy, and again the
        receiver's. It is at most half of the latency.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence that names the field.
    """

    latency: float = Field(ge=0, strict=True)
    bandwidth: float = Field(gt=0, strict=True, allow_inf_nan=True)
    overhead: float = Field(0.0, ge=0, strict=True)

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        super().__init__(**dict(zip(Link.model_fields, values)), **fields)

    @model_validator(mode="after")
    def _is_part_of_latency(self) -> Link:
        if self.overhead > self.latency / 2:
            most = f"at most half of the latency, {self.latency / 2:g}"
            raise ValueError(f"overhead: got {self.overhead:g}, allowed is {most}")
        return self

    def seconds(self, nbytes: float) -> float:
        """Return the time that a message of `nbytes` takes, in seconds."""
        return self.latency + nbytes / self.bandwidth


def _device(value: Any) -> Any:
    """Find a device by its name."""
    if isinstance(value, (dict, Device)):
        return value
    if not isinstance(value, str) or value not in DEVICES:
        allowed = f"one of {', '.join(DEVICES)}, or a mapping of {', '.join(Device.model_fields)}"
        raise ValueError(f"device: got {shown(value)}, allowed is {allowed}")
    return DEVICES[value]


class Platform(FromFile):
    """Cluster on paper: nodes of devices, joined by links.

    A message between ranks of one node takes the `inside` link, where every rank has its own port. A message
    between nodes takes the `between` link.

    Attributes
    ----------
    name, source : str
        Its name, and the source of its figures.
    device : Device
        The hardware of each rank. One of :data:`~dlpar.worlds.platforms.DEVICES` may be given by its name.
    devices : int, default 1
        Number of devices in a node.
    nodes : int, default 1
        Largest number of nodes in a job.
    inside, between : Link or None
        Links between ranks of one node (needed with several devices), and of two nodes (needed with several
        nodes).
    nic : str, default ``"shared"``
        ``"shared"``: all ranks of a node share one port to the other nodes.  ``"each"``: every rank has its own.
    eager : int, default 65536
        Bytes up to which a send does not wait for its receiver.
    timing : Timing
        Variation of compute times.
    stragglers : dict
        Factors by which the computations of some ranks take longer.
    overlap : float, default 1
        Speed of a rank's computation while it communicates: 1 is full speed, 0 is a stop.

    Raises
    ------
    BadExperiment
        For a bad value, in one sentence that names the field.
    """

    name: str = Field(min_length=1)
    source: str = ""
    device: Annotated[Device, BeforeValidator(_device)] = None  # which is refused with a message
    devices: int = Field(1, ge=1, le=1024)
    nodes: int = Field(1, ge=1, le=65_536)
    inside: Link | None = None
    between: Link | None = None
    nic: Literal["shared", "each"] = "shared"
    eager: int = Field(65_536, ge=0, le=1 << 40)
    timing: Timing = Timing()
    stragglers: ByRank[Annotated[float, Field(gt=0)]] = Field({})
    overlap: float = Field(1.0, ge=0, le=1)

    @model_validator(mode="after")
    def _is_joined(self) -> Platform:
        several = {"inside": (self.devices, "devices a node"), "between": (self.nodes, "nodes")}
        for link, (count, what) in several.items():
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
        """Return the maximum number of ranks on the platform."""
        return self.devices * self.nodes

    def check(self, ranks: int) -> None:
        """Raise `BadExperiment` if the platform cannot hold this many ranks."""
        if ranks > self.ranks:
            nodes = "1 node" if self.nodes == 1 else f"{self.nodes:,} nodes"
            got = f"cluster.platform: got {self.name!r} for {ranks:,} ranks"
            most = f"{self.ranks:,} ({nodes} of {self.devices:,})"
            raise BadExperiment(f"{got}, allowed there is at most {most}")

    def link(self, same_node: bool) -> Link:
        """Return the link between two ranks. If a platform has one kind of link, it connects all ranks."""
        return (self.inside or self.between) if same_node else (self.between or self.inside)


_NAMED: dict[str, Any] = tomllib.loads((TABLES / "clusters.toml").read_text(encoding="utf-8"))

DEVICES = {name: Device(**known["device"]) for name, known in _NAMED["devices"].items()}
"""Devices by name."""

SEPARATOR = "; "
"""Separator of the parts of a source: device, inside, between."""


def _cluster(device: str, network: str) -> Platform:
    """Return nodes with this device, connected by a network. With ``nvlink``, return a single node."""
    known, links = _NAMED["devices"][device], _NAMED["links"]
    wired = [links[name] for name in (known["inside"], network) if name in links]
    fields = [{name: link[name] for name in Link.model_fields if name in link} for link in wired]
    inside, between = ([Link(**each) for each in fields] + [None])[:2]
    source = SEPARATOR.join(each["source"] for each in (known, *wired))
    nodes = _NAMED["most_ranks"] // known["per_node"] if between else 1
    size = {"devices": known["per_node"], "nodes": nodes, "nic": wired[-1].get("nic", "shared")}
    joined = {"inside": inside, "between": between, **size}
    return Platform(name=f"{device}-{network}", source=source, device=DEVICES[device], **joined)


_PAIRS = [(device, network) for device, networks in _NAMED["clusters"].items() for network in networks]

PLATFORMS = {f"{device}-{network}": _cluster(device, network) for device, network in _PAIRS}
"""Platforms by name, without ``here``, this machine. See :func:`dlpar.worlds.platforms.platform`."""
