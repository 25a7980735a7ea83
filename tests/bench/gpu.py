"""On GPUs: one rank against a plain loop of torch, and two ranks that share a GPU against one.

The loops take turns in one process, and a block ends when the GPU has done its steps.  With several GPUs, also
against DistributedDataParallel over NCCL.  ``DLPAR_GPU_DEVICE=cpu`` tries all this at tiny sizes without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
from compare import in_turns, least, limit, show
from peer import torchrun
from stepping import blocks, plain
from trained_ranks import LARGE

import dlpar
from dlpar import Experiment, models
from dlpar.data import load

DEVICE = os.environ.get("DLPAR_GPU_DEVICE", "cuda")

WARM_UP = 50
"""Steps beside DistributedDataParallel that are not timed."""

TURNS, PATIENCE = 3, 60.0
"""Number of comparisons of two ranks with one, and seconds that a job may take."""

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

if DEVICE == "cuda":
    SIZES = {"mlp 64-4096-4096-4096-10": LARGE["mlp"], "transformer 6 x 512": LARGE["transformer"]}
    BLOCK, PAIRS, QUICK = 20, 12, 200
else:
    SIZES = {
        "mlp 64-32-32-32-10": {"model": {"width": 32, "depth": 3}, "batch": 2048},
        "transformer 2 x 16": {
            **LARGE["transformer"],
            "model": {"name": "transformer", "width": 16},
            "batch": 2,
        },
    }
    BLOCK, PAIRS, QUICK = 2, 3, 4
"""Steps of one loop before the other's turn, the number of turns, and the steps of a block of short steps."""


def training(workers: int, precision: str = "full", blocks: int = PAIRS, **fields) -> Experiment:
    """So many samples a worker, float32 or mixed precision, and no tests."""
    return Experiment(
        workers=workers,
        scaling="weak",
        precision=precision,
        evaluate_every=0,
        cluster={"device": DEVICE},
        **{"steps": BLOCK * blocks, "lr": 0.01, **fields},
    )


# ---- in turns with a plain loop ----------------------------------------------------------


def settled(comm) -> float:
    """Seconds when the GPU has done all that it was told."""
    comm.world.settle()
    return perf_counter()


def beside_plain(comm, experiments: dict[str, Experiment], block: int) -> dict[str, list | str]:
    """Return of each experiment the seconds of blocks of both loops, or the reason why there are none."""
    taken: dict[str, list | str] = {}
    for name, each in experiments.items():
        try:
            taken[name] = blocks(comm, each, block, partial(settled, comm), plain(each, comm.device))
        except Exception as error:
            taken[name] = reason(error)
    return taken


def one_rank(experiments: dict[str, Experiment], block: int, device: str) -> dict[str, float]:
    """Print how one rank compares with a plain loop, and return the seconds of its steps."""
    cluster = {"device": DEVICE, "threads": 1, "timeout": PATIENCE}
    taken, steps = dlpar.spmd(beside_plain, experiments, block, workers=1, **cluster)[0], {}
    for name, seconds in taken.items():
        if isinstance(seconds, str):
            print(f"{name}: FAILED {seconds}")
            continue
        least(f"{name}, 1 rank over a plain loop", [theirs / ours for ours, theirs in seconds], "×", 1.0)
        steps[name] = median(ours for ours, _ in seconds) / block
        rate = experiments[name].batch / steps[name]
        print(f"{name}: {rate:,.0f} samples/s, {share_of_peak(experiments[name], rate, device)}")
    return steps


def large(name: str, device: str) -> None:
    precisions = {f"{name}, {each}": training(1, each, **SIZES[name]) for each in ("full", "bf16")}
    one_rank(precisions, BLOCK, device)


def digits(device: str) -> None:
    experiment = Experiment(workers=1, steps=QUICK * PAIRS, evaluate_every=0, cluster={"device": DEVICE})
    for name, seconds in one_rank({"digits": experiment}, QUICK, device).items():
        limit(f"{name}, a step of the default mlp", [seconds * 1e6], "µs", 100)


# ---- ranks that share a GPU ------------------------------------------------------------


def alone_and_together(
    comm, alone: Experiment, together: Experiment, block: int
) -> list[tuple[float, float]]:
    """Return, by turns, the seconds of a step of rank 0 by itself, and of all ranks together."""
    clock, nothing, taken = partial(settled, comm), lambda number: None, []
    by_itself = comm.split(comm.rank)
    for _ in range(TURNS):
        one = 0.0
        if comm.rank == 0:
            one = median(ours for ours, _ in blocks(by_itself, alone, block, clock, nothing)) / block
        comm.barrier()
        two = median(ours for ours, _ in blocks(comm, together, block, clock, nothing)) / block
        taken.append((one, two))
    return taken


def sharing() -> None:
    """Print what two ranks that share a GPU do in the time in which one rank does one."""
    name, size = next(iter(SIZES.items()))
    alone, together = (training(ranks, "bf16", blocks=4, **size) for ranks in (1, 2))
    cluster = {"device": DEVICE, "carrier": "mpi", "threads": 1, "timeout": 2 * PATIENCE}
    taken = dlpar.spmd(alone_and_together, alone, together, BLOCK, workers=2, **cluster)[0]
    least(f"{name}, bf16, 2 ranks on one GPU over 1", [2 * one / two for one, two in taken], "×", 0.8)
    one, two = (median(seconds) * 1e3 for seconds in zip(*taken))
    print(f"{name}, bf16: {one:.3g} ms a step alone, {two:.3g} ms a step of two ranks that share")


# ---- several GPUs ------------------------------------------------------------------------


def ours(experiment: Experiment) -> float:
    """Samples per second over all steps after the warm-up."""
    curve = dlpar.launch(experiment).wait(600).curve
    seconds = curve["seconds"].iloc[-1] - curve["seconds"].iloc[WARM_UP - 1]
    return (len(curve) - WARM_UP) * experiment.global_batch / seconds


def beside_ddp(name: str, precision: str, gpus: int, device: str) -> None:
    overlapped = {"allreduce": "library", "overlap": True}
    experiment = training(gpus, precision, sync=overlapped, **{**SIZES[name], "steps": 250})
    measures = {
        "dlpar, NCCL": partial(ours, experiment),
        "torch DDP, NCCL": lambda: torchrun(experiment, WARM_UP)["samples_per_s"],
    }
    taken = in_turns(measures, n=3)
    show(f"{name}, {precision} precision, {gpus} {device}", taken, "samples/s")
    print(share_of_peak(experiment, median(taken["dlpar, NCCL"]), device))


# ---- all ---------------------------------------------------------------------------------


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


def reason(error: Exception) -> str:
    """Return what happened, in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:400]


def guarded(name: str, section: Callable[[], object]) -> None:
    """Measure a section; if that fails, print the reason and let the others go on."""
    try:
        section()
    except Exception as error:
        print(f"{name}: FAILED {reason(error)}")


def report() -> None:
    gpus = torch.cuda.device_count() if DEVICE == "cuda" else 0
    if DEVICE == "cuda" and not gpus:
        print("gpu: no CUDA device: not measured")
        return
    device = torch.cuda.get_device_name(0) if gpus else "the CPU"
    if not gpus:
        print("gpu: tried at tiny sizes without a GPU; the figures mean nothing")
    for name in SIZES:
        guarded(name, partial(large, name, device))
    guarded("digits", partial(digits, device))
    if gpus < 2:
        guarded("sharing", sharing)
    else:
        for name in SIZES:
            for precision in ("full", "bf16"):
                guarded(f"{name} beside DDP", partial(beside_ddp, name, precision, gpus, device))
