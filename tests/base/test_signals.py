"""Signals that end a command in an orderly way."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rocmlab.base import signals


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_ends_the_block_once_and_then_has_its_handler_again(number: signal.Signals) -> None:
    """A closed terminal sends SIGHUP twice; the second one does not end what puts files back."""
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    steps = []

    def work() -> None:
        with signals.interruptible():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                steps.append("put back")

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert steps == ["put back"]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """Under nohup the command continues when the terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_changes_no_handler() -> None:
    """Python sets handlers in the main thread alone."""
    seen = []

    def work() -> None:
        with signals.interruptible():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [signal.getsignal(signal.SIGTERM)]
