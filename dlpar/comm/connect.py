"""From "where the ranks live" to a communicator on this rank."""

from __future__ import annotations

import torch
from mpi4py import MPI

from dlpar.comm.base import Comm
from dlpar.comm.mpi import MPIComm
from dlpar.comm.patience import meet
from dlpar.experiment import Cluster, Experiment


def connect(cluster: Cluster) -> Comm:
    """This rank's communicator over all ranks of the job; its clock starts when all are ready.

    Tensors live on a GPU where there is one (``device="auto"``).  With a GPU for
    each rank of the machine NCCL carries them; ranks that share a GPU are
    staged through MPI.

    Raises
    ------
    ValueError
        If CUDA, or NCCL, is asked for where it cannot work; on every rank alike.
    """
    world = MPI.COMM_WORLD
    meet(world)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    wants_gpu = cluster.device == "cuda" or cluster.carrier == "nccl" or (
        cluster.device == "auto" and cluster.carrier != "gloo"
    )  # fmt: skip
    gpus = torch.cuda.device_count() if wants_gpu else 0
    fewest = world.allreduce(gpus, MPI.MIN)
    crowded = world.allreduce(int(node.size > gpus), MPI.MAX)
    if fewest == 0 and cluster.device == "cuda":
        raise ValueError("cluster.device: got 'cuda', allowed here is auto or cpu: no CUDA device is visible")
    if cluster.carrier == "nccl" and (fewest == 0 or crowded):
        raise ValueError(
            f"cluster.carrier: got 'nccl', allowed here is auto or mpi: "
            f"{node.size} ranks need a GPU each and {gpus} are visible"
        )
    device = torch.device("cuda", node.rank % gpus) if fewest else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    control = MPIComm(world, device)
    if cluster.carrier == "gloo" or (device.type == "cuda" and not crowded and cluster.carrier != "mpi"):
        from dlpar.comm.distributed import DistributedComm

        return DistributedComm(control, "gloo" if cluster.carrier == "gloo" else "nccl")
    return control


def join(experiment: Experiment, on_host: bool = False) -> Comm:
    """This rank's communicator in the world of an experiment; `on_host`: its tensors are in host memory, GPU or not."""
    if experiment.cluster.world == "paced":
        from dlpar.comm.pacing.world import of_experiment

        return of_experiment(experiment)
    if on_host:
        return connect(Cluster(device="cpu"))
    # The shared weights of hogwild are host memory.
    device = {"device": "cpu"} if experiment.sync.scheme == "hogwild" else {}
    return connect(experiment.cluster.model_copy(update=device))
