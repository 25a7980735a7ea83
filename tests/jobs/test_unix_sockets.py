"""Messages and open files between two processes of one machine."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from dlpar.jobs import unix_sockets
from dlpar.jobs.unix_sockets import Connection, ask, listen


@pytest.fixture
def ends():
    """Two ends of one connection."""
    one, other = (Connection(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_whole_and_in_order_however_their_bytes_come(ends):
    one, other = ends
    one.say({"long": "ä" * 10_000})
    one.say(-9)
    one.sendall(b'"cut')
    messages = other.messages()
    assert [next(messages), next(messages)] == [{"long": "ä" * 10_000}, -9]
    threading.Timer(0.1, one.sendall, [b' in two"\n']).start()
    assert other.hear() == ["cut in two"]
    one.close()
    with pytest.raises(OSError, match="the other end has closed"):
        other.hear()


def test_files_come_with_a_message_up_to_the_number_allowed_and_are_closed_with_the_connection(ends):
    one, other = ends
    read, write = os.pipe()
    other.MOST_FILES = 1
    one.say("two files", files=[write, read])
    assert other.hear() == ["two files"] and len(other.files) == 1
    os.write(other.files[0], b"through")
    assert os.read(read, 10) == b"through"
    os.close(write)
    other.close()
    assert other.files == [] and os.read(read, 10) == b"", "no process can write any more"
    os.close(read)


def test_a_message_that_never_ends_is_not_kept(ends):
    one, other = ends
    other.LONGEST = 100
    one.sendall(b"x" * 101)
    with pytest.raises(OSError, match="sends too much"):
        other.hear()


def test_nothing_is_asked_of_a_server_of_another_account(tmp_path, monkeypatch):
    with listen(tmp_path / "socket", 0o600):
        monkeypatch.setattr(unix_sockets, "user_of", lambda _: os.getuid() + 1)
        with pytest.raises(PermissionError, match="somebody else listens there"):
            ask(tmp_path / "socket", {"env": "private"})
    assert os.stat(tmp_path / "socket").st_mode & 0o777 == 0o600


def test_a_server_may_answer_and_close_before_the_question_has_returned(tmp_path):
    with listen(tmp_path / "socket", 0o600) as listener:

        def serve() -> None:
            for _ in range(300):
                with Connection(listener.accept()[0]) as connection:
                    connection.say(connection.hear()[0] + 1)

        threading.Thread(target=serve, daemon=True).start()
        for number in range(300):
            with ask(tmp_path / "socket", number, seconds=10.0) as connection:
                assert next(connection.messages()) == number + 1
