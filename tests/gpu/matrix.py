"""Splits × schemes on a GPU that all ranks share, each beside the same run on the CPU, in float64.

A split's ranks train with all schemes in turn, because a process needs seconds until it can use a GPU.
A case that fails ends its job, and another job goes on with the next case.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import numpy as np
from trained_ranks import Kept, of_global_batch, take_part
from worlds.test_devices import FREE, SCHEMES, SPLITS

from dlpar import BadExperiment, Experiment
from dlpar.config.experiment import Cluster
from dlpar.jobs.diagnosis import rank_files
from dlpar.jobs.launch import Job, JobFailed, begin

PLACES = (
    "hybrid", "data", "micro-batches", "zero 1", "zero 3", "tensor, mlp", "tensor, overlapping", "spatial", "1f1b",
    "gpipe", "interleaved", "zb-h1", "pipedream",
)  # fmt: skip
SOME = (
    "library", "ring", "overlapped", "adam", "local SGD", "1 bit", "mapreduce", "gossip", "push-sum", "pairwise", "ps",
)  # fmt: skip

CLOSE = 1e-9
"""Relative."""

PATIENCE = 40.0
"""Seconds that a case may take; the first one also makes the contexts of the GPU."""

FAILURES = 4
"""Failed cases after which a split's other cases are not tried: each of them needs a new job."""


def experiment(split: str, scheme: str) -> Experiment | None:
    """Return a short run with two replicas, or with four of the whole model; None if the two do not go together."""
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
    try:
        return Experiment(**fields, workers=2 * SPLITS[split]["workers"])
    except BadExperiment:
        return None


def in_turn(comm, experiments: list[Experiment], device: str, folder: str) -> None:
    """Train each experiment on the first ranks; rank 0 writes the loss of each step to a file of its own.

    All have the same number of workers. Servers compute on the host.
    """
    from dlpar.worlds.connect import connect  # here, because it loads MPI

    cluster = Cluster(device=device, carrier="mpi")
    everyone = connect(cluster, on_host=range(experiments[0].workers, comm.size))
    for number, each in enumerate(experiments):
        own = everyone.split(int(comm.rank < each.members), comm.rank)
        if comm.rank >= each.members:  # waits for the next split
            continue
        record = Kept(own)
        take_part(own, each, record)
        told = own.gather([(facts["loss"], facts["samples"]) for facts in record.steps])
        own.close()
        if told:
            steps = zip_longest(*told[: each.workers], fillvalue=(None, 0))  # free workers differ in steps
            written = Path(folder, f"{number}.part")
            written.write_text(json.dumps([of_global_batch(step) for step in steps]))
            written.rename(written.with_suffix(".json"))


def losses(cases: dict[str, Experiment], device: str) -> Iterator[tuple[str, np.ndarray | str]]:
    """Yield each case's losses as soon as they are there, or the reason why there are none."""
    left, failures = list(cases), 0
    while left:
        with TemporaryDirectory() as folder:
            given = [cases[name] for name in left], device, folder
            ranks = max(cases[name].ranks for name in left)
            job = begin(in_turn, *given, workers=ranks, timeout=PATIENCE, threads=1, device="cpu")
            try:
                for number, name in enumerate(left):
                    if not written(job, Path(folder, f"{number}.json")):
                        break
                    yield name, np.array(json.loads(Path(folder, f"{number}.json").read_text()))
                else:
                    return
                yield name, why(job)
                left, failures = left[number + 1 :], failures + 1
            finally:
                job.stop()
                rmtree(job.folder, ignore_errors=True)
        if failures == FAILURES:
            yield from ((name, f"not tried after {FAILURES} failures") for name in left)
            return


def written(job: Job, file: Path) -> bool:
    """Wait for a case's file, and return whether it came before the end of the job."""
    while not file.exists():
        if job.ended:
            return file.exists()
        time.sleep(0.02)
    for of_rank in rank_files(job.folder).values():  # to the job's guardian a case is progress
        of_rank.touch()
    return True


def why(job: Job) -> str:
    """Return why a job ended too early, in one line."""
    try:
        job.wait()
        return "the job ended early"
    except JobFailed as error:
        return " ".join(str(error).partition("\n\n---")[0].split())[:400]


def compared(split: str, schemes: list[str], device: str) -> list[bool]:
    """Return of each case of a split whether it is right, and print those that are not."""
    began, verdicts = time.monotonic(), dict[str, bool]()
    cases = {scheme: each for scheme in schemes if (each := experiment(split, scheme))}

    def judge(scheme: str, found: np.ndarray | str) -> None:
        off = "" if isinstance(found, str) else apart(found, right[scheme])
        good = off != "" and (found[-3:].mean() < found[0] if scheme in FREE else off < CLOSE)
        verdicts[scheme] = bool(good)
        if not good:
            print(f"{split}, {scheme}:", f"FAILED {found}" if off == "" else f"WRONG {off:.1e}", flush=True)

    try:
        right = dict(losses(cases, "cpu"))
        for scheme in [scheme for scheme, told in right.items() if isinstance(told, str)]:
            judge(scheme, f"on the CPU: {right[scheme]}")
        left = {scheme: each for scheme, each in cases.items() if scheme not in verdicts}
        for told in losses(left, device):
            judge(*told)
    except Exception as error:
        for scheme in cases.keys() - verdicts.keys():
            judge(scheme, f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - began
    print(f"-- {split}: {sum(verdicts.values())} of {len(cases)} right, {seconds:.1f} s", flush=True)
    return list(verdicts.values())


def apart(found: np.ndarray, right: np.ndarray) -> float:
    """Return the largest relative difference, which is not finite for another number of steps."""
    return float(abs(found / right - 1).max()) if found.shape == right.shape else float("inf")


def main(schemes: list[str], device: str) -> int:
    with ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "3"))) as pool:
        of_splits = pool.map(lambda split: compared(split, schemes or list(SOME), device), PLACES)
        found = list(chain.from_iterable(of_splits))
    print(f"{len(found)} pairs of split and scheme, {sum(found)} as on the CPU")
    return sum(found) < len(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ["DLPAR_GPU_DEVICE"]))
