"""A box for judging one answer: Python and nothing else, an account of its own, no network, and limits.

It needs Linux and root, for namespaces of processes, network, mounts and shared memory.  Its files are a few folders
of this machine, read-only: those of Python, of the system's libraries and of dlpar.  There are no labs, no submissions
and no homes.  When the judge ends, or its time is over, the kernel ends every process in the box, whatever signals it
ignores.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from dlpar.classroom.grading import GROUP, LENT, OWN, PACKAGE, USER
from dlpar.course.judge import GRADED
from dlpar.jobs.processes import adopt_orphans, descendants, kill, resident, wait_gone

NEEDED = ("unshare", "setpriv", "prlimit", "mount", "chroot")
START = 120.0
"""Seconds a judge may take to start on a busy machine; none of the student's code runs before."""

GONE = 10.0
"""Seconds until ended processes must be gone."""

PROCESSES = 512
"""Processes and threads of the account together."""

FILE_SIZE = 2**28
"""Bytes of a file."""

LONGEST = 100_000
"""Bytes of a judge's lines."""

JUDGE = """
from dlpar.classroom.grading.cells import open_nursery
nursery = open_nursery()
from dlpar.classroom.grading.judge import main
main(nursery)
"""
"""The nursery forks from a process that knows little: not even the checks are imported."""

SHUT_IN = """
set -e
mount -t tmpfs -o size=1m,mode=755 box "$HOME" && cd "$HOME"
for place in {places}; do
  mkdir -p ".$place" && mount --bind "$place" ".$place" && mount -o remount,bind,ro ".$place"
done
mkdir dev proc ".$OWN" && mount -t proc proc proc
mount -t tmpfs -o "size=256m,mode=700,uid=$BOX_USER,gid=$BOX_GROUP" box ".$OWN"
for device in null urandom; do touch dev/$device && mount --bind /dev/$device dev/$device; done
mount -o remount,ro box .
HOME=$OWN exec chroot . "$@"
"""


class CannotGrade(RuntimeError):
    """No answer can be judged here, or not as it must be; one sentence."""


