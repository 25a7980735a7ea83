"""A topology from outside: a ring whose opposite workers are neighbours too."""

from __future__ import annotations

from dlpar.graphs import register

register("chords", lambda n: [(i, (i + 1) % n) for i in range(n)] + [(i, (i + n // 2) % n) for i in range(n)])
