"""Experiments made at random: fields that exist and that do not, with values of every kind."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from dlpar.cli.flags import flags
from dlpar.config.experiment import Experiment
from dlpar.config.schema import BadExperiment, choices

CPU = 1.5
"""Seconds of processor time that one case may take."""

LONGEST = 600
"""Characters about one field at most."""

NUMBERS = (
    -(10**9), -1, 0, 1, 2, 3, 4, 7, 8, 16, 1000, 4096, 10**6, 2**31, 2**63, 10**400, -0.0, 0.1, 0.5, 1.0, 1e-9, 5e-324,
    1e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
TEXTS = (
    "", " ", "ring", "auto", "none", "1", "0.1", "１２", "1=2", "0-1", "1=4.0,2=nan", "0-1,1-2",
    "../../etc/passwd", "/dev/zero", "a\0b", "\x1b[2J\x1b]0;t\x07", "two\nlines", "\u202ereversed",
    "\ud800", "🦆" * 50, "é" * 300, "x" * 100_000, "<img src=x onerror=alert(1)>", "{0.__class__}",
    "%s%n", "$(id)", "nan", "1e400", "-1", "True", "null", "__class__",
)  # fmt: skip


class Fuzz:
    """A source of random fields.

    Parameters
    ----------
    seed : int
        Equal seeds give equal cases.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.flags = flags()
        self.parts = sorted({flag.path[0] for flag in self.flags if len(flag.path) > 1})

    def value(self, depth: int = 3) -> Any:
        """A value of any kind; of those that hold others, at most `depth` in each other."""
        pick = self.chance.choice
        kind = self.chance.randrange(12 if depth else 8)
        if kind < 4:
            return pick(NUMBERS)
        if kind < 7:
            return pick(TEXTS)
        if kind == 7:
            return pick((None, True, False, b"bytes", object, {1, 2}, 1j))
        values = [self.value(depth - 1) for _ in range(pick((0, 1, 2, 3, 50)))]
        if kind < 10:
            return pick((list, tuple))(values)
        return {pick((*TEXTS, *NUMBERS, None)): value for value in values}

    def fields(self) -> dict[str, Any]:
        """Fields of an experiment, most of them real ones."""
        found: dict[str, Any] = {}
        for flag in self.chance.choices(self.flags, k=self.chance.choice((1, 1, 2, 2, 3, 5, 9))):
            named = choices(flag.field)
            value = self.chance.choice(named) if named and self.chance.random() < 0.7 else self.value()
            within = found if len(flag.path) == 1 else found.setdefault(flag.path[0], {})
            if isinstance(within, dict):
                if flag.kinds and not flag.is_head and self.chance.random() < 0.7:
                    within.setdefault(next(f.path[1] for f in self.flags if f.is_head and f.path[0] == flag.path[0]),
                                      self.chance.choice(flag.kinds))  # fmt: skip
                within[flag.path[-1]] = value
        if self.chance.random() < 0.1:
            found[self.chance.choice((*self.parts, "colour", "", "__init__", "model_config"))] = self.value()
        return found

    def text(self) -> bytes:
        """An experiment in JSON, damaged."""
        whole = bytearray(json.dumps(self.fields(), default=repr).encode("utf-8", "surrogatepass"))
        match self.chance.randrange(8):
            case 0:
                return bytes(whole[: self.chance.randrange(len(whole))])
            case 1:
                return self.chance.choice((b"[", b'{"sync":', b"-", b'"', b"\xff", b"\0", b"9")) * 50_000
            case 2:
                return self.chance.choice(
                    (b"", b"null", b"[]", b"7", b'"a"', b"NaN", b"{}{}", b"\xef\xbb\xbf{}")
                )
            case 3 | 4:
                for _ in range(self.chance.randrange(1, 9)):
                    whole[self.chance.randrange(len(whole))] = self.chance.randrange(256)
        return bytes(whole)


def cases(number: int, seed: int) -> Iterator[tuple[dict[str, Any] | bytes, str]]:
    """Yield each case with its fault; empty where it gave an experiment or one sentence a line."""
    fuzz = Fuzz(seed)
    for _ in range(number):
        given: dict[str, Any] | bytes = fuzz.fields() if fuzz.chance.random() < 0.6 else fuzz.text()
        yield given, fault(given)


def fault(given: dict[str, Any] | bytes) -> str:
    """What is wrong with the library's answer to these fields; empty if nothing is."""
    began = time.process_time()
    try:
        made = Experiment(**given) if isinstance(given, dict) else Experiment.from_json(given)
        if Experiment.from_json(made.to_json()) != made or not str(made).isprintable():
            return "it does not come back from JSON as it was, or cannot be printed"
    except BadExperiment as error:
        said = re.split("; |\n", str(error))
        if not all(part.isprintable() and 0 < len(part) <= LONGEST for part in said) or "pydantic" in str(
            error
        ):
            return f"no sentence: {said!r:.900}"
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.300}"
    took = time.process_time() - began
    return f"{took:.2f} s of processor time" if took > CPU else ""
