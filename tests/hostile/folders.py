"""Run folders damaged at random: torn, foreign, huge, and files that are no files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from dlpar.config.paths import runs_folder
from hostile.experiments import NUMBERS, TEXTS
from hostile.processes import Answer, dlpar, real

HUGE = 200 << 20
"""Bytes of the records of the largest run."""

NAMES = ("experiment.json", "summary.json", "job.jsonl", "rank-0.jsonl", "rank-1.jsonl", "log.txt", "lock")
LINES = (
    b"[]", b"3", b"null", b'"k"', b"{}", b'{"k":"step"}', b'{"k":[1]}', b"[" * 100_000, b"\xff\xfe",
    b'{"k":"step","step":',
    b'{"k":"end","status":"done","reason":"\\u001b[2Jx"}', b'{"k":"end","status":{},"reason":[]}',
    b'{"k":"error","type":1,"message":2,"traceback":3,"t":"x"}', b'{"k":"queued","ahead":"x","paused":1}',
    b'{"k":"rank","rank":1e999}', b'{"k":"launch","pid":-1}', b'{"k":"step","step":-1,"spans":[[1]]}',
)  # fmt: skip
"""Lines that no rank writes."""

Damage = Callable[[Path, random.Random], None]


def _cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes() or b" ")
    for _ in range(chance.choice((1, 5, 100))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def _line(path: Path, chance: random.Random) -> None:
    lines = path.read_bytes().splitlines()
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(LINES))
    path.write_bytes(b"\n".join(lines) + b"\n")


def _value(path: Path, chance: random.Random) -> None:
    """Another value of a random field, in JSON."""
    lines = path.read_bytes().splitlines() or [b"{}"]
    number = chance.randrange(len(lines))
    try:
        fields = json.loads(lines[number])
    except ValueError:
        return
    if isinstance(fields, dict) and fields:
        value = chance.choice((*NUMBERS, *TEXTS, None, [], {}, [[]], {"a": {}}))
        fields[chance.choice(sorted(fields))] = value
        lines[number] = json.dumps(fields).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


def _pipe(path: Path, chance: random.Random) -> None:
    os.mkfifo(path)


def _link(path: Path, chance: random.Random) -> None:
    path.symlink_to(
        chance.choice(("/dev/zero", "/dev/random", "/etc/passwd", str(path), "/nowhere", "/proc/self/mem"))
    )


def _folder(path: Path, chance: random.Random) -> None:
    path.mkdir()


def _other(path: Path, chance: random.Random) -> None:
    names = (
        "rank-x.jsonl",
        "rank-.jsonl",
        "rank-99999.jsonl",
        "rank-007.jsonl",
        "rank-all.jsonl",
        "\x1b[31m.jsonl",
        "x" * 200,
    )
    (path.parent / chance.choice(names)).write_bytes(chance.choice(LINES) * 100)


def _deep(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.choice((b"[", b'{"a":', b'[{"k":')) * 200_000)


def _binary(path: Path, chance: random.Random) -> None:
    path.write_bytes(
        chance.choice((b"", b"\0" * 1000, chance.randbytes(5000), b"\x1b]0;t\x07\x1b[2J\r" * 50))
    )


CHANGES: tuple[Damage, ...] = (_cut, _flip, _line, _value, _value)
PUT_INSTEAD: tuple[Damage, ...] = (_pipe, _link, _folder, _other, _deep, _binary)
COMMANDS = (["show"], ["show", "--json"], ["show", "--csv"], ["show", "--perfetto"])


def cases(number: int, seed: int, finished: Path, places: Path) -> Iterator[tuple[str, str]]:
    """Yield what was done to each copy of a finished run, and the fault of the first wrong answer about it."""
    chance = random.Random(seed)
    for at in range(number):
        folder = runs_folder() / f"20990101-{at:06d}"
        shutil.copytree(finished, folder)
        done = []
        for name in chance.sample(NAMES, chance.choice((1, 1, 2))):
            damage = chance.choice(CHANGES + PUT_INSTEAD)
            if damage in PUT_INSTEAD:
                (folder / name).unlink()
            damage(folder / name, chance)
            done.append(f"{damage.__name__[1:]} {name}")
        yield (
            ", ".join(done),
            fault(folder, places / str(at), real if at % 10 == 0 else lambda words: dlpar(*words)),
        )
        shutil.rmtree(folder)


def fault(folder: Path, places: Path, answer_to: Callable[[list[str]], Answer]) -> str:
    """The first wrong answer about a run; empty if all are right."""
    for words in (["runs"], *COMMANDS):
        where = {"--csv": str(places), "--perfetto": f"{places}.json"}.get(words[-1])
        words = [
            words[0],
            *([folder.name] if words[0] == "show" else []),
            *words[1:],
            *([where] if where else []),
        ]
        if wrong := answer_to(words).fault():
            return f"dlpar {' '.join(words)}: {wrong}"
    return ""


def huge(finished: Path, size: int = HUGE) -> str:
    """The fault of the answers about a lost run with so many bytes of records."""
    folder = runs_folder() / "20990202-huge"
    shutil.copytree(finished, folder)
    try:
        (folder / "summary.json").unlink()
        records = (folder / "rank-0.jsonl").read_bytes()
        with open(folder / "rank-0.jsonl", "ab") as file:
            for _ in range(size // len(records)):
                file.write(records)
        return real(["runs"]).fault() or real(["show", folder.name]).fault()
    finally:
        shutil.rmtree(folder)
