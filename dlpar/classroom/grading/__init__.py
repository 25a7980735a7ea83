"""Exercises: the students' version of the labs, and grading what they hand in; see README.md.

labs (masters) ──► release ──► a student's own copy ──► exercise: her answers, nothing else of her notebook
              └──► exercise: checks with hidden tests ──► box: a judge isolated with one answer ──► grade: nbgrader
"""
