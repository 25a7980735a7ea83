"""What is known about a machine: plain facts, no opinion."""

from __future__ import annotations

from dataclasses import dataclass, field

NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs3 nfs4 cifs smb2 smb3 smbfs 9p afs lustre gpfs beegfs ceph glusterfs panfs pvfs2 orangefs wekafs "
    "davfs fuse.sshfs fuse.ceph fuse.cephfs fuse.glusterfs fuse.s3fs fuse.gcsfuse fuse.rclone fuse.davfs2 "
    "fuse.juicefs".split()
)
"""Types of mounts whose files live on another machine: locks and sockets are not to be trusted there."""


@dataclass(frozen=True)
class GPU:
    """A graphics processor: its name and memory in bytes (None where only its name is known)."""

    name: str
    memory: int | None = None


@dataclass(frozen=True)
class Folder:
    """A folder, or where it will be made: its mount's type (None if unknown), bytes, whether we may write."""

    path: str
    filesystem: str | None = None
    size: int | None = None
    free: int | None = None
    writable: bool = True

    @property
    def is_remote(self) -> bool:
        """Whether it lies on another machine."""
        return self.filesystem in NETWORK_FILE_SYSTEMS


@dataclass(frozen=True)
class Starter:
    """The mpiexec in use: path, dialect (see :mod:`dlpar.jobs.mpiexec`), and what it says of itself."""

    path: str
    dialect: str
    version: str


@dataclass(frozen=True)
class Trial:
    """Something tried: whether it worked, its seconds, what it said; `cut`: time was up before the end."""

    worked: bool
    seconds: float = 0.0
    said: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Machine:
    """Everything the checks and the advice go by.

    Attributes
    ----------
    cores, usable_cores : int
        Logical processors of the machine, and those this process may run on.
    quota : float or None
        Processors' worth of time the control group allows; None: no limit.
    memory, memory_free : int
        Bytes of the machine (or of the control group, if less), and those not in use.
    memory_limited : bool
        Whether a control group's limit is below what the machine has.
    gpus : tuple of GPU
        Those this process may see.
    versions : dict
        Installed packages; a missing one is None.
    torch_cuda : bool or None
        Whether the installed torch can use NVIDIA GPUs; None: no torch.
    starter : Starter or None
        None: no mpiexec; `starter_problem` says why.
    ranks_meet : Trial or None
        Two bare MPI processes: do mpiexec and mpi4py belong together?
    two_ranks : Trial or None
        A job of two ranks adding tensors up; `start` says warm or cold.
    shared_memory : Folder or None
        /dev/shm; None: there is none.
    runs, runtime : Folder
        Where runs are kept, and where sockets and locks lie; `runtime_problem` says why there is none.
    attach : str
        What reading the memory of a process of one's own gave: ``allowed``, ``unknown``, or an error's name.
    ptrace_scope : int or None
        The Yama restriction (0 none … 3 nobody); None: the kernel has none.
    settings : dict
        Environment variables that change the diagnosis (OMPI_MCA_…, PRTE_MCA_…).
    """

    system: str = "Linux"
    container: str | None = None
    slurm: bool = False
    cores: int = 1
    usable_cores: int = 1
    quota: float | None = None
    memory: int = 0
    memory_free: int = 0
    memory_limited: bool = False
    gpus: tuple[GPU, ...] = ()
    versions: dict[str, str | None] = field(default_factory=dict)
    torch_cuda: bool | None = None
    starter: Starter | None = None
    starter_problem: str = ""
    ranks_meet: Trial | None = None
    two_ranks: Trial | None = None
    start: str = ""
    shared_memory: Folder | None = None
    runs: Folder = Folder("runs")
    runtime: Folder = Folder("runtime")
    runtime_problem: str = ""
    attach: str = "unknown"
    ptrace_scope: int | None = None
    open_files: int | None = None
    processes: int | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def processors(self) -> float:
        """Processors' worth of time this process can have."""
        return min(self.usable_cores, self.quota if self.quota is not None else self.usable_cores)
