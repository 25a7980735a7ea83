"""Guardian of one job: a small process between its owner and its ranks.

The guardian starts mpiexec, and copies the output of ranks into ``log.txt``.  It ends the whole job when the
owner asks for this or dies, when a rank fails, or after too long without progress.  In every case it leaves
no process, socket or shared-memory file.  It uses only the standard library.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from dlpar.config.paths import write_whole
from dlpar.jobs import diagnosis, fork_server, processes, slots
from dlpar.jobs.control_groups import text_of
from dlpar.jobs.scratch import Scratch
from dlpar.jobs.summary import Summary
from dlpar.worlds import mpiexec

START = {"warm": 30.0, "cold": 120.0}
"""Minimum seconds allowed until the first rank starts. Four cold starts took a minute on two busy cores."""

SUMMARISED = 64 << 20
"""Maximum bytes of records that the guardian summarises. A reader summarises a longer run."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPS = {each: f"the launcher received {each.name}, so the job was stopped" for each in _ENDING}
STOPS[signal.SIGUSR1] = "time limit"  # Slurm's --signal, if it reaches all processes of a job
"""Signals that end a job, each with the reason to report."""

ELSEWHERE = 1.2
"""Seconds that the starter gets to end ranks on other machines before it is ended as well."""

KILLED = 8.0
"""Maximum seconds until killed processes have ended. A process with a GPU first frees the GPU's memory."""

LOG_LIMIT = 64 << 20
"""Maximum size of log.txt in bytes, because a rank that prints in a loop must not fill the disk."""


