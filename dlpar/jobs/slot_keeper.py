"""Gives out a machine's job slots in fair turns.  Standard library only.

Who holds fewest slots is next; among equals, whose last turn is longest ago; then, who came
first.  Nobody overtakes whose turn it is, however few slots he wants: whoever queues for one job
waits for one job at most of each of the others.  Who asks is told by the kernel; where
several share the keeper's own account (a hub's list of names), each says who he is.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import socket
from pathlib import Path
from typing import Any

from dlpar.jobs.processes import user_of
from dlpar.jobs.slots import MOST

LOOK = 0.1
"""Seconds between two looks at the slots while somebody waits: a job's last process may outlive its guardian."""

LONGEST = 4096
"""Bytes of a question at most."""

MOST_EACH = 32
"""Connections of a user at most, but of the keeper's own account: nobody may keep the others out."""


class Asker:
    """A connection: a job that waits or runs, or somebody with a question."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.number, self.user = connection, 0, user_of(connection)
        self.person: Any = self.user
        self.heard, self.told = b"", None
        self.wants, self.holds = 0, 0


class Keeper:
    """Slots of one machine.

    Parameters
    ----------
    path : Path
        Socket to listen at; made for all users.  Beside it a private folder holds the slots' files.
    slots : int
        Ranks that may run at the same time; a job of more takes them all, and runs alone.
    teachers : sequence of int
        Numbers of users who may pause all, besides root and whoever runs the keeper.

    Raises
    ------
    ValueError
        If there are fewer than 1 or more than 200 slots.
    OSError
        If another keeper listens there.
    """

    def __init__(self, path: Path, slots: int, teachers: tuple[int, ...] = ()) -> None:
        if not 1 <= slots <= MOST:
            raise ValueError(f"slots: got {slots}, allowed is 1 to {MOST}")
        self.path, self.slots, self.paused = path, slots, False
        self.teachers = {0, os.getuid(), *teachers}
        self.askers: dict[socket.socket, Asker] = {}
        self.came, self.turn_of, self.turns = 0, {}, 0  # of a person: number of the last turn
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.folder = path.with_name(path.name + ".files")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.lock = os.open(self.folder / "keeper", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{path}: another keeper gives out slots there") from None
        path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        path.chmod(0o666)  # any user may ask; who asks is told by the kernel
        self.listener.listen(128)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)

    def serve(self, until=lambda: False) -> None:
        """Answer until `until()`; jobs that run keep their slots after that."""
        while not until():
            for key, _ in self.selector.select(LOOK if self.waiting() else 1.0):
                self._accept() if key.fileobj is self.listener else self._hear(self.askers[key.fileobj])
            self._give()
            self._tell()

    def close(self) -> None:
        """Leave no socket; who waits is told by its closing."""
        self.path.unlink(missing_ok=True)
        for asker in list(self.askers.values()):
            self._forget(asker)
        self.selector.close()
        self.listener.close()
        os.close(self.lock)

    def waiting(self) -> list[Asker]:
        """Jobs in the order of their turns."""
        holds: dict[Any, int] = {}
        for asker in self.askers.values():
            holds[asker.person] = holds.get(asker.person, 0) + asker.holds
        queue = sorted((a for a in self.askers.values() if a.wants), key=lambda a: a.number)
        turns = []
        for asker in queue:  # whoever has another job ahead of this one counts as if that had begun
            turns.append((holds[asker.person], self.turn_of.get(asker.person, 0), asker.number, asker))
            holds[asker.person] += asker.wants
        return [asker for *_, asker in sorted(turns, key=lambda turn: turn[:3])]

    def _give(self) -> None:
        """Let those begin whose turn has come and whose slots are free."""
        for asker in [] if self.paused else self.waiting():
            files = self._free(asker.wants)
            if len(files) < asker.wants:
                _close(files)
                return
            try:
                socket.send_fds(asker.socket, [b'{"go": true}\n'], files)
                asker.holds, asker.wants = asker.wants, 0
                self.turns += 1
                self.turn_of[asker.person] = self.turns
            except OSError:
                self._forget(asker)
            _close(files)  # they stay locked as long as the job has them

    def _free(self, wanted: int) -> list[int]:
        """Locked files of so many slots that nobody held; fewer if there are fewer."""
        found = []
        for number in range(self.slots):
            if len(found) == wanted:
                break
            file = os.open(self.folder / f"slot-{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(file)
            except BlockingIOError:
                os.close(file)
        return found

    def _tell(self) -> None:
        """Tell those who wait how many are ahead, if that has changed."""
        for ahead, asker in enumerate(self.waiting()):
            news = {"ahead": ahead, "paused": self.paused}
            if news != asker.told:
                asker.told = news
                self._say(asker, news)

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        asker = Asker(connection)
        others = sum(other.user == asker.user for other in self.askers.values())
        if others >= MOST_EACH and asker.user != os.getuid():
            connection.close()
            return
        self.askers[connection] = asker
        self.selector.register(connection, selectors.EVENT_READ)

    def _hear(self, asker: Asker) -> None:
        try:
            said = asker.socket.recv(LONGEST)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        *lines, asker.heard = (asker.heard + said).split(b"\n")
        if not said or len(asker.heard) > LONGEST:
            return self._forget(asker)
        for line in lines:
            try:
                question = json.loads(line)
                self._answer(asker, question if isinstance(question, dict) else {})
            except ValueError:
                return self._forget(asker)

    def _answer(self, asker: Asker, question: dict[str, Any]) -> None:
        wants = question.get("slots")
        if type(wants) is int and not asker.wants and not asker.holds:  # a bool is none
            if wants < 1:
                return self._say(asker, {"refused": f"slots: got {wants}, allowed is a whole number from 1"})
            self.came += 1
            asker.number = self.came
            asker.wants = min(wants, self.slots)  # a job of more ranks than there are slots runs alone
            if asker.user == os.getuid():
                asker.person = asker.user, str(question.get("as"))
        elif "pause" in question:
            if asker.user in self.teachers:
                self.paused = bool(question["pause"])
                self._say(asker, {"paused": self.paused})
            else:
                whom = "teachers alone, whom `dlpar slots --teachers` names"
                self._say(asker, {"refused": f"pause: allowed is this to {whom}"})
        else:  # in numbers only: who else works here is nobody's business
            jobs = self.askers.values()
            self._say(
                asker,
                {
                    "slots": self.slots,
                    "taken": sum(a.holds for a in jobs),
                    "waiting": len(self.waiting()),
                    "paused": self.paused,
                },
            )

    def _say(self, asker: Asker, words: dict[str, Any]) -> None:
        try:
            asker.socket.send(json.dumps(words).encode() + b"\n")
        except OSError:  # gone, or so far behind that it does not listen
            self._forget(asker)

    def _forget(self, asker: Asker) -> None:
        if self.askers.pop(asker.socket, None):
            self.selector.unregister(asker.socket)
            asker.socket.close()


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
