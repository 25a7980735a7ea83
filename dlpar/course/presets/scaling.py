"""Lab 06: what more workers buy: samples a second, seconds to an accuracy, and where either ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment

if TYPE_CHECKING:
    from dlpar.worlds.platforms import Platform


GPUS = "p100-25gbe-roce"
"""Four P100 a node, 25 GbE with RoCE between nodes: Horovod's benchmark."""


def _sizes(workload: str | None, platform: str = GPUS, **fields: Any) -> Experiment:
    """A simulated experiment whose messages carry sizes only; as much to do for every worker."""
    cluster = {"world": "simulated", "messages": "sizes", "platform": platform, "stand_in_for": workload}
    fields = {"batch": 64, "scaling": "weak", "sync": _ring(), **fields}
    return Experiment(**fields, cluster={**cluster, **fields.get("cluster", {})})


def _ring(**fields: Any) -> dict[str, Any]:
    """One bucket for the whole gradient, so that a step has one all-reduce."""
    return {"scheme": "ring", "bucket_mb": 4096, **fields}


def this_machine() -> Platform:
    """This machine as the platform ``here``; measured now, in some seconds, if it never was."""
    from dlpar.theory.calibrate import calibrate
    from dlpar.worlds.platforms import platform
    from dlpar.worlds.platforms.lookup import HERE, here_file

    return platform(HERE) if here_file().exists() else calibrate()


def more_workers() -> list[Experiment]:
    """Lab 06, "90 % efficiency means ten times sooner": 1, 4, 8 and 32 workers with 32 samples each, really trained.

    All take in the same number of samples.  The clock is that of ResNet-50 on P100s and 100 Gb InfiniBand.  The
    learning rate grows with the global batch as far as that helps.
    """
    common = Experiment(
        model={"name": "mlp", "width": 64, "depth": 1},
        batch=32,
        scaling="weak",
        seed=1,
        cluster={"world": "simulated", "platform": "p100-100gb-ib", "stand_in_for": "resnet50", "threads": 1},
    )
    samples = 28 * 1024
    return [
        common.replace(workers=n, lr=lr, steps=samples // (32 * n), evaluate_every=max(1, 256 // (32 * n)))
        for n, lr in ((1, 0.2), (4, 0.8), (8, 0.8), (32, 0.8))
    ]


def weak_and_strong() -> list[Experiment]:
    """Lab 06: ResNet-50 on P100s with 64 samples for each worker, and with 64 for all of them together."""
    weak = _sizes("resnet50", steps=3)
    return [weak, weak.replace(scaling="strong")]


def three_worlds() -> Experiment:
    """Lab 06: four workers of the default model, simulated on 1 GbE; the same may be paced or real."""
    return Experiment(
        workers=4, steps=100, cluster={"world": "simulated", "platform": "cpu-1gbe", "threads": 1}
    )


def on_this_machine() -> Experiment:
    """Lab 06, the real world: the default model on real processes with 256 samples and a thread each."""
    return Experiment(scaling="weak", steps=40, evaluate_every=1000, cluster={"threads": 1})


def paced() -> Experiment:
    """Lab 06, the paced world: a small network keeps the time of ResNet-50 on P100s."""
    cluster = {"world": "paced", "platform": GPUS, "stand_in_for": "resnet50", "threads": 1}
    small = {"name": "mlp", "width": 64, "depth": 1}
    return Experiment(
        model=small, batch=32, scaling="weak", steps=4, evaluate_every=1000, sync=_ring(), cluster=cluster
    )


def ring_and_servers() -> list[Experiment]:
    """Lab 06: ResNet-50 by a ring, by one server and by eight, on nodes of their own."""
    ring = _sizes("resnet50", steps=30)
    return [ring, *(ring.replace(sync={"scheme": "ps", "servers": servers}) for servers in (1, 8))]


def short_messages() -> list[Experiment]:
    """Lab 06, "the ring is always ahead": a network of 14,698 weights on 10 GbE, by a ring and by four servers."""
    small = {"name": "cnn", "width": 256, "depth": 2}
    ring = _sizes(None, "cpu-10gbe", model=small, batch=1024, steps=50)
    return [ring, ring.replace(sync={"scheme": "ps", "servers": 4})]


def horovod(platform: str) -> dict[str, Experiment]:
    """Lab 06: Horovod's three networks on 64 GPUs, buckets of 64 MB sent while the backward pass goes on.

    Parameters
    ----------
    platform : str
        A file that extends `GPUS` by how fast a GPU computes beside communication.
    """
    return {
        model: _sizes(model, platform, workers=64, steps=1, sync=_ring(overlap=True, bucket_mb=64))
        for model in ("inception3", "resnet101", "vgg16")
    }


def trouble(slow_link: str, unsteady: str) -> dict[str, Experiment]:
    """Lab 06, break it: 64 GPUs and a ring; one is twice as slow, the links are slow, all are unsteady.

    Parameters
    ----------
    slow_link, unsteady : str
        Files that extend `GPUS`.
    """
    even = _sizes("resnet50", workers=64, steps=20)
    return {
        "64 equal GPUs": even.replace(steps=3),
        "one twice as slow": even.replace(steps=3, delays={"straggler": {17: 2.0}}),
        "links ten times slower": even.replace(steps=3, cluster={"platform": slow_link}),
        "exponential times": even.replace(cluster={"platform": unsteady}),
    }


def thousands() -> Experiment:
    """Lab 06, break it: 4,096 workers and one server."""
    return _sizes("resnet50", workers=4096, steps=2, sync={"scheme": "ps"})
