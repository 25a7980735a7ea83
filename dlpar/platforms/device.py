"""What computes: how quick it is, and how its times vary."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dlpar.platforms.workloads import WORKLOADS, Workload
from dlpar.schema import Part, shown


def _rates(value: Any) -> Any:
    if not isinstance(value, dict):
        value = {value: value}
    for name, rate in value.items():
        if name not in WORKLOADS or not _is_positive(rate):
            allowed = f"numbers of samples a second above 0 for some of {', '.join(WORKLOADS)}"
            raise ValueError(f"device.rates: got {shown(value)}, allowed are {allowed}")
    return value


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
        from dlpar.sampling import generator  # here: needs NumPy, a description of a platform does not

        draw = generator(seed, "compute", rank, number)
        if self.kind == "exponential":
            return float(draw.exponential())
        shape = self.cv**-2
        return float(draw.gamma(shape, 1 / shape))


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
