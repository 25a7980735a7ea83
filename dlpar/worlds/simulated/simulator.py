"""Ranks on a virtual clock. Only one rank runs at a time: the one with the earliest next moment.

This is a discrete-event simulation of blocking programs.  Equal programs and seeds give bit-identical runs,
because events of one moment happen in the order in which they were planned.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from math import inf
from types import FrameType, SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet

from dlpar.config.user_code import is_installed
from dlpar.worlds.simulated.network import Network


class Deadlock(RuntimeError):
    """Deadlock: every rank waits, and no message is in transit. The error names the line of each rank."""


class LostRank(RuntimeError):
    """Error: a rank that others would wait for has died."""


class Died(RuntimeError):
    """Error: a rank in this process died on request."""


DETECTING = 0.1
"""Seconds from a rank's death until all others are told, on a logical or virtual clock."""


class Activity:
    """Thread of control on the virtual clock: a rank, or its communication during computation.

    Attributes
    ----------
    clock : float
        Its time, in seconds.
    due : float
        Time at which it continues. Its events at any other time are ignored.
    task : GreenletTask or ThreadTask
        The task it runs on.
    waits_for : Any
        The object that it waits for. Its `str` describes the wait.  With ``give_up(activity)`` a death ends
        the wait.
    idle : bool
        Whether it waits for work. If so, it may wait forever.
    done : bool
        Whether it has ended.
    lost : bool
        Whether it was told of a death, so that it waits for nobody until it joins the survivors.
    beside : int
        Number of collectives under way during its computation.
    busy, since : float
        Seconds in which it had such collectives, and the time since which it has some.
    """

    def __init__(self, rank: int, clock: float = 0.0) -> None:
        self.rank, self.clock, self.due = rank, clock, inf
        self.waits_for, self.idle, self.done, self.lost = None, False, False, False
        self.beside, self.busy, self.since = 0, 0.0, clock

    def communicated(self) -> float:
        """Return the seconds so far in which its rank also communicated."""
        return self.busy + self.clock - self.since if self.beside else self.busy

    @property
    def gives_up(self) -> bool:
        """Return whether the activity is blocked on other ranks indefinitely."""
        return self.due == inf and not self.done and not self.idle and hasattr(self.waits_for, "give_up")


