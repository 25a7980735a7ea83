"""A thread that runs collectives while the rank computes.

MPI moves a large message only inside an MPI call, so a non-blocking collective
makes no progress while the rank computes.  This thread stays inside such calls.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

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
        started = _Started(collective, bucket)
        self._todo.put(started)
        return started

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._todo.put(None)
        self._thread.join()
        self.comm.close()

    def _run(self) -> None:
        while (started := self._todo.get()) is not None:
            started.run(self.comm)


class _Started:
    """A collective that was queued; it carries its result, or its exception, back to who waits."""

    def __init__(self, collective: Collective, bucket: torch.Tensor) -> None:
        self._collective, self._bucket = collective, bucket
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, comm: Comm) -> None:
        try:
            self._result = self._collective(comm, self._bucket)
        except BaseException as error:  # re-raised in wait(), on the thread that can handle it
            self._error = error
        self._done.set()

    def wait(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def test(self) -> bool:
        return self._done.is_set()
