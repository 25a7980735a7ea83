"""Messages of ranks that share a GPU, whose lent memory is shared files here."""

from __future__ import annotations

import pytest
import torch

import dlpar
from worlds.test_devices import FREE, SPLITS


def on_one_gpu(comm, hosts: int = 0, maps: bool = True):
    """Let all ranks but the last `hosts` share a GPU, whose memory is that of files. Return the end of CUDA IPC."""
    import tempfile

    from dlpar.worlds.cuda_ipc import HANDLE, CudaIPC, Shared

    folder = comm.broadcast(tempfile.mkdtemp() if comm.rank == 0 else None)

    class Event:
        """The host has done everything it was told."""

        def record(self, queue):
            pass

        def wait_event(self, event):
            assert isinstance(event, Event)

    class InFiles(CudaIPC):
        notes = made = 0

        def _make(self, nbytes):
            self.made += 1
            key = (f"{folder}/{comm.rank}-{self.made}", nbytes)
            return Shared(InFiles._map(self, key).tensor, Event(), None, key)

        def _map(self, key):
            tensor = torch.from_file(key[0], shared=True, size=key[1], dtype=torch.uint8)
            return Shared(tensor, Event(), Event(), bytes(HANDLE))

        def _event_of(self, handle):
            return Event()

        def _queue(self):
            return Event()

        def fetch(self, wire, into, waiting):
            self.notes += (found := super().fetch(wire, into, waiting)) is not None
            return found

    class OneMapsNone(InFiles):
        def _map(self, key):
            raise RuntimeError("CUDA error: invalid device context")

    kind = InFiles if maps or comm.rank != 1 else OneMapsNone
    places = ["A"] * (comm.size - hosts) + [None] * hosts
    comm.traffic.queued = lambda wait: wait()
    comm.ipc = kind(comm.mpi, comm.device, places)
    return comm.ipc


def test_long_messages_arrive_by_lent_memory_whole_in_order_and_from_any_source():
    def exchange(comm) -> tuple[list[str], int, int]:
        ipc, wrong = on_one_gpu(comm, hosts=1), []
        assert ipc.works()
        if comm.rank == 0:
            for number in range(60):  # two senders, each in order, into room that may be longer
                room = torch.full((50_000,), -1.0, dtype=torch.float64)
                arrival = comm.recv(room)
                n = arrival.nbytes // 8
                if not (room[:n] == 100 * arrival.source + arrival.tag).all() or not (room[n:] == -1).all():
                    wrong.append(f"message {number}")
        elif comm.rank in (1, 2):
            for count in range(30):
                n = [10, 9_000, 50_000, 20_000][count % 4]
                comm.send(torch.full((n,), 100.0 * comm.rank + count, dtype=torch.float64), 0, count)
        comm.barrier()
        if comm.rank == 0:
            comm.recv(rows := torch.zeros(300, 200).t(), 1, 7)
            if not torch.equal(rows, torch.arange(60_000.0).view(200, 300)):
                wrong.append("rows")
            try:
                comm.recv(torch.zeros(20_000), 1, 8)
            except ValueError as error:
                wrong.append(str(error))
        elif comm.rank == 1:
            comm.send(torch.arange(60_000.0).view(200, 300), 0, 7)
            comm.send(torch.zeros(40_000), 0, 8)
        comm.barrier()
        return wrong, ipc.notes, ipc.made

    first, second, _, alone = dlpar.spmd(exchange, workers=4)
    assert first[0] == ["recv: rank 0 has room for 80,000 bytes, but rank 1 sent 160,000 (tag 8)"]
    assert (
        first[1] == 2 * 22 + 2
    )  # of each sender those of 72 kB and more, the rows, and the one that is too long
    assert second[2] < 40 and alone[1:] == (0, 0)


def test_ranks_that_lend_much_at_once_do_not_wait_for_each_other():
    """In two trees each of two ranks first sends all pieces of one tree."""

    def summed(comm) -> float:
        from dlpar.collectives import ALLREDUCE
        from dlpar.worlds import cuda_ipc

        cuda_ipc.BEHIND = 4
        ipc = on_one_gpu(comm)
        ALLREDUCE["double_tree"](comm, x := torch.ones(1_000_000))
        assert ipc.notes and (x == comm.size).all()
        return ipc.made

    assert max(dlpar.spmd(summed, workers=2, timeout=20)) <= 2 * 5


def test_a_rank_that_cannot_map_memory_lets_all_stage_their_messages():
    found = dlpar.spmd(
        lambda comm: (on_one_gpu(comm).works(), on_one_gpu(comm, maps=False).works()), workers=3
    )
    assert found == [(True, False)] * 3


CASES = {
    "ring": {"workers": 3},
    "overlapped": {"workers": 3, "sync": {"overlap": True, "bucket_mb": 0.5}},
    "gossip": {"workers": 3, "sync": "gossip"},
    "push-sum": {"workers": 3, "sync": {"scheme": "gossip", "exchange": "push_sum"}},
    "pairwise": {"workers": 3, "sync": {"scheme": "gossip", "exchange": "pairwise"}},
    **{name: SPLITS[name] for name in ("zero 3", "tensor, mlp", "1f1b", "interleaved", "pipedream")},
}


@pytest.mark.slow
def test_training_by_lent_memory_gives_the_losses_of_staged_messages():
    size = {"steps": 3, "batch": 240, "evaluate_every": 1000, "dtype": "float64"}
    model = {"model": {"width": 256, "depth": 4}}
    cases = {name: dlpar.Experiment(**{**size, **fields, **model}) for name, fields in CASES.items()}

    def trained(comm) -> dict[str, tuple]:
        from trained_ranks import Kept, take_part

        ipc, found = on_one_gpu(comm), {}
        for name, experiment in cases.items():
            losses, before = [], ipc.notes
            for comm.ipc in (ipc, None):
                part = comm.split(comm.rank >= experiment.ranks)
                record = Kept(part)
                if comm.rank < experiment.ranks:
                    take_part(part, experiment, record)
                comm.barrier()
                losses.append([step["loss"] for step in record.steps])
            found[name] = (*losses, ipc.notes - before)
        return found

    ranks = dlpar.spmd(trained, workers=3)
    for name in cases:
        lent, staged, notes = zip(*(rank[name] for rank in ranks))
        assert sum(notes) > 0, name
        assert lent == staged or name in FREE, name
