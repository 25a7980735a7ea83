"""The guardian of one job: a small process between its owner and its ranks.

It starts mpiexec, copies what ranks print into ``log.txt``, and ends the whole
job when its owner says so or dies, when a rank fails, or when nothing has
moved for too long.  Whatever the cause, it leaves no process, socket or
shared-memory file.  Standard library only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from dlpar.config.paths import Scratch
from dlpar.jobs import diagnosis, fork_server, slots
from dlpar.jobs.processes import adopt_orphans, descendants, die_with_parent, kill, wait_gone
from dlpar.jobs.summary import Summary
from dlpar.jobs.tail import Tail

START = 120.0
"""Seconds all ranks together may take to start."""

SUMMARISED = 64 << 20
"""Bytes of records summed up before the job is over; whoever opens a longer run sums it up."""

LOG_LIMIT = 64 << 20
"""Bytes of log.txt at most: a rank that prints in a loop must not fill the disk."""


class GuardedJob:
    """What is being guarded.  `spec` is what :meth:`dlpar.jobs.launch.Job._spec` gives."""

    def __init__(self, spec: dict) -> None:
        self.spec, self.folder = spec, Path(spec["folder"])
        self.records = os.open(self.folder / "job.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.log = open(self.folder / "log.txt", "ab", buffering=0)
        self.log_left = LOG_LIMIT
        self.pending: dict = {}  # the beginning of a line whose end has not come yet, by pipe
        self.verdict: tuple[str, str, int | None] | None = None  # status, reason, rank
        self.queue: slots.Talk | None = None
        self.began = spec["launched"]
        self.progress, self.moved_at, self.started = [], time.monotonic(), False

    def write(self, **record) -> None:
        os.write(self.records, (json.dumps(record) + "\n").encode())

    def end(self, status: str, reason: str, rank: int | None = None) -> None:
        """Decide how the job ends; the first decision holds."""
        self.verdict = self.verdict or (status, reason, rank)

    # -- while it runs ---------------------------------------------------

    def queue_up(self) -> slots.Talk | None:
        """Ask for job slots, where this machine has a limit."""
        if self.spec["queue"]:
            question = {"slots": self.spec["ranks"], "as": self.spec["who"]}
            self.queue = slots.Talk(Path(self.spec["queue"]), question)
            if self.spec["warm"]:
                fork_server.prepare()  # or the others would wait for it, once it is our turn
        return self.queue

    def hear_queue(self) -> None:
        """Note how many are ahead; the time to start is counted from when nobody is."""
        for said in self.queue.hear():
            if "go" in said:
                self.began = time.time()
            else:
                self.write(k="queued", at=time.time(), ahead=said["ahead"], paused=said["paused"])

    @property
    def may_start(self) -> bool:
        return self.queue is None or bool(self.queue.files)

    def choose_command(self) -> None:
        """The fastest safe way to start: through the fork server, which may first have to be started itself."""
        command = self.spec["warm"]
        try:
            socket = fork_server.warm_socket(self.spec["python"]) if command else None
        except Exception:  # whatever keeps it from starting warm, a cold start is possible
            socket = None
        self.mode = "warm" if socket else "cold"
        filled = {"{socket}": str(socket), "{began}": repr(self.began)}
        self.command = [filled.get(word, word) for word in (command if socket else self.spec["cold"])]

    def start(self) -> subprocess.Popen:
        def of_its_own() -> None:
            die_with_parent()
            os.setpgid(0, 0)

        mpiexec = subprocess.Popen(
            self.command,
            env=self.spec["env"],
            cwd=self.spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=of_its_own,
            pass_fds=self.queue.files if self.queue else (),
        )
        self.moved_at = time.monotonic()
        self.write(
            k="launch", at=self.spec["launched"], mode=self.mode, pid=os.getpid(), command=self.command
        )
        return mpiexec

    def copy_output(self, pipe) -> bool:
        """Copy whole lines to the log, prefixed by rank; False at the end of the pipe."""
        data = os.read(pipe.fileno(), 1 << 16)
        pending = self.pending.get(pipe, b"") + data
        lines, cut = pending.splitlines(keepends=True), b""
        if data and lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < 1 << 16:
            cut = lines.pop()
        self.pending[pipe] = cut
        text = b"".join(diagnosis.by_rank(line) for line in lines)[: max(0, self.log_left)]
        self.log_left -= len(text)
        self.log.write(text)
        return bool(data)

    def watch_progress(self) -> None:
        """End a job none of whose ranks has written a line, or touched its file, for `timeout` seconds."""
        stamps = [
            s for s in (diagnosis.stamp_of(p) for p in sorted(self.folder.glob("rank-*.jsonl"))) if s[0]
        ]
        now = time.monotonic()
        if stamps != self.progress:
            self.progress, self.moved_at = stamps, now
        self.started = self.started or len(stamps) == self.spec["ranks"]
        patience = self.spec["timeout"] if self.started else max(START, self.spec["timeout"])
        if now - self.moved_at > patience:
            where = diagnosis.where_ranks_are(self.folder)
            what = (
                "no progress" if self.started else f"only {len(stamps)} of {self.spec['ranks']} ranks started"
            )
            self.end("failed", f"{what} for {patience:g} s: {where}", diagnosis.likely_culprit(self.folder))

    # -- when it ends ----------------------------------------------------

    def below(self) -> list[int]:
        """Every process of the job that descends from us; a fork server we started belongs to the user."""
        return descendants(os.getpid(), spared={server.pid for server in fork_server.started})

    def clean_up(self, mpiexec: subprocess.Popen | None) -> None:
        """Leave no process and no file of the job outside its run folder."""
        ranks = diagnosis.pids_of(self.folder)
        if mpiexec is not None and mpiexec.poll() is None:
            below = self.below()
            kill([p for p in below if p != mpiexec.pid], signal.SIGKILL)
            wait_gone([mpiexec.pid], 0.3)
            kill([mpiexec.pid])
        wait_gone(ranks, 0.5)
        kill(diagnosis.still_ranks(ranks))
        left = self.below()
        kill(left)
        wait_gone([*left, *ranks], 1.0)
        Scratch(self.spec["scratch"]).remove()

    def finish(self) -> None:
        status, reason, rank = self.verdict
        self.write(k="end", at=time.time(), status=status, reason=reason, rank=rank)
        for stack in self.folder.glob("*.stack"):
            stack.unlink()
        size = sum(diagnosis.stamp_of(path)[0] for path in self.folder.glob("rank-*.jsonl"))
        if self.folder.exists() and size < SUMMARISED:
            summary = Summary(self.folder.name, **self.spec["summary"])
            for records in iter(Tail(self.folder).read, []):
                summary.add(records)
            whole = self.folder / "summary.json.part"
            whole.write_text(json.dumps(summary.result(), indent=1))
            whole.rename(self.folder / "summary.json")


def guard(spec: dict) -> None:
    """Run one job from start to end; `spec` as :class:`Job` says."""
    adopt_orphans()
    job = GuardedJob(spec)
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    mpiexec = None
    try:
        selector = _selector(job, signals)
        if job.queue_up():
            selector.register(job.queue.socket, selectors.EVENT_READ, "queue")
        while not job.may_start and job.verdict is None:
            _hear(job, selector, signals, 1.0)
        choosing = threading.Thread(target=job.choose_command, daemon=True)
        choosing.start()
        while choosing.is_alive() and job.verdict is None:
            _hear(job, selector, signals, 0.02)
        if job.verdict is None:
            try:
                mpiexec = job.start()
            except OSError as error:
                job.end("failed", f"mpiexec: {spec['cold'][0]} does not start ({error.strerror})")
            else:
                _watch(job, mpiexec, selector, signals)
    except slots.NoSlots as error:
        job.end("failed", str(error))
    except BaseException as error:  # a fault of ours must not leave ranks behind
        job.end("failed", f"the launcher failed: {type(error).__name__}: {error}")
    job.clean_up(mpiexec)
    job.finish()


def _selector(job: GuardedJob, signals: int) -> selectors.BaseSelector:
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ, "owner")
    selector.register(signals, selectors.EVENT_READ, "signal")
    owner = _process(job.spec["owner"])
    if owner is not None:
        selector.register(owner, selectors.EVENT_READ, "owner's process")
    return selector


def _hear(job: GuardedJob, selector: selectors.BaseSelector, signals: int, timeout: float) -> None:
    """Wait for output, the owner or a signal, and act on what came."""
    for key, _ in selector.select(timeout):
        if key.data == "out":
            if not job.copy_output(key.fileobj):
                selector.unregister(key.fileobj)
        elif key.data == "queue":
            job.hear_queue() if not job.may_start else selector.unregister(
                key.fileobj
            )  # the keeper has gone: go on
        elif key.data == "owner":
            said = os.read(0, 100)
            job.end(
                "stopped", "stopped by its owner" if said else "who started it has ended, so it was stopped"
            )
        elif key.data == "owner's process":
            job.end("stopped", "the process that started it has ended, so it was stopped")
        else:
            for number in os.read(signals, 100):
                if number != signal.SIGCHLD:
                    job.end("stopped", f"the launcher got {signal.Signals(number).name}, so it was stopped")


def _watch(
    job: GuardedJob, mpiexec: subprocess.Popen, selector: selectors.BaseSelector, signals: int
) -> None:
    """Until somebody has decided how the job ends."""
    selector.register(mpiexec.stdout, selectors.EVENT_READ, "out")
    selector.register(mpiexec.stderr, selectors.EVENT_READ, "out")
    while job.verdict is None:
        _hear(job, selector, signals, min(0.5, job.spec["timeout"] / 4))
        job.watch_progress()
        if mpiexec.poll() is not None and job.verdict is None:
            _drain(job, selector)
            job.end(*diagnosis.verdict(job.folder, mpiexec.returncode, job.spec["ranks"]))


def _drain(job: GuardedJob, selector: selectors.BaseSelector) -> None:
    """Copy what is still in the pipes."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        ready = [k for k, _ in selector.select(timeout=0) if k.data == "out"]
        if not ready:
            return
        for key in ready:
            if not job.copy_output(key.fileobj):
                selector.unregister(key.fileobj)


def _process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system has such a thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def main() -> None:
    """Read the job as one JSON line from standard input, which stays open as long as the owner wants the job."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(2)
        line += byte
    guard(json.loads(line))
