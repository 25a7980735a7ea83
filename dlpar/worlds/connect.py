"""Create this rank's communicator from an experiment's cluster."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import torch
from mpi4py import MPI

from dlpar.comm.base import Comm
from dlpar.config.experiment import Cluster, Experiment
from dlpar.worlds import mpi
from dlpar.worlds.cuda_ipc import CudaIPC
from dlpar.worlds.devices import trial
from dlpar.worlds.mpi import DeviceTraffic, MPIComm, meet
from dlpar.worlds.paced.comm import of_experiment


def connect(cluster: Cluster, on_host: Sequence[int] = ()) -> Comm:
    """Return this rank's communicator over all ranks of the job.

    Its clock starts when all ranks are ready.

    A rank tests its GPU before use. If a test fails, ``device="auto"`` means the CPU, and rank 0 reports the reason.

    Parameters
    ----------
    cluster : Cluster
        Its device and carrier.
    on_host : sequence of int, optional
        Ranks that compute in host memory, such as parameter servers.

    Raises
    ------
    ValueError
        On every rank, if the requested CUDA or NCCL cannot work.
    """
    world = MPI.COMM_WORLD
    meet(world)
    visible, faults = zip(*world.allgather(_visible(cluster)))
    taken, carrier = ([], "mpi") if any(faults) else places(cluster, visible, on_host)
    number = taken[world.rank] if taken else None
    if taken:
        faults = world.allgather("" if number is None else trial(number))
    if any(faults):
        number, carrier = None, "mpi"
        why = next(f"the GPU of rank {rank} says {fault!r}" for rank, fault in enumerate(faults) if fault)
        _refuse_cpu(cluster, why)
        if world.rank == 0:
            print(f"cluster.device: auto is the CPU here, because {why}", file=sys.stderr, flush=True)
    device = torch.device("cpu") if number is None else torch.device("cuda", number)
    if number is not None:
        torch.cuda.set_device(device)
    if carrier != "mpi":
        from dlpar.worlds.nccl import DistributedComm

        return DistributedComm(world, device, carrier)
    comm = MPIComm(world, device)
    names = [None if n is None else visible[rank][n] for rank, n in enumerate(taken)]
    if len(names) > len(set(names)):
        ipc = CudaIPC(world, device, names)
        if ipc.works() and ipc.neighbours:
            comm.ipc, comm.traffic = ipc, DeviceTraffic(comm.now, device)
            mpi.LONGEST = mpi.BETWEEN_HOSTS  # ranks take turns on the GPU, and a turn is short
    return comm


def places(
    cluster: Cluster, visible: Sequence[Sequence[str]], on_host: Sequence[int] = ()
) -> tuple[list[int | None], str]:
    """Choose each rank's GPU, and the carrier of tensors.

    With ``device="auto"`` tensors are on GPUs if each rank has a GPU of its own, and NCCL carries them.  With
    ``device="cuda"`` ranks may share a GPU. NCCL refuses such ranks, so MPI carries their tensors: long ones
    stay on the GPU (:mod:`dlpar.worlds.cuda_ipc`), others are staged through pinned host memory.

    Parameters
    ----------
    cluster : Cluster
        Its device and carrier.
    visible : sequence of sequence of str
        Unique names of the GPUs that each rank sees.
    on_host : sequence of int, optional
        Ranks that compute in host memory.  They take no GPU, unless the carrier must be NCCL, which needs one.

    Returns
    -------
    (list of int or None, str)
        For each rank, the number of its GPU among those it sees. Each rank takes the GPU that the fewest
        earlier ranks took. The list is empty if tensors are on the CPU. The string is the carrier: ``mpi``,
        ``nccl`` or ``gloo``.

    Raises
    ------
    ValueError
        If the requested device or carrier is not available. The message gives the reason.

    Examples
    --------
    >>> places(Cluster(), [["A", "B"]] * 2)
    ([0, 1], 'nccl')
    >>> places(Cluster(device="cuda"), [["A", "B"]] * 3)
    ([0, 1, 0], 'mpi')
    """
    on_host = () if cluster.carrier == "nccl" else on_host
    blind = [rank for rank, seen in enumerate(visible) if not seen and rank not in on_host]
    if blind:
        _refuse_cpu(cluster, f"rank {blind[0]} sees no CUDA device")
        return [], "gloo" if cluster.carrier == "gloo" else "mpi"
    ranks_of: Counter[str] = Counter()
    taken: list[int | None] = [None] * len(visible)
    for rank, seen in enumerate(visible):
        if rank not in on_host:
            taken[rank] = number = min(range(len(seen)), key=lambda i: ranks_of[seen[i]])
            ranks_of[seen[number]] += 1
    shared = max(ranks_of.values()) > 1
    if shared and cluster.carrier == "nccl":
        raise ValueError(
            f"cluster.carrier: got 'nccl', allowed here is auto or mpi: {len(visible)} ranks see {len(ranks_of)} "
            f"GPU{'s' * (len(ranks_of) > 1)}, and NCCL refuses ranks that share one"
        )
    if shared and cluster.device == "auto":
        return [], "mpi"
    return taken, "mpi" if shared or on_host or cluster.carrier == "mpi" else "nccl"


def _refuse_cpu(cluster: Cluster, why: str) -> None:
    """Reject the CPU for a cluster that asks for GPUs. `why` completes the sentence."""
    for field, asked, allowed in (
        ("device", "cuda", "auto or cpu"),
        ("carrier", "nccl", "auto, mpi or gloo"),
    ):
        if getattr(cluster, field) == asked:
            raise ValueError(f"cluster.{field}: got {asked!r}, allowed here is {allowed}: {why}")


def _visible(cluster: Cluster) -> tuple[list[str], str]:
    """Return unique names of the GPUs that this rank may use, and any problem with them.

    There are no names if the rank uses the CPU.
    """
    if cluster.device == "cpu" or (cluster.device == "auto" and cluster.carrier == "gloo"):
        return [], ""
    try:
        return [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())], ""
    except RuntimeError as error:  # an old driver
        return [], str(error).strip().split("\n")[0]


def join(experiment: Experiment, on_host: bool = False) -> Comm:
    """Return this rank's communicator in an experiment's world.

    With `on_host`, tensors are in host memory, unless the experiment asks for GPUs.
    """
    if experiment.cluster.world == "paced":
        return of_experiment(experiment)
    # A GPU multiplies float32 numbers in full precision only on request. cuDNN's default is TF32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = experiment.precision == "tf32"
    cluster, e, changes = experiment.cluster, experiment, {}
    if e.sync.shares_memory or (on_host and cluster.device == "auto" and cluster.carrier != "nccl"):
        changes["device"] = "cpu"  # weights that workers share are in host memory, too
    if e.deaths.goes_on and cluster.carrier == "auto":
        changes["carrier"] = "mpi"  # only MPI reports deaths
    return connect(cluster.model_copy(update=changes), range(e.workers, e.members))
