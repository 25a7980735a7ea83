"""All-reduce, bulk-synchronous: sum the gradients, then every replica makes the same update.

Sources: Patarasuk and Yuan (JPDC 2009); Sergeev and Del Balso, "Horovod"
(arXiv 1802.05799).  Nobody ever holds an old version: staleness is 0.
"""

from __future__ import annotations

from functools import partial

from dlpar.collectives import ALLREDUCE
from dlpar.comm import Comm, Request
from dlpar.experiment import Experiment
from dlpar.split.data import Replica
from dlpar.sync.scheme import Scheme


class Ring(Scheme):
    """Every rank is a worker; each step all of them wait for the slowest."""

    def __init__(self, experiment: Experiment, comm: Comm, replica: Replica) -> None:
        super().__init__(experiment, comm, replica)
        sync = experiment.sync
        replica.cut(sync.bucket_mb * 1e6)
        self.collective = _allreduce(experiment)
        self.under_way: list[Request] = []
        if sync.overlap:
            replica.when_ready(self._start)

    def _start(self, bucket: int) -> None:
        self.under_way.append(self.comm.start(self.collective, self.replica.buckets[bucket]))

    def combine(self) -> None:
        # Overlapped buckets are on their way since the backward pass; otherwise they start now.
        if self.under_way:
            for request in self.under_way:
                request.wait()
            self.under_way.clear()
        else:
            for bucket in self.replica.buckets:
                self.collective(self.comm, bucket)


def _allreduce(experiment: Experiment):
    sync, compression = experiment.sync, experiment.compression
    if compression.codec != "none":
        from dlpar.compression import CompressedAllreduce, codec

        return CompressedAllreduce(lambda: codec(compression.codec, compression.keep))
    if sync.allreduce == "hierarchical":
        return partial(ALLREDUCE[sync.allreduce], group=sync.node_size)
    return ALLREDUCE[sync.allreduce]
