"""Fork server: a process that has already imported torch and MPI, and forks ranks in milliseconds.

The server imports and computes nothing more, because a thread started here would be lost in every child.
Ranks share its memory until they write to it, so a rank costs about 10 MB instead of 150. One server serves
one user, one Python, one state of dlpar's files, and one set of limits.  It exits when these files change, or
after a while without jobs.  This module imports only the standard library, because a job's guardian uses the
functions below to find or start the server.
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
from importlib import import_module
from pathlib import Path

import dlpar
from dlpar.config.paths import runtime_folder
from dlpar.jobs.control_groups import text_of, usable_cores
from dlpar.jobs.processes import adopt_orphans, descendants, die_with_writer, end_children, has_children, kill
from dlpar.jobs.scratch import lock
from dlpar.jobs.unix_sockets import Connection, ask, close_files, is_ours, listen
from dlpar.worlds.mpiexec import ONE_THREAD

PRELOADED = ("dlpar.jobs.rank", "torch.distributed", "networkx", "numpy.random", "platformdirs", "filelock")
"""Modules that every rank has loaded from the start, with their own imports."""

NOT_RUN = {"lab", "course", "classroom", "cli"}
"""Subpackages that are not preloaded, so a change in them needs no new fork server."""

READ = {".py", ".json", ".toml"}
"""Suffixes of the files that a rank reads."""

IDLE = 600.0
"""Seconds that a fork server waits for a job. ``$DLPAR_WARM_IDLE`` overrides it. 0 forbids warm starts."""

START = 60.0
"""Seconds that a fork server may take to import everything."""

SOCKET_LENGTH = 107
"""Maximum length in bytes of a Unix socket's path."""

started: list[subprocess.Popen] = []
"""Fork servers that this process started, and that outlive this process."""


# ---- finding or starting the server ------------------------------------------------


def warm_socket() -> Path | None:
    """Return the socket of a fork server that runs the current code. Start one if needed.

    This takes milliseconds, or seconds if a server must start.

    Returns
    -------
    Path or None
        None if a cold start is safer.  Forking is safe on Linux only, because system libraries of macOS
        forbid it.
    """
    idle = idle_seconds()
    path, fingerprint = _socket_path(), _fingerprint()
    if sys.platform != "linux" or idle <= 0 or len(os.fsencode(path)) > SOCKET_LENGTH:
        return None
    if _ask(path, fingerprint) == "fresh":
        return path
    with suppress(OSError):
        held = lock(path.with_suffix(".lock"), START)  # so that two jobs do not start two servers
        if held is not None:
            with os.fdopen(held, "w"):
                if _ask(path, fingerprint) != "fresh":
                    _start(path, fingerprint, idle)
    return path if _ask(path, fingerprint) == "fresh" else None


def idle_seconds() -> float:
    """Return ``$DLPAR_WARM_IDLE`` as a number. Raises `BadExperiment` for anything else."""
    given = os.environ.get("DLPAR_WARM_IDLE", str(IDLE))
    with suppress(ValueError):
        return float(given)
    from dlpar.config.schema import BadExperiment  # imported here, because it loads pydantic

    raise BadExperiment(f"DLPAR_WARM_IDLE: got {given!r}, allowed is a number of seconds")


def prepare() -> None:
    """Start a fork server without waiting for it, for example when a panel appears."""
    threading.Thread(target=warm_socket, name="dlpar-prepare", daemon=True).start()


def _socket_path() -> Path:
    # A rank has the core mask, nice value, limits and modules of its server.
    had = sorted(usable_cores()), os.nice(0), text_of(Path("/proc/self/limits")), os.environ.get("PYTHONPATH")
    where = f"{sys.executable}:{Path(dlpar.__file__).parent}:{had}:{os.environ.get('SLURM_JOB_ID')}"
    return runtime_folder() / f"warm-{hashlib.sha1(where.encode()).hexdigest()[:10]}.sock"


def _fingerprint() -> str:
    """Return a fingerprint of all files that ranks run. It prevents ranks from running old code."""
    root = Path(dlpar.__file__).parent
    files = [f for f in root.rglob("*") if f.suffix in READ and f.relative_to(root).parts[0] not in NOT_RUN]
    state = [(str(f), s.st_mtime_ns, s.st_size) for f in sorted(files) for s in [f.stat()]]
    return hashlib.sha1(repr(state).encode()).hexdigest()


def _ask(path: Path, fingerprint: str) -> str | None:
    """Return whether a server runs these files: ``fresh`` or ``stale``. Return None if no server answers."""
    with suppress(OSError, ValueError), ask(path, {"fingerprint": fingerprint}, seconds=5.0) as server:
        return next(server.messages())
    return None  # no server, or a server of another release


