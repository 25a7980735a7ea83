"""The peer nobody can be thinner than: a training loop by hand, with a flat gradient and MPI_Allreduce."""

from __future__ import annotations

import time
from typing import Any


def thin(_: Any, steps: int, warm_up: int, batch: int, width: int) -> float:
    """Train an mlp on digits on this rank of MPI's world; samples a second of all ranks after the warm-up."""
    import torch
    from mpi4py import MPI
    from sklearn.datasets import load_digits
    from torch import nn

    world, digits = MPI.COMM_WORLD, load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    model = nn.Sequential(*layers)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    gradient, place = torch.zeros_like(weights), 0
    for parameter in model.parameters():
        piece = slice(place, place := place + parameter.numel())
        parameter.data, parameter.grad = weights[piece].view_as(parameter), gradient[piece].view_as(parameter)
    for step in range(steps):
        if step == warm_up:
            world.Barrier()
            began = time.perf_counter()
        samples = torch.randint(len(x), (batch,))
        gradient.zero_()
        (nn.functional.cross_entropy(model(x[samples]), y[samples]) / world.size).backward()
        world.Allreduce(MPI.IN_PLACE, gradient.numpy())
        weights.sub_(gradient, alpha=0.1)
    world.Barrier()
    return (steps - warm_up) * batch * world.size / (time.perf_counter() - began)
