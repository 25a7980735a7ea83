"""The fork server that starts ranks warm: when it leaves, whom it forks for, and what happens without it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import dismiss_fork_server, eventually

import dlpar
from dlpar import Experiment
from dlpar.config.experiment import BadExperiment
from dlpar.config.paths import private_folder, runtime_folder
from dlpar.jobs import fork_server

pytestmark = pytest.mark.slow


def run_stub(path: Path) -> subprocess.CompletedProcess[str]:
    """Run a stub whose fork server listens at `path`, to its end."""
    stub = Path(fork_server.__file__).with_name("stub.py")
    command = [sys.executable, "-S", "-E", str(stub), str(path), "no folder", "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_fork_server_leaves_when_nobody_comes_the_code_changes_or_it_cannot_be_found_any_more(monkeypatch):
    folder = private_folder(runtime_folder() / "own")
    monkeypatch.setenv("DLPAR_RUNTIME", str(folder))
    monkeypatch.setenv("DLPAR_WARM_IDLE", "1.5")
    path = fork_server.warm_socket()
    server = fork_server.started[-1]
    assert fork_server.warm_socket() == path and fork_server.started[-1] is server, (
        "a second asker gets the same server"
    )
    eventually(lambda: server.poll() is not None, 8, "the idle server has left")
    assert not path.exists()

    monkeypatch.setenv("DLPAR_WARM_IDLE", "60")
    fork_server.warm_socket()
    old = fork_server.started[-1]
    monkeypatch.setattr(fork_server, "_fingerprint", lambda: "changed")
    fork_server.warm_socket()
    new = fork_server.started[-1]
    eventually(lambda: old.poll() is not None, 5, "the server of yesterday's code has left")
    assert new is not old and new.poll() is None
    shutil.rmtree(folder)
    eventually(lambda: new.poll() is not None, 8, "the server whose socket is gone has left")


def test_a_fork_server_survives_nonsense_and_forks_for_nobody_else():
    path = fork_server.warm_socket()
    for rubbish in (
        b"",
        b"x",
        b"\0" * 8,
        (1 << 40).to_bytes(8, "big") + b"{}",
        (4).to_bytes(8, "big") + b"nope",
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(rubbish)
    assert dlpar.spmd(lambda comm: comm.rank, workers=2) == [0, 1]
    assert os.stat(path).st_mode & 0o077 == 0


SAYS = """
import resource, dlpar
def told(comm):
    import helping
    return helping.WHO, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(dlpar.spmd(told, workers=1)[0])
"""


def test_ranks_have_the_modules_and_the_limits_of_their_own_launcher(tmp_path):
    """A server would pass on those of the first one, for ten minutes."""
    (tmp_path / "says.py").write_text(SAYS)
    for who, files in (("ada", 700), ("bob", 800)):
        (tmp_path / who).mkdir()
        (tmp_path / who / "helping.py").write_text(f"WHO = {who!r}")
        command = ["prlimit", f"--nofile={files}", sys.executable, str(tmp_path / "says.py")]
        there = {**os.environ, "PYTHONPATH": str(tmp_path / who), "DLPAR_WARM_IDLE": "3"}
        done = subprocess.run(command, env=there, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{(who, files)}\n", done.stderr


def test_a_launch_at_the_moment_the_server_leaves_still_works(monkeypatch):
    monkeypatch.setenv("DLPAR_RUNTIME", str(private_folder(runtime_folder() / "leaving")))
    monkeypatch.setenv("DLPAR_WARM_IDLE", "0.6")
    assert fork_server.warm_socket()
    time.sleep(0.6)
    assert dlpar.spmd(lambda comm: comm.rank, workers=2) == [0, 1]


def test_a_rank_that_is_slow_to_ask_keeps_nobody_waiting_and_starts_cold_if_the_server_leaves(monkeypatch):
    monkeypatch.setenv("DLPAR_RUNTIME", str(private_folder(runtime_folder() / "slow")))
    path = fork_server.warm_socket()
    server = fork_server.started[-1]
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(path))  # a loaded machine may keep it from saying more for many seconds
        assert dlpar.spmd(lambda comm: comm.rank, workers=2) == [0, 1]
        assert dismiss_fork_server()
        slow.settimeout(5)
        assert slow.recv(1) == b"", "the server told it to go elsewhere"
    eventually(lambda: server.poll() is not None, 5, "a dismissed server leaves")

    listener = socket.socket(socket.AF_UNIX)  # a server that takes nobody
    listener.bind(str(path))
    listener.listen()
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    ended = run_stub(path)
    assert "dlpar/jobs/rank.py" in ended.stderr, "the rank started, in a process of its own"
    listener.close()


def test_a_rank_finds_the_library_of_graphs_imported_which_would_take_it_a_second():
    found = dlpar.spmd(lambda comm: {"networkx", "numpy.random"} <= sys.modules.keys(), workers=2)
    assert found == [True, True]


def test_a_stub_ends_as_its_rank_whose_fork_server_was_killed_before_it_had_answered(tmp_path):
    def answer(listener: socket.socket) -> None:
        connection = listener.accept()[0]
        connection.recv(1 << 16)
        connection.sendall(b"7\n")  # the rank's own word
        connection.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        threading.Thread(target=answer, args=[listener], daemon=True).start()
        assert run_stub(tmp_path / "sock").returncode == 7


def test_a_rank_says_by_itself_how_it_ended_whatever_becomes_of_the_fork_server():
    delays = {"kind": "constant", "delay_ms": 10}
    job = dlpar.launch(Experiment(workers=2, steps=50, delays=delays)).wait_steps(1)
    rank = next(record["pid"] for source, record in job.records() if record["k"] == "rank")
    server = psutil.Process(rank).parent()
    server.suspend()
    try:
        eventually(lambda: job.status == "done", 20, "the job ends without a word of the server")
    finally:
        server.resume()


@pytest.mark.timed
def test_a_bad_idle_time_is_refused_before_anything_is_made(monkeypatch):
    monkeypatch.setenv("DLPAR_WARM_IDLE", "ten")
    runs = len(dlpar.runs())
    with pytest.raises(BadExperiment, match="DLPAR_WARM_IDLE: got 'ten', allowed is a number of seconds"):
        dlpar.launch(Experiment())
    assert len(dlpar.runs()) == runs
