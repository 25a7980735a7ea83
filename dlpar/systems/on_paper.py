"""Cost of a model that is cut over devices. The devices share each layer and sum each piece's gradients."""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.collectives import ring_allgather, ring_allreduce
from dlpar.comm import Comm
from dlpar.worlds.platforms import Layer

STEPS = 2
"""Number of steps that are averaged."""


def seconds(comm: Comm, layers: Sequence[Layer], model: int, batch: int, slower: float = 1.0) -> float:
    """Run steps of a model with messages that carry only sizes. Return the seconds of a step on this rank.

    `model` devices share each layer.  They exchange outputs in the forward pass, and gradients of outputs in the
    backward pass.  The other devices hold replicas.  Each piece has an owner in every replica, and owners sum
    gradients.

    Parameters
    ----------
    comm : Comm
        Communicator of all devices. Their number is a multiple of `model`.
    layers : sequence of Layer
        Layers in the order in which a backward pass finishes their gradients.
    model : int
        Devices of one model.
    batch : int
        Samples in a step, of all devices together.
    slower : float, default 1
        Factor by which the charged FLOPs are multiplied.
    """
    group, owners = comm.split(comm.rank // model, comm.rank), comm.split(comm.rank % model, comm.rank)
    samples = batch // (comm.size // model)

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
