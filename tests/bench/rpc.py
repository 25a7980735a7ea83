"""The peer: an asynchronous parameter server by torch.distributed.rpc, as PyTorch's own tutorials build it.

    torchrun --nproc_per_node N+1 rpc.py EXPERIMENT.json WARM_UP

The last rank serves.  A trainer computes a gradient, calls the server with it and gets the weights back.  Prints,
from rank 0, one JSON line: pushes per second of all trainers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import rpc

from dlpar import models
from dlpar.config.experiment import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.replica import Replica

weights = torch.zeros(0)
lock = threading.Lock()


def first_weights(given: torch.Tensor) -> None:
    global weights
    weights = given.clone()


def push(gradient: torch.Tensor, lr: float) -> torch.Tensor:
    with lock:
        weights.add_(gradient, alpha=-lr)
        return weights.clone()


def train(experiment: Experiment, rank: int, warm_up: int) -> float:
    dataset = load(experiment.data, experiment.seed)
    sampler = Sampler(experiment, dataset.train_y, len(dataset.train_x))
    replica = Replica(models.build(experiment, dataset))
    criterion = models.loss(dataset.task)
    if rank == 0:
        rpc.rpc_sync("server", first_weights, (replica.weights,))
    dist.barrier()
    for number in range(experiment.steps):
        if number == warm_up:
            dist.barrier()
            began = time.perf_counter()
        x, y = dataset.batch(sampler.indices(number, rank))
        replica.gradient.zero_()
        loss = criterion(replica.model(x), y)
        (loss / experiment.workers).backward()
        replica.weights.copy_(rpc.rpc_sync("server", push, (replica.gradient, experiment.lr)))
        loss.item()
    dist.barrier()
    return (experiment.steps - warm_up) * experiment.workers / (time.perf_counter() - began)


def main(path: str, warm_up: int) -> None:
    experiment = Experiment.from_json(Path(path).read_text())
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    rpc.init_rpc("server" if rank == size - 1 else f"trainer{rank}", rank=rank, world_size=size)
    if rank < size - 1:
        rate = train(experiment, rank, warm_up)
        if rank == 0:
            print(json.dumps({"pushes_per_s": rate}), flush=True)
    else:
        for _ in range(3):
            dist.barrier()
    rpc.shutdown()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
