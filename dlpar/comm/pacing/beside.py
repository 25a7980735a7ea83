"""What a paced rank runs beside its computation: a second thread, with a line of its own to the referee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlpar.comm.base import Collective, Request
from dlpar.comm.pacing import frames
from dlpar.comm.progress import ProgressThread

if TYPE_CHECKING:
    import torch

    from dlpar.comm.paced import PacedComm, Standing


class Beside:
    """Runs collectives one after the other, each from the logical moment at which it was started.

    Parameters
    ----------
    comm : PacedComm
        On the second line.
    activity : int
        Its number.
    """

    def __init__(self, comm: PacedComm, activity: int) -> None:
        self.comm, self.activity = comm, activity
        self.thread = ProgressThread(comm)

    def start(self, computing: PacedComm, collective: Collective, bucket: torch.Tensor) -> _Started:
        """Queue ``collective(comm, bucket)``, started by `computing`."""
        key = computing.standing.number()
        computing.line.tell(frames.START, computing.handle, peer=self.activity, key=key)

        def run(comm: PacedComm, bucket: torch.Tensor) -> Any:
            comm.standing.current.line = comm.line
            comm.line.answer()  # it begins
            try:
                return collective(comm, bucket)
            finally:
                comm.line.tell(frames.RETURN)
                comm.line.flush()

        return _Started(computing, key, self.thread.start(run, bucket))

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self.thread.close()


class _Started:
    """A collective that was started: complete when its logical end has come."""

    def __init__(self, computing: PacedComm, key: int, request: Request) -> None:
        self.line, self.key, self.request, self.joined = computing.line, key, request, False

    def wait(self) -> Any:
        if not self.joined:
            self.line.ask(frames.JOIN, key=self.key)
            self.joined = True
        result = self.request.wait()
        self.line.follow()
        return result

    def test(self) -> bool:
        return self.joined or bool(self.line.ask(frames.JOINED, key=self.key).key)


class Guard:
    """Keeps a rank's activities out of each other's way, in the order of their clocks."""

    def __init__(self, standing: Standing) -> None:
        self.standing, self.key = standing, standing.number()

    def __enter__(self) -> None:
        self.standing.current.line.ask(frames.LOCK, key=self.key)

    def __exit__(self, *error: object) -> None:
        self.standing.current.line.tell(frames.UNLOCK, key=self.key)
