"""Updates per second of Hogwild: dlpar's, recording included, against torch.multiprocessing's on the same model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial

from compare import in_turns, show
from peer import HERE

import dlpar
from dlpar import Experiment

WARM_UP = 100


def training(workers: int, **sync) -> Experiment:
    """mlp 64-256-256-10 on digits, 16 samples a worker."""
    return Experiment(
        workers=workers,
        batch=16,
        scaling="weak",
        steps=2400,
        evaluate_every=10**7,
        sync={"scheme": "hogwild", **sync},
        cluster={"threads": 1},
    )


def ours(experiment: Experiment) -> float:
    """Updates per second of all workers after the warm-up."""
    ends = dlpar.launch(experiment).wait(300).steps["t"].sort_values().to_numpy()
    first = WARM_UP * experiment.workers
    return (len(ends) - first) / (ends[-1] - ends[first - 1])


def theirs(experiment: Experiment) -> float:
    """The same by ``shared_model.py``."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(experiment.to_json())
        file.flush()
        command = [sys.executable, str(HERE / "shared_model.py"), file.name, str(WARM_UP)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"shared_model.py failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["updates_per_s"]


def report() -> None:
    for workers in (2, 4):
        experiment = training(workers)
        measures = {
            "dlpar hogwild": partial(ours, experiment),
            "torch.multiprocessing": partial(theirs, experiment),
            "dlpar hogwild, sparse": partial(ours, training(workers, sparse=True)),
        }
        title = f"Hogwild, mlp 64-256-256-10 on digits, 16 samples a worker, {workers} processes"
        show(title, in_turns(measures, n=9), "updates/s", {"torch.multiprocessing": 1.0})
