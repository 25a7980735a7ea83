"""Diagnosis of a job's end from ranks' records, mpiexec's output and Python's stacks.

This module uses only the standard library.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dlpar.config.paths import open_plain
from dlpar.config.user_code import is_installed
from dlpar.jobs.control_groups import number_in, text_of
from dlpar.jobs.processes import kill
from dlpar.jobs.tail import ALL_RANKS, RECORDS, REFUSAL, Record, lines_of, rank_of, record_of

OF_ALL = ("Deadlock", "NeverYields", "BadExperiment", "BadData", "Died", "CannotGoOn", "WrongAnswer")
"""Exceptions whose message says all: about a simulation, refused settings or data, deaths, or an exercise."""

RUNNING = "running.stack"
"""Name of the file that holds the number of a simulation's running rank while the simulation runs."""

LEFT = "ended its process before its work was done"
"""Reason given for a rank that called ``os._exit(0)`` or the like."""

REMOVED = "the run folder was removed while the job ran"
"""Reason given for a job whose folder was removed."""

CARRIERS = ("/dlpar/comm/", "/dlpar/worlds/", "/dlpar/jobs/", "/dlpar/lab/animation.py")
"""Parts of the paths of files that carry messages. A diagnosis names the line that calls them."""

_THREAD = re.compile(r"hread (0x\w+).*\(most recent call first\):\n((?:  .*\n?)*)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_TAGS = (
    re.compile(rb"^\[[^,\]]*,(\d+)\]<std(?:out|err)>: ?"),  # Open MPI: [prterun-host-12@1,3]<stdout>: text
    re.compile(rb"^\[(\d+)\] "),  # Hydra: [3] text
    re.compile(rb"^(\d+): "),  # srun: 3: text
)
_LEFT = re.compile(r"due to process rank (\d+) with PID \d+ .{0,100}?exiting\s+improperly", re.S)
_SIGNAL = re.compile(r"process rank (\d+).{0,200}?exited on\s+signal (\d+)", re.S)
_STATUS = re.compile(r"Process name: \[[^,\]]*,(\d+)\]\s+Exit code:\s+(\d+)", re.S)
_TASK = re.compile(r"^srun: error: (\S+): tasks? (\d+)[^:]*: (?:Exited with exit code (\d+)|(\w.*))$", re.M)
_LOST = re.compile(r"lost communication with a remote daemon.*?Remote daemon: +\S+ on node (\S+)", re.S)
_UNHEARD = "Timed out waiting for job step to complete"
"""Message of srun if a node has not reported the end of its ranks."""


class Outcome(NamedTuple):
    """End of a job: ``done``, ``failed`` or ``stopped``, the reason in one sentence, and the rank concerned."""

    status: str
    reason: str
    rank: int | None = None


def by_rank(line: bytes) -> bytes:
    """Return a line of mpiexec's output in the log's format: ``[rank 3] text``."""
    found = filter(None, (tag.match(line) for tag in _TAGS))
    return next((b"[rank %s] " % match[1] + line[match.end() :] for match in found), line)


def stamp_of(path: Path) -> tuple[int, int]:
    """Return a file's size in bytes and the time of its last change, or (0, 0) if there is no file."""
    with suppress(OSError):
        return (status := path.stat()).st_size, status.st_mtime_ns
    return 0, 0


def rank_files(folder: Path) -> dict[int, Path]:
    """Return each rank's file of records. The shared file of simulated ranks counts as rank 0's."""
    found = [path for path in folder.glob("rank-*.jsonl") if RECORDS.fullmatch(path.name)]
    return {0 if path.stem == ALL_RANKS else rank_of(path.stem): path for path in found}


def pids_of(folder: Path) -> dict[int, int]:
    """Return this machine's ranks by pid. Ranks that have not written their header are left out."""
    headers = {rank: _header(path) for rank, path in rank_files(folder).items()}
    return {h["pid"]: rank for rank, h in headers.items() if h.get("host") == os.uname().nodename}


def still_ranks(pids: Iterable[int]) -> list[int]:
    """Return the `pids` that still belong to ranks. The system may reuse a pid."""
    return [pid for pid in pids if "dlpar" in text_of(Path(f"/proc/{pid}/cmdline"))]


def errors_in(folder: Path) -> list[tuple[int, Record]]:
    """Return the exceptions that ranks recorded, as ``(rank, record)``, the earliest first."""
    files = rank_files(folder).items()
    found = [(record.get("rank", rank), record) for rank, path in files for record in _last_records(path)]
    return sorted((e for e in found if e[1].get("k") == "error"), key=lambda error: error[1]["t"])


