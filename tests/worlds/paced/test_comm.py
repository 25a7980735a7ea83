"""The paced world: real processes that keep a platform's time, the very time the simulated world gives them."""

from __future__ import annotations

import json
import time

import pytest

import dlpar
from dlpar import BadExperiment, Experiment
from dlpar.jobs.launch import JobFailed

pytestmark = pytest.mark.slow

PS, ASP = {"scheme": "ps"}, {"scheme": "ps", "consistency": "asp"}
OVERLAPPED = {"scheme": "ring", "overlap": True, "bucket_mb": 0.02}
WORLDS = "simulated", "paced"


def trained(world, **fields):
    """The summary of a short training, and each worker's step records."""
    cluster = {"stand_in_for": "resnet50", "world": world, **fields.pop("cluster", {})}
    usual = {
        "workers": 4,
        "batch": 1,
        "scaling": "weak",
        "steps": 4,
        "dtype": "float64",
        "evaluate_every": 100,
    }
    run = dlpar.launch(Experiment(cluster=cluster, **{**usual, **fields})).wait(60)
    steps = {}
    for source, record in run.records():
        if record["k"] == "step":
            steps.setdefault(source, []).append(record)
    return run.summary, steps


def same(field, one, other):
    """Whether a figure of every step of every worker is the same in two runs, within 1e-9 of it."""
    assert one.keys() == other.keys()
    for worker, records in one.items():
        assert [r[field] for r in records] == pytest.approx(
            [r[field] for r in other[worker]],
            rel=1e-9,
            nan_ok=True,  # one rank of a split model records the loss
        )


@pytest.mark.parametrize(
    "workers, sync",
    [
        (16, "ring"),
        (4, PS),
        (4, ASP),
        (8, OVERLAPPED),
        (8, {**ASP, "servers": 2}),
        (4, {"scheme": "gossip", "exchange": "pairwise"}),
        (4, {"scheme": "gossip", "order": "combine_then_adapt"}),
        (4, {**OVERLAPPED, "scheme": "ps", "servers": 2}),
    ],
    ids=[
        "ring of 16",
        "ps",
        "asp",
        "ring of 8, overlapped",
        "asp of 8, 2 servers",
        "pairwise gossip",
        "gossip of old weights",
        "ps, overlapped",
    ],
)
def test_a_paced_run_takes_the_time_and_finds_the_weights_of_a_simulated_one(workers, sync):
    (simulated, theirs), (paced, ours) = (trained(world, workers=workers, sync=sync) for world in WORLDS)
    for field in ("t", "loss", "staleness", "compute", "comm", "wait"):
        same(field, ours, theirs)
    assert paced["clock"] == "logical" and paced["bytes_sent"] == simulated["bytes_sent"]
    assert 0 <= paced["slip"] < 5  # how far a busy machine lags is not for a test to say


def test_unsteady_times_and_stragglers_are_those_of_the_platform(tmp_path):
    file = tmp_path / "unsteady.json"
    timing, device = {"kind": "gamma", "cv": 0.5}, {"overhead": 0.002}
    changes = {
        "extends": "p100-25gbe",
        "devices": 2,
        "device": device,
        "timing": timing,
        "stragglers": {"1": 3.0},
    }
    file.write_text(json.dumps(changes))
    for sync in (OVERLAPPED, ASP):
        (_, theirs), (_, ours) = (
            trained(world, sync=sync, cluster={"platform": str(file)}) for world in WORLDS
        )
        for field in ("t", "staleness"):
            same(field, ours, theirs)
    computing = {
        worker: sum(r["compute"] for r in records) / len(records) for worker, records in ours.items()
    }
    assert max(computing, key=computing.get) == "rank-1"


def test_computing_beside_communication_slows_down_as_on_the_platform(tmp_path):
    file = tmp_path / "slow.json"
    file.write_text(json.dumps({"extends": "p100-25gbe", "overlap": 0.3}))
    asynchronous = {"kind": "tensor", "tensor": 2, "async_allreduce": True}
    for workers, sync, split in (
        (4, OVERLAPPED, "data"),
        (2, {**OVERLAPPED, "scheme": "ps"}, "data"),
        (4, OVERLAPPED, asynchronous),  # two groups communicate
    ):
        cluster = {"platform": str(file), "stand_in_for": "resnet50" if split == "data" else None}
        changes = {"workers": workers, "sync": sync, "split": split, "batch": 64, "cluster": cluster}
        (_, theirs), (_, ours) = (trained(world, **changes) for world in WORLDS)
        for field in ("t", "loss", "compute", "comm", "wait"):
            same(field, ours, theirs)


