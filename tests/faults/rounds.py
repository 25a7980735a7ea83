"""One round: a small job of any kind, a fault, and a look at what is left, what was said and what was recorded."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import breaking
import psutil

import dlpar
from dlpar import BadExperiment, Experiment, Run
from dlpar.config.paths import runtime_folder
from dlpar.jobs import fork_server
from dlpar.jobs.scratch import _memory_prefix, is_locked
from dlpar.jobs.tail import lines_of

WITHIN = 2.0
"""Seconds after a fault, or after the time-out of one that makes ranks hang, in which all must be gone."""

TIMEOUT = 3.0
"""Time-out of jobs whose ranks hang."""

PATIENCE = 90.0
"""Seconds for which a round waits for a job to start, or to end by itself."""

SCHEMES: dict[str, Any] = {
    "mapreduce": "mapreduce",
    "ring": "ring",
    "library": {"scheme": "ring", "allreduce": "library"},
    "ps bsp": {"scheme": "ps", "servers": 2},
    "ps ssp": {"scheme": "ps", "consistency": "ssp"},
    "ps asp": {"scheme": "ps", "consistency": "asp"},
    "gossip": "gossip",
    "pairwise": {"scheme": "gossip", "exchange": "pairwise"},
    "push-sum": {"scheme": "gossip", "exchange": "push_sum"},
    "hogwild": "hogwild",
    "own": breaking.star,
}
SPLITS: dict[str, Any] = {
    "data": "data", "zero": {"kind": "data", "zero": 3}, "tensor": "tensor", "spatial": "spatial",
    "pipeline": {"kind": "pipeline", "microbatches": 2}, "hybrid": "hybrid",
}  # fmt: skip
WORLDS = ("real", "paced", "simulated")


class Kind(NamedTuple):
    """A kind of fault.

    Attributes
    ----------
    says : str
        Pattern of the message; ``WHO`` stands for the rank's name.
    of_all : str
        Pattern in the simulated world, where all ranks are one process, if it differs.
    strike : callable, optional
        What happens to a round's job from outside.
    inside : str
        Function of :mod:`breaking` that a rank calls.
    status : str
        Status of the run in the end.
    hangs : bool
        Whether the job is ended by its time-out.
    limits : dict
        Limits of the process that starts the job, which is one of its own.
    cold : bool
        Whether ranks are processes of their own, which have those limits too.
    fixed : dict
        Fields of the experiment.
    """

    says: str
    of_all: str = ""
    strike: Callable[[Round], None] | None = None
    inside: str = ""
    status: str = "failed"
    hangs: bool = False
    limits: dict[str, int] | None = None
    cold: bool = False
    fixed: dict[str, Any] = {}  # noqa: RUF012


class Result(NamedTuple):
    """What a round showed: what it was, the faults it found, and the seconds until all was gone."""

    kind: str
    world: str
    scheme: str
    split: str
    complaints: list[str]
    seconds: float


class Round:
    """One round.

    Parameters
    ----------
    root : Path
        Private folder of all rounds; the processes of a round know it by ``$DLPAR_RUNTIME``.
    name : str
        Kind of fault.
    seed : str
        Chooses all else.
    """

    def __init__(self, root: Path, name: str, seed: str) -> None:
        self.root, self.name, self.kind, self.random = root, name, KINDS[name], random.Random(seed)
        self.mark = root / "struck"
        self.home = root / ("disk" if name == "disk full" else "home")
        self.job: dlpar.Job | None = None
        self.owner: subprocess.Popen | None = None
        self.struck = 0.0

    def play(self) -> Result:
        """Choose a job, start it, have the fault happen, and look."""
        self._choose()
        self.mark.unlink(missing_ok=True)
        fault = {
            "name": self.kind.inside,
            "rank": self.victim,
            "step": self.random.randrange(6),
            "mark": str(self.mark),
        }
        os.environ["DLPAR_HOME"] = str(self.home)
        os.environ["DLPAR_FAULT"] = json.dumps(fault if self.kind.inside else {})
        os.environ.pop("DLPAR_WARM_IDLE", None)
        if self.kind.cold or (self.kind.inside and self.random.random() < 0.1):
            os.environ["DLPAR_WARM_IDLE"] = "0"
        self._start()
        if self.kind.strike:
            self.struck = self.kind.strike(self) or time.time()
        complaints = self._judge()
        gone = f"{self.name}: {self.world}, {self.scheme}, {self.split}, victim {self.victim}"
        return Result(
            self.name, self.world, self.scheme, self.split, [f"{gone}: {c}" for c in complaints], self.seconds
        )

    # ---- the job ------------------------------------------------------------------

    def _choose(self) -> None:
        """Choose a world, a scheme and a split that go together, and the rank that is to fail."""
        choose = self.random.choice
        fixed = {"timeout": TIMEOUT if self.kind.hangs else 30.0}
        while True:
            self.world, self.scheme, self.split = choose(WORLDS), choose(list(SCHEMES)), choose(list(SPLITS))
            cnn = self.split == "spatial"
            fields = {
                "model": {"name": "cnn" if cnn else "mlp", "width": 16, "depth": 2 if cnn else 5},
                "batch": 24, "workers": choose([2, 3, 4]), "evaluate_every": 10**7,
                "steps": 150 if self.kind.status == "done" else 10**6, "sync": SCHEMES[self.scheme],
                "split": SPLITS[self.split], "delays": {"kind": "constant", "delay_ms": 5},
                "cluster": {"world": self.world, **fixed}, **self.kind.fixed,
            }  # fmt: skip
            with suppress(BadExperiment):
                self.experiment = Experiment(**fields)
                break
        e = self.experiment
        servers = range(e.workers, e.ranks)
        if self.name == "server killed" and (self.world == "simulated" or not servers):
            return self._choose()
        self.victim = choose(servers) if self.name == "server killed" else choose(range(e.workers))

    def _start(self) -> None:
        self.folder = None
        if self.kind.limits is not None:
            asked = {"limits": self.kind.limits, "experiment": json.loads(self.experiment.to_json())}
            command = [sys.executable, str(Path(__file__).with_name("owner.py")), json.dumps(asked)]
            self.owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.said = self.owner.stdout.readline()
            if "/" in self.said.split(" ")[0]:
                self.folder = Path(self.said.strip())
        else:
            self.job = dlpar.launch(self.experiment)
            self.folder = self.job.folder

    def wait_steps(self) -> None:
        """Wait until every worker has done some steps."""
        wanted, files = self.random.randrange(20), self.experiment.workers
        if self.world == "simulated":
            files = 1
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process() is None:
            found = list(self.folder.glob("rank-*.jsonl"))
            if len(found) >= files and all(
                f.read_bytes().count(b'"step"') > wanted or self._serves(f) for f in found
            ):
                return
            time.sleep(0.01)

    def _serves(self, file: Path) -> bool:
        return next(iter(lines_of(file)), {}).get("role", "worker") != "worker"

    def _process(self) -> int | None:
        """Return the exit status of the process that guards the job; None while it lives."""
        return self.job._guardian.poll() if self.job else None

    def pid_of(self, rank: int) -> int:
        """Return the process of a rank, as its header says."""
        name = "rank-all" if self.world == "simulated" else f"rank-{rank}"
        return next(iter(lines_of(self.folder / f"{name}.jsonl")))["pid"]

    def guardian(self) -> psutil.Process:
        """Return the process that guards the job."""
        return psutil.Process(
            next(r["pid"] for r in lines_of(self.folder / "job.jsonl") if r["k"] == "launch")
        )

    def below(self, word: str) -> list[psutil.Process]:
        """Return the guardian's descendants whose command has a word."""
        return [p for p in self.guardian().children(recursive=True) if word in " ".join(p.cmdline())]

    # ---- the verdict --------------------------------------------------------------

    def _judge(self) -> list[str]:
        found = []
        self._wait_for_the_fault()
        allowed = WITHIN + (TIMEOUT + 0.5) * self.kind.hangs
        while (left := self.left()) and time.time() - self.struck < allowed + 3:
            time.sleep(0.02)
        self.seconds = time.time() - self.struck
        if self.seconds > allowed:
            found.append(f"after {self.seconds:.1f} s of {allowed:g} there {'is' if left else 'was'}: {left}")
        reason = self._reason()
        wanted = (self.world == "simulated" and self.kind.of_all) or self.kind.says
        if not re.search(wanted.replace("WHO", rf"rank {self.victim}( \([\w ]+\))?"), reason):
            found.append(f"it says {reason!r}")
        if self.folder and self.folder.exists():
            found += self._unreadable()
            status = Run(self.folder).status
            if status != self.kind.status:
                found.append(f"its status is {status}")
        self._end_all(left)
        return found

    def _wait_for_the_fault(self) -> None:
        """Wait until the fault has happened; one that lets the job go on is over when that ends."""
        deadline = time.time() + PATIENCE
        while (
            self.kind.inside and not self.mark.exists() and time.time() < deadline and self._process() is None
        ):
            time.sleep(0.01)
        if self.mark.exists():
            self.struck = float(self.mark.read_text() or time.time())
        if self.kind.status == "done" and self.job:
            with suppress(dlpar.JobFailed, TimeoutError):
                self.job.wait(PATIENCE)
            self.struck = time.time() - WITHIN / 2
        self.struck = self.struck or time.time()

    def left(self) -> list[str]:
        """Name the processes, sockets and files that are left of the job; the fork server stays by right."""
        found, mine = [], f"DLPAR_RUNTIME={os.environ['DLPAR_RUNTIME']}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                environment, command = (Path("/proc", name, f).read_bytes() for f in ("environ", "cmdline"))
                words = command.decode(errors="replace").split("\0")[:-1]
                if mine in environment and int(name) != os.getpid() and not self._stays(int(name), words):
                    found.append(f"process {name} ({' '.join(words)[-80:]})")
        sockets = [
            line.split()[-1]
            for line in Path("/proc/net/unix").read_text().splitlines()
            if str(self.root) in line
        ]
        found += [f"socket {path}" for path in sockets if not Path(path).name.startswith("warm-")]
        found += [
            str(p)
            for p in runtime_folder().iterdir()
            if not p.name.startswith("warm-") and p.name != "memory"
        ]
        found += [str(p) for p in Path("/dev/shm").glob(f"{_memory_prefix()}*")]
        found += [str(p) for p in Path(os.environ["TMPDIR"]).iterdir()]
        if self.folder and self.folder.exists() and is_locked(self.folder):
            found.append("the lock")
        return found

    def _stays(self, pid: int, words: list[str]) -> bool:
        """Return whether a process may stay: a fork server, and the process that starts jobs under limits."""
        if self.owner and pid == self.owner.pid:
            return self.name != "owner killed"
        return fork_server.__name__ in words and os.getsid(pid) == pid

    def _reason(self) -> str:
        """Return what the job's owner is told."""
        if self.owner:
            if self.name == "owner killed":
                return Run(self.folder).reason
            return self.said + self.owner.communicate(timeout=PATIENCE)[0]
        try:
            self.job.wait(PATIENCE)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "done"

    def _unreadable(self) -> list[str]:
        """Find whole lines of records that cannot be read, and steps that are missing in between."""
        found = []
        for file in self.folder.glob("rank-*.jsonl"):
            torn, steps = 0, {}
            for line in file.read_bytes().splitlines(keepends=True):
                try:
                    record = json.loads(line)
                    if record["k"] == "step":
                        steps.setdefault(record.get("rank"), []).append(record["step"])
                except ValueError:
                    torn += line.endswith(b"\n")
            if torn > (self.name in ("disk full", "ulimit -f")):
                found.append(f"{file.name}: {torn} lines cannot be read")
            if any(own != list(range(own[0], own[0] + len(own))) for own in steps.values()):
                found.append(f"{file.name}: steps are missing")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a torn line is warned of
            len(Run(self.folder).steps)
        return found

    def _end_all(self, left: list[str]) -> None:
        """End what is left, so that the next round finds nothing of it."""
        for process in [self.owner] if self.owner else []:
            process.kill()
            process.communicate()
        for name in left:
            if number := re.match(r"process (\d+)", name):
                with suppress(ProcessLookupError):
                    os.kill(int(number[1]), signal.SIGKILL)


