"""The fork server: a process that has imported torch and MPI already, and forks fresh ranks in milliseconds.

It imports and computes nothing more: a thread started here would be lost in every child.
Ranks share its memory until they write to it, so a rank costs some 10 MB instead of 150.
One server serves one user, one Python and one state of dlpar's files.  It leaves when those
change, or when nobody has come for a while.  At rest the standard library only, because a
job's guardian finds or starts the server with the functions below.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import dlpar
from dlpar.config.paths import runtime_folder
from dlpar.jobs.processes import die_with_parent, kill
from dlpar.jobs.scratch import lock
from dlpar.jobs.unix_sockets import Connection, ask, close_files, is_ours, listen

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
    with suppress(OSError):
        held = lock(path.with_suffix(".lock"), START)  # so that two jobs do not start two servers
        if held is not None:
            try:
                if _ask(path, fingerprint) != "fresh":
                    _start(python, path, fingerprint, idle)
            finally:
                os.close(held)
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
        with ask(path, {"fingerprint": fingerprint}, seconds=5.0) as server:
            return next(server.messages())
    except (OSError, ValueError):  # none, or one of another release
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
    server = ForkServer(Path(path), fingerprint)
    with suppress(BrokenPipeError):  # the starter has ended, but the next job needs a server
        print("ready", flush=True)
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    server.serve(idle)


def _preload() -> None:
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()  # collections in a child must not touch, and so copy, the parent's pages


class Stub(Connection):
    """Connection of a stub, which sends its three standard files, or of a job that asks about the code."""

    MOST_FILES = 3


class ForkServer:
    """Fork a rank for each request, report how each ended, and kill a rank whose stub is gone.

    Parameters
    ----------
    path : Path
        The socket to listen at; a newer server may take the name over.
    fingerprint : str
        State of dlpar's files; a job with another gets ``stale``, and starts a newer server.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.listener = listen(path, 0o600)
        self.inode = path.stat().st_ino
        self.stubs: dict[Stub, int] = {}
        self.asking: list[Stub] = []  # connected, but their request has not come yet
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
                    self._receive(connection)
            if self.listener in ready and not self.leaving:
                self._accept()
            if self.stubs or self.asking:
                quiet_since = time.monotonic()
            elif not self.leaving and (time.monotonic() - quiet_since > idle or not self._is_found()):
                self._leave()

    def _accept(self) -> None:
        try:
            self.asking.append(Stub(self.listener.accept()[0]))
        except OSError:  # a lack of descriptors stops the new rank, not those that run
            time.sleep(0.05)

    def _receive(self, connection: Stub) -> None:
        """Answer whether our code is still the user's, or fork a rank; a stub that gets neither starts cold."""
        try:
            requests = connection.hear() if is_ours(connection) else [None]
        except (OSError, ValueError):
            requests = [None]
        if not requests:  # a part of it is still to come
            return
        self.asking.remove(connection)
        request = requests[0] if isinstance(requests[0], dict) else {}
        if "argv" in request and len(connection.files) == 3:
            with suppress(OSError):  # no process is left
                self.stubs[connection] = self._fork(request, connection)
                _answer(connection, "forked")
        elif "fingerprint" in request:
            stale = request["fingerprint"] != self.fingerprint
            if stale:
                self._leave()  # first free the name, then say so
            _answer(connection, "stale" if stale else "fresh")
        close_files(connection.files)
        if connection not in self.stubs:
            connection.close()

    def _leave(self) -> None:
        """Take no more requests, and free the socket's name unless a newer server has it."""
        self.leaving = True
        for open_socket in (self.listener, *self.asking):
            open_socket.close()
        self.asking.clear()
        if self._is_found():
            self.path.unlink()

    def _is_found(self) -> bool:
        """Return whether the socket's name leads here: its folder may be gone, or a newer server have the name."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def _fork(self, request: dict, connection: Stub) -> int:
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
            for standard, descriptor in enumerate(connection.files):
                os.dup2(descriptor, standard)
            for open_socket in (connection, self.listener, *self.asking, *self.stubs):
                open_socket.close()
            for descriptor in self.pipe:
                os.close(descriptor)
            sys.stdout.reconfigure(line_buffering=True)  # Python started with a pipe; a log needs whole lines
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            # A Python that starts now would search both, and plug-ins may lie in either.
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
                _answer(stub, os.waitstatus_to_exitcode(status))
                stub.close()
                del self.stubs[stub]


def _answer(connection: Stub, message: str | int) -> None:
    with suppress(OSError):  # the stub was killed first
        connection.say(message)


if __name__ == "__main__":
    main()
