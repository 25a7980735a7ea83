"""Short names of experiments, runs and ranks, from schemes and from settings that differ between runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.worlds.platforms.lookup import USUAL
from dlpar.worlds.platforms.workloads import is_path

WITH_PEERS = "gossip"
"""Schemes whose workers average with each other."""

WITH_PUSHES = "ps or hogwild"
"""Schemes whose workers update the same weights."""


def scheme(experiment: Experiment) -> str:
    """Name a scheme, as in ``ring``, ``ps ssp(3)``, ``gossip exp2``, ``local SGD(8) ring``."""
    words = [_sync(experiment.sync)]
    averaging = experiment.averaging
    if averaging.method != "none":
        names = {"local": "local SGD", "block_momentum": "block momentum"}
        words.insert(0, f"{names.get(averaging.method, averaging.method)}({averaging.period})")
    if experiment.compression.codec != "none":
        words.append(experiment.compression.codec)
    return " ".join(words)


def has_peers(sync: Any) -> bool:
    """Return whether workers average with each other: neighbours in a graph, or random peers."""
    return hasattr(sync, "exchange")


def _sync(sync: Any) -> str:
    if sync.server_ranks:
        number = {"ssp": f"({sync.staleness})", "softsync": f"({sync.softsync})"}.get(sync.consistency, "")
        return f"{sync.scheme} {sync.consistency}{number}"
    if has_peers(sync):
        exchange = "" if sync.exchange == "neighbours" else sync.exchange.replace("_", "-")
        graph = sync.topology if sync.has_graph else ""
        return " ".join(word for word in (sync.scheme, exchange, graph) if word)
    if sync.scheme == "ring" and sync.allreduce != "ring":
        return f"{sync.allreduce.replace('_', '-')} all-reduce"
    return f"{sync.scheme} sparse" if getattr(sync, "sparse", False) else str(sync)


def split(experiment: Experiment) -> str:
    """Name a split, as in ``data``, ``tensor 4``, ``spatial 2 × 2``, ``pipeline 4 1f1b``."""
    cut = experiment.split
    sizes = " × ".join(map(str, cut.axes(experiment.workers).values()))
    return " ".join(word for word in (cut.kind, sizes, getattr(cut, "schedule", "")) if word)


def rank_name(experiment: Experiment, rank: int) -> str:
    """Name a rank: ``rank 3``. If it does not train, name it ``server 4``, ``leaf 5`` or ``spare 6``."""
    if rank < experiment.workers or rank >= experiment.members:
        return f"{'rank' if rank < experiment.workers else 'spare'} {rank}"
    return f"server {rank}" if rank < experiment.workers + experiment.sync.server_ranks else f"leaf {rank}"


def same_batches(a: Experiment, b: Experiment) -> bool:
    """Return whether step t of both experiments sees the same samples.

    True if the samples depend only on (seed, t).
    """
    # Fast free-running workers read further in their shares of the batches. With backup workers, time decides
    # whose shares count.
    iid = a.shards == b.shards == "iid" and not any(e.sync.runs_free or e.backup for e in (a, b))
    sampled = getattr(a.sync, "fraction", 1.0) == getattr(b.sync, "fraction", 1.0)
    return iid and sampled and (a.data, a.seed, a.global_batch) == (b.data, b.seed, b.global_batch)


def with_world(label: str, experiment: Experiment) -> str:
    """Return a label with the world of a run, unless the world is real."""
    world = experiment.cluster.world
    return label if world == "real" or world in label else f"{label}, {world}"


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return labels that distinguish experiments: ``workers=1``, ``workers=4``.

    Equal experiments are numbered.
    """
    several = len({e.sync.scheme for e in experiments}) > 1
    flat = [_as_one(flatten(e), "sync", _sync(e.sync)) if several else flatten(e) for e in experiments]
    if is_cut := len({e.split.kind for e in experiments}) > 1:
        flat = [_as_one(fields, "split", split(e)) for e, fields in zip(experiments, flat)]
    told = [name for name in flat[0] if any(f.get(name) != flat[0][name] for f in flat)]
    told.sort(key=lambda name: ("sync", "split", name).index(name))
    found = [_in_words({name: f.get(name) for name in told}) or str(e) for f, e in zip(flat, experiments)]
    if several or is_cut:  # one scheme or split with different settings
        for text in [text for text in dict.fromkeys(found) if found.count(text) > 1]:
            alike = [i for i, each in enumerate(found) if each == text]
            if any(experiments[i] != experiments[alike[0]] for i in alike):
                for i, setting in zip(alike, labels([experiments[i] for i in alike])):
                    found[i] = f"{text}, {setting}"
    numbers = [found[: i + 1].count(text) for i, text in enumerate(found)]
    return [text if found.count(text) == 1 else f"{text} ({n})" for text, n in zip(found, numbers)]


def platform_in_words(experiment: Experiment) -> str:
    """Describe the platform of paced and simulated runs, as in ``p100-25gbe as if the model were resnet50``."""
    cluster = experiment.cluster
    text = written(cluster.platform or USUAL)
    text += f" as if the model were {cluster.stand_in_for}" if cluster.stand_in_for else ""
    return text + (", messages carry sizes only" if cluster.messages == "sizes" else "")


def _in_words(fields: dict[str, Any]) -> str:
    parts = []
    for name, value in fields.items():
        short = name.removeprefix("sync.").removeprefix("cluster.").removeprefix("split.")
        parts.append(value if name in ("sync", "split") else f"{short}={written(value)}")
    return ", ".join(parts[:3]) + (" …" if len(parts) > 3 else "")


def written(value: Any) -> str:
    """Return a setting's value as a short string."""
    if isinstance(value, str) and is_path(value):
        return Path(value).stem  # a platform or workload from a file
    if isinstance(value, tuple):
        return f"{len(value)} edges"
    if isinstance(value, dict):
        return ",".join(f"{key}={number:g}" for key, number in value.items()) or "none"
    return str(value)


def flatten(experiment: Experiment, **chosen: Any) -> dict[str, Any]:
    """Return settings by dotted names, such as ``sync.servers``.

    `chosen` holds options of pydantic's ``model_dump``.
    """
    flat: dict[str, Any] = {}
    for name, value in experiment.model_dump(**chosen).items():
        flat |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    flat.pop("sync.code", None)
    return flat


def _as_one(flat: dict[str, Any], part: str, value: str) -> dict[str, Any]:
    """Return fields in which one value stands for a whole part."""
    return {name: v for name, v in flat.items() if not name.startswith(f"{part}.")} | {part: value}


def place_in_queue(ahead: int, paused: bool) -> str:
    """Return the text for a job that waits for slots. It gives the number of jobs ahead."""
    if paused:
        return "queued: the teacher has paused all jobs"
    return f"queued, {ahead} ahead" if ahead else "queued, next to start"