# ---- faults from outside ----------------------------------------------------------


def signal_rank(number: int) -> Callable[[Round], None]:
    def strike(round: Round) -> None:
        round.wait_steps()
        os.kill(round.pid_of(round.victim), number)

    return strike


def at_any_time(act: Callable[[Round], Any]) -> Callable[[Round], None]:
    """Do something while the job starts, or once it has done some steps."""

    def strike(round: Round) -> None:
        if round.random.random() < 0.3:
            while round._process() is None and not any(
                r["k"] == "launch" for r in lines_of(round.folder / "job.jsonl")
            ):
                time.sleep(0.005)
            time.sleep(round.random.uniform(0, 0.3))
        else:
            round.wait_steps()
        act(round)

    return strike


def kill_stub(round: Round) -> None:
    round.wait_steps()
    rank = 0 if round.world == "simulated" else round.victim
    next(p for p in round.below("stub.py") if p.environ().get("PMIX_RANK") == str(rank)).kill()


def kill_fork_server(round: Round) -> None:
    server = next(p for p in psutil.process_iter(["cmdline"]) if _serves_us(p))
    server.kill()


def _serves_us(process: psutil.Process) -> bool:
    words = process.info["cmdline"] or []
    return str(fork_server._socket_path()) in words and os.getsid(process.pid) == process.pid


