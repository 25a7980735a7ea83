"""Schemes typed in a notebook cell: a subclass of :class:`~dlpar.sync.Scheme`, or an all-reduce function."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dlpar.config.user_code import from_part
from dlpar.sync.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from dlpar.comm import Comm
    from dlpar.config.experiment import Experiment
    from dlpar.replica import Replica


RECORDED = frozenset(
    {"k", "rank", "step", "t", "loss", "samples", "compute", "comm", "wait", "spans", "bytes", "messages", "memory",
     "memory_over_time", "slip", "lag", "of", "snapshot"}
)  # fmt: skip
"""Names that each step's record already has. Facts of these names would overwrite its values."""

_SHORT = reprlib.Repr()
_SHORT.maxdict = 12


class NotFacts(TypeError):
    """Error: the result of a scheme's ``facts()`` cannot be recorded. The message is one sentence."""


def own(experiment: Experiment, comm: Comm, replica: Replica) -> Scheme:
    """Make the scheme that an experiment carries as code. It is ready on this worker.

    Parameters
    ----------
    experiment : Experiment
        Its ``sync.code`` holds a subclass of `Scheme`, made with (experiment, comm, replica), or a
        function of (comm, tensor) that leaves the sum over all ranks in the tensor.
    comm, replica
        As for any :class:`~dlpar.sync.Scheme`.

    Raises
    ------
    TypeError
        If `code` holds neither. The message names what is allowed.
    NotFacts
        If the scheme's ``facts()`` cannot be recorded, at the first such step.
    """
    typed, name = from_part(experiment.sync.code), experiment.sync.name
    complaint = not_a_scheme(typed, name)
    if complaint:
        raise TypeError(complaint)
    made = typed if isinstance(typed, type) else partial(AllReduced, allreduce=typed)
    scheme = made(experiment, comm, replica)
    scheme.facts = partial(_recordable, scheme.facts)  # type: ignore[method-assign]  # of this object only
    return scheme


def not_a_scheme(typed: Any, name: str) -> str | None:
    """Return in one sentence why a class or function cannot be a scheme, or None if it can."""
    if isinstance(typed, type):
        # Scheme.combine() only raises NotImplementedError.
        if not issubclass(typed, Scheme) or typed.combine is Scheme.combine:
            return (
                f"sync: got class {name}, allowed is a subclass of dlpar.sync.Scheme with its own combine()"
            )
        return _cannot_take(typed, name, ("experiment", "comm", "replica"))
    if not callable(typed):
        return f"sync: got {name}, allowed is a function of (comm, tensor) or a subclass of dlpar.sync.Scheme"
    return _cannot_take(typed, name, ("comm", "tensor"))


def _recordable(facts: Callable[[], Any]) -> Mapping[str, Any]:
    """Check that a step can be recorded with the result of `facts()`.

    Otherwise the run has no summary.
    """
    found = facts()
    named = isinstance(found, Mapping) and all(isinstance(name, str) for name in found)
    counts = [found.get(name) for name in ("staleness", "lead")] if named else [None]
    taken = sorted(RECORDED.intersection(found)) if named else []
    if taken or not all(type(count) is int and count >= 0 for count in counts):
        but = f", without {', '.join(taken)}, which the record already has" if taken else ""
        allowed = f"a mapping with staleness and lead, whole numbers of 0 or more{but}"
        raise NotFacts(f"facts: got {_SHORT.repr(found)}, allowed is {allowed}")
    return found


def _cannot_take(typed: Callable, name: str, arguments: tuple[str, ...]) -> str | None:
    kind = "class" if isinstance(typed, type) else "function"
    try:
        signature = inspect.signature(typed)
    except (TypeError, ValueError):  # Python does not know the signature of some built-in functions
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        return f"sync: got {kind} {name}{signature}, allowed is one that takes ({', '.join(arguments)})"
    return None


class AllReduced(Scheme):
    """Bulk-synchronous scheme in which the user's function sums the gradients on every rank."""

    def __init__(self, *given: Any, allreduce: Callable[[Comm, torch.Tensor], Any]) -> None:
        super().__init__(*given)
        self.allreduce = allreduce

    def combine(self) -> None:
        self.allreduce(self.comm, self.replica.gradient)
