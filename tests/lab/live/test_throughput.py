"""Rates of samples over windows."""

import numpy as np
import pytest

from dlpar.lab.live.throughput import Rate
from dlpar.lab.live_plot import Series


def test_rate_loses_no_sample_however_long_the_run():
    series = Series(2, limit=50)
    rate, rng, now = Rate(series), np.random.default_rng(0), 0.0
    for _ in range(20_000):
        began, now = now, now + float(rng.uniform(0.001, 0.05))
        rate.add(now, 64, began)
    rate.close(now)
    ends, rates = series.rows.T
    assert len(series) <= 50 and (np.diff(ends) > 0).all()
    assert (rates * np.diff(ends, prepend=0.0)).sum() == pytest.approx(20_000 * 64)


def test_rate_of_slow_steps_is_taken_step_by_step():
    series = Series(2, limit=50)
    rate = Rate(series)
    for step in range(5):
        rate.add(step + 1.0, 100, float(step))
    assert series.rows.tolist() == [[float(t), 100.0] for t in range(1, 6)]
