"""On GPUs: samples per second against DistributedDataParallel over NCCL, and the share of what the device can do."""

from __future__ import annotations

from functools import partial

import torch
from compare import in_turns, show
from peer import torchrun
from trained_ranks import LARGE

import dlpar
from dlpar import Experiment, models
from dlpar.data import load

WARM_UP = 50

PEAK = {
    "H200": (67e12, 989e12),
    "H100 PCIe": (51e12, 756e12),
    "H100 NVL": (60e12, 835e12),
    "H100": (67e12, 989e12),
    "A100": (19.5e12, 312e12),
    "V100-SXM": (15.7e12, None),
    "V100": (14e12, None),
    "P100-SXM": (10.6e12, None),
    "P100": (9.3e12, None),
}
"""FLOP/s by part of the device's name: in float32, and in bfloat16 by tensor cores, without sparsity; None where
it has none.  V100's 125e12 are of float16, which we do not use.

Sources: NVIDIA's data sheets of the H200, H100, A100, V100 and P100 Tensor Core or Tesla GPU.
"""

SIZES = {"mlp 64-4096-4096-4096-10": LARGE["mlp"], "transformer 6 x 512": LARGE["transformer"]}


def training(workers: int, precision: str, **size) -> Experiment:
    """So many samples a worker, float32 or mixed precision."""
    return Experiment(
        workers=workers,
        scaling="weak",
        steps=250,
        lr=0.01,
        precision=precision,
        evaluate_every=10_000,
        sync={"allreduce": "library", "overlap": workers > 1},
        cluster={"device": "cuda"},
        **size,
    )


def ours(experiment: Experiment) -> float:
    """Samples per second over all steps after the warm-up."""
    curve = dlpar.launch(experiment).wait(600).curve
    seconds = curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1]
    return (len(curve) - WARM_UP) * experiment.global_batch / seconds


def peak(device: str, precision: str) -> float | None:
    """FLOP/s of a device of that name; None of one that is not in the table, or has no such cores."""
    known = next((speeds for name, speeds in PEAK.items() if name in device), (None, None))
    return known[precision == "bf16"]


def share_of_peak(experiment: Experiment, samples_per_s: float, device: str) -> str:
    """What of the GPUs is used, in words: FLOPs of the model's products by the rate, over the data sheet's."""
    dataset = load(experiment.data, experiment.seed, model=experiment.model.name)
    flops = (
        models.flops_per_sample(models.build(experiment, dataset), dataset)
        * samples_per_s
        / experiment.workers
    )
    most = peak(device, experiment.precision)
    share = f", {flops / most:.0%} of {most / 1e12:g} TFLOP/s" if most else ", whose peak we do not know"
    return f"{flops / 1e12:.3g} TFLOP/s a GPU, {experiment.precision} precision, on {device}{share}"


def report() -> None:
    gpus = torch.cuda.device_count()
    if not gpus:
        print("gpu: no CUDA device: not measured")
        return
    device = torch.cuda.get_device_name(0)
    for name, size in SIZES.items():
        for precision in ("full", "bf16"):
            experiment = training(gpus, precision, **size)
            measures = {
                "dlpar, NCCL": partial(ours, experiment),
                "torch DDP, NCCL": lambda: torchrun(experiment, WARM_UP)["samples_per_s"],
            }
            taken = in_turns(measures, n=3)
            show(f"{name}, {precision} precision, {gpus} {device}", taken, "samples/s")
            print(share_of_peak(experiment, sorted(taken["dlpar, NCCL"])[1], device))