def dead_in(folder: Path) -> set[int]:
    """Return the dead ranks. The others continued without them."""
    found = (record for path in rank_files(folder).values() for record in lines_of(path, b'"death"'))
    return {r["dead"] for r in found if r.get("k") == "event" and r.get("name") == "death"}


def outcome(folder: Path, returncode: int, asked: Container[int | None] = ()) -> Outcome:
    """Return the outcome of a job whose mpiexec has ended by itself. Some ranks were `asked` to die."""
    errors = errors_in(folder)
    if errors:
        return _of_errors(errors)
    if refused := text_of(folder / REFUSAL):
        return Outcome("failed", refused)
    log = _log(folder)
    if lost := _lost_host(folder, log):
        return lost
    if returncode == 0 or (dead_in(folder) and _unfinished(folder) is None):
        return _unfinished(folder) or Outcome("done", "all ranks finished")
    if returncode < 0:
        return Outcome("failed", f"mpiexec was killed by {_signal(-returncode)}")
    killed, exited, left, task = (kind.search(log) for kind in (_SIGNAL, _STATUS, _LEFT, _TASK))
    found, simulated = killed or exited or left, (folder / f"{ALL_RANKS}.jsonl").exists()
    rank = number_in(folder / RUNNING) if simulated else int(found[1]) if found else None
    who, how = name_of(folder, rank), f"with status {exited[2] if exited else returncode}: {_last_words(log)}"
    if task:  # Slurm gives a signal's name in words
        how = f"with status {task[3]}: {_last_words(log)}" if task[3] else f"by a signal: {task[4]}"
        return Outcome("failed", f"{name_of(folder, int(task[2]))} ended {how}", int(task[2]))
    if killed:
        own = _last_records(folder / f"rank-{rank}.jsonl")
        told = rank in asked or any(record.get("name") == "died" for record in own)
        reason = f"{who} was killed by {_signal(int(killed[2]), told)}"
    else:
        reason = f"{who} {LEFT}" if left else f"{who if exited or simulated else 'mpiexec'} ended {how}"
    return Outcome("failed", reason, rank)


def _lost_host(folder: Path, log: str) -> Outcome | None:
    """Find a vanished host in the launcher's messages, and the host's first rank."""
    hosts: dict[str, int] = {}
    for rank in sorted(files := rank_files(folder)):
        hosts.setdefault(_header(files[rank]).get("host", ""), rank)
    vanished = _LOST.findall(log)
    if _UNHEARD in log:
        vanished = [host for host in hosts if host not in {task[0] for task in _TASK.findall(log)}]
    if not vanished:
        return None
    return Outcome("failed", f"host {vanished[0]} is down or cannot be reached", hosts.get(vanished[0]))


def _signal(number: int, told: bool = False) -> str:
    """Name a signal, and say whether the rank was `told` to die or the system may have killed it."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return name + (" on request" if told else " (perhaps memory ran out)" if number == signal.SIGKILL else "")


def _of_errors(errors: list[tuple[int, Record]]) -> Outcome:
    """Return an outcome that names the first exception, and the lowest rank that raised it."""
    rank, error = min((e for e in errors if e[1]["message"] == errors[0][1]["message"]), key=lambda e: e[0])
    if error["type"] in OF_ALL:
        return Outcome("failed", error["message"], rank)
    more = len(errors) - 1
    others = f" (and {more} more rank{'s' * (more > 1)})" if more else ""
    return Outcome("failed", f"rank {rank} raised {error['type']}: {error['message']}{others}", rank)


def name_of(folder: Path, rank: int | None) -> str:
    """Return a rank's name, such as ``rank 3``. The role follows in brackets unless it is worker.

    For a simulation, return the running rank.
    """
    if (folder / f"{ALL_RANKS}.jsonl").exists():
        running, of_all = number_in(folder / RUNNING), "the process of all ranks"
        return of_all if running is None else f"rank {running} (in {of_all})"
    header = _header(folder / f"rank-{rank}.jsonl")
    role, name = header.get("role", "worker"), f"rank {rank}{_elsewhere(header)}"
    return name if role == "worker" else f"{name} ({role})"


def _elsewhere(header: Record) -> str:
    """Name a rank's host, unless it is this machine."""
    here = os.uname().nodename
    return f" on {host}" if (host := header.get("host", here)) != here else ""


def _unfinished(folder: Path) -> Outcome | None:
    """Name an unfinished rank that exited with status 0. Return None if all ranks recorded their end."""
    files = rank_files(folder)
    if not files:
        return Outcome("failed", f"mpiexec ended before any rank began: {_last_words(_log(folder))}")
    left, running = [rank for rank in files if not _has_ended(files[rank])], number_in(folder / RUNNING)
    # Rank 0 of a simulation's shared file stands for all.
    left = left if (folder / f"{ALL_RANKS}.jsonl").exists() else sorted(set(left) - dead_in(folder))
    rank = min(left, default=None) if running is None else running
    return None if rank is None else Outcome("failed", f"{name_of(folder, rank)} {LEFT}", rank)


