"""Tests."""

import signal
from contextlib import nullcontext

import pytest

from imitate.system.plain_files import locked
from tests.forked import Forked


def stay(say):
    say("forked")
    signal.pause()


@pytest.mark.parametrize("by_process", [True, False])
def test_a_forked_process_holds_a_lock_unless_it_is_by_process(tmp_path, by_process):
    file = locked(tmp_path / "a", by_process=by_process)
    with Forked(stay) as fork:
        assert fork.line() == "forked"
        file.close()
        with nullcontext() if by_process else pytest.raises(BlockingIOError):
            locked(tmp_path / "a", wait=False, by_process=by_process).close()
