"""Jobs on two hosts: network namespaces on this machine, joined by a wire.  Only root may make them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import eventually

from dlpar import Run, runs
from dlpar.config.paths import runs_folder
from dlpar.jobs.processes import die_with_parent
from dlpar.theory.layers import sizes
from dlpar.worlds import mpiexec

PROGRAMS = ("unshare", "nsenter", "ip", "tc")
MISSING = [name for name in PROGRAMS if not shutil.which(name)] + ["root"] * (os.getuid() != 0)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"HOSTS ARE NOT TESTED: missing here: {', '.join(MISSING)}"),
]

HOST = """
hostname {own}
printf '127.0.0.1 localhost\\n10.77.0.1 one\\n10.77.0.2 two\\n' >{folder}/hosts
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
echo ready
exec sleep 1000
"""
WIRE = "ip addr add 10.77.0.{number}/24 dev wire; ip link set wire up; tc qdisc add dev wire root tbf {queue}"
QUEUE = "rate 100mbit burst 64kb latency 12ms"


class Hosts:
    """Two hosts that are gone with this process; `names` are what they call themselves."""

    def __init__(self, folder: Path, names: tuple[str, str] = ("one", "two"), queue: str = QUEUE) -> None:
        self.hosts = []
        for name in names:
            script = HOST.format(own=name, folder=folder)
            alone = ["unshare", "--net", "--uts", "--mount", "bash", "-ec", script]
            host = subprocess.Popen(alone, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
            self.hosts.append(host)
            assert host.stdout.readline() == b"ready\n"
        one, two = (host.pid for host in self.hosts)
        subprocess.run(
            f"ip link add wire netns {one} type veth peer name wire netns {two}", shell=True, check=True
        )
        for number, pid in ((1, one), (2, two)):
            done = subprocess.run(self.on(pid, "sh", "-ec", WIRE.format(number=number, queue=queue)))
            assert done.returncode == 0
        agent = folder / "agent"
        bare = "env -i HOME=/root PATH=/usr/bin:/bin"  # as ssh, which passes no variables
        agent.write_text(f'#!/bin/bash\nshift\nexec {" ".join(self.on(two))} {bare} bash -c "$*"\n')
        agent.chmod(0o755)
        self.file = folder / "hostfile"
        self.file.write_text("one slots=1\ntwo slots=1\n")
        self.environment = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}

    def on(self, pid: int, *command: str) -> list[str]:
        return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", f"--wd={os.getcwd()}", *command]

    def begin(self, *command: str) -> subprocess.Popen:
        """Start a command on the first host."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = self.on(self.hosts[0].pid, *command)
        return subprocess.Popen(command, env=self.environment, preexec_fn=die_with_parent, **pipes)

    def train(self, *flags: str) -> subprocess.Popen:
        dlpar = [sys.executable, "-m", "dlpar.cli", "run", "--workers", "2", "--threads", "1", "--json"]
        return self.begin(*dlpar, "--hostfile", str(self.file), "--timeout", "20", *flags)

    def pull_the_plug(self) -> None:
        subprocess.run(self.on(self.hosts[1].pid, "ip", "link", "set", "wire", "down"), check=True)

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
            host.wait()


@pytest.fixture
def hosts(tmp_path):
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


def test_a_hostfile_gives_hosts_and_their_slots(tmp_path):
    (tmp_path / "hosts").write_text(
        "# two racks\na slots=2\n b max-slots=8 slots = 4 # new\n\nc # slots=16\na slots=1\n"
    )
    assert mpiexec.hosts_of(str(tmp_path / "hosts")) == {"a": 3, "b": 4, "c": None}


def test_who_is_asked_for_a_name_is_gone_when_two_are_alike(tmp_path, monkeypatch):
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\n[ $1 = 198.51.100.3 ] && exec sleep 60\necho same\n")
    agent.chmod(0o755)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    (tmp_path / "hosts").write_text("198.51.100.1\n198.51.100.2\n198.51.100.3\n")
    monkeypatch.setattr(mpiexec, "ANSWER", 2.0)
    monkeypatch.setattr(mpiexec, "_is_here", lambda host: False)
    with pytest.raises(mpiexec.NoMPI, match="198.51.100.2 calls itself 'same', as 198.51.100.1 does"):
        mpiexec._check_names(str(tmp_path / "hosts"))
    left = [child for child in psutil.Process().children() if "sleep" in child.name()]
    assert psutil.wait_procs(left, 5)[1] == []


def test_a_host_that_vanishes_is_named_and_nothing_is_left_on_it(hosts):
    before = {run.id for run in runs()}
    job = hosts.train("--steps", "1000000")
    run = eventually(lambda: [run for run in runs() if run.id not in before], 60, "there is a run")[0]
    eventually(lambda: len(set(run.steps["rank"])) == 2, 90, "both ranks train")
    assert list(run.ranks["host"]) == ["one", "two"]
    hosts.pull_the_plug()
    _, said = job.communicate(timeout=20)
    assert job.returncode == 1 and said.startswith("dlpar run: host two is down or cannot be reached")
    assert run.reason == "host two is down or cannot be reached" and run._end()["rank"] == 1
    mine = lambda: [p for p in psutil.process_iter(["cmdline"]) if str(run.path) in (p.info["cmdline"] or [])]
    eventually(lambda: not mine(), 15, "no rank is left, on the host that is cut off neither")


