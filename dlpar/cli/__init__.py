"""The command line: ``dlpar run | runs | show | doctor``.

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
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Callable, Optional

import typer

import dlpar

if TYPE_CHECKING:
    from dlpar.run import Run

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
    Optional[str], typer.Argument(metavar="RUN", help="A run's id, its unique beginning, or its folder.")
]
FromFile = Annotated[
    Optional[str],
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
    from dlpar.schema import BadExperiment

    try:
        chosen = flags.read(given, _text(experiment) if experiment is not None else None)
    except BadExperiment as error:
        raise BadRequest(str(error)) from None
    from dlpar.cli import running

    try:
        return running.run(chosen, as_json)
    except BadExperiment as error:  # this machine cannot run it
        raise BadRequest(flags.as_flags(str(error))) from None


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
        Optional[str], typer.Option(metavar="FOLDER", help="Write the run's tables there as CSV files.")
    ] = None,
    perfetto: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev there.")
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


def doctor(as_json: AsJSON = False) -> int:
    """Say what this machine can run.

    How many ranks and threads, which carrier, and why; what is broken, and how to mend it.
    Ends with status 1 if anything is.
    """
    from dlpar import doctor

    report = doctor.diagnose(doctor.look())
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        report.print()
    return FAILED if report.broken else 0


def _found(which: str | None) -> Run:
    """The run that is meant, its experiment readable."""
    from dlpar.run import NoSuchRun, Run
    from dlpar.schema import BadExperiment

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


COMMANDS: dict[str, Callable[..., int]] = {"run": run, "runs": runs, "show": show, "doctor": doctor}


def _text(file: str) -> str:
    """The text of a file, or of standard input."""
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        sentence = f"--experiment: got {file!r}, allowed is a JSON file that can be read ({why})"
        raise BadRequest(sentence) from None


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
        return _refuse(f"{name}: {_complaint(error, name)}")
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # whoever read our output has left: `dlpar runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        about = f"{error.filename}: " if error.filename else ""
        print(f"{name}: {about}{error.strerror or error}", file=sys.stderr)
        return FAILED


def _program(first: str) -> Any:
    """The commands; only ``run`` pays for making its flags."""
    panels = "rich" if first in COMMANDS else None  # loading them would double the time of `dlpar --help`
    app = typer.Typer(add_completion=False, rich_markup_mode=panels, pretty_exceptions_enable=False)

    @app.callback()
    def whole(version: Version = False) -> None:
        """See parallel deep learning happen: real processes train a real model on this machine."""

    for name, command in COMMANDS.items():
        app.command(name)(_run_command(with_flags=first == "run") if name == "run" else command)
    return app


def _run_command(with_flags: bool) -> Callable[..., int]:
    """:func:`run` with one parameter for each flag in place of ``**given``."""
    from_schema = []
    if with_flags:
        from dlpar.cli import flags

        from_schema = flags.parameters()

    @functools.wraps(run)
    def command(**typed: Any) -> int:
        return run(**typed)

    parameters = inspect.signature(run, eval_str=True).parameters.values()
    own = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in own] + from_schema)
    return command


def _complaint(error: typer.TyperException, name: str) -> str:
    """What was wrong with the words typed, as one sentence with what is allowed."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None:
        said = " ".join(error.format_message().split()).rstrip(".")
        return f"{said[0].lower()}{said[1:]}; `{name} --help` says what is allowed"
    if not hasattr(error, "possibilities"):
        return f"{option}: {_expects(option, name, error.format_message())}"
    spelled = (word for p in context.command.params for word in (*p.opts, *p.secondary_opts))
    known = [word for word in spelled if word.startswith("-")]
    near = get_close_matches(option, known, n=3, cutoff=0.5)
    which = f"nearest are {', '.join(near)}" if near else f"allowed are {', '.join(known[:8])}"
    named = option if option.isprintable() else repr(option)
    return f"{named}: there is no such option; {which} (`{name} --help` lists all)"


def _expects(option: str, name: str, said: str) -> str:
    """What an option that exists lacks: its value, or to stand alone."""
    if "not take" in said:
        return f"got a value, allowed is {option} alone"
    if name == "dlpar run":
        from dlpar.cli import flags

        for flag in flags.flags():
            if flag.spelling == option:
                return f"got nothing, allowed is {flag.allowed}"
    return "got nothing, allowed is a value after it"


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return BAD_REQUEST
