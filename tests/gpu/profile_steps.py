"""What a step does: microseconds, memory, waits for the GPU by file and line, CUDA calls, kernels and a trace.

Without arguments it starts each case on its ranks; a rank is called with the name of its case.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False

import torch  # noqa: E402
from trained_ranks import LARGE  # noqa: E402

import dlpar  # noqa: E402

WEAK = {"scaling": "weak", "lr": 0.01}
WIDE, TEXT = ({**size, **WEAK} for size in (LARGE["mlp"], LARGE["transformer"]))
MIDDLE = {"model": {"width": 2048, "depth": 4}, "batch": 1024}
CASES = {
    "digits": (1, {}),
    "mlp": (1, WIDE),
    "mlp, bf16": (1, {**WIDE, "precision": "bf16"}),
    "transformer, bf16": (1, {**TEXT, "precision": "bf16"}),
    "digits, shared": (2, {}),
    "mlp, bf16, shared": (2, {**WIDE, "precision": "bf16"}),
    "tensor": (2, {**MIDDLE, "split": "tensor"}),
    "1f1b": (4, {**MIDDLE, "split": {"kind": "pipeline", "microbatches": 8}}),
    "batch normalisation": (2, {"model": {"name": "cnn", "norm": "sync_batch"}}),
    "zero 3": (2, {**MIDDLE, "split": {"zero": 3}}),
}
"""Ranks and fields of each case."""

WATCHED, TRACED = 10, 6
"""Number of steps in which waits are reported, and number of the last steps that are traced."""


def rank(name: str, device: str, out: Path) -> None:
    """Train a case on this rank of MPI's world; rank 0 prints."""
    from mpi4py import MPI

    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    from dlpar.jobs.record import Recorder
    from dlpar.train import train
    from dlpar.worlds.connect import join

    steps = int(os.environ.get("STEPS", "120"))
    fields = {
        "workers": CASES[name][0],
        "steps": steps,
        "evaluate_every": 10**6,
        "cluster": {"device": device},
    }
    experiment = dlpar.Experiment(**{**CASES[name][1], **fields})
    comm = join(experiment)
    on_gpu, first, begins = device == "cuda", steps // 3, steps - TRACED - 2
    waits: Counter[str] = Counter()
    marks: list[float] = []
    profiler = torch.profiler.profile()

    def noted(message: object, category: object, file: str, line: int, *rest: object) -> None:
        waits["/".join(Path(file).parts[-2:]) + f":{line}"] += 1

    class Watched(Recorder):
        def step(self, step: int, **facts) -> None:
            super().step(step, **facts)
            if on_gpu and step == first + WATCHED:
                torch.cuda.set_sync_debug_mode("default")
            if step in (first + WATCHED, begins):  # all steps before it are done, none is ahead
                comm.world.settle()
            marks.append(time.perf_counter())
            if on_gpu and step == first:
                torch.cuda.set_sync_debug_mode("warn")
                warnings.simplefilter("always")
                warnings.showwarning = noted
            if step == begins and comm.rank == 0:
                profiler.start()
            if step == begins + TRACED and comm.rank == 0:
                profiler.stop()

    train(comm, experiment, Watched(tempfile.mkdtemp(), comm))
    if comm.rank == 0:
        timed = marks[first + WATCHED : begins + 1]
        memory = f", {torch.cuda.max_memory_allocated() / 1e6:.0f} MB" if on_gpu else ""
        told = (timed[-1] - timed[0]) / (len(timed) - 1) * 1e6
        print(f"-- {name}, {comm.size} rank(s), {comm.world.carrier}: {told:.0f} µs a step{memory}")
        print(f"   waits for the GPU in {WATCHED} steps, by line:", dict(waits.most_common(12)))
        averages = profiler.key_averages()
        calls = {
            each.key: round(each.count / TRACED, 1)
            for each in averages
            if each.key.startswith(("cuda", "nccl"))
        }
        print("   calls in a step:", calls)
        kind = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        print(averages.table(sort_by=kind, row_limit=9, max_name_column_width=44))
        profiler.export_chrome_trace(str(out / f"{name.replace(', ', '-')}.json.gz"))
    comm.close()
    MPI.Finalize()
    sys.stdout.flush()
    os._exit(0)


def start(name: str) -> int:
    """Run a case on its ranks, and return the exit status."""
    mpiexec = ["mpiexec", "--oversubscribe", "--bind-to", "none", "-n", str(CASES[name][0])]
    try:
        limit = 60 if os.environ["DLPAR_GPU_DEVICE"] == "cuda" else None
        return subprocess.run([*mpiexec, sys.executable, __file__, name], timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return 124


if __name__ == "__main__":
    if len(sys.argv) > 1 and "OMPI_COMM_WORLD_SIZE" in os.environ:
        rank(sys.argv[1], os.environ["DLPAR_GPU_DEVICE"], Path(os.environ["DLPAR_GPU_OUT"]))
    failed = [name for name in sys.argv[1:] or CASES if start(name)]
    for name in failed:
        print(f"-- {name}: FAILED")
    sys.exit(bool(failed))
