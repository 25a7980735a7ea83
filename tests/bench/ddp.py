"""The peer: the same training by torch's DistributedDataParallel, over gloo or on GPUs NCCL, started by torchrun.

    torchrun --nproc_per_node N ddp.py EXPERIMENT.json WARM_UP

Prints, from rank 0, one JSON line: when its first step ended (unix time) and its samples per second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dlpar import models
from dlpar.config.experiment import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler


def main(path: str, warm_up: int) -> None:
    experiment = Experiment.from_json(Path(path).read_text())
    torch.set_num_threads(1)
    on_gpu = experiment.cluster.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    dataset = load(experiment.data, experiment.seed, model=experiment.model.name)
    sampler = Sampler(experiment, dataset.train_y, len(dataset.train_x), device)
    dataset = dataset.to(device)
    model = DistributedDataParallel(models.build(experiment, dataset).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.lr)
    criterion = models.loss(dataset.task)

    def step(number: int) -> torch.Tensor:
        x, y = dataset.batch(sampler.indices(number, rank))
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=experiment.precision == "bf16"):
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()  # to read it would hold up a GPU

    step(0).item()
    first = time.time()
    for number in range(1, warm_up):
        step(number)
    dist.barrier()
    began = time.perf_counter()
    for number in range(warm_up, experiment.steps):
        step(number)
    dist.barrier()
    seconds = time.perf_counter() - began
    if rank == 0:
        rate = (
            (experiment.steps - warm_up) * experiment.global_batch / seconds
            if experiment.steps > warm_up
            else 0.0
        )
        print(json.dumps({"first": first, "samples_per_s": rate, "workers": size}), flush=True)
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
