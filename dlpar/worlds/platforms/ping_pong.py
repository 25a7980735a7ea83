"""Time a link by ping-pong messages between two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.comm import Comm


SIZES = tuple(4**k for k in range(2, 11))
"""Bytes of a ping-pong's messages: 16 B to 1 MB."""


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
