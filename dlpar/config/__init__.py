"""Experiment to run, its parts, and the rules that they must satisfy.

    experiment.py ─► parts.py, sync.py, split.py (fields, capabilities, rules of each part)
         └─► rules.py (tables of allowed combinations) ─► schema.py (every message, flag and control)

This is the lowest layer: it imports no other package of dlpar.
"""
