"""Words about a run: how far it is, where it runs, what it printed."""

from __future__ import annotations

import html
import os
import platform
import time
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.slots import in_words
from dlpar.lab.captions import duration, quantity
from dlpar.lab.labels import platform_in_words
from dlpar.lab.theme import CLOCKS

LOG_BYTES = 16_000
"""End of the log that is shown; all of it is in the run folder."""

MEANS = {
    "world": "real: ranks are processes and time is measured; paced: processes that keep a platform's time; "
    "simulated: ranks are tasks of one process",
    "platform": "whose times are told: of real ranks where they ran, on which device, what carried their messages",
    "clock": "what seconds in the figures are: wall, or the platform's (logical: of each process; virtual: simulated)",
    "slip": "how far the wall clock lagged behind the clock of the figures; none where they are the same",
    "compared": "what makes the runs in the figure comparable",
}

STYLES = {
    "done": "success",
    "failed": "danger",
    "lost": "danger",
    "unwatched": "danger",
    "stopped": "warning",
}


class Status:
    """Progress bar, the line beside it, the line of facts, and the log."""

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

    def show(self, words: str) -> None:
        """Put `words` beside the bar."""
        self.words.value = html.escape(self.prefix + words)

    def begin(self, experiment: Experiment, path: Path) -> None:
        """Forget the last run."""
        self.experiment, self._seen = experiment, None
        self.path, self.errors, self._log_size, self._shown = path, {}, -1, 0.0
        self.bar.value, self.bar.max, self.bar.bar_style = 0, experiment.steps, ""
        self.launch_s: float | None = None
        several = "" if experiment.ranks == 1 else "s"
        self.show(f"Starting {experiment.ranks} rank{several} …")

    def queued(self, ahead: int, paused: bool) -> None:
        """Say how many jobs are ahead of this one."""
        self.show(f"{in_words(ahead, paused)}; it starts by itself, Stop leaves the queue")

    def progress(self, so_far: GlobalSteps) -> None:
        """Say how far the run is; four times a second at most."""
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
                f"step {done:,} of {steps:,} · {duration(spent)}{_clocked(world)} so far · "
                f"{rest if done < steps else 'finishing …'}"
            )
        self.show_log(self.path, self.errors)

    def _seconds_a_step(self, now: float, done: int) -> float | None:
        """Of the reader's time, since the first look at which steps were done; None at that look."""
        self._seen = self._seen or (now, done)
        return (now - self._seen[0]) / (done - self._seen[1]) if done > self._seen[1] else None

    def ended(self, steps: GlobalSteps, accuracy: float | None, status: str, reason: str) -> None:
        """Say how the run went."""
        done = steps.done
        self.bar.value, self.bar.bar_style = done, STYLES.get(status, "")
        whole = status == "done" and done == self.bar.max
        parts = [f"done: {done:,} steps" if whole else f"{status} after {done:,} of {self.bar.max:,} steps"]
        if status not in ("done", "stopped"):
            self.show(f"{parts[0]} — {reason}")
        else:
            if steps.last:
                cluster = self.experiment.cluster
                loss = (
                    f"loss {quantity(steps.last.loss)}"
                    if cluster.messages == "values"
                    else "nothing was trained"
                )
                parts.append(f"{duration(steps.last.seconds)}{_clocked(cluster.world)}, {loss}")
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
        """What a reader must know to trust the figures: world, platform, clock, slip."""
        cluster = experiment.cluster
        platform = _platform(ranks) if cluster.world == "real" else platform_in_words(experiment)
        facts = {"world": cluster.world, "platform": platform, "clock": CLOCKS[cluster.world]}
        facts["slip"] = "none" if slip is None else f"{slip * 1e3:.0f} ms"
        if compared:
            facts["compared"] = compared
        said = (
            f'<span title="{MEANS[name]}"><b>{name}</b> {html.escape(fact)}</span>'
            for name, fact in facts.items()
        )
        self.facts.value = " ".join(said)

    def show_log(self, path: Path | None, errors: dict[int, dict[str, Any]]) -> None:
        """The end of what the ranks printed, and every traceback, prefixed by its rank."""
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not ranks:
        return f"{platform.node()}, {cores} cores"
    hosts = sorted({r["host"] for r in ranks.values()})
    kinds = sorted(
        {
            f"{r['device']}, {r['carrier']}, {r['threads']} thread{'s' * (r['threads'] != 1)} a rank"
            for r in ranks.values()
        }
    )
    here = (
        f"{hosts[0]}, {cores} cores"
        if hosts == [platform.node()]
        else f"{len(hosts)} hosts"
        if len(hosts) > 1
        else hosts[0]
    )
    return f"{here} ({'; '.join(kinds)})"


def _clocked(world: str) -> str:
    return "" if world == "real" else f" on the {CLOCKS[world]} clock"
