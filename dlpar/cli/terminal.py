"""View of ``dlpar run`` during training: a live picture in a terminal, or a few plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from contextlib import nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dlpar.cli import STOPS, Stops
from dlpar.cli.tables import ages, table
from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import Job
from dlpar.jobs.summary import Summary, distribution, facts_of, in_words
from dlpar.jobs.tail import Record, Tail
from dlpar.lab.captions import duration, quantity
from dlpar.lab.labels import place_in_queue, platform_in_words, scheme
from dlpar.lab.theme import PHASES

LOOK = 0.05
"""Seconds between two checks for the job's end."""

DRAW_EVERY, LINE_EVERY = 0.125, 2.0
"""Seconds between two pictures of the live view, and between two plain lines."""

RECENT_STEPS = 50
"""Number of a rank's steps over which shares of time are computed."""

MOST_RANKS = 16
"""Maximum number of drawn ranks."""

WIDE = 40
"""Width of the progress bar and of the loss curve below it, in characters."""

SECONDS = {"compute": "forward", "comm": "communicate", "wait": "wait"}
"""Kinds of time in a step's record, and the phases that give their colours in every figure."""

NAMES = ("compute", "communicate", "wait")
COLOURS = tuple(PHASES[phase].colour for phase in SECONDS.values())


class Progress:
    """State of a run, from records in any order. Memory does not grow with the run."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.is_trained = experiment.cluster.messages == "values"
        self.summary = Summary("", **facts_of(experiment))
        self.ranks: dict[int, Record] = {}
        self.mode = self.place = ""
        self.losses: list[float] = []
        self._seconds: dict[int, deque] = defaultdict(lambda: deque(maxlen=RECENT_STEPS))
        self._began = time.monotonic()

    def take(self, records: list[tuple[str, Record]], ended: bool = False) -> None:
        """Process the new records from a :class:`~dlpar.jobs.tail.Tail`.

        If `ended` is true, these records are the last.
        """
        for source, record in records:
            kind = record["k"]
            if kind == "queued":
                self.place = place_in_queue(record["ahead"], record["paused"])
            elif kind == "launch":
                self.mode, self.place = record["mode"], ""
            elif kind == "rank":
                self.ranks[record["rank"]] = record
            elif kind == "step" and (rank := int(source.removeprefix("rank-"))) < MOST_RANKS:
                self._seconds[rank].append([record[part] for part in SECONDS])
        self.summary.add(records)
        self.summary.steps.ready(ended)
        done, last = self.summary.steps.done, self.summary.steps.last
        if last and self.is_trained and math.isfinite(last.loss):
            self.losses += [last.loss] * (done * WIDE // self.experiment.steps - len(self.losses))

    @property
    def time_left(self) -> str:
        """Return the time left until the last step at the current pace.

        The text is empty before the first step and at the end.
        """
        done, steps = self.summary.steps.done, self.experiment.steps
        if not 0 < done < steps:
            return ""
        # The reader's clock differs from a simulation's clock.
        is_simulated = self.experiment.cluster.world == "simulated"
        spent = time.monotonic() - self._began if is_simulated else self.summary.time.last
        return f"{duration(spent / done * (steps - done))} left"

    def shares(self) -> dict[int, list[float]]:
        """Return the shares of computation, communication and waiting in each rank's last steps."""
        sums = {rank: [sum(part) for part in zip(*self._seconds[rank])] for rank in sorted(self._seconds)}
        return {rank: [part / (sum(parts) or 1.0) for part in parts] for rank, parts in sums.items()}

    def curve(self, signs: str) -> str:
        """Draw the loss curve as text, with one of `signs` for each part of the run.

        The first sign is the lowest.
        """
        low, most = min(self.losses, default=0.0), max(self.losses, default=0.0)
        unit = (most - low) / (len(signs) - 1) or 1.0
        return "".join(signs[round((loss - low) / unit)] for loss in self.losses)

    def headline(self) -> str:
        """Describe the experiment and its cluster."""
        e = self.experiment
        workers = f"{e.workers} worker{'s' if e.workers > 1 else ''}"
        where = " and ".join(sorted({r["host"] for r in self.ranks.values()})[:3])
        how = {f"{r['device'].partition(':')[0]} by {r['carrier']}" for r in self.ranks.values()}
        place = f" on {where}, {', '.join(sorted(how))}" if where else ""
        place = place if e.cluster.world == "real" else f" as on {platform_in_words(e)}"
        return f"{e.model} on {e.data}, {workers}, {scheme(e)}, {e.cluster} world{place}"

    def figures(self) -> str:
        """Return loss, accuracy, rate, staleness and the scheme's choices as one line."""
        last, accuracy = self.summary.steps.last, self.summary.accuracy
        said = [f"loss {quantity(last.loss)}"] if last and self.is_trained else []
        if accuracy is not None:
            said.append(f"held-out accuracy {accuracy:.1%}")
        if rate := self.summary.samples_per_s:
            said.append(f"{quantity(rate)} samples/s")
        if any(self.summary.staleness):
            said.append(f"staleness {ages(distribution(self.summary.staleness))}")
        return ", ".join([*said, *map(": ".join, in_words(self.summary.chosen).items())])

    def step_of(self) -> str:
        """Describe progress: finished steps of all steps."""
        return f"step {self.summary.steps.done:,} of {self.experiment.steps:,}"


