"""A cell runs an answer apart from the check, and its communicator asks the judge."""

from __future__ import annotations

import socket

import pytest
import torch

from dlpar.classroom.grading import cells
from dlpar.classroom.grading.judge import Cells
from dlpar.jobs.launch import JobFailed

ANSWER = """
import builtins
import torch

def around(comm, tensor):
    "Send to the right, receive from the left."
    arriving = torch.empty_like(tensor)
    comm.sendrecv(tensor, (comm.rank + 1) % comm.size, arriving, (comm.rank - 1) % comm.size)
    tensor.copy_(arriving)

def waits(comm, tensor):
    comm.recv(tensor, 1 - comm.rank)

def swap(comm, tensor, early=False, ends=True):
    arriving = torch.empty_like(tensor)
    sending = comm.isend(tensor, 1 - comm.rank)
    receiving = comm.irecv(arriving, 1 - comm.rank)
    receiving.wait()
    if early:
        tensor.copy_(arriving)
    if ends:
        sending.wait()
    tensor.copy_(arriving)

def changes_early(comm, tensor):
    swap(comm, tensor, early=True)

def never_waits(comm, tensor):
    swap(comm, tensor, ends=False)

def swaps_unknown(comm, tensor):
    tensor.fill_(float("nan"))
    swap(comm, tensor)

def share(comm, tensor):
    builtins.held = getattr(builtins, "held", 0) + 1
    comm.barrier()
    return builtins.held

def library(comm, tensor):
    comm.allreduce(tensor)

def unwritten(comm, tensor):
    raise NotImplementedError

def desk(server):
    server.weights -= 1
    server.waiting.append(3)
    return server.waiting
"""


@pytest.fixture
def answered():
    """The cells of the answer; they end with the nursery, which ends with the socket."""
    nursery: socket.socket = cells.open_nursery()
    yield Cells(nursery, ANSWER, 60.0)
    nursery.close()


def on_ranks(answered: Cells, name: str, ranks: int = 2) -> list:
    """Call a function with a tensor on each of some ranks; give its result, the tensor and what was sent."""
    function = answered.function(name)

    def program(comm):
        tensor = torch.full((3,), float(comm.rank))
        comm.traffic.take()
        result = function(comm, tensor)
        return result, tensor.tolist(), comm.traffic.take()

    return answered.simulate(program, workers=ranks, world="simulated", timeout=20.0)


def test_messages_between_cells_arrive_and_are_counted_by_the_judge(answered: Cells) -> None:
    sent = {"bytes": 12, "messages": 1}
    assert on_ranks(answered, "around", 3) == [(None, [float(rank)] * 3, sent) for rank in (2, 0, 1)]


def test_a_tensor_may_change_once_its_send_has_ended(answered: Cells) -> None:
    """Simulated ranks copy a tensor at once; real ranks may read it until `wait` returns."""
    assert [tensor for _, tensor, _ in on_ranks(answered, "swap")] == [[1.0] * 3, [0.0] * 3]
    assert len(on_ranks(answered, "swaps_unknown")) == 2  # NaN is equal to itself here
    with pytest.raises(JobFailed, match=r"isend: the tensor changed before wait\(\) returned"):
        on_ranks(answered, "changes_early")
    with pytest.raises(JobFailed, match=r"isend or irecv has had no wait\(\)"):
        on_ranks(answered, "never_waits")


def test_ranks_share_no_state_of_the_interpreter(answered: Cells) -> None:
    assert [result for result, *_ in on_ranks(answered, "share")] == [1, 1]


def test_a_deadlock_names_the_line_of_the_answer_at_which_each_rank_waits(answered: Cells) -> None:
    with pytest.raises(
        JobFailed, match=r"rank 0 in recv from rank 1 .*<answer>:12; rank 1 in recv from rank 0"
    ):
        on_ranks(answered, "waits")


def test_the_library_s_collectives_are_not_there(answered: Cells) -> None:
    with pytest.raises(
        JobFailed, match="comm.allreduce is not available when an answer is graded: use send and recv"
    ):
        on_ranks(answered, "library")


def test_an_answer_not_written_yet_says_so(answered: Cells) -> None:
    with pytest.raises(JobFailed, match="NotImplementedError"):
        on_ranks(answered, "unwritten")


def test_what_a_function_changes_in_its_arguments_is_put_back(answered: Cells) -> None:
    from dlpar.course.exercises.server import Desk

    server = Desk(torch.ones(2), 0.5, 1, {1: 0}, {1: 0})
    assert answered.function("desk")(server) == [3]
    assert server.waiting == [3] and server.weights.tolist() == [0.0, 0.0] and server.clock == {1: 0}
