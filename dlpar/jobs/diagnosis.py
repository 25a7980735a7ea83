"""Why a job ended: from what ranks wrote, what mpiexec said, and where Python stood.  Standard library only."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

from dlpar.config.user_code import is_installed
from dlpar.jobs.tail import ALL_RANKS

OF_ALL = ("Deadlock", "NeverYields")
"""Exceptions of a simulation that say by themselves which ranks they are about."""

LEFT = "ended its process before its work was done"
"""What is said of a rank that called ``os._exit(0)`` or the like."""

CARRIERS = ("/dlpar/comm/", "/dlpar/worlds/", "/dlpar/jobs/", "/dlpar/lab/message_log.py")
"""Of the files of what carries messages: what a rank waits in, not what it wants."""

_TAGS = (
    re.compile(rb"^\[[^,\]]*,(\d+)\]<std(?:out|err)>: ?"),  # Open MPI: [prterun-host-12@1,3]<stdout>: text
    re.compile(rb"^\[(\d+)\] "),  # Hydra: [3] text
    re.compile(rb"^(\d+): "),  # srun: 3: text
)
_LEFT = re.compile(r"due to process rank (\d+) with PID \d+ .{0,100}?exiting\s+improperly", re.S)
_SIGNAL = re.compile(r"process rank (\d+).{0,200}?exited on\s+signal (\d+)", re.S)
_STATUS = re.compile(r"Process name: \[[^,\]]*,(\d+)\]\s+Exit code:\s+(\d+)", re.S)


def by_rank(line: bytes) -> bytes:
    """A line of mpiexec's output as the log shows it: ``[rank 3] text``."""
    for tag in _TAGS:
        match = tag.match(line)
        if match:
            return b"[rank %s] " % match[1] + line[match.end() :]
    return line


def stamp_of(path: Path) -> tuple[int, int]:
    """Bytes in a file, and when it was last changed; (0, 0) if there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _rank_files(folder: Path) -> dict[int, Path]:
    return {0 if p.stem == ALL_RANKS else int(p.stem[5:]): p for p in folder.glob("rank-*.jsonl")}


def pids_of(folder: Path) -> list[int]:
    """Processes of ranks that said who they are and run on this machine."""
    headers = [_first(path) for path in _rank_files(folder).values()]
    here = os.uname().nodename
    return [h["pid"] for h in headers if h and h["host"] == here]


def still_ranks(pids: list[int]) -> list[int]:
    """Those of `pids` that still are what they were: a pid may have gone to somebody else since."""
    found = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"dlpar" in command:
            found.append(pid)
    return found


def errors_in(folder: Path) -> list[tuple[int, dict]]:
    """Exceptions ranks recorded, the earliest first."""
    found = []
    for rank, path in _rank_files(folder).items():
        for line in _last_lines(path):
            if line.get("k") == "error":
                found.append((line.get("rank", rank), line))
    return sorted(found, key=lambda pair: pair[1]["t"])


def verdict(folder: Path, returncode: int, ranks: int) -> tuple[str, str, int | None]:
    """Status, reason and rank of a job whose mpiexec has ended by itself."""
    errors = errors_in(folder)
    if errors:
        first = errors[0][1]
        # Of ranks that raised the same, the lowest: what is said must not depend on who was a moment sooner.
        rank, error = min((e for e in errors if e[1]["message"] == first["message"]), key=lambda e: e[0])
        more = len(errors) - 1
        others = f" (and {more} more rank{'s' * (more > 1)})" if more else ""
        if error["type"] in OF_ALL:
            return "failed", error["message"], rank
        return "failed", f"rank {rank} raised {error['type']}: {error['message']}{others}", rank
    if returncode == 0:
        return _unfinished(folder) or ("done", "all ranks finished", None)
    log = (folder / "log.txt").read_text(errors="replace")[-100_000:]
    killed, exited, left = _SIGNAL.search(log), _STATUS.search(log), _LEFT.search(log)
    simulated = (folder / f"{ALL_RANKS}.jsonl").exists()
    if killed:
        number = int(killed[2])
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = " (perhaps memory ran out)" if number == signal.SIGKILL else ""
        whom = "the process of all ranks" if simulated else _called(folder, killed[1])
        return "failed", f"{whom} was killed by {name}{hint}", None if simulated else int(killed[1])
    if simulated:
        ended = (
            LEFT if left else f"ended the process of all ranks with status {returncode}: {_last_words(log)}"
        )
        return "failed", f"a rank {ended}", None
    if exited:
        whom = _called(folder, exited[1])
        return "failed", f"{whom} ended with status {exited[2]}: {_last_words(log)}", int(exited[1])
    if left:
        return "failed", f"{_called(folder, left[1])} {LEFT}", int(left[1])
    return "failed", f"mpiexec ended with status {returncode}: {_last_words(log)}", None


def _called(folder: Path, rank: str) -> str:
    """``rank 3``, or ``rank 3 (server)``: a rank that is no worker is told by its role."""
    role = (_first(folder / f"rank-{rank}.jsonl") or {}).get("role", "worker")
    return f"rank {rank}" if role == "worker" else f"rank {rank} ({role})"


def _unfinished(folder: Path) -> tuple[str, str, int | None] | None:
    """What became of a training one of whose ranks left with status 0; None if all said that they did their steps."""
    if (folder / "call.pkl").exists():  # a function's ranks leave results instead
        return None
    for rank, path in sorted(_rank_files(folder).items()):
        if not any(record.get("k") == "end" for record in _last_lines(path, 1 << 12)):
            simulated = path.stem == ALL_RANKS
            return (
                "failed",
                f"{'a rank' if simulated else f'rank {rank}'} {LEFT}",
                None if simulated else rank,
            )
    return None


def _last_words(log: str) -> str:
    """The last line somebody meant to be read."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not set(line.strip()) <= set("-=")]
    ours = [line for line in lines if line.startswith("[rank")]
    own = [
        line
        for line in lines
        if not line.startswith(("prterun", "Exit code", "Process name", "thus causing"))
    ]
    return (ours or own or ["it said nothing; see log.txt"])[-1][:300]


