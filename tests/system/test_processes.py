"""Tests."""

import os
import signal
import threading

import pytest

from imitate.system.processes import caught_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_a_flag_the_second_an_exception(number, code):
    before = signal.getsignal(number)
    with caught_signals() as interrupt:
        assert (interrupt.signal, interrupt.exit_code) == (None, 0)
        os.kill(os.getpid(), number)
        assert interrupt.exit_code == code and interrupt.name == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_in_another_thread_nothing_is_caught():
    seen = []

    def work():
        with caught_signals() as interrupt:
            seen.append(interrupt.exit_code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]


def test_a_closed_terminal_ends_a_training_however_often_it_says_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with caught_signals() as interrupt:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGHUP)
            assert (interrupt.exit_code, interrupt.name) == (129, "SIGHUP")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with caught_signals() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)
