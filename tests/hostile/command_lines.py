"""Command lines of `dlpar` made at random: every option that names a file, with files that are none."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from dlpar.cli import COMMANDS
from dlpar.cli.flags import flags
from hostile.experiments import NUMBERS, TEXTS
from hostile.processes import CPU, dlpar, real

RUNS = ("--workers=1", "--steps=2", "--world=simulated")
"""Options of a run that ends in a moment."""

SYSTEM = ("/dev/zero", "/dev/null", "/dev/random", "/dev/tty", "/dev", "/", "/proc", "/proc/self/mem", "-")
"""Paths of the system's own, for options that only read."""

WRITES = {"--csv", "--perfetto", "--figure", "--course", "--socket"}

PATHS = {
    "run": ("--experiment", "--edges", "--hostfile", "--platform", "--folder", "--stand-in-for"),
    "sweep": ("--experiment", "--edges", "--hostfile", "--platform", "--csv", "--figure"),
    "show": ("", "--csv", "--perfetto"), "platforms": ("",), "runs": ("",),
    "slots": ("--socket", "--teachers"), "release": ("--labs",), "grade": ("", "--course", "--labs", "--lab"),
    "hub": ("--labs", "--folder", "--certificate", "--config", "--users"),
}  # fmt: skip
"""Options that name something, by command; empty: the argument."""


def odd_paths(folder: Path) -> list[str]:
    """Make files that are no plain files, too large, or not what they should be; returns their paths."""
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "empty").touch()
    (folder / "deep.json").write_bytes(b"[" * 1_000_000)
    (folder / "list.json").write_text("[1, 2]")
    (folder / "fields.json").write_text('{"workers": 1e999, "sync": {"scheme": ["ring"]}}')
    (folder / "latin").write_bytes(b"h\xf6st slots=2\n\xff\xfe\n" * 10)
    (folder / "edges").write_text("0 1\n" * 2_000_000)
    (folder / "words").write_text("nobody here\n\x1b[2J slots=x\n-1 -1\n1e9 2\n")
    os.truncate(os.open(folder / "sparse.json", os.O_CREAT | os.O_WRONLY), 8 << 30)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    own = [str(path) for path in sorted(folder.iterdir())]
    return [*own, str(folder), f"{folder}/not/at/all", f"{folder}/empty/below", "~nobody-here/x", "/dev/full"]


def lines(number: int, seed: int, folder: Path) -> Iterator[list[str]]:
    """Yield the words after `dlpar`; the paths come first, in turn."""
    chance = random.Random(seed)
    paths = odd_paths(folder)
    texts = [text for text in TEXTS if "\0" not in text and text != "\ud800"]  # the kernel passes no others
    pairs = [(command, option) for command, options in PATHS.items() for option in options]
    for at in range(number):
        kind = chance.random()
        if at < len(pairs) or kind < 0.5:
            command, option = pairs[at] if at < len(pairs) else chance.choice(pairs)
            able = paths if option in WRITES else [*paths, *SYSTEM]
            value = chance.choice(able if chance.random() < 0.8 else texts)
            more = {
                "run": RUNS,
                "sweep": ("--steps=2",),
                "slots": ("--look",),
                "hub": ("--port=1", "--address=192.0.2.1"),
            }
            first = ["20"] if command == "show" and option else ["-"] if command == "grade" and option else []
            yield [command, *first, *more.get(command, ()), *([f"{option}={value}"] if option else [value])]
        elif kind < 0.9:
            flag = chance.choice(flags())
            value = str(chance.choice((*NUMBERS[:11], *NUMBERS[16:], *texts[:40])))[:1000]
            yield ["run", "--steps=2", "--world=simulated", f"{flag.spelling}={value}"]
        else:
            harmless = [name for name in COMMANDS if name not in ("hub", "release", "slots")]
            yield [
                chance.choice([*harmless, "", "-", "--"]),
                *chance.choices([*texts, "--", "-x", "--json", "--workers"], k=2),
            ]


def cases(number: int, seed: int, folder: Path, share: int = 1) -> Iterator[tuple[str, str]]:
    """Yield each command line with what is wrong with its answer; one in `share` is a process of its own."""
    for at, words in enumerate(lines(number, seed, folder)):
        answer = real(words, stdin=-3, cwd=folder) if at % share == 0 else dlpar(*words)
        is_run = answer.status == 0 and words[0] in ("run", "sweep")
        most = 2 * CPU if words[0] == "sweep" else CPU  # its runs come before what it cannot write
        yield f"dlpar {' '.join(words)!r:.200}", answer.fault(is_run, most)
