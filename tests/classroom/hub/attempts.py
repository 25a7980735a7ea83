"""What one student may try against another, run in her own account: ``python -P attempts.py FACTS``.

Prints ``{attempt: what came of it}`` as JSON; every attempt that got anything says ``got …``.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

REPORT = b'{"jobs": [{"id": "", "says": "", "ranks": %s}], "offer": null, "predictions": null}'


def refused(attempt: Callable[[], Any]) -> str:
    """``got …``, or the kernel's word for no."""
    try:
        return f"got {str(attempt())[:200]}"
    except OSError as error:
        return f"refused: {error.strerror or error}"


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1000)


def write(path: str) -> str:
    with open(path, "w"):
        return f"to write {path}"


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        return f"a connection to {path}"


def spoken(path: str) -> bytes:
    """What the fork server says to a question."""
    body = b'{"fingerprint": "leave"}'
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(5)
        try:
            end.connect(path)
        except PermissionError:
            return b"closed"
        try:
            end.sendall(len(body).to_bytes(8, "big") + body)
            return end.recv(100)
        except ConnectionError:
            return b""


def told(path: str, **question: Any) -> str:
    """What the keeper of job slots answers; numbers alone tell nobody who works here."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(5)
        end.connect(path)
        end.sendall(json.dumps(question).encode() + b"\n")
        answer = json.loads(end.recv(4096))
    if "refused" in answer:
        return f"refused: {answer['refused']}"
    return (
        "refused: numbers only"
        if all(type(value) in (int, bool) for value in answer.values())
        else f"got {answer}"
    )


def attach(pid: int) -> str:
    c = ctypes.CDLL(None, use_errno=True)
    if c.ptrace(16, pid, None, None):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return f"a debugger's hold of {pid}"


def said(path: str, line: bytes) -> str:
    """What a server says to a line; nothing at all, or the numbers of the keeper, tell nothing."""
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(5)
        end.connect(path)
        end.sendall(line)
        heard = end.recv(4096)
    return f"got {heard!r}" if b"refused" not in heard and b"who" in heard else "refused: nothing said"


def status(url: str, path: str, token: str | None = None, method: str = "GET", body: bytes = b"{}") -> str:
    """``got 200 …``, or ``refused: 403`` and the like."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=10)
    headers = {"Authorization": f"token {token}"} if token else {}
    connection.request(method, path, body=None if method in ("GET", "DELETE") else body, headers=headers)
    answer = connection.getresponse()
    answer.read()
    to_login = answer.status == 302 and "/hub/" in (answer.getheader("Location") or "")
    no = (
        answer.status in (400, 401, 403, 404, 413, 503) or to_login
    )  # 404: it does not say who there is; 503: it hangs up
    return f"refused: {answer.status}" if no else f"got {answer.status}"


