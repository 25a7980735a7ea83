"""Exercises of the labs: the reference, cases and messages of each, for :mod:`dlpar.course.judge`."""
