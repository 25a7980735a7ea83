"""Closed forms of communication beside computation, worked out by hand."""

from __future__ import annotations

import math

import pytest

from dlpar.theory import buckets, overlapped


def test_what_the_backward_pass_does_not_hide_is_exposed():
    assert overlapped([1, 2, 3], [0.5, 0.5, 0.5], computed=3).sent == 3.5  # only the last bucket
    assert overlapped([3], [2], computed=3).sent == 5  # one bucket: nothing hidden
    assert overlapped([1, 2], [5, 1], computed=3).sent == 7  # the second waits for the first
    assert overlapped([0.5], [1], computed=3) == (3, 1.5)
    with pytest.raises(ValueError, match="taking: got 1 buckets, allowed is 2"):
        overlapped([1, 2], [1], computed=3)
    with pytest.raises(ValueError, match="beside: got 2"):
        overlapped([1], [1], 1, beside=2)


def test_a_computation_that_is_disturbed_goes_on_more_slowly_while_buckets_are_sent():
    assert overlapped([1], [1], computed=3, beside=0.5) == (3.5, 2)  # a second at half speed
    assert overlapped([1], [1], computed=3, beside=0) == (4, 2)  # it stands still meanwhile
    assert overlapped([1], [1], computed=1, beside=0) == (1, 2)  # it is done
    assert overlapped([1, 2], [2, 1], computed=2, beside=0.5) == (3, 4)  # all the rest at half speed
    assert max(overlapped([1, 2, 3], [0.5] * 3, computed=3, beside=0)) == 4.5  # as if nothing overlapped


def test_buckets_hold_what_fits_and_a_tensor_that_does_not_is_one_of_its_own():
    assert buckets([5, 5, 5], most=10) == [range(2), range(2, 3)]
    assert buckets([50, 5], most=10) == [range(1), range(1, 2)]
    assert buckets([1, 2, 3], most=math.inf) == [range(3)]
