"""The torch.distributed carrier, tested by gloo, which needs no GPU."""

from __future__ import annotations

import time

import numpy as np
import pytest
from trained_ranks import trained

import dlpar
from dlpar import Experiment

from .test_devices import SHORT, SPLITS

COUNTED = ["zero 1", "zero 3", "zero 3, overlapped", "1f1b", "gpipe", "interleaved", "zb-h1", "pipedream"]
"""Splits whose messages are ours, and counted."""

OF_LIBRARY = ["tensor, mlp", "tensor, transformer", "spatial", "batch normalisation", "hybrid"]
"""Splits with sums of the library, which does not say how many bytes they are."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COUNTED, *OF_LIBRARY])
def test_gloo_stands_in_for_nccl_in_every_split(name):
    fields = {**SHORT, "dtype": "float64", **SPLITS[name]}
    found = dlpar.launch(Experiment(**fields, cluster={"carrier": "gloo"})).wait(60)
    assert set(found.ranks["carrier"]) == {"gloo"}
    np.testing.assert_allclose(found.curve["loss"], trained(**fields).losses, rtol=1e-9)
    assert found.steps["bytes"].isna().all() == (name in OF_LIBRARY)


MLP = {"name": "mlp", "width": 16, "depth": 5}
CASES = {
    "gpipe": dict(workers=3, model=MLP, split={"kind": "pipeline", "schedule": "gpipe"}),
    "1f1b": dict(workers=4, model=MLP, split={"kind": "pipeline", "schedule": "1f1b"}),
    "zb-h1": dict(workers=3, model=MLP, split={"kind": "pipeline", "schedule": "zb-h1"}),
    "one micro-batch": dict(workers=2, model=MLP, split={"kind": "pipeline", "microbatches": 1}),
    "one micro-batch, zb-h1": dict(
        workers=3, model=MLP, split={"kind": "pipeline", "schedule": "zb-h1", "microbatches": 1}
    ),
    "interleaved, 2": dict(
        workers=2, model=MLP, split={"kind": "pipeline", "schedule": "interleaved", "microbatches": 4}
    ),
    "interleaved, 3": dict(
        workers=3, model=MLP, split={"kind": "pipeline", "schedule": "interleaved", "microbatches": 6}
    ),
    "one stage": dict(
        workers=2, model=MLP, split={"kind": "hybrid", "stages": 1, "tensor": 2, "schedule": "interleaved"}
    ),
    "pipedream": dict(
        workers=3, model=MLP, split={"kind": "pipeline", "schedule": "pipedream", "microbatches": 1}
    ),
    "halos": dict(
        workers=4, model={"name": "cnn", "width": 16}, split={"kind": "spatial", "rows": 2, "columns": 2}
    ),
}


def as_in_streams() -> dict:
    """Have each message of a group begin after the group's messages before it, as in the stream of a GPU.

    As NCCL does, the first message of two ranks in one direction blocks its host until the other rank makes its
    call. A stage's first forward pass, and its first backward pass, wait for all messages before them: a GPU loads
    kernels when it is idle. Returned are the sizes of messages by group, sender and receiver.
    """
    from collections import defaultdict
    from concurrent.futures import ThreadPoolExecutor
    from datetime import timedelta
    from types import SimpleNamespace

    import torch.distributed as dist

    from dlpar.split.pipeline import Chunk

    launch, streams, sizes, isend = dist.batch_isend_irecv, {}, defaultdict(list), dist.isend
    connected, loaded = set(), set()

    def connect(ways):
        store = dist.distributed_c10d._get_default_store()
        for group, sends, *ends in ways:
            store.set(f"{group} {sends} {ends}", "called")
        for group, sends, *ends in ways:
            store.wait([f"{group} {not sends} {ends}"], timedelta(seconds=15))
        connected.update(ways)

    def of_first(name):
        usual = getattr(Chunk, name)

        def loading(chunk, *given):
            if name not in loaded:
                loaded.add(name)
                for stream in streams.values():
                    stream.submit(int).result()
            return usual(chunk, *given)

        setattr(Chunk, name, loading)

    of_first("forward"), of_first("backward")

    def queued(operations):
        ways = []
        for each in operations:
            sends = each.op is isend
            ends = (dist.get_rank(), each.peer) if sends else (each.peer, dist.get_rank())
            ways.append((each.group.group_name, sends, *ends))
            sizes[each.group.group_name, *ends].append(each.tensor.numel())
        connect([way for way in ways if way not in connected])

        def done():
            for work in launch(operations):
                work.wait()

        stream = streams.setdefault(operations[0].group, ThreadPoolExecutor(1))
        future = stream.submit(done)
        return [SimpleNamespace(wait=future.result, is_completed=future.done)]

    dist.batch_isend_irecv = queued
    return sizes


def without_lanes() -> None:
    """Send both directions of a pipeline's messages in one group, as a plain port to NCCL would."""
    from dlpar.split.pipeline import DIRECTION, Stage

    as_in_streams()
    Stage.channel = lambda stage, kind, step, tag: (
        stage.pp_group,
        (stage.number + step) % stage.stages,
        0 if kind in DIRECTION else tag,
    )


