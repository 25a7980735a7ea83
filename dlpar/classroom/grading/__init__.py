"""Exercises: the students' version of the labs, and grading what they hand in; see README.md.

labs (masters) ──► release ──► a student's own copy ──┐ her answers, nothing else of her notebook
              └── checks with hidden tests ───────────┴► grade ──► box: a judge isolated with one answer
                                                           └─► nbgrader: points and feedback
"""
