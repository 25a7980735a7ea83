"""``make gpu``: everything of the CUDA code, once, on a machine with one GPU.

Stages, sized for two calls of five minutes::

    make gpu GPU_ARGS="probe tests matrix"     right or wrong
    make gpu GPU_ARGS="profile bench"          how quick

=======  ==============================================  ===================================================
stage    what it does                                    it is good if
=======  ==============================================  ===================================================
probe    versions, costs of single calls, launches       another process reads pinned memory; TF32 is no
                                                         slower 8 bytes off 16
tests    the CUDA tests                                  all pass
matrix   splits × schemes, float64, beside the CPU       no FAILED, no WRONG
profile  µs a step, waits by line, CUDA calls, traces    at most one wait a step
bench    one rank beside a plain loop, two ranks on one  nothing MISSED
=======  ==============================================  ===================================================

``--device cpu`` tries the scripts without a GPU.  Then the tests have nothing to do, the figures of bench mean
nothing, and nothing is too slow.
Logs and traces are in ``--out``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer

HERE = Path(__file__).parent
TESTS = HERE.parent
STAGES = {
    "probe": (60, [HERE / "probe.py"]),
    "tests": (240, ["-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:nbval", "-n", "6",
                    "--timeout=110", TESTS / "worlds" / "test_cuda.py"]),
    "matrix": (250, [HERE / "matrix.py"]),
    "profile": (240, [HERE / "profile_steps.py"]),
    "bench": (240, [TESTS / "bench", "gpu"]),
}  # fmt: skip
"""Of each stage the seconds after which it is ended, and the arguments of Python."""

FIRST = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
"""The first of this machine's GPUs, or of those that this process may use."""

AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
TOLD = re.compile(r"FAILED|WRONG|MISSED|passed|failed|a step|pairs of|×|TFLOP/s|not measured")
"""Lines that the summary repeats."""


def run(stage: str, only: list[str], out: Path, environment: dict[str, str]) -> int:
    """Run a stage, print and keep its output, and return its exit status."""
    limit, arguments = STAGES[stage]
    command = [sys.executable, *map(str, arguments), *(only if stage in ("matrix", "profile") else ())]
    if stage in ("matrix", "profile"):  # their ranks share a GPU, also on a machine with several
        environment = {**environment, "CUDA_VISIBLE_DEVICES": FIRST}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with (
        open(out / f"{stage}.log", "w") as log,
        subprocess.Popen(command, env=environment, **pipes) as process,
    ):
        end = Timer(limit, os.killpg, (process.pid, signal.SIGKILL))
        if environment["DLPAR_GPU_DEVICE"] == "cuda":
            end.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
        status = process.wait()
        end.cancel()
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description="Run the CUDA code on one GPU.")
    parser.add_argument("stages", nargs="*", metavar="stage", help=", ".join(STAGES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--only", nargs="+", default=[], help="schemes of the matrix, or cases of the profile"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    asked = parser.parse_args()
    if unknown := [stage for stage in asked.stages if stage not in STAGES]:
        parser.error(f"stage: got {unknown[0]!r}, allowed is any of {', '.join(STAGES)}")
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(
            "No CUDA device is here, so nothing was run; GPU_ARGS='matrix --device cpu' tries a stage without one."
        )
        return 0
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    found = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    environment = {
        **os.environ, "PYTHONPATH": found, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN",
        "DLPAR_GPU_DEVICE": asked.device, "DLPAR_GPU_OUT": str(out),
        **{name + end: "1" for name in AS_ROOT for end in ("", "_CONFIRM")},
    }  # fmt: skip
    began, statuses = time.monotonic(), {}
    for stage in asked.stages or STAGES:
        print(f"==== {stage}, at {time.monotonic() - began:.0f} s", flush=True)
        statuses[stage] = run(stage, asked.only, out, environment)
        print(f"==== {stage}: status {statuses[stage]}", flush=True)
    for stage in statuses:
        for line in (out / f"{stage}.log").read_text().splitlines():
            if TOLD.search(line):
                print(f"{stage}: {line}")
    print(f"all: {time.monotonic() - began:.0f} s; logs in {out}")
    return any(statuses.values())


if __name__ == "__main__":
    sys.exit(main())