def train_natively(comm, fields, prepare) -> tuple[list[float], dict]:
    """The losses of this rank, and the sizes of its messages.

    No tensor of a step may go by MPI, which would stage it through the host.
    """
    from dlpar.comm import Recorder
    from dlpar.train import train
    from dlpar.worlds.mpi import MPIComm

    losses = []

    class Losses(Recorder):
        def step(self, step, **facts):
            losses.append(None if facts["loss"] is None else float(facts["loss"]))

    def refused(*arguments, **named):
        raise AssertionError("a tensor goes by MPI")

    sizes = prepare()
    MPIComm.send = MPIComm.isend = MPIComm.irecv = refused
    train(comm, Experiment(**fields, cluster={"carrier": "gloo"}), Losses())
    return losses, sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_messages_of_pipelines_and_halos_go_natively_where_each_waits_for_those_before_it(name):
    fields = {**SHORT, "dtype": "float64", "evaluate_every": 1000, **CASES[name]}
    workers = fields["workers"]
    found = dlpar.spmd(train_natively, fields, as_in_streams, workers=workers, carrier="gloo", timeout=20)
    (losses,) = [losses for losses, _ in found if None not in losses]
    np.testing.assert_allclose(losses, trained(**fields).losses, rtol=1e-9)
    # NCCL needs equal sizes at both ends, in the same order.
    for rank, (_, sizes) in enumerate(found):
        for (group, *ends), sent in sizes.items():
            assert sent == found[ends[ends[0] == rank]][1][group, *ends]
    assert all(sizes for _, sizes in found) or name == "one stage"  # which only sums


@pytest.mark.slow
def test_in_one_group_the_messages_of_a_pipeline_would_wait_for_ever():
    fields = {**SHORT, "evaluate_every": 1000, **CASES["gpipe"]}
    with pytest.raises(dlpar.JobFailed, match="no progress for 2 s"):
        dlpar.spmd(train_natively, fields, without_lanes, workers=3, carrier="gloo", timeout=2)


@pytest.mark.slow
def test_ranks_that_have_made_unequal_numbers_of_groups_make_one_together():
    """Workers have more groups than servers; torch names a group by their number."""
    parts = {"kind": "tensor", "tensor": 2}
    sync = {"scheme": "ps", "servers": 2, "overlap": True}
    fields = {**SHORT, "workers": 4, "dtype": "float64", "split": parts, "sync": sync}
    found = dlpar.launch(Experiment(**fields, cluster={"carrier": "gloo", "timeout": 20})).wait(60)
    np.testing.assert_allclose(found.curve["loss"], trained(**fields).losses, rtol=1e-9)


def test_nccl_s_collectives_are_launched_before_the_rank_goes_on():
    """Two threads of a rank would launch them in another order than those of another rank."""

    def starts(comm, carrier, after_mpi=False):
        import torch

        def slow(beside, bucket):
            time.sleep(0.05)
            beside.allreduce(bucket)

        comm.world.carrier, total = carrier, torch.ones(1)
        if after_mpi:
            other = 1 - comm.rank
            comm.start(lambda beside, bucket: beside.sendrecv(bucket, other, bucket.clone(), other, 7), total)
        request = comm.start(slow, total)
        launched = request.test()
        request.wait()
        return launched, total.item()

    assert dlpar.spmd(starts, "nccl", workers=2, carrier="gloo") == [(True, 2)] * 2
    assert dlpar.spmd(starts, "nccl", True, workers=2, carrier="gloo") == [(True, 2)] * 2
    assert dlpar.spmd(starts, "gloo", workers=2, carrier="gloo") == [(False, 2)] * 2


