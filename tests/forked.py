"""Programs that tests kill: functions that run in a fork of this process rather than in a new interpreter."""

import os
import signal
import traceback


class Forked:
    """A process that runs ``work(say, *args)``; what it says comes line by line.

    It ends with code 0, or 1 after an exception, without any of this process's clean-up. As a context manager it is
    killed at the end where it still runs.
    """

    def __init__(self, work, *args):
        read, write = os.pipe()
        self.code = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            code = 1
            try:
                work(lambda words: os.write(write, f"{words}\n".encode()), *args)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        self._lines = os.fdopen(read)

    def line(self):
        """Wait for the next line; '' if it has ended."""
        return self._lines.readline().rstrip("\n")

    def rest(self):
        """Wait for its end; return the lines that were not asked for yet. ``code`` is then its exit code."""
        lines = self._lines.read().splitlines()
        self._wait()
        return lines

    def kill(self):
        """End it by SIGKILL; return its last lines."""
        os.kill(self.pid, signal.SIGKILL)
        return self.rest()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.code is None:
            self.kill()
        self._lines.close()

    def _wait(self):
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def die(*args, **kwargs):
    """End the process that calls this by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
