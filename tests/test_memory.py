"""Memory of a rank: measured from what is alive, and equal to what the closed forms say it must be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from trained_ranks import Trained
from trained_ranks import trained as train

from dlpar.memory import KINDS, WATCHED, Memory, bytes_of, model_state
from dlpar.replica import Replica

WIDTH, DEPTH, BATCH, ITEM = 64, 7, 24, 8
LAYERS = [64 * WIDTH + WIDTH, *[WIDTH * WIDTH + WIDTH] * (DEPTH - 1), WIDTH * 10 + 10]
"""Parameters of an mlp's layers."""


def trained(zero: int = 0, microbatches: int = 1, **fields) -> Trained:
    split = {"kind": "data", "zero": zero, "microbatches": microbatches}
    mlp = {"name": "mlp", "width": WIDTH, "depth": DEPTH}
    return train(**{"model": mlp, "batch": BATCH, "steps": WATCHED + 2, "split": split, **fields})


def held(run: Trained, step: int = WATCHED - 1) -> list[dict[str, int]]:
    """Of each rank, when it was most."""
    return [steps[step]["memory"] for steps in run.facts]


def activations(samples: int) -> int:
    """Autograd keeps a layer's input, which is the output of the ReLU before; and of the loss the logarithms of
    the softmax, the labels, and the sum of their weights."""
    return samples * (64 + DEPTH * WIDTH + 10) * ITEM + samples * 8 + ITEM


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
def test_data_parallel_ranks_hold_the_whole_model_and_the_activations_of_their_samples(optimizer):
    run = trained(workers=2, optimizer=optimizer)
    state = model_state(sum(LAYERS), bytes_each=bytes_of(optimizer, ITEM))
    counts = 4 * (optimizer in ("adagrad", "adam"))  # they count steps, too
    expected = {**state._asdict(), "activations": activations(BATCH // 2), "gathered": 0}
    assert held(run) == [{**expected, "optimizer": state.optimizer + counts}] * 2
    assert held(run, step=0) == [{**expected, "optimizer": 0}] * 2  # it is made by the first update


def test_only_the_first_steps_are_watched():
    steps = trained(workers=1).facts[0]
    assert ["memory" in record for record in steps] == [True] * WATCHED + [False] * 2
    assert tuple(steps[0]["memory"]) == KINDS


def test_memory_over_time_rises_in_the_forward_pass_and_falls_in_the_backward_pass():
    """On the virtual clock each layer of stage 3 computes at a moment of its own."""
    run = trained(3, workers=2)
    (over_time,) = [record["memory_over_time"] for record in run.facts[0] if "memory_over_time" in record]
    seconds, held_then = zip(*over_time)
    assert list(seconds) == sorted(set(seconds))
    assert max(held_then) <= sum(held(run)[0].values())
    between = model_state(sum(LAYERS), 2, 3, bytes_of("sgd", ITEM)).total
    assert held_then[-1] == pytest.approx(between, abs=len(LAYERS) * 2 * ITEM)  # all else was let go
    top = held_then.index(max(held_then))
    assert 0.3 < top / len(over_time) < 0.9 and held_then[0] < held_then[top // 2] < held_then[top]


def test_nothing_is_measured_where_there_are_no_numbers():
    run = trained(workers=2, cluster={"messages": "sizes"})
    assert not any("memory" in record for steps in run.facts for record in steps)


def test_microbatches_leave_a_share_of_the_activations():
    """Of the batch itself all samples are there from the beginning."""
    one, waiting = BATCH // 2 // 4, BATCH // 2 - BATCH // 2 // 4
    run = trained(workers=2, microbatches=4)
    assert {memory["activations"] for memory in held(run)} == {activations(one) + waiting * (64 * ITEM + 8)}


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("zero", [1, 3])
def test_what_zero_shares_out_is_an_nth_on_each_rank(zero, workers, optimizer):
    memories = held(trained(zero, workers=workers, optimizer=optimizer))
    state = model_state(sum(LAYERS), workers, zero, bytes_of(optimizer, ITEM))
    counts = 4 * (optimizer == "adam")
    for kind, expected in state._asdict().items():
        total = sum(memory[kind] - counts * (kind == "optimizer") for memory in memories)
        assert total == pytest.approx(workers * expected, rel=1e-12)  # the ranks' chunks are the whole
        uneven = len(LAYERS) * 2 * ITEM  # a chunk of a layer may be an element longer
        assert all(abs(memory[kind] - expected) <= uneven + counts for memory in memories)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("workers", [2, 4])
def test_stage_3_holds_an_nth_of_the_model_and_little_more_at_any_time(workers, optimizer):
    """Weights, gradients, optimizer state and what is gathered: never above 1/N + 15 % of what they are unshared."""
    all_of_it = model_state(sum(LAYERS), bytes_each=bytes_of(optimizer, ITEM)).total
    for memory in held(trained(3, workers=workers, optimizer=optimizer)):
        # Stage 3 borrows a layer's weights at a time and, before it is shared out, its gradient.
        assert 0 < memory["gathered"] <= 2 * max(LAYERS) * ITEM
        assert sum(memory.values()) - memory["activations"] <= (1 / workers + 0.15) * all_of_it


def test_closed_forms_give_the_papers_figures():
    """Rajbhandari et al., figure 1: 7.5 billion parameters on 64 ranks, Adam in mixed precision, in GB."""
    found = [model_state(7.5e9, 64, zero).total / 1e9 for zero in (0, 1, 2, 3)]
    assert found == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


@pytest.mark.parametrize("call", [lambda: model_state(1, zero=4), lambda: model_state(1, ranks=0)])
def test_closed_forms_say_what_is_allowed(call):
    with pytest.raises(ValueError, match="got .*, allowed is"):
        call()


def test_a_storage_counts_once_and_until_its_last_holder_lets_go():
    memory, vector = Memory(), torch.zeros(100, dtype=torch.float64)
    memory.hold("weights", vector)
    memory.hold("activations", vector[:10])
    assert memory.held["weights"] == 800 and memory.held["activations"] == 0
    memory.drop(vector)
    assert memory.held["weights"] == 800
    memory.drop(vector)
    assert sum(memory.held.values()) == 0 and memory.peak["weights"] == 800


def test_activations_are_let_go_as_the_backward_pass_uses_them():
    memory, model = Memory(), nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    replica = Replica(model)
    with memory.watch(0, replica, optimizer=lambda: 0):
        value = model(torch.ones(3, 10)).square().sum()
        assert memory.held["activations"] == 3 * (10 + 20 + 5) * 4
        value.backward()
        assert memory.held["activations"] == 0
    assert memory.facts()["memory"]["activations"] == 3 * (10 + 20 + 5) * 4


def test_later_steps_are_not_watched():
    memory, replica = Memory(), Replica(nn.Linear(2, 1))
    with memory.watch(
        WATCHED, replica, optimizer=lambda: pytest.fail("asked for the state of the update rule")
    ):
        replica.model(torch.ones(3, 2)).sum().backward()
    assert memory.facts() == {}
