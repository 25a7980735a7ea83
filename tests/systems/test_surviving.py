"""The figures of jobs that die: simulated, exact and Young's curves, and where the time went."""

from __future__ import annotations

import pytest

from dlpar import lab
from dlpar.lab.figures import caption, table
from dlpar.theory import goodput, young_interval
from dlpar.worlds.simulated.failures import FailingJob

JOB = FailingJob(5.0, mtbf=10_000.0, snapshot=30.0, detecting=20.0, restarting=280.0)


def test_goodput_is_drawn_over_the_interval_beside_the_exact_form_and_youngs():
    figure = lab.goodput(
        {"ends": JOB, "shrinks": FailingJob(5.0, mtbf=10_000.0, on_death="shrink", replicas=64)}, 900
    )
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["ends", "shrinks", "exact form", "Young's formula", "you said"]
    ends, exact, young, *_, said = figure.data
    for seconds, share in zip(ends.x, ends.y):
        assert share == pytest.approx(100 * goodput(seconds, 30, 10_000, 300), abs=4)
    assert max(exact.y) == pytest.approx(100 * goodput(767, 30, 10_000, 300), abs=0.1)
    (stroke,) = [x for x, size in zip(young.x, young.marker.size) if size]
    assert stroke == pytest.approx(young_interval(30, 10_000)) and set(said.x) == {900}
    assert exact.line.dash == "dash" and young.opacity < 1 and not young.line.dash
    assert caption(figure).startswith("Simulated, the best of these intervals: ends: 90")
    assert list(table(figure)) == ["job", "between snapshots (s)", "goodput (%)"]


def test_the_time_of_jobs_is_drawn_by_kind_up_to_all_of_it():
    lives = {
        f"every {n}": FailingJob(4.0, 1.0, mtbf=5000.0, every=n, snapshot=9.0, restarting=60.0)
        for n in (1, 50)
    }
    figure = lab.time_spent({name: job.run(most=200).seconds for name, job in lives.items()}, "simulated")
    assert [sum(trace.x[row] for trace in figure.data) for row in (0, 1)] == pytest.approx([100, 100])
    assert "snapshot" in [trace.name for trace in figure.data]
    assert caption(figure).startswith("Spent on steps that count (simulated): every 1: 3")


def test_no_job_is_refused():
    with pytest.raises(ValueError, match="jobs: got none, or one that never fails"):
        lab.goodput({"calm": FailingJob(5.0, snapshot=30.0)})
    with pytest.raises(ValueError, match="jobs: got none"):
        lab.goodput({})
