"""Timing of a link with ping-pong messages between two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlpar.comm import Comm


SIZES = tuple(4**k for k in range(2, 11))
"""Bytes of a ping-pong's messages: 16 B to 1 MB."""


def there_and_back(
    comm: Comm, sizes: Sequence[int] = SIZES, repeats: int = 31, both: bool = False
) -> list[float]:
    """Time messages between two ranks. Return, for each size, the fastest of `repeats`, in seconds.

    A message and its answer take twice the time of one message.  With `both`, two messages cross, as in a
    ring. Only the fastest counts, because the others waited for a core, not for the link.
    """
    import torch  # imported here, because the sizes alone do not need it

    quickest, calls = [], (comm.recv, comm.send) if comm.rank else (comm.send, comm.recv)
    for size in sizes:
        ball, times = torch.zeros(size, dtype=torch.uint8), []
        other = torch.zeros_like(ball)
        for _ in range(repeats + 1):  # the first one warms up
            began = comm.now()
            if both:
                comm.sendrecv(ball, 1 - comm.rank, other, 1 - comm.rank)
            else:
                for send_or_receive in calls:
                    send_or_receive(ball, 1 - comm.rank)
            times.append((comm.now() - began) / (1 if both else 2))
        quickest.append(min(times[1:]))
    return quickest
