"""CaffeOnSpark's second half: a trained network extracts features, and a classifier learns from them.

The classifier works as in MLlib.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dlpar.collectives import tree_aggregate, tree_broadcast
from dlpar.comm import Comm, Recorder
from dlpar.config.experiment import Experiment
from dlpar.data import load
from dlpar.systems.words import direction
from dlpar.train import train

DEVICES = {"scheme": "ring", "allreduce": "hierarchical", "node_size": 2}
"""All-reduce in which executors sum over their two devices, then with each other."""


def classify(comm: Comm, rows: Tensor, labels: Tensor, steps: int = 300, lr: float = 1.0) -> Tensor:
    """Train softmax regression by map-reduce on this rank's rows.

    Every rank gets the weights, shape (columns, 10).

    Each rank maps its rows to the sum of their gradients. A tree aggregates sums and counts at the driver,
    rank 0, which updates and broadcasts.
    """
    weights = torch.zeros(rows.shape[1], 10, dtype=rows.dtype)
    sums = torch.empty(weights.numel() + 1, dtype=rows.dtype)
    for _ in range(steps):
        sums[:-1], sums[-1] = direction(rows, labels, weights, 1).view(-1), len(rows)
        tree_aggregate(comm, sums)
        if comm.rank == 0:
            weights.view(-1).sub_(sums[:-1], alpha=lr / sums[-1].item())
        tree_broadcast(comm, weights.view(-1))
    return weights


def extract_and_classify(comm: Comm) -> list[float]:
    """Train a network on all ranks, then classify with its features and with pixels.

    Return the shares of held-out digits that each of the three classifies correctly.  The features come from the
    network's last hidden layer.
    """
    training = dict(model={"width": 16}, steps=150, lr=0.2, dtype="float64", evaluate_every=1000)
    experiment = Experiment(workers=comm.size, sync=DEVICES, **training)
    network = train(comm, experiment, Recorder()).eval()
    data = load(experiment.data, experiment.seed, torch.float64)
    own = slice(comm.rank, None, comm.size)

    def right(scores: Tensor) -> float:
        return (scores.argmax(dim=1) == data.test_y).double().mean().item()

    with torch.no_grad():
        hidden = network[:-1]
        on_features = classify(comm, hidden(data.train_x[own]), data.train_y[own], lr=0.1)
        on_pixels = classify(comm, data.train_x[own], data.train_y[own], lr=0.1)
        scores = network(data.test_x), hidden(data.test_x) @ on_features, data.test_x @ on_pixels
        return [*map(right, scores)]
