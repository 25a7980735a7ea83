"""Exercises: the students' version of the labs, and grading what they hand in; see README.md.

labs (masters) ──► release ──► a student's own copy ──┐ her answers, nothing else of her notebook
              └── checks with hidden tests ───────────┴► grade ──► box: a judge isolated with one answer
                                                           └─► nbgrader: points and feedback
"""

from pathlib import Path

PACKAGE = str(Path(__file__).parents[2])
"""Folder of dlpar itself."""

OWN = "/judge"
"""The only folder of a box in which a judge can write; answers do not see it."""

LENT = "BOX_LENT"
"""Environment variable of a judge: the source that runs before an answer."""

USER, GROUP = "BOX_USER", "BOX_GROUP"
"""Environment variables of a judge in a box: the account it and the answer run in."""
