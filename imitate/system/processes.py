"""Processes: options for workers, ending a process together with the one that started it, and handling of signals."""

import multiprocessing
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from imitate.errors import UserError

LOOK_S = 0.5
"""Seconds between two checks that the parent is alive."""
STEP_TIMEOUT_S = 60.0
"""Seconds after which a call of an environment counts as hung, unless another limit is set."""
MAKE_FACTOR = 5.0
"""Factor by which creating an environment may take longer than a step, because it loads code and meshes."""
MAKE = "making the environment"

LOCAL, RAY = "local", "ray"

Beat = Callable[[str], None]
"""Function that is called at the beginning of each call of an environment, with :data:`MAKE`, "reset()", "step()" and
so on, and with "" at its end.
"""


def end_with_parent() -> None:
    """Let this process, started by multiprocessing, end as soon as the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_with(parent.pid, parent.sentinel)
        _kill_at_hangup(parent.sentinel)


def _end_with(parent: int | None, sentinel: int) -> None:
    """End when the parent dies: a pipe is closed, or if another process keeps the pipe open, the parent PID changes."""
    is_child = os.getppid() == parent

    def watch() -> None:
        while not wait([sentinel], timeout=LOOK_S):
            if is_child and os.getppid() != parent:
                break
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_with_stdin(patience_s: float, scratch: str | None = None) -> None:
    """Send SIGTERM to this process, the leader of a session, when its stdin is closed.

    The whole session is killed after ``patience_s``. Call this function before starting threads, because it forks a
    process that watches stdin; a thread could not run during a hanging call that holds Python's global lock.

    Args:
        patience_s: seconds until the session is killed.
        scratch: folder that is removed at the end, or None.
    """
    if sys.platform == "win32":
        end_at_hangup(sys.stdin.fileno(), lambda: os._exit(1))
        return
    leader = os.getpid()
    if os.fork() == 0:
        try:
            _guard(leader, patience_s, scratch)
        finally:
            os._exit(0)


def _guard(leader: int, patience_s: float, scratch: str | None) -> None:
    """Wait until stdin is closed, then end the leader and the rest of its group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leads_group = os.getpgrp() == leader
    os.setpgid(0, 0)
    while not wait([sys.stdin.fileno()], timeout=LOOK_S):
        if os.getppid() != leader:
            return  # the leader has already ended
    with suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while os.getppid() == leader and time.monotonic() < deadline:
        time.sleep(LOOK_S / 5)
    with suppress(ProcessLookupError):
        if leads_group:
            os.killpg(leader, signal.SIGKILL)
        elif os.getppid() == leader:
            os.kill(leader, signal.SIGKILL)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def end_at_hangup(pipe: int, end: Callable[[], None]) -> None:
    """Call `end` in a thread when the other end of a pipe is closed, for example by the death of its process."""

    def watch() -> None:
        wait([pipe])
        end()

    threading.Thread(target=watch, daemon=True).start()


def _kill_at_hangup(pipe: int) -> None:
    """Let Linux kill this process when its parent dies; a call that hangs with Python's lock blocks all threads."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


@contextmanager
def scheduled_as_before() -> Iterator[None]:
    """Restore the thread's scheduling policy after the body, because AV1 encoders change it to real-time as root."""
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, parameters)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_is_busy() -> bool:
    """Return true if more programs than cores wanted to run in the last minute; false if that is unknown."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def check_place(on: str) -> None:
    """Check the value of the option ``--on``.

    Raises:
        UserError: the value is not ``local``, ``ray`` or ``ray:HOST:PORT``.
    """
    if on in (LOCAL, RAY):
        return
    kind, _, address = on.partition(":")
    if kind == RAY and address.startswith("//"):
        raise UserError(
            f"--on {on}: Ray's client protocol is not supported; run the command on the cluster: "
            "ray job submit -- imitate eval ... --on ray"
        )
    host, _, port = address.rpartition(":")
    if kind != RAY or not host or not (port.isascii() and port.isdigit()):
        raise UserError(f"--on {on}: unknown value; give local, ray or ray:HOST:PORT")


_CPUINFO = Path("/proc/cpuinfo")


@cache
def cpu_model() -> str:
    """Return the processor's own model name, such as "AMD EPYC 7B13", or else the architecture."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name" and name.strip():
                return name.strip()
    return platform.processor() or platform.machine()


def in_main_thread() -> bool:
    """Return true in the main thread, the only one in which Python allows handlers of signals."""
    return threading.current_thread() is threading.main_thread()


def take_back(number: int, handler: Any) -> None:
    """Restore the handler of a signal if a library replaced it during the body."""
    if signal.getsignal(number) != handler:
        signal.signal(number, handler)


@contextmanager
def handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Set handlers of signals during the body, and restore the former ones; does nothing outside the main thread."""
    before = {}
    if in_main_thread():
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- signals that end a training -----------------------------------------------------------------


class Interrupt:
    """The received signal, if any; `exit_code` follows the shell's convention (130, 143)."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, or 0 if no signal was received."""
        return 0 if self.signal is None else 128 + self.signal

    @property
    def name(self) -> str:
        """Name of the signal."""
        return "" if self.signal is None else signal.Signals(self.signal).name


def ending_signals() -> list[int]:
    """Return the signals that end a training: SIGINT, SIGTERM, and SIGHUP unless nohup lets this process ignore it."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has no SIGHUP
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]


@contextmanager
def ended_by_signals(is_ending: Callable[[], bool], end: Callable[[int], object]) -> Iterator[None]:
    """During the body, call ``end`` at an ending signal, or raise KeyboardInterrupt if the end has already begun.

    See :func:`ending_signals`. SIGHUP never raises KeyboardInterrupt, because a closed terminal sends it more than
    once. The handler of SIGINT is set even if a shell lets a background command ignore this signal.

    The function does nothing outside the main thread, because Python allows no handlers there.

    Args:
        is_ending: function that returns true if the end has begun.
        end: function that begins the end; called with the signal's number.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if is_ending() and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        end(number)

    with handled(dict.fromkeys(ending_signals(), handle)):
        yield


@contextmanager
def caught_signals() -> Iterator[Interrupt]:
    """During the body, set a flag at the first ending signal and raise KeyboardInterrupt at the second."""
    interrupt = Interrupt()

    def note(number: int) -> None:
        interrupt.signal = interrupt.signal or number

    with ended_by_signals(lambda: interrupt.signal is not None, note):
        yield interrupt
