"""Forked processes of mutation testing: tests are collected once, then run in a fork for each mutant.

In a warm trial, a process that has collected a module's tests forks one process per mutant, which puts the mutated code
into the loaded function. In a cold trial, for faults outside of functions, a process that has not imported imitate yet
imports it with the mutated module instead of the original. Python processes that tests start import the mutated module
in both trials.
"""

from __future__ import annotations

import functools
import importlib
import json
import marshal
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from benchmarks.children.sitecustomize import MutatedFinder
from benchmarks.mutants import Mutant

ROOT = Path(__file__).resolve().parents[1]
CHILDREN = Path(__file__).with_name("children")
OPTIONS = ("-q", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:cov")
WALL_S = 300.0
"""Wall seconds after which a waiting mutant is ended; a computing one is ended by its CPU seconds."""

Work = Callable[[Path], int]
"""Function that runs tests, writes the name of each to the file before it runs, and returns an exit code."""


class _Taken:
    """Plugin that passes the session to `work` after the collection, instead of running tests."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self._work = work

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replace pytest's loop over tests."""
        self._work(session)
        return True


class Child:
    """A forked process that runs tests.

    Args:
        work: function to run.
        cpu_s: CPU seconds after which the process is ended.

    Attributes:
        seconds: duration of the process.
        killer: the test that failed, after the process has ended.
    """

    def __init__(self, work: Work, cpu_s: float) -> None:
        self._began = time.monotonic()
        self._name_file = Path(tempfile.mkstemp(prefix="killer")[1])

        def limited() -> int:
            soft = int(cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 5))
            return work(self._name_file)

        self._process = _fork(limited, Path(os.devnull))
        self.seconds, self.killer = 0.0, ""

    def poll(self) -> str | None:
        """Return 'killed', 'timeout' or 'survived', or None while the process runs."""
        done, status = os.waitpid(self._process, os.WNOHANG)
        self.seconds = time.monotonic() - self._began
        if not done and self.seconds < WALL_S:
            return None
        # end its group of processes, with all that its tests have started
        _end_group(self._process)
        if not done:
            os.waitpid(self._process, 0)
        self.killer = self._name_file.read_text()
        self._name_file.unlink()
        code = os.waitstatus_to_exitcode(status) if done else -signal.SIGXCPU
        if code == 0:
            return "survived"
        return "timeout" if code == -signal.SIGXCPU else "killed"

    def wait(self) -> str:
        """Wait for the process and return its verdict."""
        while (status := self.poll()) is None:
            time.sleep(0.01)
        return status


def collected(files: Sequence[str], work: Callable[[pytest.Session], Any]) -> Any:
    """Return the result of `work` in a process that has collected the tests of these files.

    Raises:
        SystemExit: the tests cannot be collected, or `work` failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")

        def take(session: pytest.Session) -> None:
            out.write_text(json.dumps(work(session)), encoding="utf-8")

        run_in_fork(lambda: int(pytest.main([*OPTIONS, *files], plugins=[_Taken(take)])))
        if not out.is_file():
            raise SystemExit(f"{' '.join(files)}: cannot be collected")
        return json.loads(out.read_text(encoding="utf-8"))


def run_in_fork(work: Callable[[], int]) -> None:
    """Run `work` in another process and wait; its output is shown unless it ends with 0 or 1 (failed tests)."""
    with tempfile.NamedTemporaryFile() as log:
        process = _fork(work, Path(log.name))
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) not in (0, 1):
            sys.stdout.write(Path(log.name).read_text(encoding="utf-8", errors="replace"))


def in_children(**variables: str) -> None:
    """Let the Python processes that this one starts load ``children/sitecustomize.py`` with these variables."""
    begin = subprocess.Popen.__init__

    def paths(before: str | None) -> str:
        return os.pathsep.join([str(CHILDREN), *filter(None, [before]), str(ROOT)])

    def begin_with(self: Any, *args: Any, env: Any = None, **kwargs: Any) -> None:
        if env is not None:
            now = {name: os.environ[name] for name in ("IMITATE_TEST",) if name in os.environ}
            env = {**env, **now, **variables}
            if str(CHILDREN) not in env.get("PYTHONPATH", ""):
                env["PYTHONPATH"] = paths(env.get("PYTHONPATH"))
        begin(self, *args, env=env, **kwargs)

    os.environ.update(variables, PYTHONPATH=paths(os.environ.get("PYTHONPATH")))
    subprocess.Popen.__init__ = begin_with  # type: ignore[method-assign]


def run_items(session: pytest.Session, items: Sequence[pytest.Item], name_file: Path) -> int:
    """Run tests until one fails; return 0 if all pass."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        name_file.write_text(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def as_it_is(session: pytest.Session, test: str) -> Child:
    """Run one test without a mutant."""
    items = _in_order(session.items, [test])
    return Child(lambda name_file: run_items(session, items, name_file), WALL_S)


def warm(
    session: pytest.Session, tests: Sequence[str], module: str, mutant: Mutant, cpu_s: float
) -> Child | None:
    """Run tests on a mutant whose code is put into the loaded function; return None if that is impossible."""
    try:
        function = _living(importlib.import_module(module), mutant.function)
    except (
        ImportError
    ):  # only the tests can import it, with a stand-in for a package that is not installed
        return None
    whole = compile(mutant.tree, "mutant", "exec")
    code = _code(whole, mutant.function)
    if function is None or code is None:
        return None
    old = function.__code__
    if (old.co_firstlineno, old.co_freevars) != (code.co_firstlineno, code.co_freevars):
        return None

    def work(name_file: Path) -> int:
        _import_in_children(module, whole)
        function.__code__ = code.replace(co_filename=old.co_filename)
        return run_items(session, _in_order(session.items, tests), name_file)

    return Child(work, cpu_s)


def cold(
    files: Sequence[str], tests: Sequence[str], module: str, mutant: Mutant | None, cpu_s: float
) -> Child:
    """Run tests on an imported mutant, or on the original module if it is None."""

    def work(name_file: Path) -> int:
        if mutant is not None:
            code = compile(mutant.tree, module, "exec")
            sys.meta_path.insert(0, MutatedFinder(module, code))
            _import_in_children(module, code)
        result: list[int] = []

        def run(session: pytest.Session) -> None:
            result.append(run_items(session, _in_order(session.items, tests), name_file))

        code = pytest.main([*OPTIONS, *files], plugins=[_Taken(run)])
        return int(code) or sum(result)

    return Child(work, cpu_s)


def _import_in_children(module: str, code: CodeType) -> None:
    path = Path(tempfile.mkstemp(prefix="mutant")[1])
    path.write_bytes(marshal.dumps((module, code)))
    in_children(IMITATE_MUTANT=str(path))


def _in_order(items: Sequence[pytest.Item], names: Sequence[str]) -> list[pytest.Item]:
    known = {item.nodeid: item for item in items}
    return [known[name] for name in names if name in known]


def _living(module: Any, path: Sequence[str]) -> FunctionType | None:
    """Return the loaded function of this dotted path, unwrapped from properties and decorators."""
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
    """Return the code of the function or class of this path in a module's code."""
    for name in path:
        inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if len(inner) != 1:
            return None
        code = inner[0]
    return code if path else None


def _fork(work: Callable[[], int], log: Path) -> int:
    """Run `work` in a new process, whose exit code is the result; return its process number."""
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
