"""Running every preset of the labs before a class does, and saying whether it shows what the lab says.

    trials(labs) ─► rehearse ─► a Result for each preset ─► `dlpar rehearse` prints a line

Each lab's presets refute beliefs (:mod:`dlpar.course.presets`).  A trial runs one of them as the lab does, in the
world the lab runs it in, and looks whether the refutation holds on this machine, today.
"""

from __future__ import annotations

from dlpar.course.rehearsal.stage import Result, Stage, Trial, rehearse, trials

__all__ = ["Result", "Stage", "Trial", "rehearse", "trials"]
