"""The peer: the same pipeline by torch.distributed.pipelining over gloo, started by torchrun.

    torchrun --nproc_per_node STAGES pipelining.py EXPERIMENT.json WARM_UP

Prints, from the last rank, one JSON line: its steps per second.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from dlpar import models
from dlpar.config.experiment import Experiment
from dlpar.data import load
from dlpar.data.sampler import Sampler
from dlpar.split.partition import cut, units

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def main(path: str, warm_up: int) -> None:
    experiment = Experiment.from_json(Path(path).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    dataset = load(experiment.data, experiment.seed)
    sampler = Sampler(experiment.of_replicas(), dataset.train_y, len(dataset.train_x))
    model = models.build(experiment, dataset)
    found = units(model, dataset.train_x[:1])
    part = cut([unit.flops for unit in found], stages)[rank]
    layers = model[found[part.start].layers.start : found[part.stop - 1].layers.stop]
    stage = PipelineStage(layers, rank, stages, torch.device("cpu"))
    kind, loss = SCHEDULES[experiment.split.schedule], models.loss(dataset.task)
    schedule = kind(stage, experiment.split.microbatches, loss_fn=loss)
    optimizer = torch.optim.SGD(layers.parameters(), lr=experiment.lr)

    def step(number: int) -> None:
        x, y = dataset.batch(sampler.indices(number, 0))
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            losses: list[torch.Tensor] = []
            schedule.step(target=y, losses=losses)
            sum(loss.item() for loss in losses)
        else:
            schedule.step()
        optimizer.step()

    for number in range(warm_up):
        step(number)
    dist.barrier()
    began = time.perf_counter()
    for number in range(warm_up, experiment.steps):
        step(number)
    dist.barrier()
    seconds = time.perf_counter() - began
    if rank == stages - 1:
        print(json.dumps({"steps_per_s": (experiment.steps - warm_up) / seconds}), flush=True)
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
