"""Command line: ``dlpar run``, ``dlpar sweep`` and the other `COMMANDS`.

Only the typed command's module is imported, so that help and error messages appear at once.  Exit status:
0 done, 1 failed, 2 a bad request, 128 + the signal's number when stopped.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, get_args

import typer

import dlpar

FAILED, BAD_REQUEST, LONGEST = 1, 2, 1000
"""Exit statuses, and maximum characters of a complaint's line, which may quote the user's words."""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Train a model, and follow the run."),
    "resume": ("run", "Resume a run from its newest snapshot."),
    "sweep": ("sweep", "Train with every combination of some settings, and compare."),
    "runs": ("runs", "List the runs kept on this machine."),
    "show": ("runs", "Show one run."),
    "platforms": ("platforms", "List the clusters for paced and simulated ranks, or describe one."),
    "systems": ("systems", "List published systems, or run one beside its published figures."),
    "doctor": ("doctor", "Report what this machine can run."),
    "rehearse": ("rehearse", "Run every preset of the labs before a class does."),
    "hub": ("classroom", "Start a JupyterHub for a class."),
    "slots": ("classroom", "Share this machine's job slots fairly."),
    "release": ("classroom", "Make the students' version of the labs."),
    "grade": ("classroom", "Grade the exercises that students handed in."),
}  # fmt: skip
"""Commands: the module with the function of each name, and the first sentence of its help."""

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", metavar="")]
"""Option that every command with figures has."""


class BadRequest(ValueError):
    """Error: a request is impossible. The message is one sentence with flag, value and allowed values."""


class Failed(RuntimeError):
    """Error: a command cannot do its work here. The message gives the reason."""


def main(arguments: list[str] | None = None) -> int:
    """Run ``dlpar`` and return the exit status.

    Parameters
    ----------
    arguments : list of str, optional
        Arguments without the program's name; default: this process's arguments.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # a closed standard stream: the next file would get its number, and child processes replace it
    os.close(number)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks × shows ? instead
    warnings.formatwarning = lambda said, *_, **__: f"dlpar: {printable(str(said))}\n"
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = f"dlpar {words[0]}" if words[0] in COMMANDS else "dlpar"
    try:
        if name == "dlpar" and (words[0] == "--" or not words[0].startswith("-")):
            raise BadRequest(f"got {words[0]!r}, allowed is one of {', '.join(COMMANDS)}")
        if "" in words and words[0] not in ("run", "sweep"):  # there it means no value of a field
            raise BadRequest(f"got '' after {words[words.index('') - 1]!r}, allowed is non-empty text")
        # If the command were called, typer would catch Ctrl-C and say nothing.
        command = typer.main.get_command(_program(words[0]))
        with command.make_context("dlpar", words) as context:
            return command.invoke(context) or 0
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        return _end(BAD_REQUEST, f"{name}: {_complaint(error, name)}")
    except (ValueError, RuntimeError) as error:
        if not type(error).__module__.startswith("dlpar."):  # our errors carry a message for the user
            raise
        if isinstance(error, RuntimeError):
            return _end(FAILED, f"{name}: {error}")
        return _end(BAD_REQUEST, "\n".join(f"{name}: {line}" for line in str(error).splitlines()))
    except KeyboardInterrupt as stop:
        asked = (*stop.args, signal.SIGINT)[0]
        return _end(128 + asked, f"{name}: stopped by {STOPS[asked]}")
    except BrokenPipeError:  # the reader of our output has closed: `dlpar runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ModuleNotFoundError as error:
        plugins = os.environ.get("DLPAR_PLUGINS", "")
        if not any(f"{plugin.strip()}.".startswith(f"{error.name}.") for plugin in plugins.split(",")):
            return _end(FAILED, f"{name}: {error}; `pip install 'dlpar[lab]'` installs what labs need")
        allowed = "modules that Python finds, with commas between them"
        return _end(BAD_REQUEST, f"{name}: DLPAR_PLUGINS: got {plugins!r}, allowed are {allowed}: {error}")
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        return _end(FAILED, f"{name}: {about}{error.strerror or error}")


def _end(status: int, said: str) -> int:
    print("\n".join(line[:LONGEST] for line in printable(said).split("\n")), file=sys.stderr)
    return status


