"""``make bench``: dlpar beside its peers, in one run, as ratios.

Machines differ and are shared; an absolute figure means little.  Both sides of
a ratio are therefore measured in turns, and n, median and spread are printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import gpu
import hogwild
import launching
import mapreduce
import pipeline
import recording
import reducing
import serving
import simulating
import splitting
import stepping
import surviving
import thirty_students
import training

SECTIONS = {
    "launch": launching.report, "throughput": training.report, "ring": reducing.report,
    "mapreduce": mapreduce.report, "ps": serving.report, "recording": recording.report, "hogwild": hogwild.report,
    "simulation": simulating.report, "tensor": splitting.tensor, "zero": splitting.zero, "pipeline": pipeline.report,
    "surviving": surviving.report, "hub": thirty_students.report, "step": stepping.report, "gpu": gpu.report,
}  # fmt: skip


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        sys.exit(f"bench: got {unknown[0]!r}, allowed is any of {', '.join(SECTIONS)}")
    for name in names or SECTIONS:
        SECTIONS[name]()


main(sys.argv[1:])
