"""From MPI ranks on one machine to ranks of a paced world."""

from __future__ import annotations

import pickle
import socket

import torch

from dlpar.config.experiment import Experiment
from dlpar.worlds.mpi import MPIComm
from dlpar.worlds.paced.comm import PacedComm, PacedWorld
from dlpar.worlds.paced.parcels import Parcels
from dlpar.worlds.paced.protocol import Line, Link, Wall
from dlpar.worlds.paced.referee import HELLO, Referee
from dlpar.worlds.platforms import nodes_of, platform_of
from dlpar.worlds.platforms.lookup import charges
from dlpar.worlds.simulated.network import Pace


def of_experiment(experiment: Experiment) -> PacedComm:
    """This rank's communicator in the paced world an experiment names; collective.

    Raises
    ------
    ValueError
        If ranks are on several machines, on all of them alike.
    """
    mpi, platform, seed = MPIComm(), platform_of(experiment), experiment.seed
    machines = len(set(mpi.mpi.allgather(socket.gethostname())))
    if machines > 1:
        raise ValueError(f"cluster.hostfile: got {machines} machines, allowed in the paced world is one")
    referee = Referee(nodes_of(experiment), platform, seed) if mpi.rank == 0 else None
    address = mpi.broadcast(referee.address if referee else None)
    wall, parcels = Wall(), Parcels(MPIComm(mpi.mpi.Dup(), mpi.device, zero=0.0))

    def call(activity: int) -> Line:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(address)
        end.sendall(b"".join(number.to_bytes(HELLO // 2, "little") for number in (mpi.rank, activity)))
        return Line(Link(end), wall, parcels)

    # From here on nobody waits in MPI, which would keep a core from those who have something to do.
    line = call(0)
    _warm_up()
    helped = parcels.probe()
    if referee:
        referee.start(*charges(experiment), helped)  # rank 0 alone finds out what is charged
    scale, flops, parcels.helped = pickle.loads(line.answer().body)
    world = PacedWorld(call, line, mpi, Pace(platform, flops, mpi.rank, seed), platform.eager / scale)
    return PacedComm(world, line, mpi.rank, range(mpi.size))


def _warm_up() -> None:
    """What takes a process long the first time, a product and a backward pass, is done before second 0."""
    weight = torch.ones(8, 8, requires_grad=True)
    (weight @ weight).sum().backward()