def printable(text: str) -> str:
    """Escape the terminal control characters in a run's text."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _program(first: str) -> typer.Typer:
    """Build the program with only the typed command, or with the first sentence of every command."""
    panels = "rich" if first in COMMANDS else None  # loading rich would double the time of `dlpar --help`
    app = typer.Typer(add_completion=False, rich_markup_mode=panels, pretty_exceptions_enable=False)
    app.callback()(_whole)
    if first in COMMANDS:
        module, _ = COMMANDS[first]
        command = getattr(import_module(f"dlpar.cli.{module}"), first)
        app.command(first, help=_about(command)[0])(_with_options(command))
    else:
        for name, (_, sentence) in COMMANDS.items():
            app.command(name, short_help=sentence)(lambda: None)  # the help of other commands is cut
    return app


def _about(command: Callable[..., int]) -> tuple[str, dict[str, tuple[str, str]]]:
    """Parse a command's docstring: the text, and each parameter's placeholder and help."""
    text, _, section = inspect.getdoc(command).partition("\n\nParameters\n----------\n")
    found = re.findall(r"^(\w+) : (.+)\n((?: +.+\n?)+)", section, re.M)
    return text, {name: (word, " ".join(lines.split())) for name, word, lines in found}


def _with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Build a command for typer: each parameter with its help, and the schema's flags for ``**given``."""
    told, parameters = _about(command)[1], []
    for p in inspect.signature(command, eval_str=True).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            from dlpar.cli import flags  # loads the schema

            parameters += flags.parameters(several=command.__name__ == "sweep")
            continue
        if p.name in told:
            usual = typer.Option(f"--{p.name.replace('_', '-')}")
            kind, option, *_ = get_args(Annotated[p.annotation, usual])
            option.metavar, option.help = told[p.name] if kind is not bool else ("", told[p.name][1])
            p = p.replace(annotation=Annotated[kind, option])
        parameters.append(p.replace(kind=p.KEYWORD_ONLY))

    @functools.wraps(command)
    def with_options(**typed: Any) -> int:
        return command(**typed)

    with_options.__signature__ = inspect.Signature(parameters)
    return with_options


def _version(asked: bool) -> None:
    if asked:
        print(f"dlpar {dlpar.__version__}")
        raise typer.Exit()


VERSION = typer.Option("--version", help="Print the version.", metavar="", is_eager=True, callback=_version)


def _whole(version: Annotated[bool, VERSION] = False) -> None:
    """See parallel deep learning happen: real processes train a real model on this machine."""


def _complaint(error: Any, name: str) -> str:
    """Return an error message that names the invalid argument and the allowed values.

    `name` is the command: ``dlpar run``.
    """
    option = getattr(error, "option_name", None)
    if option is None and error.__cause__ is not None:  # pydantic expected a number
        low, high = error.param.min, error.param.max
        bounds = "" if low is None else f" of at least {low}" if high is None else f" from {low} to {high:,}"
        got = error.__cause__.errors()[0]["input"]
        shown = got if got.lstrip("-").isdecimal() else repr(got)
        kind = "number" if isinstance(low, float) else "whole number"
        return f"{error.param.opts[0]}: got {shown}, allowed is a {kind}{bounds}"
    if option is None:
        said = " ".join(error.format_message().split()).rstrip(".")
        return f"{said[0].lower()}{said[1:]}; `{name} --help` says what is allowed"
    if hasattr(error, "possibilities"):
        near = f"nearest are {', '.join(error.possibilities)}; " if error.possibilities else ""
        return f"{option}: there is no such option; {near}`{name} --help` lists all"
    if "not take" in error.message:
        return f"{option}: got a value, allowed is {option} alone"
    from dlpar.cli import flags  # loads the schema

    known = flags.flags() if name in ("dlpar run", "dlpar sweep") else ()
    wanted = next((flag.allowed for flag in known if flag.spelling == option), "a value after it")
    return f"{option}: got nothing, allowed is {wanted}"


# ---- stopping -------------------------------------------------------------------

STOPS = {number: number.name for number in (signal.SIGTERM, signal.SIGHUP)}
STOPS |= {signal.SIGINT: "Ctrl-C", signal.SIGUSR1: "time limit"}  # Slurm's --signal=B:USR1@60
"""Signals that stop a command, and their names in messages."""


class Stops:
    """Context that records the first stop signal. No job is left half started.

    A second signal interrupts. Once the context has ended after a signal, further signals are ignored.

    Signals that our parent process had ignored (``nohup``) stay ignored.

    Parameters
    ----------
    interrupting : bool
        Let the first signal interrupt instead, and ignore further signals, because ending jobs takes a
        second.

    Attributes
    ----------
    asked : signal.Signals or None
        The signal that arrived.
    """

    def __init__(self, interrupting: bool = False) -> None:
        self.interrupting = interrupting
        self.asked: signal.Signals | None = None

    def __enter__(self) -> Stops:
        heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():  # once asked to stop, nothing interrupts the last words
            signal.signal(number, handler if self.asked is None else signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first = self.asked is None
        if is_first:
            self.asked = signal.Signals(number)
        if is_first == self.interrupting:
            raise KeyboardInterrupt(self.asked)
