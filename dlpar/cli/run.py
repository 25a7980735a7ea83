"""``dlpar run`` and ``dlpar resume`` start a job, follow it, stop it on request, and report its end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlpar.cli import STOPS, AsJSON, Failed, Stops, flags

if TYPE_CHECKING:
    from dlpar.config.experiment import Experiment
    from dlpar.jobs.launch import Job


def run(as_json: AsJSON = False, experiment: str | None = None, **given: Any) -> int:
    """Train a model, and follow the run.

    Every flag sets one field of the experiment. Without flags, four workers learn handwritten digits. Ctrl-C
    stops the run and keeps its records.

    Parameters
    ----------
    experiment : FILE
        Experiment in JSON, whose fields the flags override; - is standard input.
    """
    chosen = flags.read(given, flags.fields_in(experiment))
    flags.tell_idle("run", given, [chosen])
    from dlpar.graphs import warning  # these imports load much more than help and a refusal need
    from dlpar.jobs.launch import launch

    if said := warning(chosen):
        print(f"dlpar run: {said}", file=sys.stderr)
    return _watched("run", lambda: launch(_from_anywhere(chosen)), as_json)


def _from_anywhere(experiment: Experiment) -> Experiment:
    """Return an experiment with absolute paths of its files, so that it can be resumed from any folder."""
    from dlpar.config.parts import FROM_FILES  # imported here, because it loads pydantic

    given = {n: getattr(experiment.cluster, n) or "" for n in ("platform", "stand_in_for", "hostfile")}
    # Names of platforms and of workloads have neither a slash nor a dot.
    paths = {n: p for n, p in given.items() if os.path.exists(p) and (n == "hostfile" or {*"/."} & {*p})}
    named = os.environ.get("DLPAR_DATA", "") if experiment.data.name in FROM_FILES else ""
    folder = {"folder": os.path.abspath(f)} if os.path.exists(f := experiment.data.folder or named) else {}
    return experiment.replace(cluster={n: os.path.abspath(p) for n, p in paths.items()}, data=folder)


def resume(
    which: Annotated[str | None, typer.Argument()] = None, workers: int | None = None, as_json: AsJSON = False
) -> int:
    """Resume a run from its newest snapshot.

    The run continues in its own folder, as another attempt. `dlpar run --snapshot-every` writes snapshots.

    Parameters
    ----------
    which : RUN
        A run's id, a unique prefix of it, or the run's folder; default: the newest run.
    workers : N
        Number of workers that continue, with the same global batches; default: the number of the run's first start.
    """
    from dlpar.cli.runs import found
    from dlpar.jobs.launch import resume
    from dlpar.jobs.run import runs

    run = found(next((run.id for run in runs()), None) if which is None else which)
    return _watched("resume", lambda: resume(run, workers), as_json)


def _watched(command: str, start: Callable[[], Job], as_json: bool) -> int:
    """Start a job, follow it, report its end, and return the exit status."""
    from dlpar.cli.runs import print_outcome
    from dlpar.cli.terminal import follow
    from dlpar.jobs.launch import JobFailed
    from dlpar.worlds.mpiexec import NoMPI

    with Stops() as stops:
        try:
            with flags.named_as_flags():
                job = start()
        except (NoMPI, JobFailed) as error:
            raise Failed(f"{error}; `dlpar doctor` says what this machine can run") from None
        follow(job, stops, silent=as_json)
    if stops.asked is not None and job.folder.exists() and job.run.status != "done":
        said = f"dlpar {command}: stopped by {STOPS[stops.asked]}; its records are in {job.folder}"
        print(said, file=sys.stderr)
        return 128 + stops.asked
    try:
        finished = job.wait()
    except JobFailed as error:
        newest = f"; `dlpar resume {job.run.id}` goes on" if job.folder.exists() and job.run.snapshots else ""
        kept = f"\n\nIts records are kept in {job.folder}{newest}" if job.folder.exists() else ""
        raise Failed(f"{error}{kept}") from None
    if as_json:
        print(json.dumps(finished.summary, indent=1))
    else:
        print_outcome(finished)
    return 0
