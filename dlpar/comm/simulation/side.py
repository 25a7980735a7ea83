"""What a simulated rank runs beside its computation: a second activity, with messages of its own."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from dlpar.comm.simulation.simulator import Activity

if TYPE_CHECKING:
    from dlpar.comm.base import Collective
    from dlpar.comm.simulated import SimulatedComm
    from dlpar.comm.simulation.simulator import Simulator


class Side:
    """Runs collectives one after the other, in the order in which they were started.

    Parameters
    ----------
    comm : SimulatedComm
        Whose ports it uses.
    """

    def __init__(self, comm: SimulatedComm) -> None:
        self.computing, self.simulator = comm.activity, comm.simulator
        self.activity = Activity(comm.activity.rank, comm.activity.clock)
        self.comm = type(comm)(
            comm.simulator, comm.group.beside(), comm.rank, self.activity, comm.pace, comm.eager, comm.traffic
        )
        self.queue: deque[_Started] = deque()
        self.open = True
        self._busy, self._since = (
            0.0,
            None,
        )  # seconds of collectives that have ended; when the present one began
        self.simulator.add(self.activity, self._run)

    def start(self, collective: Collective, bucket: Any) -> _Started:
        """Queue ``collective(comm, bucket)``; it begins now, or when those before it have ended."""
        started = _Started(self, collective, bucket)
        self.queue.append(started)
        self._rouse()
        return started

    def close(self) -> None:
        """Nothing more will come."""
        self.open = False
        self._rouse()

    def busy(self) -> float:
        """Seconds it has communicated so far."""
        return self._busy if self._since is None else self._busy + self.computing.clock - self._since

    def _rouse(self) -> None:
        if self.activity.idle:
            self.activity.idle = False
            self.simulator.wake(self.activity, self.computing.clock)

    def _run(self) -> None:
        while True:
            while self.queue:
                self._since = self.activity.clock
                self.queue.popleft().run(self.comm)
                self._busy, self._since = self._busy + self.activity.clock - self._since, None
            if not self.open:
                return
            self.activity.idle = True
            self.simulator.next().switch()


class _Started:
    """A collective under way; it carries its result, or its exception, back to who waits."""

    def __init__(self, side: Side, collective: Collective, bucket: Any) -> None:
        self._side, self._collective, self._bucket = side, collective, bucket
        self._done, self._result, self._error, self._waiter = False, None, None, None

    def run(self, comm: SimulatedComm) -> None:
        try:
            self._result = self._collective(comm, self._bucket)
        except Exception as error:  # re-raised in wait(), where it can be handled
            self._error = error
        self._done = True
        if self._waiter is not None:
            self._side.simulator.wake(self._waiter, comm.activity.clock)

    def wait(self) -> Any:
        if not self._done:
            activity = self._waiter = self._side.computing
            activity.waits_for = "the end of what it started beside its computation"
            self._side.simulator.next().switch()
        if self._error is not None:
            raise self._error
        return self._result

    def test(self) -> bool:
        return self._done


class Lock:
    """Mutual exclusion between activities, on the virtual clock: who must wait lets others run."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.owner, self.waiting = simulator, None, deque()

    def __enter__(self) -> None:
        activity = self.simulator.running
        if self.owner is not None:
            self.waiting.append(activity)
            activity.waits_for = "a lock"
            self.simulator.next().switch()
        self.owner = activity

    def __exit__(self, *error: object) -> None:
        self.owner = self.waiting.popleft() if self.waiting else None
        if self.owner is not None:
            self.simulator.wake(self.owner, self.simulator.running.clock)
