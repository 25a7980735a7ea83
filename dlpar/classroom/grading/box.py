"""Sandbox in which one answer is judged: only Python, a separate account, no network, and limits.

A box needs Linux and root, for namespaces of processes, network, mounts and shared memory.  Its files are a few
read-only folders of this machine: Python, the system's libraries and dlpar.  It holds no labs, no submissions
and no home folders.  When the judge ends or its time is over, the kernel kills every process in the box, even
if the process ignores signals.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlpar.classroom.grading import ACCOUNT, LENT, PACKAGE
from dlpar.course.judge import GRADED

START = 120.0
"""Seconds within which a judge must start on a busy machine, and seconds within which it must end."""

FILE_SIZE = 2**28
"""Maximum bytes of a file."""

JUDGE = "from dlpar.classroom.grading.cells import main; main()"

APART = "setpriv --pdeathsig=KILL --no-new-privs unshare --mount --pid --net --ipc --fork --kill-child"

SHUT_IN = Path(__file__).with_name("box.sh").read_text()
"""Script that builds the box in a private mount over /run. Only its processes see the box."""


class CannotGrade(RuntimeError):
    """Error: answers cannot be judged here as required. The message is one sentence."""


@dataclass(frozen=True)
class Box:
    """Conditions under which answers are judged.

    Attributes
    ----------
    account : str or None
        Unix account in which answers run.  None: the grading account, with its files and its network. Then
        only time, memory and left-over processes are limited.
    seconds : float
        Time limit of all calls of an answer's functions.
    memory : float
        GiB of data of each process.  An answer has one process for each rank, and in a box it can add none.
    """

    account: str | None
    seconds: float = 120.0
    memory: float = 2.0

    def __post_init__(self) -> None:
        """Check the machine and the account. Raises :class:`CannotGrade`."""
        if self.account is not None and (why := _impossible(self.account)):
            raise CannotGrade(f"answers cannot be isolated: {why}; --not-isolated is for answers you know")

    def judge(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Judge one answer.

        Parameters
        ----------
        trial : dict
            ``given``, ``lent``, ``answer``, ``names`` and ``check``, from :func:`dlpar.classroom.grading.grade.trial`.

        Returns
        -------
        dict
            ``solved`` and ``said``. Without a verdict, the answer is not solved.

        Raises
        ------
        CannotGrade
            If the judge does not start, or finds a hole in the box.
        """
        environment = {"HOME": "/", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        environment |= {GRADED: "1", LENT: trial["lent"]}
        if self.account is not None:
            user = pwd.getpwnam(self.account)
            environment[ACCOUNT] = f"{user.pw_uid}:{user.pw_gid}"
        asked, limit = json.dumps(trial | {"seconds": self.seconds}), START + self.seconds
        # A new session: Ctrl-C does not reach the judge, and the kernel gives it a fair share of the processors.
        piped = {"input": asked, "timeout": limit, "capture_output": True, "text": True}
        try:
            done = subprocess.run(self.command(), cwd="/", env=environment, start_new_session=True, **piped)
        except subprocess.TimeoutExpired:
            return {"solved": False, "said": f"not yet: the judge was not done after {limit:g} s"}
        except FileNotFoundError as error:
            raise CannotGrade(f"this machine has no {error.filename}") from None
        if done.returncode < 0:
            return {"solved": False, "said": f"not yet: signal {-done.returncode} ended the judge"}
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2] or "it said nothing"
            raise CannotGrade(f"the judge did not start: {why}")
        verdict = json.loads(done.stdout.splitlines()[-1])
        said = "".join(c if c.isprintable() or c == "\n" else "?" for c in verdict["said"])
        return {"solved": verdict["solved"], "said": said}

    def command(self) -> list[str]:
        """Return the command that starts a judge."""
        limited = ["prlimit", f"--data={int(self.memory * 2**30)}", f"--fsize={FILE_SIZE}", "--core=0"]
        apart = [] if self.account is None else [*APART.split(), "sh", "-c", SHUT_IN, "box", *_places(), "--"]
        return [*apart, *limited, sys.executable, "-P", "-c", JUDGE]


def _impossible(account: str) -> str | None:
    """Return the reason why answers cannot be isolated on this machine, or None if they can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "that needs root on Linux"
    try:
        user = pwd.getpwnam(account)
    except KeyError:
        return f"there is no account {account}: useradd --system --shell /usr/sbin/nologin {account} makes it"
    return "the account must not be root" if user.pw_uid == 0 else None


def _places() -> list[str]:
    """Return the folders that Python needs, in mounting order."""
    python = (sys.base_prefix, Path(sys.executable).resolve().parents[1], "/usr", "/usr/local", "/")
    needed = {Path(prefix, name) for prefix in python for name in ("bin", "lib", "lib64")}
    needed |= {Path(path) for path in ("/etc", "/sys/devices/system/cpu", sys.prefix, PACKAGE)}
    return sorted(str(path) for path in needed if path.is_dir())
