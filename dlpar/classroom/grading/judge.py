"""Judge of one answer in a box.

:func:`main` reads the trial as JSON from standard input and prints the verdict.

The student's code runs only in cells (:mod:`dlpar.classroom.grading.cells`), a process for each rank, which
the judge does not trust.  The check, the simulated ranks, their inputs and their messages are in this
process, which calls her function in the rank's cell.  Before her code runs, a cell checks the box. If the
cell finds a hole, the judge refuses to grade.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import is_dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray
from torch.serialization import add_safe_globals

from dlpar.classroom.grading import ACCOUNT
from dlpar.classroom.grading.cells import CellComm, become, run
from dlpar.comm import Arrival, Comm
from dlpar.config.experiment import Experiment
from dlpar.course import judge
from dlpar.course.judge import Verdict
from dlpar.jobs.launch import JobFailed
from dlpar.jobs.processes import die_with_parent
from dlpar.worlds.simulated.run import of_experiment, run_program
from dlpar.worlds.simulated.simulator import Deadlock, story

LONGEST = 4_000
"""Maximum characters of a verdict's sentence, which may quote the student."""

LARGEST = 2**26
"""Maximum bytes of a cell's message."""

PATIENCE = 15.0
"""Seconds within which a cell must return, or ask for a message."""

add_safe_globals([np.ndarray, np.dtype, multiarray.scalar, multiarray._reconstruct, frozenset])
add_safe_globals([getattr(np.dtypes, name) for name in np.dtypes.__all__])


def main(nursery: socket.socket) -> None:
    """Print the verdict. Raise an error if the box has a hole."""
    trial = json.load(sys.stdin)
    if account := os.environ.get(ACCOUNT):
        become(account)
        die_with_parent()  # the kernel drops it when the account changes
    cells = Cells(nursery, trial["answer"], trial["seconds"])
    judge.spmd = cells.simulate
    space: dict[str, Any] = {"__name__": "__main__"}
    run(trial["given"], "<given>", space)
    space |= {name: cells.function(name) for name in trial["names"]}
    if (holes := cells.open(0)) and account:
        raise PermissionError(f"answers are not isolated: they would reach {', '.join(holes)}")
    solved, said = _judged(space, trial["check"])
    print(json.dumps({"solved": solved, "said": said[:LONGEST]}), flush=True)
    os._exit(0)  # hanging ranks do not end by themselves


def _judged(space: dict[str, Any], check: str) -> tuple[bool, str]:
    """Run a check. The answer is solved only if the check ends with this verdict."""
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
    """Cells of one answer, by rank, and the simulated ranks that call it.

    Parameters
    ----------
    nursery : socket
        Opens cells: see :func:`~dlpar.classroom.grading.cells.open_nursery`.
    answer : str
        Source that each cell runs.
    seconds : float
        Time limit for all calls of the answer's functions together.
    """

    def __init__(self, nursery: socket.socket, answer: str, seconds: float) -> None:
        self.nursery, self.answer = nursery, answer
        self.seconds, self.end = seconds, time.monotonic() + seconds
        self.opened: dict[int, Connection] = {}
        self.lines: dict[int, str] = {}  # by rank: the line of the answer with its latest request

    def simulate(self, program: Any, *arguments: Any, workers: int, **cluster: Any) -> list[Any]:
        """Replace :func:`dlpar.jobs.launch.spmd` with simulated ranks in this process."""
        simulator, comms = of_experiment(Experiment(workers=workers, scaling="weak", cluster=cluster))
        try:
            return run_program(simulator, comms, lambda comm: program(comm, *arguments), patience=math.inf)
        except Deadlock:
            where = story(simulator.activities, where=lambda one: self.lines.get(one.rank, "the check"))
            raise JobFailed(where) from None
        except Exception as error:
            raise JobFailed(f"rank {simulator.failed_rank}: {type(error).__name__}: {error}") from None

    def open(self, rank: int) -> list[str]:
        """Open a rank's cell. Return the holes in the box that the cell found."""
        self.opened[rank], theirs = Pipe()
        socket.send_fds(self.nursery, [b"+"], [theirs.fileno()])
        theirs.close()
        holes = self._receive(rank)
        self.opened[rank].send_bytes(pickle.dumps(self.answer))
        return holes

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the answer that runs in its rank's cell.

        The function also changes the arguments here.
        """

        def judged(*arguments: Any, **named: Any) -> Any:
            comm = next((one for one in arguments if isinstance(one, Comm)), None)
            rank, begun = 0 if comm is None else comm.rank, []
            if rank not in self.opened:
                self.open(rank)
            cell = self.opened[rank]
            try:
                cell.send_bytes(pickle.dumps((name, [_sent(one) for one in arguments], named)))
                while (told := self._receive(rank))[0] not in ("returned", "raised"):
                    *question, self.lines[rank] = told
                    cell.send_bytes(pickle.dumps(_carried(comm, begun, *question)))
            except BaseException:
                del self.opened[rank]  # the cell may still be running this call
                raise
            kind, result, left = told
            if kind == "returned" and any(waits for *_, waits in begun):
                raise RuntimeError("a request of isend or irecv has had no wait()")
            if kind == "raised":
                # Torch's own errors of this kind have a message.
                raise NotImplementedError if left.endswith("\nNotImplementedError\n") else RuntimeError(left)
            for one, now in zip(arguments, left, strict=True):
                _put_back(one, now)
            return result

        judged.__name__ = name
        return judged

    def _receive(self, rank: int) -> Any:
        cell = self.opened[rank]
        try:
            left, late = self.end - time.monotonic(), f"it was not done after {self.seconds:g} s"
            if left <= 0 or not cell.poll(min(left, PATIENCE)):
                idle = f"no progress for {PATIENCE:g} s: it computes, or waits for more"
                raise RuntimeError(idle if left > PATIENCE else late)
            return read_result(cell.recv_bytes(LARGEST))
        except (EOFError, OSError):
            raise RuntimeError("the answer ended its process") from None


def _carried(comm: Any, begun: list[list[Any]], call: str, *given: Any) -> Any:
    """Execute a cell's communicator call on the simulated communicator."""
    if call == "wait":
        request, tensor, _ = begun[given[0]]
        begun[given[0]][2], arrival = False, request.wait()
        return None if arrival is None else Arrival(*arrival), tensor
    if call not in ("isend", "irecv", "barrier"):
        raise AttributeError(f"a cell asks for {call!r}")
    begun.append([getattr(comm, call)(*given), next(iter(given), None), call != "barrier"])
    return len(begun) - 1


def _sent(one: Any) -> Any:
    """Convert an argument to a form that a cell can read without dlpar's classes."""
    if isinstance(one, Comm):
        return CellComm(one.rank, one.size)
    return SimpleNamespace(**vars(one)) if is_dataclass(one) else one


def _put_back(one: Any, now: Any) -> None:
    """Copy a cell's changes to an argument back in place."""
    if isinstance(one, torch.Tensor):
        one.copy_(now)
    elif isinstance(one, (list, tuple)):
        for mine, new in zip(one, now):
            _put_back(mine, new)
    elif is_dataclass(one):
        vars(one).update(now)


def read_result(body: bytes) -> Any:
    """Read numbers, text, lists, tuples, sets, mappings, arrays and tensors.

    Raise an error for anything else.
    """
    try:
        return torch.load(io.BytesIO(body), weights_only=True)
    except pickle.UnpicklingError:
        allowed = "numbers, text, lists, tuples, sets, mappings, arrays and tensors"
        raise ValueError(f"a rank returned something other than data; allowed are {allowed}") from None
