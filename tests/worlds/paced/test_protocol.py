"""The line between a paced rank and its referee."""

from __future__ import annotations

import pickle
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dlpar.worlds.paced import protocol


class NoParcels:
    moving = False


@pytest.mark.parametrize("call", ["flush", "answer"])
def test_a_rank_whose_referee_has_gone_leaves_the_first_word_to_others(call, monkeypatch):
    monkeypatch.setattr(protocol, "ORPHANED", 0.3)
    ours, theirs = socket.socketpair()
    line = protocol.Line(protocol.Link(ours), protocol.Wall(), NoParcels())
    theirs.close()
    line.tell("advance", 1.0)
    began = time.monotonic()
    with ours, pytest.raises(ConnectionError):
        getattr(line, call)()
    assert time.monotonic() - began >= 0.3


@pytest.mark.timed
def test_a_long_message_costs_time_in_proportion_to_its_length():
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as other:
        data, began = bytes(32 << 20), time.monotonic()
        sending = other.submit(protocol.Link(ours).send, data)
        assert protocol.Link(theirs).receive() == data
        sending.result()
    # This took 15 s and more when each piece cost a copy of those before it, and now takes half a second.
    assert time.monotonic() - began < 5


def test_a_signal_within_a_message_does_not_end_the_link():
    ours, theirs = socket.socketpair()
    caught, reader, data = [], threading.get_ident(), pickle.dumps(bytes(1000))
    whole = len(data).to_bytes(protocol.HEAD, "little") + data

    def halves():
        theirs.sendall(whole[:500])
        time.sleep(0.2)  # the reader waits for the second half
        signal.pthread_kill(reader, signal.SIGUSR2)
        time.sleep(0.1)
        theirs.sendall(whole[500:])

    before = signal.signal(signal.SIGUSR2, lambda *_: caught.append(1))
    try:
        with ours, theirs, ThreadPoolExecutor(1) as other:
            sending = other.submit(halves)
            assert protocol.Link(ours).receive() == bytes(1000)
            sending.result()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert caught == [1]