class Guardian:
    """Run one job from start to end.

    Parameters
    ----------
    spec : dict
        The job, from :meth:`dlpar.jobs.launch.Job._spec`.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.folder = spec, Path(spec["folder"])
        self.records = os.open(self.folder / "job.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.log, self.log_left = open(self.folder / "log.txt", "ab", buffering=0), LOG_LIMIT
        # Reserved space for the end of the job, if the disk becomes full.
        (self.folder / "reserve.stack").write_bytes(bytes(1 << 14))
        self.pending: dict[IO[bytes], bytes] = {}  # the beginning of an unfinished line, by pipe
        self.outcome: diagnosis.Outcome | None = None
        self.paused = dict[int, float]()  # by process: when its pause ends, by the monotonic clock
        self.killed = set[int | None]()  # ranks killed on request
        self.queue: slots.Talk | None = None
        self.mpiexec: subprocess.Popen | None = None
        self.began, self.mode = spec["launched"], "cold"
        self.progress: dict[int, tuple[tuple[int, int], float]] = {}  # by rank: file's stamp, and since when
        self.moved_at, self.started = time.monotonic(), False
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Start the job, watch it until its end, and leave nothing behind."""
        processes.adopt_orphans()
        try:
            self._listen()
            self._queue_up()
            choosing = threading.Thread(target=self._choose_command, daemon=True)
            choosing.start()
            while choosing.is_alive() and self.outcome is None:
                self._hear(0.02)
            if self.outcome is None:
                self._start()
            while self.outcome is None:
                self._hear(min(0.5 if self.started else 0.05, self.spec["timeout"] / 4, self._end_pauses()))
                if self.spec["one_host"] and not self.started:
                    mpiexec.keep_to_loopback(self.mpiexec.pid)
                self._watch_progress()
                # Processes left by ended ranks, because mpiexec would wait for their output.
                if processes.has_children(but=1) and self.mpiexec.poll() is None:
                    processes.kill(self._below(but=self.mpiexec.pid))
                if self.outcome is None and (self._is_over() or text_of(self.folder / diagnosis.REFUSAL)):
                    for _ in range(100):  # the rest of its output; a process that is left may write forever
                        self._hear(0)
                    self.end(*diagnosis.outcome(self.folder, self.mpiexec.returncode, self.killed))
        except slots.NoSlots as error:
            self.end("failed", str(error))
        except BaseException as error:  # a fault of the guardian must not leave ranks behind
            self.end("failed", f"the launcher failed: {type(error).__name__}: {error}")
        self._clean_up()
        self._finish()

    def write(self, **record: Any) -> None:
        """Append a record to ``job.jsonl``."""
        os.write(self.records, (json.dumps(record) + "\n").encode())

    def end(self, status: str, reason: str, rank: int | None = None) -> None:
        """Decide how the job ends. The first decision is final."""
        self.outcome = self.outcome or diagnosis.Outcome(status, reason, rank)

    # -- hearing ---------------------------------------------------------

    def _listen(self) -> None:
        """Listen to the owner, the owner's process and signals."""
        signals, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (*STOPS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.selector.register(0, selectors.EVENT_READ, self._hear_owner)
        self.selector.register(signals, selectors.EVENT_READ, self._hear_signal)
        with suppress(AttributeError, OSError):  # Linux only; readable when the process ends
            self.selector.register(os.pidfd_open(self.spec["owner"]), selectors.EVENT_READ, self._hear_owner)

    def _hear(self, timeout: float) -> None:
        """Wait for output, the owner or a signal, and handle it."""
        for key, _ in self.selector.select(timeout):
            key.data(key.fileobj)

    def _hear_owner(self, source: int) -> None:
        """Handle the owner's requests on standard input: signal a rank or end the job.

        Also end a job that has lost its owner.
        """
        # All that a pipe holds, because a shorter read might cut a line.
        said = os.read(0, 1 << 16).decode() if source == 0 else ""
        for line in said.splitlines() or ["the process that started the job ended, so the job was stopped"]:
            self._signal(**json.loads(line)) if line.startswith("{") else self.end("stopped", line)

    def _signal(self, rank: int, die: bool = False, stall: float = 0.0) -> None:
        """Kill a rank's process, or stop it for a given number of seconds."""
        pids = diagnosis.pids_of(self.folder)
        own = [pid for pid in diagnosis.still_ranks(pids) if pids[pid] == rank]
        self.write(k="order", at=time.time(), rank=rank, die=die, stall=stall)
        self.killed |= {rank} if die else set()
        processes.kill(own, signal.SIGKILL if die else signal.SIGSTOP)
        for pid in own:
            self.paused[pid] = max(time.monotonic() + stall, self.paused.get(pid, 0.0))

    def _end_pauses(self) -> float:
        """Resume the processes whose pause is over. Return the seconds until the next pause ends."""
        now = time.monotonic()
        over = [pid for pid, until in self.paused.items() if until <= now]
        processes.kill(diagnosis.still_ranks(over), signal.SIGCONT)
        self.paused = {pid: until for pid, until in self.paused.items() if until > now}
        return min(self.paused.values(), default=math.inf) - now

    def _hear_signal(self, pipe: int) -> None:
        for number in os.read(pipe, 100):
            if number != signal.SIGCHLD:
                self.end("stopped", STOPS[number])

    def _hear_queue(self, connection: Any) -> None:
        """Note the number of jobs ahead. The time limit for the start begins when no job is ahead."""
        try:
            messages = self.queue.hear()
        except slots.NoSlots:
            if not self.queue.files:
                raise
            self.selector.unregister(connection)  # the keeper has gone: continue without it
            return
        for said in messages:
            if "go" in said:
                self.began = time.time()
            elif "over" in said:
                self.end("stopped", said["over"])
            else:
                self.write(k="queued", at=time.time(), ahead=said["ahead"], paused=said["paused"])

    def _hear_output(self, pipe: IO[bytes]) -> None:
        """Copy whole lines to the log, prefixed by rank."""
        data = os.read(pipe.fileno(), 1 << 16)
        if not data:
            self.selector.unregister(pipe)
        lines = (self.pending.get(pipe, b"") + data).splitlines(keepends=True)
        is_cut = data and lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < 1 << 16
        self.pending[pipe] = lines.pop() if is_cut else b""
        text = b"".join(diagnosis.by_rank(line) for line in lines)[: max(0, self.log_left)]
        self.log_left -= len(text)
        self.log.write(text)

    # -- while it runs ---------------------------------------------------

    def _queue_up(self) -> None:
        """Wait for job slots if this machine has a limit."""
        if not self.spec["queue"]:
            return
        question = {"slots": self.spec["ranks"], "as": self.spec["who"]}
        self.queue = slots.Talk(Path(self.spec["queue"]), question)
        if self.spec["warm"]:
            fork_server.prepare()  # otherwise other jobs would wait for this once it is our turn
        self.selector.register(self.queue, selectors.EVENT_READ, self._hear_queue)
        while not self.queue.files and self.outcome is None:
            self._hear(1.0)

    def _choose_command(self) -> None:
        """Choose the fastest safe start. If possible, use the fork server, and start it if needed."""
        command, socket = self.spec["warm"], None
        with suppress(Exception):  # if anything prevents a warm start, a cold start is possible
            socket = fork_server.warm_socket() if command else None
        self.mode = "warm" if socket else "cold"
        filled = {"{socket}": str(socket), "{began}": repr(self.began)}
        self.command = [filled.get(word, word) for word in (command if socket else self.spec["cold"])]

    def _start(self) -> None:
        try:
            files = self.queue.files if self.queue else ()
            inherited = {"env": self.spec["env"], "cwd": self.spec["cwd"], "pass_fds": files}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            tied = {"preexec_fn": processes.die_with_parent, "process_group": 0}
            self.mpiexec = subprocess.Popen(self.command, **inherited, **pipes, **tied)
        except OSError as error:
            return self.end("failed", f"mpiexec: {self.spec['cold'][0]} does not start ({error.strerror})")
        self.moved_at = time.monotonic()
        at = self.spec["launched"]
        self.write(k="launch", at=at, mode=self.mode, pid=os.getpid(), command=self.command)
        for pipe in (self.mpiexec.stdout, self.mpiexec.stderr):
            self.selector.register(pipe, selectors.EVENT_READ, self._hear_output)

    def _watch_progress(self) -> None:
        """End a job if no rank has written a line or touched its file for `timeout` seconds.

        With free-running workers, even a single silent rank ends the job, because the others would continue.
        """
        now, timeout, ranks = time.monotonic(), self.spec["timeout"], self.spec["ranks"]
        files = diagnosis.rank_files(self.folder)
        for rank, path in files.items():
            stamp = diagnosis.stamp_of(path)
            if stamp[0] and stamp != self.progress.get(rank, (None,))[0]:
                self.progress[rank], self.moved_at = (stamp, now), now
        missing = [str(rank) for rank in range(ranks) if rank not in self.progress]
        self.started = self.started or not missing
        # Ranks meet before they write. So once one has started, all others have loaded everything.
        patience = timeout if self.progress else max(START[self.mode], timeout)
        silent = [rank for rank in files if rank in self.progress and now - self.progress[rank][1] > patience]
        silent = sorted(set(silent) - diagnosis.dead_in(self.folder)) if silent else silent
        slowest, all_stand = diagnosis.likely_culprit(files, silent), now - self.moved_at > patience
        for pid, rank in {self.mpiexec.pid: None, **diagnosis.pids_of(self.folder)}.items() if silent else ():
            who = "mpiexec" if rank is None else diagnosis.name_of(self.folder, rank)
            if (all_stand or rank in silent) and processes.state_of(pid)[0] in "Tt":
                self.end("failed", f"{who} is stopped: process {pid} has not run for {patience:g} s", rank)
        if not self.folder.exists():
            self.end("failed", diagnosis.REMOVED)
        elif all_stand or slowest is not None:
            late = f"only {ranks - len(missing)} of {ranks} ranks started (missing: {', '.join(missing)})"
            what = late if missing else "no progress" if all_stand else f"no progress of rank {slowest}"
            where = diagnosis.where_ranks_are(self.folder)
            self.end("failed", f"{what} for {patience:g} s: {where}", slowest)

    def _is_over(self) -> bool:
        """Return whether mpiexec has ended without leaving a process that may still become a rank."""
        status = self.mpiexec.poll()
        return status is not None and bool(status or diagnosis.pids_of(self.folder) or not self._below())

    # -- when it ends ----------------------------------------------------

    def _below(self, but: int | None = None) -> list[int]:
        """Return every descendant process of the job, except `but` and its descendants.

        A fork server belongs to the user.  If it is killed, we may inherit all ranks that it forked, of this
        job and of others, each in its own process group.  So ranks are ended by their pids.
        """
        ranks = diagnosis.pids_of(self.folder)
        below = processes.descendants(os.getpid())
        forked = {pid for pid in below if fork_server.__name__ in text_of(Path(f"/proc/{pid}/cmdline"))}
        children = {pid for pid in forked if pid not in ranks and processes.state_of(pid)[2] in ranks}
        return processes.descendants(os.getpid(), {but} | forked - children)

    def _clean_up(self) -> None:
        """Remove all processes of the job, and its files outside the run folder."""
        ranks, mpiexec = [*diagnosis.pids_of(self.folder)], self.mpiexec
        processes.kill(diagnosis.still_ranks(ranks), signal.SIGCONT)  # resume paused ranks
        if not self.spec["one_host"]:  # only the starter, our single child, reaches ranks on other machines
            starter = [pid for pid in self._below() if processes.parent_of(pid) == os.getpid()]
            processes.kill(starter, signal.SIGTERM)
            processes.wait_gone(starter, ELSEWHERE)
        if mpiexec is not None and mpiexec.poll() is None:
            processes.kill([pid for pid in self._below() if pid != mpiexec.pid])
            processes.wait_gone([mpiexec.pid], 0.3)
            processes.kill([mpiexec.pid])
        processes.wait_gone(ranks, 0.5)
        processes.kill(diagnosis.still_ranks(ranks))
        left = self._below()
        processes.kill(left)
        processes.wait_gone([*left, *ranks], KILLED)
        Scratch(self.spec["scratch"]).remove()

    def _finish(self) -> None:
        """Write the job's end and summary."""
        for stack in self.folder.glob("*.stack"):  # including the reserve
            stack.unlink()
        self.write(k="end", at=time.time(), **self.outcome._asdict())
        size = sum(diagnosis.stamp_of(path)[0] for path in self.folder.glob("rank-*.jsonl"))
        if self.folder.exists() and size < SUMMARISED:
            summary = Summary(self.folder.name, **self.spec["summary"])
            summary.add_all(self.folder)
            write_whole(self.folder / "summary.json", json.dumps(summary.result(), indent=1).encode())


def main() -> None:
    """Read the job as a JSON line from standard input. The input stays open while the owner wants the job.

    The guardian is a child of this process. If the guardian is killed, this process cleans up.
    """
    # Without a buffer, so that the owner's later messages are still in the pipe.
    with open(0, "rb", buffering=0, closefd=False) as owner:
        line = owner.readline()
    if not line.endswith(b"\n"):
        sys.exit(2)
    guardian, we = Guardian(json.loads(line)), os.getpid()
    processes.adopt_orphans()
    if (pid := os.fork()) == 0:
        processes.die_with_parent(we, signal.SIGTERM)
        guardian.run()
        os._exit(0)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # only the guardian receives them
    if (status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) < 0:
        guardian.end("failed", f"its launcher was killed by {signal.Signals(-status).name}")
        guardian._clean_up()
        guardian._finish()
