"""Copies of a file with fewer demos, fewer keys, or renamed keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import FileChanges, check_keys, rewrite
from imitate.data.edit.selection import Selection, check_demos, select
from imitate.data.edit.target import Target
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
        check_demos(file, demos)
        if keys:
            check_keys(file, keys)
        left = set(file.demos()).difference(demos)
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
