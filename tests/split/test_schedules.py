"""Schedules as data: what each stage does in which order, and the bubble that follows from it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from trained_ranks import SMALL, apart, trained

from dlpar.config import split as config
from dlpar.split.schedules import SCHEDULES, Action, by_step, register
from dlpar.theory import bubble
from dlpar.theory.pipeline import idle_share, most_in_flight, timed, timeline

SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 4, 8, 24)]
FULL = [(p, m) for p, m in SIZES if m >= p]
"""Micro-batches enough for every stage to be busy at some time: closed forms are of these."""


def lists(schedule: str, stages: int, microbatches: int, chunks: int = 1):
    """Every stage's actions."""
    return [SCHEDULES[schedule](stage, stages, microbatches, chunks) for stage in range(stages)]


def chunks_of(schedule: str, stages: int, microbatches: int) -> tuple[int, ...]:
    return (1, 2, 4) if schedule == "interleaved" and microbatches % stages == 0 else (1,)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_does_every_pass_of_every_micro_batch_once(schedule):
    for stages, micros in SIZES:
        for chunks in chunks_of(schedule, stages, micros):
            kinds = "FBW" if config.SCHEDULES[schedule].has_weight_pass else "FB"
            wanted = sorted((kind, m, c) for kind in kinds for m in range(micros) for c in range(chunks))
            assert all(sorted(actions) == wanted for actions in lists(schedule, stages, micros, chunks))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_two_stages_wait_for_each_other(schedule):
    for stages, micros in SIZES:
        for chunks in chunks_of(schedule, stages, micros):
            bars = timeline(schedule, stages, micros, chunks)  # would never end, if two did
            passes = 3 if config.SCHEDULES[schedule].has_weight_pass else 2
            assert len(bars) == passes * stages * micros * chunks
            ended = {(bar.kind, bar.micro, bar.chunk * stages + bar.stage): bar for bar in bars}
            for (kind, micro, part), bar in ended.items():
                if kind == "F" and part:
                    assert bar.start >= ended["F", micro, part - 1].end
                if kind == "B" and part < stages * chunks - 1:
                    assert bar.start >= ended["B", micro, part + 1].end


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_the_bubble_of_equal_stages_is_the_closed_form(schedule):
    for stages, micros in FULL:
        assert idle_share(timeline(schedule, stages, micros)) == pytest.approx(
            bubble(schedule, stages, micros)
        )


def test_interleaving_divides_the_bubble_by_the_chunks():
    for stages, micros in FULL:
        for chunks in chunks_of("interleaved", stages, micros):
            bars = timeline("interleaved", stages, micros, chunks)
            assert idle_share(bars) == pytest.approx(bubble("interleaved", stages, micros, chunks))


def test_interleaving_needs_the_stages_to_divide_the_micro_batches():
    with pytest.raises(ValueError) as error:
        timeline("interleaved", 4, 6, chunks=2)
    assert (
        str(error.value) == "microbatches: got 6, allowed with schedule interleaved is a multiple of 4 stages"
    )


@pytest.mark.parametrize(
    "schedule, held",
    [("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1]), ("zb-h1", [4, 4, 4, 4]), ("pipedream", [4, 3, 2, 1])],
)
def test_activations_in_flight_are_all_in_gpipe_and_at_most_as_many_as_stages_in_the_others(schedule, held):
    has_weight_pass = config.SCHEDULES[schedule].has_weight_pass
    assert [most_in_flight(actions, has_weight_pass) for actions in lists(schedule, 4, 8)] == held


def test_unequal_stages_go_at_the_pace_of_the_slowest():
    forward, micros = [1.0, 2.0, 4.0, 1.0], 6
    bars = timed(lists("gpipe", 4, micros), {"F": forward, "B": [2 * f for f in forward]})
    assert max(bar.end for bar in bars) == 3 * (sum(forward) + (micros - 1) * max(forward))


def test_messages_are_waited_for_at_the_first_and_the_last_micro_batch_alone():
    free, dear = (max(bar.end for bar in timeline("gpipe", 4, 8, message=cost)) for cost in (0.0, 0.5))
    assert dear - free == pytest.approx(2 * 3 * 0.5)


def test_pipedream_never_drains_once_it_is_full():
    bars = timeline("pipedream", 4, 20)
    steady = [bar for bar in bars if 8 <= bar.micro < 12]
    for stage in range(4):
        own = sorted(
            (bar for bar in steady if bar.stage == stage and bar.kind == "B"), key=lambda bar: bar.start
        )
        assert [after.start - before.start for before, after in pairwise(own)] == [3.0, 3.0, 3.0]


def test_the_steps_of_pipedream_are_its_list_of_actions_cut_behind_backward_passes():
    for stages, steps in SIZES:
        for whole in lists("pipedream", stages, steps):
            found = list(by_step(whole))
            assert [action for step in found for action in step] == whole
            assert [step[-1] for step in found] == [("B", step, 0) for step in range(steps)]


@pytest.mark.parametrize(
    "given, sentence",
    [
        (
            ("2f2b", 4, 8),
            "schedule: got '2f2b', allowed is one of gpipe, 1f1b, interleaved, zb-h1, pipedream",
        ),
        (("gpipe", 0, 8), "stages: got 0, allowed is a whole number from 1"),
        (("gpipe", 4, 8, 2), "chunks: got 2, allowed with schedule gpipe is 1"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(given, sentence):
    with pytest.raises(ValueError) as error:
        timeline(*given)
    assert str(error.value) == sentence


def one_at_a_time(stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """Each micro-batch goes forward and back before the next one comes: the worst schedule."""
    return [Action(kind, micro) for micro in range(microbatches) for kind in "FB"]


def test_a_schedule_can_be_added_from_outside(monkeypatch):
    for table in (SCHEDULES, config.SCHEDULES):
        monkeypatch.setitem(table, "one at a time", None)  # is taken out again after the test
    register("one at a time", one_at_a_time, config.Traits())
    split = {"kind": "pipeline", "microbatches": 4}
    found, usual = (
        trained(workers=2, steps=3, split={**split, "schedule": name}, **SMALL["mlp"])
        for name in ("one at a time", "gpipe")
    )
    assert apart(found.losses, usual.losses) < 1e-12
    assert [steps[-1]["in_flight"] for steps in found.facts] == [1, 1]


def messages(orders: list[list[Action]], stage: int, kind: str, first: int) -> list[tuple[int, int]]:
    """The messages of a stage's passes in their order, by micro-batch and by the part of the model with them."""
    parts = [
        (each.micro, each.chunk * len(orders) + stage + first) for each in orders[stage] if each.kind == kind
    ]
    return [each for each in parts if min(each) >= 0]


@pytest.mark.parametrize("name", [name for name, traits in config.SCHEDULES.items() if traits.in_order])
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_a_schedule_in_order_takes_messages_as_they_are_sent(name, stages):
    chunks = 3 if config.SCHEDULES[name].has_chunks else 1
    for micros in (stages, 4 * stages):
        orders = [SCHEDULES[name](stage, stages, micros, chunks) for stage in range(stages)]
        for stage in range(stages):
            # A message is known by the part that takes it; the first part takes none, and the last sends none.
            for kind, step, last in (("F", 1, stages * chunks), ("B", -1, -1)):
                sent = messages(orders, stage, kind, step)
                taken = messages(orders, (stage + step) % stages, kind, 0)
                taken = [each for each in taken if each[1] != (0 if kind == "F" else stages * chunks - 1)]
                assert [each for each in sent if each[1] != last] == taken
