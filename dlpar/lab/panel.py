"""Panel of a lab: set, run and watch an experiment, and compare it with earlier runs."""

from __future__ import annotations

import os
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from dlpar.config.experiment import Experiment
from dlpar.config.paths import runtime_folder
from dlpar.config.schema import BadExperiment
from dlpar.jobs.fork_server import warm_socket
from dlpar.jobs.global_steps import GlobalSteps
from dlpar.jobs.launch import resume
from dlpar.jobs.run import Run
from dlpar.jobs.tail import ALL_RANKS, lines_of, rank_of
from dlpar.jobs.unix_sockets import ask
from dlpar.lab import theme
from dlpar.lab.captions import duration, quantity
from dlpar.lab.controls import Controls
from dlpar.lab.exchange import current_offer
from dlpar.lab.figure import require
from dlpar.lab.figures.consensus import Consensus, disagreement
from dlpar.lab.figures.convergence import Convergence, check_goal, of_one_kind
from dlpar.lab.figures.scaling import twin
from dlpar.lab.figures.staleness import Lead, Staleness
from dlpar.lab.figures.throughput import Throughput, Waiting
from dlpar.lab.figures.timeline import Lanes, Timeline
from dlpar.lab.labels import labels, rank_name, scheme, split
from dlpar.lab.run_page import GOAL, RunPage
from dlpar.lab.watch import SEEN, Replay, Watch, newest_like, recordings, speed_of

if TYPE_CHECKING:
    import pandas as pd

    from dlpar.jobs.launch import Job
    from dlpar.lab.prediction import Prediction


LONG = 10.0
"""Seconds above which a simulation counts as long."""


