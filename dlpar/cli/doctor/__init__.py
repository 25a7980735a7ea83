"""Looking at a machine before work goes wrong on it.

    look() ─► Machine (facts) ─► diagnose() ─► Report (findings, recommendation)
      │ system.py: what the system says      checks.py: what is broken, and how to mend it
      └ trials.py: what really works         advice.py: how many ranks, threads, which carrier

Only ``look`` touches the machine; the rest are pure functions of its facts.
"""

from __future__ import annotations

from dlpar.cli.doctor.facts import Machine
from dlpar.cli.doctor.report import Report, diagnose

__all__ = ["Machine", "Report", "diagnose", "look"]


def look() -> Machine:
    """Collect the facts about this machine; takes a few seconds, most of them for starting two ranks."""
    from dlpar.cli.doctor.look import look as at_this_machine

    return at_this_machine()
