"""Job slots: a limit on the ranks of all users of a machine, shared fairly.

The keeper has one file for each slot, locked while the slot is taken.  It hands the locked
files themselves to a job's guardian, which passes them on to mpiexec.  However the job ends, the kernel frees
its slots with its last process.  The keeper counts locks, not connections, and remembers their users.  While
others wait, a job may keep slots only up to a time limit.  Then the job is told to end, and the slot gets a
new file.  Without a keeper there is no limit. This module uses only the standard library.

The next turn goes to the user with the fewest slots. Among equals, the user whose last turn was longest ago
comes first, then the job that arrived first. Nobody overtakes the user whose turn it is, even with a smaller
job. So a user who queues for one job waits for at most one job of each other user. The kernel names the user
of a connection. If several users share the keeper's account (a hub's list of names), each gives a name.
"""

from __future__ import annotations

import os
import pwd
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from dlpar.jobs.scratch import lock
from dlpar.jobs.unix_sockets import Connection, close_files, listen, user_of

USUAL = Path("/run/dlpar/slots")
"""Socket of the machine's keeper, unless ``$DLPAR_SLOTS`` names another. If it is empty, there is no limit.
"""

MOST = 200
"""Maximum number of slots of a machine, because one message can pass only this many files."""

LOOK = 0.1
"""Seconds between checks of the slots while a job waits. A job's last process may outlive its guardian."""

MOST_EACH = 32
"""Maximum number of a user's connections, so that no user can block others. The keeper's account is exempt.
"""


LONGEST_TURN = 1800.0
"""Maximum seconds for which a job keeps its slots while others wait."""


class NoSlots(RuntimeError):
    """Error: the keeper refuses or has exited. The message gives the allowed values."""


def keeper_socket() -> Path | None:
    """Return the socket of this machine's keeper, or None if it has no keeper."""
    named = os.environ.get("DLPAR_SLOTS")
    if named is not None:
        return Path(named) if named else None
    return USUAL if USUAL.exists() else None


def ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the keeper's answer to one request of a :class:`Talk`. Raises :class:`NoSlots`."""
    with Talk(path, question) as talk:
        return talk.hear()[0]


def is_kept(path: Path) -> bool:
    """Return whether a keeper serves at this socket."""
    with suppress(NoSlots):
        return bool(ask(path, {}))
    return False


class Talk(Connection):
    """Request to the keeper, and the keeper's answers.

    Parameters
    ----------
    path : Path
        The keeper's socket.
    question : dict
        ``{"slots": 4, "as": "ada"}`` waits for 4 slots, under a name that distinguishes users of one account.
        ``{"pause": True}`` pauses all jobs. ``{}`` asks how many slots are taken. A teacher also learns by
        whom.

    Attributes
    ----------
    files : list of int
        Locked files of the slots, once it is the job's turn.

    Raises
    ------
    NoSlots
        If no keeper listens at this socket.
    """

    MOST_FILES = MOST

    def __init__(self, path: Path, question: dict[str, Any]) -> None:
        super().__init__()
        # A blocking call waits in the queue. With Python's own timeout it would be refused at once.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 5, 0))
        try:
            self.connect(str(path))
            self.settimeout(5.0)
            with suppress(BrokenPipeError):  # the keeper has refused it at once, and :meth:`hear` says why
                self.say(question)
        except OSError as error:
            self.close()
            why = error.strerror
            raise NoSlots(f"job slots: no keeper runs at {path} ({why}); `dlpar slots` starts one") from None

    def hear(self) -> list[dict[str, Any]]:
        """Wait at most 5 s for a new message, and return the keeper's new messages.

        A job in the queue gets ``{"ahead": 2, "paused": False}``, and finally ``{"go": True}``, which brings
        :attr:`files`.  A job that kept slots too long gets ``{"over": "…"}``, the reason.

        Raises
        ------
        NoSlots
            If the keeper refuses, does not answer, or has exited.
        """
        try:
            messages = super().hear()
        except OSError:
            raise NoSlots("job slots: the keeper has ended; start it again") from None
        if refused := [message["refused"] for message in messages if "refused" in message]:
            raise NoSlots(refused[0])
        return messages