def stop_twice(round: Round) -> float:
    time.sleep(round.random.uniform(0, 0.8))
    struck = time.time()
    round.job.stop()
    round.job.stop()
    return struck


def remove_folder(round: Round) -> None:
    import shutil

    round.wait_steps()
    shutil.rmtree(round.folder, ignore_errors=True)
    while round.folder.exists():
        shutil.rmtree(round.folder, ignore_errors=True)


def fill_disk(round: Round) -> None:
    round.wait_steps()
    with suppress(OSError), open(round.home / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def kill_owner(round: Round) -> None:
    at_any_time(lambda round: round.owner.kill())(round)


KINDS: dict[str, Kind] = {
    "killed": Kind("WHO was killed by SIGKILL", "killed by SIGKILL", signal_rank(signal.SIGKILL)),
    "terminated": Kind("WHO was killed by SIGTERM", "killed by SIGTERM", signal_rank(signal.SIGTERM)),
    "stopped": Kind("WHO is stopped", "is stopped", signal_rank(signal.SIGSTOP), hangs=True),
    "server killed": Kind(r"rank \d+ \(server\) was killed by SIGKILL", strike=signal_rank(signal.SIGKILL)),
    "crash": Kind("WHO was killed by SIGSEGV", inside="crashes"),
    "exception": Kind("WHO raised RuntimeError: only I am broken", inside="raises"),
    "os._exit": Kind("WHO ended", inside="leaves"),
    "loop": Kind("WHO .*(loops|breaking)", inside="loops", hangs=True),
    "deadlock": Kind("WHO .*(waits_for_ever|breaking)", inside="waits_for_ever", hangs=True),
    "children": Kind("^done", inside="starts_children", status="done"),
    "children of the killed": Kind("WHO was killed by SIGKILL", inside="starts_children_and_dies"),
    "files closed": Kind("WHO", r"rank \d", inside="closes_its_files", hangs=True),
    "memory": Kind("WHO raised .*(memory|alloc)", inside="takes_all_memory"),
    "mpiexec killed": Kind("mpiexec was killed by SIGKILL", strike=at_any_time(lambda r: r.below("-n")[0].kill())),
    "fork server killed": Kind("^done", strike=at_any_time(kill_fork_server), status="done"),
    "launcher killed": Kind("launcher was killed by SIGKILL", strike=at_any_time(lambda r: r.guardian().kill())),
    "launcher terminated": Kind(
        "launcher got SIGTERM", strike=at_any_time(lambda r: r.guardian().terminate()), status="stopped"
    ),
    "stub killed": Kind("WHO was killed by SIGKILL", "killed by SIGKILL", kill_stub),
    "owner killed": Kind("the process that started the job ended", strike=kill_owner, status="stopped", limits={}),
    "stopped twice": Kind("stopped by its owner", strike=stop_twice, status="stopped"),
    "folder removed": Kind("run folder .*removed", strike=remove_folder),
    "disk full": Kind("No space left on device", strike=fill_disk),
    "ulimit -f": Kind("ulimit -f.*allowed is", limits={"RLIMIT_FSIZE": 1 << 14}, cold=True),
    "ulimit -n": Kind("ulimit -n.*allowed is", limits={"RLIMIT_NOFILE": 24}),
}  # fmt: skip
"""The kinds of fault."""
