"""Recorded demos as plain values, which workers without access to this machine's files can play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from imitate.data import DatasetFile
from imitate.data.file.action_scale import recorded_scale
from imitate.envs.env import Array
from imitate.errors import DatasetError

EXECUTED = "executed_actions"


@dataclass(frozen=True)
class RecordedDemo:
    """States of a demo, and commands that lead from one to the next.

    Attributes:
        name: name of the demo.
        states: (T, S) states of the simulator, with one more if the file has the state after the last action.
        scene: ``model`` and ``ep_meta`` of the simulator, if the file has them.
        length: number of states that an observation belongs to.
        commands: (T, A) commands of the robot, or None if they are not requested.
    """

    name: str
    states: Array
    scene: dict[str, Any]
    length: int
    commands: Array | None = None

    @property
    def start(self) -> dict[str, Any]:
        """The first state for ``reset_to``, with the scene."""
        return {"states": self.states[0], **self.scene}


def recorded_demo(
    file: DatasetFile, demo: str, remedy: str = "", *, with_commands: bool = True
) -> RecordedDemo:
    """Read a demo.

    Args:
        file: open demonstration file.
        demo: its name.
        remedy: advice for the error message if it has no states.
        with_commands: true to read its actions too.

    Raises:
        DatasetError: the demo has no states, or no actions.
    """
    states = read(file, demo, "states", remedy)
    actions = commands(file, demo) if with_commands else None
    return RecordedDemo(demo, states, scene_of(file, demo), len(states), actions)


def scene_of(file: DatasetFile, demo: str) -> dict[str, Any]:
    """Return the scene of a demo for ``reset_to``, or an empty dict if the file has none."""
    attrs = file.attrs(demo)
    if "model_file" not in attrs:
        return {}
    return {"model": attrs["model_file"], "ep_meta": attrs.get("ep_meta")}


def commands(file: DatasetFile, demo: str) -> Array:
    """Return the robot's commands (T, A)."""
    if EXECUTED in file.keys(demo):
        return read(file, demo, EXECUTED, "record actions")
    actions = read(file, demo, "actions", "record actions")
    scale = recorded_scale(file)
    return actions if scale is None else scale.to_commands(actions)


def read(file: DatasetFile, demo: str, key: str, remedy: str) -> Array:
    """Read an array; the error for a missing array contains the remedy."""
    try:
        return np.asarray(file.read(demo, key))
    except DatasetError as error:
        if not remedy:
            raise
        raise DatasetError(f"{error}; {remedy}") from error
