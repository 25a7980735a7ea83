"""A process that has imported torch and MPI already, and forks fresh ranks in milliseconds.

It imports and computes nothing: a thread started here would be lost in every
child.  Ranks share its memory until they write to it, so that a rank costs some
10 MB instead of 150.  One server serves one user, one Python and one state of
dlpar's files; it leaves when those change or when nobody has come for a while.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time
import traceback

from dlpar.launcher.processes import die_with_parent

PRELOADED = ("torch", "torch.distributed", "numpy", "cloudpickle", "platformdirs", "filelock", "dlpar.train",
             "dlpar.comm.connect", "dlpar.comm.paced_world", "dlpar.launcher.rank", "dlpar.launcher.payload")  # fmt: skip
"""Modules a rank needs, in every rank from the start."""


def main() -> None:
    """``python -m dlpar.launcher.forkserver SOCKET FINGERPRINT IDLE``; says ``ready`` on standard output."""
    path, fingerprint, idle = sys.argv[1], sys.argv[2], float(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the job, not to the server
    _preload()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(path):
        os.unlink(path)
    old = os.umask(0o077)
    listener.bind(path)
    os.umask(old)
    ours = os.stat(path).st_ino
    listener.listen(128)
    try:
        print("ready", flush=True)
    except BrokenPipeError:  # who asked is gone; the next one will be glad of us
        pass
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    _serve(listener, (path, ours), fingerprint, idle)


def _preload() -> None:
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()  # collections in a child must not touch, and so copy, the parent's pages


def _serve(listener: socket.socket, name: tuple[str, int], fingerprint: str, idle: float) -> None:
    """Fork a rank per request, report how each ended, kill a rank whose stub is gone."""
    wake, awake = os.pipe()
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(awake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    stubs: dict[socket.socket, int] = {}
    quiet_since, leaving = time.monotonic(), False
    while stubs or not leaving:
        watched = [wake, *stubs] + ([] if leaving else [listener])
        ready = select.select(watched, [], [], 1.0)[0]
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(stubs)
        for stub in [s for s in ready if s in stubs]:
            _kill(stubs[stub])  # only EOF can make it readable: nobody waits for this rank any more
        if listener in ready:
            quiet_since = time.monotonic()  # whoever asks is about to send ranks
            leaving = _receive(listener, name, fingerprint, stubs, (wake, awake))
        if stubs:
            quiet_since = time.monotonic()
        elif not leaving and time.monotonic() - quiet_since > idle:
            leaving = True
            _leave(listener, name)


def _receive(listener: socket.socket, name: tuple[str, int], fingerprint: str, stubs: dict, pipe: tuple[int, int]) -> bool:
    """Answer whoever connects, or fork a rank for it; whether the code has changed, so that the server must leave.

    Lack of descriptors, processes or memory costs the one who asked, not those who run.
    """
    try:
        connection, _ = listener.accept()
    except OSError:
        time.sleep(0.05)
        return False
    asked = _request(connection)
    if asked is None:
        connection.close()
    elif "fingerprint" in asked[0]:
        stale = asked[0]["fingerprint"] != fingerprint
        if stale:
            _leave(listener, name)  # first free the name, then say so
        _answer(connection, "stale" if stale else "fresh")
        connection.close()
        return stale
    else:
        try:
            stubs[connection] = _fork(asked, connection, [listener, *stubs], pipe)
        except OSError:
            _answer(connection, "1")
            connection.close()
    return False


def _leave(listener: socket.socket, name: tuple[str, int]) -> None:
    """Take no more requests, and free the socket's name unless a newer server has it."""
    listener.close()
    path, ours = name
    if os.path.exists(path) and os.stat(path).st_ino == ours:
        os.unlink(path)


def _request(connection: socket.socket) -> tuple[dict, list[int]] | None:
    """Read one request with its descriptors; None from anybody but ourselves, or if it is torn."""
    connection.settimeout(5.0)
    descriptors: list[int] = []
    try:
        owner = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", owner)[1] != os.getuid():
            return None
        head, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
        body = b""
        while len(body) < int.from_bytes(head, "big") and (more := connection.recv(1 << 20)):
            body += more
        request = json.loads(body)
        if "fingerprint" in request or len(descriptors) == 3:
            return request, list(descriptors)
    except (OSError, ValueError):
        pass
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _fork(asked: tuple[dict, list[int]], connection: socket.socket, others: list, pipe: tuple[int, int]) -> int:
    request, descriptors = asked
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            raise OSError("no process to be had")
        return pid
    status = 1
    try:
        die_with_parent(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for open_socket in (connection, *others):
            open_socket.close()
        for descriptor in pipe:
            os.close(descriptor)
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        sys.stdout.reconfigure(line_buffering=True)  # it was a pipe's when Python started; a log wants lines
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        random.seed()
        from dlpar.launcher.rank import run_rank

        status = run_rank(request["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _report_ended(stubs: dict[socket.socket, int]) -> None:
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not pid:
            break
        ended[pid] = os.waitstatus_to_exitcode(status)
    for stub, pid in list(stubs.items()):
        if pid in ended:
            _answer(stub, str(ended[pid]))
            stub.close()
            del stubs[stub]


def _answer(connection: socket.socket, text: str) -> None:
    try:
        connection.sendall(text.encode() + b"\n")
    except OSError:  # the stub was killed first
        pass


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
