"""Checks of motion over time: idle stretches, jumps, and irregular time stamps."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from imitate.data.edit.rewrite import Rows
from imitate.data.file.step_times import CLOCK
from imitate.data.file.step_times import TimeArray as Times
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy, counted, runs_of
from imitate.data.quality.doctor.survey import Array, DemoSteps, FileLayout
from imitate.errors import DatasetError

_POSITION = re.compile(
    r"(^|_)(q?pos|positions?|state|qpos|pose|ee|eef|joints?|joint_states|ee_states)$"
)
_NOT_ROBOT = re.compile(r"gripper|object|quat")

_QUIET_ACTION = 0.01  # largest idle action, as a fraction of the demo's largest action
_QUIET_MOTION = 0.02  # largest idle motion, as a fraction of the demo's usual motion
_IDLE_STEPS = 10
_KEPT_STEPS = 5  # number of idle steps that are kept, so that cutting creates no jump
_IDLE_SHARE = 0.1
_JUMP = 15.0  # ratio of a jump to a large step elsewhere
_ENOUGH = 2_000


def is_position(key: str) -> bool:
    """Return true if the name of an observation suggests a position of the robot."""
    if not key.startswith("obs/"):
        return False
    return bool(_POSITION.search(key[4:])) and not _NOT_ROBOT.search(key)


def is_motion(key: str) -> bool:
    """Return true if the name of an observation suggests a position of the robot or of its gripper."""
    return is_position(key.replace("gripper", "joint")) if "gripper" in key else is_position(key)


def is_switch(actions: Array) -> Array:
    """Return a mask (A,), true for each dimension that has at most two different values."""
    columns = np.ascontiguousarray(actions.T)  # reductions along long rows are fast
    low, high = columns.min(axis=1, keepdims=True), columns.max(axis=1, keepdims=True)
    switch: Array = ((columns == low) | (columns == high)).all(axis=1)
    return switch


def _positions(piece: DemoSteps) -> Array | None:
    """Return the robot's positions (n, D), recognised by the names of observations; None if there are none."""
    keys = sorted(key for key in piece.small if is_position(key))
    arrays = [piece.small[key].reshape(len(piece.small[key]), -1) for key in keys]
    if not arrays or len(arrays[0]) < 2:
        return None
    joined: Array = np.concatenate(arrays, axis=1)
    if joined.dtype.kind != "f":
        joined = joined.astype(np.float64)
    return joined