ORDERS = """
import sys, time
from dlpar import Experiment, launch
deaths = {"on_death": "shrink"}
e = Experiment(workers=2, steps=10**6, deaths=deaths, cluster={"hostfile": sys.argv[1], "threads": 1})
job = launch(e)
def eventually(found):
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end and not job.ended, job.run.reason
        time.sleep(0.1)
eventually(lambda: set(job.run.steps["rank"]) == {0, 1})
job.slow(1, 3.0)
job.pause(1, 0.5)
orders = lambda: job.run.events.query("name == 'ordered' and source == 'rank-1'")
eventually(lambda: len(orders()) == 2)
job.kill(1)
eventually(lambda: len(job.run.events.query("name == 'death' and source == 'rank-0'")))
done = job.run.steps["step"].max()
eventually(lambda: job.run.steps["step"].max() > done + 50)
try:
    job.kill(1)
except ValueError as error:
    print(error)
job.stop()
"""


def test_a_rank_of_another_host_is_slowed_paused_and_killed_and_the_other_goes_on(hosts):
    told = hosts.begin(sys.executable, "-c", ORDERS, str(hosts.file))
    said, complaint = told.communicate(timeout=110)
    assert said.startswith("rank: got 1, allowed is one of [0], alive now"), complaint


APART = """
import sys, time
from dlpar import Experiment, launch
slow = {"kind": "constant", "delay_ms": 10.0}
job = launch(Experiment(workers=2, steps=100, delays=slow, sync="relay", cluster={"hostfile": sys.argv[1]}))
end = time.monotonic() + 60
while not len(job.run.steps) and time.monotonic() < end:
    time.sleep(0.1)
try:
    job.slow(1)
except ValueError as error:
    print(error)
print(job.wait(60).steps.groupby("rank").size().tolist(), job.run.ranks["threads"].tolist())
"""


def test_hosts_without_a_shared_run_folder_bring_their_records_home_and_take_no_orders(hosts):
    """A rank of another host reads the plug-ins, too, and has a share of its own host's cores."""
    hosts.environment |= {"DLPAR_PLUGINS": "relay", "PYTHONPATH": str(Path(__file__).parents[1] / "plugins")}
    runs_folder().mkdir(parents=True, exist_ok=True)
    hide = ["mount", "-t", "tmpfs", "none", str(runs_folder())]
    assert subprocess.run(hosts.on(hosts.hosts[1].pid, *hide)).returncode == 0
    said, complaint = hosts.begin(sys.executable, "-c", APART, str(hosts.file)).communicate(timeout=110)
    cores = [len(os.sched_getaffinity(0))] * 2
    assert said == f"rank: got 1, allowed is one of [0], alive now\n[100, 100] {cores}\n", complaint


def test_hosts_of_one_name_are_refused(tmp_path):
    """Open MPI's launcher would wait for ever."""
    hosts, began = Hosts(tmp_path, ("one", "one")), time.monotonic()
    _, said = hosts.train().communicate(timeout=60)
    hosts.close()
    sentence = "cluster.hostfile: two calls itself 'one', as this machine does; each host needs its own name"
    assert sentence in said and time.monotonic() - began < 30


RING = ["--width", "640", "--batch", "32"]
PIPELINE = ["--width", "512", "--batch", "360", "--split", "pipeline", "--microbatches", "4"]
SERVER = ["--width", "1024", "--batch", "32", "--sync", "ps"]
MEASURE = "import sys, json; from dlpar.theory.calibrate import between_hosts as b; p = b(sys.argv[1]); "
MEASURE += "print(json.dumps({**p, 'between': p['between'].model_dump()}))"


@pytest.fixture(scope="module")
def quick_hosts(tmp_path_factory):
    """Two hosts on a wire of 200 Mbit/s, and the figures that calibration finds for them."""
    hosts = Hosts(tmp_path_factory.mktemp("hosts"), queue="rate 200mbit burst 16kb latency 12ms")
    measuring = hosts.begin(sys.executable, "-c", MEASURE, str(hosts.file))
    yield hosts, json.loads(measuring.communicate(timeout=60)[0])
    hosts.close()


@pytest.mark.timed
@pytest.mark.parametrize("flags", [RING, PIPELINE, SERVER], ids=["ring", "pipeline", "ps"])
def test_two_hosts_train_as_fast_as_simulated_on_the_link_that_was_measured(quick_hosts, flags, tmp_path):
    hosts, nodes = quick_hosts
    assert 21e6 < nodes["between"]["bandwidth"] < 25e6 and nodes["nodes"] == 2
    nodes = {**nodes, "devices": 2 if flags is SERVER else 1}
    hosts.file.write_text(f"one slots={nodes['devices']}\ntwo slots=1\n")
    flags = ["--evaluate-every", "0", "--steps", "12", *flags]
    said, complaint = hosts.train(*flags).communicate(timeout=90)
    assert said, complaint
    run = Run(json.loads(said)["run"])
    steps = run.steps.query("step > 2").groupby("rank")
    seconds, computing = float(steps["t"].diff().median()), float(steps["compute"].median().sum())
    batch = run.experiment.batch
    core = {"name": "core", "flops": sizes(run.experiment).flops * batch / computing}
    (tmp_path / "two.json").write_text(
        json.dumps({"name": "two", "device": core, "inside": nodes["between"], **nodes})
    )
    paper = ["--world", "simulated", "--messages", "sizes", "--platform", f"{tmp_path}/two.json"]
    simulated = subprocess.run(
        [sys.executable, "-m", "dlpar.cli", "run", "--json", "--workers", "2", *paper, *flags],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert batch / seconds == pytest.approx(json.loads(simulated.stdout)["samples_per_s"], rel=0.1)
