"""Scale of a file's rescaled actions, and conversion back to commands of the robot.

The scale is stored in the attributes ``action_offset`` and ``action_scale`` of the group ``data``:
``actions = (commands - offset) / scale``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError

OFFSET, SCALE, MODE = "action_offset", "action_scale", "action_normalization"
Array = NDArray[Any]


@dataclass(frozen=True)
class ActionScale:
    """Scale and offset by which the actions of a file were rescaled.

    Attributes:
        offset: (A,) float64.
        scale: (A,) float64, all different from 0.
        mode: name of the rescaling, such as 'min_max'.
    """

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]
    mode: str

    def from_commands(self, commands: Array) -> Array:
        """Convert commands (n, A) to the file's actions; floats keep their type, other numbers become float32."""
        return _like((commands - self.offset) / self.scale, commands)

    def to_commands(self, actions: Array) -> Array:
        """Convert actions (n, A) of the file to commands of the robot."""
        return _like(actions * self.scale + self.offset, actions)

    def attributes(self) -> dict[str, Any]:
        """Return the scale as attributes of the group ``data``."""
        return {OFFSET: self.offset, SCALE: self.scale, MODE: self.mode}


NO_ATTRIBUTES: dict[str, Any] = {OFFSET: None, SCALE: None, MODE: None}
"""Attribute changes for a file whose actions are the robot's commands again."""


def _like(values: Array, model: Array) -> Array:
    return values.astype(model.dtype if model.dtype.kind == "f" else np.float32)


def recorded_scale(file: DemoFile) -> ActionScale | None:
    """Read the scale of a file's actions; None if the actions are the commands that the robot received.

    Raises:
        DatasetError: the attributes are incomplete.
    """
    attrs = file.file_attrs
    if OFFSET not in attrs and SCALE not in attrs:
        return None
    try:
        offset, scale = (
            np.atleast_1d(np.asarray(attrs[key], dtype=np.float64)) for key in (OFFSET, SCALE)
        )
    except (KeyError, TypeError, ValueError):
        offset = scale = np.array([])
    finite = np.isfinite(offset).all() and np.isfinite(scale).all()
    if (
        offset.ndim != 1
        or offset.shape != scale.shape
        or not len(scale)
        or not finite
        or (scale == 0).any()
    ):
        raise DatasetError(
            f"{file.path}: attributes '{OFFSET}' and '{SCALE}' of group 'data' are not two lists of "
            "equal length with finite numbers and scales other than 0: restore them, or remove both "
            "if the actions are the robot's commands"
        )
    return ActionScale(offset, scale, str(attrs.get(MODE, "unnamed")))


def refuse_rescaled(file: DemoFile) -> None:
    """Refuse a file with rescaled actions, because a policy trained on it would send rescaled actions to the robot.

    Raises:
        DatasetError: the actions are rescaled.
    """
    found = recorded_scale(file)
    if found is not None:
        raise DatasetError(
            f"{file.path}: its actions are rescaled ({found.mode}), not the commands that the robot "
            "received: restore the commands with "
            f"`imitate dataset normalize-actions {file.path} --undo --out NEW` and let the policy rescale them: "
            "train.action_config.actions.normalization=min_max"
        )
