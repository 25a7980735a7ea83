"""The experiment to run, its parts, and the rules they must satisfy.

    experiment.py ─► parts.py, sync.py, split.py (fields, capabilities, rules of each part)
         └─► rules.py (tables of what goes with what) ─► schema.py (every message, flag and control)

The lowest layer: it imports no other room.
"""