def _has_ended(path: Path) -> bool:
    """Return whether a rank has recorded its end."""
    return any(record.get("k") == "end" for record in _last_records(path, 1 << 12))


def _log(folder: Path) -> str:
    return text_of(folder / "log.txt")[-100_000:]


def _last_words(log: str) -> str:
    """Return the last line of a rank, else of the log, else mpiexec's reports between dashed lines."""
    parts = re.split(r"[-=]{58,76}", log)  # one line may end a report and begin the next
    said, report = _lines(parts[::2]), _lines(parts[1::2])
    of_ranks = [line for line in said + report if line.startswith("[rank")]
    return " ".join((of_ranks or said)[-1:] or report or ["it printed nothing; see log.txt"])[:300]


def _lines(texts: list[str]) -> list[str]:
    return [line for text in texts for raw in text.splitlines() if (line := raw.strip(" \t\r\0"))]


def where_ranks_are(folder: Path) -> str:
    """Ask every rank for its stack. Return the current line of code of each rank."""
    kill(still_ranks(pids_of(folder)), signal.SIGUSR1)
    time.sleep(0.2)
    files = rank_files(folder)
    said = [f"rank {r}{_elsewhere(_header(files[r]))} {_stands(folder, r)}" for r in sorted(files)[:16]]
    return "; ".join(said) or "no rank has started"


def _stands(folder: Path, rank: int) -> str:
    frames = _frames(text_of(folder / f"rank-{rank}.stack"))
    if not frames:
        return "does not answer"
    if any(function == "_bring_home" for _, _, function in frames):
        return "has finished and waits for the others"
    inside = next((i for i, frame in enumerate(frames) if not any(part in frame[0] for part in CARRIERS)), 0)
    file, line, function = frames[inside]
    caller = next((frame for frame in frames[inside:] if not is_installed(frame[0])), frames[inside])
    called = f", called at {os.path.basename(caller[0])}:{caller[1]}" if caller != frames[inside] else ""
    # The call of the communicator, not the calls within it.
    waiting = f", waiting in {frames[inside - 1][2]}" if inside else ""
    after = f" after step {step}" if (step := _last_step(folder / f"rank-{rank}.jsonl")) >= 0 else ""
    return f"is in {function} ({os.path.basename(file)}:{line}{called}){waiting}{after}"


def _frames(stacks: str) -> list[tuple[str, str, str]]:
    """Return the file, line and function of each frame in a rank's stack, the innermost first.

    The stack of the main thread comes last.  With a GPU, the backward pass runs in a thread of autograd, whose
    outermost frame is autograd's.  The main thread waits for that thread, so the thread's frames are inside
    the main thread's.
    """
    found = [(thread, _FRAME.findall(frames)) for thread, frames in _THREAD.findall(stacks)]
    *others, (main, last) = found or [("", [])]
    latest = takewhile(lambda stack: stack[0] != main, reversed(others))  # after an earlier answer
    inside = [frames for _, frames in latest if frames and "/torch/autograd/" in frames[-1][0]]
    return [frame for frames in [*reversed(inside), last] for frame in frames]


def likely_culprit(files: dict[int, Path], silent: list[int]) -> int | None:
    """Return the silent, unfinished worker with the fewest steps, if only one has the fewest.

    In a simulation this is the running rank.
    """
    workers = [rank for rank, path in files.items() if _header(path).get("role") == "worker"]
    if not set(workers) & set(silent):
        return None
    done = {rank: _last_step(files[rank]) for rank in workers}
    first, *others = [rank for rank in workers if done[rank] == min(done.values())]
    alone = not others and first in silent and not _has_ended(files[first])
    return number_in(files[first].with_name(RUNNING)) or first if alone else None


def _last_step(path: Path) -> int:
    """Return the last step in a rank's file, or -1 if there is none."""
    return max((record["step"] for record in _last_records(path) if record.get("k") == "step"), default=-1)


def _header(path: Path) -> Record:
    """Return a rank's first record, its header. Return an empty record if it is not yet written."""
    first = next(lines_of(path), {})
    return first if first.get("k") == "rank" else {}


def _last_records(path: Path, size: int = 1 << 16) -> list[Record]:
    """Return the complete records in the last `size` bytes of a file.

    An incomplete first line is left out.
    """
    with suppress(OSError), open_plain(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return list(filter(None, map(record_of, file)))
    return []