@dataclass(frozen=True)
class Box:
    """The conditions under which answers are judged.

    Attributes
    ----------
    account : str or None
        Unix account that answers run in.  None: the account that grades, with access to its files and its
        network; only time, memory and processes left behind are limited.
    seconds : float
        Time limit of a check.
    memory : float
        GiB of data of each process, and of the memory of all together.
    """

    account: str | None
    seconds: float = 60.0
    memory: float = 4.0

    def __post_init__(self) -> None:
        """Check the machine and the account; raises :class:`CannotGrade`."""
        if self.account is not None and (why := _impossible(self.account)):
            raise CannotGrade(
                f"answers cannot be isolated: {why}. --not-isolated grades without: for answers you have read."
            )

    def judge(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Judge one answer.

        Parameters
        ----------
        trial : dict
            ``given``, ``lent``, ``answer``, ``names`` and ``check``, from :func:`dlpar.classroom.grading.grade.trial`.

        Returns
        -------
        dict
            ``solved`` and ``said``; without a verdict the answer is not solved.

        Raises
        ------
        CannotGrade
            If the judge does not start, or finds a hole in the box.
        """
        trial = trial | {"secret": secrets.token_hex()}
        with (
            TemporaryDirectory(prefix="dlpar-box-", ignore_cleanup_errors=True) as home,
            TemporaryFile() as said,
        ):
            os.chmod(home, 0o711 if self.account else 0o700)
            with closing(_Judge(self, home, trial, said)) as judge:
                ready = judge.line(START)
                if ready is None:
                    said.seek(0)
                    why = said.read(2000).decode(errors="replace").strip().splitlines()
                    raise CannotGrade(f"the judge did not start: {why[-1] if why else 'it said nothing'}")
                self._check(ready)
                verdict = judge.line(self.seconds)
        if verdict is None:
            return {"solved": False, "said": f"not yet: {judge.why}"}
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in str(verdict.get("said")))
        return {"solved": verdict.get("solved") is True, "said": text}

    def _check(self, ready: dict[str, Any]) -> None:
        """Refuse to go on if the box has a hole."""
        if self.account is None:
            return
        wanted = {
            "account": pwd.getpwnam(self.account).pw_uid,
            "networks": ["lo"],
            "writable": [],
            "visible": [],
        }
        wrong = [f"{name} {ready.get(name)}" for name, value in wanted.items() if ready.get(name) != value]
        if wrong:
            found = ", ".join(wrong)
            raise CannotGrade(f"answers are not isolated as they should be: the judge finds {found}")

    def command(self) -> list[str]:
        """Return the command that starts a judge."""
        limited = ["prlimit", f"--data={int(self.memory * 2**30)}", f"--fsize={FILE_SIZE}", "--core=0"]
        judge = [sys.executable, "-P", "-c", JUDGE]
        if self.account is None:
            return [*limited, *judge]
        apart = ["--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
        script = SHUT_IN.replace("{places}", shlex.join(_places()))
        shut_in = ["setpriv", "--pdeathsig=KILL", "unshare", *apart, "sh", "-c", script, "sh"]
        return [*shut_in, *limited, f"--nproc={PROCESSES}", *judge]

    def environment(self, home: str) -> dict[str, str]:
        """Return a judge's environment, with nothing of the account that grades."""
        own = {"HOME": home, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", GRADED: "1"}
        own |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if path := os.environ.get("PYTHONPATH"):
            own["PYTHONPATH"] = path
        if self.account is not None:
            user = pwd.getpwnam(self.account)
            own |= {USER: str(user.pw_uid), GROUP: str(user.pw_gid), "OWN": OWN}
        return own


def _impossible(account: str) -> str | None:
    """Return the reason why answers cannot be isolated on this machine; None if they can."""
    if sys.platform != "linux":
        return "that needs Linux"
    if os.getuid() != 0:
        return "that needs root"
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if lacking:
        return f"this machine has no {', '.join(lacking)}"
    try:
        user = pwd.getpwnam(account)
    except KeyError:
        how = f"useradd --system --shell /usr/sbin/nologin {account}"
        return f"there is no account {account} ({how} makes it)"
    return "the account must not be root" if user.pw_uid == 0 else None


def _places() -> list[str]:
    """Return the folders that Python needs, in the order in which to mount them."""
    python = (sys.base_prefix, Path(sys.executable).resolve().parents[1], "/usr", "/usr/local", "/")
    needed = {Path(prefix, name) for prefix in python for name in ("bin", "lib", "lib64")}
    needed |= {Path(path) for path in ("/etc", "/sys/devices/system/cpu", sys.prefix, PACKAGE)}
    return sorted(str(path) for path in needed if path.is_dir())


class _Judge:
    """A running judge; :meth:`close` ends it with all processes that came of it."""

    def __init__(self, box: Box, home: str, trial: dict[str, Any], said: Any) -> None:
        self.box, self.secret, self.received = box, trial["secret"], b""
        self.why = "it ended without a verdict: the process was ended, or ended itself"
        if box.account is None:
            adopt_orphans()
        self.spared = set(descendants(os.getpid()))
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said}
        environment = box.environment(home) | {LENT: trial["lent"]}
        self.process = subprocess.Popen(
            box.command(), **ends, env=environment, cwd="/", start_new_session=True
        )
        with suppress(BrokenPipeError), self.process.stdin as end:
            end.write(json.dumps(trial).encode())  # a judge that did not start says why on stderr

    def line(self, seconds: float) -> dict[str, Any] | None:
        """Return its next line; None if it ended, or exceeded its time or its memory."""
        end = time.monotonic() + seconds
        while b"\n" not in self.received and len(self.received) < LONGEST:
            if time.monotonic() > end:
                self.why = f"it was not done after {seconds:.0f} s"
                return None
            if select.select([self.process.stdout], [], [], 0.25)[0]:
                more = os.read(self.process.stdout.fileno(), LONGEST)
                if not more:
                    return None
                self.received += more
            elif sum(map(resident, descendants(self.process.pid))) > self.box.memory * 2**30:
                self.why = f"it took more than {self.box.memory:g} GiB of memory"
                return None
        first, _, self.received = self.received.partition(b"\n")
        try:
            found = json.loads(first)
        except ValueError:
            return None
        return found if isinstance(found, dict) and found.get("secret") == self.secret else None

    def close(self) -> None:
        """End it, and wait until its processes have ended.

        Raises
        ------
        CannotGrade
            If it does not end.
        """
        # In a box the kernel ends all others with the judge, process number 1 there.
        kill([self.process.pid, *descendants(self.process.pid)])
        self.process.stdout.close()
        try:
            self.process.wait(GONE)
        except subprocess.TimeoutExpired:
            raise CannotGrade(f"the judge, process {self.process.pid}, does not end") from None
        if self.box.account is None:
            end = time.monotonic() + GONE
            while (left := descendants(os.getpid(), self.spared)) and time.monotonic() < end:
                kill(left)
                wait_gone(left, 1.0)