class Asker(Connection):
    """Connection that brings one request to the keeper.

    It comes from a waiting job, a running job or an observer.
    """

    LONGEST = 1024

    def __init__(self, accepted: socket.socket) -> None:
        super().__init__(accepted)
        self.setblocking(False)
        self.user = user_of(self)
        self.person = str(self.user)
        with suppress(KeyError, TypeError):  # no such account, or a kernel that does not name it
            self.person = pwd.getpwuid(self.user).pw_name
        self.number, self.wants, self.told = 0, 0, None


class Turn(NamedTuple):
    """Turn of a job that got a slot: its user, its connection, and the time by the monotonic clock."""

    person: str
    asker: Asker | None
    since: float


class Keeper:
    """Keeper of one machine's slots. It assigns the slots to jobs.

    Parameters
    ----------
    path : Path
        Socket of the keeper, open to all users.  A private folder beside the socket holds the slots' files.
    slots : int
        Ranks that may run at the same time. A larger job takes all slots, and runs alone.
    teachers : sequence of int
        IDs of users who may pause all jobs and see who holds slots, besides root and the keeper's own user.
    longest : float
        Maximum seconds for which a job keeps its slots while others wait.

    Raises
    ------
    ValueError
        If there are fewer than 1 or more than 200 slots.
    OSError
        If another keeper listens there.
    """

    def __init__(
        self, path: Path, slots: int, teachers: tuple[int, ...] = (), longest: float = LONGEST_TURN
    ) -> None:
        if not 1 <= slots <= MOST:
            raise ValueError(f"slots: got {slots}, allowed is 1 to {MOST}")
        self.path, self.slots, self.longest, self.paused = path, slots, longest, False
        self.teachers = {0, os.getuid(), *teachers}
        self.askers: list[Asker] = []
        self.numbers, self.turn_of = count(1), {}  # by person: number of the last turn
        self.taken: dict[int, Turn] = {}  # by the number of the slot
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.folder = path.with_name(path.name + ".files")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.lock = lock(self.folder / "keeper")
        if self.lock is None:
            raise OSError(f"{path}: another keeper gives out slots there")
        self.listener = listen(path, 0o666)  # any user may ask; the kernel names the user
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer requests until `until()` is true. Running jobs keep their slots after that."""
        while not until():
            for key, _ in self.selector.select(LOOK if self.waiting() else 1.0):
                self._accept() if key.fileobj is self.listener else self._hear(key.fileobj)
            if self.waiting():
                self._look()
                self._give()
                self._tell()

    def close(self) -> None:
        """Remove the socket. Jobs in the queue notice that it closes."""
        self.path.unlink(missing_ok=True)
        for asker in list(self.askers):
            self._forget(asker)
        self.listener.close()
        os.close(self.lock)

    def waiting(self) -> list[Asker]:
        """Return the jobs in the queue, in the order of their turns."""
        holds = Counter(turn.person for turn in self.taken.values())
        queue = sorted((a for a in self.askers if a.wants), key=lambda a: a.number)
        turns = []
        for asker in queue:  # a person's earlier job counts as begun for the later one
            turns.append((holds[asker.person], self.turn_of.get(asker.person, 0), asker.number, asker))
            holds[asker.person] += asker.wants
        return [asker for *_, asker in sorted(turns, key=lambda turn: turn[:3])]

    def _file(self, number: int) -> Path:
        return self.folder / f"slot-{number}"

    def _look(self) -> None:
        """Find the used slots by their locked files. Jobs of an earlier keeper also count."""
        for number in range(self.slots):
            if (file := lock(self._file(number))) is None:
                self.taken.setdefault(number, Turn("somebody", None, time.monotonic()))
            else:
                os.close(file)
                self.taken.pop(number, None)

    def _give(self) -> None:
        """Start the jobs whose turn has come, if their slots are free."""
        for asker in [] if self.paused else self.waiting():
            numbers = [number for number in range(self.slots) if number not in self.taken][: asker.wants]
            if len(numbers) < asker.wants:
                return self._end_longest(asker)
            files = [lock(self._file(number)) for number in numbers]
            try:
                asker.say({"go": True}, files)
            except OSError:
                self._forget(asker)
            else:
                self.taken |= dict.fromkeys(numbers, Turn(asker.person, asker, time.monotonic()))
                asker.wants, self.turn_of[asker.person] = 0, next(self.numbers)
            close_files(files)  # they stay locked as long as the job has them

    def _turns(self) -> list[tuple[Turn, int]]:
        """Return the jobs that hold slots with their numbers of slots, the longest-running first."""
        return sorted(Counter(self.taken.values()).items(), key=lambda turn: turn[0].since)

    def _end_longest(self, next_one: Asker) -> None:
        """Reclaim the missing slots from other users' jobs that have held slots too long."""
        lacking = next_one.wants - (self.slots - len(self.taken))
        for turn, slots in self._turns():
            if lacking <= 0 or time.monotonic() - turn.since <= self.longest:
                return
            if turn.person != next_one.person:
                lacking -= slots
                for number in [number for number, taken in self.taken.items() if taken == turn]:
                    self._file(number).unlink()  # the next turn makes a new file, whoever has this one now
                    self.taken.pop(number)
                if turn.asker in self.askers:
                    why = f"stopped after {self.longest / 60:g} minutes: others wait for its job slots"
                    self._say(turn.asker, {"over": why})

    def _tell(self) -> None:
        """Tell each queued job how many jobs are ahead if this number has changed."""
        for ahead, asker in enumerate(self.waiting()):
            news = {"ahead": ahead, "paused": self.paused}
            if news != asker.told:
                asker.told = news
                self._say(asker, news)

    def _accept(self) -> None:
        try:
            asker = Asker(self.listener.accept()[0])
        except OSError:  # the asker has gone, or no descriptors are left
            return time.sleep(LOOK)
        others = sum(other.user == asker.user for other in self.askers)
        if others >= MOST_EACH and asker.user != os.getuid():
            self._say(asker, {"refused": f"job slots: got {others + 1}, allowed for a user is {MOST_EACH}"})
            return asker.close()
        self.askers.append(asker)
        self.selector.register(asker, selectors.EVENT_READ)

    def _hear(self, asker: Asker) -> None:
        try:
            for question in asker.hear():
                if asker.number or not isinstance(question, dict):  # many questions would busy the keeper
                    return self._forget(asker)
                asker.number = next(self.numbers)
                self._answer(asker, question)
        except BlockingIOError:
            return
        except Exception:  # the asker has gone, or sends nonsense; no message may end the keeper
            self._forget(asker)

    def _answer(self, asker: Asker, question: dict[str, Any]) -> None:
        wants = question.get("slots")
        if type(wants) is int:  # a bool is not a number here
            if wants < 1:
                return self._say(asker, {"refused": f"slots: got {wants}, allowed is a whole number from 1"})
            asker.wants = min(wants, self.slots)  # a job with more ranks than slots runs alone
            if asker.user == os.getuid():
                asker.person = str(question.get("as") or asker.person)
        elif "pause" not in question:
            self._look()
            state = {"slots": self.slots, "taken": len(self.taken), "waiting": len(self.waiting())}
            if asker.user in self.teachers:  # others do not see names
                now = time.monotonic()
                turns = [(turn.person, slots, round(now - turn.since)) for turn, slots in self._turns()]
                state["holders"] = [{"who": who, "slots": n, "seconds": seconds} for who, n, seconds in turns]
            self._say(asker, {**state, "paused": self.paused})
        elif asker.user in self.teachers:
            self.paused = bool(question["pause"])
            self._say(asker, {"paused": self.paused})
        else:
            self._say(asker, {"refused": "pause: only teachers may do this: see `dlpar slots --teachers`"})

    def _say(self, asker: Asker, words: dict[str, Any]) -> None:
        try:
            asker.say(words)
        except OSError:  # the asker has gone, or is too far behind to read
            self._forget(asker)

    def _forget(self, asker: Asker) -> None:
        if asker in self.askers:
            self.askers.remove(asker)
            self.selector.unregister(asker)
            asker.close()
