"""The exercises of labs 06, 07, 10 and 12: formulas for a step's time, and when to take a snapshot."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import pytest

from dlpar import Experiment
from dlpar.course import judge
from dlpar.course.exercises import formulas
from dlpar.lab import check_all_sent, check_efficiency, check_grid, check_interval, check_step

pytestmark = pytest.mark.slow

HINTS = ["first hint", "second hint"]


def ring(ranks, kb, bandwidth):
    return 2 * (ranks - 1) / ranks * kb / bandwidth


def solved(data, tensor, pipeline, microbatches, compute, summed, gradient, bandwidth):
    passes = compute / (data * tensor * pipeline) + ring(tensor, summed / (data * pipeline), bandwidth)
    return passes * (1 + (pipeline - 1) / microbatches) + ring(
        data, gradient / (tensor * pipeline), bandwidth
    )


def without_bubble(data, tensor, pipeline, microbatches, **given):
    return solved(data, tensor, pipeline, float("inf"), **given)


def whole_gradient(tensor, pipeline, gradient, **given):
    return solved(tensor=tensor, pipeline=pipeline, gradient=gradient * tensor * pipeline, **given)


def whole_batch_summed(data, pipeline, summed, **given):
    return solved(data=data, pipeline=pipeline, summed=summed * data * pipeline, **given)


def gradient_of_all_stages(pipeline, gradient, **given):
    return solved(pipeline=pipeline, gradient=gradient * pipeline, **given)


def bubble_of_everything(data, tensor, pipeline, microbatches, gradient, bandwidth, **given):
    whole = solved(data, tensor, pipeline, microbatches, gradient=gradient, bandwidth=bandwidth, **given)
    last = ring(data, gradient / (tensor * pipeline), bandwidth)
    return whole + last * (pipeline - 1) / microbatches


def no_bubble_on_sums(data, tensor, pipeline, microbatches, summed, bandwidth, **given):
    """Forget that the sums of layers wait in the bubble, too."""
    sums = ring(tensor, summed / (data * pipeline), bandwidth)
    return sums + solved(data, tensor, pipeline, microbatches, summed=0, bandwidth=bandwidth, **given)


@pytest.mark.parametrize(
    "wrong, where",
    [
        (no_bubble_on_sums, "pipeline=2"),
        (without_bubble, "pipeline=4"),
        (whole_gradient, "data=4"),
        (whole_batch_summed, "data=4"),
        (gradient_of_all_stages, "pipeline=2"),
        (bubble_of_everything, "pipeline=2"),
    ],
)
def test_each_forgotten_term_is_found_on_a_grid_where_it_counts(wrong, where):
    verdict = check_grid(wrong, hints=HINTS)
    assert verdict.status == "not yet" and where in verdict.sentence and verdict.hints == HINTS[:1]


@cache
def seconds_of(experiment: str) -> float:
    """Seconds of a step, simulated once in this process."""
    return formulas._each_in_turn(None, [Experiment.from_json(experiment)])[0]


@pytest.mark.parametrize("which, width", [(0, 0), (1, 6), (2, 0), (3, 6), (4, 0)])
def test_no_draw_of_a_grade_refuses_the_right_formula_or_accepts_a_wrong_one(which, width, monkeypatch):
    drawn = SimpleNamespace(integers=lambda end: {len(formulas.MORE_GRIDS): which, 7: width}[end])
    monkeypatch.setattr(formulas, "secret", lambda purpose: drawn)
    monkeypatch.setattr(formulas, "_grids", cache(formulas._grids.__wrapped__))
    monkeypatch.setattr(formulas, "_simulated", lambda asked: [seconds_of(e.to_json()) for e in asked])
    assert check_grid(solved).status == "solved"
    assert check_grid(no_bubble_on_sums).status == "not yet"


def test_a_grid_not_written_yet_is_to_do_and_nothing_is_simulated(monkeypatch):
    def step_ms(data, tensor, pipeline, microbatches, compute, summed, gradient, bandwidth):
        raise NotImplementedError

    monkeypatch.setattr("dlpar.course.exercises.formulas._grids", None)
    assert check_grid(step_ms).status == "to do"


def test_an_efficiency_not_written_yet_is_to_do_and_nothing_is_simulated(monkeypatch):
    def efficiency(compute, latency, bandwidth, nbytes, n):
        raise NotImplementedError

    monkeypatch.setattr("dlpar.course.exercises.formulas._rings", None)
    assert check_efficiency(efficiency).status == "to do"


def test_a_formula_without_latency_is_shown_the_first_cluster_it_fails_on():
    def no_latency(compute, latency, bandwidth, nbytes, n):
        return compute / (compute + 2 * (n - 1) / n * nbytes / bandwidth)

    verdict = check_efficiency(no_latency, hints=HINTS)
    assert verdict.status == "not yet" and verdict.hints == HINTS[:1]
    assert "n=64): it is 0.05" in verdict.sentence and "expected 0.007" in verdict.sentence


def test_a_formula_with_two_latencies_too_many_is_found():
    def two_more(compute, latency, bandwidth, nbytes, n):
        return compute / (compute + (n > 1) * (2 * n * latency + 2 * (n - 1) * nbytes / n / bandwidth))

    assert check_efficiency(two_more).status == "not yet"


def all_sent(ms, mb, most, n, latency, bandwidth, too_late=0, queues=True):
    ready = sent = held = 0
    for took, size in [*zip(ms, mb), (0, most + 1)]:
        if held and held + size > most:
            begins = max(ready + too_late * took, sent if queues else 0)
            sent, held = begins + 2 * (n - 1) * (latency + held / n / bandwidth), 0
        ready, held = ready + took, held + size
    return sent


def test_buckets_that_are_sent_as_they_should_be_are_right():
    assert check_all_sent(all_sent)


def sends_empty_buckets(ms, mb, most, n, latency, bandwidth):
    ready = sent = held = 0
    for took, size in zip(ms, mb):
        if held + size > most:
            sent, held = max(ready, sent) + 2 * (n - 1) * (latency + held / n / bandwidth), 0
        ready, held = ready + took, held + size
    return max(ready, sent) + 2 * (n - 1) * (latency + held / n / bandwidth)


def sent_layer_by_layer(ms, mb, most, **given):
    return all_sent(ms, mb, 0, **given)


def waits_for_the_next_layer(**given):
    return all_sent(**given, too_late=1)


def never_queues(**given):
    return all_sent(**given, queues=False)


def all_at_the_end(ms, mb, most, **given):
    return all_sent([sum(ms)], [sum(mb)], most, **given)


@pytest.mark.parametrize(
    "wrong",
    [sends_empty_buckets, sent_layer_by_layer, waits_for_the_next_layer, never_queues, all_at_the_end],
)
def test_each_mistake_with_buckets_is_found(wrong):
    verdict = check_all_sent(wrong, hints=HINTS)
    assert verdict.status == "not yet" and f"{wrong.__name__}(ms=" in verdict.sentence
    assert verdict.hints == HINTS[:1]


def every(step, snapshot, now, deaths):
    """The solution of lab 12."""
    mtbf = (now + 3600) / (len(deaths) + 1)
    return max(1, round((2 * snapshot * mtbf) ** 0.5 / step))


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_policy_that_learns_how_often_all_dies_is_right_whatever_dies_and_a_constant_is_not(
    monkeypatch, seed
):
    monkeypatch.setattr(judge, "_seed", seed)
    assert check_interval(every)
    for seconds in (200, 350, 700):
        constant = lambda step, snapshot, now, deaths, of=seconds: max(
            1, round(of * (snapshot / 20) ** 0.5 / step)
        )
        assert check_interval(constant).status == "not yet"
    of_the_step = lambda step, snapshot, now, deaths: 28 if step == 5 else 120
    assert check_interval(of_the_step).status == "not yet"


@pytest.mark.parametrize(
    "policy, said",
    [
        (
            lambda step, snapshot, now, deaths: 1,
            "17.7% of its time counts; with the same deaths and a snapshot every 28 steps",
        ),
        (lambda step, snapshot, now, deaths: 10**9, "0.0% of its time counts"),
        (lambda step, snapshot, now, deaths: 2.5, "it chose 2.5 steps, allowed is a whole number from 1"),
        (lambda step, snapshot, now, deaths: 0, "at 0 s it chose 0 steps"),
        (lambda step, snapshot, now, deaths: None if deaths else 20, " s it chose None steps, allowed is"),
        (lambda step, snapshot, now, deaths: 1 / 0, "raised ZeroDivisionError: division by zero\n  in line "),
    ],
)
def test_a_bad_policy_is_told_what_it_costs(policy, said):
    verdict = check_interval(policy, hints=HINTS)
    assert verdict.status == "not yet" and said in verdict.sentence and verdict.hints


@pytest.mark.parametrize("policy", [None, lambda step, snapshot, now, deaths: None])
def test_a_policy_not_written_yet_is_to_do(policy):
    assert check_interval(policy).status == "to do"


# ---- a step of kernels ----------------------------------------------------------------


def test_a_kernel_begins_after_its_launch_and_after_the_kernel_before():
    def step_seconds(kernels, peak, bandwidth, launch):
        end = 0.0
        for i, (flops, nbytes) in enumerate(kernels, start=1):
            end = max(end, i * launch) + max(flops / peak, nbytes / bandwidth)
        return end

    assert check_step(step_seconds)


def queue(launched, peak, bandwidth, launch, kernels):
    """Seconds of a queue in which the launch of a kernel is done after some launches."""
    end = 0.0
    for number, (flops, nbytes) in enumerate(kernels):
        end = max(end, launched(number) * launch) + max(flops / peak, nbytes / bandwidth)
    return end


@pytest.mark.parametrize(
    "wrong",
    [
        lambda kernels, peak, bandwidth, launch: sum(f / peak for f, _ in kernels),
        lambda kernels, peak, bandwidth, launch: sum(
            max(f / peak, b / bandwidth) + launch for f, b in kernels
        ),
        lambda kernels, peak, bandwidth, launch: sum(
            max(f / peak, b / bandwidth, launch) for f, b in kernels
        ),
        lambda kernels, peak, bandwidth, launch: max(
            max(f / peak, b / bandwidth, launch) for f, b in kernels
        ),
        lambda kernels, **gpu: queue(lambda number: number, kernels=kernels, **gpu),
        lambda kernels, **gpu: queue(lambda number: 1, kernels=kernels, **gpu),
    ],
    ids=[
        "without bytes", "launches before kernels", "the longest of three", "one kernel", "a free first launch",
        "one launch",
    ],
)  # fmt: skip
def test_a_wrong_step_of_kernels_is_not_solved(wrong):
    assert not check_step(wrong, hints=["Add up."])
