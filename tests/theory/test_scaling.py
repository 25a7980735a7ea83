"""Waiting for the slowest of several workers, worked out by hand and held against many draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dlpar.theory import expected_slowest
from dlpar.worlds.platforms import Timing

EXPONENTIAL = Timing(kind="exponential")


@pytest.mark.parametrize("workers", (1, 2, 8, 64))
def test_the_slowest_of_exponential_workers_is_a_harmonic_number_of_means(workers):
    harmonic = sum(1 / k for k in range(1, workers + 1))
    assert expected_slowest(workers, EXPONENTIAL) == pytest.approx(harmonic, rel=1e-12)
    draws = np.random.default_rng(0).exponential(size=(20_000, workers)).max(axis=1)
    error = draws.std() / math.sqrt(len(draws))
    assert expected_slowest(workers, EXPONENTIAL) == pytest.approx(draws.mean(), abs=4 * error)


def test_workers_of_constant_speed_wait_for_nobody():
    assert expected_slowest(8, Timing()) == 1


@pytest.mark.parametrize(
    "workers, timing, complaint",
    [
        (0, EXPONENTIAL, "workers: got 0"),
        (2, Timing(kind="gamma"), "timing: got gamma, allowed is constant or exponential"),
    ],
)
def test_what_makes_no_sense_or_has_no_closed_form_is_refused(workers, timing, complaint):
    with pytest.raises(ValueError, match=complaint):
        expected_slowest(workers, timing)
