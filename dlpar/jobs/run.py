"""A run folder as its reader sees it: live or finished, on this day or a year later."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.config.paths import runs_folder
from dlpar.jobs.global_steps import GlobalStep, GlobalSteps
from dlpar.jobs.summary import Summary, facts_of
from dlpar.jobs.tail import Record, Tail

if TYPE_CHECKING:
    import pandas as pd


STEP_COLUMNS = [
    "rank", "step", "t", "loss", "samples", "compute", "comm", "wait", "bytes", "messages", "staleness", "lead",
]  # fmt: skip


class NoSuchRun(LookupError):
    """No run of that name, or the folder holds none."""


class Run:
    """One run, read from its folder.

    Parameters
    ----------
    which : path or str
        A run folder, a run's id, or the unique beginning of one.

    Raises
    ------
    NoSuchRun
        Where there is no such run, or more than one.
    """

    def __init__(self, which: str | os.PathLike) -> None:
        self.path = _find(which)
        self.id = self.path.name

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.experiment}, {self.status}>"

    @cached_property
    def experiment(self) -> Experiment:
        """What ran."""
        return Experiment.from_json((self.path / "experiment.json").read_bytes())

    @property
    def status(self) -> str:
        """``queued``, ``starting``, ``running``, ``done``, ``failed``, ``stopped`` or ``lost`` (ended without a word)."""
        live = self.live  # before the end is looked for: it is written while the run is live
        end = self._end()
        if end:
            return end["status"]
        if live and any(self.path.glob("rank-*.jsonl")):
            return "running"
        if live:
            said = _job_records(self.path)
            return "queued" if said and said[-1]["k"] == "queued" else "starting"
        return "done" if self._finished_unguarded() else "lost"

    @property
    def reason(self) -> str:
        """Why the run ended as it did, in one sentence; empty while it lives."""
        end = self._end()
        return end["reason"] if end else ""

    @property
    def live(self) -> bool:
        """Whether a job still holds this folder's lock; the kernel frees it on any death."""
        try:
            with open(self.path / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def world(self) -> str:
        """``real``, ``paced`` or ``simulated``."""
        return self.experiment.cluster.world

    @property
    def clock(self) -> str:
        """What seconds mean: ``wall``, ``logical`` or ``virtual``."""
        return self.summary["clock"]

    @property
    def log(self) -> str:
        """Everything the ranks printed, each line prefixed by its rank."""
        path = self.path / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def errors(self) -> dict[int, Record]:
        """The exception of each rank that raised one: ``type``, ``message``, ``traceback``."""
        return {int(source[5:]): r for source, r in self.records() if r["k"] == "error"}

    @property
    def summary(self) -> dict[str, Any]:
        """How the run went, as ``dlpar run --json`` prints it; of a live run, how it goes so far."""
        path = self.path / "summary.json"
        if path.exists():
            return json.loads(path.read_text())
        summary = Summary(self.id, **facts_of(self.experiment))
        summary.add(self.records())
        return summary.result()

    def records(self) -> list[tuple[str, Record]]:
        """Every record written so far as ``(source, record)``."""
        return Tail(self.path).read_all()

    def global_steps(self) -> list[GlobalStep]:
        """Combine the steps of all workers into global steps."""
        steps = GlobalSteps(self.experiment.workers, self.experiment.sync.runs_free)
        for source, record in self.records():
            if record["k"] == "step":
                steps.add(int(source[5:]), record)
        return steps.ready(ended=True)

    @property
    def ranks(self) -> pd.DataFrame:
        """One row per rank: role (worker, server, leaf), host, pid, device, carrier, clock, threads."""
        return self._frame("rank", index="rank")

    @property
    def steps(self) -> pd.DataFrame:
        """One row per rank and step; seconds in ``t compute comm wait``, bytes sent in ``bytes``."""
        import pandas as pd

        rows = [{"rank": int(s[5:]), **r} for s, r in self.records() if r["k"] == "step"]
        return pd.DataFrame(rows, columns=STEP_COLUMNS).sort_values(["step", "rank"], ignore_index=True)

    @property
    def curve(self) -> pd.DataFrame:
        """One row per global step (:class:`~dlpar.jobs.global_steps.GlobalSteps`).

        Columns: ``step``; ``samples`` and ``bytes`` so far; ``seconds``, when its last worker ended it; ``loss``,
        the mean over its global batch; ``samples_per_s`` of that step.  Steps that some worker never finished
        are left out.
        """
        import pandas as pd

        curve = pd.DataFrame(self.global_steps(), columns=GlobalStep._fields)
        curve["samples_per_s"] = curve["batch"] / curve["seconds"].diff()
        return curve.drop(columns=["batch", "sketches"])

    @property
    def consensus(self) -> pd.DataFrame:
        """How far replicas are apart after each global step: ``step seconds distance``; empty if not recorded."""
        from dlpar.jobs.consensus import consensus

        return consensus(self)

    @property
    def evals(self) -> pd.DataFrame:
        """Tests on held-out samples: ``step t accuracy loss samples``."""
        import pandas as pd

        rows = [r for _, r in self.records() if r["k"] == "eval"]
        return pd.DataFrame(rows, columns=["step", "t", "accuracy", "loss", "samples"])

    @property
    def spans(self) -> pd.DataFrame:
        """Phases of every rank: ``rank step name start end`` (seconds), in a pipeline with ``micro`` and ``chunk``."""
        import pandas as pd

        rows = [
            (int(source[5:]), r["step"], *span, *[None] * (5 - len(span)))
            for source, r in self.records()
            for span in r.get("spans", ())
        ]
        return pd.DataFrame(rows, columns=["rank", "step", "name", "start", "end", "micro", "chunk"])

    @property
    def events(self) -> pd.DataFrame:
        """What happened once: ``source name t`` and whatever belongs to it."""
        import pandas as pd

        return pd.DataFrame([{"source": s, **r} for s, r in self.records() if r["k"] == "event"])

    def to_csv(self, folder: str | os.PathLike) -> list[Path]:
        """Write steps, curve, evals, spans and events as CSV files into `folder`; returns their paths."""
        # self import

        return to_csv(self, folder)

    def to_perfetto(self, path: str | os.PathLike) -> Path:
        """Write a trace that ui.perfetto.dev and chrome://tracing open: one track per rank."""
        # self import

        return to_perfetto(self, path)

    def delete(self) -> None:
        """Remove the folder; refused while the run lives."""
        if self.live:
            raise RuntimeError(f"run {self.id} is still going on: stop it first")
        shutil.rmtree(self.path)

    def _end(self) -> Record | None:
        for record in reversed(_job_records(self.path)):
            if record["k"] == "end":
                return record
        return None

    def _finished_unguarded(self) -> bool:
        """Whether ranks that were started by hand, without a launcher's record, all came to their end."""
        if (self.path / "job.jsonl").exists():
            return False
        ended = sum(record["k"] == "end" for _, record in self.records())
        return ended == self.experiment.ranks

    def _frame(self, kind: str, index: str) -> pd.DataFrame:
        import pandas as pd

        rows = [r for _, r in self.records() if r["k"] == kind]
        return pd.DataFrame(rows).drop(columns="k").set_index(index).sort_index() if rows else pd.DataFrame()


def runs() -> list[Run]:
    """All runs kept on this machine, newest first; reopen one by its id with ``Run(id)``."""
    folder = runs_folder()
    if not folder.is_dir():
        return []
    named = (p for p in folder.iterdir() if (p / "experiment.json").exists())
    return [Run(path) for path in sorted(named, key=lambda p: p.name, reverse=True)]


def _find(which: str | os.PathLike) -> Path:
    path = Path(which)
    if any((path / name).exists() for name in ("experiment.json", "call.pkl")):
        return path.resolve()
    name = os.fspath(which)
    kept = [p for p in runs_folder().glob("*") if (p / "experiment.json").exists()]
    found = [p for p in kept if p.name == name] or [p for p in kept if name and p.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    how_many = "no run" if not found else f"{len(found)} runs"
    raise NoSuchRun(
        f"run: got {name!r}, allowed is a run folder or one of the ids `dlpar runs` lists ({how_many} match)"
    )


def _job_records(path: Path) -> list[Record]:
    try:
        lines = (path / "job.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


TABLES = ("steps", "curve", "evals", "spans", "events", "ranks", "consensus")


def to_csv(run: Run, folder: str | os.PathLike) -> list[Path]:
    """Write each table of `run` as ``<table>.csv`` into `folder` (made if missing); empty tables are left out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in TABLES:
        table = getattr(run, name)
        if len(table):
            path = folder / f"{name}.csv"
            table.to_csv(path, index=name == "ranks")
            written.append(path)
    return written


def to_perfetto(run: Run, path: str | os.PathLike) -> Path:
    """Write the run's spans, losses and events in the Trace Event format (times in microseconds).

    Every rank is a process of the trace with one thread for its spans; the loss
    of its samples is a counter.  Source: "Trace Event Format", Google, 2016.
    """
    events: list[dict] = []
    for source, r in run.records():
        if source == "job":
            continue
        pid = int(source[5:])
        if r["k"] == "rank":
            events.append(
                {
                    "ph": "M",
                    "pid": pid,
                    "tid": 0,
                    "name": "process_name",
                    "args": {"name": f"rank {pid} ({r['role']})"},
                }
            )
        for name, start, end, *of in r.get("spans", ()):
            args = {"step": r["step"], **dict(zip(("micro", "chunk"), of))}
            events.append(
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": 0,
                    "name": name,
                    "cat": r["k"],
                    "args": args,
                    "ts": start * 1e6,
                    "dur": (end - start) * 1e6,
                }
            )
        if r["k"] == "step":
            events.append(
                {"ph": "C", "pid": pid, "name": "loss", "ts": r["t"] * 1e6, "args": {"loss": r["loss"]}}
            )
        elif r["k"] in ("event", "error"):
            events.append(
                {"ph": "i", "pid": pid, "tid": 0, "s": "p", "ts": r["t"] * 1e6, "name": r.get("name", r["k"])}
            )
    path = Path(path)
    path.write_text(json.dumps({"traceEvents": events, "otherData": {"run": run.id, "clock": run.clock}}))
    return path
