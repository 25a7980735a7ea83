"""Exercises: the students' version of the labs, and grading what they hand in; see README.md.

labs (masters) ──► release ──► a student's own copy ──► hand_in: her answers, and nothing else of her notebook
              └──► exercise: checks with hidden tests ──► box: a judge shut in with one answer ──► course: nbgrader
"""

from __future__ import annotations
