"""Mariana's AlexNet on paper: groups of GPUs hold a piece of every layer, and owners of a piece sum its gradients."""

from __future__ import annotations

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.comm import Comm
from dlpar.worlds.platforms.workloads import workload


def seconds(comm: Comm, model: int, batch: int, flops: float, steps: int = 2) -> float:
    """Run steps of AlexNet by the sizes of its messages, and return a step's seconds on this rank.

    `model` GPUs share each layer: its outputs travel between them in the forward pass, and gradients of outputs in the
    backward pass.  The others hold replicas: each piece has an owner in every replica, and owners sum its gradients.

    Parameters
    ----------
    comm : Comm
        All GPUs; a multiple of `model`.
    model : int
        GPUs of one model.
    batch : int
        Samples of all GPUs together in a step.
    flops : float
        Of a sample, as AlexNet's device rate counts them; layers share it as their own numbers do.
    steps : int
    """
    replicas, net = comm.size // model, workload("alexnet")
    group = comm.split(comm.rank // model, comm.rank)
    owners = comm.split(comm.rank % model, comm.rank)
    samples = batch // replicas

    def compute(cost: float) -> None:
        comm.compute(lambda: None, cost=cost * flops / net.flops * samples / model)

    for _ in range(steps):
        for layer in reversed(net.layers):
            compute(layer.flops / 3)
            ring_allgather(group, comm.empty(samples * layer.outputs).tensor_split(model))
        for layer in net.layers:
            compute(2 * layer.flops / 3)
            ring_allreduce(group, comm.empty(samples * layer.outputs))
            ring_allreduce(owners, comm.empty(layer.parameters // model))
    return comm.now() / steps
