"""A model cut over devices on paper: groups hold a piece of every layer, and owners of a piece sum its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.comm import Comm
from dlpar.worlds.platforms import Layer

STEPS = 2
"""Steps whose mean is taken."""


def seconds(comm: Comm, layers: Sequence[Layer], model: int, batch: int, slower: float = 1.0) -> float:
    """Run steps of a model by the sizes of its messages, and return a step's seconds on this rank.

    `model` devices share each layer: its outputs travel between them in the forward pass, and gradients of outputs in
    the backward pass.  The others hold replicas: each piece has an owner in every replica, and these sum its gradients.

    Parameters
    ----------
    comm : Comm
        All devices; a multiple of `model`.
    layers : sequence of Layer
        In the order in which a backward pass finishes their gradients.
    model : int
        Devices of one model.
    batch : int
        Samples of all devices together in a step.
    slower : float, default 1
        Times as many FLOPs are charged for.
    """
    replicas = comm.size // model
    group, owners = comm.split(comm.rank // model, comm.rank), comm.split(comm.rank % model, comm.rank)
    samples = batch // replicas

    def compute(flops: float) -> None:
        comm.compute(lambda: None, cost=slower * flops * samples / model)

    for _ in range(STEPS):
        for layer in reversed(layers):
            compute(layer.flops / 3)
            ring_allgather(group, comm.empty(samples * layer.outputs).tensor_split(model))
        for layer in layers:
            compute(2 * layer.flops / 3)
            ring_allreduce(group, comm.empty(samples * layer.outputs))
            ring_allreduce(owners, comm.empty(layer.parameters // model))
    return comm.now() / STEPS
