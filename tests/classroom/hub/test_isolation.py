"""Two students in real Unix accounts on a real hub: one can do nothing to the other."""

from __future__ import annotations

import http.cookiejar
import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import eventually

from classroom.hub import attempts, two_accounts
from classroom.hub.classroom import Hub, Kernel, no_proxy
from dlpar.jobs.slots import Talk

pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: pip install 'dlpar[hub]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(two_accounts.missing() is not None, reason=str(two_accounts.missing())),
    pytest.mark.skipif(bool(no_proxy()), reason=no_proxy()),
]

CURTAIN = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
"""What hub/README.md tells a teacher to put before ``dlpar hub``."""

VICTIM = """
import dlpar, json, os, sys, dlpar.config.paths
job = dlpar.launch(dlpar.Experiment(workers=4, steps=1_000_000, batch=64, cluster={"world": "paced"}))
job.wait_steps(2)
print(json.dumps({"run": str(job.folder), "kernel": os.getpid(), "path": sys.path, "cwd": os.getcwd(),
                  "guardian": job._guardian.pid, "runtime": str(dlpar.config.paths.runtime_folder()),
                  "runs": str(dlpar.config.paths.runs_folder())}))
"""


@pytest.fixture(scope="module")
def scene(own_folders) -> Iterator[dict[str, Any]]:
    """Two students, for all tests here."""
    with two_students() as found:
        yield found


@contextmanager
def two_students() -> Iterator[dict[str, Any]]:
    """A hub with ada, whose job runs, and bob; what bob can know of her, and more."""
    names = [f"dlt{secrets.token_hex(3)}" for _ in range(2)]
    folder = Path(tempfile.mkdtemp(prefix="dlt-hub-"))
    folder.chmod(0o755)
    (folder / "labs").mkdir()
    (folder / "labs" / "lab.ipynb").write_text("{}")
    hub = None
    try:
        for name in names:
            two_accounts.make(name, folder / name, f"word-{name}")
        flags = ["--accounts=system", f"--users={','.join(names)}", "--teachers="]
        slots = f"DLPAR_SLOTS={folder / 'slots'}"  # at the usual place it would hold up other tests
        behind = ["sh", "-c", CURTAIN, "sh", "env", slots]
        hub = Hub(folder, *flags, within=lambda *words: two_accounts.in_namespace(*behind, *words))
        hub.wait_until_up()
        yield {"hub": hub, "folder": folder, "ada": names[0], "bob": names[1], **_facts(hub, folder, *names)}
    finally:
        if hub is not None:
            hub.stop()
        for name in names:
            two_accounts.remove(name)
        shutil.rmtree(folder, ignore_errors=True)


def _facts(hub: Hub, folder: Path, ada: str, bob: str) -> dict[str, Any]:
    """Let ada start her job; what there is of it."""
    hub.start_server(ada)
    eventually(lambda: hub.is_ready(ada), 60, f"ada's server is up: {hub.log.read_text()[-2000:]}")
    cell = Kernel(hub, ada)
    told = json.loads(cell.run(VICTIM))
    rank = json.loads((Path(told["run"]) / "rank-1.jsonl").read_text().splitlines()[0])["pid"]
    uid = os.stat(told["run"]).st_uid
    hers = [p for p in psutil.process_iter(["uids"]) if p.info["uids"].real == uid]
    server = next(p for p in hers if any("jupyterhub.singleuser" in word for word in p.cmdline()))
    ports = {p.pid: [c.laddr.port for c in p.net_connections("tcp") if c.status == "LISTEN"] for p in hers}
    runtime = Path(told["runtime"])
    return {
        "victim": ada,
        "token": hub.token_of(bob),
        "url": hub.url,
        "server": f"http://127.0.0.1:{ports.pop(server.pid)[0]}",
        "run": told["run"],
        "runs": told["runs"],
        "labs": str(folder / ada / "dlpar-labs"),
        "runtime": str(runtime),
        "shared": str(folder / "labs"),
        "keeps": str(folder / "hub"),
        "proxy": _proxy_api(hub),
        "slots": str(folder / "slots"),
        "sockets": [str(p) for p in runtime.rglob("*") if p.is_socket()],
        "memory": [str(p) for p in Path("/dev/shm").rglob("*") if _owner(p) == uid],
        "pids": {"rank": rank, "guardian": told["guardian"], "kernel": told["kernel"], "server": server.pid},
        "path": [entry or told["cwd"] for entry in told["path"]],
        "ports": [port for found in ports.values() for port in found],
        "uid": uid,
        "cell": cell,
    }


def _owner(path: Path) -> int | None:
    """Owner of a file; None for a folder, or for what has just gone."""
    with suppress(OSError):
        return path.stat().st_uid if path.is_file() else None
    return None


def _proxy_api(hub: Hub) -> str:
    """The address where the hub tells its proxy what to do."""
    words = next(
        p for p in psutil.Process(hub.process.pid).children() if "--api-port" in p.cmdline()
    ).cmdline()
    return f"http://127.0.0.1:{words[words.index('--api-port') + 1]}"


def bobs(scene: dict[str, Any], **facts: Any) -> list[str]:
    """The command that has bob try something."""
    program = [sys.executable, "-P", str(Path(__file__).with_name("attempts.py")), json.dumps(facts)]
    return two_accounts.become(scene["hub"].process.pid, scene["bob"], *program)


