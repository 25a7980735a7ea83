"""What was wrong with the words typed, as one sentence with what is allowed."""

from __future__ import annotations

from difflib import get_close_matches

import typer


def complaint(error: typer.TyperException, name: str) -> str:
    """The sentence about an error of a command, such as ``dlpar run``."""
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


def number(flag: str, text: str, least: int, most: int) -> int:
    """The whole number that was typed for a flag.

    Raises
    ------
    BadRequest
        If it is none, or out of bounds.
    """
    from dlpar.cli import BadRequest

    if not text.isdecimal() or not least <= int(text) <= most:
        raise BadRequest(f"{flag}: got {text!r}, allowed is a whole number from {least} to {most}")
    return int(text)


def _expects(option: str, name: str, said: str) -> str:
    """What an option that exists lacks: its value, or to stand alone."""
    if "not take" in said:
        return f"got a value, allowed is {option} alone"
    if name in ("dlpar run", "dlpar sweep"):
        from dlpar.cli import flags

        for flag in flags.flags():
            if flag.spelling == option:
                return f"got nothing, allowed is {flag.allowed}"
    return "got nothing, allowed is a value after it"
