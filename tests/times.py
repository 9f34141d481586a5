"""CPU seconds of each test, its child processes counted: a plugin of pytest, by ``--times FILE``.

What a fixture of a module or session costs is not the test's that happened to be first: it has a row of its own.
Linux alone, because it reads /proc.
"""

import contextlib
import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

LIMIT_S = 2.0
"""CPU seconds of a test in the fast set; a dearer one says why by ``@pytest.mark.slow("reason")``."""
REFERENCE_S = 0.1
"""CPU seconds of `calibrate` on the processor that `LIMIT_S` is meant for, an AMD EPYC of 2021."""
SHORT_S = 0.05
"""Wall seconds of a phase after which descendants are not asked; what they did is counted with the next longer one."""
HZ = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser):
    parser.addoption(
        "--times",
        metavar="FILE",
        help=f"write the CPU seconds of each test as JSON, and fail where one above {LIMIT_S:g} s has no reason",
    )


def pytest_configure(config):
    if config.getoption("--times"):
        config.pluginmanager.register(Times(config), "times_of_tests")


class Times:
    """Measures in each process of pytest; the first one collects and reports."""

    def __init__(self, config):
        self._config = config
        self._others_s = 0.0  # of descendants, when they were asked last
        self._shared_s = 0.0  # spent in shared fixtures within the current phase
        self._fixtures = []  # (name, file, CPU seconds) that no report has yet
        self.tests, self.reasons, self.fixtures = defaultdict(float), {}, defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        reason = item.get_closest_marker("slow")
        if reason is not None:
            item.user_properties.append(("slow", str(reason.args[0]) if reason.args else ""))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        return (yield from self._phase(item))

    def _phase(self, item):
        begun, self._shared_s = time.perf_counter(), 0.0
        before = own_s() + self._others_s
        try:
            return (yield)
        finally:
            if time.perf_counter() - begun > SHORT_S:
                self._others_s = descendants_s()
            # A process that is not a descendant any more is missing from the sum.
            spent_s = max(0.0, own_s() + self._others_s - before - self._shared_s)
            item.user_properties.append(("cpu_s", spent_s))
            item.user_properties += [("fixture", found) for found in self._fixtures]
            self._fixtures = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        if fixturedef.scope == "function":
            return (yield)
        before, inner_s = cpu_s(), self._shared_s
        result = yield
        spent_s = max(0.0, cpu_s() - before - (self._shared_s - inner_s))
        self._shared_s += spent_s
        self._fixtures.append((fixturedef.argname, fixturedef.baseid, spent_s))
        return result

    def pytest_runtest_logreport(self, report):
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == "cpu_s":
                self.tests[report.nodeid] += value
            elif name == "slow":
                self.reasons[report.nodeid] = value
            elif name == "fixture":
                self.fixtures[f"{value[0]} ({value[1]})"] += value[2]

    def pytest_sessionfinish(self, session):
        if hasattr(self._config, "workerinput"):
            return
        limit_s = LIMIT_S * calibrate() / REFERENCE_S
        self.dear = [
            node
            for node, spent_s in self.tests.items()
            if spent_s > limit_s and not self.reasons.get(node)
        ]
        rooms = defaultdict(float)
        for node, spent_s in self.tests.items():
            rooms["/".join(node.split("::")[0].split("/")[:2])] += spent_s
        self.found = {
            "sum_s": sum(self.tests.values()) + sum(self.fixtures.values()),
            "limit_s": limit_s,
            "without_reason": self.dear,
            "rooms": _sorted(rooms),
            "fixtures": _sorted(self.fixtures),
            "tests": _sorted(self.tests),
        }
        Path(self._config.getoption("--times")).write_text(json.dumps(self.found, indent=1) + "\n")
        if self.dear and self._config.getoption("--set") == "fast" and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        terminalreporter.section(f"CPU seconds: {self.found['sum_s']:.0f} in all")
        for title in ("rooms", "fixtures", "tests"):
            write(f"{title}:")
            for name, spent_s in list(self.found[title].items())[:40]:
                write(f"  {spent_s:8.2f}  {name}")
        if self.dear:
            write(f"above {self.found['limit_s']:.1f} CPU seconds and not marked slow(reason):")
            for node in self.dear:
                write(f"  {self.tests[node]:8.2f}  {node}")


def _sorted(seconds):
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    return dict(sorted(rounded.items(), key=lambda pair: -pair[1]))


def calibrate():
    """Return the CPU seconds of a loop of fixed length, the least of five."""
    found = []
    for _ in range(5):
        before, total = time.process_time(), 0
        for number in range(2_000_000):
            total += number & 7
        found.append(time.process_time() - before)
    return min(found)


def cpu_s():
    """Return the CPU seconds of this process, of its living descendants, and of those that it has waited for."""
    return own_s() + descendants_s()


def own_s():
    """Return the CPU seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def descendants_s():
    """Return the CPU seconds of the living descendants. It takes milliseconds where processes have many threads."""
    spent_s, waiting = 0.0, _children(os.getpid())
    while waiting:
        pid = waiting.pop()
        try:
            line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        # After the name in parentheses: fields 14 to 17 are its and its dead children's user and system time.
        spent_s += sum(map(int, line[line.rindex(")") + 2 :].split()[11:15])) / HZ
        waiting += _children(pid)
    return spent_s


def _children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, task.read_text().split())
    return found
