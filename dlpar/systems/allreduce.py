"""Systems in which all workers sum their gradients with each other."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.systems.record import PARITY, Figure, Runs, System, by_sizes, rate, same_as_alone, shape
from dlpar.theory import predict

FUSED = {"scheme": "ring", "overlap": True, "bucket_mb": 64}
ONE_STEP = {"batch": 64, "steps": 1, "sync": FUSED}
MODELS = {"inception3": 0.90, "resnet101": 0.90, "vgg16": 0.68}
"""Horovod's efficiencies on 512 GPUs."""


TCP = ("inception3", "resnet101")
"""Networks that the paper runs on 128 GPUs over TCP."""


def _horovod() -> dict[str, Any]:
    servers = {"scheme": "ps", "servers": 32}
    small = dict(workers=128, batch=64, steps=2, cluster={"placement": "colocated"})
    found: dict[str, Any] = {f"{model}, 512 GPUs": partial(_predicted, model) for model in MODELS}
    for model in TCP:
        for gpus in (1, 128):
            found[f"{model}, {gpus}"] = by_sizes("p100-25gbe", model, workers=gpus, **ONE_STEP)
        found[f"{model}, servers"] = by_sizes("p100-25gbe", model, sync=servers, **small)
    return found | same_as_alone(sync={"scheme": "ring", "overlap": True, "bucket_mb": 0.02})


def _predicted(model: str) -> float:
    """Return the closed-form efficiency on 512 GPUs. Simulations agree to four digits."""
    steps = [predict(by_sizes("horovod", model, workers=n, **ONE_STEP)) for n in (1, 512)]
    return steps[0].seconds / steps[1].seconds


def _efficiency(runs: Runs, model: str) -> float:
    return rate(runs[f"{model}, 128"]) / rate(runs[f"{model}, 1"]) / 128


def _cntk() -> dict[str, Experiment]:
    training = dict(steps=2, evaluate_every=1000, cluster={"world": "simulated"})
    return {
        f"{codec}, {n} workers": Experiment(workers=n, batch=2 * n, compression=codec, **training)
        for n in (4, 16, 64)
        for codec in ("none", "onebit")
    }


def _fewer_bytes(runs: Runs) -> float:
    def sent(codec: str, n: int) -> float:
        return runs[f"{codec}, {n} workers"].summary["bytes_sent"]

    return min(sent("none", n) / sent("onebit", n) for n in (4, 16, 64))


def _poseidon() -> dict[str, Experiment]:
    fields = dict(batch=32, steps=2, cluster={"placement": "colocated"})
    servers = {"scheme": "ps", "servers": 32}
    overlap = {**servers, "overlap": True, "bucket_mb": 8}
    nodes = {
        "1 node": by_sizes("titan-x", "inception3", workers=1, batch=32, steps=2, sync="ring"),
        "32 nodes": by_sizes("titan-x", "inception3", workers=32, sync=overlap, **fields),
        "TensorFlow, 32 nodes": by_sizes("grpc", "inception3", workers=32, sync=servers, **fields),
    }
    small = same_as_alone(batch=8, model={"width": 256}, sync={"scheme": "ring", "factors": True})
    return nodes | small | {"gradients": small["system"].replace(sync={"factors": False})}


SYSTEMS = (
    System(
        "horovod", "Horovod", 2018, "A. Sergeev and M. Del Balso, arXiv 1802.05799", "synchronous", "decentralised",
        "one model", "a ring all-reduce of fused buckets during the backward pass", _horovod,
        (PARITY, *(
            Figure(f"efficiency of {model} on 512 GPUs, RoCE (closed form)", share,
                   lambda runs, model=model: runs[f"{model}, 512 GPUs"], 0.08, "fitted")
            for model, share in MODELS.items()
        ), *(
            Figure(f"efficiency of {model} on 128 GPUs, TCP", 0.88, lambda runs, model=model: _efficiency(runs, model))
            for model in TCP
        ), *(
            Figure(f"{model} on 128 GPUs, TCP: speed relative to TensorFlow's 32 servers", 2,
                   lambda runs, model=model: rate(runs[f"{model}, 128"]) / rate(runs[f"{model}, servers"]), 0.2)
            for model in TCP
        )),
    ),
    System(
        "cntk_1bit", "CNTK, 1-bit SGD", 2014, "F. Seide et al., Interspeech 2014", "synchronous", "decentralised",
        "one model", "one bit per value with error feedback; owners of slices add the codes and encode the sum again",
        _cntk,
        (shape("one bit instead of 32: over 24 times fewer bytes, on 4 to 64 workers",
               lambda runs: _fewer_bytes(runs) > 24),),
        missing="two values for each column; double buffering; automatic choice of the batch",
    ),
    System(
        "poseidon", "Poseidon", 2017, "H. Zhang et al., USENIX ATC 2017", "synchronous", "sharded", "one model",
        "gradients of some layers pushed as soon as they are ready, or factors sent between peers if these are shorter",
        _poseidon,
        (PARITY, Figure("speed-up of Inception-V3 on 32 nodes", 31.5,
                        lambda runs: rate(runs["32 nodes"]) / rate(runs["1 node"]), 0.1),
         Figure("the same speed-up with TensorFlow's own servers", 20,
                lambda runs: rate(runs["TensorFlow, 32 nodes"]) / rate(runs["1 node"]), 0.1, "fitted"),
         shape("sufficient factors take less than a quarter of the gradients' bytes, with 2 samples per worker",
               lambda runs: 4 * runs["system"].summary["bytes_sent"] < runs["gradients"].summary["bytes_sent"])),
        missing="servers for some layers and factors for others in one run; factors sent during the backward pass",
    ),
)  # fmt: skip
