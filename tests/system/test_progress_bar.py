"""Progress bars of processes that are forked and killed; numbers with their intervals."""

import io
import signal
import threading

import pytest

from imitate.system.text import ProgressBar, mean_text
from tests.forked import Forked, die


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((172.04, 41.2, (160.01, 184.0)), "172 ± 41 (160 - 184)"),
        ((-1757.2, 131.0, (-1957.0, 3.5)), "-1757 ± 130 (-1957 to 3.5)"),
        ((12345.6, 1234.5), "12350 ± 1200"),
        ((0.5, None, (None, None)), "0.5"),
        ((float("nan"), 1.0), "not finite"),
    ],
)
def test_a_mean_has_deviation_and_interval_where_they_are_known(numbers, text):
    assert mean_text(*numbers) == text


def draw():
    with ProgressBar(total=2, file=io.StringIO()) as bar:
        bar.update()


def can_draw():
    """Draw in a thread, which may be left behind where a lock is held for ever."""
    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    thread.join(600)
    return not thread.is_alive()


def die_with_the_lock(say):
    ProgressBar.get_lock().acquire()
    die()


def test_a_process_killed_while_it_draws_holds_up_no_other():
    draw()  # tqdm makes its own lock at the first bar
    with Forked(die_with_the_lock) as process:
        process.rest()
    assert process.code == -signal.SIGKILL
    assert can_draw()


def test_a_process_forked_while_a_thread_draws_can_draw():
    held, over = threading.Event(), threading.Event()

    def hold():
        with ProgressBar.get_lock():
            held.set()
            over.wait(600)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(600)
    with Forked(lambda say: say(can_draw())) as process:
        assert process.line() == "True"
    over.set()
    thread.join()
