"""Systems in which all workers sum their gradients with each other."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.systems.record import (
    PARITY,
    Figure,
    Runs,
    System,
    by_sizes,
    platform_file,
    rate,
    same_as_alone,
    shape,
)

FUSED = {"scheme": "ring", "overlap": True, "bucket_mb": 64}
MODELS = {"inception3": 0.90, "resnet101": 0.90, "vgg16": 0.68}
"""Horovod's efficiencies on 512 GPUs."""


def _horovod() -> dict[str, Experiment]:
    found = {}
    for model in MODELS:
        for gpus in (1, 512):
            found[f"{model}, {gpus} GPUs"] = by_sizes(
                platform_file("horovod"), model, workers=gpus, batch=64, steps=1, sync=FUSED
            )
    return found | same_as_alone(sync={"scheme": "ring", "overlap": True, "bucket_mb": 0.02})


def _efficiency(runs: Runs, model: str) -> float:
    return rate(runs[f"{model}, 512 GPUs"]) / rate(runs[f"{model}, 1 GPUs"]) / 512


def _cntk() -> dict[str, Experiment]:
    codecs = {}
    for n in (4, 16, 64):
        for codec in ("none", "onebit"):
            codecs[f"{codec}, {n} workers"] = Experiment(
                workers=n,
                batch=2 * n,
                steps=2,
                evaluate_every=1000,
                compression=codec,
                cluster={"world": "simulated"},
            )
    return codecs


def _fewer_bytes(runs: Runs) -> float:
    return min(
        runs[f"none, {n} workers"].summary["bytes_sent"] / runs[f"onebit, {n} workers"].summary["bytes_sent"]
        for n in (4, 16, 64)
    )


def _poseidon() -> dict[str, Experiment]:
    nodes = {
        f"{n} nodes": by_sizes(platform_file("titan-x"), "inception3", workers=n, batch=32, steps=2, cluster=(
            {"placement": "colocated"}), sync={"scheme": "ps", "servers": n, "overlap": True, "bucket_mb": 2})
        for n in (1, 32)
    }  # fmt: skip
    small = same_as_alone(batch=8, model={"width": 256}, sync={"scheme": "ring", "factors": True})
    return nodes | small | {"gradients": small["system"].replace(sync={"factors": False})}


SYSTEMS = (
    System(
        "horovod", "Horovod", 2018, "A. Sergeev and M. Del Balso, arXiv 1802.05799", "synchronous", "decentralised",
        "one model", "a ring all-reduce of fused buckets beside the backward pass", _horovod,
        (PARITY, *(
            Figure(f"efficiency of {model} on 512 GPUs", share, lambda runs, model=model: _efficiency(runs, model),
                   0.08, "fitted")
            for model, share in MODELS.items()
        )),
    ),
    System(
        "cntk_1bit", "CNTK, 1-bit SGD", 2014, "F. Seide et al., Interspeech 2014", "synchronous", "sharded",
        "one model", "one bit a value with error feedback; owners of slices add the codes and encode the sum again",
        _cntk,
        (Figure("float32's bytes over 1-bit's, on 4 to 64 workers", 32, _fewer_bytes, 0.25, "reported"),),
        missing="double buffering; automatic choice of the batch",
    ),
    System(
        "poseidon", "Poseidon", 2017, "H. Zhang et al., USENIX ATC 2017", "synchronous", "sharded", "one model",
        "each layer's gradient pushed as soon as it is ready, or its factors sent between peers if these are shorter",
        _poseidon,
        (PARITY, Figure("speed-up of Inception-V3 on 32 nodes", 31.5,
                        lambda runs: rate(runs["32 nodes"]) / rate(runs["1 nodes"]), 0.1),
         shape("sufficient factors take less than a quarter of the gradients' bytes, 2 samples a worker",
               lambda runs: 4 * runs["system"].summary["bytes_sent"] < runs["gradients"].summary["bytes_sent"])),
    ),
)  # fmt: skip
