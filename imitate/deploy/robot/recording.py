"""Record episodes of a robot as demonstrations."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from imitate.data import DatasetWriter
from imitate.data.file.features import FEATURES, as_attribute
from imitate.deploy.robot.loop import ControlStep
from imitate.deploy.robot.robot import Robot
from imitate.envs.make import REAL_ROBOT
from imitate.errors import DatasetError, UserError
from imitate.system import clock

TIMES = "timestamps"
"""Name of the array with the seconds from the first recorded step to each step; held steps appear as gaps."""


class Recorder:
    """Writes the steps of a control loop into a demonstration file; pass :meth:`on_step` to the loop.

    Each kept episode is on disk when :meth:`keep` returns; a crash loses at most the running one. Steps in which the
    pose was held are not recorded, because they have no action.

    Args:
        path: path of the HDF5 file.
        rate_hz: control rate.
        env_meta: ``env_args`` of a simulated robot, or None for a real robot.
        name: name of the robot for the ``env_args`` in the file, if the robot is real.
        robot: robot whose names of action and observation dimensions are written, or None to write no names.
        keys: observation keys to record, or None for all.
        append: true to record into an existing file, or into one that a crash left unfinished.
        overwrite: true to replace an existing file.
        image_storage: ``jpeg`` or ``raw``, see :class:`imitate.data.DatasetWriter`.
        with_policy: true to also record ``interventions`` and ``policy_actions``, as HG-DAgger reads them.
    """

    def __init__(
        self,
        path: str | Path,
        rate_hz: float,
        *,
        env_meta: Mapping[str, Any] | None = None,
        name: str = "robot",
        robot: Robot | None = None,
        keys: tuple[str, ...] | None = None,
        append: bool = False,
        overwrite: bool = False,
        image_storage: str = "jpeg",
        with_policy: bool = False,
    ) -> None:
        meta = env_meta or {"env_name": name, "type": REAL_ROBOT, "env_kwargs": {}}
        self._writer = DatasetWriter(
            path,
            meta,
            control_freq=rate_hz,
            append=append,
            overwrite=overwrite,
            image_storage="jpeg" if image_storage == "jpeg" else "raw",
            attrs=_names_of(robot),
        )
        self._keys, self._with_policy = keys, with_policy
        # A file of an earlier version may lack this array; episodes are then added without it.
        self._timed = not self._writer.arrays or TIMES in self._writer.arrays
        self._timed &= robot is None or not robot.in_step  # simulated steps take no time
        self._running = False
        self.steps = 0
        """Number of recorded steps in the running episode."""

    @property
    def episodes(self) -> int:
        """Number of episodes on disk."""
        return self._writer.num_episodes

    def on_step(self, step: ControlStep) -> None:
        """Add one control step."""
        if step.action is None:
            return
        now_s = clock.now()
        if not self._running:
            self._writer.start_episode()
            self._running, self.steps, self._began_s = True, 0, now_s
        values = step.observation.values
        keys = self._keys if self._keys is not None else tuple(values)
        missing = [key for key in keys if key not in values]
        if missing:
            raise UserError(
                f"the robot gives no '{missing[0]}'; choose observations from {', '.join(values)}"
            )
        extra: dict[str, Any] = {TIMES: np.float64(now_s - self._began_s)} if self._timed else {}
        if self._with_policy:
            wanted = step.action if step.wanted is None else step.wanted
            extra |= {"interventions": step.intervened, "policy_actions": np.asarray(wanted)}
        self._writer.append(obs={key: values[key] for key in keys}, action=step.action, **extra)
        self.steps += 1

    def keep(self, success: bool | None, **attrs: Any) -> str | None:
        """Write the running episode; return its name in the file, or None if it has no steps."""
        if not self._running:
            return None
        self._running = False
        given = {key: value for key, value in attrs.items() if value is not None}
        return self._writer.finish_episode(success=success, **given)

    def discard(self) -> None:
        """Discard the running episode."""
        if self._running:
            self._writer.discard_episode()
            self._running = False

    def close(self) -> None:
        """Finish the file; a file without episodes is removed without an error."""
        self.discard()
        if self._writer.num_episodes:
            self._writer.close()
        else:
            with contextlib.suppress(DatasetError):
                self._writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _names_of(robot: Robot | None) -> dict[str, str]:
    """Return the attribute with the names of the robot's dimensions, in LeRobot's form; empty without names."""
    if robot is None:
        return {}
    named = {f"obs/{key}": names for key, names in robot.observation_names.items()}
    named |= {} if robot.action_names is None else {"actions": robot.action_names}
    entries = {
        array: {"feature": array, "shape": [len(names)], "names": list(names)}
        for array, names in named.items()
    }
    text = as_attribute(entries) if entries else None
    return {} if text is None else {FEATURES: text}
