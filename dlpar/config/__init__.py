"""The experiment to run, its parts, and the rules they must satisfy.

    experiment.py ─► parts.py, sync.py, split.py (fields, capabilities, rules of each part)
         └─► rules.py (rules between parts) ─► schema.py (every message, flag and control comes from the schema)

The lowest layer: it imports no other room.
"""
