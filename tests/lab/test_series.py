import numpy as np
import pytest

from dlpar.lab.live.throughput import Rate
from dlpar.lab.live_plot import Series


def test_long_curve_keeps_measured_rows_at_a_stride_that_is_a_power_of_two():
    series = Series(2, limit=100)
    for i in range(20_001):
        series.add((i, i * i))
        assert len(series) <= 100
    steps = series.rows[:, 0]
    assert series.stride == 256
    assert (np.diff(steps) == 256).all() and steps[0] == 0
    assert (series.rows[:, 1] == steps**2).all()


def test_short_curve_keeps_every_row():
    series = Series(1, limit=100)
    for i in range(100):
        series.add((i,))
    assert series.rows[:, 0].tolist() == list(range(100)) and series.stride == 1


def test_reader_that_takes_only_what_is_new_sees_what_is_held():
    series, seen = Series(1, limit=50), np.empty((0, 1))
    for i in range(1000):
        series.add((i,))
        if i % 7 == 0:
            whole, rows = series.take_new()
            seen = rows.copy() if whole else np.concatenate([seen, rows])
            assert (seen == series.rows).all()


def test_curve_ends_on_its_last_row_once():
    series = Series(1, limit=4)
    for i in range(10):
        series.add((i,))
    series.finish((9,))
    series.finish((9,))
    assert series.rows[:, 0].tolist()[-1] == 9 and (np.diff(series.rows[:, 0]) > 0).all()
    assert len(series) <= 4


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
