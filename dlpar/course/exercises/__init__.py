"""Exercises of the labs: each module checks one, typed in a cell."""
