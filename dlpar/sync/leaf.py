"""Two levels of parameter servers by composition: a leaf is a server below, and a client above.

Source: Gupta, Zhang and Wang, "Rudra" (arXiv 1509.04210), the architecture with a tree of servers.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlpar.comm import Comm, Packet
from dlpar.experiment import Experiment
from dlpar.record import Recorder
from dlpar.sync.averaging import outer
from dlpar.sync.client import INITIAL, Client, key_ranges
from dlpar.sync.consistency import Consistency, consistency
from dlpar.sync.parameter_server import leaf_of
from dlpar.sync.server import Server


class Leaf(Server):
    """A server to a group of workers, and the one client that stands for them to the servers above."""

    def __init__(
        self, comm: Comm, clients: Sequence[int], answer: Packet, experiment: Experiment, above: Client
    ) -> None:
        super().__init__(comm, clients, answer, experiment, Consistency(gather=len(clients), bound=0))
        self.above = above

    def apply(self) -> None:
        self.above.push(self.sum, answered=not self.separate)
        if self.separate:
            self.above.ask()
        self.above.receive()

    def goes_on(self) -> bool:
        return self.above.going_on

    def counts(self, client: int, lead: int) -> tuple[int, ...]:
        return self.above.version, self.above.staleness, self.above.next_lead, self.above.done

    def conclude(self) -> None:
        self.above.leave()


def serve(comm: Comm, experiment: Experiment, record: Recorder) -> None:
    """Run this rank as the server or leaf it is."""
    experiment = outer(experiment)
    sync, workers = experiment.sync, experiment.workers
    length, dtype = comm.broadcast(None)
    roots, leaves = range(workers, workers + sync.servers), range(workers + sync.servers, comm.size)
    if comm.rank in leaves:
        group = [worker for worker in range(workers) if leaf_of(experiment, worker) == comm.rank]
        answer = comm.packet(length, dtype)
        server = Leaf(comm, group, answer, experiment, Client(comm, roots, answer.body, experiment))
    else:
        keys = key_ranges(length, sync.servers)[comm.rank - workers]
        clients, first = list(leaves) or list(range(workers)), comm.rank == workers
        answer, rule = comm.packet(keys.stop - keys.start, dtype), consistency(sync, len(clients))
        server = Server(comm, clients, answer, experiment, rule, first)
        comm.recv(server.weights, 0, INITIAL)
    comm.barrier()
    server.run()
    record.event("served", version=server.version, pushes=server.pushes, **comm.traffic.take())
    record.end(server.pushes)
