"""Recorders of the executed lines of a package, by the test, fixture or process that executes them.

They use ``sys.monitoring`` if Python has it (3.12 and later), else the C tracer of coverage. The module has few
imports, because processes that tests start also use it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

Lines = dict[str, dict[str, int]]
"""Executed lines by name of test or fixture and path of a file, as a number whose bit ``n`` stands for line ``n``."""


class Monitored:
    """Recorder that uses ``sys.monitoring``, with which a line costs time only once for each name.

    Args:
        folder: folder of the package.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._name = folder + os.sep, ""
        self._found: Any = defaultdict(lambda: defaultdict(set))
        self._own: Any = sys.monitoring  # type: ignore[attr-defined]
        self._tool = self._own.PROFILER_ID
        self._own.use_tool_id(self._tool, "imitate lines")
        events = self._own.events
        self._own.register_callback(self._tool, events.PY_START, self._start)
        self._own.register_callback(self._tool, events.LINE, self._line)
        self._own.set_events(self._tool, events.PY_START)

    def _start(self, code: Any, offset: int) -> Any:
        if code.co_filename.startswith(self._folder):
            self._own.set_local_events(self._tool, code, self._own.events.LINE)
        return self._own.DISABLE

    def _line(self, code: Any, number: int) -> Any:
        self._found[self._name][code.co_filename].add(number)
        return self._own.DISABLE

    def enter(self, name: str) -> str:
        """Record the following lines under this name; return the earlier name."""
        earlier, self._name = self._name, name
        self._own.restart_events()
        return earlier

    def take(self) -> Lines:
        """Return the lines executed since the last call."""
        found, self._found = self._found, defaultdict(lambda: defaultdict(set))
        self._own.restart_events()
        return {name: {f: _mask(n) for f, n in files.items()} for name, files in found.items()}


class Traced:
    """Recorder by the C tracer of coverage, with the same methods as `Monitored`."""

    def __init__(self, folder: str) -> None:
        self._folder, self._name = folder, ""
        self._start()

    def _start(self) -> None:
        from coverage import Coverage

        files = os.path.join(self._folder, "*")
        self._coverage = Coverage(
            data_file=None, include=[files], config_file=False, branch=False, messages=False
        )
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._coverage.start()
        self._coverage.switch_context(self._name)

    def enter(self, name: str) -> str:
        """Record the following lines under this name; return the earlier name."""
        earlier, self._name = self._name, name
        self._coverage.switch_context(name)
        return earlier

    def take(self) -> Lines:
        """Return the lines executed since the last call."""
        self._coverage.stop()
        data = self._coverage.get_data()
        found: Lines = defaultdict(dict)
        for file in data.measured_files():
            for number, names in data.contexts_by_lineno(file).items():
                for name in names:
                    found[name][file] = found[name].get(file, 0) | 1 << number
        self._start()
        return dict(found)


def line_recorder(folder: str) -> Any:
    """Return a started recorder of the package in this folder, the fastest one for this Python."""
    return (Monitored if hasattr(sys, "monitoring") else Traced)(folder)


def record_children(recorder: Any, out: str, also_this: bool) -> None:
    """Write the lines that forked children of this process execute to files of a folder when they end.

    Args:
        recorder: recorder of this process.
        out: the folder; each file has the last value of IMITATE_TEST, and lines by file.
        also_this: true to write the lines of this process too.
    """
    this, end = os.getpid(), os._exit

    def save() -> None:
        if also_this or os.getpid() != this:
            lines: dict[str, int] = defaultdict(int)
            for files in recorder.take().values():
                for file, mask in files.items():
                    lines[file] |= mask
            name = os.path.join(out, f"{os.getpid()}-{time.monotonic_ns()}")
            with open(f"{name}.part", "w") as stream:
                json.dump({"test": os.environ.get("IMITATE_TEST", ""), "lines": lines}, stream)
            os.rename(f"{name}.part", f"{name}.json")

    def save_and_end(code: int) -> None:
        with suppress(Exception):
            save()
        end(code)

    def forget() -> None:
        with suppress(Exception):
            recorder.take()

    os.register_at_fork(after_in_child=forget)
    atexit.register(save)
    os._exit = save_and_end


def _mask(numbers: set[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
