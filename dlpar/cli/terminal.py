"""What ``dlpar run`` shows while ranks train: a live picture in a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dlpar.config.experiment import Experiment
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.run import Run
from dlpar.jobs.slots import in_words
from dlpar.jobs.tail import Tail
from dlpar.lab.captions import duration, quantity
from dlpar.lab.labels import platform_in_words, scheme
from dlpar.lab.theme import PHASES

DRAW_EVERY, LINE_EVERY = 0.125, 2.0
"""Seconds between two pictures of the live view, and between two plain lines."""

RECENT_STEPS = 50
"""Steps of a rank over which its shares of time are taken."""

MOST_RANKS = 16
"""Ranks drawn at most."""

SECONDS = ("compute", "comm", "wait")
NAMES = ("compute", "communicate", "wait")
COLOURS = tuple(PHASES[phase].colour for phase in ("forward", "communicate", "wait"))
"""Kinds of time: as a step's record names them, as a reader does, and as every figure draws them."""


class Progress:
    """How a run stands, from its records, in any order; memory does not grow with the run."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.ranks: dict[int, dict[str, Any]] = {}
        self.mode = self.place = ""
        self.accuracy: float | None = None
        self.samples, self.latest = 0, 0.0
        self._together = GlobalSteps(experiment.workers, experiment.free_running)
        self._seconds: dict[int, deque] = defaultdict(lambda: deque(maxlen=RECENT_STEPS))
        # (the run's time, worker-steps, samples, wall time) at each look
        self._marks = deque([(0.0, 0, 0, time.monotonic())], maxlen=16)

    def take(self, source: str, record: dict[str, Any]) -> None:
        """One record as :class:`~dlpar.jobs.tail.Tail` gives it."""
        kind = record["k"]
        if kind == "step":
            rank = int(source[5:])
            self.samples += record["samples"]
            self.latest = max(self.latest, record["t"])
            self._together.add(rank, record)
            if rank < MOST_RANKS:
                self._seconds[rank].append([record[part] for part in SECONDS])
        elif kind == "rank":
            self.ranks[record["rank"]] = record
        elif kind == "eval":
            self.accuracy = record["accuracy"]
        elif kind == "queued":
            self.place = in_words(record["ahead"], record["paused"])
        elif kind == "launch":
            self.mode, self.place = record["mode"], ""

    def mark(self, ended: bool = False) -> None:
        """End a look: put global steps together, and remember how far the run is, for its rates."""
        self._together.ready(ended)
        if self.latest > self._marks[-1][0]:
            self._marks.append((self.latest, self.worker_steps, self.samples, time.monotonic()))

    @property
    def worker_steps(self) -> int:
        """Steps of single workers."""
        return self._together.worker_steps

    @property
    def steps(self) -> int:
        """Global steps done."""
        return self._together.done

    @property
    def loss(self) -> float | None:
        """Training loss of the last global step."""
        return self._together.last.loss if self._together.last else None

    @property
    def samples_per_s(self) -> float | None:
        """Of all workers together, lately."""
        return self._rate(2)

    @property
    def time_left(self) -> str:
        """Until the last step at the present rate, in words; empty while nobody knows, and at the end."""
        # Time in a simulation is not the reader's.
        rate = self._rate(1, over=3 if self.experiment.cluster.world == "simulated" else 0)
        left = self.experiment.steps * self.experiment.workers - self.worker_steps
        return f"{duration(left / rate)} left" if rate and left > 0 else ""

    def _rate(self, which: int, over: int = 0) -> float | None:
        first, last = self._marks[0], self._marks[-1]
        return (last[which] - first[which]) / (last[over] - first[over]) if last[over] > first[over] else None

    def shares(self) -> dict[int, list[float]]:
        """Of each rank's last steps: the share of time computing, communicating, waiting."""
        found = {}
        for rank in sorted(self._seconds):
            sums = [sum(part) for part in zip(*self._seconds[rank])]
            found[rank] = [part / (sum(sums) or 1.0) for part in sums]
        return found

    def headline(self) -> str:
        """What runs, where."""
        e = self.experiment
        workers = f"{e.workers} worker{'s' if e.workers > 1 else ''}"
        where = " and ".join(sorted({r["host"] for r in self.ranks.values()})[:3])
        how = {f"{r['device'].partition(':')[0]} by {r['carrier']}" for r in self.ranks.values()}
        place = f" on {where}, {', '.join(sorted(how))}" if where and e.cluster.world == "real" else ""
        as_on = f" as on {platform_in_words(e)}" if e.cluster.world != "real" else ""
        return f"{e.model} on {e.data}, {workers}, {scheme(e)}, {e.cluster} world{as_on}{place}"

    def figures(self) -> str:
        """Loss, accuracy and rate as one line."""
        trains = self.experiment.cluster.messages == "values"
        said = [f"loss {quantity(self.loss)}"] if trains and self.loss is not None else []
        if self.accuracy is not None:
            said.append(f"held-out accuracy {self.accuracy:.1%}")
        if self.samples_per_s:
            said.append(f"{quantity(self.samples_per_s)} samples/s")
        return ", ".join(said)


