"""One Unix account against another and against a class: what bob tries on a hub of its own, made for this."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from classroom.hub import test_isolation, two_accounts
from classroom.hub.test_isolation import as_bob, bobs, known

from dlpar.jobs.slots import NoSlots, Talk, ask
from hostile.processes import home

JUNK = 10_000
"""Connections that say nothing sensible."""


def sections(seed: int) -> dict[str, Iterator[tuple[str, str]]]:
    """Give bob's attacks, and his junk; they share a hub, which goes with the last."""
    if why := two_accounts.missing():
        sys.exit(f"hostile: accounts: {why}")
    folder = Path(tempfile.mkdtemp(prefix="dlh-"))
    home(folder)
    stack = ExitStack()
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    scene = stack.enter_context(test_isolation.two_students())
    return {"attacks": attacks(scene), "junk connections": junk(scene, stack)}


def attacks(scene: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each attack with what bob got; then those that tests make, and a hold of all slots."""
    for what, came in as_bob(scene, **known(scene)).items():
        yield what, "" if came.startswith("refused: ") else came
    for name, attack in vars(test_isolation).items():
        if name.startswith("test_") and "everything" not in name:
            try:
                attack(scene)
            except AssertionError as error:
                yield name, f"{error!s:.500}"
            else:
                yield name, ""
    yield "hold all slots behind everybody's back", hold(scene)
    yield "ada's job", "" if still_well(scene) else "it was disturbed"


def hold(scene: dict[str, Any]) -> str:
    """The fault if bob's hold is not seen, or lasts while others wait."""
    path = scene["folder"] / "more-slots"
    command = [sys.executable, "-m", "dlpar.cli", "slots", f"--socket={path}", "--ranks=3", "--longest=0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as keeper:
        keeper.stdout.readline()
        with subprocess.Popen(bobs(scene, hold=str(path)), stdout=subprocess.PIPE, cwd="/tmp") as bob:
            try:
                files = json.loads(bob.stdout.readline())["files"]
                seen = ask(path, {})
                with Talk(path, {"slots": 2}) as talk:
                    end = time.monotonic() + 20
                    while not talk.files and time.monotonic() < end:
                        with suppress(NoSlots):
                            talk.hear()
                    got = len(talk.files)
            finally:
                bob.kill()
                keeper.terminate()
    is_seen = [(row["who"], row["slots"]) for row in seen["holders"]] == [(scene["bob"], 3)]
    return (
        ""
        if (files, got) == (3, 2) and is_seen
        else f"bob has {files}, another gets {got}, the teacher sees {seen}"
    )


def junk(scene: dict[str, Any], stack: ExitStack) -> Iterator[tuple[str, str]]:
    """Yield each tenth of the connections, with what no longer answers after it."""
    with stack:
        ports = [urlsplit(scene[name]).port for name in ("url", "server", "proxy")] + scene["ports"]
        for _ in range(10):
            made = as_bob(scene, junk=[JUNK // 10, [scene["slots"]], ports])["made"]
            if made < JUNK // 20:
                yield "a tenth", f"only {made} connections came about"
            yield f"{made} connections", "" if still_well(scene) else "a server has gone, or ada's job"


def still_well(scene: dict[str, Any]) -> bool:
    """Whether the hub, the teacher's page and the keeper answer, and ada's job goes on."""
    records = Path(scene["run"]) / "rank-0.jsonl"
    before, end = records.stat().st_size, time.monotonic() + 10
    with urllib.request.urlopen(f"{scene['url']}/hub/health", timeout=10) as answer:
        is_up = answer.status == 200
    is_closed = scene["hub"].status("/services/teacher/class", token=scene["token"]) == 403
    while records.stat().st_size == before and time.monotonic() < end:
        time.sleep(0.05)
    return (
        is_up and is_closed and ask(Path(scene["slots"]), {})["slots"] > 0 and records.stat().st_size > before
    )
