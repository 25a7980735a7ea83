"""Bubbles of pipelines, as published."""

from __future__ import annotations

import pytest

from dlpar import lab
from dlpar.theory import bubble
from dlpar.theory.pipeline import idle_share, timeline


def test_bubbles_are_those_of_megatron_and_of_zero_bubble():
    for p, m in ((4, 8), (8, 8), (2, 32)):
        assert bubble("gpipe", p, m) == bubble("1f1b", p, m) == (p - 1) / m
        for v in (1, 2, 4):
            assert bubble("interleaved", p, m, chunks=v) == (p - 1) / (v * m)
        assert bubble("zb-h1", p, m) == pytest.approx((p - 1) / (3 * m))
        assert bubble("zb-h2", p, 2 * p - 1) == 0
    assert bubble("1f1b", 1, 8) == 0
    # With one micro-batch there is one order.
    assert bubble("zb-h2", 4, 1) == bubble("zb-h1", 4, 1) == 2 and bubble("zb-h2", 4, 4) == 1 / 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_the_bubble_is_that_of_the_timeline_also_with_few_micro_batches(schedule):
    for p in range(1, 8):
        for m in range(1, 12):
            assert bubble(schedule, p, m) == pytest.approx(idle_share(timeline(schedule, p, m)), abs=1e-9)


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: bubble("dapple", 4, 8), "schedule: got 'dapple', allowed is one of gpipe"),
        (lambda: bubble("1f1b", 4, 8, chunks=2), "chunks: got 2, allowed with schedule 1f1b is 1"),
        (lambda: bubble("1f1b", 0, 8), "stages: got 0"),
        (lambda: bubble("interleaved", 4, 6, 2), "microbatches: got 6, allowed .* is a multiple of 4 stages"),
        (
            lambda: lab.schedule("interleaved", 4, 6),
            "microbatches: got 6, allowed .* is a multiple of 4 stages",
        ),
        (
            lambda: timeline("zb-h1", 2, 2, forward=1, backward=1, weight=1.5),
            "weight: got 1.5, allowed is a part of backward, 0 to 1",
        ),
        (lambda: lab.schedule("gpipe", 4, 0), "microbatches: got 0, allowed is a whole number from 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
