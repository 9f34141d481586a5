"""The signal that ends a process is as it was before, in whatever order its takers are released."""

import itertools
import signal

import pytest

from imitate.deploy.at_exit import AtExit


class Closed:
    def __init__(self):
        self.times = 0

    def close(self):
        self.times += 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_handler_is_as_before_in_any_order(order):
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        things = [Closed() for _ in range(3)]
        exits = [AtExit(thing.close) for thing in things]
        handlers = [signal.getsignal(signal.SIGTERM)]
        for number in order:
            exits[number].release()
            handlers.append(signal.getsignal(signal.SIGTERM))
        assert all(callable(handler) for handler in handlers[:3])
        assert handlers[3] is signal.SIG_DFL
        assert [thing.times for thing in things] == [0, 0, 0]
    finally:
        signal.signal(signal.SIGTERM, before)
