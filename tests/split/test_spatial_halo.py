"""A layer whose image lies on several ranks in pieces is the layer: same outputs and gradients, and only halos sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import LINK, MS, cluster, run
from torch import nn

from dlpar.split.mesh import Mesh
from dlpar.split.spatial import Cut, Window, Windowed, index, most, windows
from dlpar.theory.layers import halo
from dlpar.worlds.platforms import Device

GRIDS = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (1, 4), (2, 2)]


def settled(layer: nn.Module) -> nn.Module:
    """The layer in float64, with weights that are the same each time and gradients of zero."""
    layer = layer.double()
    for number, p in enumerate(layer.parameters()):
        p.data = torch.linspace(-1, 2, p.numel(), dtype=torch.float64).sin().view_as(p) + number
        p.grad = torch.zeros_like(p)
    return layer


def of_image(x: torch.Tensor) -> tuple[range, range]:
    return range(x.shape[2]), range(x.shape[3])


def in_pieces(make, x, of_output, rows, columns):
    """Of every rank: place of the output, output, place of the input, its gradient, weights' gradients, traffic."""

    def program(comm):
        layer = settled(make())
        part = Windowed(layer, Mesh(comm, {"rows": rows, "columns": columns}), *x.shape[2:])
        piece = x[index(part.owned, of_image(x))].clone().requires_grad_()
        output = part(piece)
        forward = comm.traffic.take()
        output.backward(of_output[index(part.outputs, of_image(of_output))])
        output, gradient = output.detach(), piece.grad
        weights = [p.grad for p in layer.parameters()]
        return part.outputs, output, part.owned, gradient, weights, forward, comm.traffic.take()

    return run(program, rows * columns)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item() if a.numel() else 0.0


def check_against_whole_images(make, x, rows, columns):
    layer, whole = settled(make()), x.clone().requires_grad_()
    output = layer(whole)
    of_output = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).sin().view_as(output)
    output.backward(of_output)
    ranks = in_pieces(make, x, of_output, rows, columns)
    for outputs, piece, owned, gradient, *_ in ranks:
        assert apart(piece, output.detach()[index(outputs, of_image(output))]) < 1e-12 * max(
            1, output.abs().max()
        )
        assert apart(gradient, whole.grad[index(owned, of_image(x))]) < 1e-12 * max(1, whole.grad.abs().max())
    for p, *shares in zip(layer.parameters(), *(weights for *_, weights, _, _ in ranks)):
        assert apart(sum(shares), p.grad) < 1e-12 * max(1, p.grad.abs().max())


@st.composite
def layers(draw):
    """A layer's maker; kernel, stride and padding differ along the two axes."""
    pair = lambda least, most: (draw(st.integers(least, most)), draw(st.integers(least, most)))
    kernel, stride, kind = pair(1, 5), pair(1, 3), draw(st.sampled_from(["conv", "max", "avg"]))
    if kind == "conv":
        padding, dilation, bias = pair(0, 3), pair(1, 2), draw(st.booleans())
        return lambda: nn.Conv2d(2, 3, kernel, stride, padding, dilation, bias=bias)
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    if kind == "max":
        return lambda: nn.MaxPool2d(kernel, stride, padding)
    return lambda: nn.AvgPool2d(kernel, stride, padding)


@settings(max_examples=100, deadline=None)
@given(make=layers(), height=st.integers(3, 14), width=st.integers(3, 14), grid=st.sampled_from(GRIDS))
@pytest.mark.slow
def test_any_layer_of_any_image_is_the_same_in_pieces_or_says_which_pieces_are_too_small(
    make, height, width, grid
):
    axes = list(zip(windows(make()), (height, width), grid))
    if any(window.outputs(size) == 0 for window, size, _ in axes):
        return  # torch has no output there either
    x = torch.linspace(0, 40, 2 * 2 * height * width, dtype=torch.float64).sin().view(2, 2, height, width)
    wrong = next((pieces for window, size, pieces in axes if not fits(window, size, pieces)), None)
    if wrong is None:
        check_against_whole_images(make, x, *grid)
    else:
        with pytest.raises(ValueError, match=f"^pieces: got {wrong} of .* is at most"):
            in_pieces(make, x, None, *grid)


