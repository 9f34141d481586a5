"""Rescaling of a file's actions for programs that need it, and its reversal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import FileChanges, rewrite
from imitate.data.edit.summary import summarize
from imitate.data.edit.target import Target
from imitate.data.file.action_scale import NO_ATTRIBUTES, ActionScale, recorded_scale
from imitate.errors import DatasetError
from imitate.functional.normalization import mean_std_unless_constant, min_max

Mode = Literal["min_max", "gaussian"]
Progress = Callable[[int, int], None]


def normalize_actions(
    source: Path,
    target: Target,
    *,
    mode: Mode = "min_max",
    on_demo: Progress = lambda done, total: None,
) -> ActionScale:
    """Write a copy whose ``actions`` are in [-1, 1], or have mean 0 and standard deviation 1, per dimension.

    Offset and scale are attributes of the copy. Other arrays, such as ``executed_actions``, are not changed.

    Returns:
        offset and scale.

    Raises:
        DatasetError: the actions are already rescaled, or not finite.
    """
    with DatasetFile(source) as file:
        if recorded_scale(file) is not None:
            raise DatasetError(
                f"{source}: its actions are rescaled already: get them back with --undo first"
            )
    stats = summarize(source, keys=["actions"])["actions"]
    first, second = (stats.min, stats.max) if mode == "min_max" else (stats.mean, stats.std)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise DatasetError(
            f"{source}: 'actions' have NaN or inf: leave those demos out with `imitate dataset doctor {source} --fix "
            "--only nan --out NEW`"
        )
    rule = min_max if mode == "min_max" else mean_std_unless_constant
    offset, scale = rule(torch.from_numpy(first), torch.from_numpy(second))
    found = ActionScale(offset.numpy(), scale.numpy(), mode)
    changes = FileChanges(values={"actions": found.from_commands}, attrs=found.attributes())
    with target.writing() as part:
        rewrite(source, part, changes, on_demo)
    return found


def undo(source: Path, target: Target, on_demo: Progress = lambda done, total: None) -> ActionScale:
    """Write a copy whose ``actions`` are the robot's original commands, up to rounding.

    Returns:
        offset and scale that the source had.

    Raises:
        DatasetError: the actions of ``source`` are not rescaled.
    """
    with DatasetFile(source) as file:
        found = recorded_scale(file)
    if found is None:
        raise DatasetError(f"{source}: its actions are not rescaled: there is nothing to undo")
    changes = FileChanges(values={"actions": found.to_commands}, attrs=NO_ATTRIBUTES)
    with target.writing() as part:
        rewrite(source, part, changes, on_demo)
    return found
