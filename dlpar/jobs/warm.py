"""Finding this user's fork server, or starting one.  Standard library only."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import dlpar
from dlpar.config.paths import runtime_folder

IDLE = 600.0
"""Seconds a fork server stays without a job; ``$DLPAR_WARM_IDLE`` overrides it, 0 forbids warm starts."""

START = 60.0
"""Seconds a fork server may take to import everything."""

SOCKET_LENGTH = 107
"""Bytes the path of a Unix socket may have."""

started: list[subprocess.Popen] = []
"""Fork servers this process has started; they outlive it."""


def warm_socket(python: str = sys.executable) -> Path | None:
    """Socket of a fork server that runs the present code, started if need be; None where a cold start is safer.

    Forking is safe on Linux only; on macOS its system libraries forbid it.
    Takes milliseconds if there is one, seconds if it must be started.
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
    """``$DLPAR_WARM_IDLE`` as a number; raises `ValueError` in one sentence if it is none."""
    given = os.environ.get("DLPAR_WARM_IDLE", str(IDLE))
    try:
        return float(given)
    except ValueError:
        raise ValueError(
            f"DLPAR_WARM_IDLE: got {given!r}, allowed is a number of seconds, 0 for no warm start"
        ) from None


def _locked(file, seconds: float) -> bool:
    """Take the lock, so that two jobs do not start two servers; False if another holds it for `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def prepare() -> None:
    """Have a fork server ready soon, without waiting for it: called when a panel is shown."""
    threading.Thread(target=warm_socket, name="dlpar-prepare", daemon=True).start()


def dismiss() -> bool:
    """Ask the fork server to leave once its ranks have ended; whether there was one."""
    path = _socket_path(sys.executable)
    return path.exists() and _ask(path, "leave") is not None


def _socket_path(python: str) -> Path:
    where = f"{python}:{Path(dlpar.__file__).parent}"
    return runtime_folder() / f"warm-{hashlib.sha1(where.encode()).hexdigest()[:10]}.sock"


def _fingerprint() -> str:
    """Changes whenever a file that ranks run does, so that nobody runs yesterday's code."""
    root = Path(dlpar.__file__).parent
    files = sorted(f for f in root.rglob("*.py") if f.parent.name != "lab")
    state = [(str(f), s.st_mtime_ns, s.st_size) for f in files for s in [f.stat()]]
    return hashlib.sha1(repr(state).encode()).hexdigest()


def _ask(path: Path, fingerprint: str) -> str | None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.settimeout(5.0)
    body = json.dumps({"fingerprint": fingerprint}).encode()
    try:
        server.connect(str(path))
        server.sendall(len(body).to_bytes(8, "big") + body)
        return server.makefile().readline().strip()
    except OSError:
        return None
    finally:
        server.close()


def _start(python: str, path: Path, fingerprint: str, idle: float) -> None:
    # One thread in every library: the server must not hold a thread pool when it forks.
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(dlpar.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        ),
    }
    command = [python, "-m", "dlpar.jobs.fork_server", str(path), fingerprint, str(idle)]
    with open(path.with_suffix(".log"), "wb") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            cwd="/",
            start_new_session=True,
        )
    started.append(server)
    reader = threading.Thread(target=server.stdout.readline, daemon=True)
    reader.start()
    reader.join(START)
    server.stdout.close() if not reader.is_alive() else server.kill()
