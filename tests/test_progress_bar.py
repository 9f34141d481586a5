"""Progress bars of processes that are forked and killed."""

import io
import multiprocessing
import os
import signal
import threading

from imitate.progress_bar import ProgressBar

FORK = multiprocessing.get_context("fork")


def draw():
    with ProgressBar(total=2, file=io.StringIO()) as bar:
        bar.update()


def draws_within(seconds):
    """Draw in a thread, which may be left behind where a lock is held for ever."""
    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def die_with_the_lock():
    ProgressBar.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_killed_while_it_draws_holds_up_no_other():
    draw()  # tqdm makes its own lock at the first bar
    process = FORK.Process(target=die_with_the_lock)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert draws_within(10)


def test_a_process_forked_while_a_thread_draws_can_draw():
    held, over = threading.Event(), threading.Event()

    def hold():
        with ProgressBar.get_lock():
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    process = FORK.Process(target=lambda: os._exit(0 if draws_within(10) else 1))
    process.start()
    process.join(60)
    over.set()
    thread.join()
    assert process.exitcode == 0
