"""Judge one answer inside a box: :func:`main` reads the trial as JSON from standard input.

It writes two lines of JSON to standard output: the surroundings of a cell, before any of the student's code runs, and
the verdict.  Both carry the trial's secret, which no other process knows.  The student's code runs only in cells
(:mod:`dlpar.classroom.grading.cells`), a process for each rank, which the judge does not trust.  The check, the
simulated ranks, their inputs and their messages are in this process: it calls her function in the rank's cell.
"""

from __future__ import annotations

import ctypes
import io
import json
import math
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch

from dlpar.classroom.grading import GROUP, USER
from dlpar.classroom.grading.cells import Place, become, run
from dlpar.comm import Arrival, Comm
from dlpar.config.experiment import Experiment
from dlpar.course import judge
from dlpar.course.judge import Verdict
from dlpar.jobs.launch import JobFailed
from dlpar.worlds.simulated.run import of_experiment, run_program
from dlpar.worlds.simulated.simulator import Deadlock, story

PR_SET_DUMPABLE = 4

LONGEST = 4_000
"""Characters of a verdict's sentence, which may quote the student."""

LARGEST = 2**26
"""Bytes of a message of a cell."""

CALL_TIMEOUT = 15.0
"""Seconds for one call of a function that needs no ranks."""

READABLE = {
    ("builtins", "complex"), ("builtins", "set"), ("builtins", "frozenset"), ("builtins", "slice"),
    ("collections", "OrderedDict"),
    ("numpy", "dtype"), ("numpy", "ndarray"), ("numpy._core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer"),
    ("torch._utils", "_rebuild_tensor_v2"),
}  # fmt: skip
"""Classes and functions that a cell's message may name."""


def main(nursery: socket.socket) -> None:
    """Report the surroundings and the verdict."""
    channel, trial = os.dup(1), json.load(sys.stdin)  # the copy is not handed on to other processes
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(**facts: Any) -> None:
        os.write(channel, json.dumps({"secret": trial["secret"], **facts}).encode() + b"\n")

    if USER in os.environ:
        become(int(os.environ[USER]), int(os.environ[GROUP]))
    if sys.platform == "linux":
        # Others of this account, such as the student's, cannot look into this process.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    cells = Cells(nursery, trial["answer"])
    judge.spmd = cells.simulate
    space: dict[str, Any] = {"__name__": "__main__"}
    run(trial["given"], "<given>", space)
    space |= {name: cells.function(name) for name in trial["names"]}
    tell(**cells.open(0))
    solved, said = _judged(space, trial["check"])
    tell(solved=solved, said=said[:LONGEST])


def _judged(space: dict[str, Any], check: str) -> tuple[bool, str]:
    """Run a check; solved only if it ran to its end and its verdict says so."""
    space.pop("solved", None)
    failure = None
    try:
        run(check, "<check>", space)
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
    found = space.get("solved")
    if not isinstance(found, Verdict):
        return False, f"not yet: {failure or 'the check came to no verdict'}"
    return failure is None and found.status == "solved", repr(found)


