"""What every rank runs: the training loop of data parallelism, top to bottom.

The loop does not know which scheme, carrier or world it is in.  Each rank
computes the gradient of its share of the batch, the scheme makes the replicas
agree, and one line of record is written.
"""

from __future__ import annotations

import torch

from dlpar import models
from dlpar.comm import Comm
from dlpar.data import Dataset, load
from dlpar.delays import Delays
from dlpar.experiment import Experiment
from dlpar.record import Recorder
from dlpar.sampling import Sampler
from dlpar.split.batchnorm import synchronise_batchnorm
from dlpar.split.data import Replica
from dlpar.sync import scheme

EVALUATED = 2000
"""Held-out samples tested during a run; at its end all are."""


def train(comm: Comm, experiment: Experiment, record: Recorder) -> torch.nn.Module:
    """Train one replica on this rank; returns its model, in the same state on every rank."""
    # 1. On every rank the same data, model and batches: all follow from the seed.
    seed, dtype = experiment.seed, getattr(torch, experiment.dtype)
    dataset = comm.once("data", lambda: load(experiment.data, seed, dtype, experiment.model.name).to(comm.device))
    sampler = comm.once("batches", lambda: Sampler(experiment, dataset.train_y, len(dataset.train_x)))
    model = comm.build(
        lambda: models.build(experiment, dataset).to(comm.device), outline=lambda: models.outline(experiment, dataset)
    )
    if experiment.model.norm == "sync_batch":
        synchronise_batchnorm(model, comm)
    criterion = models.loss(dataset.task)
    flops = models.flops_per_sample(model, dataset)

    # 2. This rank's copy of the weights, and how the copies are kept in agreement.
    replica = Replica(model, comm)
    sync = scheme(experiment, comm, replica)
    delays = Delays(experiment, comm, record)
    own = done = tested = 0

    for step in sync.steps():
        # 3. This rank's slice of the global batch.
        comm.new_step(step)
        x, y = dataset.batch(sampler.indices(step, comm.rank))
        samples, began = len(y), comm.now()
        share = samples / experiment.global_batch

        # 4. Its part of the global gradient: what `share` weighs adds up over the ranks.
        with record.span("forward"):
            replica.zero_gradient()
            loss = comm.compute(lambda: criterion(model(x), y), cost=flops * samples / 3)
        with record.span("backward"):
            comm.compute((loss * share).backward, cost=flops * samples * 2 / 3, marks=replica.marks)
        replica.loss, replica.samples = loss.item(), samples
        delays.after(step, began, done)

        # 5. Agree with the other replicas, then move the weights.
        with record.span("communicate"):
            sync.combine()
        with record.span("update"):
            sync.update()

        # 6. Write down what happened.
        facts = {**comm.traffic.take(), **sync.facts()}
        record.step(step, loss=replica.loss, samples=samples, **facts)
        own += 1
        done = sync.done(own)
        if comm.rank == 0 and tested < done // experiment.evaluation_interval and done < experiment.steps:
            tested = done // experiment.evaluation_interval
            comm.compute(lambda: evaluate(model, dataset, done, record, limit=EVALUATED))

    if comm.rank == 0:
        comm.compute(lambda: evaluate(model, dataset, sync.done(own), record))
    record.end(own)
    return model


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, dataset: Dataset, done: int, record: Recorder, limit: int | None = None
) -> None:
    """Test `model` on (the first `limit`) held-out samples and record accuracy and loss."""
    criterion, score = models.loss(dataset.task), models.score(dataset.task)
    model.eval()
    losses, correct, seen = 0.0, 0.0, 0
    with record.span("evaluate"):
        for x, y in zip(dataset.test_x[:limit].split(500), dataset.test_y[:limit].split(500)):
            output = model(x)
            losses += criterion(output, y).item() * len(y)
            correct += score(output, y).float().mean().item() * len(y) if score else 0.0
            seen += len(y)
    model.train()
    record.evaluation(done, accuracy=correct / seen if score else None, loss=losses / seen, samples=seen)
