"""Lookup of a platform by name or file, and placement of ranks on its nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from dlpar.config import rules
from dlpar.config.experiment import Experiment
from dlpar.config.paths import runs_folder
from dlpar.config.schema import BadExperiment, Part, shown
from dlpar.worlds.platforms.platform import PLATFORMS, SEPARATOR, Platform
from dlpar.worlds.platforms.workloads import described, fields_of, is_path, workload

FIELD = "cluster.platform"

HERE = "here"
"""Name of this machine as a platform."""


def names() -> list[str]:
    """List the names that :func:`platform` knows. ``here`` is this machine, once it has been measured."""
    return [HERE, *PLATFORMS]


def here_file() -> Path:
    """Return the path of the file with this machine's figures. It is stored beside the runs."""
    return runs_folder().parent / "here.json"


def platform(which: str, extending: tuple[str, ...] = ()) -> Platform:
    """Find a platform by its name.

    A JSON or TOML file with the fields of :class:`Platform` may also define it.

    In a file, ``extends`` names a platform or another file, and the file then gives only the fields that
    differ.

    Parameters
    ----------
    which : str
        One of :func:`names`, or a path. A path ends in .json or .toml, or has a slash.
    extending : tuple of str
        Files on the chain of ``extends`` that leads to this one.

    Raises
    ------
    BadExperiment
        ``cluster.platform: …``, if it does not exist, or the file has a value that is not allowed.
    """
    if which in PLATFORMS:
        return PLATFORMS[which]
    file = str(here_file()) if which == HERE else which
    if which == HERE and not here_file().is_file():
        done = "once `dlpar doctor --calibrate` has measured this machine"
        raise BadExperiment(f"{FIELD}: got {HERE!r}, which is allowed {done}")
    fields, real = fields_of(file, FIELD, names()), os.path.realpath(os.path.expanduser(file))
    got = f"{FIELD}: got {shown(Path(file).name)}"
    if real in extending:
        raise BadExperiment(f"{got}, which extends itself; allowed is another platform")
    base = fields.pop("extends", None)
    if base is None:
        fields.setdefault("source", f"read from {file}")
    else:
        if not isinstance(base, str):
            raise BadExperiment(f"{got}, where extends: got {shown(base)}, allowed is a name or a path")
        # A path is relative to its file.
        beside = os.path.join(os.path.dirname(real), os.path.expanduser(base))
        extended = platform(beside if is_path(base) else base, (*extending, real))
        fields = _changed(extended, {"source": f"{extended.source}{SEPARATOR}changed in {file}", **fields})
    return described(Platform, file, FIELD, fields)


