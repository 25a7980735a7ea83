"""The command that starts ranks: the words of each MPI, and what happens without one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import eventually

import dlpar
from dlpar import Experiment
from dlpar.worlds import mpiexec

pytestmark = pytest.mark.slow


def fake(folder: Path, said: str, name: str = "mpiexec") -> str:
    """A program that answers --version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{said}\nEOF\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("said", "dialect", "flag"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", "openmpi5", "--oversubscribe"),
        ("prterun (PRRTE) 3.0.13\nOpen MPI 5.0.11", "openmpi5", "--output"),
        ("mpirun (Open MPI) 4.1.4", "openmpi4", "--tag-output"),
        ("HYDRA build details:\n    Version: 4.2.0", "hydra", "-prepend-rank"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "hydra", "-prepend-rank"),
        ("something else 1.0", "plain", "-n"),
    ],
)
def test_each_mpi_is_spoken_to_in_its_own_words(tmp_path, monkeypatch, said, dialect, flag):
    monkeypatch.setenv("DLPAR_MPIEXEC", fake(tmp_path, said))
    mpiexec.find_starter.cache_clear()
    try:
        starter = mpiexec.find_starter()
    finally:
        mpiexec.find_starter.cache_clear()
    command = starter.command(3, ["python", "x.py"])
    assert starter.dialect == dialect and flag in command
    assert command[-4:] == ["-n", "3", "python", "x.py"]


def test_inside_a_slurm_allocation_the_sites_own_starter_wins(tmp_path, monkeypatch):
    fake(tmp_path, "slurm 24.05", name="srun")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    mpiexec.find_starter.cache_clear()
    try:
        command = mpiexec.find_starter().command(8, ["python"])
    finally:
        mpiexec.find_starter.cache_clear()
    assert command == [str(tmp_path / "srun"), "--label", "--mpi=pmix", "--overlap", "-n", "8", "python"]


def test_a_missing_mpi_is_one_clear_sentence(monkeypatch):
    monkeypatch.setenv("DLPAR_MPIEXEC", "/no/such/mpiexec")
    mpiexec.find_starter.cache_clear()
    with pytest.raises(mpiexec.NoMPI, match="DLPAR_MPIEXEC: got '/no/such/mpiexec', allowed is"):
        dlpar.launch(Experiment())
    mpiexec.find_starter.cache_clear()


SINGLETONS = """#!/bin/sh
[ "$1" = --version ] && { echo "%s"; exit; }
while [ "$1" != -n ]; do shift; done
ranks=$2; shift 2
for rank in $(seq $ranks); do "$@" & done
%s
"""


COLD, WARM = "other 1.0", "mpirun (Open MPI) 5.0.3"


@pytest.mark.parametrize(
    "version, ending",
    [
        (COLD, "wait"),
        (COLD, "exit 0"),
        (WARM, "wait"),
        (WARM, "exit 0"),
        (WARM, "wait; echo the launcher has ended"),
        (WARM, "wait; exit 3"),
    ],
)
def test_an_mpiexec_that_starts_singletons_is_caught(tmp_path, monkeypatch, version, ending):
    """Two MPIs that do not belong together give N worlds of one rank: the ranks notice, and their caller is told."""
    path = tmp_path / "mpiexec"
    path.write_text(SINGLETONS % (version, ending))
    path.chmod(0o755)
    monkeypatch.setenv("DLPAR_MPIEXEC", str(path))
    mpiexec.find_starter.cache_clear()
    sentence = (
        "^workers: got a world of 1 ranks, allowed is 2: this launcher and this MPI do not belong together"
    )
    try:
        with pytest.raises(dlpar.JobFailed, match=sentence):
            dlpar.spmd(lambda comm: None, workers=2)
        job = dlpar.launch(Experiment(workers=2, steps=2))
        with pytest.raises(dlpar.JobFailed, match=sentence):
            job.wait(60)
        assert job.run.status == "failed"
    finally:
        mpiexec.find_starter.cache_clear()


def test_an_mpiexec_that_starts_nothing_is_caught(tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_MPIEXEC", fake(tmp_path, "not today"))
    mpiexec.find_starter.cache_clear()
    try:
        for start in (lambda: dlpar.spmd(lambda comm: None), lambda: dlpar.launch(Experiment()).wait(60)):
            with pytest.raises(dlpar.JobFailed, match="^mpiexec ended before any rank began: not today$"):
                start()
    finally:
        mpiexec.find_starter.cache_clear()


LISTENER = """
import socket, sys
four, six = socket.create_server(("", 0)), socket.create_server(("::", 0), family=socket.AF_INET6)
print(four.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_nobody_else_s_machine_reaches_a_socket_that_is_kept_to_loopback():
    addresses = [a.address for of in psutil.net_if_addrs().values() for a in of if a.family == socket.AF_INET]
    own = next((address for address in addresses if not address.startswith("127.")), None)
    if own is None or sys.platform != "linux":
        pytest.skip("there is no network to keep out")
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as listener:
        port = int(listener.stdout.readline())
        socket.create_connection((own, port), 5).close()
        for _ in range(2):  # a second time changes nothing
            mpiexec.keep_to_loopback(listener.pid)
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(OSError):
            socket.create_connection((own, port), 5)
        listener.stdin.close()


@pytest.mark.parametrize("carrier", ["mpi", "gloo"])
def test_a_job_on_one_machine_listens_to_that_machine_alone(carrier):
    """No packet from elsewhere reaches a socket that is bound to the loopback device or address."""
    delays = {"kind": "constant", "delay_ms": 20}
    job = dlpar.launch(Experiment(workers=2, steps=10_000, delays=delays, cluster={"carrier": carrier}))
    eventually(lambda: len(job.run.steps) > 4, 30, "it runs")
    launcher = psutil.Process(job._guardian.pid)
    ours = [p for p in launcher.children(recursive=True) if "prte" in p.name() or "mpiexec" in p.name()]
    ours += [psutil.Process(pid) for pid in job.run.ranks["pid"]]
    heard = [c.laddr for p in ours for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    everywhere = [address for address in heard if address.ip in ("0.0.0.0", "::")]
    own = [a.address for of in psutil.net_if_addrs().values() for a in of if a.family == socket.AF_INET]
    reached = []
    for port in {address.port for address in everywhere}:
        for address in own:
            try:
                socket.create_connection((address, port), 5).close()
            except OSError:
                continue
            reached.append((address, port))
    job.stop()
    assert heard and all(address.startswith("127.") for address, _ in reached)
    assert all(address.ip in ("0.0.0.0", "::", "127.0.0.1", "::1") for address in heard)


@pytest.mark.timed
def test_hosts_that_do_not_answer_are_waited_for_together(tmp_path, monkeypatch):
    agent, hosts = tmp_path / "agent", tmp_path / "hosts"
    agent.write_text("#!/bin/sh\nexec sleep 30\n")
    agent.chmod(0o755)
    hosts.write_text("\n".join(f"192.0.2.{n}" for n in range(1, 6)))
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    monkeypatch.setattr(mpiexec, "ANSWER", 1.0)
    began = time.monotonic()
    mpiexec.Starter("mpiexec", "openmpi5", "").command(7, ["program"], str(hosts))
    assert time.monotonic() - began < 3  # not a second for each of five