def noise(port: int) -> str:
    """Noise at a port of her kernel or her job, which must survive it; what it answers but a greeting."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as end:
        end.settimeout(0.3)
        end.sendall(random.Random(0).randbytes(4096))
        try:
            heard = end.recv(100)
        except OSError:
            heard = b""
    greeting = (
        heard.startswith(b"\xff") and heard[9:10] == b"\x7f"
    )  # ZeroMQ's: here the pipe of a kernel's own threads
    return "refused: no answer" if not heard or greeting else f"got {heard!r}"


def attempts(f: dict[str, Any]) -> dict[str, str]:
    """All of them; `f` is what a clever student has found out."""
    mine, hers = f["token"], f["victim"]
    found = {
        "list her runs": refused(lambda: os.listdir(f["runs"])),
        "read her run": refused(lambda: read(f"{f['run']}/experiment.json")),
        "read her log": refused(lambda: read(f"{f['run']}/log.txt")),
        "read her lab": refused(lambda: os.listdir(f["labs"])),
        "list her sockets and jobs": refused(lambda: os.listdir(f["runtime"])),
        "write among her sockets": refused(lambda: write(f"{f['runtime']}/mine")),
        "take another's name among the runtime folders": refused(lambda: os.mkdir(f"{f['runtime']}-next")),
        "write into the shared labs": refused(lambda: write(f"{f['shared']}/mine.ipynb")),
        "read the hub's database": refused(lambda: read(f"{f['keeps']}/hub.sqlite")),
        "read the hub's cookie secret": refused(lambda: read(f"{f['keeps']}/cookie_secret")),
        "use her server without a token": status(f["server"], f"/user/{hers}/api/contents"),
        "use her server with my token": status(f["server"], f"/user/{hers}/api/contents", mine),
        "use her server through the hub": status(f["url"], f"/user/{hers}/api/contents", mine),
        "start a kernel on her server": status(f["server"], f"/user/{hers}/api/kernels", mine, "POST"),
        "report to the teacher without a token": status(f["url"], "/services/teacher/report", None, "POST"),
        "stop her job": status(f["url"], "/services/teacher/class", mine, "POST"),
        "open the teacher's page": status(f["url"], "/services/teacher/class", mine),
        "list the hub's users": status(f["url"], "/hub/api/users", mine),
        "stop her server": status(f["url"], f"/hub/api/users/{hers}/server", mine, "DELETE"),
        "change the proxy's routes": status(f["proxy"], "/api/routes"),
        "make a token of hers": status(f["url"], f"/hub/api/users/{hers}/tokens", mine, "POST"),
        "list her tokens": status(f["url"], f"/hub/api/users/{hers}/tokens", mine),
        "say that she was here": status(f["url"], f"/hub/api/users/{hers}/activity", mine, "POST"),
        "become an administrator": status(f["url"], "/hub/api/users/eve", mine, "POST", b'{"admin": true}'),
        "join the teachers": status(f["url"], "/hub/api/groups/teachers/users", mine, "POST"),
        "end the hub": status(f["url"], "/hub/api/shutdown", mine, "POST"),
        "list the services": status(f["url"], "/hub/api/services", mine),
    }
    page = {
        "send an experiment": ("class", b'{"send": {}}'), "pause the class": ("class", b'{"pause": true}'),
        "report nonsense": ("report", b'{"jobs": 7}'), "report a deep list": ("report", b"[" * 100_000),
        "report too much": ("report", b" " * (2 << 20)), "report no number": ("report", REPORT % b"NaN"),
    }  # fmt: skip
    for what, (name, body) in page.items():
        ask = partial(status, f["url"], f"/services/teacher/{name}", mine, "POST", body)
        found[what] = refused(ask).removeprefix("got ")
    for line in (
        b"[" * 4000,
        b"{}\n" * 20_000,
        b"x" * 5000,
        b'{"slots": 1e999}\n',
        b'{"slots": -1}\n',
        b"null\n",
    ):
        found[f"tell the keeper {line[:20]!r} ({len(line)})"] = refused(
            partial(said, f["slots"], line)
        ).removeprefix("got ")
    found |= {
        "pause all jobs": told(f["slots"], pause=True),
        "learn who has job slots": told(f["slots"]),
        "open the files of job slots": refused(lambda: os.listdir(f"{f['slots']}.files")),
    }
    for path in f["sockets"]:
        found[f"connect to {path}"] = refused(lambda path=path: connect(path))
    for path in f["memory"]:
        found[f"open shared memory {path}"] = refused(lambda path=path: read(path))
    for kind, pid in f["pids"].items():
        found[f"signal her {kind}"] = refused(lambda pid=pid: os.kill(pid, signal.SIGTERM))
        found[f"debug her {kind}"] = refused(lambda pid=pid: attach(pid))
        found[f"read the environment of her {kind}"] = refused(lambda pid=pid: read(f"/proc/{pid}/environ"))
        found[f"read the memory of her {kind}"] = refused(lambda pid=pid: read(f"/proc/{pid}/mem"))
        found[f"list the files of her {kind}"] = refused(lambda pid=pid: os.listdir(f"/proc/{pid}/fd"))
        found[f"read what her {kind} has mapped"] = refused(lambda pid=pid: read(f"/proc/{pid}/maps"))
    for folder in f["path"]:
        found[f"put a module into {folder}"] = refused(lambda folder=folder: write(f"{folder}/torch_mine.py"))
    for port in f["ports"]:
        found[f"disturb port {port}"] = noise(port)
    return found


def junk(number: int, paths: list[str], ports: list[int]) -> dict[str, int]:
    """Connect so many times, in turns, with a random number of random bytes; returns how many came about."""
    chance, made = random.Random(0), 0
    for at in range(number):
        where = [*paths, *ports][at % len([*paths, *ports])]
        with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as end:
            end.settimeout(2)
            try:
                end.connect(where if isinstance(where, str) else ("127.0.0.1", where))
                made += 1
                end.send(chance.randbytes(chance.choice((0, 1, 50, 1000))))
            except OSError:
                pass
    return {"made": made}


def held(path: str) -> dict[str, int]:
    """Take all slots, close the connection, and keep the files until killed."""
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        end.sendall(b'{"slots": 200}\n')
        files: list[int] = []
        while not files:
            _, files, _, _ = socket.recv_fds(end, 4096, 200)
    print(json.dumps({"files": len(files)}), flush=True)
    signal.pause()
    return {}


DEEDS = {
    "speak": lambda path: {"answer": spoken(path).decode()},
    "junk": lambda given: junk(*given),
    "hold": held,
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    deed = next((name for name in DEEDS if name in given), None)
    print(json.dumps(DEEDS[deed](given[deed]) if deed else attempts(given)))
