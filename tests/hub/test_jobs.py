"""A student's running jobs, as her own server tells of them."""

from __future__ import annotations

import pytest
from conftest import eventually

import dlpar

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from dlpar.hub import jobs, jobs_api  # noqa: E402

pytestmark = pytest.mark.slow


def test_a_running_job_is_activity_is_listed_and_can_be_stopped() -> None:
    settings = {"last_activity_times": {}}
    jobs_api.note_activity(settings)
    assert settings == {"last_activity_times": {}} and jobs.running() == []
    with pytest.raises(jobs.CannotStop, match="which is not running"):
        jobs.stop("another")
    with pytest.raises(jobs.CannotStop, match="allowed is the id of a running job"):
        jobs.stop("../another")

    job = dlpar.launch(dlpar.Experiment(workers=2, steps=1_000_000))
    try:
        job.wait_steps(1)
        jobs_api.note_activity(settings)
        assert "dlpar" in settings["last_activity_times"]
        found = eventually(lambda: [told for told in jobs.running() if told["ranks"] == 2], 5, "both ranks are seen")
        assert [told["id"] for told in found] == [job.folder.name]
        assert found[0]["says"] == "mlp on digits, ring, 2 workers, real" and found[0]["memory"] > 10 << 20
        jobs.stop(job.folder.name)
        job._wait_ended(5)
        assert job.run.status == "stopped"
    finally:
        job.stop()
    assert not jobs.any_running() and jobs.running() == []