class Simulator:
    """Simulator of programs on a virtual clock.

    Parameters
    ----------
    network : Network
        Decides when messages arrive.
    computes : bool
        Whether ranks compute values (a thread each) or only pass sizes (greenlets).

    Attributes
    ----------
    events : dict
        Planned events by their time, in the order in which they were planned: an activity continues, or the
        head of a message arrives.
    moments : list
        Heap of those times.
    time : float
        The current moment, in seconds.
    present : iterator
        The remaining events of the current moment.
    last : Activity or Message
        The last event of the current moment.
    passed : int
        Number of moments so far.
    running : Activity or None
        The activity whose turn it is.
    over : bool
        Whether all have ended, or one has failed.
    made : dict
        Objects that are equal on all ranks, by name. Each is made once.
    main : ThreadTask or greenlet
        The task of the caller of :meth:`run`.
    died, known : set of int
        Ranks that have died, and those of which all others have been told.
    """

    def __init__(self, network: Network, computes: bool) -> None:
        self.network, self.computes, self.made = network, computes, {}
        self.died, self.known = set[int](), set[int]()
        # Ranks in lockstep ask for the same moments, which pass through the heap once for all ranks.
        self.events: dict[float, list[Any]] = {}
        self.moments: list[float] = []
        self.present: Iterator[Any] = iter(())
        self.last: Any = None
        self.time, self.passed, self.over = 0.0, 0, False
        self.activities: list[Activity] = []
        self.running: Activity | None = None
        self.error: BaseException | None = None
        self.failed_rank: int | None = None
        self.main = ThreadTask() if computes else getcurrent()

    # ---- for its starter ---------------------------------------------------------

    def add(self, activity: Activity, program: Callable[[], Any]) -> None:
        """Start `program()` at the activity's current clock."""

        def run() -> None:
            try:
                program()
            except Abandoned:
                raise
            except BaseException as error:  # the others cannot continue without it
                if self.error is None and activity.rank not in self.died:
                    self.error, self.failed_rank = error, activity.rank
            activity.done, activity.due = True, inf

        activity.task = (ThreadTask if self.computes else GreenletTask)(run, self.main)
        self.activities.append(activity)
        self.wake(activity, activity.clock)

    def run(self) -> None:
        """Run until all activities have ended.

        Raises
        ------
        Deadlock
            If no activity can continue.
        BaseException
            The exception of the first rank that failed.
        """
        try:
            while self.error is None and (task := self.next()) is not self.main:
                task.switch()
            if self.error is not None:
                raise self.error
            if any(not a.done and not a.idle for a in self.alive()):
                raise Deadlock(story(self.alive()))
        finally:
            self.over, self.present, self.last = True, iter(()), None
            for activity in self.activities:
                if not activity.done:
                    with suppress(Abandoned):  # a greenlet's exception comes back here
                        activity.task.abandon()

    def alive(self) -> list[Activity]:
        """Return the activities of living ranks."""
        return [activity for activity in self.activities if activity.rank not in self.died]

    # ---- deaths --------------------------------------------------------------------------

    def die(self, rank: int) -> None:
        """Let a rank die now. The others are told after `DETECTING` seconds."""
        now = self.running.clock
        for activity in self.alive():
            if activity.rank == rank and activity is not self.running:
                self.interrupt(activity, now)
        if rank not in self.died:
            self.died.add(rank)
            self.plan(now + DETECTING, SimpleNamespace(due=None, arrive=partial(self._tell_of, rank)))

    def _tell_of(self, rank: int, time: float) -> None:
        self.known.add(rank)
        for activity in self.alive():
            self.interrupt(activity, time)

    def interrupt(self, activity: Activity, time: float) -> None:
        """End an activity's wait for other ranks with :class:`LostRank`, now or when the wait begins."""
        activity.lost, task = True, activity.task

        def switch() -> None:
            activity.task = task
            task.throw(LostRank())

        if activity.gives_up:
            activity.waits_for.give_up(activity)
            activity.task = SimpleNamespace(switch=switch)  # for one turn
            self.wake(activity, time)

    # ---- for activities ------------------------------------------------------------------

    def wake(self, activity: Activity, time: float) -> None:
        """Let an activity continue at `time`, unless something wakes it sooner."""
        if time < activity.due:
            activity.due = time
            self.plan(time, activity)

    def plan(self, time: float, event: Any) -> None:
        """Plan an event for `time`. See ``events``."""
        events = self.events
        if time in events:
            events[time].append(event)
        else:
            events[time] = [event]
            heappush(self.moments, time)

    def advance(self, activity: Activity, time: float) -> None:
        """Advance an activity's clock to `time`, after all earlier events."""
        if activity is not self.last or (self.moments and self.moments[0] <= time):
            activity.due, events = time, self.events
            if time in events:  # plan(time, activity) inline, to save a call
                events[time].append(activity)
            else:
                events[time] = [activity]
                heappush(self.moments, time)
            self.next().switch()
        elif time > activity.clock:
            activity.clock = time

    def next(self) -> Task:
        """Process events until an activity's turn, and return its task. At the end return the main task.

        An activity that waits for another calls ``simulator.next().switch()``, which returns when it
        continues.
        """
        if self.died and self.running.lost and self.running.gives_up:
            self.running.waits_for.give_up(self.running)
            raise LostRank
        time = self.time
        while True:
            for event in self.present:
                due = event.due
                if due == time:
                    event.clock, event.due = time, inf
                    self.running = event
                    return event.task
                if due is None:
                    event.arrive(time)
            if self.over:  # an unwound task waits for no other task
                raise Abandoned
            if not self.moments:
                return self.main
            self.time = time = heappop(self.moments)
            events = self.events.pop(time)
            self.present, self.last = iter(events), events[-1]
            self.passed += 1


MOST = 8
"""Maximum numbers of waiting activities, and of ended ranks, listed by :func:`story`."""


Where = Callable[[Activity], str]


