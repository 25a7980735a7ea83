"""The exercise of lab 05: updates of shared weights, in turns and in a free race."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch

import dlpar
from dlpar.lab import check_on_ranks
from dlpar.sync.races import in_turns, race, sum_of_changes

pytestmark = pytest.mark.slow

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a notebook: ranks import no test module

HINTS = ["first hint", "second hint"]


def sparse_update(weights, change, stamps, seen, stamp):
    places = change.nonzero().squeeze(1)
    conflicts = int((stamps[places] != seen[places]).sum())
    weights[places] += change[places]
    stamps[places] = stamp
    return conflicts


@pytest.mark.timed
def test_a_right_answer_is_solved_and_loses_more_the_denser_it_is():
    assert check_on_ranks(in_turns(sparse_update), expected=sum_of_changes)
    sparse, dense = dlpar.spmd(race, sparse_update, (0.001, 1.0), workers=4, timeout=60)[0]
    assert sparse[1] < 0.1 * dense[1] and sparse[2] < 0.01 + 0.1 * dense[2]
    assert 0 < dense[1] <= 1


def test_one_process_alone_loses_nothing():
    for _, conflicts, lost in dlpar.spmd(race, sparse_update, (0.01, 1.0), workers=1)[0]:
        assert conflicts == 0 and lost < 1e-12


def test_an_answer_not_written_yet_is_to_do():
    def unwritten(weights, change, stamps, seen, stamp):
        raise NotImplementedError

    verdict = check_on_ranks(in_turns(unwritten), expected=sum_of_changes, hints=HINTS)
    assert verdict.status == "to do" and verdict.sentence == "unwritten is not written yet."


def test_a_dense_update_and_an_uncounted_conflict_are_found_and_named():
    def dense_update(weights, change, stamps, seen, stamp):
        weights += change
        conflicts = int((stamps != seen).sum())
        stamps.fill_(stamp)
        return conflicts

    def without_count(weights, change, stamps, seen, stamp):
        sparse_update(weights, change, stamps, seen, stamp)
        return 0

    def ignores_seen(weights, change, stamps, seen, stamp):
        return sparse_update(weights, change, stamps, torch.zeros_like(seen), stamp)

    verdict = check_on_ranks(in_turns(ignores_seen), expected=sum_of_changes)
    assert "returned 1 conflicts, expected 0: the stamps were [3], seen were [3]" in verdict.sentence

    def ignores_negative(weights, change, stamps, seen, stamp):
        places = (change > 0).nonzero().view(-1)
        weights[places] += change[places]
        conflicts = int((stamps[places] != seen[places]).sum())
        stamps[places] = stamp
        return conflicts

    def without_sum(weights, change, stamps, seen, stamp):
        sparse_update(weights, change, stamps, seen, stamp)
        return stamps != seen

    verdict = check_on_ranks(in_turns(ignores_negative), expected=sum_of_changes)
    assert "is not zero" in verdict.sentence
    verdict = check_on_ranks(in_turns(without_sum), expected=sum_of_changes)
    assert "without_sum returned tensor([" in verdict.sentence
    verdict = check_on_ranks(in_turns(dense_update), expected=sum_of_changes, hints=HINTS)
    assert "stamps[1] is 1, expected 0: change[1] is zero" in verdict.sentence and verdict.hints == HINTS[:1]
    verdict = check_on_ranks(in_turns(without_count), expected=sum_of_changes, hints=HINTS)
    assert "Traceback" not in verdict.sentence
    assert "without_count returned 0 conflicts, expected 1" in verdict.sentence