def _changed(base: Platform, changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with changed fields. Links, device and timing may give only some of their fields."""
    fields = {name: getattr(base, name) for name in Platform.model_fields}
    for name, change in changes.items():
        if isinstance(change, dict) and isinstance(fields.get(name), Part):
            changes[name] = {**fields[name].model_dump(), **change}
    return {**fields, **changes}


USUAL = "p100-25gbe"
"""Default platform of paced and simulated ranks."""


def platform_of(experiment: Experiment) -> Platform:
    """Return an experiment's platform. Real ranks use the measurements of this machine.

    Raises
    ------
    BadExperiment
        If there is no such platform, or this machine has not been measured.
    """
    cluster = experiment.cluster
    return platform(cluster.platform or (HERE if cluster.world == "real" else USUAL))


def nodes_of(experiment: Experiment) -> list[int]:
    """Find the node of every rank. Raises `BadExperiment` if the platform is too small."""
    colocated = experiment.cluster.placement == "colocated"
    leaves = _first_workers(experiment) if colocated and experiment.sync.leaf_ranks else ()
    extra = experiment.ranks - experiment.workers - len(leaves)
    return placement(experiment.workers, extra, platform_of(experiment), colocated, leaves)


def _first_workers(experiment: Experiment) -> list[int]:
    """Find the first worker of each leaf server's group."""
    of_part = experiment.of_replicas()
    replicas, groups = of_part.workers, of_part.sync.leaf_ranks
    # The assignment is that of dlpar.sync.parameter_server.leaf_of for the workers of one part of the model.
    # More groups are refused.
    starts = [min(-(-group * replicas // groups), replicas - 1) for group in range(groups)]
    if replicas == experiment.workers:
        return starts
    from dlpar.split.mesh import part_of  # imported here, because a description of a platform needs no torch

    members: dict[int, list[int]] = {}
    for worker in range(experiment.workers):
        members.setdefault(part_of(experiment, worker), []).append(worker)
    return [members[part][start] for part in sorted(members) for start in starts]


def placement(
    workers: int, extra: int, platform: Platform, colocated: bool = False, leaves: Sequence[int] = ()
) -> list[int]:
    """Place every rank on a node. Workers fill the nodes in turn, with one device each.

    Parameters
    ----------
    workers : int
        Ranks 0 to ``workers - 1``.
    extra : int
        Servers, the ranks after the workers, and leaf servers that are not in `leaves`.  They need no device.
    platform : Platform
        The cluster.
    colocated : bool, default False
        False: each server has its own node, and so its own port.  On a platform with a single node, each has
        its own device.  True: servers share the workers' nodes, in turn.
    leaves : sequence of int, optional
        For each leaf server (the last ranks), the first worker of its group. The leaf is on that worker's
        node.

    Returns
    -------
    list of int, length ``workers + extra + len(leaves)``

    Raises
    ------
    BadExperiment
        If the platform has too few devices or nodes.
    """
    used = -(-workers // platform.devices)
    nodes = [worker // platform.devices for worker in range(workers)]
    of_leaves = [nodes[worker] for worker in leaves]
    if colocated:
        platform.check(workers)
        return nodes + [server % used for server in range(extra)] + of_leaves
    platform.check(workers + extra)
    if platform.nodes == 1:
        return nodes + [0] * extra + of_leaves
    if used + extra > platform.nodes:
        got = f"{FIELD}: got {platform.name!r} for {used:,} nodes of workers and {extra:,} of servers"
        raise BadExperiment(f"{got}, allowed there is at most {platform.nodes:,}")
    return nodes + list(range(used, used + extra)) + of_leaves


def charges(experiment: Experiment, own: tuple[float, float] | None = None) -> tuple[float, float]:
    """Return the bytes charged for each byte sent, and the devices' FLOP/s on the experiment's model.

    If ranks compute a small model instead of ``cluster.stand_in_for``, its FLOPs and bytes are scaled to
    those of the workload. If messages carry only sizes, these are the workload's own sizes.

    Parameters
    ----------
    experiment : Experiment
        Names platform and workload.
    own : tuple of float, optional
        Bytes of the small model, and its FLOPs per sample. By default, the model is built to determine both.
    """
    cluster, platform = experiment.cluster, platform_of(experiment)
    charged = workload(cluster.stand_in_for) if cluster.stand_in_for else None
    scale, work = 1.0, 1.0
    if charged is not None and cluster.messages == "values":
        scale, work = charged.in_place_of(*(own or _own_model(experiment)))
    seconds = work * platform.device.seconds(1.0, charged)
    return scale, 1 / seconds if seconds else inf


def _own_model(experiment: Experiment) -> tuple[float, float]:
    """Return the bytes of the experiment's own model, and its FLOPs per sample."""
    import torch

    from dlpar import models
    from dlpar.data import load

    dataset = load(experiment.data, experiment.seed, getattr(torch, experiment.dtype), experiment.model.name)
    model = models.build(experiment, dataset, draws=False)
    nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return nbytes, models.flops_per_sample(model, dataset)


def _platform_holds_them(e: Experiment) -> None:
    """Check platforms and workloads known by name. Files are read when a job is launched."""
    cluster = e.cluster
    if cluster.world == "real":
        return
    if cluster.platform is None or not (is_path(cluster.platform) or cluster.platform == HERE):
        nodes_of(e)
    if cluster.stand_in_for is not None and not is_path(cluster.stand_in_for):
        workload(cluster.stand_in_for)


rules.ADDED.append(_platform_holds_them)