def story(activities: list[Activity], clock: str = "virtual", where: Where | None = None) -> str:
    """Describe the place (by `where`) of each activity that waits forever. List the ended ranks."""
    where = where or (lambda activity: place(activity.task.frame()))
    stuck = [a for a in activities if not a.done and not a.idle]
    told = [f"rank {a.rank} in {a.waits_for or 'a call'} at {where(a)}" for a in stuck[:MOST]]
    if len(stuck) > MOST:
        told.append(f"and {len(stuck) - MOST} more")
    ended = sorted({a.rank for a in activities if a.done} - {a.rank for a in activities if not a.done})
    if ended:
        more = f" and {len(ended) - MOST} more" if len(ended) > MOST else ""
        ranks, have = ("ranks", "have") if len(ended) > 1 else ("rank", "has")
        told.append(f"{ranks} {', '.join(map(str, ended[:MOST]))}{more} {have} ended")
    after = f"deadlock after {max(a.clock for a in stuck):.6g} s of {clock} time"
    return f"{after}: no rank can continue and no message is under way: {'; '.join(told)}"


CARRIERS = ("dlpar.comm.", "dlpar.worlds.", "dlpar.lab.animation", "threading", "greenlet")
"""Prefixes of the names of modules that carry messages. The relevant line is in their caller."""


def place(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame outside message carriers.

    For dlpar's own code, add the caller.
    """
    while frame is not None and (frame.f_globals.get("__name__") or "").startswith(CARRIERS):
        frame = frame.f_back
    caller = frame
    while caller is not None and is_installed(caller.f_code.co_filename):
        caller = caller.f_back
    if frame is None:
        return "an unknown line"
    return _line(frame) if caller in (frame, None) else f"{_line(frame)}, called at {_line(caller)}"


def _line(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    return f"{name if name.startswith('<') else name.rsplit('/', 1)[-1]}:{frame.f_lineno}"


class Abandoned(BaseException):
    """Error raised within a task if its simulation has ended without it."""


class GreenletTask(greenlet):
    """Greenlet that runs ``program()``. ``switch()`` pauses the caller and continues this task.

    Parameters
    ----------
    program : callable
        The program.
    main : greenlet
        Its successor when it ends.
    """

    def __init__(self, program: Callable[[], None], main: greenlet) -> None:
        maker = getcurrent()

        def run() -> None:
            maker.switch()  # begun now, because another greenlet's calls would count in a task that it begins
            program()

        super().__init__(run, main)
        self.switch()

    def frame(self) -> FrameType | None:
        """Return the task's current frame."""
        return self.gr_frame

    def abandon(self) -> None:
        """Unwind the task at its current position."""
        self.throw(Abandoned)


class ThreadTask:
    """Task on its own thread. It runs only while it holds the baton.

    Parameters
    ----------
    program : callable, optional
        The program. Without a program, the task is the thread that makes it, which waits for the simulation
        to end.
    main : ThreadTask, optional
        Its successor when it ends.

    Attributes
    ----------
    running : ThreadTask
        Of the main task: the task that holds the baton.
    core : int or None
        Of the main task: the core on which the other tasks take their turns.
    """

    core: int | None = None

    def __init__(self, program: Callable[[], None] | None = None, main: ThreadTask | None = None) -> None:
        self.main, self.running, self.error = main or self, self, None
        self.baton, self.thread = threading.Lock(), threading.current_thread()
        self.baton.acquire()
        if program is not None:
            self.thread = threading.Thread(target=self._run, args=(program,), daemon=True)
            self.thread.start()

    def _run(self, program: Callable[[], None]) -> None:
        try:
            self._rest()
            program()
        except Abandoned:
            return
        self.main.running = self.main
        self.main.baton.release()

    def _rest(self) -> None:
        self.baton.acquire()
        if self.core != self.main.core:
            self.core = self.main.core
            os.sched_setaffinity(0, {self.core})
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def switch(self) -> None:
        """Pass the baton, and return when it comes back."""
        here, self.main.running = self.main.running, self
        self.baton.release()
        here._rest()

    def throw(self, error: BaseException) -> None:
        """Pass the baton to a task that continues with an error."""
        self.error = error
        self.switch()

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self.thread.ident)

    def abandon(self) -> None:
        if self.thread.is_alive():
            self.error = Abandoned()
            self.baton.release()
            self.thread.join(5.0)


Task = greenlet | ThreadTask
