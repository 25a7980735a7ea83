"""Page that follows jobs, with figures, progress, facts, log, and table of results."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, RLock
from typing import TYPE_CHECKING, Any

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.jobs.control_groups import usable_cores
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import NoSuchRun, Run
from dlpar.jobs.summary import in_words
from dlpar.jobs.tail import rank_of
from dlpar.lab import theme
from dlpar.lab.captions import duration, quantity
from dlpar.lab.figure import Figure
from dlpar.lab.figures.convergence import loss_title
from dlpar.lab.figures.throughput import Throughput
from dlpar.lab.labels import labels, place_in_queue, platform_in_words, same_batches, with_world
from dlpar.lab.page import Page, module
from dlpar.lab.plot import Board, Plot, Shown
from dlpar.lab.watch import Replay, Watch, between

if TYPE_CHECKING:
    from dlpar.jobs.launch import Job


KEPT = 5
"""Number of earlier runs that stay in the figures. Readers could not distinguish more."""

GOAL = 0.95
"""Held-out accuracy that runs should reach. The page compares the seconds that they need."""

PATIENCE = 12.0
"""Seconds in the queue before an alternative is offered: less than 15, even on a busy machine."""

AT_FIRST: dict[str, Any] = {
    "runs": [], "recordings": None, "offer": None, "ghost": "", "live": False, "length": 0.0, "wrong": None,
    "fields": [], "values": {}, "hidden": [], "ranks": [],
}  # fmt: skip
"""State of a page before the first message of its panel."""


class RunPage(Page):
    """Widget that follows jobs: figures, status, log, and table of results.

    Parameters
    ----------
    experiment : Experiment
        Experiment that determines the initial figures.
    plots : sequence of Plot
        All figures. The page shows those that fit a run.
    title, question : str
        Heading, and the question that runs answer.
    goal : float
        Held-out accuracy that runs should reach. The page compares the seconds that they need.
    """

    _esm = module("plotly", "preview", "table", "link", "results", "figure", "panel")
    _actions = ("run", "stop")
    """Buttons with their names in `panel.js`."""
    _instead: Sequence[str] = ()
    """Buttons offered instead of waiting for slots."""

    _kept, _opening, _colours = KEPT, "", theme.RUNS
    _watch: Watch | Replay | None = None

    def __init__(
        self, experiment: Experiment, plots: Sequence[Plot], title: str, question: str, goal: float = GOAL
    ) -> None:
        super().__init__()
        self.job: Job | None = None
        self.runs: list[Run] = []
        self._board, self._guard_jobs, self._over = Board(plots, goal), RLock(), Event()
        self._asked: list[tuple[str, Experiment]] = []
        self._failure = "nothing was run"
        self._started, self._queued_at = 0, 0.0  # infinite: an alternative is offered
        self._shown: dict[str, Shown] = {}
        self._outcomes: dict[str, tuple[str, dict[str, Any] | None]] = {}
        self._over.set()
        self.tell(**AT_FIRST, title=title, question=question, goal=goal, actions=self._actions)
        self._status = Status(self, experiment)
        self._choose(experiment)
        self._enable()

    @property
    def running(self) -> bool:
        """Return whether a job of this panel is running or a recording is playing."""
        return not self._over.is_set()

    def wait(self, timeout: float = 600.0) -> list[Run]:
        """Wait until all runs are done and drawn, and return them.

        Parameters
        ----------
        timeout : float, default 600
            Seconds.

        Raises
        ------
        TimeoutError
            If runs are still running after that. They continue.
        JobFailed
            If a run failed or was stopped.
        """
        from dlpar.jobs.launch import JobFailed

        if not self._over.wait(timeout):
            raise TimeoutError(f"the panel is still running after {timeout:g} s")
        with self._guard_jobs:  # the page has been told of the end
            if self._failure:
                raise JobFailed(self._failure)
            return self.runs

    def stop(self) -> None:
        """Act as the Stop button does: end the running job, if any, and start no other."""
        if not self.running:
            return
        with self._guard_jobs:  # the next run is not about to start
            if self._asked:
                self._failure = f"{self._asked[0][0]} was not run: the panel was stopped first"
                self._asked = []
        self.tell(stoppable=False)
        if self.job:
            self._status.say("Stopping …")
            self.flush()
            return self.job.stop()
        self._watch.cancel()  # a recording
        self._watch.join(5.0)
        return self.ended("stopped", "stopped by its owner")

    def close(self) -> None:
        """Stop the running job, if any, and remove the panel from the page."""
        if self.comm:  # otherwise it was refused or is closed
            self.stop()
            if self._watch:
                self._watch.cancel()
            super().close()
            self._over.set()

    def picture(self) -> Figure:
        """Return the figure in front as a static figure, in its current state."""
        return self.figures[self.state["front"]].static()

    def hear(self, message: dict[str, Any]) -> None:
        """Handle a request from the page."""
        match message:
            case {"do": "front", "figure": title} if title in self.figures:
                self.tell(front=title)
            case {"do": "axis", "figure": title, "x": x} if title in self.figures:
                self.figures[title].x = x
            case {"do": "moment", "t": moment} if not self.running and self._shown:
                with self._guard:
                    for plot in self._board.fed:
                        plot.look(float(moment), partial(between, self._status.path))
            case {"do": "run"}:
                self.run()
            case {"do": "stop"}:
                self.beside(self.stop)
            case {"do": "clear"}:
                self.clear_earlier()

    def clear_earlier(self) -> None:
        """Remove earlier runs from the figures. Their folders stay."""
        with self._guard:
            self._forget(list(self._shown)[:-1])
            if self._shown:
                self._board.settle(ended=not self.running)
        self._show_runs()
        self.flush()

    # ---- called by the watch ---------------------------------------------------------

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Process a record from the watch."""
        if source == "job" and record["k"] == "queued":
            where = place_in_queue(record["ahead"], record["paused"])
            self._status.say(f"{where}; it starts automatically; Stop leaves the queue")
            self._queued_at = self._queued_at or time.monotonic()
        elif self._queued_at:
            self._leave_queue()
        if source == "job":
            return
        if record["k"] == "error":
            self._status.errors[rank_of(source)] = record
        elif record["k"] == "event":
            self._status.launch_s = record.get("launch_s") or self._status.launch_s
            self._status.chosen = in_words(record) or self._status.chosen
        with self._guard:
            self._board.take(rank_of(source), record)

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far. The watch calls this at most ten times a second."""
        if self._instead and self._queued_at and time.monotonic() - self._queued_at >= PATIENCE:
            self._queued_at = math.inf
            self.tell(offer={"text": "Instead of waiting:", "actions": self._instead})
        with self._guard:
            self._board.settle(ended=False)
        self._show_facts()
        self._status.progress(self._board.steps, self._rate())
        self.flush(alive)

    def ended(self, status: str, reason: str) -> None:
        """End the run, and start the next if there is one. The watch calls this."""
        self._leave_queue()
        steps, run = self._board.steps, self._front
        if status != "unwatched":  # then a figure may have failed
            with self._guard:
                self._board.settle(ended=True)
                for plot in self._board.fed:
                    if plot.caption == "Starting …":
                        plot.set_caption(
                            f"The run ended before its first {'sample' if steps.done else 'step'}."
                        )
        self._show_facts()
        self._status.ended(steps, self._board.accuracy, self._rate(), status, reason)
        self._outcomes[run.key], last = (status, None), steps.last
        with suppress(NoSuchRun):  # a removed folder has no results
            kept = Run(self._status.path)
            if steps.done and kept.status == status:  # not a recording that was stopped
                self._outcomes[run.key] = status, results(kept, self._board.reached)
        self.tell(length=last.seconds if last else 0.0, live=False)
        self._show_runs()
        with self._guard_jobs:
            if status != "done":
                self._failure = f"{run.name}: {reason or status}"
            elif self._asked:
                self.flush()
                try:
                    return self._next()
                except Exception as error:  # no reader would see it here
                    self._failure = f"{self._asked[0][0]} was not run: {type(error).__name__}: {error}"
                    self.tell(message=self._failure)
            self._over.set()
            self._enable()
            self.flush()

    # ---- inside ----------------------------------------------------------------------

    def _start(self, asked: Sequence[tuple[str, Experiment]]) -> None:
        """Run named experiments one after the other. Raise an error if the first cannot start."""
        self._refuse_if_running()
        self._asked, self._count, self._failure = list(asked), len(asked), ""
        self._next()

    def _refuse_if_running(self) -> None:
        if self.running:
            raise RuntimeError(f"panel: run {self.job.run.id} is still running; stop it first")

    def _next(self) -> None:
        (name, experiment), *later = self._asked
        self.job = job = dlpar.launch(experiment)
        self._asked, number = later, self._count - len(later)
        self._status.prefix = f"{number} of {self._count}, {name}: " if self._count > 1 else ""
        self._begin(job.run, experiment, name)
        self._follow(Watch(job.run.path, self))

    def _begin(self, run: Run, experiment: Experiment, name: str = "") -> None:
        """Add a run in front of the others in the figures.

        The default name lists the settings that differ.
        """
        if self.state["offer"] and self.state["offer"]["actions"] == ["resume"]:  # a teacher's offer stays
            self.tell(offer=None)
        with self._guard:
            for key, other in list(self._shown.items()):
                if key in (run.id, self._opening) or loss_title(other.experiment) != loss_title(experiment):
                    self._forget([key])
            self._forget(list(self._shown)[: max(0, len(self._shown) - self._kept)])
            experiments = [*(other.experiment for other in self._shown.values()), experiment]
            names = labels(experiments) if len(experiments) > 1 else ["this run"]
            for other, own in zip(list(self._shown.values()), names):
                if not name:
                    self._rename(other.key, with_world(own, other.experiment))
            self._started = self._started if self._shown else 0
            colour = self._colours[self._started % len(self._colours)]
            named = with_world(name or names[-1], experiment)
            self._shown[run.id] = shown = Shown(run.id, experiment, named, self._started, colour)
            self._started += 1
            self._board.begin(shown)
            self._choose(experiment)
            for plot in self._board.fed:
                plot.set_caption("Starting …")
        self._outcomes[run.id] = "running", None
        self._status.begin(experiment, run.path)
        self._show_facts()
        self._show_runs()

    def _follow(self, watch: Watch | Replay) -> None:
        self._over.clear()
        self._watch = watch
        self.tell(live=True, length=0.0, message="")
        self._enable()
        watch.start()
        self.flush()

    @property
    def _front(self) -> Shown:
        """The run that began last."""
        return next(reversed(self._shown.values()))

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            for plot in self._board.plots:
                plot.forget(key)
            del self._shown[key]

    def _rename(self, key: str, name: str) -> None:
        for plot in self._board.plots:
            if key in plot.runs:
                plot.rename(key, name)
        self._shown[key] = self._shown[key]._replace(name=name)

    def _choose(self, experiment: Experiment) -> None:
        """Show the figures that fit an experiment. Keep the figure in front if it fits."""
        self.figures = {plot.title: plot for plot in self._board.plots if plot.fits(experiment)}
        front = self.state.get("front")
        self.tell(tabs=[*self.figures], front=front if front in self.figures else next(iter(self.figures)))

    def _rate(self) -> float | None:
        """Return the front run's mean samples/s so far."""
        found = self.figures.get(Throughput.title)
        return found.kept[found.front.key].mean if found and found.runs else None

    def _show_runs(self) -> None:
        """Show the table of runs, with differing settings, results and ratios."""
        rows = []
        for key, run in self._shown.items():
            state, found = self._outcomes[key]
            name = run.name if state in ("done", "running") else f"{run.name} ({state})"
            rows.append({"key": key, "name": name, "colour": run.colour, "results": found})
        self.tell(runs=rows if len(rows) > 1 else [])

    def _enable(self) -> None:
        self.tell(busy=self.running and self.job is not None, stoppable=self.running)

    def _show_facts(self) -> None:
        now, *earlier = [run.experiment for run in reversed(self._shown.values())]
        same = bool(earlier) and all(same_batches(now, other) for other in earlier)
        self._status.show_facts(self._board.ranks, self._board.slip, "the same in all runs" if same else "")

    def _leave_queue(self) -> None:
        """Withdraw the offered alternatives to waiting in the queue."""
        if self._queued_at == math.inf and (self.state["offer"] or {}).get("actions") == self._instead:
            self.tell(offer=None)
        self._queued_at = 0.0


