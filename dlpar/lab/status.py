"""Texts about a run: its progress, its world and platform, and its log."""

from __future__ import annotations

import html
import platform
import time
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from dlpar.config.experiment import Experiment
from dlpar.jobs.control_groups import usable_cores
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.lab.captions import duration, quantity
from dlpar.lab.labels import place_in_queue, platform_in_words
from dlpar.lab.theme import CLOCKS

LOG_BYTES = 16_000
"""Bytes shown of the end of the log; all of it is in the run folder."""

MEANINGS = {
    "world": "real: ranks are processes and time is measured; paced: processes follow a platform's clock; "
    "simulated: ranks are tasks of one process",
    "platform": "machine or platform whose times are shown; for real ranks also device and carrier of messages",
    "clock": "clock of the seconds in the figures: wall, or the platform's (logical: per process; virtual: simulated)",
    "slip": "largest lag of the wall clock behind the clock of the figures; none if they are the same",
    "compared": "why the runs in the figure are comparable",
}

STYLES = {"done": "success", "stopped": "warning", **dict.fromkeys(("failed", "lost", "unwatched"), "danger")}


class Status:
    """Progress bar, the text beside it, the line of facts, and the log."""

    def __init__(self, experiment: Experiment) -> None:
        self.prefix, self.experiment = "", experiment
        self.bar = widgets.IntProgress(min=0, max=experiment.steps, layout={"width": "16em"})
        self.bar.tooltip = "Global steps done"
        self.words = widgets.HTML().add_class("dlpar-words")
        self.facts = widgets.HTML().add_class("dlpar-facts")
        self.log = widgets.HTML()
        self.show("Not started. Press Run.")
        self.show_facts(experiment, {}, None, "")
        self.show_log(None, {})

    def progress_line(self, alert: widgets.Widget) -> widgets.Box:
        """Progress bar and text, with `alert` beside them."""
        return widgets.Box([self.bar, self.words, alert]).add_class("dlpar-progress")

    def show(self, words: str) -> None:
        """Show `words` beside the bar."""
        self.words.value = html.escape(self.prefix + words)

    def begin(self, experiment: Experiment, path: Path) -> None:
        """Start a run."""
        self.experiment, self._seen = experiment, None
        self.path, self.errors, self._log_size, self._shown = path, {}, -1, 0.0
        self.bar.value, self.bar.max, self.bar.bar_style = 0, experiment.steps, ""
        self.launch_s: float | None = None
        self.show(f"Starting {experiment.ranks} rank{'s' * (experiment.ranks != 1)} …")

    def queued(self, ahead: int, paused: bool) -> None:
        """Show how many jobs are ahead of this one."""
        self.show(f"{place_in_queue(ahead, paused)}; it starts by itself; Stop leaves the queue")

    def progress(self, so_far: GlobalSteps) -> None:
        """Show the progress of the run, at most four times a second."""
        now = time.monotonic()
        if now - self._shown < 0.25:
            return
        self._shown = now
        done, steps = so_far.done, self.bar.max
        if done:
            spent, world = so_far.last.seconds, self.experiment.cluster.world
            self.bar.value = done
            each = self._seconds_a_step(now, done) if world == "simulated" else spent / done
            rest = f"about {duration(each * (steps - done))} left" if each is not None else "working …"
            self.show(
                f"step {done:,} of {steps:,} · {duration(spent)}{_on_clock(world)} so far · "
                f"{rest if done < steps else 'finishing …'}"
            )
        self.show_log(self.path, self.errors)

    def _seconds_a_step(self, now: float, done: int) -> float | None:
        """Seconds of the reader's clock per step, since the first call with finished steps; None in that call."""
        self._seen = self._seen or (now, done)
        return (now - self._seen[0]) / (done - self._seen[1]) if done > self._seen[1] else None

    def ended(self, steps: GlobalSteps, accuracy: float | None, status: str, reason: str) -> None:
        """Show the result of the run."""
        done, cluster = steps.done, self.experiment.cluster
        self.bar.value, self.bar.bar_style = done, STYLES.get(status, "")
        whole = status == "done" and done == self.bar.max
        parts = [f"done: {done:,} steps" if whole else f"{status} after {done:,} of {self.bar.max:,} steps"]
        if status not in ("done", "stopped"):
            self.show(f"{parts[0]} — {reason}")
        else:
            if steps.last:
                trained = cluster.messages == "values"
                loss = f"loss {quantity(steps.last.loss)}" if trained else "nothing was trained"
                parts.append(f"{duration(steps.last.seconds)}{_on_clock(cluster.world)}, {loss}")
            if accuracy is not None:
                parts.append(f"held-out accuracy {accuracy:.1%}")
            if self.launch_s is not None:
                parts.append(f"launched in {duration(self.launch_s)}")
            self.show(" · ".join(parts))
        self._log_size = -1
        self.show_log(self.path, self.errors)

    def show_facts(
        self, experiment: Experiment, ranks: dict[int, dict], slip: float | None, compared: str
    ) -> None:
        """Show the facts that a reader must know to trust the figures: world, platform, clock, slip."""
        cluster = experiment.cluster
        platform = _platform(ranks) if cluster.world == "real" else platform_in_words(experiment)
        facts = {"world": cluster.world, "platform": platform, "clock": CLOCKS[cluster.world]}
        facts["slip"] = "none" if slip is None else f"{slip * 1e3:.0f} ms"
        if compared:
            facts["compared"] = compared
        self.facts.value = " ".join(
            f'<span title="{MEANINGS[name]}"><b>{name}</b> {html.escape(fact)}</span>'
            for name, fact in facts.items()
        )

    def show_log(self, path: Path | None, errors: dict[int, dict[str, Any]]) -> None:
        """Show the end of the ranks' output, and every traceback with its rank."""
        log = path / "log.txt" if path else None
        size = log.stat().st_size if log and log.exists() else 0
        if path and size + len(errors) == self._log_size:
            return
        self._log_size = size + len(errors)
        text = ""
        if size:
            with open(log, "rb") as file:
                file.seek(max(0, size - LOG_BYTES))
                text = file.read().decode(errors="replace")
        for rank, error in sorted(errors.items()):
            lines = str(error.get("traceback") or error.get("message")).rstrip().splitlines()
            text += "\n" + "\n".join(f"[rank {rank}] {line}" for line in lines) + "\n"
        where = f"<p>Everything is kept in <code>{html.escape(str(path))}</code>.</p>" if path else ""
        body = html.escape(text.strip()) or "Nothing was printed."
        self.log.value = (
            f'<pre class="dlpar-log" tabindex="0" role="log" aria-label="Log of the run">{body}</pre>{where}'
        )


def _platform(ranks: dict[int, dict]) -> str:
    here = f"{platform.node()}, {usable_cores()} cores"
    if not ranks:
        return here
    hosts = sorted({r["host"] for r in ranks.values()})
    if hosts != [platform.node()]:
        here = f"{len(hosts)} hosts" if len(hosts) > 1 else hosts[0]
    kinds = {
        f"{r['device']}, {r['carrier']}, {r['threads']} thread{'s' * (r['threads'] != 1)} a rank"
        for r in ranks.values()
    }
    return f"{here} ({'; '.join(sorted(kinds))})"


def _on_clock(world: str) -> str:
    return "" if world == "real" else f" on the {CLOCKS[world]} clock"
