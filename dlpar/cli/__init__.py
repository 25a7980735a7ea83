"""The command line: ``dlpar run``, ``dlpar sweep`` and the other `COMMANDS`.

Every module a command needs is imported when the command runs, so that help
and a refusal come at once.  Exit status: 0 done, 1 failed, 2 a bad request,
128 + the signal's number when stopped.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dlpar
from dlpar.cli.grade import grade, release
from dlpar.cli.hub import hub
from dlpar.cli.rehearse import rehearse
from dlpar.cli.slots import slots

if TYPE_CHECKING:
    from dlpar.jobs.run import Run

BAD_REQUEST, FAILED = 2, 1


def _version(asked: bool) -> None:
    if asked:
        print(f"dlpar {dlpar.__version__}")
        raise typer.Exit()


Version = Annotated[
    bool, typer.Option("--version", help="Print the version.", metavar="", is_eager=True, callback=_version)
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", metavar="")]
RunId = Annotated[
    str | None, typer.Argument(metavar="RUN", help="A run's id, its unique beginning, or its folder.")
]
FromFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Experiment in JSON, which flags change; - is standard input."),
]


class BadRequest(ValueError):
    """Something typed that cannot be done; one sentence naming it and what is allowed."""


def run(as_json: AsJSON = False, experiment: FromFile = None, **given: Any) -> int:
    """Train, and watch it.

    Every flag sets one field of the experiment; without any, four workers learn handwritten digits.
    Ctrl-C stops the run and keeps what it recorded.
    """
    from dlpar.cli import flags
    from dlpar.config.schema import BadExperiment

    try:
        chosen = flags.read(given, _text(experiment) if experiment is not None else None)
    except BadExperiment as error:
        raise BadRequest(str(error)) from None
    from dlpar.cli import idle, running

    idle.tell("run", given, [chosen])
    try:
        return running.run(chosen, as_json)
    except BadExperiment as error:  # this machine cannot run it
        raise BadRequest(flags.as_flags(str(error))) from None


def sweep(
    as_json: AsJSON = False,
    experiment: FromFile = None,
    jobs: Annotated[str, typer.Option(metavar="N", help="Simulations at work at a time.")] = "2",
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write the table there, too.")] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write a figure there, a page.")
    ] = None,
    **given: Any,
) -> int:
    """Train with every combination of some settings, and compare.

    Every flag of `dlpar run` takes several values: --workers 2,4,8 --sync ring,ps.
    Values with commas of their own are separated by ; or the flag is repeated.
    A flag that only some of the schemes know is left out where the others run.
    Real and paced runs go one after the other, simulated ones side by side.
    """
    from dlpar.cli import grid
    from dlpar.cli.complaints import number
    from dlpar.config.schema import BadExperiment

    at_a_time = number("--jobs", jobs, 1, 256)
    try:
        asked = grid.read(given, _text(experiment) if experiment is not None else None)
    except BadExperiment as error:
        raise BadRequest(str(error).replace("\n", "\ndlpar sweep: ")) from None
    from dlpar.cli import idle, sweeping

    idle.tell("sweep", given, [one.experiment for one in asked])
    return sweeping.sweep(asked, at_a_time, as_json, csv, figure)


def runs(
    as_json: AsJSON = False,
    limit: Annotated[str, typer.Option(metavar="N", help="How many to list, the newest first.")] = "20",
) -> int:
    """List the runs kept on this machine."""
    if not limit.isdecimal() or int(limit) < 1:
        raise BadRequest(f"--limit: got {limit!r}, allowed is a whole number of at least 1")
    from dlpar.cli import listing

    rows, total = listing.rows(int(limit))
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        listing.print_runs(rows, total)
    return 0


def show(
    which: RunId = None,
    as_json: AsJSON = False,
    csv: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the run's tables there as CSV files.")
    ] = None,
    perfetto: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev there.")
    ] = None,
) -> int:
    """Show one run.

    Its figures, why it ended, the command that repeats it, its errors, and the end of its log.
    """
    found = _found(which)
    from dlpar.cli import listing

    written = [str(path) for path in found.to_csv(csv)] if csv is not None else []
    written += [str(found.to_perfetto(perfetto))] if perfetto is not None else []
    if as_json:
        print(json.dumps(listing.whole(found), indent=1))
    elif written:
        print("\n".join(f"written: {path}" for path in written))
    else:
        listing.print_run(found)
    return 0


def platforms(
    which: Annotated[
        str | None, typer.Argument(metavar="PLATFORM", help="One of them, or a file that describes one.")
    ] = None,
    as_json: AsJSON = False,
) -> int:
    """List the clusters that ranks can be paced to, or simulated on; or say all about one."""
    from dlpar.cli import platform_listing
    from dlpar.config.schema import BadExperiment

    try:
        platform_listing.show(which, as_json)
    except BadExperiment as error:
        raise BadRequest(str(error).replace("cluster.platform:", "PLATFORM:", 1)) from None
    return 0


def doctor(
    as_json: AsJSON = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure it as the platform `here`, in half a minute.", metavar=""),
    ] = False,
) -> int:
    """Say what this machine can run.

    How many ranks and threads, which carrier, and why; what is broken, and how to mend it.
    Ends with status 1 if anything is.
    """
    from dlpar.cli import doctor

    if calibrate:
        from dlpar.cli import platform_listing

        return platform_listing.calibrate(as_json)
    report = doctor.diagnose(doctor.look())
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        report.print()
    return FAILED if report.broken else 0


def _found(which: str | None) -> Run:
    """The run that is meant, its experiment readable."""
    from dlpar.config.schema import BadExperiment
    from dlpar.jobs.run import NoSuchRun, Run

    if which is None:
        raise BadRequest("RUN: missing; allowed is a run folder or one of the ids `dlpar runs` lists")
    try:
        run = Run(which)
        run.experiment
        return run
    except NoSuchRun as error:
        raise BadRequest(str(error).replace("run:", "RUN:", 1)) from None
    except BadExperiment as error:
        raise BadRequest(f"RUN: got {which!r}, which this version cannot read ({error})") from None


COMMANDS: dict[str, Callable[..., int]] = {
    "run": run, "sweep": sweep, "runs": runs, "show": show, "platforms": platforms, "doctor": doctor,
    "rehearse": rehearse, "hub": hub, "slots": slots, "release": release, "grade": grade,
}  # fmt: skip


def _text(file: str) -> str:
    """The text of a file, or of standard input."""
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise BadRequest(
            f"--experiment: got {file!r}, allowed is a JSON file that can be read ({why})"
        ) from None


# ---- the program --------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``dlpar``; returns the exit status.

    Parameters
    ----------
    arguments : list of str, optional
        Without the program's name; by default those of this process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no × gets a ? instead
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = f"dlpar {words[0]}" if words[0] in COMMANDS else "dlpar"
    try:
        if name == "dlpar" and not words[0].startswith("-"):
            raise BadRequest(f"got {words[0]!r}, allowed is one of {', '.join(COMMANDS)}")
        return _program(words[0])(args=words, prog_name="dlpar", standalone_mode=False) or 0
    except BadRequest as error:
        return _refuse(f"{name}: {error}")
    except typer.TyperException as error:
        from dlpar.cli.complaints import complaint

        return _refuse(f"{name}: {complaint(error, name)}")
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # whoever read our output has left: `dlpar runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        about = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {about}{error.strerror or error}", file=sys.stderr)
        return FAILED


def _program(first: str) -> Any:
    """The commands; only one that has flags of the schema pays for making them."""
    panels = "rich" if first in COMMANDS else None  # loading them would double the time of `dlpar --help`
    app = typer.Typer(add_completion=False, rich_markup_mode=panels, pretty_exceptions_enable=False)

    @app.callback()
    def whole(version: Version = False) -> None:
        """See parallel deep learning happen: real processes train a real model on this machine."""

    for name, command in COMMANDS.items():
        app.command(name)(_with_flags(command, several=name == "sweep", made=name == first))
    return app


def _with_flags(command: Callable[..., int], several: bool, made: bool) -> Callable[..., int]:
    """A command with one parameter for each flag in place of ``**given``, if it has that; `made`: if it is run."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    own = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    if len(own) == len(parameters):
        return command
    from_schema = []
    if made:
        from dlpar.cli import flags

        from_schema = flags.parameters(several=several)

    @functools.wraps(command)
    def with_flags(**typed: Any) -> int:
        return command(**typed)

    with_flags.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in own] + from_schema)
    return with_flags


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return BAD_REQUEST
