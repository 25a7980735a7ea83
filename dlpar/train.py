"""Program of every rank: the training loop.

The loop does not depend on the split, scheme, carrier or world.  The ranks of a replica compute the
gradient of its share of the batch (:mod:`dlpar.split`).  The scheme makes the replicas agree
(:mod:`dlpar.sync`), and each rank writes one record.
"""

from __future__ import annotations

import torch

from dlpar import models
from dlpar.comm import Comm, Keeper, Recorder
from dlpar.config.experiment import Experiment
from dlpar.data import Dataset, load
from dlpar.data.sampler import Sampler
from dlpar.delays import Delays
from dlpar.split import make_split
from dlpar.split.mesh import placed
from dlpar.split.split import Split, Task
from dlpar.split.tensor_ops import synchronise_batchnorm
from dlpar.sync import scheme, server

EVALUATED = 2000
"""Number of held-out samples tested during a run. The final test uses all held-out samples."""


def train(
    comm: Comm, experiment: Experiment, record: Recorder, keeper: Keeper | None = None
) -> torch.nn.Module:
    """Train this rank's part of a replica.

    Returns
    -------
    torch.nn.Module
        The network that this rank built, or what its split has left of it. With a data split up to ZeRO 2, or a
        spatial split without tiles, this is the trained network. Other splits move layers, or train copies.
    """
    keeper = keeper or Keeper()
    # 1. The seed gives every rank the same data, model and batches.
    seed, dtype, key = experiment.seed, getattr(torch, experiment.dtype), experiment.to_json()
    once, read = comm.world.once, lambda: load(experiment.data, seed, dtype, experiment.model.name)
    dataset = once(f"data of {key}", read).to(comm.device)
    replicas, size = experiment.of_replicas(), len(dataset.train_x)
    sampler = once(f"batches of {key}", lambda: Sampler(replicas, dataset.train_y, size, comm.device))
    model = comm.world.build(lambda: models.build(experiment, dataset, draws=comm.world.computes))
    if experiment.model.norm == "sync_batch":
        synchronise_batchnorm(model, comm)

    # 2. This rank's replica and its part of it, and the scheme that keeps replicas in agreement.
    place = placed(experiment, comm)
    task = Task(experiment, comm, place, model, dataset, sampler, record)
    part = make_split(task)
    keeper.hold(part=part)
    sync = scheme(experiment.of_replicas(), place.dp_group, part.replica)
    own, done = keeper.own, keeper.done
    delays = Delays(experiment, comm, record, done)
    held_out = HeldOut(comm, experiment, part, dataset, record)
    if sync.chosen and not keeper.resumed:  # a resumed run keeps its choice
        record.event("chosen", **sync.chosen)
    keeper.hold(sync=sync, delays=delays, held_out=held_out)
    part.rest = sync.rest()
    if keeper.resumed:
        part.resume(own)
        sync.resume(own, done)

    for step in sync.steps():
        # 3. The gradient of this replica's slice of the global batch.  The sum over replicas is the whole
        # gradient.
        comm.world.new_step(step)
        began = delays.clock()
        with task.memory.watch(step, part.replica, sync.state_bytes):
            part.gradient(step)
        delays.after(step, began, done)

        # 4. Agree with the other replicas, then update the weights.  A GPU's graph may have done both.
        if not part.updated:
            with record.span("communicate"):
                sync.combine()
            with record.span("update"):
                sync.update()
            sync.spread(record.span)

        # 5. Record what happened.  The loss of a GPU is read one step late, when it is available.
        facts = {**comm.traffic.take(), **sync.facts(), **part.facts(), **task.memory.facts()}
        record.step(step, loss=part.loss, samples=part.samples, **facts)
        own = step + 1
        done = sync.done(own)
        held_out.test(done)
        keeper.after(own, done)

    done = sync.done(own)
    held_out.test(done, at_end=True)
    keeper.after(own, done, at_end=True)
    record.end(own)
    return model


class HeldOut:
    """Test of the first replica's model on held-out samples, at intervals and at the end.

    Parameters
    ----------
    comm, experiment, part, dataset, record
        As in :func:`train`.  All ranks with a part of the first replica's model take part.
    """

    kept = ("tested",)

    def __init__(
        self, comm: Comm, experiment: Experiment, part: Split, dataset: Dataset, record: Recorder
    ) -> None:
        self.comm, self.experiment, self.part, self.record = comm, experiment, part, record
        self.dataset, self.tested = dataset, 0
        self.wanted = experiment.evaluate_every != 0 and (part.task.place.replica == 0 or part.whole_on_all)

    def test(self, done: int, at_end: bool = False) -> None:
        """Test the model if a test is due after `done` global steps.

        Tests use some samples, and the test at the end uses all.
        """
        interval = self.experiment.evaluate_every or max(1, self.experiment.steps // 20)
        due = at_end or (self.tested < done // interval and done < self.experiment.steps)
        self.tested = done // interval
        if not (self.wanted and due):
            return
        model = self.part.whole()
        if model is not None:
            limit = None if at_end else EVALUATED
            self.comm.compute(lambda: evaluate(model, self.dataset, done, self.record, limit))
            if not at_end:
                self.part.release()


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, dataset: Dataset, done: int, record: Recorder, limit: int | None = None
) -> None:
    """Test `model` on held-out samples (the first `limit`). Record accuracy and loss."""
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


def role(experiment: Experiment, rank: int) -> str:
    """Return the role of a rank: ``worker``, ``server``, ``leaf`` or ``spare``."""
    if rank < experiment.workers:
        return "worker"
    if rank >= experiment.members:
        return "spare"
    return "server" if rank < experiment.workers + experiment.sync.server_ranks else "leaf"


def serve(comm: Comm, experiment: Experiment, record: Recorder, keeper: Keeper | None = None) -> None:
    """Run a rank that is not a worker as a parameter server for its part of the model."""
    server.serve(placed(experiment, comm).dp_group, experiment.of_replicas(), record, keeper or Keeper())
