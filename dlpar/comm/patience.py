"""Waiting without keeping a core busy: MPI's own blocking calls spin, and take the core from ranks that compute.

Spinning that gives the core away at every turn is no better: where many ranks do so, a
kernel may leave others, and its own threads, without a core for a minute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

LOOKS = 200
"""Looks at full speed, each giving the core away, before the first nap."""

FIRST, LONGEST = 2e-5, 1e-3
"""Seconds of the first nap and of the longest; each is half as long again as the one before."""


def patiently(look: Callable[..., Any], *arguments: Any) -> Any:
    """What ``look(*arguments)`` gives, as soon as that is neither None nor False."""
    for _ in range(LOOKS):
        if found := look(*arguments):
            return found
        os.sched_yield()
    nap = FIRST
    while not (found := look(*arguments)):
        time.sleep(nap)
        nap = min(1.5 * nap, LONGEST)
    return found


def meet(mpi: MPI.Intracomm) -> None:
    """Return once every rank of `mpi` has called; in front of what blocks, it leaves nothing to spin for."""
    patiently(mpi.Ibarrier().Test)
