"""Networks. Each is a flat list of named layers that pipelines and tensor splits can cut."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dlpar.config.generator import generator

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment, Model
    from dlpar.data import Dataset, Task

SQUARED_LENGTH = 8
"""Approximate squared length of the last hidden output at the start of a regression. See :func:`build`."""


def build(experiment: Experiment, dataset: Dataset, draws: bool = True) -> nn.Sequential:
    """Build the network of an experiment and initialise its weights.

    Weights are normal, with variance 2 / inputs before a ReLU or GELU (He et al., arXiv 1502.01852), and 1 /
    inputs otherwise (LeCun et al. 1998).  Biases are zero.  Embeddings have standard deviation 0.02, and the
    outputs of a transformer block's two parts are divided by sqrt(2 depth) (both Radford et al. 2019).  In a
    regression the initial weights of an mlp's last two layers are scaled by sqrt(8 / width).  The curvature
    of a squared error grows with the squared length of the last hidden output.  From a value of 10, SGD at a
    learning rate of 0.1 may diverge.

    Each tensor has its own random stream, keyed by seed and name, so all ranks draw the same weights. Weights
    are drawn in float64 and rounded to float32 if needed.

    Parameters
    ----------
    experiment : Experiment
        Gives model, seed and dtype.
    dataset : Dataset
        Gives the shape of inputs and the number of outputs.
    draws : bool, default True
        Whether to draw the weights.  False saves time if only their sizes matter.

    Returns
    -------
    torch.nn.Sequential
        Named layers in the order of computation, on the CPU, in training mode. From (n, *dataset.shape) to
        (n, classes), for characters to (n, context, classes).
    """
    kinds = {"linear": _linear, "logistic": _linear, "mlp": _mlp, "cnn": _cnn, "transformer": _transformer}
    # Layers draw default weights when they are made, but the state of the global generator must not change.
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(OrderedDict(kinds[experiment.model.name](experiment.model, dataset)))
    if draws:
        _draw(model, experiment.seed, experiment.model, dataset.task)
    return model.to(getattr(torch, experiment.dtype))


def loss(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a task's loss function: mean squared error for regression, else mean cross-entropy in nats.

    Parameters
    ----------
    task : {"classification", "regression", "characters"}

    Returns
    -------
    callable
        Function from ``(output, target)`` to a scalar, the mean over samples and over each sample's
        predictions.
    """
    mean = {"classification": F.cross_entropy, "regression": F.mse_loss, "characters": _character_loss}[task]
    # The mean over no samples is NaN, but their sum is 0 and adds nothing to the gradient.
    return lambda output, target: mean(output, target) if target.numel() else output.sum()


def score(task: Task) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the function that scores each sample's prediction when the accuracy is computed.

    Parameters
    ----------
    task : {"classification", "regression", "characters"}

    Returns
    -------
    callable or None
        Function from ``(output, target)`` to float32 of shape (n,): 1 if the largest output is the label; for
        characters, the share of positions where this holds.  None for regression, which has no accuracy.
    """
    if task == "regression":
        return None
    return lambda output, target: (output.argmax(-1) == target).float().reshape(len(target), -1).mean(1)


def flops_per_sample(model: nn.Module, dataset: Dataset) -> int:
    """Count the floating-point operations of one sample's forward and backward pass.

    Matrix products and convolutions count, with two operations per multiply-add.  The backward pass counts
    twice, because it computes two products for each forward product.  As usual, this also counts for the first layer,
    although nobody needs the gradient of its input. Each weight's own count is stored in its attribute ``flops``.

    Parameters
    ----------
    model : torch.nn.Module
        Not changed.
    dataset : Dataset
        One of its samples is passed through the model.
    """
    if hasattr(model, "flops"):  # an outline knows its FLOPs
        return model.flops
    return flops_of(model, dataset.train_x[:1].to(next(model.parameters()).device))


def flops_of(part: nn.Module, x: Tensor) -> int:
    """Count FLOPs as :func:`flops_per_sample` does, for a model or some layers.

    `x` is one sample's input.
    """
    forward = 0

    def count(module: nn.Module, given: object, output: Tensor) -> None:
        nonlocal forward
        # Two products between positions: the scores, and the weighted values.
        if isinstance(module, Attention):
            forward += 4 * output.numel() * output.shape[1]
        elif isinstance(module, (nn.Linear, nn.Conv2d, Tied)):
            module.weight.flops = 6 * output.numel() * module.weight[0].numel()
            forward += module.weight.flops // 3

    hooks = [module.register_forward_hook(count) for module in part.modules()]
    was_training = part.training
    try:
        with torch.no_grad():  # eval, because batch normalisation cannot train on one sample
            part.eval()(x)
    finally:
        part.train(was_training)
        for hook in hooks:
            hook.remove()
    return 3 * forward


def _character_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def _draw(network: nn.Sequential, seed: int, model: Model, task: Task) -> None:
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            if weight.dim() == 1:
                continue  # normalisation starts with ones and zeros
            stream = torch.Generator().manual_seed(int(generator(seed, name).integers(2**63)))
            values = torch.empty(weight.shape, dtype=torch.float64).normal_(generator=stream)
            weight.data = values * _deviation(name, weight[0].numel(), model, task)


def _deviation(name: str, inputs: int, model: Model, task: Task) -> float:
    """Return the standard deviation of a weight's initial values. It depends on the name of the layer."""
    layer = name.split(".")[-2]
    if layer in ("token", "position"):
        return 0.02
    if layer in ("merge", "down"):
        return math.sqrt(1 / inputs / (2 * model.depth))
    gain = 2 if layer.startswith(("linear", "conv", "up")) else 1
    if model.name == "mlp" and task == "regression" and layer in (f"linear{model.depth}", "output"):
        gain *= min(1.0, SQUARED_LENGTH / model.width)
    return math.sqrt(gain / inputs)