class Panel(RunPage):
    """Panel with controls, Run and Stop buttons, and the live figures of runs.

    Parameters
    ----------
    experiment : Experiment, optional
        Initial settings of the controls; default: ``Experiment()``.
    controls : sequence of str, default ("workers", "steps", "lr")
        Fields on the first screen, such as ``"workers"``, ``"model.width"`` or ``"world"``. All others are
        under "More settings".
    question : str, default ""
        Question that the run answers. It is shown at the top.
    title : str, default "Train"
        Heading.
    first : str, optional
        Title of the tab of the figure in front, such as ``"Timeline"``; default: the first.
    prediction : Prediction, optional
        Prediction of a throughput, in samples/s or in multiples of the first run's. It is drawn and stated.
    recording : Run or path, optional
        A run that has ended, or its id or folder. It plays, marked as a recording, until Run is pressed.

    Raises
    ------
    ValueError
        If a name in `controls` is not a field, or no tab is called `first`.
    NoSuchRun
        If there is no such recording.

    Notes
    -----
    Running the cell again closes the cell's earlier panel and stops its job.
    """

    _actions, _instead = ("run", "stop", "clear"), ("simulate", "watch")

    def __init__(
        self,
        experiment: Experiment | None = None,
        controls: Sequence[str] = ("workers", "steps", "lr"),
        question: str = "",
        title: str = "Train",
        first: str = "",
        prediction: Prediction | None = None,
        recording: Run | str | os.PathLike | None = None,
    ) -> None:
        experiment = experiment or Experiment()
        self._throughput = Throughput(prediction)
        others = (Staleness(), Lead(), Lanes(), Timeline(), Waiting(), Consensus())
        super().__init__(experiment, [Convergence(), self._throughput, *others], title, question)
        fine = first in ("", *self.figures)
        require(fine, f"first: got {first!r}, allowed is one of {', '.join(self.figures)}")
        self.tell(front=first or self.state["front"], recordings=[])
        self._controls, self._offer, self._ghost = Controls(experiment, controls), Offer(self), Ghost(self)
        self._states = dict[int, str]()  # of ranks that have started: alive (""), slow or dead
        self._check()
        if recording is not None:
            run = recording if isinstance(recording, Run) else Run(recording)
            self._opening = run.id
            self.replay(run, speed_of(run, SEEN))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self.beside(warm_socket)  # a head start for the first job
        return super()._repr_mimebundle_(**kwargs)

    @property
    def experiment(self) -> Experiment:
        """Experiment that the controls describe. Raises `BadExperiment` if it cannot run."""
        return self._controls.experiment()

    def run(self) -> Job:
        """Start the job as the Run button does, and return the job.

        Raises
        ------
        BadExperiment
            If the settings are impossible.
        RuntimeError
            If a job of this panel is still running.
        """
        experiment = self.experiment
        self._end_recording()
        if self.running and self.job and self.job.run.status == "done":
            self._watch.join(5)  # a thread is drawing the last records
        with self._guard_jobs:
            self._start([("", experiment)])
            self.runs.insert(0, self.job.run)
            self.tell(message=disagreement(experiment))
            if experiment.cluster.world == "simulated":
                self._ghost.want(experiment)
        self.flush()
        return self.job

    def replay(self, run: Run | str, speed: float = 1.0) -> None:
        """Play a recorded run, marked as a recording. Stop ends it.

        Parameters
        ----------
        run : Run or str
            A run that has ended, or its id.
        speed : float, default 1
            Seconds of the run's clock per second of replay.

        Raises
        ------
        NoSuchRun
            If no run has that id.
        ValueError
            For a speed below 0.001 or above 1000, or a run that is still running.
        RuntimeError
            If a job of this panel is still running.
        """
        run = run if isinstance(run, Run) else Run(run)
        replay, is_first = Replay(run, self, speed), run.id == self._opening
        self._end_recording()
        with self._guard_jobs:
            self._refuse_if_running()
            at_speed = "" if speed == 1 else f", at {speed:g} times its speed"
            what = "Recording; press Run for your own" if is_first else f"Recording of {run.id}"
            self.job, self._failure, self._status.prefix = None, "", f"{what}{at_speed}: "
            self._begin(run, run.experiment, "recording" if is_first else "")
            self._follow(replay)

    def leave(self) -> None:
        """Stop the runs, and wait until the figures are complete."""
        self.stop()
        if self._watch:
            self._watch.join(5)

    def choose(self, field: str, value: Any) -> None:
        """Set a control by its path, such as ``"cluster.world"``."""
        self._controls.set(self._controls.path_of(field), value)
        self._check()
        self.flush()

    def show(self, experiment: Experiment) -> None:
        """Set all controls."""
        self._controls.show(experiment)
        self._check()

    def restore(self, values: dict[str, Any]) -> None:
        """Set all controls to the values from a page. The values need not form a valid experiment."""
        self._controls.values |= values
        self._check()

    def hear(self, message: dict[str, Any]) -> None:
        """Handle a request from the page."""
        match message:
            case {"do": "set", "path": path, "value": value}:
                self.choose(path, value)
                self._simulate_soon()
            case {"ask": "recordings"}:
                self.tell(recordings=recordings())
            case {"do": "play", "run": run, "speed": speed}:
                self.replay(run, speed)
            case {"do": "resume", **which}:
                self.beside(partial(self.resume, which.get("run")))
            case {"do": "kill" | "pause" | "slow" as order, "rank": rank, **more} if self.job:
                getattr(self.job, order)(rank, **more)
            case {"do": "simulate" | "watch" as other}:
                self.beside(getattr(self, f"_{other}_instead"))
            case {"do": "take" | "undo" | "away" as how}:
                getattr(self._offer, how)()
                self._simulate_soon()
            case _:
                super().hear(message)

    def _simulate_soon(self) -> None:
        """Foresee the settings. During a run a simulation would take time from the ranks that are measured."""
        self._ghost.want(None if self.state["busy"] or self.state["wrong"] else self.experiment)

    def _simulate_instead(self) -> None:
        """Leave the queue, and run the same experiment in the simulated world."""
        self.leave()
        self.choose("cluster.world", "simulated")
        self.run()

    def _watch_instead(self) -> None:
        """Leave the queue, and play the newest recorded run of this kind."""
        like = newest_like(self.experiment)
        if like is None:
            raise LookupError("you do not have a recording of a run of this kind yet")
        self.leave()
        self.replay(like, speed_of(like))

    def ended(self, status: str, reason: str) -> None:
        """End the run. Offer to resume an incomplete run from its latest snapshot, if it has one."""
        self._states.clear()
        self.tell(ranks=[])
        super().ended(status, reason)
        if status not in ("done", "running") and self.job and self._status.path.exists():
            if kept := self.job.run.snapshots:
                said = f"Its newest snapshot is after step {kept[0]:,}."
                self.tell(offer={"text": said, "actions": ["resume"]})
                self.flush()

    def resume(self, run: Run | str | None = None) -> Job:
        """Resume a run in its own folder as another attempt. A Resume button does the same.

        Parameters
        ----------
        run : Run or str, optional
            A run or its id; default: the run in front.

        Raises
        ------
        NoSuchRun
            If there is no such run.
        BadExperiment
            If the run is live or done, or has no complete snapshot of its own.
        RuntimeError
            If a job of this panel is still running.
        """
        self._end_recording()
        with self._guard_jobs:
            self._refuse_if_running()
            self.job = job = resume(run or self.state["path"])
            self.runs[:] = [job.run, *(other for other in self.runs if other.id != job.run.id)]
            self._asked, self._failure, self._status.prefix = [], "", ""
            self._begin(job.run, job.run.experiment)
            self._follow(Watch(job.run.path, self))
        return job

    def take(self, source: str, record: dict[str, Any]) -> None:
        """Process a record, and note its information about the state of a rank."""
        super().take(source, record)
        match record:
            case {"k": "rank", "rank": rank}:
                self._states[rank] = ""
            case {"name": "death", "dead": rank}:
                self._states[rank] = "dead"
            case {"name": "ordered", "factor": factor}:
                self._states[rank_of(source)] = "slow" if factor > 1 else ""

    def refresh(self, alive: bool) -> None:
        """Show the records taken so far and a job's ranks."""
        e = self._front.experiment
        shown = [rank for rank in theme.ranks(e) if rank in self._states] if self.job else []
        self.tell(ranks=[[rank, rank_name(e, rank), self._states[rank]] for rank in shown])
        super().refresh(alive)

    def foresee(self, experiment: Experiment | None, foreseen: Foreseen) -> None:
        """Show the simulated samples/s of settings that have not run yet.

        Also say whether their simulation is long.
        """
        rate = foreseen.rate
        if experiment and self.state["message"] == (told := disagreement(experiment)):  # not a refusal
            is_long = experiment.cluster.world == "simulated" and foreseen.seconds > LONG
            said = f"This simulation takes {duration(foreseen.seconds)} or more." if is_long else ""
            self.tell(message=" ".join(filter(None, (told, said))))
        with self._guard:
            shown = [run.experiment for run in self._shown.values()]
            what = labels([*shown, experiment])[-1] if shown and experiment not in shown and rate else ""
            self._throughput.foresee(f"simulated: {what}" if what else "simulated", rate)
        self.tell(ghost="" if rate is None else f"{quantity(rate)} samples/s")
        self.flush()

    def _end_recording(self) -> None:
        """End a recording that is playing, so that nobody waits for its end."""
        if self.running and not self.job:
            self.leave()

    def _check(self) -> None:
        try:
            message, wrong = disagreement(self.experiment), None
        except BadExperiment as error:
            message, wrong = str(error), str(error).partition(":")[0]
        controls = self._controls
        self.tell(fields=controls.fields(), values=dict(controls.values), hidden=controls.hidden())
        self.tell(message=message, wrong=wrong)


