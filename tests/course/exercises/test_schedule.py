"""The exercise of lab 09: a pipeline's schedule."""

from __future__ import annotations

import pytest
from simulations import run

from dlpar import lab
from dlpar.course.exercises import schedule
from dlpar.split.schedules import SCHEDULES, one_forward_one_backward

HINTS = ["first hint", "second hint"]


def my_schedule(stages, microbatches):
    lists = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, microbatches)
        actions = [("F", micro) for micro in range(ahead)]
        for micro in range(microbatches):
            if micro + ahead < microbatches:
                actions.append(("F", micro + ahead))
            actions.append(("B", micro))
        lists.append(actions)
    return lists


def known(name):
    """A schedule of the library, as a student would give it."""

    def student(stages, microbatches):
        return [SCHEDULES[name](stage, stages, microbatches, 1) for stage in range(stages)]

    return student


def test_a_right_schedule_trains_on_simulated_and_on_real_ranks_what_1f1b_trains():
    verdict = lab.check_schedule(my_schedule)
    assert verdict.sentence.endswith(
        "On 4 simulated ranks and on 4 real ones its losses equal those of 1F1B."
    )


def test_numbers_of_micro_batches_may_come_from_a_division():
    as_floats = lambda *sizes: [[(kind, float(micro)) for kind, micro in own] for own in my_schedule(*sizes)]
    as_floats.__name__ = "as_floats"
    assert lab.check_schedule(as_floats)


def unsolved(stages, microbatches):
    raise NotImplementedError


@pytest.mark.parametrize("student", [unsolved, None, lambda stages, micros: None, lambda stages, micros: ...])
def test_what_is_not_written_yet_is_to_do(student):
    assert lab.check_schedule(student, HINTS).status == "to do"


def late(stages, microbatches):
    return [[(kind, micro) for micro in range(microbatches) for kind in "FB"] for _ in range(stages)]


def backward_first(stages, microbatches):
    lists = my_schedule(stages, microbatches)
    lists[-1][:2] = lists[-1][1::-1]
    return lists


def twice(stages, microbatches):
    lists = my_schedule(stages, microbatches)
    lists[1][1] = ("F", 0)
    return lists


@pytest.mark.parametrize(
    "student, sentence",
    [
        (known("gpipe"), 'known(2, 4): stage 0 holds 3 micro-batches at action 2, ("F", 2), allowed is 2.'),
        (
            late,
            "late(2, 4): the bubble is 100.0% of the computing time, allowed is (p - 1) / m = 25.0%. The first late "
            'action is on stage 0, action 2, ("F", 1): it begins at 6 instead of 1 (a forward pass takes 1, a '
            "backward pass 2).",
        ),
        (
            backward_first,
            'backward_first(2, 4): no stage can continue: stage 0 waits at action 2, ("B", 0), for this pass '
            'of stage 1; stage 1 waits at action 0, ("B", 0), whose forward pass comes later.',
        ),
        (twice, 'twice(2, 4): stage 1, action 1, ("F", 0), was already action 0.'),
        (lambda stages, microbatches: [[]] * stages, '<lambda>(2, 4): stage 0, ("F", 0) is missing.'),
        (
            lambda stages, microbatches: [["F0"]] * stages,
            '<lambda>(2, 4): stage 0, action 0 is \'F0\', allowed is ("F", k) or ("B", k), k from 0 to 3.',
        ),
        (lambda stages, microbatches: 7, "<lambda>(2, 4): got 7, expected a list for each of 2 stages."),
        (lambda stages, microbatches: 1 / 0, "<lambda>(2, 4) raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_schedule_is_told_the_first_stage_and_action_that_are_wrong(student, sentence):
    student.__name__ = student.__name__.replace("student", "known")
    verdict = lab.check_schedule(student)
    assert verdict.status == "not yet" and verdict.sentence.splitlines()[0] == sentence


def test_every_try_gives_one_hint_more():
    def another(stages, microbatches):
        return late(stages, microbatches)

    assert [len(lab.check_schedule(another, HINTS).hints) for _ in range(3)] == [1, 2, 2]


def test_each_rank_trains_with_its_lists_and_then_with_1f1b(monkeypatch):
    """All simulated ranks share a process, so one rank's lists must not be another's 1F1B."""
    followed, train = {}, schedule.train

    def watched(comm, *experiment):
        followed.setdefault(comm.rank, []).append(SCHEDULES["1f1b"] is one_forward_one_backward)
        train(comm, *experiment)

    monkeypatch.setattr(schedule, "train", watched)
    monkeypatch.setitem(SCHEDULES, "1f1b", one_forward_one_backward)  # put back after the test
    size = 4, schedule.TRAINED.split.microbatches
    lists = [one_forward_one_backward(stage, *size, 1) for stage in range(4)]
    run(lambda comm: schedule._on_rank(comm, None, lists), 4)
    assert followed == {rank: [False, True] for rank in range(4)}
