"""Map of the tests: the CPU time of each test and the lines of the package that it executes.

The map is a JSON file for each test file, in ``.mutation_map/`` (not in git), so that an interrupted recording
continues with the remaining files, and several recordings form one map. A test's lines include those of processes that
it starts and of all its fixtures. Sources are stored by their hash: lines of a source that has changed since are
translated, and a function with changed lines counts as a whole.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.line_recorder import line_recorder, record_children

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".mutation_map"
AT_ONCE = 25
"""Number of test files in one process."""


@dataclass
class Reach:
    """Tests that execute lines of one module.

    Attributes:
        seconds: CPU seconds of each test.
        lines: executed lines of each test as bits; bit n is line n of the present source.
        near: tests in files that name the module.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    near: set[str] = field(default_factory=set)

    def tests(self, changed: int, at_most: float, budget: float) -> list[str]:
        """Return the tests that execute one of the changed lines: those near the module first, then by their time.

        Args:
            changed: lines as bits; 0 for a fault outside of functions, which each test may notice.
            at_most: largest CPU seconds of a test.
            budget: largest CPU seconds of all tests together.
        """
        found = [
            test
            for test, lines in self.lines.items()
            if self.seconds[test] <= at_most and (lines & changed or not changed)
        ]
        found.sort(key=lambda test: (test not in self.near, self.seconds[test]))
        chosen: list[str] = []
        for test in found:
            budget -= self.seconds[test]
            if chosen and budget < 0:
                break
            chosen.append(test)
        return sorted(chosen, key=lambda test: self.seconds[test])


# ---- reading ---------------------------------------------------------------------------------------


def reach(source: str, folder: Path = FOLDER) -> Reach:
    """Return the map's tests of one source file, given by its path from the root of the repository."""
    found = Reach()
    for file, entry in _entries(folder):
        lines = entry["lines"].get(source, {})
        for test, executed in lines.items():
            recorded = folder / "sources" / entry["sources"][source]
            found.lines[test] = _as_it_is_now(int(executed, 16), recorded, source)
        if names(ROOT / file, source):
            # Constants and defaults outside of functions are read without executing a line.
            found.lines = dict.fromkeys(entry["seconds"], 0) | found.lines
            # A killed process has not reported its lines, so it may have executed any.
            found.lines |= dict.fromkeys(entry["started"], -1)
            found.near |= entry["seconds"].keys()
        found.seconds |= entry["seconds"]
    return found


def test_files(paths: Iterable[str | Path]) -> list[str]:
    """Return the test files in these folders, and these files, by their paths from the root."""
    found: dict[str, None] = {}
    for path in paths:
        full = ROOT / path
        for file in sorted(full.rglob("test_*.py")) if full.is_dir() else [full]:
            found[str(file.relative_to(ROOT))] = None
    return list(found)


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def names(test_file: Path, source: str) -> bool:
    """Return true if a test file names a module: by its own name, by an import, or in a program that it starts."""
    package, _, name = source.removesuffix(".py").replace("/", ".").rpartition(".")
    if name == "__init__":
        package, _, name = package.rpartition(".")
    whole = rf"{re.escape(package)}\.{name}\b"
    listed = rf"from {re.escape(package)} import (\([^)]*|[^\n]*)\b{name}\b"
    if test_file.stem == f"test_{name}" or test_file.stem.startswith(f"test_{name}_"):
        own = package.replace("imitate", "tests", 1).split(".")
        if test_file.parent.parts[-len(own) :] == tuple(own):
            return True
    return re.search(f"{whole}|{listed}", _text(test_file)) is not None