def where_ranks_are(folder: Path) -> str:
    """Ask every rank for its stack, and say in which line of code each stands."""
    headers = {rank: _first(path) for rank, path in _rank_files(folder).items()}
    here = os.uname().nodename
    for header in headers.values():
        if header and header["host"] == here and still_ranks([header["pid"]]):
            try:
                os.kill(header["pid"], signal.SIGUSR1)
            except ProcessLookupError:
                pass
    time.sleep(0.2)
    said = [f"rank {rank} {_stands(folder, rank)}" for rank in sorted(headers)[:16]]
    return "; ".join(said) or "no rank has started"


def _stands(folder: Path, rank: int) -> str:
    path = folder / f"rank-{rank}.stack"
    stack = path.read_text(errors="replace") if path.exists() else ""
    frames = re.findall(
        r'File "([^"]+)", line (\d+) in (\S+)', stack.rpartition("(most recent call first)")[2]
    )
    if not frames:
        return "does not answer"
    if any(function == "_bring_home" for _, _, function in frames):
        return "has finished and waits for the others"
    inside = next((i for i, frame in enumerate(frames) if not any(part in frame[0] for part in CARRIERS)), 0)
    file, line, function = frames[inside]
    waits = frames[inside - 1][2] if inside else ""  # the communicator's call, not what it is made of
    steps = [r["step"] for r in _last_lines(folder / f"rank-{rank}.jsonl") if r.get("k") == "step"]
    after = f" after step {steps[-1]}" if steps else ""
    caller = next((f for f in frames[inside:] if not is_installed(f[0])), frames[inside])
    called = f", called at {os.path.basename(caller[0])}:{caller[1]}" if caller != frames[inside] else ""
    waiting = f", waiting in {waits}" if waits else ""
    return f"is in {function} ({os.path.basename(file)}:{line}{called}){waiting}{after}"


def likely_culprit(folder: Path) -> int | None:
    """The rank that has done fewest steps, if one alone has."""
    done = {}
    for rank, path in _rank_files(folder).items():
        steps = [r["step"] for r in _last_lines(path) if r.get("k") == "step"]
        done[rank] = steps[-1] if steps else -1
    slowest = [rank for rank, step in done.items() if step == min(done.values())]
    return slowest[0] if len(slowest) == 1 else None


def _first(path: Path) -> dict | None:
    try:
        with open(path, "rb") as file:
            line = file.readline()
        record = json.loads(line)
    except (OSError, ValueError):
        return None
    return record if record.get("k") == "rank" else None


def _last_lines(path: Path, size: int = 1 << 16) -> list[dict]:
    """Records in the last `size` bytes of a file."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            lines = file.read().splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:  # the first line is cut
            continue
    return records
