"""Signs of life of a worker process in memory shared with its parent, and detection of hangs."""

from __future__ import annotations

from typing import Any

from imitate.crew.backend import POLL_S, Limits
from imitate.system import clock
from imitate.system.processes import MAKE, MAKE_FACTOR


class Pulse:
    """A process's counter of beats and the call that is running.

    Args:
        context: context of multiprocessing.
    """

    def __init__(self, context: Any) -> None:
        self._beats = context.RawValue("Q", 0)
        self._call = context.RawArray("c", 32)

    def __call__(self, call: str) -> None:
        """Report the call that begins now; "" if no call of the environment is running."""
        # Written in this order and read in the opposite one: a reader of the new call also reads the new number.
        self._beats.value += 1
        self._call.value = call.encode()[:31]

    def read(self) -> tuple[str, int]:
        """Return the running call ("" if there is none) and the number of beats so far."""
        return self._call.value.decode(errors="replace"), int(self._beats.value)


class Watch:
    """Detects a hung worker: call :meth:`verdict` every :data:`POLL_S` while its process works."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self.restart()

    def restart(self) -> None:
        """Restart the measurement, because an item begins."""
        self._seen, self._looked = -1, clock.now()
        self._still_s = self._item_s = 0.0

    def verdict(self, limits: Limits) -> str | None:
        """Return the reason why the process counts as hung, or None."""
        now, (call, beats) = clock.now(), self._pulse.read()
        # A pause of this process itself (stopped or suspended) is not a hang of the other.
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        self._item_s += passed
        self._still_s = self._still_s + passed if beats == self._seen else 0.0
        self._seen = beats
        if limits.item_s is not None and self._item_s > limits.item_s:
            return f"it took longer than {limits.item_s:g} s"
        limit_s = _limit(limits, call, beats)
        if limit_s is None or self._still_s <= limit_s:
            return None
        if call:
            return f"{call} did not return within {limit_s:g} s"
        return f"its process {'reported nothing for' if beats else 'did not begin within'} {limit_s:g} s"


def _limit(limits: Limits, call: str, beats: int) -> float | None:
    """Return the seconds that may pass without a beat."""
    if beats == 0:
        return limits.start_s
    if call and limits.call_s is not None:
        return limits.call_s * (MAKE_FACTOR if call == MAKE else 1.0)
    return None if call else limits.quiet_s
