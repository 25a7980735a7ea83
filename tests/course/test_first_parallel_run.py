"""Lab 00: its presets refute what they are there to refute, and its exercise is checked rightly."""

from __future__ import annotations

import pytest
import torch

import dlpar
from dlpar.lab import check_on_ranks, presets

MEAN = dict(
    expected=lambda tensors: [sum(tensors) / len(tensors)] * len(tensors), hints=["first hint", "second hint"]
)


@pytest.mark.timed
def test_n_processes_are_not_n_times_faster():
    rate = {e.workers: dlpar.launch(e).wait(60).summary["samples_per_s"] for e in presets.four_times_faster()}
    crowded = 2 * presets.cores()
    assert crowded in rate or max(rate) == 32
    assert rate[max(rate)] / rate[1] < 0.75 * max(rate)


def test_an_answer_not_written_yet_is_to_do():
    def average(comm, gradient):
        raise NotImplementedError

    verdict = check_on_ranks(average, **MEAN)
    assert verdict.status == "to do" and not verdict.hints


def test_a_wrong_answer_names_the_first_rank_and_value_and_hints_grow():
    def only_rank_0_knows(comm, gradient):
        if comm.rank:
            comm.send(gradient, 0)
        else:
            arriving = torch.empty_like(gradient)
            for source in range(1, comm.size):
                comm.recv(arriving, source)
                gradient += arriving
            gradient /= comm.size

    verdict = check_on_ranks(only_rank_0_knows, **MEAN)
    assert verdict.sentence.startswith(
        "With 2 simulated ranks and 1 numbers, on rank 1: value 0 is 2.0, expected 1.5"
    )
    assert verdict.hints == ["first hint"]
    assert check_on_ranks(only_rank_0_knows, **MEAN).hints == ["first hint", "second hint"]


def test_an_answer_that_deadlocks_is_told_at_once_where_each_rank_waits():
    def all_receive_first(comm, gradient):
        comm.recv(gradient, 1 - comm.rank)
        comm.send(gradient, 1 - comm.rank)

    verdict = check_on_ranks(all_receive_first, workers=[2], timeout=1.5, **MEAN)
    assert verdict.status == "not yet"
    for rank in (0, 1):
        assert f"rank {rank} in recv from rank {1 - rank} at test_first_parallel_run.py:" in verdict.sentence
    assert "Traceback" not in verdict.sentence


def test_what_is_right_in_a_simulation_alone_is_found_wrong_on_real_ranks():
    def only_simulated(comm, gradient):
        comm.allreduce(gradient)
        gradient /= comm.size if hasattr(comm, "simulator") else 1

    verdict = check_on_ranks(only_simulated, workers=[2], **MEAN)
    assert verdict.sentence.startswith(
        "With 2 real ranks and 1 numbers, on rank 0: value 0 is 3.0, expected 1.5"
    )
