"""The peer: the same training by torch's parallelize_module or FSDP2 over gloo, started by torchrun.

    torchrun --nproc_per_node N parallelize.py EXPERIMENT.json WARM_UP

Prints, from rank 0, one JSON line: its steps per second, and the last step's loss.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dlpar import models
from dlpar.config.experiment import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler


def plan(depth: int) -> dict:
    """Blocks as ours are cut; and the embedding and the scores by characters."""
    styles = {
        "embed.token": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Replicate()),
    }
    for block in range(1, depth + 1):
        for name in ("attention.query", "attention.key", "attention.value", "up"):
            styles[f"block{block}.{name}"] = ColwiseParallel()
        for name in ("attention.merge", "down"):
            styles[f"block{block}.{name}"] = RowwiseParallel()
    return styles


def parallelized(experiment: Experiment, dataset, ranks: int) -> torch.nn.Module:
    model = models.build(experiment, dataset)
    characters = torch.nn.Linear(experiment.model.width, dataset.classes, bias=False)
    characters.weight = model.embed.token.weight
    model.output = characters  # the tied layer as one that torch knows how to cut
    model = parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan(experiment.model.depth))
    model.output.weight = model.embed.token.weight  # cutting has untied them
    for block in range(1, experiment.model.depth + 1):
        model.get_submodule(f"block{block}.attention").heads //= ranks
    return model


def sharded(experiment: Experiment, dataset, ranks: int) -> torch.nn.Module:
    """Each block's weights are gathered while it computes; those of the other layers, for the whole pass."""
    model, mesh = models.build(experiment, dataset), init_device_mesh("cpu", (ranks,))
    for block in range(1, experiment.model.depth + 1):
        fully_shard(model.get_submodule(f"block{block}"), mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(path: str, warm_up: int) -> None:
    experiment = Experiment.from_json(Path(path).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    dataset = load(experiment.data, experiment.seed, model="transformer")
    sampler = Sampler(experiment.of_replicas(), dataset.train_y, len(dataset.train_x))
    is_cut = experiment.split.kind == "tensor"
    model = (parallelized if is_cut else sharded)(experiment, dataset, size)
    replica = 0 if is_cut else rank
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.lr, foreach=False)
    criterion = models.loss(dataset.task)

    def step(number: int) -> float:
        x, y = dataset.batch(sampler.indices(number, replica))
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for number in range(warm_up):
        step(number)
    dist.barrier()
    began = time.perf_counter()
    for number in range(warm_up, experiment.steps):
        loss = step(number)
    dist.barrier()
    seconds = time.perf_counter() - began
    if rank == 0:
        rate = (experiment.steps - warm_up) / seconds
        print(json.dumps({"steps_per_s": rate, "loss": loss, "workers": size}), flush=True)
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
