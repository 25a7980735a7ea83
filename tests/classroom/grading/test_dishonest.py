"""A dozen dishonest answers, of each trick and each lab one, and two honest ones; ``dishonest.py`` has them all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from classroom.grading import dishonest
from dlpar.classroom.grading.box import Box

SAMPLE = {
    ("00", "shares by builtins"), ("00", "looks for tensors in memory"), ("01", "another's submission"),
    ("02", "the right server of its caller"), ("03", "the module that the lab has imported"),
    ("03", "from the inputs alone, with messages for show"), ("04", "shares by the given function"),
    ("05", "ignores what was seen"), ("06", "asks the check for the answers"), ("07", "the library's own"),
    ("07b", "the library's own"),
    ("08", "asks the check for the answer"), ("09", "right in the cases that a student is shown"),
    ("10", "the solution in labs/"), ("03", "honest"), ("05", "honest"),
    ("11", "the right server of its caller"), ("11", "honest"),
    ("12", "asks the check for its jobs"), ("12", "one interval for all"), ("12", "honest"),
    ("13", "asks the check for the answers"), ("13", "launches once a step"), ("13", "honest"),
}  # fmt: skip


def test_there_are_forty_dishonest_answers_and_every_lab_has_some(tmp_path: Path) -> None:
    tricks = [answer.lab for answer in dishonest.answers(tmp_path) if not answer.honest]
    assert len(tricks) >= 40 and min(map(tricks.count, dishonest.MASTERS)) >= 5
    guide = Path(dishonest.__file__).parents[3] / "dlpar/classroom/grading/README.md"
    assert f"We tried {len(tricks)} dishonest answers" in guide.read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="needs root on Linux")
def test_no_dishonest_answer_earns_points_and_honest_ones_do(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)  # pytest's folders are closed to others, which would hide a submission by itself
    wanted = [answer for answer in dishonest.answers(tmp_path) if answer[:2] in SAMPLE]
    assert len(wanted) == len(SAMPLE)
    judged = dishonest.judge(wanted, Box("nobody"))
    assert not [(answer.name, said) for answer, said, _ in judged if said["solved"] != answer.honest]
