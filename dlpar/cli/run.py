"""``dlpar run``: start a job, follow it, stop it when asked to, and say how it ended."""

from __future__ import annotations

import json
import sys
from typing import Any

from dlpar.cli import STOPS, AsJSON, Failed, Stops, flags


def run(as_json: AsJSON = False, experiment: str | None = None, **given: Any) -> int:
    """Train, and watch it.

    Every flag sets one field of the experiment; without any, four workers learn handwritten digits.
    Ctrl-C stops the run and keeps its records.

    Parameters
    ----------
    experiment : FILE
        Experiment in JSON, which flags change; - is standard input.
    """
    chosen = flags.read(given, flags.fields_in(experiment))
    flags.tell_idle("run", given, [chosen])
    from dlpar.cli.runs import print_outcome  # these load much more than help and a refusal need
    from dlpar.cli.terminal import follow
    from dlpar.graphs import warning
    from dlpar.jobs.launch import JobFailed, launch
    from dlpar.jobs.mpiexec import NoMPI

    if said := warning(chosen):
        print(f"dlpar run: {said}", file=sys.stderr)
    with Stops() as stops:
        try:
            with flags.named_as_flags():
                job = launch(chosen)
        except (NoMPI, JobFailed) as error:
            raise Failed(f"{error}; `dlpar doctor` says what this machine can run") from None
        follow(job, stops, silent=as_json)
    if stops.asked is not None and job.run.status != "done":
        print(f"dlpar run: stopped by {STOPS[stops.asked]}; its records are in {job.folder}", file=sys.stderr)
        return 128 + stops.asked
    try:
        finished = job.wait()
    except JobFailed as error:
        raise Failed(f"{error}\n\nIts records are kept in {job.folder}") from None
    if as_json:
        print(json.dumps(finished.summary, indent=1))
    else:
        print_outcome(finished)
    return 0
