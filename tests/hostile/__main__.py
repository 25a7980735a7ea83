"""``make hostile``: hostile input and a hostile account, in bounded numbers; prints what was wrong, and a table.

``python tests/hostile [input] [accounts] [--seed=0]``; ``accounts`` makes two Unix accounts and needs root.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from hostile import accounts, command_lines, experiments, folders, processes  # noqa: E402


def hostile_input(seed: int) -> dict[str, Iterator[tuple[object, str]]]:
    """Give 10,000 experiments, 200 command lines, 100 run folders and one huge run."""
    import pandas  # noqa: F401 (loaded once, for all copies of this process)

    import dlpar
    from dlpar.cli import runs  # noqa: F401

    folder = Path(tempfile.mkdtemp(prefix="dlh-"))
    processes.home(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run = dlpar.launch(dlpar.Experiment(workers=2, steps=40)).wait(60)
    finished, places = folder / "finished", folder / "places"
    shutil.move(run.path, finished)
    places.mkdir()
    return {
        "experiments": experiments.cases(10_000, seed),
        "command lines": command_lines.cases(200, seed, folder / "odd"),
        "run folders": folders.cases(100, seed, finished, places),
        "200 MB of records": (("a lost run", folders.huge(path)) for path in [finished]),
    }


SECTIONS = {"input": hostile_input, "accounts": accounts.sections}


def main(words: list[str]) -> int:
    """Run the sections named, or all; returns the exit status."""
    seed = next((int(word.partition("=")[2]) for word in words if word.startswith("--seed=")), 0)
    names = [word for word in words if not word.startswith("--")] or [*SECTIONS]
    if unknown := [name for name in names if name not in SECTIONS]:
        sys.exit(f"hostile: got {unknown[0]!r}, allowed is any of {', '.join(SECTIONS)}")
    table, wrong = [], 0
    for name in names:
        for what, cases in SECTIONS[name](seed).items():
            began, count, faults = time.monotonic(), 0, 0
            for case, fault in cases:
                count += 1
                if fault:
                    faults += 1
                    print(f"{what}: {case!s:.300}\n    {fault:.1000}", flush=True)
            wrong += faults
            table.append(f"{what:20} {count:6,} tried {faults:5} wrong {time.monotonic() - began:8.1f} s")
            print(table[-1], flush=True)
    print("\n" + "\n".join(table))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
