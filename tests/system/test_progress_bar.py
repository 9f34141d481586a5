"""Progress bars of processes that are forked and killed."""

import io
import signal
import threading

from imitate.system.text import ProgressBar
from tests.forked import Forked, die


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
