"""Unix sockets between one machine's processes. They carry lines of JSON and open files.

This module uses only the standard library.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def listen(path: Path, mode: int) -> socket.socket:
    """Open a listening socket at `path`. A killed server's socket is replaced. `mode` defines who may connect."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(mode)  # no process can connect yet
    listener.listen(128)
    return listener


def user_of(connection: socket.socket) -> int | None:
    """Return the account at the other end of a connection, from the kernel. Return None on macOS."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def is_ours(connection: socket.socket) -> bool:
    """Return whether the other end belongs to this account. On macOS only the private folder ensures this."""
    return user_of(connection) in (None, os.getuid())


def close_files(files: list[int]) -> None:
    """Close the descriptors and empty the list."""
    while files:
        os.close(files.pop())


class Connection(socket.socket):
    """End of a connection that carries messages. Messages are values ready for JSON.

    Parameters
    ----------
    accepted : socket, optional
        A listener's new connection, which this object takes over.  Default: a new, unconnected end.

    Attributes
    ----------
    files : list of int
        Descriptors of the received files.
    """

    MOST_FILES = 0
    """Maximum number of open files in one message. The kernel closes further files."""

    LONGEST = 1 << 22
    """Maximum number of bytes kept of an incomplete message."""

    def __init__(self, accepted: socket.socket | None = None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, fileno=accepted.detach() if accepted else None)
        self.files: list[int] = []
        self._heard = b""

    def say(self, message: Any, files: Sequence[int] = ()) -> None:
        """Send a message with open files. Raises `OSError` if the other end has closed or does not listen."""
        line = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self, [line], files)
        if sent < len(line):  # the other end may already have answered and closed
            self.sendall(line[sent:])

    def hear(self) -> list[Any]:
        """Wait for some bytes. Return the complete messages so far, possibly none.

        Raises
        ------
        OSError
            If the other end has closed or sends too much.
        ValueError
            If a message is not JSON, or is nested too deeply to be read.
        """
        said, files, _, _ = socket.recv_fds(self, min(1 << 16, self.LONGEST + 1), self.MOST_FILES)
        self.files += files
        *lines, self._heard = (self._heard + said).split(b"\n")
        if not said or len(self._heard) > self.LONGEST:
            raise ConnectionAbortedError("the other end has closed, or sends too much")
        try:
            return [json.loads(line) for line in lines]
        except RecursionError:
            raise ValueError("a message is nested too deeply") from None

    def messages(self) -> Iterator[Any]:
        """Yield each message as it arrives. Raises as :meth:`hear` does."""
        while True:
            yield from self.hear()

    def close(self) -> None:
        """Close the connection and the received files."""
        close_files(self.files)
        super().close()


def ask(
    path: str | os.PathLike, question: Any, files: Sequence[int] = (), seconds: float | None = None
) -> Connection:
    """Send a question with open files to a server of this account.

    Return the connection for its answer.

    Raises
    ------
    OSError
        If no server of this account listens at the socket `path`.
    """
    server = Connection()
    server.settimeout(seconds)
    server.connect(str(path))
    if not is_ours(server):  # another account would get our environment and our files
        raise PermissionError(f"{path}: somebody else listens there")
    server.say(question, files)
    return server
