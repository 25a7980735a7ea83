"""A student's running jobs, as her own server tells of them."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import eventually

import dlpar
from classroom.hub.classroom import run_apart

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from dlpar.classroom.hub import student_server

pytestmark = pytest.mark.slow


def test_a_post_of_neither_job_nor_offer_is_refused_by_name() -> None:
    class Hub:
        async def get_user(self, handler: Any, sync: bool) -> dict[str, Any]:
            return {"scopes": [student_server.MAY_SEE_JOBS]}

    async def post(body: str) -> Any:
        server = HTTPServer(Application([("/jobs", student_server.Jobs)], dlpar_hub=Hub()))
        sockets = bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/jobs"
        headers = {"Authorization": "token t"}
        try:
            return await AsyncHTTPClient().fetch(
                url, method="POST", body=body, headers=headers, raise_error=False
            )
        finally:
            server.stop()

    refused = run_apart(post("{}"))
    words = "stop, offer, runs, experiment: got none of them, allowed is one"
    assert (refused.code, refused.reason) == (409, words)
    refused = run_apart(post('{"stop": "another"}'))
    assert (refused.code, refused.reason) == (409, "job: got 'another', which is not running")


def test_a_running_job_is_activity_is_listed_and_can_be_stopped() -> None:
    settings = {"last_activity_times": {}}
    student_server.note_activity(settings)
    assert settings == {"last_activity_times": {}} and student_server.running() == []
    with pytest.raises(ValueError, match="which is not running"):
        student_server.stop("another")
    with pytest.raises(ValueError, match="allowed is the id of a running job"):
        student_server.stop("../another")

    job = dlpar.launch(dlpar.Experiment(workers=2, steps=1_000_000))
    try:
        job.wait_steps(1)
        student_server.note_activity(settings)
        assert "dlpar" in settings["last_activity_times"]
        found = eventually(
            lambda: [told for told in student_server.running() if told["ranks"] == 2],
            5,
            "both ranks are seen",
        )
        assert [told["id"] for told in found] == [job.folder.name]
        assert (
            found[0]["says"] == "mlp on digits, ring, 2 workers, real" and student_server.memory() > 10 << 20
        )
        student_server.stop(job.folder.name)
        job._wait_ended(5)
        assert job.run.status == "stopped"
    finally:
        job.stop()
    assert not student_server.any_running() and student_server.running() == []