def test_a_message_of_any_layout_arrives_as_it_was_sent():
    def exchange(comm):
        import torch

        wrong = []
        for rows in (1, 4, 100, 100_000):
            sent, got = torch.arange(2.0 * rows).view(rows, 2).t(), torch.zeros(rows, 2).t()
            comm.sendrecv(sent, 1 - comm.rank, got, 1 - comm.rank)
            wrong += [] if torch.equal(got, sent) else [rows]
        return wrong

    assert dlpar.spmd(exchange, workers=2, world="paced") == [[], []]


def test_paced_and_real_training_give_the_same_losses():
    (_, paced), (_, real) = (
        trained(world, sync="ring", cluster={"stand_in_for": None}) for world in ("paced", "real")
    )
    same("loss", paced, real)


@pytest.mark.timed
def test_the_wall_clock_follows_the_logical_one_and_the_slip_says_how_closely():
    def work(comm):
        import time

        second = 5.1e12  # FLOPs of the usual platform's device
        comm.barrier()
        began, times = time.monotonic(), []
        for _ in range(5):
            logical = comm.now()
            comm.compute(lambda: times.append((logical, time.monotonic() - began)), cost=0.1 * second)
            comm.barrier()
        return times, comm.world.state()["slip"]

    for times, slip in dlpar.spmd(work, workers=2, world="paced"):
        assert [logical for logical, _ in times] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
        # It may be ahead by what it sleeps in one piece.
        assert all(wall > logical - 0.02 for logical, wall in times)
        assert times[-1][1] < 0.4 + slip + 0.2


@pytest.mark.timed
def test_messages_are_exchanged_while_the_wall_sleeps_through_the_computation_before_them():
    def work(comm):
        import time

        import torch

        comm.barrier()
        began = time.monotonic()
        comm.compute(lambda: None, cost=0.24 * 5.1e12)
        comm.sendrecv(torch.zeros(1), 1 - comm.rank, torch.zeros(1), 1 - comm.rank)
        exchanged = time.monotonic() - began
        comm.compute(lambda: None, cost=1.0)
        return comm.now(), exchanged, time.monotonic() - began

    for logical, exchanged, wall in dlpar.spmd(work, workers=2, world="paced"):
        assert 0.24 < logical < 0.25 and exchanged < 0.2 and wall > 0.22


def test_a_step_longer_than_the_timeout_is_not_taken_for_a_hang():
    summary, _ = trained(
        "paced",
        workers=2,
        sync="ring",
        steps=1,
        cluster={"timeout": 1.0},
        delays={"kind": "constant", "delay_ms": 2500},
    )
    assert summary["steps"] == 1 and summary["seconds"]["compute"] > 2.5


def test_any_source_takes_who_is_first_by_the_logical_clock():
    def funnel(comm):
        import time

        import torch

        one = torch.zeros(1)
        if comm.rank == 0:
            return [comm.recv(one).source for _ in range(6)]
        for _ in range(2):
            comm.compute(
                lambda: time.sleep(0.2 if comm.rank == 1 else 0.0), cost=1e9 * comm.rank
            )  # 1 is slow in truth
            comm.send(one, 0)

    assert dlpar.spmd(funnel, workers=4, world="paced")[0] == [1, 2, 1, 3, 2, 3]


@pytest.mark.timed
def test_ranks_that_have_received_go_on_side_by_side():
    def fan_out(comm):
        import time

        import torch

        comm.barrier()
        began = time.monotonic()
        if comm.rank == 0:
            for other in range(1, comm.size):
                comm.send(torch.zeros(1000), other)
        else:
            comm.recv(torch.zeros(1000), 0)  # one after the other on the logical clock
            time.sleep(0.3)  # stands for work that takes the process time, and the logical clock none
        comm.barrier()
        return time.monotonic() - began

    assert max(dlpar.spmd(fan_out, workers=5, world="paced")) < 1.0  # 1.2 s if each waited for the one before