def as_bob(scene: dict[str, Any], **facts: Any) -> dict[str, str]:
    """What comes of bob's attempts."""
    done = subprocess.run(bobs(scene, **facts), capture_output=True, text=True, timeout=300, cwd="/tmp")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def known(scene: dict[str, Any]) -> dict[str, Any]:
    """What bob knows."""
    hidden = ("hub", "folder", "ada", "bob", "uid", "cell")
    return {key: value for key, value in scene.items() if key not in hidden}


def test_everything_one_student_tries_against_another_is_refused(scene: dict[str, Any]) -> None:
    facts = known(scene)
    kinds = "\n".join(scene["sockets"])
    assert "warm-" in kinds and "referee" in kinds and "kernel-" in kinds, f"a socket is missing: {kinds}"
    assert scene["memory"], "ada's ranks share no memory"
    with Talk(Path(scene["slots"]), {}) as talk:
        assert talk.hear()[0]["taken"] == 4, "ada's job has no slots"
    found = as_bob(scene, **facts)
    assert len(found) > 50
    assert {what: came for what, came in found.items() if not came.startswith("refused: ")} == {}
    # Nor has any of it disturbed her.
    run = Path(scene["run"])
    before = (run / "rank-0.jsonl").stat().st_size
    eventually(lambda: (run / "rank-0.jsonl").stat().st_size > before, 10, "ada's job goes on")
    assert scene["cell"].run("print(job.run.status)") == "running\n"


def test_the_fork_server_answers_nobody_else_even_through_an_open_door(scene: dict[str, Any]) -> None:
    door = next(Path(path) for path in scene["sockets"] if "warm-" in path)
    try:
        for _ in range(10):  # her server closes the door again whenever it looks at its jobs
            door.chmod(0o777)
            door.parent.chmod(0o755)
            found = as_bob(scene, speak=str(door))
            if found != {"answer": "closed"}:
                break
        assert found == {"answer": ""}
        assert attempts.spoken(str(door)) == b""  # root is somebody else, too
    finally:
        door.parent.chmod(0o700)
    assert psutil.pid_exists(scene["pids"]["rank"])


def test_all_that_a_student_keeps_is_closed_to_others(scene: dict[str, Any]) -> None:
    for folder in ("runs", "run", "labs", "runtime"):
        assert stat.S_IMODE(os.stat(scene[folder]).st_mode) == 0o700, folder
        assert os.stat(scene[folder]).st_uid == scene["uid"]


def test_the_number_of_a_student_s_processes_is_limited(scene: dict[str, Any]) -> None:
    for kind in ("server", "kernel"):
        limits = Path(f"/proc/{scene['pids'][kind]}/limits").read_text()
        (processes,) = [line.split() for line in limits.splitlines() if line.startswith("Max processes")]
        assert processes[2:4] == ["2048", "2048"]


def test_behind_the_curtain_a_student_sees_no_process_but_her_own(scene: dict[str, Any]) -> None:
    inside = two_accounts.become(scene["pids"]["kernel"], scene["ada"], "ls", "/proc")
    seen = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.split()
    seen = [int(name) for name in seen if name.isdecimal()]
    assert (
        scene["pids"]["kernel"] in seen and os.getpid() not in seen and scene["hub"].process.pid not in seen
    )


def test_a_folder_planted_under_a_predictable_name_is_not_used(scene: dict[str, Any]) -> None:
    planted = scene["folder"] / "tmp"
    planted.mkdir(mode=0o1777)
    planted.chmod(0o1777)
    runtime = planted / f"dlpar-{scene['uid']}"
    trap = f"rmdir {runtime}; mkdir -m 777 {planted}/trap; ln -s {planted}/trap {runtime}"
    for plant in (f"mkdir -m 777 {runtime}", trap):
        subprocess.run(
            two_accounts.become(scene["hub"].process.pid, scene["bob"], "sh", "-c", plant), check=True
        )
        asks = "import dlpar.config.paths; print(dlpar.config.paths.runtime_folder())"
        words = ["env", f"TMPDIR={planted}", sys.executable, "-P", "-c", asks]
        used = subprocess.run(
            two_accounts.become(scene["hub"].process.pid, scene["ada"], *words),
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
            cwd="/tmp",
        )
        assert used.returncode != 0 and f"PermissionError: {runtime}: " in used.stderr, (
            used.stdout + used.stderr
        )
        assert "Traceback" in used.stderr and not list(runtime.iterdir())


def test_an_account_of_the_machine_logs_in_with_its_own_password_only(scene: dict[str, Any]) -> None:
    def lands(password: str) -> str:
        jar = http.cookiejar.CookieJar()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        browser.open(f"{scene['url']}/hub/login", timeout=10).read()
        xsrf = next(cookie.value for cookie in jar if cookie.name == "_xsrf")
        form = urllib.parse.urlencode(
            {"username": scene["bob"], "password": password, "_xsrf": xsrf}
        ).encode()
        try:
            return browser.open(f"{scene['url']}/hub/login?next=/hub/home", form, timeout=20).url
        except urllib.error.HTTPError as error:
            return str(error.code)

    assert lands(f"word-{scene['bob']}").endswith("/hub/home")
    assert lands(f"word-{scene['ada']}") == "403"
