"""Signals that ask a command to stop."""

from __future__ import annotations

import signal

import pytest

from dlpar.cli.signals import Stops


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stops() as stops:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == stops._note
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_interrupts_at_once():
    with Stops() as stops:
        signal.raise_signal(signal.SIGINT)
        assert stops.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_interrupting_one_interrupts_once():
    with Stops(interrupting=True) as stops:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stops.asked == signal.SIGTERM
