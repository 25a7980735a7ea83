"""The architectures of the workloads, walked through layer by layer: what their tables must say.

A layer's parameters and multiply-adds follow from the shapes in the paper that introduced it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Row = tuple[str, int, int] | tuple[str, int, int, int]
"""A layer: its name, its parameters, its multiply-adds a sample forward; of a transformer its output as well."""

Image = tuple[int, int, int]
"""Channels, height, width."""


class Convolutional:
    """Layers in the order of the forward pass, as an image goes through them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def conv(
        self,
        name: str,
        image: Image,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: int | None = None,
        groups: int = 1,
        norm: bool = True,
    ) -> Image:
        """A convolution, padded to keep the size unless told otherwise; with batch normalisation, else with a bias."""
        high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (high // 2, wide // 2) if pad is None else (pad, pad)
        height, width = _slid(image, (high, wide), stride, padding)
        weights = channels * (image[0] // groups) * high * wide
        self.rows.append((name, weights + channels * (2 if norm else 1), weights * height * width))
        return channels, height, width

    def dense(self, name: str, inputs: int, outputs: int) -> int:
        """A fully connected layer with a bias."""
        self.rows.append((name, inputs * outputs + outputs, inputs * outputs))
        return outputs


def pooled(image: Image, kernel: int = 3, stride: int = 2, pad: int = 0) -> Image:
    """The image after pooling."""
    return image[0], *_slid(image, (kernel, kernel), stride, (pad, pad))


def _slid(image: Image, kernel: tuple[int, int], stride: int, pad: tuple[int, int]) -> tuple[int, int]:
    """Height and width that a sliding window leaves."""
    height, width = ((image[1 + i] + 2 * pad[i] - kernel[i]) // stride + 1 for i in (0, 1))
    return height, width


def alexnet() -> list[Row]:
    """Krizhevsky 2012, figure 2: two groups, as it was trained on two GPUs."""
    net = Convolutional()
    first = pooled(net.conv("conv1", (3, 227, 227), 96, 11, stride=4, pad=0, norm=False))
    second = pooled(net.conv("conv2", first, 256, 5, groups=2, norm=False))
    third = net.conv("conv3", second, 384, 3, norm=False)
    fourth = net.conv("conv4", third, 384, 3, groups=2, norm=False)
    fifth = pooled(net.conv("conv5", fourth, 256, 3, groups=2, norm=False))
    hidden = net.dense("fc7", net.dense("fc6", math.prod(fifth), 4096), 4096)
    outputs = [
        *map(math.prod, (first, second, third, fourth, fifth)),
        hidden,
        hidden,
        net.dense("fc8", hidden, 1000),
    ]
    return [(*row, each) for row, each in zip(net.rows, outputs, strict=True)]


def vgg16() -> list[Row]:
    """Simonyan and Zisserman 2014, table 1, column D."""
    net, x = Convolutional(), (3, 224, 224)
    for block, (channels, convolutions) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], 1):
        for number in range(1, convolutions + 1):
            x = net.conv(f"conv{block}_{number}", x, channels, 3, norm=False)
        x = pooled(x, kernel=2)
    hidden = net.dense("fc7", net.dense("fc6", x[0] * x[1] * x[2], 4096), 4096)
    net.dense("fc8", hidden, 1000)
    return net.rows


def googlenet() -> list[Row]:
    """Szegedy et al. 2014, table 1, as in the reference code, with biases and without the auxiliary heads."""
    net = Convolutional()
    x = pooled(net.conv("conv1", (3, 224, 224), 64, 7, stride=2, norm=False), pad=1)
    x = net.conv("conv2.3x3", net.conv("conv2.1x1", x, 64, 1, norm=False), 192, 3, norm=False)
    x = pooled(x, pad=1)
    modules = {
        "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64), "4a": (192, 96, 208, 16, 48, 64),
        "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
        "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
    }  # fmt: skip
    for name, (one, before3, three, before5, five, pool) in modules.items():
        net.conv(f"{name}.1x1", x, one, 1, norm=False)
        net.conv(f"{name}.3x3", net.conv(f"{name}.3x3.1", x, before3, 1, norm=False), three, 3, norm=False)
        net.conv(f"{name}.5x5", net.conv(f"{name}.5x5.1", x, before5, 1, norm=False), five, 5, norm=False)
        net.conv(f"{name}.pool", x, pool, 1, norm=False)
        x = (one + three + five + pool, *x[1:])
        x = pooled(x, pad=1) if name in ("3b", "4e") else x
    net.dense("fc", x[0], 1000)
    return net.rows


def resnet(*blocks: int) -> list[Row]:
    """He et al. 2015, table 1: bottleneck blocks; the first of a stage halves the image in its first convolution."""
    net = Convolutional()
    x = pooled(net.conv("conv1", (3, 224, 224), 64, 7, stride=2), pad=1)
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), blocks), 2):
        for block in range(1, count + 1):
            name, stride = f"conv{stage}_{block}", 2 if block == 1 and stage > 2 else 1
            if block == 1:
                net.conv(f"{name}.shortcut", x, 4 * width, 1, stride)
            x = net.conv(f"{name}.1", x, width, 1, stride)
            x = net.conv(f"{name}.2", x, width, 3)
            x = net.conv(f"{name}.3", x, 4 * width, 1)
    net.dense("fc", x[0], 1000)
    return net.rows