# ---- words about a run ---------------------------------------------------------------

LOG_BYTES = 16_000
"""Bytes shown from the end of the log. The whole log is in the run folder."""


def results(run: Run, reached: float | None) -> dict[str, Any]:
    """Return a finished run's results and its seconds to the goal (`reached`). Missing results are None."""
    summary = run.summary
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
        "MB sent": None if (sent := summary["bytes_sent"]) is None else sent / 1e6,
        "waiting (s)": summary["seconds"]["wait"],
    }


class Status:
    """Status line of a page: progress, facts and log of the run in front."""

    def __init__(self, page: Page, experiment: Experiment) -> None:
        self.page, self.prefix = page, ""
        self.begin(experiment)
        self.say("Not started. Press Run.")
        self.show_facts({}, None, "")

    def say(self, words: str) -> None:
        """Show `words` beside the bar."""
        self.page.tell(words=self.prefix + words)

    def begin(self, experiment: Experiment, path: Path | None = None) -> None:
        """Show the start of a run. If `path` is None, there is no run yet."""
        self.experiment, self.path = experiment, path
        self.errors: dict[int, dict[str, Any]] = {}
        self._log_size, self._shown, self.launch_s, self._seen, self.chosen = -1, 0.0, None, None, {}
        self.page.tell(done=0, steps=experiment.steps, status="running" if path else "", path=str(path or ""))
        self.page.tell(message="", log="")
        self.say(f"Starting {experiment.ranks} rank{'s' * (experiment.ranks != 1)} …")

    def progress(self, so_far: GlobalSteps, rate: float | None) -> None:
        """Show the progress of the run, at most four times a second. `rate` is in samples/s."""
        now = time.monotonic()
        if now - self._shown < 0.25:
            return
        self._shown, done, steps = now, so_far.done, self.experiment.steps
        if done:
            spent, world = so_far.last.seconds, self.experiment.cluster.world
            each = self._seconds_a_step(now, done) if world == "simulated" else spent / done
            rest = f"about {duration(each * (steps - done))} left" if each is not None else "working …"
            left = rest if done < steps else "finishing …"
            self.page.tell(done=done)
            self.say(" · ".join([f"step {done:,} of {steps:,}", *self._speed(spent, rate), left]))
        self.show_log()

    def _speed(self, seconds: float, rate: float | None) -> list[str]:
        """Describe the elapsed time, with its clock, and the samples/s."""
        world = self.experiment.cluster.world
        clock = "" if world == "real" else f" on the {theme.CLOCKS[world]} clock"
        return [f"{duration(seconds)}{clock}", *([f"{quantity(rate)} samples/s"] if rate else [])]

    def _seconds_a_step(self, now: float, done: int) -> float | None:
        """Return the wall-clock seconds per step since the first call with finished steps.

        On that first call, return None.
        """
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
            parts += self._speed(steps.last.seconds, rate)
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
        """Show the facts that a reader needs to trust the figures: world, platform, clock and slip."""
        cluster = self.experiment.cluster
        where = _platform(ranks) if cluster.world == "real" else platform_in_words(self.experiment)
        facts = {"world": cluster.world, "platform": where} | self.chosen
        if cluster.world != "real":
            behind = "none" if slip is None else f"{slip * 1e3:.0f} ms"
            facts |= {"clock": theme.CLOCKS[cluster.world], "slip": behind}
        self.page.tell(facts=[*facts.items(), *([("batches", batches)] if batches else [])])

    def show_log(self) -> None:
        """Show the end of the ranks' output. Show every traceback with its rank."""
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
    here = f"{platform.node()}, {len(usable_cores())} cores"
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
