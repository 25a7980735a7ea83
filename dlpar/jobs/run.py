"""Reader of the run folder of a live or finished run."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.config.paths import read_plain, runs_folder
from dlpar.config.schema import BadExperiment
from dlpar.jobs.control_groups import text_of
from dlpar.jobs.diagnosis import errors_in, rank_files
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps, kept
from dlpar.jobs.scratch import is_locked
from dlpar.jobs.summary import Summary, facts_of
from dlpar.jobs.tail import Record, Tail, attempts_in, end_in, lines_of, rank_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


TABLES = ("steps", "curve", "evals", "spans", "events", "ranks", "consensus")
"""Properties that :meth:`Run.to_csv` writes."""

STEP_COLUMNS = "rank step t loss samples compute comm wait bytes messages staleness lead".split()


NO_END = "its launcher was killed, or the machine went down, before the job ended"
"""Reason for the end of an attempt that nobody has recorded."""


class NoSuchRun(LookupError):
    """Error: no run has this name, or the folder holds no run."""


class Run:
    """Live or finished run, read from its folder.

    Parameters
    ----------
    which : path or str
        A run folder, a run's id, or a unique prefix of an id.

    Raises
    ------
    NoSuchRun
        If there is no such run, or more than one.
    """

    def __init__(self, which: str | os.PathLike) -> None:
        self.path = _find(which)
        self.id = self.path.name

    def __repr__(self) -> str:
        with suppress(BadExperiment):
            return f"<Run {self.id}: {self.experiment}, {self.status}>"
        return f"<Run {self.id}: its experiment cannot be read>"

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment that ran. Raises `BadExperiment` if this version cannot read it."""
        try:
            return Experiment.from_json(read_plain(self.path / "experiment.json"))
        except OSError as error:
            raise BadExperiment(f"experiment.json: {error.strerror}") from None

    @property
    def status(self) -> str:
        """Run status: ``queued``, ``starting``, ``running``, ``done``, ``failed``, ``stopped`` or ``lost``."""
        return self.status_if(self.live)  # read before the end record, which is written while the run is live

    def status_if(self, live: bool) -> str:
        """Return the run's status. `live` states whether a job holds this folder's lock."""
        if end := self._end():
            return end["status"]
        if live and rank_files(self.path):
            return "running"
        said = list(lines_of(self.path / "job.jsonl"))
        if live:
            return "queued" if said and said[-1]["k"] == "queued" else "starting"
        # Ranks started by hand, without a guardian, may all have ended.
        return "done" if not said and len(list(self._of_kind("end"))) == self.experiment.ranks else "lost"

    @property
    def reason(self) -> str:
        """Reason for the run's end in one sentence. It is empty while the run is live."""
        return end["reason"] if (end := self._end()) else NO_END if self.status == "lost" else ""

    @property
    def live(self) -> bool:
        """Return whether a job still holds this folder's lock."""
        return is_locked(self.path)

    @property
    def world(self) -> str:
        """World of the run: ``real``, ``paced`` or ``simulated``."""
        return self.experiment.cluster.world

    @property
    def clock(self) -> str:
        """Clock that counts the seconds: ``wall``, ``logical`` or ``virtual``."""
        return self.summary["clock"]

    @property
    def log(self) -> str:
        """Output of all ranks, with each line prefixed by its rank."""
        return text_of(self.path / "log.txt")

    @property
    def errors(self) -> dict[int, Record]:
        """Exceptions by rank, each with ``type``, ``message`` and ``traceback``."""
        return dict(errors_in(self.path))

    @property
    def summary(self) -> dict[str, Any]:
        """Summary of the run so far, as ``dlpar run --json`` prints it."""
        with suppress(OSError, ValueError, RecursionError):  # it is missing or incomplete
            kept = json.loads(read_plain(self.path / "summary.json"))
            if isinstance(kept, dict) and kept.keys() >= {"steps", "clock", "seconds", "staleness", "lead"}:
                return kept
        summary = Summary(self.id, **facts_of(self.experiment))
        summary.add_all(self.path)
        return summary.result()

    @property
    def snapshots(self) -> list[int]:
        """Global steps that have a snapshot, the newest first."""
        return snapshots_in(self.path)

    def records(self) -> list[tuple[str, Record]]:
        """Return all records written so far as ``(source, record)``."""
        return Tail(self.path).read_all()

    def global_steps(self) -> list[GlobalStep]:
        """Combine the steps of all workers into global steps. Leave out lost steps that were repeated."""
        return kept(self.global_steps_of_all())

    def global_steps_of_all(self) -> list[GlobalStep]:
        """Combine all workers' steps into global steps, attempt by attempt."""
        steps = GlobalSteps(self.experiment.workers - self.experiment.backup, self.experiment.sync.runs_free)
        for rank, record in self._of_kind("step", "rank"):
            steps.add(rank, record) if record["k"] == "step" else steps.resume(record)
        return steps.ready(ended=True)

    @property
    def ranks(self) -> pd.DataFrame:
        """Table with one row per rank.

        Columns: role (worker, server, leaf, spare), host, pid, device, carrier, clock, threads.
        """
        frame = _frame([record for _, record in self._of_kind("rank")])
        frame = frame if frame.empty else frame.drop(columns="k").drop_duplicates("rank", keep="last")
        return frame if frame.empty else frame.set_index("rank").sort_index()

    @property
    def steps(self) -> pd.DataFrame:
        """Table with one row per rank and step.

        Seconds are in ``t compute comm wait``, and sent bytes in ``bytes``.
        """
        rows = [{"rank": rank, **record} for rank, record in self._of_kind("step")]
        # Keep the last of repeated steps.
        frame = _frame(rows, STEP_COLUMNS).drop_duplicates(["rank", "step"], keep="last")
        return frame.sort_values(["step", "rank"], ignore_index=True)

    @property
    def curve(self) -> pd.DataFrame:
        """Table with one row per global step (:class:`~dlpar.jobs.global_steps.GlobalSteps`).

        Columns: ``step``; ``samples`` and ``bytes`` so far; ``seconds``, when the last worker ended the step;
        ``loss``, the mean over the global batch; ``samples_per_s`` of this step.  Steps that some worker
        never finished are omitted.
        """
        curve = _frame(self.global_steps(), GlobalStep._fields)
        curve["samples_per_s"] = curve["batch"] / curve["seconds"].diff()
        return curve.drop(columns=["batch", "attempt", "sketches"])

    @property
    def attempts(self) -> pd.DataFrame:
        """Table with one row per attempt.

        Columns: ``first`` and ``last`` step, how many were ``lost``, ``status`` and ``reason``.

        The next attempt repeats the lost steps.
        """
        done = self.global_steps_of_all()
        firsts = {0: 0} | {r["attempt"]: r["resumed"] for _, r in self._of_kind("rank") if "attempt" in r}
        rows = []
        for number, names in enumerate(attempts_in(self.path)):
            end = end_in(self.path, names) or {"status": "lost", "reason": NO_END}
            steps = [step.step for step in done if step.attempt == number]
            again = max([*steps, -1]) + 1 - firsts.get(number + 1, math.inf)
            row = {"first": firsts.get(number, 0), "last": max(steps, default=None), "lost": max(0, again)}
            rows.append({"attempt": number, **row, "status": end["status"], "reason": end["reason"]})
        rows[-1] |= {"status": self.status, "reason": self.reason}
        return _frame(rows)

    @property
    def consensus(self) -> pd.DataFrame:
        """Table of the consensus distance after each global step. It has no rows without sketches.

        Columns: ``step``; ``seconds``, when the last worker ended the step; ``distance``, the root of the
        mean over workers of ‖x_i - mean‖², with the weights at the start of the step.  If workers run free,
        every N worker-steps give a row, from the latest weights of each worker.  Distances are estimated from
        sketches (:mod:`dlpar.sync.sketch`). They are off by about 10 %, with the same factor throughout a
        run.
        """
        rows = [(done.step, done.seconds, (apart**2).mean() ** 0.5) for done, apart in self.from_the_mean()]
        return _frame(rows, ["step", "seconds", "distance"])

    def from_the_mean(self) -> list[tuple[GlobalStep, np.ndarray]]:
        """Return, by rank, each replica's distance from the mean weights after each global step."""
        import numpy as np

        found = []
        for done in self.global_steps():
            if done.sketches:
                held = np.array([done.sketches[rank] for rank in sorted(done.sketches)], dtype=float)
                found.append((done, np.linalg.norm(held - held.mean(axis=0), axis=1)))
        return found

    @property
    def evals(self) -> pd.DataFrame:
        """Results of tests on held-out samples, with columns ``step t accuracy loss samples``."""
        tests = _frame([r for _, r in self._of_kind("eval")], "step t accuracy loss samples".split())
        return tests.drop_duplicates("step", keep="last", ignore_index=True)  # as of repeated steps

    @property
    def spans(self) -> pd.DataFrame:
        """Phases of every rank: ``rank step name start end`` (seconds).

        A pipeline adds ``micro`` and ``chunk``.
        """
        spans = ((rank_of(s), r["step"], span) for s, r in self.records() for span in r.get("spans", ()))
        rows = [(rank, step, *span, *[None] * (5 - len(span))) for rank, step, span in spans]
        return _frame(rows, ["rank", "step", "name", "start", "end", "micro", "chunk"])

    @property
    def events(self) -> pd.DataFrame:
        """Events of a run, with columns ``source name t`` and the fields of each event."""
        return _frame([{"source": f"rank-{rank}", **record} for rank, record in self._of_kind("event")])

    def to_csv(self, folder: str | os.PathLike) -> list[Path]:
        """Write each non-empty table as ``<table>.csv`` into `folder`. Create the folder if needed.

        Returns
        -------
        list of Path
            The files.
        """
        folder, written = Path(folder), []
        folder.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            if len(table := getattr(self, name)):
                written.append(folder / f"{name}.csv")
                table.to_csv(written[-1], index=name == "ranks")
        return written

    def to_perfetto(self, path: str | os.PathLike) -> Path:
        """Write a trace that ui.perfetto.dev and chrome://tracing can open, with one track per rank.

        Each rank is a process of the trace with one thread for its spans. The loss of its samples is a
        counter.  Source: "Trace Event Format", Google, 2016.
        """
        events = [event for found in self.records() if found[0] != "job" for event in _trace(*found)]
        trace = {"traceEvents": events, "otherData": {"run": self.id, "clock": self.clock}}
        with open(path, "w", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666)) as file:
            file.write(json.dumps(trace))
        return Path(path)

    def delete(self) -> None:
        """Remove the folder. Raises `RuntimeError` while the run is live."""
        if self.live:
            raise RuntimeError(f"run {self.id} is still running: stop it first")
        shutil.rmtree(self.path)

    def _of_kind(self, *kinds: str) -> Iterator[tuple[int, Record]]:
        """Yield the records of some kinds as ``(rank, record)``."""
        parts = iter(Tail(self.path).read, [])  # by parts, because all records would fill the memory
        return ((rank_of(s), r) for part in parts for s, r in part if r["k"] in kinds and s != "job")

    def _end(self) -> Record | None:
        return end_in(self.path, ["job.jsonl"])


