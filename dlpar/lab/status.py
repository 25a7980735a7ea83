"""What a panel says of a run: its progress, the facts to trust it by, its results beside others, and its log."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.control_groups import usable_cores
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.lab.captions import duration, quantity
from dlpar.lab.labels import platform_in_words
from dlpar.lab.page import Page
from dlpar.lab.theme import CLOCKS

LOG_BYTES = 16_000
"""Bytes shown of the end of the log; all of it is in the run folder."""


def results(run: Run, reached: float | None) -> dict[str, Any]:
    """Results of a run that has ended, with the seconds after which it `reached` the goal; None for one it has not."""
    summary = run.summary
    sent = summary["bytes_sent"]
    return {
        "world": run.world,
        "steps": summary["steps"],
        "samples/s": summary["samples_per_s"],
        "final loss": summary["final_loss"],
        "accuracy": summary["accuracy"],
        "to goal (s)": reached,
        "staleness mean": summary["staleness"]["mean"],
        "staleness max": summary["staleness"]["max"],
        "lead max": summary["lead"]["max"],
        "MB sent": None if sent is None else sent / 1e6,
        "waiting (s)": summary["seconds"]["wait"],
    }


class Status:
    """Progress, facts and log of the run in front, told to a page."""

    def __init__(self, page: Page, experiment: Experiment) -> None:
        self.page, self.prefix, self.experiment, self.path = page, "", experiment, None
        self.errors: dict[int, dict[str, Any]] = {}
        page.tell(done=0, steps=experiment.steps, status="", message="", log="", path="")
        self.say("Not started. Press Run.")
        self.show_facts({}, None, "")

    def say(self, words: str) -> None:
        """Show `words` beside the bar."""
        self.page.tell(words=self.prefix + words)

    def begin(self, experiment: Experiment, path: Path) -> None:
        """Start a run."""
        self.experiment, self.path, self.errors, self._seen = experiment, path, {}, None
        self._log_size, self._shown, self.launch_s = -1, 0.0, None
        self.page.tell(done=0, steps=experiment.steps, status="running", message="", log="", path=str(path))
        self.say(f"Starting {experiment.ranks} rank{'s' * (experiment.ranks != 1)} …")

    def progress(self, so_far: GlobalSteps, rate: float | None) -> None:
        """Show the progress of the run, at most four times a second; `rate` is in samples/s."""
        now = time.monotonic()
        if now - self._shown < 0.25:
            return
        self._shown, done, steps = now, so_far.done, self.experiment.steps
        if done:
            spent, world = so_far.last.seconds, self.experiment.cluster.world
            each = self._seconds_a_step(now, done) if world == "simulated" else spent / done
            rest = f"about {duration(each * (steps - done))} left" if each is not None else "working …"
            speed = f" · {quantity(rate)} samples/s" if rate else ""
            left = rest if done < steps else "finishing …"
            self.page.tell(done=done)
            self.say(f"step {done:,} of {steps:,} · {duration(spent)}{_on_clock(world)}{speed} · {left}")
        self.show_log()

    def _seconds_a_step(self, now: float, done: int) -> float | None:
        """Seconds of the reader's clock per step, since the first call with finished steps; None in that call."""
        self._seen = self._seen or (now, done)
        return (now - self._seen[0]) / (done - self._seen[1]) if done > self._seen[1] else None

    def ended(
        self, steps: GlobalSteps, accuracy: float | None, rate: float | None, status: str, reason: str
    ) -> None:
        """Show the result of the run."""
        done, cluster, all_steps = steps.done, self.experiment.cluster, self.experiment.steps
        whole = status == "done" and done == all_steps
        parts = [f"done: {done:,} steps" if whole else f"{status} after {done:,} of {all_steps:,} steps"]
        if status not in ("done", "stopped"):
            parts = [f"{parts[0]} — {reason}"]
        elif steps.last:
            parts.append(f"{duration(steps.last.seconds)}{_on_clock(cluster.world)}")
            parts += [f"{quantity(rate)} samples/s"] if rate else []
            trained = cluster.messages == "values"
            parts.append(f"loss {quantity(steps.last.loss)}" if trained else "nothing was trained")
            parts += [] if accuracy is None else [f"held-out accuracy {accuracy:.1%}"]
        if self.launch_s is not None and status in ("done", "stopped"):
            parts.append(f"launched in {duration(self.launch_s)}")
        self.page.tell(done=done, status=status)
        self.say(" · ".join(parts))
        self._log_size = -1
        self.show_log()

    def show_facts(self, ranks: dict[int, dict], slip: float | None, batches: str) -> None:
        """Show the facts that a reader must know to trust the figures: world, platform, clock, slip."""
        cluster = self.experiment.cluster
        where = _platform(ranks) if cluster.world == "real" else platform_in_words(self.experiment)
        facts = {"world": cluster.world, "platform": where}
        if cluster.world != "real":
            facts |= {
                "clock": CLOCKS[cluster.world],
                "slip": "none" if slip is None else f"{slip * 1e3:.0f} ms",
            }
        facts |= {"batches": batches} if batches else {}
        self.page.tell(facts=list(facts.items()))

    def show_log(self) -> None:
        """Show the end of the ranks' output, and every traceback with its rank."""
        log = self.path / "log.txt"
        size = log.stat().st_size if log.exists() else 0
        if size + len(self.errors) == self._log_size:
            return
        self._log_size, text = size + len(self.errors), ""
        if size:
            with open(log, "rb") as file:
                file.seek(max(0, size - LOG_BYTES))
                text = file.read().decode(errors="replace")
        for rank, error in sorted(self.errors.items()):
            lines = str(error.get("traceback") or error.get("message")).rstrip().splitlines()
            text += "\n" + "\n".join(f"[rank {rank}] {line}" for line in lines) + "\n"
        self.page.tell(log=text.strip())


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
