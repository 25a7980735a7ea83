"""A student's running jobs, as her own server tells of them."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import eventually

import dlpar
from classroom.hub.classroom import run_apart

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from dlpar.classroom.hub import student_server
from dlpar.jobs.running import end_running, running
from dlpar.lab.exchange import current_offer

pytestmark = pytest.mark.slow


def test_a_report_brings_the_offer_and_the_jobs_to_stop(monkeypatch) -> None:
    monkeypatch.setenv("DLPAR_HUB_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "hers")
    fields = json.loads(dlpar.Experiment().to_json())
    offer = {"id": "7", "by": "grace", "at": time.time(), "experiment": fields}
    own = offer | {"experiment": fields | {"sync": {"scheme": "own", "code": "gASV"}}}
    answers = [
        {"stop": ["another", "hers"], "offer": offer}, {"stop": []}, {"stop": [], "offer": own},
        {"stop": [], "offer": None},
    ]  # fmt: skip
    sent, stopped = [], []

    async def fetch(url: str, body: str, method: str, headers: dict[str, str], validate_cert: bool) -> Any:
        assert (
            url == "http://127.0.0.1:1/services/teacher/report" and headers["Authorization"] == "token hers"
        )
        sent.append(json.loads(body))
        return SimpleNamespace(body=json.dumps(answers[len(sent) - 1]))

    monkeypatch.setattr(student_server, "AsyncHTTPClient", lambda: SimpleNamespace(fetch=fetch))
    monkeypatch.setattr(student_server, "end_running", stopped.append)

    async def report() -> None:
        await student_server.report({})
        await student_server.report({})
        with pytest.raises(ValueError, match="with a scheme of dlpar's"):
            await student_server.report({})
        await student_server.report({})

    run_apart(report())
    assert [one["offer"] for one in sent] == [None, "7", "7", "7"] and current_offer() is None
    assert stopped == ["another", "hers"]


def test_a_running_job_is_activity_is_listed_and_can_be_stopped(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))  # other tests' jobs are not hers
    activity: dict[str, Any] = {}
    assert student_server.state(activity)["jobs"] == [] and activity == {}
    job = dlpar.launch(dlpar.Experiment(workers=2, steps=1_000_000))
    try:
        job.wait_steps(1)
        for another in ("another", "../another", f"../runs/{job.folder.name}", ""):
            end_running(another)
        assert len(student_server.state(activity)["jobs"]) == 1 and "dlpar" in activity
        found = eventually(
            lambda: [told for told in running() if told["ranks"] == 2], 5, "both ranks are seen"
        )
        assert [told["id"] for told in found] == [job.folder.name]
        assert found[0]["says"] == "mlp on digits, ring, 2 workers, real"
        records = job.folder / "job.jsonl"
        queued = json.dumps({"k": "queued", "at": 0.0, "ahead": 1, "paused": False})
        records.write_text(f"{queued}\n{records.read_text()}")  # as of a job that has waited for its slots
        end_running(job.folder.name)
        job._wait_ended(5)
        assert job.run.status == "stopped"
    finally:
        job.stop()
    assert running() == []
