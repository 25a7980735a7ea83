"""The slowest of several workers: worked out by hand, and held against many draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dlpar.theory import expected_slowest
from dlpar.worlds.platforms import Timing


@pytest.mark.parametrize("workers", (1, 2, 8, 64))
def test_the_slowest_of_exponential_workers_is_a_harmonic_number_of_means(workers):
    harmonic = sum(1 / k for k in range(1, workers + 1))
    assert expected_slowest(workers, Timing(kind="exponential")) == pytest.approx(harmonic, rel=1e-12)
    assert expected_slowest(workers, Timing(kind="gamma", cv=1.0)) == pytest.approx(harmonic, rel=1e-6)


@pytest.mark.parametrize("workers, cv", [(2, 0.05), (16, 0.1), (64, 0.5), (8, 2.0)])
def test_the_slowest_of_gamma_workers_is_what_many_draws_say(workers, cv):
    shape = cv**-2
    draws = np.random.default_rng(0).gamma(shape, 1 / shape, (20_000, workers)).max(axis=1)
    error = draws.std() / math.sqrt(len(draws))
    assert expected_slowest(workers, Timing(kind="gamma", cv=cv)) == pytest.approx(
        draws.mean(), abs=4 * error
    )


@pytest.mark.parametrize("cv", (0.01, 0.1, 1.0, 3.0, 10.0))
def test_one_worker_waits_for_nobody(cv):
    assert expected_slowest(1, Timing(kind="gamma", cv=cv)) == pytest.approx(1, rel=1e-5)


def test_the_slowest_on_a_trace_is_the_mean_of_its_windows_largest():
    timing = Timing(kind="trace", trace=[1.0, 3.0, 1.0, 1.0])
    assert expected_slowest(2, timing) == pytest.approx((3 + 3 + 1 + 1) / 4)
    assert expected_slowest(8, timing) == 3
    assert expected_slowest(2, timing, steps=4) == pytest.approx(1.5)


def test_meeting_less_often_waits_less():
    timing = Timing(kind="exponential")
    factors = [expected_slowest(8, timing, steps) for steps in (1, 2, 4, 16, 256)]
    assert factors == sorted(factors, reverse=True) and factors[-1] < 1.1
    assert expected_slowest(8, Timing()) == 1


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="workers: got 0"):
        expected_slowest(0, Timing())
