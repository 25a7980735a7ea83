"""The exercise of lab 07: a step of ZeRO stage 1."""

from __future__ import annotations

import pytest
import torch

from dlpar import lab
from dlpar.collectives import ring_allgather, ring_allreduce, ring_reduce_scatter

pytestmark = pytest.mark.slow

HINTS = ["first hint", "second hint"]


def zero_step(comm, weights, gradient, velocity, lr, momentum):
    ring_reduce_scatter(comm, gradient)
    own = (comm.rank + 1) % comm.size
    velocity.mul_(momentum).add_(gradient[own])
    weights[own].sub_(lr * velocity)
    ring_allgather(comm, weights)


def test_a_step_not_written_yet_is_to_do():
    def unwritten(comm, weights, gradient, velocity, lr, momentum):
        raise NotImplementedError

    assert lab.check_zero(unwritten).status == "to do"
    assert lab.check_zero(None).status == "to do"


def test_gathering_the_gradient_instead_of_the_weights_is_named_with_step_and_rank():
    def gathers_gradients(comm, weights, gradient, velocity, lr, momentum):
        ring_reduce_scatter(comm, gradient)
        own = (comm.rank + 1) % comm.size
        velocity.mul_(momentum).add_(gradient[own])
        weights[own].sub_(lr * velocity)
        ring_allgather(comm, gradient)

    verdict = lab.check_zero(gathers_gradients, workers=[2], hints=HINTS)
    assert verdict.status == "not yet" and verdict.hints == HINTS[:1]
    assert verdict.sentence.startswith(
        "With 2 simulated ranks, after step 0, on rank 0: the weights, value 0 is 0.0"
    )


def test_a_velocity_that_is_forgotten_shows_in_the_second_step():
    def forgets(comm, weights, gradient, velocity, lr, momentum):
        zero_step(comm, weights, gradient, torch.zeros_like(velocity), lr, momentum)

    assert "after step 1, on rank 0" in lab.check_zero(forgets, workers=[3]).sentence


def test_a_whole_all_reduce_of_the_gradients_is_told_what_it_sends_too_much():
    def sends_more(comm, weights, gradient, velocity, lr, momentum):
        whole = torch.cat(list(gradient))
        ring_allreduce(comm, whole)
        own = (comm.rank + 1) % comm.size
        velocity.mul_(momentum).add_(whole.tensor_split(comm.size)[own])
        weights[own].sub_(lr * velocity)
        ring_allgather(comm, weights)

    said = lab.check_zero(sends_more, workers=[2]).sentence
    assert (
        "after step 0: the result is right, but the ranks send 6 messages and 240 bytes together; a ring all-reduce "
        "sends 4 and 160." in said
    )
