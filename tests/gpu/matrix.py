"""Splits × schemes on a GPU that all ranks share, each beside the same run on the CPU, in float64."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from worlds.test_devices import FREE, SCHEMES, SPLITS

import dlpar

PLACES = (
    "data", "micro-batches", "zero 1", "zero 3", "tensor, mlp", "tensor, overlapping", "spatial", "1f1b", "gpipe",
    "interleaved", "zb-h1", "pipedream", "hybrid",
)  # fmt: skip
SOME = (
    "library", "ring", "overlapped", "adam", "local SGD", "1 bit", "mapreduce", "gossip", "push-sum", "pairwise", "ps",
)  # fmt: skip

CLOSE = 1e-9
"""Relative."""

Case = tuple[str, str]


def losses(split: str, scheme: str, device: str) -> np.ndarray:
    """Return the loss of each step of a short run with two replicas, or with four of the whole model."""
    fields = {
        "steps": 10,
        "batch": 48,
        "dtype": "float64",
        "evaluate_every": 1000,
        "model": {"width": 16, "depth": 4},
    }
    chosen = SCHEMES[scheme][0] if scheme in SCHEMES else {}
    if scheme == "ps" and split not in ("data", "micro-batches"):
        chosen = {"sync": {"scheme": "ps", "servers": 4}}
    kept = ("split", "model", "data") if split in ("spatial", "hybrid") else ("split",)
    fields |= {name: value for name, value in SPLITS[split].items() if name in kept} | chosen
    fields["workers"] = 2 * SPLITS[split]["workers"]
    experiment = dlpar.Experiment(**fields, cluster={"device": device, "timeout": 60})
    return dlpar.launch(experiment).wait(150).curve["loss"].to_numpy()


def compared(case: Case, device: str) -> tuple[Case, str, str] | None:
    """Run a pair on both devices; None if the two do not go together."""
    try:
        found, right = losses(*case, device), losses(*case, "cpu")
    except dlpar.BadExperiment:
        return None
    except Exception as error:
        return case, "FAILED", " ".join(str(error).split())[-400:]
    off = float(abs(found / right - 1).max())
    good = found[-3:].mean() < found[0] if case[1] in FREE else off < CLOSE
    return case, "right" if good else "WRONG", f"{off:.1e}"


def main(schemes: list[str], device: str) -> int:
    cases = [(split, scheme) for split in PLACES for scheme in schemes or SOME]
    found = []
    with ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "4"))) as pool:
        for each in filter(None, pool.map(lambda case: compared(case, device), cases)):
            found.append(each)
            if each[1] != "right":
                print(*each)
    right = sum(each[1] == "right" for each in found)
    print(f"{len(found)} pairs of split and scheme, {right} as on the CPU")
    return right < len(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ["DLPAR_GPU_DEVICE"]))