def fits(window: Window, size: int, pieces: int) -> bool:
    """Whether every output of every piece reads only that piece and the next ones, by looking at each single input."""
    owner = [place for place, part in enumerate(np.array_split(range(size), pieces)) for _ in part]
    parts = np.array_split(range(window.outputs(size)), pieces)
    if pieces > size or not all(map(len, parts)):
        return False
    reach = window.dilation * (window.kernel - 1)
    for place, part in enumerate(parts):
        first, last = (output * window.stride - window.padding for output in (part[0], part[-1]))
        if any(abs(owner[i] - place) > 1 for i in range(max(first, 0), min(last + reach + 1, size))):
            return False
    return True


def test_the_most_pieces_are_those_of_which_every_smaller_number_fits():
    assert most(Window(3, padding=1), 8) == 8
    assert most(Window(5, padding=2), 8) == 4  # a halo of two rows needs pieces of two
    assert most(Window(2, stride=2), 8) == 4
    sentence = "got 5 of 8, allowed with kernel 5, stride 1, padding 2 and dilation 1 is at most 4"
    with pytest.raises(ValueError, match=sentence):
        Cut(Window(5, padding=2), 8, 5, 0)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(2), nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(2, 2, 3, padding="same")]
)
def test_a_layer_that_pieces_cannot_compute_is_refused(layer):
    with pytest.raises(ValueError, match="^layer: got .* allowed is Conv2d, MaxPool2d or AvgPool2d"):
        run(lambda comm: Windowed(layer, Mesh(comm, {"rows": 1, "columns": 1}), 8, 8), 1)


@pytest.mark.parametrize("radius", [1, 2])
@pytest.mark.parametrize("grid", [(3, 3), (2, 2), (4, 1), (1, 3)])
def test_bytes_and_messages_of_a_halo_are_the_closed_form_in_both_directions(grid, radius):
    samples, channels, height, width = 2, 3, 13, 12  # 13 rows are 5, 4 and 4
    x = torch.ones(samples, channels, height, width, dtype=torch.float64)
    make = lambda: nn.Conv2d(channels, channels, 2 * radius + 1, padding=radius)
    rows, columns = grid
    for rank, (_, _, owned, _, _, forward, backward) in enumerate(in_pieces(make, x, x, *grid)):
        row, column = divmod(rank, columns)
        h, w = map(len, owned)
        vertical, horizontal = (row > 0) + (row < rows - 1), (column > 0) + (column < columns - 1)
        sent = halo(samples, channels, h, w, radius, vertical, horizontal)
        assert forward == backward == {"bytes": 8 * sent.elements, "messages": sent.messages}
        if vertical == horizontal == 2:
            assert sent.elements == samples * channels * (2 * radius * (h + w) + 4 * radius**2)
            assert sent.messages == 8


def seconds(flops: float, gradient: bool) -> float:
    """Of a 3 × 3 convolution of two ranks' 8 × 8 image, forward or backward, on a device of so many FLOP/s."""
    x = torch.ones(1, 1, 8, 8, dtype=torch.float64)

    def program(comm):
        part = Windowed(settled(nn.Conv2d(1, 1, 3, padding=1)), Mesh(comm, {"rows": 2, "columns": 1}), 8, 8)
        output, began = part(x[index(part.owned, of_image(x))].clone().requires_grad_()), comm.now()
        if gradient:
            output.backward(torch.ones_like(output))
        return comm.now() - (began if gradient else 0.0)

    return max(run(program, 2, cluster(device=Device(name="of the test", flops=flops))))


@pytest.mark.parametrize("gradient", [False, True])
def test_a_halo_travels_while_the_interior_is_computed(gradient):
    row = 2 * 9 * 8 * (1 + gradient)  # FLOPs; of a piece's 4 rows, 3 need no halo
    halo_s = LINK.latency + 8 * 8 / LINK.bandwidth  # a row of 8 numbers
    for flops in (row / (1 * MS), row / (0.1 * MS)):  # the interior takes longer than the halo, and does not
        interior, border = 3 * row / flops, row / flops
        assert seconds(flops, gradient) == pytest.approx(max(interior, halo_s) + border, rel=1e-9)
        hidden = interior + border + halo_s - seconds(flops, gradient)
        assert hidden == pytest.approx(min(interior, halo_s), rel=1e-9)
