"""Thread that runs collectives while the rank computes.

MPI moves a large message only inside an MPI call.  So a non-blocking collective makes no progress while the
rank computes.  This thread stays inside such calls.

A GPU executes its work later, in streams: in order within one stream, and concurrently in two.  So on a GPU
the thread has its own stream.  This stream waits for work that was queued on the computing stream before the
collective started.  ``wait()`` lets the computing stream wait for the end of the collective.  The host waits
for neither.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from dlpar.comm.base import Collective, Comm


class ProgressThread:
    """Thread that runs collectives one after the other, in the order in which they were started.

    Parameters
    ----------
    comm : Comm
        A communicator that no other thread uses.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self._failed: BaseException | None = None
        self._thread = ThreadPoolExecutor(1, "dlpar-progress", _use_own_stream, (comm.device,))

    def start(self, collective: Collective, bucket: torch.Tensor) -> _Started:
        """Queue ``collective(comm, bucket)``. The request's ``wait()`` returns the collective's result."""
        before = _queued_so_far(self.comm.device)
        return _Started(self._thread.submit(self._run, collective, bucket, before), self.comm.device)

    def close(self) -> None:
        """Finish the queue and end the thread."""
        self._thread.shutdown()
        self.comm.close()

    def _run(self, collective: Collective, bucket: torch.Tensor, before: torch.cuda.Event | None) -> Any:
        if self._failed is not None:  # a message now would not match the others' receives
            raise self._failed
        _follow(before, self.comm.device)
        try:
            return collective(self.comm, bucket), _queued_so_far(self.comm.device)
        except BaseException as error:
            self._failed = error
            raise


class _Started:
    """Pending collective. Its result, or its exception, reaches the thread that waits."""

    def __init__(self, future: Future, device: torch.device) -> None:
        self.future, self._device = future, device

    def wait(self) -> Any:
        result, end = self.future.result()
        _follow(end, self._device)
        return result

    def test(self) -> bool:
        return self.future.done()


def _use_own_stream(device: torch.device) -> None:
    """Set the new thread's GPU to its rank's GPU. The thread gets its own stream."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))


def _queued_so_far(device: torch.device) -> torch.cuda.Event | None:
    """Mark the end of the work queued on this thread's stream.

    Return None on the CPU, which has no queue.
    """
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _follow(event: torch.cuda.Event | None, device: torch.device) -> None:
    """Let this thread's stream wait for an event of the compute stream."""
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)
