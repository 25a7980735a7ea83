"""Cells: isolated processes that run an answer, one for each rank.

A *nursery* forks the cells.  It has loaded Python's packages and the code that the exercise lends.  It never
reads a check, an input or an answer.  In a box, a cell sees no dlpar, no network, no other process and no
file that it can write. Its communicator passes every call to the judge, which carries the messages and counts
them.
"""

from __future__ import annotations

import ctypes
import io
import linecache
import os
import pickle
import resource
import signal
import socket
import traceback
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import torch

from dlpar.classroom.grading import ACCOUNT, LENT, PACKAGE
from dlpar.comm import ANY, Comm
from dlpar.jobs.processes import adopt_orphans, end_children

ANSWER = "<answer>"
"""File name of an answer in tracebacks."""

HIDDEN = (PACKAGE, "/proc")
"""Folders of a box that cells find empty."""

WATCHED = ("/", "/dev", "/etc", "/proc")
"""Folders of a box in which no cell can write."""

MOUNTS, IPC, PROCESSES, NETWORK = 0x00020000, 0x08000000, 0x20000000, 0x40000000
"""Flags of unshare(2)."""

TOLD = 3_000
"""Maximum characters of a traceback."""


def run(source: str, file: str, space: dict[str, Any]) -> None:
    """Run source code with the names of `space`. Tracebacks quote its lines under the name `file`."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), space)


def become(account: str) -> None:
    """Drop root privileges permanently and keep only the account's."""
    user, group = map(int, account.split(":"))
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _kernel(call: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), call)(*arguments):
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """Open the nursery, then judge. The nursery forks from a process that has not imported the checks."""
    nursery = open_nursery()
    from dlpar.classroom.grading.judge import main as judge

    judge(nursery)


# ---- the nursery ----------------------------------------------------------------------


def open_nursery() -> socket.socket:
    """Fork the nursery, which forks a cell for each connection from the socket."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    adopt_orphans()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # these carry the trial and the verdict, only for the judge
        os.dup2(nothing, number)
    space: dict[str, Any] = {"__name__": "__main__"}
    run(os.environ.get(LENT, ""), "<given>", space)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if account := os.environ.get(ACCOUNT):
        _kernel("unshare", MOUNTS)
        for folder in HIDDEN:
            _kernel("mount", b"none", folder.encode(), b"tmpfs", 1, b"size=4k")  # 1: read-only
    while handles := socket.recv_fds(theirs, 1, 1)[1]:
        if os.fork() == 0:
            if account:
                _kernel("unshare", IPC | PROCESSES | NETWORK)
                if os.fork():
                    os._exit(0)
                become(account)
                resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # no process or thread can be added
            _live(handles[0], space)
        os.close(handles[0])
    end_children()
    os._exit(0)


# ---- a cell ---------------------------------------------------------------------------


def _live(handle: int, space: dict[str, Any]) -> NoReturn:
    """Report the box's holes, read the answer, and call its functions until the judge disconnects."""
    judge = CellComm.judge = Connection(os.dup2(handle, 3))
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    judge.send_bytes(packed(_holes()))
    try:
        answer = pickle.loads(judge.recv_bytes())
        while True:
            name, given, named = pickle.loads(judge.recv_bytes())
            judge.send_bytes(_called(answer, space, name, given, named))
    except (EOFError, OSError):
        os._exit(0)


def _holes() -> list[str]:
    """List everything that an answer in a box can access but must not."""
    found = [f"the network {name}" for _, name in socket.if_nameindex() if name != "lo"]
    found += [f"{folder}, to write there" for folder in WATCHED if os.access(folder, os.W_OK)]
    found += [f"what is in {folder}" for folder in HIDDEN if os.path.isdir(folder) and os.listdir(folder)]
    return found + ["all that root may"] * (os.getuid() == 0)


def packed(message: Any) -> bytes:
    """Serialize a cell's message for the judge, which loads it as plain data."""
    body = io.BytesIO()
    torch.save(message, body)
    return body.getvalue()


def _called(answer: str, space: dict, name: str, given: list, named: dict) -> bytes:
    """Call a function of the answer. Return its result or traceback, and the changed arguments."""
    try:
        if name not in space:
            run(answer, ANSWER, space)
        if not callable(space.get(name)):
            raise NameError(f"there is no function {name} in the answer")
        result = space[name](*given, **named)
        left = [vars(one) if isinstance(one, SimpleNamespace) else one for one in given]
        left = [None if isinstance(one, CellComm) else one for one in left]
        return packed(("returned", result, left))
    except BaseException as error:
        while (trace := error.__traceback__) and trace.tb_frame.f_globals.get("__name__") == __name__:
            error.__traceback__ = trace.tb_next
        return packed(("raised", type(error).__name__, "".join(traceback.format_exception(error))[-TOLD:]))


def _line() -> str:
    """Return the line of the answer that is running."""
    lines = [line for frame, line in traceback.walk_stack(None) if frame.f_code.co_filename == ANSWER]
    return f"{ANSWER}:{lines[0] if lines else '?'}"


class CellComm:
    """Communicator of a rank in its cell. It passes send, receive and barrier calls to the judge.

    Attributes
    ----------
    judge : Connection
        Connection of this process to the judge, which receives each call.
    """

    judge: Connection
    send, recv, sendrecv, compute, empty = Comm.send, Comm.recv, Comm.sendrecv, Comm.compute, Comm.empty
    together = Comm.together  # sendrecv calls it

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")

    def ask(self, *question: Any) -> Any:
        """Pass a call to the judge with the answer's line, and return the result."""
        self.judge.send_bytes(packed((*question, _line())))
        return pickle.loads(self.judge.recv_bytes())

    def isend(self, tensor: torch.Tensor, dest: int, tag: int = 0) -> Begun:
        return Begun(self, self.ask("isend", tensor.detach(), dest, tag), tensor.detach())

    def irecv(self, into: torch.Tensor, source: int = ANY, tag: int = ANY) -> Begun:
        return Begun(self, self.ask("irecv", into.detach(), source, tag), into.detach())

    def barrier(self) -> None:
        self.ask("barrier")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"comm.{name} is not available when an answer is graded: use send and recv")


class Begun(NamedTuple):
    """A pending communication of the judge, identified by a number, with its tensor."""

    comm: CellComm
    number: int
    tensor: torch.Tensor

    def wait(self) -> Any:
        """Block until the communication is complete. A receive copies the message into its tensor.

        Real ranks may read a tensor until `wait` returns. The judge copies it at once, so its values are compared.
        """
        arrival, message = self.comm.ask("wait", self.number)
        if arrival is None and not torch.allclose(self.tensor, message, 0, 0, equal_nan=True):
            raise RuntimeError("isend: the tensor changed before wait() returned")
        self.tensor.copy_(message)
        return arrival