def test_nobody_waits_for_a_started_collective_whose_messages_mpi_carries():
    """A passive worker of AD-PSGD answers as long as the others train: it would begin when all is done."""

    def steps(_):
        import time

        from dlpar import Experiment
        from dlpar.comm import Recorder
        from dlpar.config.experiment import Cluster
        from dlpar.train import train
        from dlpar.worlds.connect import connect

        class Counted(Recorder):
            count = 0

            def step(self, step, **facts):
                self.count += 1
                time.sleep(0.005)  # so that both workers get worker-steps

        comm = connect(Cluster(device="cpu", carrier="gloo"))
        comm.world.carrier, record = "nccl", Counted()
        sync = {"scheme": "gossip", "exchange": "pairwise"}
        train(comm, Experiment(workers=2, steps=40, evaluate_every=0, sync=sync, model={"width": 16}), record)
        return record.count

    counts = dlpar.spmd(steps, workers=2, timeout=30)
    assert sum(counts) == 80 and min(counts) > 10


def test_messages_that_begin_together_do_not_wait_for_each_other():
    def around(comm):
        import torch

        as_in_streams()
        came = [torch.zeros(1 << 18) for _ in range(comm.size)]
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        with comm.together():
            requests = [comm.irecv(came[rank], rank, 0) for rank in others]
            requests += [comm.isend(torch.full((1 << 18,), comm.rank + 1.0), rank) for rank in others]
        for request in requests:
            request.wait()
        return [int(each.unique().item()) for each in came], all(request.test() for request in requests)

    ranks = dlpar.spmd(around, workers=3, carrier="gloo", timeout=10)
    assert ranks == [([0, 2, 3], True), ([1, 0, 3], True), ([1, 2, 0], True)]
    plain = dlpar.spmd(around, workers=3, timeout=10)
    assert plain == ranks


def as_in_torch_2_11() -> None:
    """Give this process a ``new_group`` that sorts ranks always."""
    import torch.distributed as dist

    now = dist.new_group

    def then(
        ranks=None,
        timeout=None,
        backend=None,
        pg_options=None,
        use_local_synchronization=False,
        group_desc=None,
        device_id=None,
    ):
        return now(ranks, timeout, backend, pg_options, use_local_synchronization, group_desc, device_id)

    dist.new_group = then


def halved(_, key: int, prepare) -> float:
    """Split all ranks in two, add up in each half, and beside the computation."""
    import torch

    from dlpar.config.experiment import Cluster
    from dlpar.worlds.connect import connect

    prepare()
    comm = connect(Cluster(device="cpu", carrier="gloo"))
    half, total = comm.split(comm.rank % 2, key * comm.rank), torch.tensor([float(comm.rank)])
    half.allreduce(total)
    comm.start(lambda comm, bucket: comm.allreduce(bucket), total).wait()
    comm.close()
    return total.item()


@pytest.mark.slow
def test_groups_and_started_collectives_work_with_a_torch_that_sorts_ranks():
    assert dlpar.spmd(halved, 1, as_in_torch_2_11, workers=4, timeout=20) == [12.0] * 4


def test_a_torch_that_sorts_ranks_refuses_another_order_in_one_sentence():
    said = r"split: got ranks in the order \[[23], [01]\], allowed with torch .* and gloo is their own order"
    with pytest.raises(dlpar.JobFailed, match=said):
        dlpar.spmd(halved, -1, as_in_torch_2_11, workers=4, timeout=20)


def test_a_receive_that_two_carriers_might_serve_is_refused():
    """The message has a tag and comes by MPI; a receive without one would listen to the other carrier for ever."""

    def mixed(_):
        import torch

        from dlpar.config.experiment import Cluster
        from dlpar.worlds.connect import connect

        comm = connect(Cluster(device="cpu", carrier="gloo"))
        if comm.rank == 0:
            comm.send(torch.ones(3), 1, tag=5)
        else:
            comm.recv(torch.empty(3), 0)

    said = "recv: got tag ANY, allowed on gloo is a named source with tag 0, for a message without a tag, or"
    with pytest.raises(dlpar.JobFailed, match=said):
        dlpar.spmd(mixed, workers=2, timeout=10)


def test_on_one_machine_ranks_listen_on_loopback_alone():
    def listening(comm):
        import psutil

        comm.barrier()
        found = psutil.Process().net_connections("inet")
        return sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})

    for addresses in dlpar.spmd(listening, workers=2, carrier="gloo"):
        assert addresses and set(addresses) <= {"127.0.0.1", "::1"}
