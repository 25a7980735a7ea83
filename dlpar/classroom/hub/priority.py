"""The hub and its proxy go first on a machine where a whole class computes.

Linux shares processors among sessions before it shares them among processes (autogroups, sched(7)), and each
server, kernel and job of a student is a session: against them `nice` counts for nothing, and a session's own
weight does.  In a control group of its own, such as a systemd unit's, it is the other way round.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from jupyterhub.proxy import ConfigurableHTTPProxy

FIRST = -15
"""Nice value of the hub's session and the proxy's: 28 times the weight of a student's."""


def weigh(process: int | str, nice: int) -> bool:
    """Set the nice value of a process's session; whether that was allowed, which for a negative one needs root."""
    try:
        Path(f"/proc/{process}/autogroup").write_text(str(nice))
    except OSError:  # or this system has no autogroups
        return False
    return True


def go_first() -> None:
    """Give this process's session, which is the hub's or its terminal's, more weight until it ends."""
    if weigh("self", FIRST):
        atexit.register(weigh, "self", 0)


class Proxy(ConfigurableHTTPProxy):
    """JupyterHub's usual proxy, which starts in a session of its own, with the hub's weight."""

    async def start(self) -> Any:
        """Start it; also called when it has to start again."""
        await super().start()
        weigh(self.proxy_process.pid, FIRST)
