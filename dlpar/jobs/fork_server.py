"""The fork server: a process that has imported torch and MPI already, and forks fresh ranks in milliseconds.

It imports and computes nothing more: a thread started here would be lost in every child.
Ranks share its memory until they write to it, so a rank costs some 10 MB instead of 150.
One server serves one user, one Python and one state of dlpar's files.  It leaves when those
change, or when nobody has come for a while.  At rest the standard library only, because a
job's guardian finds or starts the server with the functions below.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import dlpar
from dlpar.config.paths import runtime_folder
from dlpar.jobs.processes import ask, die_with_parent, is_ours, kill

PRELOADED = ("torch", "torch.distributed", "numpy", "cloudpickle", "platformdirs", "filelock", "dlpar.train",
             "dlpar.worlds.connect", "dlpar.worlds.paced.comm", "dlpar.jobs.rank", "dlpar.jobs.record")  # fmt: skip
"""Modules a rank needs, in every rank from the start."""

NOT_RUN = {"lab", "course", "classroom", "cli"}
"""Rooms of the package that no rank runs."""

READ = {".py", ".json", ".toml"}
"""Endings of the files that a rank reads."""

IDLE = 600.0
"""Seconds a fork server stays without a job; ``$DLPAR_WARM_IDLE`` overrides it, 0 forbids warm starts."""

START = 60.0
"""Seconds a fork server may take to import everything."""

SOCKET_LENGTH = 107
"""Bytes the path of a Unix socket may have."""

started: list[subprocess.Popen] = []
"""Fork servers this process has started; they outlive it."""


# ---- finding or starting the server ------------------------------------------------


def warm_socket(python: str = sys.executable) -> Path | None:
    """Return the socket of a fork server that runs the present code; start one if needed.

    It takes milliseconds if there is one, seconds if it must be started.

    Returns
    -------
    Path or None
        None where a cold start is safer.  Forking is safe on Linux only; system libraries of macOS forbid it.
    """
    idle = idle_seconds()
    path, fingerprint = _socket_path(python), _fingerprint()
    if sys.platform != "linux" or idle <= 0 or len(os.fsencode(path)) > SOCKET_LENGTH:
        return None
    if _ask(path, fingerprint) == "fresh":
        return path
    try:
        with open(path.with_suffix(".lock"), "w") as lock:
            if not _locked(lock, START):
                return None
            if _ask(path, fingerprint) != "fresh":
                _start(python, path, fingerprint, idle)
    except OSError:
        return None
    return path if _ask(path, fingerprint) == "fresh" else None


def idle_seconds() -> float:
    """Return ``$DLPAR_WARM_IDLE`` as a number; raises `ValueError` in one sentence if it is none."""
    given = os.environ.get("DLPAR_WARM_IDLE", str(IDLE))
    try:
        return float(given)
    except ValueError:
        raise ValueError(
            f"DLPAR_WARM_IDLE: got {given!r}, allowed is a number of seconds, 0 for no warm start"
        ) from None


def prepare() -> None:
    """Have a fork server ready soon, without waiting for it: called when a panel is shown."""
    threading.Thread(target=warm_socket, name="dlpar-prepare", daemon=True).start()


def dismiss() -> bool:
    """Ask the fork server to leave once its ranks have ended; returns whether there was one."""
    path = _socket_path(sys.executable)
    return path.exists() and _ask(path, "leave") is not None


def _locked(file: TextIO, seconds: float) -> bool:
    """Take the lock, so that two jobs do not start two servers; False if another holds it for `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def _socket_path(python: str) -> Path:
    where = f"{python}:{Path(dlpar.__file__).parent}"
    return runtime_folder() / f"warm-{hashlib.sha1(where.encode()).hexdigest()[:10]}.sock"


def _fingerprint() -> str:
    """Return a text that changes with every file that ranks run, so that no rank runs yesterday's code."""
    root = Path(dlpar.__file__).parent
    files = sorted(
        f for f in root.rglob("*") if f.suffix in READ and f.relative_to(root).parts[0] not in NOT_RUN
    )
    state = [(str(f), s.st_mtime_ns, s.st_size) for f in files for s in [f.stat()]]
    return hashlib.sha1(repr(state).encode()).hexdigest()


def _ask(path: Path, fingerprint: str) -> str | None:
    """Return a server's answer to whether it runs these files, ``fresh`` or ``stale``; None without a server."""
    try:
        with ask(path, {"fingerprint": fingerprint}, seconds=5.0) as answers:
            return answers.readline().strip()
    except OSError:
        return None


def _start(python: str, path: Path, fingerprint: str, idle: float) -> None:
    # One thread in every library: the server must not hold a thread pool when it forks.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    found = os.pathsep.join([str(Path(dlpar.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    with open(path.with_suffix(".log"), "wb") as log:
        server = subprocess.Popen(
            [python, "-m", "dlpar.jobs.fork_server", str(path), fingerprint, str(idle)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **one_thread, "PYTHONPATH": found},
            cwd="/",
            start_new_session=True,
        )
    started.append(server)
    said, _, _ = select.select([server.stdout], [], [], START)
    server.stdout.close() if said else server.kill()


# ---- the server's own process -------------------------------------------------------


def main() -> None:
    """Serve: ``python -m dlpar.jobs.fork_server SOCKET FINGERPRINT IDLE`` prints ``ready``."""
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
    with suppress(BrokenPipeError):  # who started this one is gone; the next job needs a server too
        print("ready", flush=True)
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
    """Fork a rank for each request, report how each ended, and kill a rank whose stub is gone.

    Parameters
    ----------
    listener : socket
        Bound, and listening.
    name : tuple of str and int
        The socket's path and inode.
    fingerprint : str
        State of dlpar's files; a job with another gets ``stale``, and starts a newer server.
    """

    def __init__(self, listener: socket.socket, name: tuple[str, int], fingerprint: str) -> None:
        self.listener, self.name, self.fingerprint = listener, name, fingerprint
        self.stubs: dict[socket.socket, int] = {}
        self.asking: list[socket.socket] = []  # connected, but their request has not come yet
        self.leaving = False
        self.pipe = os.pipe()
        os.set_blocking(self.pipe[1], False)
        signal.set_wakeup_fd(self.pipe[1])
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, idle: float) -> None:
        """Serve until all ranks have ended and nobody came for `idle` seconds, or nobody can, or dlpar changed."""
        wake, quiet_since = self.pipe[0], time.monotonic()
        while self.stubs or not self.leaving:
            watched = [wake, *self.stubs] + ([] if self.leaving else [self.listener, *self.asking])
            ready = select.select(watched, [], [], 1.0)[0]
            if wake in ready:
                os.read(wake, 4096)
                self._report_ended()
            for stub in [s for s in ready if s in self.stubs]:
                kill([self.stubs[stub]])  # only its end makes it readable: nobody waits for this rank
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
        except OSError:  # a lack of descriptors stops the new rank, not those that run
            time.sleep(0.05)

    def _receive(self, connection: socket.socket) -> None:
        """Answer whether our code is still the user's, or fork a rank; a stub that gets neither starts cold."""
        request, descriptors = _request(connection)
        if "argv" in request and len(descriptors) == 3:
            try:
                self.stubs[connection] = self._fork(request, descriptors, connection)
                _answer(connection, "forked")
            except OSError:
                connection.close()
        else:
            if "fingerprint" in request:
                stale = request["fingerprint"] != self.fingerprint
                if stale:
                    self._leave()  # first free the name, then say so
                _answer(connection, "stale" if stale else "fresh")
            connection.close()
        for descriptor in descriptors:
            os.close(descriptor)

    def _leave(self) -> None:
        """Take no more requests, and free the socket's name unless a newer server has it."""
        self.leaving = True
        for open_socket in (self.listener, *self.asking):
            open_socket.close()
        self.asking.clear()
        if self._is_found():
            os.unlink(self.name[0])

    def _is_found(self) -> bool:
        """Return whether the socket's name leads here: its folder may be gone, or a newer server have the name."""
        path, ours = self.name
        try:
            return os.stat(path).st_ino == ours
        except OSError:
            return False

    def _fork(self, request: dict, descriptors: list[int], connection: socket.socket) -> int:
        """Fork a rank; returns its pid here, and never in the rank."""
        server = os.getpid()
        pid = os.fork()
        if pid:
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
            sys.stdout.reconfigure(line_buffering=True)  # Python started with a pipe; a log needs whole lines
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            # As a Python that started now would: plug-ins may lie in either.
            found = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            sys.path += [folder for folder in found if folder not in sys.path]
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
        for stub, rank in list(self.stubs.items()):
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                _answer(stub, str(os.waitstatus_to_exitcode(status)))
                stub.close()
                del self.stubs[stub]


def _request(connection: socket.socket) -> tuple[dict, list[int]]:
    """Read one request with its descriptors; an empty one from another account, or if it is torn."""
    connection.settimeout(5.0)
    descriptors: list[int] = []
    try:
        if is_ours(connection):
            first, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
            with connection.makefile("rb") as rest:
                request = json.loads(first + rest.readline())
            return request if isinstance(request, dict) else {}, descriptors
    except (OSError, ValueError):
        pass
    return {}, descriptors


def _answer(connection: socket.socket, text: str) -> None:
    with suppress(OSError):  # the stub was killed first
        connection.sendall(text.encode() + b"\n")


if __name__ == "__main__":
    main()