def test_every_call_does_what_it_does_in_the_simulated_world():
    def calls(comm):
        import torch

        from dlpar.collectives import ring_allreduce

        comm.compute(lambda: None, cost=1e9 * (1 + comm.rank))
        found = [comm.gather(comm.rank), comm.broadcast("told" if comm.rank == 1 else None, root=1)]
        half = comm.split(comm.rank % 2, key=-comm.rank)
        sums = torch.full((3, 1000), float(comm.rank)).t()
        half.allreduce(sums)
        counter = comm.counter()
        comm.world.pause(0.001 * comm.rank)
        found += [half.rank, half.size, sums[0, 0].item(), counter.take(), counter.take()]
        memory = half.shared(2)
        memory[half.rank] = 1.0
        half.barrier()
        buckets = [torch.full((30_000,), float(comm.rank + i)) for i in range(3)]  # above the eager limit
        under_way = [comm.start(ring_allreduce, bucket) for bucket in buckets]
        early, guard = under_way[2].test(), comm.world.lock()
        comm.compute(lambda: None, cost=1e9)
        for request in under_way:
            request.wait()
        with guard:
            found += [early, under_way[0].test(), [bucket[0].item() for bucket in buckets], memory.tolist()]
        right, left, got = (comm.rank + 1) % 4, (comm.rank - 1) % 4, torch.zeros(30_000)
        receiving, sending = comm.irecv(got, left), comm.isend(buckets[0], right)
        buckets[0].zero_()  # what was sent is on its way
        found += [sending.test(), tuple(receiving.wait()), sending.wait(), receiving.test(), got[0].item()]
        short = comm.irecv(torch.zeros(1), comm.rank)
        comm.send(torch.ones(1), comm.rank)
        short.wait()
        half.close()
        return [*found, comm.traffic.bytes, comm.traffic.waited, comm.now()]

    simulated, paced = (dlpar.spmd(calls, workers=4, world=world, timeout=20) for world in WORLDS)
    for theirs, ours in zip(simulated, paced):
        assert ours == pytest.approx(theirs) if isinstance(ours, float) else ours[:-2] == theirs[:-2]
        assert ours[-2:] == pytest.approx(theirs[-2:])


def ring_of_sends(comm, n):
    import torch

    comm.compute(lambda: None, cost=1e9)
    comm.send(torch.zeros(n), (comm.rank + 1) % comm.size)
    comm.recv(torch.zeros(n), (comm.rank - 1) % comm.size)
    return comm.now()


def test_a_ring_of_sends_above_the_eager_limit_is_a_deadlock_that_names_every_rank_s_line():
    began = time.monotonic()
    with pytest.raises(JobFailed) as failed:
        dlpar.spmd(ring_of_sends, 20_000, workers=3, world="paced", timeout=60)
    assert time.monotonic() - began < 30
    first = str(failed.value).splitlines()[0]
    assert first.startswith("deadlock after 0.000196078 s of logical time: no rank can continue")
    for rank in range(3):
        assert (
            f"rank {rank} in send of 80,000 bytes to rank {(rank + 1) % 3} (tag 0) at test_comm.py:" in first
        )
    assert "Traceback" not in str(failed.value)


def test_a_ring_of_sends_below_the_eager_limit_passes():
    assert len(set(dlpar.spmd(ring_of_sends, 100, workers=3, world="paced"))) == 1


def test_ranks_on_several_machines_are_refused():
    with pytest.raises(
        BadExperiment, match="cluster.hostfile: got 'hosts', allowed with world paced is nothing"
    ):
        Experiment(cluster={"world": "paced", "hostfile": "hosts"})


def test_a_message_too_long_for_its_buffer_is_refused():
    def exchange(comm):
        import torch

        comm.sendrecv(torch.zeros(8), comm.rank, torch.zeros(7), comm.rank)

    with pytest.raises(JobFailed, match="rank 0 has room for 28 bytes, but rank 0 sent 32"):
        dlpar.spmd(exchange, workers=1, world="paced")