# ---- offers of a teacher -------------------------------------------------------------

LOOK = 2.0
"""Seconds between two checks for an offer, on a hub only. One check serves all panels of a kernel."""


class Offer:
    """Teacher's offer in a panel. "Take it" sets the controls, and "Undo" restores their earlier values."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._id = panel, None
        self._before: dict[str, Any] | None = None
        self._experiment: Experiment | None = None
        if "JUPYTERHUB_USER" in os.environ:  # elsewhere no offer can arrive
            with _offering:
                _waiting.add(self)
            _look_for_offers()

    def see(self, offer: dict[str, Any] | None) -> None:
        """Show the current offer. An offer that was shown before changes nothing."""
        if (offer and offer["id"]) == self._id:
            return
        self._id, self._experiment = offer and offer["id"], None
        with suppress(Exception):  # another version of dlpar sent it
            self._experiment = Experiment(**offer["experiment"]) if offer else None
        if self._experiment is not None:
            undo = ["undo"] if self._before else []
            self._tell(f"Your teacher ({offer['by']}) sent:", "take", *undo, "away")
        elif self._before is None:
            self.away()
        self._panel.flush()

    def take(self) -> None:
        """Set the panel's controls."""
        self._before = self._before or self._panel.state["values"]
        self._panel.show(self._experiment)
        words = "The controls are set as your teacher sent them. Press Run to start."
        self._panel.tell(offer={"text": words, "actions": ["undo", "away"]})

    def undo(self) -> None:
        """Restore the controls from before the first "Take it", and show the offer again."""
        self._panel.restore(self._before)
        self.away()
        if self._experiment is not None:
            self._tell("Your own controls are back. Your teacher sent:", "take", "away")

    def away(self) -> None:
        """Hide the offer. The controls stay set."""
        self._before = None
        if (self._panel.state["offer"] or {}).get("actions") != ["resume"]:
            self._panel.tell(offer=None)

    def _tell(self, words: str, *actions: str) -> None:
        e = self._experiment
        parts = [f"{e.model.name} on {e.data.name}", *([] if e.split.kind == "data" else [split(e)])]
        what = ", ".join([*parts, scheme(e), f"{e.workers} worker{'s' * (e.workers != 1)}", e.cluster.world])
        self._panel.tell(offer={"text": words, "what": what, "actions": list(actions)})


