"""A command line of `dlpar` in a process of its own, and what is wrong with its answer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dlpar.cli import main

CPU, MEMORY, LONGEST = 1.5, 500.0, 2000
"""Seconds of processor time, MB of memory and characters of a complaint that one answer may take."""

PATIENCE = 30.0
"""Seconds after which a process counts as hanging."""


class Answer(NamedTuple):
    """The exit status of a process, what it wrote, and what it took: seconds of processor time, and MB."""

    status: int
    out: str
    err: str
    cpu: float
    memory: float

    def fault(self, is_run: bool = False, cpu: float = CPU) -> str:
        """What is wrong with it; empty if nothing is.  A training run may take longer, and may be ended by us."""
        lines = self.err.splitlines()
        if "Traceback" in self.err or "Error:" in self.out[:2000].partition("--- ")[0]:
            return f"a traceback: {self.err[-600:]}"
        if not is_run and self.status == -signal.SIGKILL:
            return "it hangs"
        if not is_run and (self.cpu > cpu or self.memory > MEMORY):
            return f"{self.cpu:.2f} s of processor time, {self.memory:.0f} MB"
        if self.status not in (0, 1, 2) and not is_run:
            return f"exit status {self.status}: {self.err[-600:]}"
        if self.status > 0 and (not lines or len(self.err) > LONGEST):
            return f"no sentence: {self.err[:600]!r}"
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", self.out + self.err):
            return f"control characters: {self.out[:300]!r} {self.err[:300]!r}"
        return ""


def real(words: list[str | bytes], patience: float = PATIENCE, **given: object) -> Answer:
    """Run the program `dlpar`."""
    command = [sys.executable, "-m", "dlpar.cli", *words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, process_group=0, **given)
        return _answer(process.pid, out, err, patience)


def forked(work: Callable[[], int]) -> Answer:
    """Run a function in a copy of this process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if not (pid := os.fork()):
            os.setpgid(0, 0)
            for stream, file in ((1, out), (2, err)):
                os.dup2(file.fileno(), stream)
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))
            status = 70
            try:
                status = work()
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        return _answer(pid, out, err, PATIENCE, shared=_peak(os.getpid(), "VmRSS"))


def dlpar(*words: str) -> Answer:
    """Run the command line in a copy of this process, which has loaded what it needs."""
    return forked(lambda: main(list(words)))


def _peak(pid: int, field: str = "VmHWM") -> float:
    """MB that a process has held at most; 0 if it has ended."""
    with suppress(OSError, LookupError):
        return int(Path(f"/proc/{pid}/status").read_text().split(f"{field}:")[1].split()[0]) / 1024
    return 0.0


def _answer(pid: int, out, err, patience: float, shared: float = 0.0) -> Answer:
    """Wait for a process; `shared` is the memory that it had from us at first."""
    end, memory = time.monotonic() + patience, 0.0
    while not (found := os.wait4(pid, os.WNOHANG))[0]:
        # The kernel's own figure of an ended process includes its parent's.
        memory = max(memory, _peak(pid) - shared)
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGTERM if patience < PATIENCE else signal.SIGKILL)
            found = os.wait4(pid, 0)
            break
        time.sleep(0.01)
    _, status, took = found
    said = []
    for file in (out, err):
        file.seek(0)
        said.append(file.read(1 << 22).decode(errors="replace"))
    status = os.waitstatus_to_exitcode(status)
    return Answer(status, *said, took.ru_utime + took.ru_stime, memory)


def home(folder: Path) -> None:
    """Have this process, and those it starts, keep everything there."""
    os.environ |= {"DLPAR_HOME": str(folder / "home"), "DLPAR_RUNTIME": str(folder / "r")}
