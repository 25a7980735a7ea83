"""Starting a job, guarding it while it runs, and leaving nothing behind.

    launch() ─► supervise.py ─► mpiexec ─► stub.py ─► fork server ─► rank.py   (warm)
                     │                └─► rank.py                              (cold)
                     └ ends everything when its owner, a rank or the clock says so

The supervisor and the stubs use the standard library only, so that they start
in milliseconds; this file therefore imports nothing.
"""

from __future__ import annotations
