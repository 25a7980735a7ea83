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
import sys
import time
import traceback

from dlpar.jobs.processes import die_with_parent, is_ours

PRELOADED = ("torch", "torch.distributed", "numpy", "cloudpickle", "platformdirs", "filelock", "dlpar.train",
             "dlpar.worlds.connect", "dlpar.worlds.paced.world", "dlpar.jobs.rank", "dlpar.jobs.payload")  # fmt: skip
"""Modules a rank needs, in every rank from the start."""


def main() -> None:
    """``python -m dlpar.jobs.fork_server SOCKET FINGERPRINT IDLE``; says ``ready`` on standard output."""
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
    Server(listener, (path, ours), fingerprint).serve(idle)


def _preload() -> None:
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()  # collections in a child must not touch, and so copy, the parent's pages


class Server:
    """Forks a rank for each request, reports how each ended, and kills a rank whose stub is gone.

    Parameters
    ----------
    listener : socket
        Bound, and listening.
    name : tuple of str and int
        The socket's path and inode.
    fingerprint : str
        State of dlpar's files; who asks with another gets ``stale`` and a newer server.
    """

    def __init__(self, listener: socket.socket, name: tuple[str, int], fingerprint: str) -> None:
        self.listener, self.name, self.fingerprint = listener, name, fingerprint
        self.stubs: dict[socket.socket, int] = {}
        self.asking: list[
            socket.socket
        ] = []  # connected, but so busy a machine that they have not said what for
        self.leaving = False
        self.pipe = os.pipe()
        os.set_blocking(self.pipe[1], False)
        signal.set_wakeup_fd(self.pipe[1])
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, idle: float) -> None:
        """Until nobody has come for `idle` seconds or nobody can, or dlpar's files have changed, and all ranks have ended."""
        wake, quiet_since = self.pipe[0], time.monotonic()
        while self.stubs or not self.leaving:
            watched = [wake, *self.stubs] + ([] if self.leaving else [self.listener, *self.asking])
            ready = select.select(watched, [], [], 1.0)[0]
            if wake in ready:
                os.read(wake, 4096)
                self._report_ended()
            for stub in [s for s in ready if s in self.stubs]:
                _kill(self.stubs[stub])  # only EOF can make it readable: nobody waits for this rank any more
            for connection in ready:
                if connection in self.asking:
                    self.asking.remove(connection)
                    self._receive(connection)
            if self.listener in ready and not self.leaving:
                self._accept()
            if self.stubs or self.asking:
                quiet_since = time.monotonic()
            elif not self.leaving and (time.monotonic() - quiet_since > idle or not self._is_found()):
                self._leave()

    def _accept(self) -> None:
        try:
            self.asking.append(self.listener.accept()[0])
        except OSError:  # lack of descriptors costs the one who comes, not those who run
            time.sleep(0.05)

    def _receive(self, connection: socket.socket) -> None:
        """Say whether our code is still the user's, or fork a rank; who gets neither starts cold."""
        asked = _request(connection)
        if asked is not None and "fingerprint" not in asked[0]:
            try:
                self.stubs[connection] = self._fork(asked, connection)
            except OSError:
                connection.close()
            else:
                _answer(connection, "forked")
            return
        if asked is not None:
            stale = asked[0]["fingerprint"] != self.fingerprint
            if stale:
                self._leave()  # first free the name, then say so
            _answer(connection, "stale" if stale else "fresh")
        connection.close()

    def _leave(self) -> None:
        """Take no more requests, and free the socket's name unless a newer server has it."""
        self.leaving = True
        for open_socket in (self.listener, *self.asking):
            open_socket.close()
        self.asking.clear()
        if self._is_found():
            os.unlink(self.name[0])

    def _is_found(self) -> bool:
        """Whether the socket's name still leads here: its folder may be gone, or a newer server have the name."""
        path, ours = self.name
        try:
            return os.stat(path).st_ino == ours
        except OSError:
            return False

    def _fork(self, asked: tuple[dict, list[int]], connection: socket.socket) -> int:
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
            for open_socket in (connection, self.listener, *self.asking, *self.stubs):
                open_socket.close()
            for descriptor in self.pipe:
                os.close(descriptor)
            for standard, descriptor in enumerate(descriptors):
                os.dup2(descriptor, standard)
                os.close(descriptor)
            sys.stdout.reconfigure(
                line_buffering=True
            )  # it was a pipe's when Python started; a log wants lines
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            random.seed()
            from dlpar.jobs.rank import run_rank

            status = run_rank(request["argv"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _report_ended(self) -> None:
        ended = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
        for stub, pid in list(self.stubs.items()):
            if pid in ended:
                _answer(stub, str(ended[pid]))
                stub.close()
                del self.stubs[stub]


def _request(connection: socket.socket) -> tuple[dict, list[int]] | None:
    """Read one request with its descriptors; None from anybody but ourselves, or if it is torn."""
    connection.settimeout(5.0)
    descriptors: list[int] = []
    try:
        if not is_ours(connection):
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