_waiting: weakref.WeakSet[Offer] = weakref.WeakSet()
_offering = Lock()


@cache
def _look_for_offers() -> None:
    """Show arriving offers in every panel of a kernel. One thread serves all panels."""
    Thread(target=_look, name="dlpar offers", daemon=True).start()


def _look() -> None:
    while True:
        offer = current_offer()
        with _offering:
            shown = list(_waiting)
        for one in shown:
            one.see(offer)
        del shown
        time.sleep(LOOK)


# ---- an answer before Run ------------------------------------------------------------

FEW, WORKER_STEPS = 12, 200
"""Maximum number of simulated steps, and of steps of all workers together."""

FEWEST = 3
"""Minimum number of simulated steps, because the first step begins before anything has been sent."""

TOO_LONG = 2.0
"""Maximum seconds of a simulation that runs before Run is pressed. A longer one is ended."""

MESSAGES_A_SECOND = {"sizes": 300_000, "values": 30_000}
"""Worker messages that one core simulates per second, without the ranks' work and the servers' answers."""


class Foreseen(NamedTuple):
    """Forecast of a whole run from a simulation of a few steps."""

    rate: float | None = None
    """Samples per second on the platform's clock, or None if a simulation of sizes cannot predict them."""
    seconds: float = 0.0
    """Minimum seconds that a simulation of the whole run takes."""


class Ghost:
    """Thread that simulates a panel's settings as they change. Only the newest change counts."""

    def __init__(self, panel: Panel) -> None:
        self._panel, self._guard, self._newest = weakref.ref(panel), Lock(), object()

    def want(self, experiment: Experiment | None) -> None:
        """Simulate an experiment soon, and show the result in the panel. None shows nothing."""
        self._newest = token = object()
        Thread(target=self._work, args=(experiment, token), name="dlpar ghost", daemon=True).start()

    def _work(self, experiment: Experiment | None, token: object) -> None:
        foreseen = Foreseen()
        # One at a time. There may be no server, or no such simulation.
        with self._guard, suppress(OSError, ValueError):
            if experiment and token is self._newest:
                foreseen = simulated(experiment)
        if token is self._newest and (panel := self._panel()):
            panel.foresee(experiment, foreseen)


