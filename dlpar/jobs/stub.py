"""What mpiexec starts in a warm launch: hands its environment to the fork server and stands for the rank.

Run as ``python -S -E stub.py SOCKET ARGUMENT…``.  The fork server forks the rank
with this process's environment, folder and file descriptors; the stub waits,
and ends as the rank ended.  If the stub is killed the fork server sees the
socket close and kills the rank.
"""

from __future__ import annotations

import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from dlpar.jobs.processes import die_with_parent, is_ours


def main() -> None:
    die_with_parent(os.getppid())
    try:
        server = _forked(sys.argv[1], sys.argv[2:])
    except OSError:  # the fork server left this moment, or has no process for us: start cold
        python = [sys.executable, "-m", "dlpar.jobs.rank", *sys.argv[2:]]
        os.execv(python[0], python)
    answer = server.readline()
    status = int(answer) if answer else 1  # no answer: the fork server itself is gone, and our rank with it
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def _forked(path: str, argv: list[str]):
    """Have a rank forked; the file whose next line is its exit status.  OSError where none is forked."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(path)
    if not is_ours(server):  # it would get our environment and our descriptors
        raise PermissionError(f"{path}: somebody else listens there")
    body = json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "argv": argv}).encode()
    socket.send_fds(server, [len(body).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(body)
    answers = server.makefile()
    if answers.readline() != "forked\n":
        raise ConnectionAbortedError("the fork server closed the connection")
    return answers


main()
