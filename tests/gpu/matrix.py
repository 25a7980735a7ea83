"""Splits × schemes on a GPU that all ranks share, each beside the same run on the CPU, in float64."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from worlds.test_devices import SCHEMES, TEXT

import dlpar

PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 3}
SPLITS = {
    "data": {},
    "micro-batches": {"microbatches": 2},
    "zero 1": {"zero": 1},
    "zero 3": {"zero": 3},
    "tensor": {"kind": "tensor", "tensor": 2},
    "overlapping": {"kind": "tensor", "tensor": 2, "redundancy": 0.5},
    "spatial": {"kind": "spatial", "rows": 2},
    "1f1b": PIPELINE,
    "gpipe": {**PIPELINE, "schedule": "gpipe"},
    "interleaved": {**PIPELINE, "schedule": "interleaved", "microbatches": 4},
    "zb-h1": {**PIPELINE, "schedule": "zb-h1"},
    "pipedream": {**PIPELINE, "schedule": "pipedream", "microbatches": 1},
    "hybrid": {"kind": "hybrid", "microbatches": 3},
}
SOME = (
    "ring",
    "library",
    "overlapped",
    "adam",
    "local SGD",
    "1 bit",
    "mapreduce",
    "gossip",
    "push-sum",
    "pairwise",
    "ps",
)
FREE = ("pairwise", "ps, two servers")
"""Schemes whose losses depend on who comes first."""

CLOSE = 1e-9
"""Relative."""

Case = tuple[str, str]


def losses(split: str, scheme: str, device: str) -> np.ndarray:
    """Return the loss of each step of a short run with at least two replicas."""
    fields = dict(steps=10, batch=48, dtype="float64", evaluate_every=1000, model={"width": 16, "depth": 4})
    fields |= {"workers": 8 if split == "hybrid" else 4, "split": SPLITS[split]}
    fields |= (
        {"model": {"name": "cnn", "width": 32}} if split == "spatial" else TEXT if split == "hybrid" else {}
    )
    chosen = SCHEMES[scheme][0] if scheme in SCHEMES else {}
    if scheme == "ps" and split not in ("data", "micro-batches"):
        chosen = {"sync": {"scheme": "ps", "servers": 4}}
    experiment = dlpar.Experiment(**{**fields, **chosen}, cluster={"device": device, "timeout": 60})
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
    cases = [(split, scheme) for split in SPLITS for scheme in schemes or SOME]
    with ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "4"))) as pool:
        found = [each for each in pool.map(lambda case: compared(case, device), cases) if each]
    for each in found:
        if each[1] != "right":
            print(*each)
    right = sum(each[1] == "right" for each in found)
    print(f"{len(found)} pairs of split and scheme, {right} as on the CPU")
    return right < len(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ["DLPAR_GPU_DEVICE"]))
