"""Connection of this rank: from an experiment's cluster to a communicator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from mpi4py import MPI

from dlpar.comm.base import Comm
from dlpar.config.experiment import Cluster, Experiment
from dlpar.worlds.mpi import MPIComm, meet
from dlpar.worlds.paced.comm import of_experiment


def connect(cluster: Cluster) -> Comm:
    """Return this rank's communicator over all ranks of the job, whose clock starts when all are ready.

    Raises
    ------
    ValueError
        On every rank, if the requested CUDA or NCCL cannot work.
    """
    world = MPI.COMM_WORLD
    meet(world)
    taken, carrier = places(cluster, world.allgather(_visible(cluster)))
    device = torch.device("cpu")
    if taken:
        device = torch.device("cuda", taken[world.rank])
        torch.cuda.set_device(device)
    if carrier == "mpi":
        return MPIComm(world, device)
    from dlpar.worlds.nccl import DistributedComm

    return DistributedComm(world, device, carrier)


def places(cluster: Cluster, visible: Sequence[Sequence[str]]) -> tuple[list[int], str]:
    """Choose the GPU of each rank, and the carrier of tensors.

    Tensors are on GPUs if every rank sees one (``device="auto"``).  With a GPU for each rank, NCCL carries
    tensors.  NCCL refuses ranks that share a GPU, so their tensors are staged through pinned host memory and
    MPI.

    Parameters
    ----------
    cluster : Cluster
        Its device and carrier.
    visible : sequence of sequence of str
        Unique names of the GPUs that each rank sees.

    Returns
    -------
    (list of int, str)
        For each rank the number of its GPU among those it sees; each rank takes the GPU that the fewest ranks
        before it took.  The list is empty if tensors live on the CPU.  Then ``mpi``, ``nccl`` or ``gloo``.

    Raises
    ------
    ValueError
        If the requested device or carrier is not available; the sentence gives the reason.

    Examples
    --------
    >>> places(Cluster(), [["A", "B"]] * 3)
    ([0, 1, 0], 'mpi')
    """
    blind = [rank for rank, seen in enumerate(visible) if not seen]
    if blind:
        why = f"rank {blind[0]} sees no CUDA device"
        if cluster.device == "cuda":
            raise ValueError(f"cluster.device: got 'cuda', allowed here is auto or cpu: {why}")
        if cluster.carrier == "nccl":
            raise ValueError(f"cluster.carrier: got 'nccl', allowed here is auto, mpi or gloo: {why}")
        return [], "gloo" if cluster.carrier == "gloo" else "mpi"
    ranks_of: Counter[str] = Counter()
    taken = []
    for seen in visible:
        number = min(range(len(seen)), key=lambda i: ranks_of[seen[i]])
        ranks_of[seen[number]] += 1
        taken.append(number)
    shared = max(ranks_of.values()) > 1
    if shared and cluster.carrier == "nccl":
        raise ValueError(
            f"cluster.carrier: got 'nccl', allowed here is auto or mpi: {len(visible)} ranks see {len(ranks_of)} "
            f"GPU{'s' * (len(ranks_of) > 1)}, and NCCL refuses ranks that share one"
        )
    return taken, "mpi" if shared or cluster.carrier == "mpi" else "nccl"


def _visible(cluster: Cluster) -> list[str]:
    """Return unique names of the GPUs that this rank may use; none if its tensors are on the CPU."""
    if cluster.device == "cpu" or (cluster.device == "auto" and cluster.carrier == "gloo"):
        return []
    return [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]


def join(experiment: Experiment, on_host: bool = False) -> Comm:
    """Return this rank's communicator in an experiment's world; `on_host` keeps tensors in host memory."""
    if experiment.cluster.world == "paced":
        return of_experiment(experiment)
    if on_host:
        return connect(Cluster(device="cpu"))
    # Weights that workers share are in host memory.
    device = {"device": "cpu"} if experiment.sync.shares_memory else {}
    return connect(experiment.cluster.model_copy(update=device))
