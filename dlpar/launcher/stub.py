"""What mpiexec starts in a warm launch: hands its environment to the fork server and stands for the rank.

Run as ``python -S -E stub.py SOCKET ARGUMENT…``.  The fork server forks the rank
with this process's environment, folder and file descriptors; the stub waits,
and ends as the rank ended.  If the stub is killed the fork server sees the
socket close and kills the rank.
"""

import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from dlpar.launcher.processes import die_with_parent  # noqa: E402


def main() -> None:
    die_with_parent(os.getppid())
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(sys.argv[1])
    except OSError:  # it left this moment: start cold
        python = [sys.executable, "-m", "dlpar.launcher.rank", *sys.argv[2:]]
        os.execv(python[0], python)
    request = {"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[2:]}
    body = json.dumps(request).encode()
    socket.send_fds(server, [len(body).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(body)
    answer = server.makefile().readline()
    status = int(answer) if answer else 1  # no answer: the fork server itself is gone
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
