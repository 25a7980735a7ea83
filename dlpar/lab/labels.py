"""Experiments and runs in a few words: what a scheme is called, and what tells runs apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.worlds.platforms.workloads import is_path


def scheme(experiment: Experiment) -> str:
    """How replicas agree, in words: ``ring``, ``ps ssp(3)``, ``gossip exp2``, ``local SGD(8) ring``."""
    words = [_sync(experiment.sync)]
    averaging = experiment.averaging
    if averaging.method != "none":
        name = {"local": "local SGD", "block_momentum": "block momentum"}.get(
            averaging.method, averaging.method
        )
        words.insert(0, f"{name}({averaging.period})")
    if experiment.compression.codec != "none":
        words.append(experiment.compression.codec)
    return " ".join(words)


def _sync(sync: Any) -> str:
    if sync.scheme == "ps":
        number = {"ssp": f"({sync.staleness})", "softsync": f"({sync.softsync})"}.get(sync.consistency, "")
        return f"ps {sync.consistency}{number}"
    if sync.scheme == "gossip":
        exchange = "" if sync.exchange == "neighbours" else sync.exchange.replace("_", "-")
        graph = "" if sync.exchange == "random" else sync.topology
        return " ".join(word for word in ("gossip", exchange, graph) if word)
    if sync.scheme == "ring" and sync.allreduce != "ring":
        return f"{sync.allreduce.replace('_', '-')} all-reduce"
    return "hogwild sparse" if getattr(sync, "sparse", False) else str(sync)


def split(experiment: Experiment) -> str:
    """How one model is cut, in words: ``data``, ``tensor 4``, ``spatial 2 × 2``, ``pipeline 4 1f1b``."""
    cut = experiment.split
    sizes = " × ".join(map(str, cut.axes(experiment.workers).values()))
    return " ".join(word for word in (cut.kind, sizes, getattr(cut, "schedule", "")) if word)


def consistency(experiment: Experiment) -> str:
    """How stale a worker may be, as one word: ``bsp``, ``ssp(3)``, ``asp``."""
    sync = experiment.sync
    if sync.scheme == "ps":
        return _sync(sync).removeprefix("ps ")
    return "asp" if experiment.free_running else "bsp"


def differences(a: Experiment, b: Experiment) -> dict[str, Any]:
    """Fields of `b` that are not as in `a`: ``{"workers": 2, "model.width": 64}``; or ``sync``, ``split``."""
    mine, theirs = _flat(a), _flat(b)
    if a.sync.scheme != b.sync.scheme:  # their fields cannot be compared
        mine, theirs = (
            _without("sync", mine) | {"sync": ""},
            _without("sync", theirs) | {"sync": _sync(b.sync)},
        )
    if a.split.kind != b.split.kind:
        mine, theirs = (
            _without("split", mine) | {"split": ""},
            _without("split", theirs) | {"split": split(b)},
        )
    return {name: value for name, value in theirs.items() if mine.get(name) != value}


def same_batches(a: Experiment, b: Experiment) -> bool:
    """Whether step t of both sees the same samples: it does if these are drawn by (seed, t) alone."""
    # Of workers that run free of each other the quick ones go further in their shares of the batches.
    iid = a.shards == b.shards == "iid" and not (a.free_running or b.free_running)
    sampled = getattr(a.sync, "fraction", 1.0) == getattr(b.sync, "fraction", 1.0)
    return iid and sampled and (a.data, a.seed, a.global_batch) == (b.data, b.seed, b.global_batch)


def run_labels(now: Experiment, earlier: dict[str, Experiment]) -> dict[str, str]:
    """What tells each earlier run from the present one, in a few words."""
    found, seen = {}, {}
    for key, experiment in earlier.items():
        label = with_world(_in_words(differences(now, experiment)) or "same settings", experiment)
        seen[label] = seen.get(label, 0) + 1
        found[key] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return found


def this_label(now: Experiment, earlier: dict[str, Experiment]) -> str:
    """What the present run is called beside the earlier ones."""
    own: dict[str, Any] = {}
    for experiment in earlier.values():
        own |= differences(experiment, now)
    return with_world(f"this run: {_in_words(own)}" if own else "this run", now)


def with_world(label: str, experiment: Experiment) -> str:
    """A label that says so where a run was not measured in the real world."""
    world = experiment.cluster.world
    return label if world == "real" or world in label else f"{label}, {world}"


def labels(experiments: Sequence[Experiment]) -> list[str]:
    """What tells experiments from each other: ``workers=1``, ``workers=4``; equal ones are numbered."""
    several = len({e.sync.scheme for e in experiments}) > 1
    flat = [
        _without("sync", _flat(e)) | {"sync": _sync(e.sync)} if several else _flat(e) for e in experiments
    ]
    if len({e.split.kind for e in experiments}) > 1:
        flat = [_without("split", fields) | {"split": split(e)} for e, fields in zip(experiments, flat)]
    told = [name for name in flat[0] if any(f.get(name) != flat[0][name] for f in flat)]
    told.sort(key=lambda name: ("sync", "split", name).index(name))
    said = [_in_words({name: f.get(name) for name in told}) or str(e) for f, e in zip(flat, experiments)]
    if several:  # one scheme with other settings of its own
        for text in [text for text in dict.fromkeys(said) if said.count(text) > 1]:
            alike = [i for i, each in enumerate(said) if each == text]
            if any(experiments[i] != experiments[alike[0]] for i in alike):
                for i, setting in zip(alike, labels([experiments[i] for i in alike])):
                    said[i] = f"{text}, {setting}"
    return [
        text if said.count(text) == 1 else f"{text} ({said[: i + 1].count(text)})"
        for i, text in enumerate(said)
    ]


def platform_in_words(experiment: Experiment) -> str:
    """Whose times paced and simulated runs tell: ``p100-25gbe as if the model were resnet50``."""
    from dlpar.worlds.platforms.lookup import USUAL

    cluster = experiment.cluster
    text = _written(cluster.platform or USUAL)
    text += f" as if the model were {cluster.stand_in_for}" if cluster.stand_in_for else ""
    return text + (", messages carry sizes only" if cluster.messages == "sizes" else "")


def _in_words(fields: dict[str, Any]) -> str:
    said = [
        value
        if name in ("sync", "split")
        else f"{name.removeprefix('sync.').removeprefix('cluster.')}={_written(value)}"
        for name, value in fields.items()
    ]
    return ", ".join(said[:3]) + (" …" if len(said) > 3 else "")


def _written(value: Any) -> str:
    if isinstance(value, str) and is_path(value):
        return Path(value).stem  # a platform or workload that comes from a file
    if isinstance(value, tuple):
        return f"{len(value)} edges"
    if isinstance(value, dict):
        return ",".join(f"{key}={number:g}" for key, number in value.items()) or "none"
    return str(value)


def _flat(experiment: Experiment) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in experiment.model_dump().items():
        flat |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    flat.pop("sync.code", None)
    return flat


def _without(part: str, flat: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flat.items() if not name.startswith(f"{part}.")}