def _some(values: Array) -> Array:
    """Return evenly spread rows, enough for computing a quantile."""
    return values[:: max(1, len(values) // _ENOUGH)]


class Idle:
    """Search for stretches in which no action, or the same target, is commanded and nothing moves."""

    def __init__(self) -> None:
        self._steps = 0
        self._places: list[Place] = []
        self._rows: dict[str, Rows] = {}
        self._whole: set[str] = set()

    def see(self, piece: DemoSteps) -> None:
        """Search a piece of a demo for idle stretches."""
        actions, positions = piece.small.get("actions"), _positions(piece)
        if actions is None:
            return
        self._steps += len(actions)
        if positions is None or len(actions) <= _IDLE_STEPS:
            return
        idle = _idle_steps(actions.reshape(len(actions), -1) * 1.0, positions)
        stretches = runs_of(np.flatnonzero(idle))
        runs = [(a, b) for a, b in stretches if b - a >= _IDLE_STEPS]
        if not runs:
            return
        at = piece.start
        self._places.append(Place(piece.demo, "actions", tuple((a + at, b + at) for a, b in runs)))
        if at == 0 and piece.is_last:
            kept = _without(len(actions), runs)
            self._rows[piece.demo] = Rows(kept, kept)

    def findings(self) -> Iterator[Finding]:
        """Return one finding with all stretches."""
        if not self._places:
            return
        idle = sum(b - a for place in self._places for a, b in place.steps)
        share = idle / self._steps
        yield Finding(
            "idle",
            Level.warning if share > _IDLE_SHARE else Level.info,
            f"nothing happens in {idle} steps ({100 * share:.1f} %), in stretches of {_IDLE_STEPS} and more",
            self._places,
            Remedy(rows=self._rows) if len(self._rows) == len(self._places) else None,
            "keep these steps if waiting is part of the task"
            if len(self._rows) == len(self._places)
            else "cut the demos into shorter ones",
        )


def _idle_steps(actions: Array, positions: Array) -> Array:
    arm = ~is_switch(actions)
    columns = np.ascontiguousarray(actions.T)  # (A, n): reductions along long rows are fast
    size = np.abs(columns)
    change = np.abs(np.diff(columns, axis=1, prepend=columns[:, :1]))
    limit = _QUIET_ACTION * max(float(size.max()), 1e-12)
    largest = change[arm].max(axis=0, initial=0.0)
    quiet: Array = (size[arm].max(axis=0, initial=0.0) <= limit) | (largest <= limit / 100)
    quiet &= change[~arm].max(axis=0, initial=0.0) <= limit  # the change of a switch is an action
    if not quiet.any():
        return quiet
    places = np.ascontiguousarray(positions.T)
    motion = np.abs(np.diff(places, axis=1, append=places[:, -1:])).max(axis=0)
    moving = motion[(motion > 0) & ~quiet]
    usual = float(np.quantile(_some(moving), 0.75)) if len(moving) else 0.0
    idle: Array = quiet & (motion <= _QUIET_MOTION * usual)
    return idle


def _without(length: int, runs: list[tuple[int, int]]) -> Array:
    """Return the steps to keep: all outside of idle stretches, the first few of each stretch, and the last step."""
    kept = np.ones(length, dtype=bool)
    for first, end in runs:
        kept[first + _KEPT_STEPS : end] = False
    kept[-1] = True
    return np.flatnonzero(kept)


class Jumps:
    """Search for steps in which the robot moves many times farther than elsewhere."""

    def __init__(self) -> None:
        self._largest: list[tuple[str, int, Array]] = []
        self._usual: list[tuple[str, Array]] = []

    def see(self, piece: DemoSteps) -> None:
        """Record the 95 % quantile of the step sizes, and the largest steps."""
        positions = _positions(piece)
        if positions is None or len(positions) < 5 or not np.isfinite(positions).all():
            return
        steps = np.abs(np.diff(positions, axis=0))
        self._usual.append((piece.demo, np.quantile(_some(steps), 0.95, axis=0)))
        farthest = np.unique(steps.argmax(axis=0))
        self._largest += [(piece.demo, int(t) + 1 + piece.start, steps[t]) for t in farthest]

    def findings(self) -> Iterator[Finding]:
        """Return one finding with all jumps."""
        if not self._usual:
            return
        found: dict[str, list[int]] = {}
        while len(found) < len(
            more := self._beyond(found)
        ):  # if these demos are left out, no jump remains
            found = more
        if not found:
            return
        order = dict.fromkeys(demo for demo, _ in self._usual)
        what = f"the robot jumps in {counted(len(found))}, {_JUMP:.0f} times farther than in a large step elsewhere"
        places = [Place(d, "obs", runs_of(sorted(set(found[d])))) for d in order if d in found]
        if len(found) > len(order) / 2:
            advice = "look at one with imitate dataset playback: in most demos it is a fast motion rather than a fault"
            yield Finding("jump", Level.info, what, places, advice=advice)
            return
        remedy = Remedy(drop_demos=[place.demo for place in places if place.demo is not None])
        yield Finding("jump", Level.warning, what, places, remedy)

    def _beyond(self, apart: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Return the jumps by demo, compared with the usual motion of the demos that are not in ``apart``."""
        usual = [size for demo, size in self._usual if demo not in apart]
        if not usual:
            return {}
        limit = _JUMP * np.median(usual, axis=0)
        found = {demo: list(steps) for demo, steps in apart.items()}
        for demo, step, size in self._largest:
            if demo not in apart and (size[limit > 1e-9] > limit[limit > 1e-9]).any():
                found.setdefault(demo, []).append(step)
        return found


class LostSteps:
    """Search for lost or repeated steps, if the file records the time.

    Args:
        layout: layout of the file.
    """

    def __init__(self, layout: FileLayout) -> None:
        keys = [key for key in layout.steps if CLOCK.search(key)]
        try:
            rate_hz = layout.file.control_freq
        except DatasetError:
            rate_hz = None
        self._clocks = {key: Times(rate_hz) for key in keys}
        if not keys and _is_robosuite(layout):
            self._clocks = {"states": Times(None)}
        self._places: dict[str, list[Place]] = {key: [] for key in self._clocks}
        self._demos = 0

    def see(self, piece: DemoSteps) -> None:
        """Check the intervals of a piece."""
        for key in self._clocks.keys() & piece.small.keys():
            self._demos += 1
            faults = self._clocks[key].see(piece.small[key], f"'{piece.demo}'")
            if len(faults):
                runs = runs_of(faults + piece.start)[:100]
                self._places[key].append(Place(piece.demo, key, runs))

    def findings(self) -> Iterator[Finding]:
        """Return for each array a finding with irregular intervals, or with its rate if it contradicts the file's."""
        for key, clock in self._clocks.items():
            places, doubt = self._places[key], clock.doubt()
            if doubt is None or (key == "states" and len(places) > self._demos / 2):
                continue  # the first component of these states is not the time
            yield Finding(
                "clock",
                Level.warning,
                f"by '{key}' {doubt}",
                places or [Place(key=key)],
                Remedy(drop_demos=list(dict.fromkeys(str(place.demo) for place in places)))
                if places
                else None,
                "" if places else "correct the attribute 'control_freq' of the group 'data'",
            )


def _is_robosuite(layout: FileLayout) -> bool:
    try:
        return layout.file.env_meta.get("type") == 1 and "states" in layout.steps
    except DatasetError:
        return False
