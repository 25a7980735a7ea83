"""Grading of exercises: the students' version of the labs, and the judge of their answers. See README.md.

labs (masters) ──► release ──► a student's own copy ──┐ only her answers
              └── checks with hidden tests ───────────┴► grade ──► box: a judge isolated with one answer
                                                           └─► nbgrader: points and feedback
"""

from pathlib import Path

PACKAGE = str(Path(__file__).parents[2])
"""Folder of dlpar itself."""

LENT = "BOX_LENT"
"""Environment variable of a judge, with the source that runs before an answer."""

ACCOUNT = "BOX_ACCOUNT"
"""Environment variable of a judge in a box, with user and group ids of the judge and the answer."""
