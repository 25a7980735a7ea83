"""Rules that the parts of an experiment must satisfy together.

Most rules are rows of a table: with some values of one field, another field must have one of some values.
Rules with arithmetic are functions, which yield complaints.  A scheme or a split has its own rows and its own
function (:mod:`dlpar.config.sync`, :mod:`dlpar.config.split`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from dlpar.config.parts import PAPER
from dlpar.config.schema import BadExperiment, Part, shown

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment

Values = Collection[Any]
Rule = tuple[str, Values, str, Values, str]
"""Rule: if a field has one of some values, another field must have one of its values, for a reason.

A field that the parts of an experiment lack breaks no rule.  The first field may also be a capability.
Messages then name the part that has this capability.
"""


def if_chosen(field: str, values: Values, why: str, others: Mapping[str, Values]) -> tuple[Rule, ...]:
    """Return rules that share a condition and a reason: one for each other field and its allowed values."""
    return tuple((field, values, other, allowed, why) for other, allowed in others.items())


Complaint = tuple[str, str] | tuple[str, str, object]
"""A field, the allowed values in words, and the given value if it differs from the field's."""


class PartWithRules(Part):
    """Kind of part that has its own rules."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rows of the table of rules that hold with this part."""

    def complaints(self, e: Experiment) -> Iterator[Complaint]:
        """Yield the complaints of this part about the numbers of an experiment."""
        yield from ()


class Other(tuple):
    """Marker for all values except these."""

    def __contains__(self, value: object) -> bool:
        return not super().__contains__(value)


ANY, NONE, SOME = Other(), ("none",), Other(["none"])

GOES_ON = ("shrink", "spare")
"""Values of ``on_death`` with which the job continues."""

RULES: tuple[Rule, ...] = (
    # If this field has one of these values, that field has one of those values, for this reason.
    ("model.name", ("linear",), "data.name", ("diabetes",), "it predicts a number"),
    ("model.name", ("logistic",), "data.name", ("digits", "docstrings", "mnist", "cifar10"), "it classifies"),
    ("model.name", ("mlp",), "data.name", ("digits", "diabetes", "mnist", "cifar10"), "it reads numbers"),
    ("model.name", ("cnn",), "data.name", ("digits", "mnist", "cifar10"), "it reads images"),
    ("model.name", ("transformer",), "data.name", ("docstrings",), "it reads text"),
    ("model.name", ("transformer",), "shards", ("iid", "uneven"), "its text has no labels"),
    ("model.name", ("linear", "logistic", "transformer"), "model.norm", NONE, "mlp and cnn have it"),
    ("data.name", ("diabetes",), "shards", ("iid", "uneven"), "it has no labels"),
    ("dtype", ("float64",), "precision", ("full",), "mixed precision is of float32 and bfloat16"),
    ("sync.fraction", Other([1.0]), "model.norm", NONE, "a worker may sample nothing"),
    ("sync.server_ranks", Other([0]), "model.norm", ("none", "batch"), "workers do not wait for each other"),
    ("sync.runs_free", (True,), "model.norm", ("none", "batch"), "workers do not wait for each other"),
    ("sync.sends_gradients", (False,), "compression.codec", NONE, "it exchanges no gradients of ours"),
    ("compression.codec", SOME, "sync.allreduce", ("ring",), "intermediate ranks cannot add codes"),
    ("averaging.method", SOME, "sync.regularizer", NONE, "the driver sees models, not losses"),
    ("averaging.method", SOME, "sync.overlap", (False,), "it exchanges models, not gradients"),
    ("snapshot.every", Other([0]), "cluster.messages", ("values",), "sizes are not a state"),
    *if_chosen("deaths.on_death", GOES_ON, "a part of the state would be lost",
               {"cluster.messages": ("values",), "split.kind": ("data",), "split.zero": (0,),
                "averaging.method": NONE, "compression.codec": NONE, "sync.groups": (0,)}),
    *if_chosen("deaths.on_death", GOES_ON, "only MPI reports which rank died (ULFM)",
               {"cluster.carrier": ("auto", "mpi"), "cluster.device": ("auto", "cpu")}),
    ("cluster.messages", ("sizes",), "model.norm", ("none", "batch"), "its forward pass exchanges nothing"),
    ("cluster.world", ("real", "paced"), "cluster.messages", ("values",), "its ranks are processes"),
    ("cluster.world", ("real",), "cluster.stand_in_for", (None,), "it measures what ranks really compute"),
    ("cluster.world", PAPER, "cluster.hostfile", (None,), "its ranks share a machine"),
    ("cluster.world", PAPER, "cluster.device", ("auto", "cpu"), "its platform is on paper"),
    ("cluster.world", PAPER, "cluster.carrier", ("auto", "mpi"), "its platform is on paper"),
    ("cluster.device", ("cpu",), "cluster.carrier", ("auto", "mpi", "gloo"), "nccl moves tensors of GPUs"),
    ("cluster.device", ("cuda",), "cluster.carrier", ("auto", "mpi", "nccl"), "gloo moves tensors of CPUs"),
)  # fmt: skip
"""Rules between the fields of any experiment. A scheme or a split adds its own rules."""

MOST = {"real": 64, "paced": 64, "simulated": 4096}
"""Maximum workers of a job in each world. Processes take memory, but simulated ranks hardly any."""

SERVERS = 32
"""Maximum servers, and maximum leaves, of a job if each is a process."""

