"""Rules that the parts of an experiment must satisfy together.

A rule yields complaints: the field, what is allowed, and what was given where that is not the
field's value.  Rules of one scheme or one split are methods of its part (:mod:`dlpar.config.sync`,
:mod:`dlpar.config.split`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from dlpar.config.schema import BadExperiment, Complaint, Part, shown

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment

Rule = Callable[["Experiment"], Iterable[Complaint]]

FITS = {
    "linear": ("diabetes",),
    "logistic": ("digits", "docstrings", "mnist", "cifar10"),
    "mlp": ("digits", "diabetes", "mnist", "cifar10"),
    "cnn": ("digits", "mnist", "cifar10"),
    "transformer": ("docstrings",),
}
"""Data sets each model can read."""

MOST = {"real": 64, "paced": 64, "simulated": 4096}
"""Workers of one job in each world: processes take memory, simulated ranks next to none."""

SERVERS = 32
"""Servers of one job, and leaves, if each is a process."""

THREADS = 256
"""Simulated workers that really compute: each has a thread."""

ADDED: list[Rule] = []
"""Rules that higher layers add: :mod:`dlpar.worlds.platforms` knows which platforms there are."""


def first_complaint(e: Experiment) -> str | None:
    """Put the first complaint about an experiment into a sentence; None if there is none."""
    rules: list[Rule] = [*OF_ALL_RANKS, *ADDED, e.split.complaints]
    if e.replicas == e.workers:  # else these hold for each part of the model and its replicas
        rules += [*OF_REPLICAS, e.sync.complaints]
    elif e.sync.shares_memory:
        rules.append(e.sync.complaints)
    return in_words(e, chain.from_iterable(rule(e) for rule in rules))


def in_words(e: Experiment, complaints: Iterable[Complaint]) -> str | None:
    """Put the first of some complaints about an experiment into a sentence; None if there is none."""
    for complaint in complaints:
        if isinstance(complaint, BadExperiment):
            return str(complaint)
        path, allowed, *given = complaint
        got = given[0] if given else _value(e, path)
        return f"{path}: got {got if given and isinstance(got, str) else shown(got)}, allowed {allowed}"
    return None


def _value(e: Experiment, path: str) -> object:
    """The value of a field; of a part, that of its head."""
    value: object = e
    for name in path.split("."):
        value = getattr(value, name)
    return str(value) if isinstance(value, Part) else value


def _world_holds_them(e: Experiment) -> Iterator[Complaint]:
    cluster, world, most = e.cluster, e.cluster.world, MOST[e.cluster.world]
    simulated, on_paper = world == "simulated", world != "real"
    if e.workers > most:
        yield "workers", f"in the {world} world is at most {most}"
    for name in ("servers", "groups") if e.sync.ranks and not simulated else ():
        if getattr(e.sync, name) > SERVERS:
            yield f"sync.{name}", f"in the {world} world is at most {SERVERS}"
    if simulated and cluster.messages == "values" and e.workers > THREADS:
        yield (
            "workers",
            f"where simulated ranks really compute is at most {THREADS}; messages sizes takes {most}",
        )
    if not simulated and cluster.messages != "values":
        yield "cluster.messages", f"in the {world} world is values"
    if cluster.messages == "sizes" and e.model.norm == "sync_batch":
        yield "model.norm", "with messages sizes is none or batch: the forward pass exchanges nothing there"
    if not on_paper and cluster.stand_in_for is not None:
        yield "cluster.stand_in_for", "in the real world is nothing: what is charged there is what is done"
    if on_paper and cluster.device == "cuda":
        yield "cluster.device", f"in the {world} world is auto: its platform is on paper"
    if on_paper and cluster.carrier not in ("auto", "mpi"):
        yield "cluster.carrier", f"in the {world} world is auto: its platform is on paper"
    if on_paper and cluster.hostfile is not None:
        why = "one process holds all ranks" if simulated else "its ranks share a machine"
        yield "cluster.hostfile", f"in the {world} world is nothing: {why}"


def _model_is_whole(e: Experiment) -> Iterator[Complaint]:
    model, fraction = e.model, getattr(e.sync, "fraction", 1.0)
    if model.name == "transformer" and model.width % model.heads:
        yield "model.heads", f"is a divisor of the width {model.width}"
    if model.norm != "none" and model.name not in ("mlp", "cnn"):
        yield "model.norm", f"with model {model.name} is none"
    if model.norm != "none" and fraction < 1:
        yield "model.norm", f"with fraction {fraction:g} is none: a worker may sample nothing"
    if e.precision != "full" and e.dtype == "float64":
        yield "precision", "with dtype float64 is full: mixed precision is of float32 and bfloat16"


def _delays_are_of_workers(e: Experiment) -> Iterator[Complaint]:
    for name, least, most, allowed in (
        ("straggler", 1, 1000, "is a factor from 1 to 1000"),
        ("stall", 0, 600, "is at most 600 seconds"),
    ):
        for worker, number in getattr(e.delays, name).items():
            if not 0 <= worker < e.workers:
                among = f"with {e.workers} workers is 0 to {e.workers - 1}"
                yield f"delays.{name}", among, f"worker {worker}"
            if not least <= number <= most:
                yield f"delays.{name}", allowed, number


def _model_fits_data(e: Experiment) -> Iterator[Complaint]:
    fits = FITS[e.model.name]
    if e.data.name not in fits:
        yield "data", f"with model {e.model.name} is {' or '.join(fits)}"
    if e.shards == "by_label" and (e.data.name == "diabetes" or e.model.name == "transformer"):
        yield "shards", f"with {e.model.name} on {e.data.name} is iid or uneven: it has no labels"
    if e.data.reading != "whole" and e.data.name != "mnist":
        yield "data.reading", f"with data {e.data.name} is whole: only mnist's files hold image after image"


def _batch_reaches_every_worker(e: Experiment) -> Iterator[Complaint]:
    n = e.workers
    if e.scaling == "strong" and e.batch < n:
        yield "batch", f"with {n} workers and strong scaling is at least {n}: every worker needs a sample"
    # Batch normalisation of single numbers has no variance; an image holds many numbers, a row of an mlp one.
    if e.model.norm != "none" and e.model.name == "mlp":
        # The smallest of uneven shares is about 1 of 1 + 2 + ... + workers.
        parts = n * (n + 1) // 2 if e.shards == "uneven" else n
        shares = parts if e.model.norm == "batch" else 1
        if e.global_batch < 2 * shares:
            least = 2 * shares if e.scaling == "strong" else -(-2 * shares // n)
            of = f"with norm {e.model.norm}, {n} workers, {e.scaling} scaling and {e.shards} shards"
            yield "batch", f"{of} is at least {least}: a variance needs two samples"


def _carrier_fits_device(e: Experiment) -> Iterator[Complaint]:
    if e.cluster.carrier == "nccl" and e.cluster.device == "cpu":
        yield "cluster.carrier", "with device cpu is auto, mpi or gloo"
    if e.cluster.carrier == "gloo" and e.cluster.device == "cuda":
        yield "cluster.carrier", "with device cuda is auto, mpi or nccl"


def _averaging_fits(e: Experiment) -> Iterator[Complaint]:
    averaging, sync = e.averaging, e.sync
    if averaging.method == "none":
        return
    if getattr(sync, "regularizer", "none") != "none":
        yield "sync.regularizer", "with averaging is none: the driver sees models, not losses"
    if getattr(sync, "overlap", False):
        yield "sync.overlap", "with averaging is False: what is exchanged is not a gradient"
    if e.steps % averaging.period:
        yield "averaging.period", f"with {e.steps} steps is a divisor of {e.steps}"


def _compression_fits(e: Experiment) -> Iterator[Complaint]:
    codec = e.compression.codec
    if codec != "none" and not e.sync.sends_gradients:
        yield "compression.codec", f"with {e.sync} is none: it exchanges no gradients of ours"
    elif codec != "none" and getattr(e.sync, "allreduce", "ring") != "ring":
        why = "compressed gradients do not add up on their way, so they go round a ring whole"
        yield "sync.allreduce", f"with compression {codec} is ring: {why}"


def _synchronised_statistics_need_lockstep(e: Experiment) -> Iterator[Complaint]:
    if e.model.norm == "sync_batch" and (e.sync.ranks or e.free_running):
        yield "model.norm", f"with {e.sync} is none or batch: workers do not wait for each other"


OF_ALL_RANKS: tuple[Rule, ...] = (_world_holds_them, _model_is_whole, _delays_are_of_workers)
"""Rules for all ranks of a job together."""

OF_REPLICAS: tuple[Rule, ...] = (
    _model_fits_data, _batch_reaches_every_worker, _carrier_fits_device, _averaging_fits, _compression_fits,
    _synchronised_statistics_need_lockstep,
)  # fmt: skip
"""Rules for replicas and their servers."""
