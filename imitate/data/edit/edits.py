"""Copies of a file with fewer demos, fewer or renamed keys, or with actions rescaled for programs that need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import FileChanges, check_keys, rewrite
from imitate.data.edit.selection import Selection, named_demos, select
from imitate.data.edit.summary import summarize
from imitate.data.edit.target import Target
from imitate.data.file.action_scale import NO_ATTRIBUTES, ActionScale, recorded_scale
from imitate.data.file.features import FEATURES, as_attribute, features_of
from imitate.errors import DatasetError

Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """Ignore the progress."""


def subset(
    source: Path, target: Target, selection: Selection, on_demo: Progress = _silent
) -> list[str]:
    """Copy the selected demos, with their names.

    Returns:
        names of the selected demos.
    """
    with DatasetFile(source) as file:
        chosen = select(file, selection)
    if not chosen:
        raise DatasetError(f"{source}: no demo fulfils the conditions: nothing is written")
    with target.writing() as part:
        rewrite(source, part, FileChanges(demos=set(chosen)), on_demo)
    return chosen


def delete(
    source: Path,
    target: Target,
    *,
    demos: Sequence[str] = (),
    keys: Sequence[str] = (),
    on_demo: Progress = _silent,
) -> None:
    """Copy a file without some demos, or without arrays or groups of arrays such as 'obs/object' and 'next_obs'."""
    if not demos and not keys:
        raise DatasetError(f"{source}: nothing to delete: name demos or keys")
    with DatasetFile(source) as file:
        unwanted = named_demos(file, demos)
        if keys:
            check_keys(file, keys)
        left = set(file.demos()).difference(unwanted)
    if "actions" in keys:
        raise DatasetError(f"{source}: a demo has 'actions': they can be renamed, not deleted")
    with target.writing() as part:
        rewrite(source, part, FileChanges(demos=left, drop=set(keys)), on_demo)


def rename_keys(
    source: Path, target: Target, names: Mapping[str, str], on_demo: Progress = _silent
) -> dict[str, str]:
    """Rename arrays in a copy. If 'obs/x' is renamed, so is 'next_obs/x', unless it is named itself.

    Args:
        source: the file to copy.
        target: the copy.
        names: new names by old names.
        on_demo: called with the number of copied demos and the number of all demos.

    Returns:
        new names of all renamed arrays by old names.
    """
    with DatasetFile(source) as file:
        check_keys(file, list(names))
        known = {key for demo in file.demos() for key in file.keys(demo)}
        entries = features_of(file.file_attrs, str(source))
    renamed = dict(names)
    for old, new in names.items():
        if old.startswith("obs/") and new.startswith("obs/") and f"next_{old}" in known:
            renamed.setdefault(f"next_{old}", f"next_{new}")
    for old, new in renamed.items():
        if old not in known:
            raise DatasetError(f"{source}: '{old}' is a group: name one array in it")
        if not all(new.split("/")):
            raise DatasetError(
                f"{source}: '{new}' is not the name of an array: expected one such as 'obs/object'"
            )
        taken = known.difference(renamed) | {n for o, n in renamed.items() if o != old}
        if any(
            new == key or key.startswith(f"{new}/") or new.startswith(f"{key}/") for key in taken
        ):
            raise DatasetError(f"{source}: '{new}' is taken: choose another name for '{old}'")
    if "actions" in renamed and "actions" not in renamed.values():
        raise DatasetError(
            f"{source}: 'actions' would be missing: also name the array that replaces it"
        )
    with target.writing() as part:
        rewrite(source, part, FileChanges(rename=renamed, attrs=_moved(entries, renamed)), on_demo)
    return renamed


def _moved(entries: Mapping[str, Mapping[str, Any]], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the attribute of LeRobot's names for renamed arrays, without 'actions', whose content has changed."""
    if not entries or not renamed.keys() & entries.keys():
        return {}
    kept = {
        renamed.get(key, key): entry
        for key, entry in entries.items()
        if key != "actions" or key not in renamed
    }
    return {FEATURES: as_attribute(kept)}


Mode = Literal["min_max", "gaussian"]


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
    import torch  # which the other edits do not need

    from imitate.functional.normalization import mean_std_unless_constant, min_max

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