Layers = list[tuple[str, nn.Module]]


def _linear(model: Model, dataset: Dataset) -> Layers:
    """Build one linear layer, for least squares or for softmax regression. Only the loss differs."""
    return [("output", nn.Linear(dataset.shape[0], dataset.classes))]


def _mlp(model: Model, dataset: Dataset) -> Layers:
    layers: Layers = []
    inputs = dataset.shape[0]
    for i in range(1, model.depth + 1):
        layers.append((f"linear{i}", nn.Linear(inputs, model.width)))
        if model.norm != "none":
            layers.append((f"norm{i}", nn.BatchNorm1d(model.width)))
        layers.append((f"relu{i}", nn.ReLU()))
        inputs = model.width
    return [*layers, ("output", nn.Linear(inputs, dataset.classes))]


def _cnn(model: Model, dataset: Dataset) -> Layers:
    """Build 3 × 3 convolutions with width / 8 channels, at least 4. Images of width 8 or more are halved."""
    layers: Layers = []
    inputs, height, width = dataset.shape
    channels = model.channels
    for i in range(1, model.depth + 1):
        layers.append((f"conv{i}", nn.Conv2d(inputs, channels, kernel_size=3, padding=1)))
        if model.norm != "none":
            layers.append((f"norm{i}", nn.BatchNorm2d(channels)))
        layers.append((f"relu{i}", nn.ReLU()))
        if min(height, width) >= 8:
            layers.append((f"pool{i}", nn.MaxPool2d(2)))
            height, width = height // 2, width // 2
        inputs = channels
    output = nn.Linear(channels * height * width, dataset.classes)
    return [*layers, ("flatten", nn.Flatten()), ("output", output)]


def _transformer(model: Model, dataset: Dataset) -> Layers:
    """Build a decoder like GPT-2 (Radford et al. 2019).

    It has normalisation before each part, but no dropout.
    """
    embed = Embedding(dataset.classes, dataset.shape[0], model.width)
    blocks = [(f"block{i}", Block(model.width, model.heads)) for i in range(1, model.depth + 1)]
    norm, output = nn.LayerNorm(model.width), Tied(embed.token.weight)
    return [("embed", embed), *blocks, ("norm", norm), ("output", output)]


class Embedding(nn.Module):
    """Layer from characters (n, t) to vectors (n, t, width): the character's vector plus its position's."""

    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.token(x) + self.position.weight[: x.shape[1]]


class Tied(nn.Module):
    """Layer from vectors to scores of characters.

    It uses the embedding's weight (arXiv 1608.05859).
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Attention(nn.Module):
    """Causal self-attention (arXiv 1706.03762). Each position attends to itself and earlier positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # Three layers, not one: a tensor split cuts each by heads.
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.merge = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(self.read(self.query(x), self.key(x), self.value(x)))

    def read(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let each position attend to itself and to earlier positions.

        All tensors have shape (n, t, heads * size of a head).
        """
        # softmax(q kᵀ / sqrt(size of a head)) v, masked, in one kernel where the device has one.
        q, k, v = (self._by_head(part) for part in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def _by_head(self, x: Tensor) -> Tensor:
        """Reshape (n, t, width) to (n, heads, t, width / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Transformer block: attention and a two-layer network four times as wide, both with residual paths."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))