class Cells:
    """The cells of one answer, by rank, and the simulated ranks that call it.

    Parameters
    ----------
    nursery : socket
        Opens cells, see :func:`~dlpar.classroom.grading.cells.open_nursery`.
    answer : str
        The source that each cell runs.
    """

    def __init__(self, nursery: socket.socket, answer: str) -> None:
        self.nursery, self.answer, self.timeout = nursery, answer, CALL_TIMEOUT
        self.here, self.opened = threading.local(), {}
        self.lines: dict[int, str] = {}  # by rank: the line of the answer at which it has asked last

    def simulate(
        self, program: Any, *arguments: Any, workers: int, world: str, timeout: float, **cluster: Any
    ) -> list[Any]:
        """Do what :func:`dlpar.jobs.launch.spmd` does on simulated ranks, in this process."""
        place = {**cluster, "world": "simulated", "timeout": timeout}
        simulator, comms = of_experiment(Experiment(workers=workers, scaling="weak", cluster=place))
        self.timeout = timeout

        def of_rank(comm: Comm) -> Any:
            self.here.rank = comm.rank
            return program(comm, *arguments)

        try:
            return run_program(simulator, comms, of_rank, patience=math.inf)
        except Deadlock:
            where = story(simulator.activities, where=lambda one: self.lines.get(one.rank, "the check"))
            raise JobFailed(where) from None
        except Exception as error:
            raise JobFailed(f"rank {simulator.failed_rank}: {type(error).__name__}: {error}") from None
        finally:
            self.timeout = CALL_TIMEOUT

    def open(self, rank: int) -> dict[str, Any]:
        """Open the cell of a rank; return what an answer will find around it there."""
        self.opened[rank], theirs = Pipe()
        socket.send_fds(self.nursery, [b"+"], [theirs.fileno()])
        theirs.close()
        around = self._receive(rank)
        self.opened[rank].send_bytes(pickle.dumps(self.answer))
        return around

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the answer, to be called by a check: it runs in the cell of the rank that calls."""

        def judged(*arguments: Any, **named: Any) -> Any:
            return self._call(name, arguments, named)

        judged.__name__ = name
        return judged

    def _receive(self, rank: int) -> Any:
        cell: Connection = self.opened[rank]
        try:
            if not cell.poll(self.timeout):
                raise RuntimeError(
                    f"no progress for {self.timeout:g} s: it computes, or waits for something else"
                )
            return read_result(cell.recv_bytes(LARGEST))
        except (EOFError, OSError):
            raise RuntimeError("the answer ended its process") from None

    def _call(self, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call a function in the cell of this rank, and put back what it leaves in its arguments."""
        rank = getattr(self.here, "rank", 0)
        if rank not in self.opened:
            self.open(rank)
        comm = next((one for one in arguments if isinstance(one, Comm)), None)
        cell, begun = self.opened[rank], []
        try:
            cell.send_bytes(pickle.dumps((name, [_sent(one) for one in arguments], named)))
            while (told := self._receive(rank))[0] not in ("returned", "raised"):
                *question, self.lines[rank] = told
                cell.send_bytes(pickle.dumps(_carried(comm, begun, *question)))
        except BaseException:
            del self.opened[rank]  # it may still be at work on this call
            raise
        kind, result, left = told
        if kind == "raised":
            raise NotImplementedError if result == "NotImplementedError" else RuntimeError(left)
        for one, now in zip(arguments, left, strict=True):
            _put_back(one, now)
        return result


def _carried(comm: Any, begun: list[tuple[Any, Any]], call: str, *given: Any) -> Any:
    """Do what a cell's communicator asks for, on the simulated one."""
    if call == "wait":
        request, room = begun[given[0]]
        arrival = request.wait()
        return room is not None and Arrival(arrival.source, arrival.tag, arrival.nbytes), room
    if call not in ("isend", "irecv", "barrier"):
        raise AttributeError(f"a cell asks for {call!r}")
    begun.append((getattr(comm, call)(*given), given[0] if call == "irecv" else None))
    return len(begun) - 1


def _sent(one: Any) -> Any:
    """Return an argument as a cell can read it, without dlpar's classes."""
    if isinstance(one, Comm):
        return Place(one.rank, one.size)
    return SimpleNamespace(**vars(one)) if is_dataclass(one) else one


def _put_back(one: Any, now: Any) -> None:
    """Change an argument, in place, to what a cell has left in its copy."""
    if isinstance(one, torch.Tensor):
        one.copy_(now)
    elif isinstance(one, (list, tuple)):
        for mine, new in zip(one, now):
            _put_back(mine, new)
    elif is_dataclass(one):
        vars(one).update(now)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) not in READABLE:
            allowed = "numbers, text, lists, mappings and tensors"
            raise ValueError(f"a rank returned a {module}.{name}, allowed are {allowed}")
        return super().find_class(module, name)


def read_result(body: bytes) -> Any:
    """Read numbers, text, lists, tuples, sets, mappings, arrays and tensors; raises an error for anything else."""
    return _Reader(io.BytesIO(body)).load()


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)
