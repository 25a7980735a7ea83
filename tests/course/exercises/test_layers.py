"""The exercise of lab 08: two layers cut over ranks."""

from __future__ import annotations

import pytest
import torch

from dlpar.collectives import ring_allreduce
from dlpar.lab import check_layers

pytestmark = pytest.mark.slow

HINTS = ["first hint", "second hint"]


def perceptron(comm, x, up, down, of_y):
    hidden = torch.relu(x @ up.T)
    y = hidden @ down.T
    ring_allreduce(comm, y.view(-1))
    of_hidden = of_y @ down * (hidden > 0)
    of_x = of_hidden @ up
    ring_allreduce(comm, of_x.view(-1))
    return y, of_x, of_hidden.T @ x, of_y.T @ hidden


def test_one_not_written_yet_is_to_do():
    def perceptron(comm, x, up, down, of_y):
        raise NotImplementedError

    assert check_layers(perceptron, workers=[2]).status == "to do"


def test_one_without_the_backward_all_reduce_names_the_first_number_that_differs():
    def adds_nothing_up(comm, x, up, down, of_y):
        hidden = torch.relu(x @ up.T)
        y = hidden @ down.T
        ring_allreduce(comm, y.view(-1))
        of_hidden = of_y @ down * (hidden > 0)
        return y, of_hidden @ up, of_hidden.T @ x, of_y.T @ hidden

    verdict = check_layers(adds_nothing_up, workers=[2], hints=HINTS)
    assert verdict.status == "not yet" and verdict.hints == HINTS[:1]
    assert verdict.sentence.startswith("With 2 simulated ranks, on rank 0: of_x, value (0, 0) is")


def test_one_that_sends_the_hidden_layer_as_well_is_told_so():
    def gathers(comm, x, up, down, of_y):
        whole = torch.zeros(len(x), 12, dtype=x.dtype)
        whole.tensor_split(comm.size, 1)[comm.rank].copy_(torch.relu(x @ up.T))
        ring_allreduce(comm, whole.view(-1))
        return perceptron(comm, x, up, down, of_y)

    verdict = check_layers(gathers, workers=[2])
    assert "the result is right, but the ranks send 12 messages and 1680 bytes together" in verdict.sentence


def test_one_that_returns_too_little_is_told_what_is_wanted():
    assert "returns no tuple of y, of_x" in check_layers(lambda comm, *given: given[0], workers=[2]).sentence
