"""The exercises of labs 07b and 08: a step of ZeRO stage 1, and two layers cut over ranks."""

from __future__ import annotations

import pytest
import torch

from dlpar.collectives import ring_allgather, ring_allreduce, ring_reduce_scatter
from dlpar.lab import check_layers, check_zero

pytestmark = pytest.mark.slow

HINTS = ["first hint", "second hint"]


def zero_step(comm, weights, gradient, velocity, lr, momentum):
    ring_reduce_scatter(comm, gradient)
    own = (comm.rank + 1) % comm.size
    velocity.mul_(momentum).add_(gradient[own])
    weights[own].sub_(lr * velocity)
    ring_allgather(comm, weights)


def test_chunks_may_be_changed_in_place_and_replaced_in_their_lists():
    def in_place(comm, weights, gradient, velocity, lr, momentum):
        own = (comm.rank + 1) % comm.size
        ring_reduce_scatter(comm, gradient)
        velocity *= momentum
        velocity += gradient[own]
        weights[own] -= lr * velocity
        ring_allgather(comm, weights)

    def replaced(comm, weights, gradient, velocity, lr, momentum):
        own = (comm.rank + 1) % comm.size
        ring_reduce_scatter(comm, gradient)
        velocity.copy_(momentum * velocity + gradient[own])
        weights[own] = weights[own] - lr * velocity
        ring_allgather(comm, weights)

    assert check_zero(in_place) and check_zero(replaced)


def test_a_step_not_written_yet_is_to_do():
    def unwritten(comm, weights, gradient, velocity, lr, momentum):
        raise NotImplementedError

    assert check_zero(unwritten).status == "to do"
    assert check_zero(None).status == "to do"


def test_gathering_the_gradient_instead_of_the_weights_is_named_with_step_and_rank():
    def gathers_gradients(comm, weights, gradient, velocity, lr, momentum):
        ring_reduce_scatter(comm, gradient)
        own = (comm.rank + 1) % comm.size
        velocity.mul_(momentum).add_(gradient[own])
        weights[own].sub_(lr * velocity)
        ring_allgather(comm, gradient)

    verdict = check_zero(gathers_gradients, workers=[2], hints=HINTS)
    assert verdict.status == "not yet" and verdict.hints == HINTS[:1]
    assert verdict.sentence.startswith(
        "With 2 simulated ranks, after step 0, on rank 0: the weights, value 0 is 0.0"
    )


def test_a_velocity_that_is_forgotten_shows_in_the_second_step():
    def forgets(comm, weights, gradient, velocity, lr, momentum):
        zero_step(comm, weights, gradient, torch.zeros_like(velocity), lr, momentum)

    assert "after step 1, on rank 0" in check_zero(forgets, workers=[3]).sentence


def test_a_whole_all_reduce_of_the_gradients_is_told_what_it_sends_too_much():
    def sends_more(comm, weights, gradient, velocity, lr, momentum):
        whole = torch.cat(list(gradient))
        ring_allreduce(comm, whole)
        own = (comm.rank + 1) % comm.size
        velocity.mul_(momentum).add_(whole.tensor_split(comm.size)[own])
        weights[own].sub_(lr * velocity)
        ring_allgather(comm, weights)

    said = check_zero(sends_more, workers=[2]).sentence
    assert (
        "after step 0: the result is right, but the ranks send 6 messages and 240 bytes together; a ring all-reduce "
        "sends 4 and 160." in said
    )


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


def test_a_whole_velocity_of_ones_own_is_not_zero():
    """It gives the right weights in as many bytes, without dividing any state."""
    whole = {}

    def keeps_all(comm, weights, gradient, velocity, lr, momentum):
        total = torch.cat(list(gradient))
        ring_allreduce(comm, total)
        own = whole.setdefault(id(velocity), torch.zeros_like(total)).mul_(momentum).add_(total)
        for chunk, change in zip(weights, own.tensor_split(comm.size)):
            chunk.sub_(lr * change)

    assert "ranks: after step 1, on rank 0: velocity stays 0; change it in place" in str(
        check_zero(keeps_all, workers=[2])
    )