def simulated(experiment: Experiment) -> Foreseen:
    """Simulate a few steps of an experiment on its platform. Messages carry only sizes.

    The simulation runs in a process of the fork server, as jobs do.
    """
    few, socket = twin(experiment) or experiment, warm_socket()
    steps = min(FEW, max(FEWEST, WORKER_STEPS // few.workers))
    if few.cluster.world != "simulated" or socket is None:
        return Foreseen()
    times = experiment.steps / steps
    few = few.replace(steps=steps, cluster={"messages": "sizes"})
    with tempfile.TemporaryDirectory("", "ghost-", runtime_folder(), ignore_cleanup_errors=True) as folder:
        Path(folder, "experiment.json").write_text(few.to_json())
        try:
            _fork(socket, folder)
        except TimeoutError:
            return Foreseen(seconds=times * TOO_LONG)
        done, messages = GlobalSteps(few.workers - few.backup, few.sync.runs_free), 0
        for record in lines_of(Path(folder, f"{ALL_RANKS}.jsonl")):
            if record["k"] == "step":
                done.add(record["rank"], record)
                messages += record["messages"] or 0
    done.ready(ended=True)
    seconds = times * messages / MESSAGES_A_SECOND[experiment.cluster.messages]
    if done.last is None or done.last.seconds <= done.first.seconds:
        return Foreseen(None, seconds)
    rate = (done.last.samples - done.first.samples) / (done.last.seconds - done.first.seconds)
    return Foreseen(rate, seconds)


def _fork(socket: Path, folder: str) -> None:
    """Fork ranks that simulate a folder's experiment, and wait for their end. No rank outlives this call."""
    dies, alive = os.pipe()
    with open(os.devnull, "r+b") as nothing:
        files = (*[nothing.fileno()] * 3, dies)
        request = {"env": dict(os.environ), "cwd": folder, "argv": [folder, "1"]}
        try:
            with ask(socket, request, files, TOO_LONG) as server:
                next(status for status in server.messages() if isinstance(status, int))
        finally:
            os.close(dies)
            os.close(alive)


# ---- several experiments, one after the other ----------------------------------------


class Comparison(RunPage):
    """Panel that runs experiments one after the other, with one figure and one table.

    Nothing runs before Run is pressed or ``.run()`` is called. ``.wait()`` waits for the end.

    Parameters
    ----------
    experiments : sequence of Experiment
        Two or more of one kind of task.
    titles : sequence of str, optional
        Name of each experiment; default: the settings in which it differs from the others.
    question : str, default ""
        Question that the comparison answers. It is shown above the comparison.
    x : {"step", "samples", "seconds", "bytes"}, default "seconds"
        Initial horizontal axis of the curves.
    goal : float, default 0.95
        Held-out accuracy, above 0 and at most 1. The table has the time to this accuracy.

    Attributes
    ----------
    runs : list of Run
        Runs started so far, in order.

    Raises
    ------
    ValueError
        If there are fewer than two experiments, if they do not fit into one figure, or for an invalid argument.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        titles: Sequence[str] | None = None,
        question: str = "",
        x: str = "seconds",
        goal: float = GOAL,
    ) -> None:
        experiments = [experiments] if isinstance(experiments, Experiment) else list(experiments)
        _check(experiments, titles)
        check_goal(goal)
        self.experiments, self.titles = experiments, list(titles or labels(experiments))
        self._colours, self._kept = theme.run_colours(experiments), len(experiments)
        plots = [Convergence(x), Throughput(), Staleness(), Waiting(), Consensus()]
        super().__init__(experiments[0], plots, "Compare", question, goal=goal)

    @property
    def table(self) -> pd.DataFrame:
        """Table of numbers with one row per run. Column names have units."""
        import pandas as pd

        found = (self._outcomes[run.id][1] or {} for run in self.runs)
        rows = [{"run": title, **results} for title, results in zip(self.titles, found)]
        return pd.DataFrame(rows, columns=None if rows else ["run"])

    def run(self) -> Comparison:
        """Start the experiments as the Run button does, and return at once.

        Raises
        ------
        RuntimeError
            If the comparison is already running.
        """
        with self._guard_jobs:
            self._refuse_if_running()
            self._forget(list(self._shown))
            self.runs = []
            self._start(list(zip(self.titles, self.experiments)))
        return self

    def _next(self) -> None:
        super()._next()
        self.runs.append(self.job.run)


compare = Comparison


def _check(experiments: list[Experiment], titles: Sequence[str] | None) -> None:
    """Raise ValueError if experiments do not fit into one figure or do not match `titles`."""
    for each in experiments:
        require(isinstance(each, Experiment), f"experiments: got {each!r:.60}, allowed are experiments only")
    got = len(experiments)
    require(got > 1, f"experiments: got {got}, allowed are two or more")
    of_one_kind(experiments, "experiments")
    without = "with messages sizes, allowed is values: nothing is trained, so there is no loss to compare"
    for each in experiments:
        instead = f"{without}; dlpar.lab.scaling compares speeds"
        require(Convergence.fits(each), f"experiments: got {each} {instead}")
    told = len(experiments if titles is None else titles)
    require(told == got, f"titles: got {told}, allowed is one for each of {got} experiments")
