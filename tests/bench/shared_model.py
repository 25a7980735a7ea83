"""The peer: torch.multiprocessing's Hogwild, as PyTorch's own example has it.

    python shared_model.py EXPERIMENT.json WARM_UP

``model.share_memory()``, and every process steps an SGD optimizer of its own on it.
Same model, data and batches as dlpar's.  Prints one JSON line: updates per second of all processes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

from dlpar import models
from dlpar.config.experiment import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler


def work(rank: int, text: str, warm_up: int, model: torch.nn.Module, barrier, seconds) -> None:
    """One process: its share of every global batch, `experiment.steps` updates."""
    experiment = Experiment.from_json(text)
    torch.set_num_threads(1)
    dataset = load(experiment.data, experiment.seed, model=experiment.model.name)
    sampler = Sampler(experiment, dataset.train_y, len(dataset.train_x))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.lr / experiment.workers)
    criterion = models.loss(dataset.task)
    for number in range(experiment.steps):
        if number == warm_up:
            barrier.wait()
            began = time.perf_counter()
        x, y = dataset.batch(sampler.indices(number, rank))
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    barrier.wait()
    seconds.value = max(seconds.value, time.perf_counter() - began)


def main(path: str, warm_up: int) -> None:
    text = Path(path).read_text()
    experiment = Experiment.from_json(text)
    model = models.build(experiment, load(experiment.data, experiment.seed, model=experiment.model.name))
    model.share_memory()
    context = mp.get_context("spawn")
    barrier, seconds = context.Barrier(experiment.workers), context.Value("d", 0.0)
    shared = (text, warm_up, model, barrier, seconds)
    processes = [context.Process(target=work, args=(rank, *shared)) for rank in range(experiment.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(
        json.dumps({"updates_per_s": experiment.workers * (experiment.steps - warm_up) / seconds.value}),
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
