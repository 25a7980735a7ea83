"""Timing a real link: messages to and fro between two ranks, and the size above which a send waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.comm import Comm


SIZES = tuple(4**k for k in range(2, 11))
"""Bytes of a ping-pong's messages: 16 B to 1 MB."""

PATIENCE, NAP = 0.1, 1e-3
"""Seconds after which a send counts as waiting for its receiver, and between two looks."""


def there_and_back(comm: Comm, sizes: Sequence[int] = SIZES, repeats: int = 31) -> list[float]:
    """Time round trips between two ranks: for each size, half of the quickest of `repeats`, in seconds.

    The quickest counts: others waited for a core, not for the link.
    """
    import torch  # here: the sizes alone do not need it

    quickest = []
    for size in sizes:
        ball, times = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(repeats + 1):  # the first one warms up
            began = comm.now()
            if comm.rank == 0:
                comm.send(ball, 1)
                comm.recv(ball, 1)
            else:
                comm.recv(ball, 0)
                comm.send(ball, 0)
            times.append((comm.now() - began) / 2)
        quickest.append(min(times[1:]))
    return quickest


def eager_limit(comm: Comm, most: int = 1 << 20, exact: int = 64) -> int:
    """Find on two ranks the bytes up to which a send does not wait for its receiver.

    Parameters
    ----------
    most : int
        Largest size tried, in bytes.
    exact : int
        Largest error of the limit, in bytes; it is never too large.
    """
    low, high = 0, most + exact
    while high - low > exact:
        size = (low + high) // 2
        low, high = (size, high) if _is_eager(comm, size) else (low, size)
    return low


def _is_eager(comm: Comm, size: int) -> bool:
    """Return whether rank 0's send of `size` bytes ends while rank 1 does not receive; on both ranks."""
    import torch

    ball, over = torch.zeros(size, dtype=torch.uint8), None
    comm.barrier()
    if comm.rank == 0:
        sending, began = comm.isend(ball, 1), comm.now()
        while not (over := sending.test()) and comm.now() - began < PATIENCE:
            comm.world.pause(NAP)  # and the other rank has a core: it has to take the message in
    over = comm.broadcast(over)  # after which rank 1 receives
    if comm.rank == 0:
        sending.wait()
    else:
        comm.recv(ball, 0)
    return over