THREADS = 256
"""Maximum simulated workers that compute values, because each has a thread."""

ADDED: list[Callable[[Experiment], None]] = []
"""Checks that higher layers add, such as :mod:`dlpar.worlds.platforms` for names of platforms."""


def check(e: Experiment) -> None:
    """Raise `BadExperiment` with the first complaint about an experiment."""
    refuse(e, broken(e, (*RULES, *e.split.rules, *e.sync.rules)))
    refuse(e, _of_all_ranks(e))
    refuse(e, e.split.complaints(e))
    if e.replicas == e.workers:  # otherwise these hold for each part of the model and its replicas
        refuse(e, chain(_of_replicas(e), e.sync.complaints(e)))
    for added in ADDED:
        added(e)


def refuse(e: Experiment, complaints: Iterable[Complaint]) -> None:
    """Raise `BadExperiment` with the first complaint, if there is one."""
    for path, allowed, *given in complaints:
        value = given[0] if given else value_at(e, path)
        got = value if given and isinstance(value, str) else shown(value)
        raise BadExperiment(f"{path}: got {got}, allowed {allowed}")


def broken(e: Experiment, rules: Iterable[Rule]) -> Iterator[Complaint]:
    """Find the rules of a table that an experiment breaks."""
    for beside, values, path, allowed, why in rules:
        given = value_at(e, beside)
        if given is not ABSENT and given in values:
            found = value_at(e, path)
            if found is not ABSENT and found not in allowed:
                *more, last = ("nothing" if value is None else str(value) for value in allowed)
                words = f"{', '.join(more)} or {last}" if more else last
                other = "other than " if isinstance(allowed, Other) else ""
                yield path, f"with {_named(e, beside)} is {other}{words}: {why}"


ABSENT = object()
"""Value of a field that a part's kind does not have."""


def value_at(e: Any, path: str) -> Any:
    """Return the value of a field or capability, or :data:`ABSENT` if the part's kind does not have it."""
    return reduce(lambda part, name: getattr(part, name, ABSENT), path.split("."), e)


def _named(e: Experiment, path: str) -> str:
    """Name a field with its value (``world paced``), or a capability by its part (``sync ring``)."""
    part, _, name = path.rpartition(".")
    fields = type(value_at(e, part) if part else e).model_fields
    if name not in fields:
        return _named(e, part)
    word, value = fields[name].title or name, value_at(e, path)
    return word if value is True else f"{word} {value}"


def _of_all_ranks(e: Experiment) -> Iterator[Complaint]:
    """Check the numbers that concern all ranks of a job."""
    world, most, model, averaging = e.cluster.world, MOST[e.cluster.world], e.model, e.averaging
    if e.workers > most:
        yield "workers", f"in the {world} world is at most {most}"
    for name, ranks in (("servers", e.sync.server_ranks), ("groups", e.sync.leaf_ranks)):
        if world != "simulated" and ranks > SERVERS:
            yield f"sync.{name}", f"in the {world} world is at most {SERVERS}"
    if world == "simulated" and e.cluster.messages == "values" and e.workers > THREADS:
        of = "where simulated ranks really compute"
        yield "workers", f"{of} is at most {THREADS}; messages sizes takes {most}"
    if model.name == "transformer" and model.width % model.heads:
        yield "model.heads", f"is a divisor of the width {model.width}"
    if averaging.method != "none" and e.steps % averaging.period:
        yield "averaging.period", f"with {e.steps} steps is a divisor of {e.steps}"
    # State is complete only at multiples of these periods.
    periods = {name: getattr(e.sync, name, 0) for name in ("push_every", "fetch_every", "group_period")}
    periods["period"] = averaging.period if averaging.method != "none" else 0
    for name, every in periods.items():
        if every and e.snapshot.every % every:
            yield "snapshot.every", f"with {name} {every} is a multiple of {every}"
    if e.deaths.goes_on and not e.sync.survives:
        yield "deaths.on_death", f"with sync {e.sync} is end: its ranks share what one of them holds"
    for rank in e.deaths.die:
        if not 0 <= rank < e.ranks:
            yield "deaths.die", f"with {e.ranks} ranks is 0 to {e.ranks - 1}", f"rank {rank}"
    for name in ("straggler", "stall"):
        for worker in getattr(e.delays, name):
            if not 0 <= worker < e.workers:
                among = f"with {e.workers} workers is 0 to {e.workers - 1}"
                yield f"delays.{name}", among, f"worker {worker}"


def _of_replicas(e: Experiment) -> Iterator[Complaint]:
    """Check that every replica has enough samples."""
    workers, n = f"{e.workers} workers", max(1, e.workers - e.backup)
    if e.scaling == "strong" and e.batch < n:
        yield "batch", f"with {workers} and strong scaling is at least {n}: every worker needs a sample"
    # Batch normalisation of a single number has no variance. A channel of an image has many numbers, a row of
    # an mlp one.
    if e.model.norm != "none" and e.model.name == "mlp":
        shares = e.batch_parts if e.model.norm == "batch" else 1
        if e.global_batch < 2 * shares:
            least = 2 * shares if e.scaling == "strong" else -(-2 * shares // n)
            of = f"with norm {e.model.norm}, {workers}, {e.scaling} scaling and {e.shards} shards"
            yield "batch", f"{of} is at least {least}: a variance needs two samples"