def _start(path: Path, fingerprint: str, idle: float) -> None:
    # One thread in every library, because the server must not have a thread pool when it forks.
    found = os.pathsep.join([str(Path(dlpar.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": found}
    command = [sys.executable, "-m", "dlpar.jobs.fork_server", str(path), fingerprint, str(idle)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with open(path.with_suffix(".log"), "wb") as log:
        server = subprocess.Popen(command, **pipes, stderr=log, env=env, cwd="/", start_new_session=True)
    started.append(server)
    said, _, _ = select.select([server.stdout], [], [], START)
    server.stdout.close() if said else server.kill()


# ---- the server's own process -------------------------------------------------------


def main() -> None:
    """Run the server: ``python -m dlpar.jobs.fork_server SOCKET FINGERPRINT IDLE`` prints ``ready``."""
    path, fingerprint, idle = sys.argv[1], sys.argv[2], float(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the job, not to the server
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()  # garbage collection in a child would touch, and so copy, the parent's pages
    server = ForkServer(Path(path), fingerprint)
    with suppress(BrokenPipeError):  # the starter has ended, but the next job needs a server
        print("ready", flush=True)
    os.dup2(0, 1)  # no process reads further output
    server.serve(idle)


class Stub(Connection):
    """Connection from a stub or a job to the fork server.

    A stub sends its standard files and a pipe. A job asks whether the server's code is current.
    """

    MOST_FILES = 4


class ForkServer:
    """Server that forks a rank for each request, reports the rank's end, and cleans up the rank's processes.

    A rank ends with its stub, even if the server has been killed.  A rank reports its own status.  The server
    reports ranks that were ended by a signal. Every rank adopts the orphans among its descendants, so the
    server's orphans come from ended ranks.

    Parameters
    ----------
    path : Path
        The socket of this server. A newer server may take over the name.
    fingerprint : str
        State of dlpar's files. A job with another state gets ``stale`` and starts a newer server.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.listener = listen(path, 0o600)
        self.inode = path.stat().st_ino
        # The pid of the rank that each stub waits for; None before its request has arrived.
        self.ranks: dict[Stub, int | None] = {}
        self.leaving = False
        self.wake, self.wakes = os.pipe()
        os.set_blocking(self.wakes, False)
        adopt_orphans()
        signal.set_wakeup_fd(self.wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, idle: float) -> None:
        """Serve until all ranks have ended and the server may leave.

        It may leave when dlpar has changed or no job has come for `idle` seconds.
        """
        quiet_since = time.monotonic()
        while self.ranks or not self.leaving:
            watched = [self.wake, *self.ranks] + ([] if self.leaving else [self.listener])
            for ready in select.select(watched, [], [], 1.0)[0]:
                if ready == self.wake:
                    os.read(self.wake, 4096)
                    self._report_ended()
                elif ready is self.listener:
                    self._accept()
                elif pid := self.ranks.get(ready):
                    kill([pid])  # readable means closed: no process waits for this rank
                elif ready in self.ranks:
                    self._receive(ready)
            if self.ranks:
                quiet_since = time.monotonic()
            elif not self.leaving and (time.monotonic() - quiet_since > idle or not self._is_found()):
                self._leave()

    def _accept(self) -> None:
        try:
            self.ranks[Stub(self.listener.accept()[0])] = None
        except OSError:  # without descriptors only the new rank fails; or we have just left
            time.sleep(0.05)

    def _receive(self, stub: Stub) -> None:
        """Answer whether our code is current, or fork a rank. A stub without an answer starts cold."""
        requests = [None]
        with suppress(OSError, ValueError):
            requests = stub.hear() if is_ours(stub) else requests
        if not requests:  # the rest is still to come
            return
        del self.ranks[stub]
        request = requests[0] if isinstance(requests[0], dict) else {}
        if "argv" in request and len(stub.files) == Stub.MOST_FILES:
            with suppress(OSError):  # no process is left
                self.ranks[stub] = self._fork(request, stub)
                _answer(stub, "forked")
        elif "fingerprint" in request:
            stale = request["fingerprint"] != self.fingerprint
            if stale:
                self._leave()  # first free the name, then report it
            _answer(stub, "stale" if stale else "fresh")
        close_files(stub.files) if stub in self.ranks else stub.close()

    def _leave(self) -> None:
        """Stop taking requests. Free the socket's name unless a newer server has taken it."""
        self.leaving = True
        for open_socket in (self.listener, *(stub for stub, pid in self.ranks.items() if pid is None)):
            open_socket.close()
        self.ranks = {stub: pid for stub, pid in self.ranks.items() if pid is not None}
        if self._is_found():
            self.path.unlink()

    def _is_found(self) -> bool:
        """Return whether the socket's name still refers to this server.

        The name may lead to a newer server or to a removed folder.
        """
        with suppress(OSError):
            return self.path.stat().st_ino == self.inode
        return False

    def _fork(self, request: dict, connection: Stub) -> int:
        """Fork a rank and return its pid. In the rank this call never returns."""
        server = os.getpid()
        if pid := os.fork():
            return pid
        status = 1
        try:
            os.setpgid(0, 0)  # so that no signal to the rank's group reaches the server or other ranks
            adopt_orphans()
            *standards, with_stub = connection.files
            die_with_writer(with_stub)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for standard, descriptor in enumerate(standards):
                os.dup2(descriptor, standard)
            for open_socket in (self.listener, *self.ranks):
                open_socket.close()
            signal.set_wakeup_fd(-1)
            for descriptor in (self.wake, self.wakes):  # set_wakeup_fd returns -1 here from Python 3.12 on
                os.close(descriptor)
            sys.stdout.reconfigure(line_buffering=True)  # Python started with a pipe; a log needs whole lines
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            # A new Python would search both folders, and either may hold plug-ins.
            found = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            sys.path += [folder for folder in found if folder not in sys.path]
            random.seed()  # all ranks have the fork server's numbers
            sys.modules["numpy"].random.seed()
            from dlpar.jobs.rank import run_rank

            status = run_rank(request["argv"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            if os.getppid() != server:  # the server was killed
                end_children()
            _answer(connection, status)  # the server may be killed before it reports how we ended
            os._exit(status)

    def _report_ended(self) -> None:
        ranks = {pid: stub for stub, pid in self.ranks.items() if pid is not None}
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if stub := ranks.pop(ended[0], None):
                    _answer(stub, os.waitstatus_to_exitcode(ended[1]))
                    stub.close()
                    del self.ranks[stub]
        if has_children(but=len(ranks)):
            kill(descendants(os.getpid(), spared=set(ranks)))


def _answer(connection: Stub, message: str | int) -> None:
    with suppress(OSError):  # the stub was killed first
        connection.say(message)


if __name__ == "__main__":
    main()
