"""Deep stacking: blocks learn separately from the input and the outputs of earlier blocks.

Source: Deng, Yu and Platt, "Scalable stacking and learning for building deep architectures" (ICASSP 2012).
Outputs go forward, and nothing comes back.  So a block is never idle after its first inputs have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dlpar import models
from dlpar.comm import Request, wait_all
from dlpar.data import Dataset
from dlpar.split.split import Split, Task


class Stack(nn.Module):
    """Stack of blocks. Its output is the last block's.

    Parameters
    ----------
    blocks : sequence of nn.Module
        Block k takes ``features + k · outputs`` numbers.
    task : str
        The data's task: class scores are passed on as probabilities, and values unchanged.
    """

    def __init__(self, blocks: Sequence[nn.Module], task: str) -> None:
        super().__init__()
        self.blocks, self.task = nn.ModuleList(blocks), task

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            output = block(x)
            x = torch.cat([x, passed_on(output, self.task)], dim=1)
        return output


def passed_on(output: Tensor, task: str) -> Tensor:
    """Return a block's output in the form that later blocks see. It has the same shape and no gradient."""
    return output.detach().softmax(dim=1) if task == "classification" else output.detach()


class StackingSplit(Split):
    """Split that gives each rank a block of a replica's stack.

    Notes
    -----
    Each block minimises its own loss. The loss of the last block is the replica's. For its share of a batch,
    block k receives the outputs of the k earlier blocks: ``samples · k · outputs`` numbers.
    """

    def __init__(self, task: Task) -> None:
        self.group = task.place.mp_group
        self.number, self.blocks = self.group.rank, self.group.size
        super().__init__(task)
        self.speaks = self.number == self.blocks - 1
        self.sending: list[Request] = []
        self.flops = models.flops_per_sample(self.replica.model, _seen_by(self.number, task.dataset))

    def cut(self, model: nn.Sequential) -> nn.Module:
        return block_of(self.number, self.task).to(self.comm.device)

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        data = self.task.dataset
        seen = x.new_empty(len(x), self.number * data.classes)
        if self.number:
            with self.pause():
                self.group.recv(seen.view(-1), self.number - 1, tag=0)
        wait_all(self.sending)
        inputs = torch.cat([x, seen], dim=1)
        output = self.comm.compute(lambda: self.replica.model(inputs), cost=self.flops * len(y) / 3)
        if self.number + 1 < self.blocks:
            outputs = torch.cat([seen, passed_on(output, data.task)], dim=1)
            self.sending.append(self.group.isend(outputs.view(-1), self.number + 1))
        return self.task.criterion(output, y)

    def whole(self) -> nn.Module | None:
        wait_all(self.sending)  # no message is left behind at the end
        own = block_of(self.number, self.task)  # on the CPU, and not within the flat vectors
        own.load_state_dict(self.replica.model.state_dict())
        blocks = self.group.gather(own)
        return None if blocks is None else Stack(blocks, self.task.dataset.task).to(self.comm.device)


def _seen_by(number: int, dataset: Dataset) -> Dataset:
    """Return the data set with the features that a block sees, and a single training sample of zeros.

    The features include the outputs of earlier blocks.
    """
    return replace(dataset, train_x=dataset.train_x.new_zeros(1, dataset.shape[0] + number * dataset.classes))


def block_of(number: int, task: Task) -> nn.Sequential:
    """Build a block on the CPU with its own initial weights."""
    seed = (task.experiment.seed + number) % 2**31
    return models.build(task.experiment.replace(seed=seed), _seen_by(number, task.dataset))
