"""Stub that mpiexec starts instead of a rank in a warm launch.

Run as ``python -S -E stub.py SOCKET ARGUMENT…``.  At the stub's request the fork server forks the rank with the
stub's environment, folder and file descriptors.  The stub waits, and ends with the rank's status or by the
rank's signal.  If the stub is killed, its pipe closes and the fork server kills the rank.
"""

from __future__ import annotations

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from dlpar.jobs.processes import die_with_parent
from dlpar.jobs.unix_sockets import ask


def main() -> None:
    """Request a forked rank, and exit as the rank exits."""
    die_with_parent(os.getppid())
    rank = {"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[2:]}
    try:
        rank_dies, _ = os.pipe()  # only this process can write to the pipe
        answers = ask(sys.argv[1], rank, files=(0, 1, 2, rank_dies)).messages()
        # The server has forked the rank. Or it was killed before it could report this, and the rank has
        # ended.
        status = next(answers)
    except OSError:  # the fork server has just left, or cannot fork: start cold
        os.execv(sys.executable, [sys.executable, "-m", "dlpar.jobs.rank", *sys.argv[2:]])
    try:
        while not isinstance(status, int):
            status = next(answers)
    except OSError:  # the fork server is gone, and our rank was killed
        status = -signal.SIGKILL
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
