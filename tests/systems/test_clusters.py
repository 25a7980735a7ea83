"""Scripts as workers: launched, awaited with their failures, and joined to a cluster by its specification."""

from __future__ import annotations

import time

import pytest

from dlpar.config.schema import BadExperiment
from dlpar.systems.clusters import await_workers, launch_workers, run_cluster, stop_workers

PARAMETER_SERVER = """
import json, os
from multiprocessing.connection import Listener
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["ps"][config["task"]["index"]].split(":")
workers, weight = len(config["cluster"]["worker"]), 0.0
with Listener((host, int(port)), backlog=workers) as listener:
    clients = [listener.accept() for _ in range(workers)]
    for step in range(20):
        weight -= 0.1 * sum(client.recv() for client in clients) / workers
        for client in clients:
            client.send(weight)
result = weight
"""

WORKER = """
import json, os, time
from multiprocessing.connection import Client
config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["ps"][0].split(":")
for attempt in range(200):
    try:
        server = Client((host, int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
weight, goal = 0.0, config["task"]["index"]
for step in range(20):
    server.send(2 * (weight - goal))
    weight = server.recv()
result = weight
"""


@pytest.fixture
def script(tmp_path):
    """Write a script and return its path."""

    def write(text: str, name: str = "script.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_workers_run_a_script_and_their_results_and_failures_are_told_apart(script):
    path = script(
        "import os, sys\nresult = int(os.environ['DLPAR_WORKER'])\n"
        "if result == 1: sys.exit(3)\nif result == 2: raise ValueError('two')\n"
    )
    workers = launch_workers(4, path)
    found = await_workers(workers, timeout=30)
    assert [(each["index"], each["result"]) for each in found["workers"]] == [(0, 0), (3, 3)]
    exited, raised = found["failures"]
    assert exited == {"role": "worker", "index": 1, "error": "exit status 3"}
    assert raised["index"] == 2 and "ValueError: two" in raised["error"] and "script.py" in raised["error"]
    stop_workers(workers)
    assert not workers[0].job.folder.exists()


def test_a_script_imports_what_lies_beside_it_and_a_process_that_dies_is_named(script):
    script("seven = 7", "beside.py")
    path = script(
        "import os, time\nfrom beside import seven as result\n"
        "if os.environ['DLPAR_WORKER'] == '1': time.sleep(0.5); os._exit(3)\n"
        "if os.environ['DLPAR_WORKER'] == '2': time.sleep(60)\n"
    )
    workers = launch_workers(3, path)
    found = await_workers(workers, timeout=30)
    stop_workers(workers)
    assert [(each["index"], each["result"]) for each in found["workers"]] == [(0, 7)]
    assert [each["index"] for each in found["failures"]] == [1, 2]
    assert all("rank 1" in each["error"] and "3" in each["error"] for each in found["failures"]), found


@pytest.mark.parametrize("n", ["3", None, 2.5, 0])
def test_a_number_of_workers_that_is_none_is_refused_in_a_sentence(script, n):
    with pytest.raises(BadExperiment, match=f"^worker processes: got {n}, allowed is a whole number from 1$"):
        launch_workers(n, script("pass"))
    with pytest.raises(BadExperiment, match="^worker script: got 'None', allowed is the path of a file$"):
        launch_workers(1, None)


@pytest.mark.slow
def test_one_that_still_runs_is_a_failure_of_the_wait_and_can_be_stopped(script):
    workers = launch_workers(
        2, script("import os, time\nif os.environ['DLPAR_WORKER'] == '1': time.sleep(60)\n")
    )
    found = await_workers(workers, timeout=5)
    assert [each["index"] for each in found["workers"]] == [0]
    assert found["failures"] == [{"role": "worker", "index": 1, "error": "still running"}]
    began = time.monotonic()
    workers[0].job.stop()
    assert time.monotonic() - began < 3 and workers[0].job.alive == 0
    stop_workers(workers)
    assert not workers[0].job.folder.exists()


def test_a_cluster_of_workers_and_servers_finds_itself_by_tf_config_and_trains(script):
    workers = run_cluster(3, 1, script(WORKER, "worker.py"), script(PARAMETER_SERVER, "server.py"))
    found = await_workers(workers, timeout=30)
    stop_workers(workers)
    assert found["failures"] == []
    # Mean of three squared distances, to 0, 1 and 2: gradient descent with rate 0.1 from 0 leaves 0.8 ** 20 of 1.
    expected = 1 - 0.8**20
    assert [each["result"] for each in found["workers"]] == pytest.approx([expected] * 4)
    assert [each["role"] for each in found["workers"]] == ["worker"] * 3 + ["ps"]


def test_a_script_that_is_not_there_is_refused_in_a_sentence(script):
    with pytest.raises(
        BadExperiment, match="^worker script: got '/nowhere.py', allowed is the path of a file"
    ):
        launch_workers(2, "/nowhere.py")
    with pytest.raises(BadExperiment, match="^ps script: got"):
        run_cluster(1, 1, script("pass"), "/nowhere.py")
    with pytest.raises(BadExperiment, match="^workers: got 65"):
        launch_workers(65, script("pass"))
