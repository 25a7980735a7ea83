"""The simulated world: one process holds all ranks, and a scheduler decides which runs next.

`run` builds a world and runs a program on it.  `comm` has the calls of its ranks, and `network` the times of
messages.  `mailbox` matches them with receives, and `simulator` has the events and the tasks of ranks.
"""

from __future__ import annotations
