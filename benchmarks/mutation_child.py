"""Processes of mutation testing, all forked: tests are collected once, then run in a fork for each mutant.

The warm way: a process that has collected a module's tests forks one process per mutant, which puts the mutated code
into the living function. The cold way, for faults outside of functions: a process that has not imported imitate yet
imports it with the mutated module in the place of the true one.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from benchmarks.mutants import Mutant

OPTIONS = ("-q", "-x", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:cov")


class _MutatedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from a syntax tree."""

    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:
        """Code of the tree instead of the file's."""
        return compile(self.tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Puts the mutated module in the place of the true one."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module, self._tree = module, tree

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The place of the file, with another loader."""
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            raise ImportError(f"{fullname} has no source")
        loader = _MutatedLoader(fullname, spec.origin)
        loader.tree = self._tree
        spec.loader = loader
        return spec


class _Ordered:
    """Puts the chosen tests into their order, leaves the others out."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose."""
        items[:] = _in_order(items, self._names)


class _Taken:
    """Hands the session to `work` when everything is collected, instead of running tests."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self._work = work

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's own loop."""
        self._work(session)
        return True


class Recorder:
    """Durations of tests, and the lines of a file that they execute."""

    def __init__(self, path: Path) -> None:
        self._file = str(path)
        self.durations: dict[str, float] = defaultdict(float)
        self.lines: dict[str, set[int]] = defaultdict(set)
        self.shared: set[int] = set()
        self._current = self.shared

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow only frames of the file."""
        if frame.f_code.co_filename != self._file:
            return None
        self._current.add(frame.f_lineno)
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Lines are those of this test."""
        self._current = self.lines[item.nodeid]
        try:
            return (yield)
        finally:
            self._current = self.shared

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture of several tests executes is every test's."""
        before = self._current
        if fixturedef.scope != "function":
            self._current = self.shared
        try:
            return (yield)
        finally:
            self._current = before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up setup, call and teardown."""
        self.durations[report.nodeid] += report.duration

    def found(self) -> dict[str, Any]:
        """For JSON."""
        lines = {name: sorted(numbers) for name, numbers in self.lines.items()}
        return {"durations": self.durations, "lines": lines, "shared": sorted(self.shared)}


class Child:
    """A forked process that runs tests.

    Args:
        work: gives pytest's exit code.
        limit_s: seconds after which the process is ended.
        log: file for its output.

    Attributes:
        seconds: that it took.
    """

    def __init__(
        self, work: Callable[[], int], limit_s: float, log: Path = Path(os.devnull)
    ) -> None:
        self._began, self._limit_s = time.monotonic(), limit_s
        self._process = _fork(work, log)
        self.seconds = 0.0

    def poll(self) -> str | None:
        """'killed', 'timeout' or 'survived'; None while it runs."""
        done, status = os.waitpid(self._process, os.WNOHANG)
        self.seconds = time.monotonic() - self._began
        if not done and self.seconds < self._limit_s:
            return None
        # Its own group of processes, with whatever its tests left behind.
        _end_group(self._process)
        if not done:
            os.waitpid(self._process, 0)
            return "timeout"
        return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"

    def wait(self) -> str:
        """The verdict."""
        while (status := self.poll()) is None:
            time.sleep(0.01)
        return status


def collected(files: Sequence[str], work: Callable[[pytest.Session], Any]) -> Any:
    """What `work` gives in a process that has collected the tests of these files.

    Raises:
        SystemExit: they cannot be collected, or `work` failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out.json"), Path(folder, "log.txt")

        def take(session: pytest.Session) -> None:
            out.write_text(json.dumps(work(session)), encoding="utf-8")

        process = _fork(lambda: int(pytest.main([*OPTIONS, *files], plugins=[_Taken(take)])), log)
        os.waitpid(process, 0)
        if not out.is_file():
            raise SystemExit(f"{' '.join(files)}:\n{log.read_text()}")
        return json.loads(out.read_text(encoding="utf-8"))


def measure(session: pytest.Session, path: Path) -> dict[str, Any]:
    """Durations of the session's tests, and the lines of a file that each executes.

    Raises:
        RuntimeError: one fails as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out.json"), Path(folder, "log.txt")

        def work() -> int:
            recorder = Recorder(path)
            session.config.pluginmanager.register(recorder)
            sys.settrace(recorder.trace)
            threading.settrace(recorder.trace)
            code = run_items(session, session.items)
            sys.settrace(None)
            out.write_text(json.dumps(recorder.found()), encoding="utf-8")
            return code

        status = Child(work, 3600.0, log).wait()
        if status != "survived":
            raise RuntimeError(f"the tests fail without a mutant ({status}): {log.read_text()}")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def run_items(session: pytest.Session, items: Sequence[pytest.Item]) -> int:
    """Run tests until one fails; 0 if all pass."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def warm(
    session: pytest.Session, tests: Sequence[str], module: str, mutant: Mutant, limit_s: float
) -> Child | None:
    """Tests on a mutant whose code is put into the living function; None where that cannot be done."""
    function = _living(importlib.import_module(module), mutant.function)
    code = _code(compile(mutant.tree, "mutant", "exec"), mutant.function)
    if function is None or code is None:
        return None
    old = function.__code__
    if (old.co_firstlineno, old.co_freevars) != (code.co_firstlineno, code.co_freevars):
        return None

    def work() -> int:
        function.__code__ = code.replace(co_filename=old.co_filename)
        return run_items(session, _in_order(session.items, tests))

    return Child(work, limit_s)


def cold(
    files: Sequence[str], tests: Sequence[str], module: str, mutant: Mutant, limit_s: float
) -> Child:
    """Tests on a mutant that is imported."""

    def work() -> int:
        sys.meta_path.insert(0, _Finder(module, mutant.tree))
        return int(pytest.main([*OPTIONS, *files], plugins=[_Ordered(tests)]))

    return Child(work, limit_s)


def _in_order(items: Sequence[pytest.Item], names: Sequence[str]) -> list[pytest.Item]:
    known = {item.nodeid: item for item in items}
    return [known[name] for name in names if name in known]


def _living(module: Any, path: Sequence[str]) -> FunctionType | None:
    """The function of this dotted path, out of properties and decorators."""
    found = module
    for name in path:
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    elif isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found if isinstance(found, FunctionType) else None


def _code(code: CodeType, path: Sequence[str]) -> CodeType | None:
    """Code of the function or class of this path within a module's."""
    for name in path:
        inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if len(inner) != 1:
            return None
        code = inner[0]
    return code if path else None


def _fork(work: Callable[[], int], log: Path) -> int:
    """Do `work` in a new process whose exit code is its result; its process number."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        with log.open("w", encoding="utf-8") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        with tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = folder
            code = work()
            sys.stdout.flush()
    finally:
        os._exit(code)


def _end_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
