"""The diagnosis as a whole: what ``dlpar doctor`` prints."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from dlpar.cli.doctor.advice import Advice, advise
from dlpar.cli.doctor.checks import BROKEN, CHECKS, COSTS, Finding
from dlpar.cli.doctor.facts import Machine

WIDTH = 100


@dataclass(frozen=True)
class Report:
    """Facts, findings and advice; `broken` are the findings that keep runs from working."""

    machine: Machine
    findings: tuple[Finding, ...]
    advice: Advice

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.level == BROKEN)

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "broken": len(self.broken),
            "recommended": asdict(self.advice),
            "findings": [asdict(finding) for finding in self.findings],
            "machine": asdict(self.machine),
        }

    def __str__(self) -> str:
        m = self.machine
        named = ", ".join(f"{name} {version or 'missing'}" for name, version in m.versions.items())
        place = f" in {m.container}" if m.container else ""
        lines = [f"{m.system}{place}{', under Slurm' if m.slurm else ''}; {named}", ""]
        wide = max(len(f.subject) for f in self.findings)
        for finding in self.findings:
            lines += _wrapped(f"{finding.level:6}  {finding.subject:{wide}}  ", finding.said)
            if finding.mend:
                lines += _wrapped(" " * (wide + 10) + "→ ", finding.mend)
        a = self.advice
        ranks, threads = ("s" if number > 1 else "" for number in (a.ranks, a.threads))
        many = f"{a.ranks} rank{ranks}, {a.threads} thread{threads} each"
        lines += ["", f"Recommended: {many}, carried by {a.carrier}: {a.command}"]
        lines += [line for why in a.why for line in _wrapped("  - ", why)]
        return "\n".join([*lines, "", self.verdict()])

    def verdict(self) -> str:
        """The last line: whether anything is broken."""
        if self.broken:
            subjects = ", ".join(f.subject for f in self.broken)
            return f"Broken: {subjects}. Mend {'it' if len(self.broken) == 1 else 'them'} as said above."
        costs = [f.subject for f in self.findings if f.level == COSTS]
        return "Nothing is broken." + (f" Speed is lost by: {', '.join(costs)}." if costs else "")

    def print(self) -> None:
        """On standard output."""
        print(self)


def diagnose(machine: Machine) -> Report:
    """What follows from the facts."""
    return Report(machine, tuple(f for check in CHECKS for f in check(machine)), advise(machine))


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(start + text, WIDTH, subsequent_indent=" " * len(start), break_long_words=False)