class View:
    """Shows nothing, and reads nothing; the views below follow a run."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def look(self, last: bool = False) -> None:
        """Show what is new, if it is time to; `last`: the job has ended."""


class Following(View):
    """Reads what ranks write, and shows it now and then."""

    every: float

    def __init__(self, run: Run) -> None:
        self.progress = Progress(run.experiment)
        self._tail, self._looked = Tail(run.path), 0.0

    def look(self, last: bool = False) -> None:
        now = time.monotonic()
        if now - self._looked < self.every and not last:
            return
        first, self._looked = not self._looked, now
        new = self._tail.read_all() if last else self._tail.read()
        for source, record in new:
            self.progress.take(source, record)
        self.progress.mark(ended=last)
        if new or first:
            self.show()

    def show(self) -> None:
        """Draw :attr:`progress`."""
        raise NotImplementedError


class PlainView(Following):
    """Lines for a log, a pipe or a dumb terminal."""

    every = LINE_EVERY

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._said, self._place = 0, ""
        print(f"{self.progress.headline()}: run {run.id}", flush=True)

    def show(self) -> None:
        p = self.progress
        if p.place and p.place != self._place:
            self._place = p.place
            print(p.place, flush=True)
        if p.steps > self._said:
            self._said = p.steps
            left = f", {p.time_left}" if p.time_left else ""
            print(f"step {p.steps:,} of {p.experiment.steps:,}: {p.figures()}{left}", flush=True)


class LiveView(Following):
    """A picture that redraws itself: progress, figures, and each rank's shares of time."""

    every = DRAW_EVERY

    def __init__(self, run: Run, console: Console) -> None:
        super().__init__(run)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        # Where the terminal knows no block characters, letters do.
        self._bars = "█▓░" if (console.encoding or "").lower().startswith("utf") else "#=."

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()

    def show(self) -> None:
        self._live.update(self.picture(), refresh=True)

    def picture(self) -> RenderableType:
        """All of it, as rich draws it."""
        p = self.progress
        headline = Text(p.headline(), style="bold")
        if p.place:
            return Group(headline, Text(f"{p.place}; it starts by itself, Ctrl-C leaves the queue"))
        if not p.worker_steps:
            up = len(p.ranks)
            how = f" ({p.mode})" if p.mode else ""
            return Group(headline, Text(f"starting{how}: {up} of {p.experiment.ranks} ranks are ready"))
        return Group(headline, self._progress_line(), Text(p.figures()), self._ranks())

    def _progress_line(self) -> Table:
        p = self.progress
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=p.experiment.steps, completed=p.steps, width=40)
        line.add_row(bar, Text(f"step {p.steps:,} of {p.experiment.steps:,}"), Text(p.time_left))
        return line

    def _ranks(self) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="", pad_edge=False)
        table.add_column("rank", justify="right")
        table.add_column(self._legend())
        for name in NAMES:
            table.add_column(name, justify="right")
        shares = self.progress.shares()
        for rank, parts in shares.items():
            table.add_row(str(rank), self._bar(parts), *(f"{part:.0%}" for part in parts))
        more = self.progress.experiment.workers - MOST_RANKS
        if more > 0:
            table.add_row("", Text(f"and {more:,} more"))
        return table

    def _legend(self) -> Text:
        signs = zip(self._bars, NAMES, COLOURS)
        return Text(" ").join([Text(f"{sign} {name}", style=colour) for sign, name, colour in signs])

    def _bar(self, shares: list[float], width: int = 30) -> Text:
        """Shares of a whole as `width` characters, that differ in more than colour."""
        text, drawn, reached = Text(), 0, 0.0
        for share, sign, colour in zip(shares, self._bars, COLOURS):
            reached += share
            text.append(sign * (round(reached * width) - drawn), style=colour)
            drawn = round(reached * width)
        return text


def view(run: Run, silent: bool) -> View:
    """The view that fits where standard output goes."""
    if silent:
        return View()
    console = Console()
    return LiveView(run, console) if console.is_terminal and not console.is_dumb_terminal else PlainView(run)