class View:
    """View of the ranks' records. A terminal is redrawn. A log or a pipe gets occasional lines."""

    def __init__(self, job: Job, console: Console) -> None:
        self.progress, self._tail, self._looked = Progress(job.experiment), Tail(job.folder), 0.0
        is_live = console.is_terminal and not console.is_dumb_terminal
        self.live = Live(console=console, auto_refresh=False, redirect_stderr=False) if is_live else None
        if not is_live:
            print(f"{self.progress.headline()}: run {job.run.id}", flush=True)
        # Letters replace block characters in a terminal without them.
        is_utf = (console.encoding or "").lower().startswith("utf")
        self._bars, self._levels = ("█▓░", "▁▂▃▄▅▆▇█") if is_utf else ("#=.", "_.-=+*#")
        self._said = self.progress.step_of()

    def look(self, last: bool = False) -> None:
        """Show new records if a drawing is due. If `last` is true, the job has ended."""
        now = time.monotonic()
        if now - self._looked < (DRAW_EVERY if self.live else LINE_EVERY) and not last:
            return
        self._looked = now
        self.progress.take(self._tail.read_all() if last else self._tail.read(), ended=last)
        p = self.progress
        stands = p.place or p.step_of()
        if self.live:
            self.live.update(self.picture(), refresh=True)
        elif stands != self._said:
            self._said = stands
            left = f", {p.time_left}" if p.time_left and not last else ""
            print(p.place or f"{stands}: {p.figures()}{left}", flush=True)

    def picture(self) -> RenderableType:
        """Return the whole picture for rich."""
        p = self.progress
        headline = Text(p.headline(), style="bold")
        if p.place:
            return Group(headline, f"{p.place}; it starts automatically; Ctrl-C leaves the queue")
        if not p.shares():
            starting = f"starting ({p.mode})" if p.mode else "starting"
            return Group(headline, f"{starting}: {len(p.ranks)} of {p.experiment.ranks} ranks are ready")
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(p.experiment.steps, p.summary.steps.done, width=WIDE)
        line.add_row(bar, p.step_of(), p.time_left)
        line.add_row(p.curve(self._levels), f"loss from {quantity(p.losses[0])}" if p.losses else "")
        return Group(headline, line, Text(p.figures()), self._ranks())

    def _ranks(self) -> Table:
        signs = zip(self._bars, NAMES, COLOURS)
        legend = Text(" ").join([Text(f"{sign} {name}", style=colour) for sign, name, colour in signs])
        heads = {"rank": "rank", "bar": legend, **dict(zip(NAMES, NAMES))}
        rows = [
            dict(zip(heads, (rank, self._bar(parts), *(f"{part:.0%}" for part in parts))))
            for rank, parts in self.progress.shares().items()
        ]
        more = self.progress.experiment.workers - MOST_RANKS
        if more > 0:
            rows.append(dict.fromkeys(heads, "") | {"bar": f"and {more:,} more"})
        return table(heads, rows)

    def _bar(self, shares: list[float], width: int = 30) -> Text:
        """Draw shares of a whole as `width` characters. The characters differ in more than colour."""
        text, drawn, reached = Text(), 0, 0.0
        for share, sign, colour in zip(shares, self._bars, COLOURS):
            reached += share
            text.append(sign * (round(reached * width) - drawn), style=colour)
            drawn = round(reached * width)
        return text


def follow(job: Job, stops: Stops, silent: bool) -> None:
    """Show a job until its end, unless `silent`. End the job on request."""
    view = None if silent else View(job, Console())
    with (view and view.live) or nullcontext():
        while not job.ended and stops.asked is None:
            if view:
                view.look()
            time.sleep(LOOK)
        if stops.asked is not None:
            job.stop(reason=STOPS[stops.asked])
        if view:
            view.look(last=True)
