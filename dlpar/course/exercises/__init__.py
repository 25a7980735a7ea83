"""Exercises of the labs: each one's reference, cases and messages for :mod:`dlpar.course.judge`."""
