"""Mistakes in rank code, simulated: found at once, told by rank, call and source line, and nothing is left running."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from simulations import KB, MS, cluster, run

import dlpar
from dlpar.worlds.simulated import run as running
from dlpar.worlds.simulated.run import run_program, simulated_world
from dlpar.worlds.simulated.simulator import Deadlock

HERE = Path(__file__).name
BOTH = pytest.mark.parametrize("computes", [True, False], ids=["values", "sizes"])


def line_of(words: str) -> int:
    """The first line of this file that has these words in it."""
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if words in line)


def send_then_receive(comm, elements=20 * KB):
    """The ring everybody writes first: right below the eager limit, and a deadlock above it."""
    value = comm.empty(elements)
    comm.send(value, (comm.rank + 1) % comm.size, tag=3)  # first all send
    comm.recv(value, (comm.rank - 1) % comm.size)
    return comm.now()


@BOTH
def test_a_ring_of_sends_above_the_eager_limit_is_told_by_every_rank_call_and_line(computes):
    with pytest.raises(Deadlock) as told:
        run(send_then_receive, 3, computes=computes)
    where = f"{HERE}:{line_of('# first all send')}"
    assert str(told.value) == (
        "deadlock after 0 s of virtual time: no rank can continue and no message is under way: "
        f"rank 0 in send of 80,000 bytes to rank 1 (tag 3) at {where}; "
        f"rank 1 in send of 80,000 bytes to rank 2 (tag 3) at {where}; "
        f"rank 2 in send of 80,000 bytes to rank 0 (tag 3) at {where}"
    )


@BOTH
def test_the_same_ring_passes_below_the_limit(computes):
    assert (
        run(lambda comm: send_then_receive(comm, 16_384), 3, computes=computes)
        == [pytest.approx(66.536 * MS)] * 3
    )


def test_each_rank_is_told_by_what_it_waits_for():
    def mixed(comm):
        into = torch.empty(1)
        if comm.rank == 0:
            comm.recv(into)
        if comm.rank == 1:
            comm.recv(into, 0, 5)
        if comm.rank == 2:
            comm.barrier()
        if comm.rank == 3:
            comm.irecv(into, 2).wait()
        if comm.rank == 4:
            comm.start(lambda comm, bucket: comm.recv(bucket, 1), into).wait()
        # rank 5 has ended

    with pytest.raises(Deadlock) as told:
        run(mixed, 6)
    for words in (
        "rank 0 in recv from any rank at",
        "rank 1 in recv from rank 0 (tag 5) at",
        "rank 2 in a meeting of all ranks (barrier, gather or broadcast) at",
        "rank 3 in recv from rank 2 at",
        "rank 4 in the end of what it started beside its computation at",
    ):
        assert words in str(told.value)
    assert str(told.value).endswith("; rank 5 has ended")


def test_of_many_ranks_the_first_are_told_and_the_others_counted():
    with pytest.raises(Deadlock) as told:
        run(send_then_receive, 300, cluster(300), computes=False)
    assert "rank 7 in send" in str(told.value) and str(told.value).endswith("; and 292 more")


@BOTH
def test_a_collective_that_ranks_forget_is_a_deadlock_in_a_line_of_it_and_in_the_one_that_called_it(computes):
    from dlpar.collectives import ring_allreduce

    def forgetful(comm):
        if comm.rank == 1:
            ring_allreduce(comm, comm.empty(3))  # which nobody else calls

    where = rf"at ring\.py:\d+, called at {HERE}:{line_of('# which nobody else calls')}"
    with pytest.raises(Deadlock, match=rf"rank 1 in recv from rank 0 .*{where}; ranks 0, 2 have ended$"):
        run(forgetful, 3, computes=computes)


def test_what_logs_messages_is_not_where_a_rank_stands():
    from dlpar.lab.animation import LoggingComm

    with pytest.raises(Deadlock, match=f"rank 1 in recv from rank 0 .*at {HERE}:"):
        run(lambda comm: LoggingComm(comm, into := comm.empty(1), [0, 1], []).recv(into, 1 - comm.rank), 2)


def test_a_deadlock_after_a_while_says_when():
    def late(comm):
        comm.world.pause(1.5)
        comm.recv(torch.empty(1))

    with pytest.raises(Deadlock, match="deadlock after 1.5 s of virtual time"):
        run(late, 2)


@BOTH
def test_a_rank_that_raises_ends_all_and_is_named(computes):
    def broken(comm):
        comm.world.pause(comm.rank * MS)
        if comm.rank == 2:
            raise ArithmeticError("of rank 2")
        comm.recv(comm.empty(1))

    simulator, comms = simulated_world(list(range(4)), cluster(), computes)
    with pytest.raises(ArithmeticError, match="of rank 2"):
        run_program(simulator, comms, broken, patience=20)
    assert simulator.failed_rank == 2


@BOTH
def test_ranks_that_clean_up_when_another_fails_wait_for_nobody_and_take_no_blame(computes):
    done = []

    def tidy(comm):
        try:
            if comm.rank != 1:
                comm.barrier()
            comm.world.pause(1 * MS)
            raise ArithmeticError("of rank 1")
        finally:
            try:
                if comm.rank != 1:
                    comm.recv(comm.empty(1), 1)  # which sends nothing any more
            finally:
                done.append(comm.rank)
                if comm.rank == 2:
                    raise KeyError("while cleaning up")

    before = threading.active_count()
    simulator, comms = simulated_world(list(range(4)), cluster(), computes)
    with pytest.raises(ArithmeticError, match="of rank 1"):
        run_program(simulator, comms, tidy, patience=20)
    assert simulator.failed_rank == 1 and sorted(done) == [0, 1, 2, 3]
    assert threading.active_count() == before


@BOTH
def test_no_thread_is_left_behind_whatever_happened(computes):
    from dlpar.collectives import ring_allreduce

    def overlapped(comm):
        comm.start(ring_allreduce, comm.empty(10)).wait()

    before = threading.active_count()
    run(overlapped, 8, computes=computes)
    for mistake in (
        send_then_receive,
        lambda comm: 1 / comm.rank,
        lambda comm: comm.start(lambda comm, bucket: comm.recv(bucket), comm.empty(1)),
    ):
        with pytest.raises((Deadlock, ArithmeticError)):
            run(mistake, 8, computes=computes)
    assert threading.active_count() == before


@BOTH
def test_a_rank_that_never_yields_is_noticed_and_told_by_its_line(computes):
    stories, free = [], threading.Event()

    def stubborn(comm):
        comm.barrier()
        while comm.rank == 1 and not free.is_set():  # never yields
            pass
        comm.barrier()

    simulator, comms = simulated_world([0, 1, 2], cluster(), computes)
    run_program(simulator, comms, stubborn, 0.2, on_hang=lambda story: (stories.append(story), free.set()))
    line = line_of("# never yields")
    assert stories in (
        [f"rank 1 has kept all others waiting for 0.2 s and let no time pass, at {HERE}:{n}"]
        for n in (line, line + 1)
    )


def test_a_rank_by_itself_that_goes_on_is_left_alone():
    """It has nobody to give way to; its clock says that it calls its communicator."""
    import time

    stories = []

    def alone(comm):
        for _ in range(10):
            time.sleep(0.05)
            comm.compute(lambda: None, cost=1e18)
        return comm.now()

    simulator, comms = simulated_world([0], cluster(), True)
    assert run_program(simulator, comms, alone, 0.2, on_hang=stories.append) == [10.0] and not stories


@pytest.mark.slow
def test_a_deadlock_in_a_cell_is_told_at_once():
    with pytest.raises(dlpar.JobFailed) as told:
        dlpar.spmd(send_then_receive, workers=3, world="simulated", timeout=60)
    where = f"{HERE}:{line_of('# first all send')}"
    assert f"rank 2 in send of 80,000 bytes to rank 0 (tag 3) at {where}" in str(told.value)
    assert "deadlock" in str(told.value)


@pytest.mark.slow
def test_a_rank_that_never_yields_ends_the_job_and_is_named():
    def stubborn(comm):
        while comm.rank == 1:  # for ever
            pass
        comm.barrier()

    with pytest.raises(dlpar.JobFailed, match=rf"rank 1 has kept all others waiting for 1\.4 s .* at {HERE}"):
        dlpar.spmd(stubborn, workers=3, world="simulated", timeout=2)


@pytest.mark.slow
def test_a_result_that_cannot_be_sent_home_is_the_mistake_of_its_rank():
    with pytest.raises(dlpar.JobFailed, match="rank 2 raised TypeError: cannot pickle"):
        dlpar.spmd(lambda comm: threading.Lock() if comm.rank == 2 else 1, workers=3, world="simulated")


# ---- one core ----------------------------------------------------------------------

on_linux = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two cores on Linux"
)


@pytest.fixture
def one_thread():
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


def cores_of(comm) -> set[int]:
    comm.barrier()
    return os.sched_getaffinity(0)


@on_linux
def test_ranks_that_compute_take_their_turns_on_one_core_and_the_caller_keeps_all(one_thread):
    usual = os.sched_getaffinity(0)
    (core, *others) = run(cores_of, 4)
    assert len(core) == 1 and core < usual and others == [core] * 3
    assert os.sched_getaffinity(0) == usual
    assert run(cores_of, 4, computes=False) == [usual] * 4  # greenlets of this thread
    torch.set_num_threads(2)
    assert run(cores_of, 4) == [usual] * 4


@on_linux
def test_ranks_of_a_process_that_gets_too_little_of_its_core_move_to_another(one_thread, monkeypatch):
    turns = itertools.cycle(sorted(os.sched_getaffinity(0)))
    monkeypatch.setattr(running.secrets, "choice", lambda cores: next(turns))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)  # it gets nothing

    def moved(comm) -> bool:
        begin, until, goes_on = cores_of(comm), time.monotonic() + 20, True
        while goes_on:  # the ranks take turns
            now = os.sched_getaffinity(0)
            goes_on = comm.broadcast(now == begin and time.monotonic() < until)
        return now != begin

    assert run(moved, 2)[0]