def digest(file: Path) -> str:
    """Return a digest, which differs for each version of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _entries(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("tests/**/*.json")):
        file = str(path.relative_to(folder).with_suffix(""))
        if (ROOT / file).is_file():
            yield file, _entry(path, path.stat().st_mtime_ns)


@functools.cache
def _entry(path: Path, changed: int) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return entry


@functools.cache
def _as_it_is_now(lines: int, recorded: Path, source: str) -> int:
    """Translate lines of an earlier version of a source; a changed part becomes the function around it."""
    now = (ROOT / source).read_bytes()
    before = recorded.read_bytes()
    if before == now:
        return lines
    found = 0
    matcher = difflib.SequenceMatcher(None, before.splitlines(), now.splitlines(), autojunk=False)
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        if kind == "equal":
            found |= (lines >> (start + 1) & (1 << end - start) - 1) << (new_start + 1)
        # A test that executed a line next to the changed ones counts as executing these.
        elif lines >> max(start, 0) & (1 << end - start + 2) - 1:
            found |= ((1 << new_end - new_start) - 1) << (new_start + 1)
    return found


# ---- recording -------------------------------------------------------------------------------------


class Recording:
    """Plugin of pytest that writes an entry of the map when the last test of a file has run.

    Args:
        recorder: recorder of lines.
        children: folder to which processes that tests start write their lines.
        folder: folder of the map.
    """

    def __init__(self, recorder: Any, children: Path, folder: Path = FOLDER) -> None:
        self._recorder, self._children, self._folder = recorder, children, folder
        self._fixtures: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._seconds: dict[str, float] = {}
        self._uses: dict[str, list[str]] = {}
        self._failed: set[str] = set()
        self._started: set[str] = set()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: Any) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self._started.add(os.environ.get("IMITATE_TEST", ""))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out nightly tests."""
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Record the lines and CPU seconds of this test."""
        self._enter(item.nodeid)
        began = _cpu_s()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = _cpu_s() - began
            defined = getattr(item, "_fixtureinfo", None)
            of_name = defined.name2fixturedefs if defined else {}
            self._uses[item.nodeid] = [_key(d) for found in of_name.values() for d in found]
            self._enter("")
            if nextitem is None or nextitem.path != item.path:
                self._write(item.path.relative_to(ROOT))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Record the lines of a shared fixture for every test that uses it."""
        if fixturedef.scope == "function":
            return (yield)
        earlier = self._enter(_key(fixturedef))
        try:
            return (yield)
        finally:
            self._enter(earlier)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out tests that fail or are skipped."""
        if not report.passed:
            self._failed.add(report.nodeid)

    def _enter(self, name: str) -> str:
        os.environ["IMITATE_TEST"] = name
        earlier: str = self._recorder.enter(name)
        return earlier

    def _write(self, file: Path) -> None:
        lines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        taken = [(name, found) for name, found in self._recorder.take().items()]
        for path in self._children.glob("*.json"):
            entry = json.loads(path.read_text(encoding="utf-8"))
            taken.append((entry["test"], entry["lines"]))
            path.unlink()
        for name, found in taken:
            for source, mask in found.items():
                kept = lines if name in self._seconds else self._fixtures
                kept[name][source] |= mask
        of_source: dict[str, dict[str, int]] = defaultdict(dict)
        for test in self._seconds.keys() - self._failed:
            for used in self._uses[test]:
                for source, mask in self._fixtures.get(used, {}).items():
                    lines[test][source] |= mask
            for source, mask in lines[test].items():
                of_source[str(Path(source).relative_to(ROOT))][test] = mask
        self._keep(file, of_source)
        self._seconds, self._uses, self._failed = {}, {}, set()
        self._started.clear()

    def _keep(self, file: Path, of_source: dict[str, dict[str, int]]) -> None:
        (self._folder / "sources").mkdir(parents=True, exist_ok=True)
        sources = {source: digest(ROOT / source) for source in sorted(of_source)}
        for source, version in sources.items():
            (self._folder / "sources" / version).write_bytes((ROOT / source).read_bytes())
        entry = {
            "digest": digest(ROOT / file),
            "seconds": {test: round(seconds, 3) for test, seconds in self._seconds.items()},
            "started": sorted(self._started & self._seconds.keys() - self._failed),
            "sources": sources,
            "lines": {s: {t: f"{m:x}" for t, m in of_source[s].items()} for s in sources},
        }
        path = self._folder / f"{file}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(entry), encoding="utf-8")
        path.with_suffix(".part").replace(path)


def record(files: Sequence[str], folder: Path = FOLDER) -> None:
    """Record test files, except unchanged ones in the map."""
    from benchmarks.mutation_child import OPTIONS, in_children, run_in_fork

    known = {file for file, entry in _entries(folder) if entry["digest"] == digest(ROOT / file)}
    left = [file for file in files if file not in known]
    for start in range(0, len(left), AT_ONCE):
        part = left[start : start + AT_ONCE]
        print(f"recording {start + 1} to {start + len(part)} of {len(left)} files", flush=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as children:

            def work(part: Sequence[str] = part, children: str = children) -> int:
                recorder = line_recorder(str(ROOT / "imitate"))
                record_children(recorder, children, also_this=False)
                in_children(IMITATE_RECORD=os.pathsep.join([str(ROOT / "imitate"), children]))
                plugin = Recording(recorder, Path(children), folder)
                return int(pytest.main([*OPTIONS, *part], plugins=[plugin]))

            run_in_fork(work)


def _key(fixturedef: Any) -> str:
    return f"{fixturedef.baseid} {fixturedef.argname}"


def _cpu_s() -> float:
    return sum(os.times()[:4])