def inception3() -> list[Row]:
    """Szegedy et al. 2015, table 1, as in the reference code (mixed_5b to mixed_7c), without the auxiliary head."""
    net = Convolutional()
    x = net.conv("conv_1a", (3, 299, 299), 32, 3, stride=2, pad=0)
    x = pooled(net.conv("conv_2b", net.conv("conv_2a", x, 32, 3, pad=0), 64, 3))
    x = pooled(net.conv("conv_4a", net.conv("conv_3b", x, 80, 1), 192, 3, pad=0))

    def branch(name: str, *convolutions: tuple, halving: bool = False) -> int:
        """Convolutions one after the other, from the block's input; channels of the last, which may halve the image."""
        image = x
        for number, (channels, kernel) in enumerate(convolutions, 1):
            last = halving and number == len(convolutions)
            image = net.conv(f"{name}.{number}", image, channels, kernel, *((2, 0) if last else ()))
        return image[0]

    def beside(name: str) -> int:
        """A 3 x 1 convolution beside the 1 x 3 one that ends a branch: both read the same 384 channels."""
        return net.conv(f"{name}.beside", (384, *x[1:]), 384, (3, 1))[0]

    for m, pool in (("5b", 32), ("5c", 64), ("5d", 64)):
        channels = branch(f"{m}.1x1", (64, 1)) + branch(f"{m}.5x5", (48, 1), (64, 5))
        channels += branch(f"{m}.double", (64, 1), (96, 3), (96, 3)) + branch(f"{m}.pool", (pool, 1))
        x = (channels, *x[1:])
    channels = branch("6a.3x3", (384, 3), halving=True) + branch(
        "6a.double", (64, 1), (96, 3), (96, 3), halving=True
    )
    x = (channels + x[0], *pooled(x)[1:])
    for m, c in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        channels = branch(f"{m}.1x1", (192, 1)) + branch(f"{m}.7x7", (c, 1), (c, (1, 7)), (192, (7, 1)))
        channels += branch(f"{m}.double", (c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7)))
        x = (channels + branch(f"{m}.pool", (192, 1)), *x[1:])
    channels = branch("7a.3x3", (192, 1), (320, 3), halving=True)
    channels += branch("7a.7x7", (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), halving=True)
    x = (channels + x[0], *pooled(x)[1:])
    for m in ("7b", "7c"):
        channels = branch(f"{m}.1x1", (320, 1))
        channels += branch(f"{m}.3x3", (384, 1), (384, (1, 3))) + beside(f"{m}.3x3")
        channels += branch(f"{m}.double", (448, 1), (384, 3), (384, (1, 3))) + beside(f"{m}.double")
        x = (channels + branch(f"{m}.pool", (192, 1)), *x[1:])
    net.dense("fc", x[0], 1000)
    return net.rows


def blocks(depth: int, width: int, tokens: int) -> list[Row]:
    """Transformer blocks (Vaswani et al. 2017): attention and a hidden layer of 4 widths, each with normalisation."""
    attention = 4 * (width**2 + width) + 2 * width, tokens * 4 * width**2 + 2 * tokens**2 * width
    hidden = 8 * width**2 + 5 * width + 2 * width, tokens * 8 * width**2
    given = tokens * width
    return [
        row
        for block in range(1, depth + 1)
        for row in ((f"block{block}.attention", *attention, given), (f"block{block}.hidden", *hidden, given))
    ]


def bert_large() -> list[Row]:
    """Devlin et al. 2018, section 3: the encoder with its pooler, without the heads of a task; 512 tokens a sample."""
    width, tokens = 1024, 512
    words = 30522 + tokens + 2  # positions and segments among them; normalisation is added
    embed = ("embed", words * width + 2 * width, 0, tokens * width)
    return [embed, *blocks(24, width, tokens), ("pooler", width**2 + width, width**2, width)]


def gpt2(depth: int, width: int) -> list[Row]:
    """Radford et al. 2019, section 2.3; 1,024 tokens a sample.

    The output reads the embedding's weights, so their gradient is complete only when the embedding's own is.
    """
    vocabulary, tokens = 50257, 1024
    embed, norm = (
        ("embed", (vocabulary + tokens) * width, 0, tokens * width),
        ("norm", 2 * width, 0, tokens * width),
    )
    output = ("output", 0, tokens * width * vocabulary, tokens * vocabulary)
    return [embed, *blocks(depth, width, tokens), norm, output]


ARCHITECTURES: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "alexnet": ("Krizhevsky, Sutskever and Hinton, NIPS 2012", alexnet),
    "vgg16": ("Simonyan and Zisserman, arXiv 1409.1556", vgg16),
    "googlenet": ("Szegedy et al., arXiv 1409.4842", googlenet),
    "inception3": ("Szegedy et al., arXiv 1512.00567", inception3),
    "resnet50": ("He et al., arXiv 1512.03385", lambda: resnet(3, 4, 6, 3)),
    "resnet101": ("He et al., arXiv 1512.03385", lambda: resnet(3, 4, 23, 3)),
    "resnet152": ("He et al., arXiv 1512.03385", lambda: resnet(3, 8, 36, 3)),
    "bert-large": ("Devlin et al., arXiv 1810.04805", bert_large),
    "gpt2": ("Radford et al. 2019, the smallest of table 2", lambda: gpt2(12, 768)),
    "gpt2-xl": ("Radford et al. 2019, the largest of table 2", lambda: gpt2(48, 1600)),
}
"""Each workload's source and layers in the order of the forward pass."""
