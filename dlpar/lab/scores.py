"""The table of a comparison: a row a run, taken from its summary."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from dlpar.experiment import Experiment
from dlpar.lab.labels import consistency, scheme
from dlpar.lab.says import quantity
from dlpar.run import Run

NONE = "–"

BOTH = "staleness"
"""Mean and maximum of it, as a page shows them."""

MEANINGS = {
    "run": "what is compared",
    "scheme": "how replicas agree",
    "consistency": "how stale a worker may be: bsp not at all, ssp(s) bounded, asp unbounded",
    "steps": "global steps done: N worker-steps each",
    "samples/s": "of all workers together",
    "final loss": "training loss of the last global step",
    "accuracy": "on held-out samples, at the end",
    "staleness mean": "updates between a worker's read and its push, on average",
    "staleness max": "the most updates between a worker's read and its push",
    "lead max": "the most clocks a worker was ahead of the slowest",
    "MB sent": "by all ranks together",
    "waiting (s)": "of a worker, on average",
}
"""Columns, and what each means; one more says when the goal was reached."""


class Scores:
    """Rows of figures by run.

    Parameters
    ----------
    experiments : sequence of Experiment
        What is compared.
    titles : sequence of str
        What each is called.
    goal : float
        Held-out accuracy whose first crossing is timed.
    """

    def __init__(self, experiments: Sequence[Experiment], titles: Sequence[str], goal: float) -> None:
        self.goal, self.timed = goal, f"to {goal:.0%} (s)"
        self.experiments = experiments
        self.rows = [
            {
                "run": title,
                "scheme": scheme(e).split()[0] if e.averaging.method == "none" else scheme(e),
                "consistency": consistency(e),
            }
            for title, e in zip(titles, experiments)
        ]
        self.status = ["not yet run"] * len(self.rows)

    @property
    def columns(self) -> list[str]:
        """Heads of the columns."""
        timed = [] if self.experiments[0].data.name == "diabetes" else [self.timed]
        return [*MEANINGS, *timed]

    def fill(self, number: int, run: Run) -> None:
        """Put the figures of a finished run into row `number`."""
        summary, evals = run.summary, run.evals
        good = evals[evals["accuracy"].astype(float) >= self.goal]
        sent = summary["bytes_sent"]
        self.rows[number] |= {
            "steps": summary["steps"],
            "samples/s": summary["samples_per_s"],
            "final loss": summary["final_loss"],
            "accuracy": summary["accuracy"],
            "staleness mean": summary["staleness"]["mean"],
            "staleness max": summary["staleness"]["max"],
            "lead max": summary["lead"]["max"],
            "MB sent": None if sent is None else sent / 1e6,
            "waiting (s)": summary["seconds"]["wait"],
            self.timed: float(good["t"].iloc[0]) if len(good) else None,
        }
        self.status[number] = run.status

    def html(self) -> str:
        """The table, as a page shows it: mean and maximum in one column, no scheme where the run's name says it."""
        timed = f"seconds until a test on held-out samples gave {self.goal:.0%}"
        said = {**MEANINGS, self.timed: timed, BOTH: MEANINGS["staleness mean"]}
        heads = [(html.escape(said[column]), html.escape(column)) for column in self._shown_columns()]
        head = "".join(f'<th scope="col" title="{means}">{column}</th>' for means, column in heads)
        body = "".join(f"<tr>{self._row(number)}</tr>" for number in range(len(self.rows)))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="dlpar-data dlpar-scores">{table}</div>'

    def _shown_columns(self) -> list[str]:
        named = all(row["run"].startswith(row["scheme"]) for row in self.rows)
        hidden = {"staleness max", *(["scheme"] if named else [])}
        return [BOTH if c == "staleness mean" else c for c in self.columns if c not in hidden]

    def _row(self, number: int) -> str:
        row, status = self.rows[number], self.status[number]
        first, *others = self._shown_columns()
        row = row | {BOTH: _both(row.get("staleness mean"), row.get("staleness max"))}
        cells = [f'<th scope="row">{html.escape(row[first])}</th>']
        if "steps" not in row:
            known = others[: others.index("steps")]
            cells += [f"<td>{html.escape(row[c])}</td>" for c in known]
            return "".join(cells) + f'<td colspan="{len(others) - len(known)}">{html.escape(status)}</td>'
        shown = [_shown(column, row.get(column)) for column in others]
        if status != "done":
            shown[others.index("steps")] += f" ({status})"
        return "".join(cells) + "".join(f"<td>{html.escape(text)}</td>" for text in shown)


def _both(mean: float | None, most: int | None) -> str:
    return NONE if mean is None else "0" if not most else f"{quantity(mean)}, at most {most:,}"


def _shown(column: str, value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    if column == "accuracy":
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else quantity(value)