def _frame(rows: list[Any], columns: Sequence[str] | None = None) -> pd.DataFrame:
    import pandas as pd  # imported here, because a light process only reads summaries

    return pd.DataFrame(rows, columns=columns)


SNAPSHOTS, SETS, MANIFEST = "snapshots", "step-" + 8 * "[0-9]", "COMMITTED.json"
"""Names of a run's snapshot folder, of a snapshot in it, and of the manifest that completes a snapshot."""


def snapshots_in(folder: Path) -> list[int]:
    """Return the steps of the snapshots in a run folder, the newest first."""
    found = (folder / SNAPSHOTS).glob(f"{SETS}/{MANIFEST}")
    return sorted((int(path.parent.name.removeprefix("step-")) for path in found), reverse=True)


def runs() -> list[Run]:
    """Return all runs kept on this machine, newest first. ``Run(id)`` reopens one."""
    found = []
    for folder in reversed(_kept()):
        with suppress(NoSuchRun):  # removed meanwhile
            found.append(Run(folder))
    return found


def _kept() -> list[Path]:
    """Return the folders of all runs kept on this machine, oldest first."""
    return sorted(file.parent for file in runs_folder().glob("*/experiment.json"))


def _find(which: str | os.PathLike) -> Path:
    path, name = Path(which), os.fspath(which)
    if (path / "experiment.json").exists():
        return path.resolve()
    kept = _kept()
    found = [p for p in kept if p.name == name] or [p for p in kept if name and p.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    how_many = f"{len(found)} runs" if found else "no run"
    allowed = f"allowed is a run folder or one of the ids `dlpar runs` lists ({how_many} match)"
    raise NoSuchRun(f"run: got {name!r}, {allowed}")


def _trace(source: str, record: Record) -> Iterator[dict[str, Any]]:
    """Yield a record's events in the Trace Event Format. Times are in microseconds."""
    of_rank = {"pid": rank_of(source), "tid": 0}
    kind, at = record["k"], record.get("t", 0.0) * 1e6
    if kind == "rank":
        name = f"rank {record['rank']} ({record['role']})"
        yield {**of_rank, "ph": "M", "name": "process_name", "args": {"name": name}}
    for name, start, end, *of in record.get("spans", ()):
        args = {"step": record["step"], **dict(zip(("micro", "chunk"), of))}
        times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
        yield {**of_rank, "ph": "X", "name": name, "cat": kind, "args": args, **times}
    if kind == "step" and abs(record["loss"]) < float("inf"):  # JSON has no other numbers
        yield {**of_rank, "ph": "C", "name": "loss", "ts": at, "args": {"loss": record["loss"]}}
    elif kind in ("event", "error"):
        yield {**of_rank, "ph": "i", "s": "p", "ts": at, "name": record.get("name", kind)}
