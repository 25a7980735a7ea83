"""A thread that runs collectives while the rank computes.

MPI moves a large message only inside an MPI call, so a non-blocking collective
makes no progress while the rank computes.  This thread stays inside such calls.

A GPU is told what to do ahead, in streams: it does one stream's work in order, and
that of two beside each other.  So on a GPU the thread has a stream of its own, which
waits for what the computing one was told before a collective was started, and whose
end the computing one waits for in ``wait()``.  The host waits for neither.
"""

from __future__ import annotations

import queue
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from dlpar.comm.base import Collective, Comm


class ProgressThread:
    """Runs collectives one after the other, in the order they were started.

    Parameters
    ----------
    comm : Comm
        A communicator no other thread uses.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self._todo: queue.SimpleQueue[_Started | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dlpar-progress", daemon=True)
        self._thread.start()

    def start(self, collective: Collective, bucket: torch.Tensor) -> _Started:
        """Queue ``collective(comm, bucket)``; its ``wait()`` gives the collective's result."""
        started = _Started(collective, bucket, self.comm.device)
        self._todo.put(started)
        return started

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._todo.put(None)
        self._thread.join()
        self.comm.close()

    def _run(self) -> None:
        with _own_stream(self.comm.device):
            while (started := self._todo.get()) is not None:
                started.run(self.comm)


class _Started:
    """A collective that was queued; it carries its result, or its exception, back to who waits."""

    def __init__(self, collective: Collective, bucket: torch.Tensor, device: torch.device) -> None:
        self._collective, self._bucket, self._device = collective, bucket, device
        self._told, self._ended = _told_so_far(device), None
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, comm: Comm) -> None:
        try:
            self._follow(self._told)
            self._result = self._collective(comm, self._bucket)
            self._ended = _told_so_far(self._device)
        except BaseException as error:  # re-raised in wait(), on the thread that can handle it
            self._error = error
        self._done.set()

    def wait(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        self._follow(self._ended)
        return self._result

    def test(self) -> bool:
        return self._done.is_set()

    def _follow(self, event: torch.cuda.Event | None) -> None:
        """Let this thread's stream wait until the other has come to an event."""
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


def _own_stream(device: torch.device) -> AbstractContextManager:
    """The context of a thread with a stream of its own, on its rank's GPU: a new thread would begin on the first."""
    if device.type != "cuda":
        return nullcontext()
    torch.cuda.set_device(device)
    return torch.cuda.stream(torch.cuda.Stream(device))


def _told_so_far(device: torch.device) -> torch.cuda.Event | None:
    """Where this thread's stream will have done what it was told by now; None on the CPU, which does so at once."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
