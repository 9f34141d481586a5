"""Edits of a file: changes of a few bytes, in place or in a copy, and copies with other demos, keys or scales."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import FileChanges, check_keys, put_mask, rewrite
from imitate.data.edit.selection import Selection, named_demos, select, with_outcome
from imitate.data.edit.summary import summarize
from imitate.data.edit.target import Target, check_is_hdf5
from imitate.data.file.action_scale import NO_ATTRIBUTES, ActionScale, recorded_scale
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.features import FEATURES, as_attribute, features_of
from imitate.data.file.hdf5_format import DemoFile, natural_key
from imitate.data.file.journal import changing
from imitate.errors import DatasetError
from imitate.system.plain_files import fresh

MB = 1_000_000
PIECE_BYTES = 16_000_000
Progress = Callable[[int, int], None]


def change(
    source: Path, target: Target, put: Callable[[ConfinedFile], None], on_mb: Progress
) -> None:
    """Make a small change in a byte-for-byte copy of a file, or atomically in the file itself.

    Args:
        source: the file.
        target: the copy, or the file itself.
        put: function that makes the change in the open file.
        on_mb: called with the number of copied megabytes and the total number.
    """
    if target.out is None:
        check_is_hdf5(target.path)
        with changing(target.path) as journaled, ConfinedFile(journaled, "r+") as file:
            put(file)
        return
    with DatasetFile(source) as read:
        hdf5_path = read.hdf5_path
    with target.writing() as part:
        _copy(hdf5_path, part, on_mb)
        with ConfinedFile(part, "r+") as new:
            put(new)


def _copy(source: Path, part: Path, on_mb: Progress) -> None:
    total = source.stat().st_size // MB
    with source.open("rb") as old, fresh(part) as new:
        while piece := old.read(PIECE_BYTES):
            new.write(piece)
            on_mb(new.tell() // MB, total)


def set_env_args(
    source: Path, target: Target, env_args: Mapping[str, Any], on_mb: Progress
) -> dict[str, Any]:
    """Write ``env_args``, an attribute of the group ``data``; demos and filter keys do not change.

    Args:
        source: the file.
        target: a copy, or the file itself.
        env_args: ``env_name``, ``type``, ``env_kwargs``.
        on_mb: called with the number of copied megabytes and the total number.

    Returns:
        the previous env_args.

    Raises:
        DatasetError: the description is incomplete, or the file cannot be written.
    """
    missing = [key for key in ("env_name", "type") if env_args.get(key) is None]
    if missing:
        raise DatasetError(f"{source}: env_args need '{missing[0]}': give it with --env or --type")
    with DatasetFile(source) as file:
        file.check_confined()
        before = file.env_meta
    text = json.dumps(dict(env_args), indent=4)

    def put(file: ConfinedFile) -> None:
        file["data"].attrs["env_args"] = text

    change(source, target, put, on_mb)
    return before


Masks = dict[str, list[str]]


def _silent(done: int, total: int) -> None:
    """Ignore the progress; the default of ``on_mb``."""


def split(
    source: Path,
    target: Target,
    *,
    ratio: float,
    seed: int = 0,
    filter_key: str | None = None,
    success: bool | None = None,
    overwrite: bool = False,
    on_mb: Progress = _silent,
) -> Masks:
    """Write the masks ``train`` and ``valid``; or ``<filter_key>_train`` and ``<filter_key>_valid``.

    Args:
        source: the file.
        target: a new copy, or the file itself; only masks are changed.
        ratio: fraction of validation demos, in (0, 1); each mask gets at least one demo.
        seed: seed of the random split.
        filter_key: mask of the demos to split; None for all demos.
        success: True to split only demos that solve their task, False to split only demos that fail, None for all; the
            others are in neither mask.
        overwrite: true to replace existing masks with these names.
        on_mb: called with the number of copied megabytes and the number of all megabytes.

    Returns:
        the two masks: the names of their demos, by the mask's name.

    Raises:
        DatasetError: there are too few demos, or masks of these names with other demos exist.
    """
    if not 0 < ratio < 1:
        raise DatasetError(f"{source}: ratio is {ratio:g}: expected a number between 0 and 1")
    with DatasetFile(source) as file:
        names = file.demos(filter_key)
        if success is not None:
            names = with_outcome(file, names, success)
        if len(names) < 2:
            raise DatasetError(f"{source}: {len(names)} demo cannot be split: two are needed")
        count = min(max(1, round(ratio * len(names))), len(names) - 1)
        order = np.random.default_rng(seed).permutation(len(names))
        prefix = "" if filter_key is None else f"{filter_key}_"
        chosen = {
            f"{prefix}train": sorted((names[i] for i in order[count:]), key=natural_key),
            f"{prefix}valid": sorted((names[i] for i in order[:count]), key=natural_key),
        }
        _check(file, chosen, overwrite)
    _write(source, target, chosen, on_mb)
    return chosen


def add_filter_key(
    source: Path,
    target: Target,
    name: str,
    selection: Selection,
    *,
    overwrite: bool = False,
    on_mb: Progress = _silent,
) -> list[str]:
    """Write the mask ``name`` with the demos that fulfil the conditions.

    Args:
        source: the file.
        target: a new copy, or the file itself; only masks are changed.
        name: name of the mask.
        selection: conditions for the demos.
        overwrite: true to replace an existing mask with this name.
        on_mb: called with the number of copied megabytes and the number of all megabytes.

    Returns:
        names of the demos.

    Raises:
        DatasetError: no demo fulfils the conditions, or a mask of this name with other demos exists.
    """
    if not name or "/" in name or name == ".":
        raise DatasetError(
            f"{source}: '{name}' is not a valid name of a filter key: it must not contain '/'"
        )
    with DatasetFile(source) as file:
        chosen = select(file, selection)
        if not chosen:
            raise DatasetError(
                f"{source}: no demo fulfils the conditions: the filter key '{name}' would be empty"
            )
        _check(file, {name: chosen}, overwrite)
    _write(source, target, {name: chosen}, on_mb)
    return chosen


def failures_among(path: Path, demos: Sequence[str]) -> int:
    """Count the demos that failed according to their attribute ``success``."""
    with DatasetFile(path) as file:
        return sum(file.success(demo) is False for demo in demos)


def _check(file: DemoFile, chosen: Mapping[str, Sequence[str]], overwrite: bool) -> None:
    """Refuse to replace masks without ``overwrite``, and to change a file with links to other files."""
    file.check_confined()
    there = file.filter_keys()
    changed = [name for name, demos in chosen.items() if there.get(name, demos) != demos]
    if changed and not overwrite:
        old = ", ".join(f"{name} {len(there[name])}" for name in chosen if name in there)
        new = ", ".join(f"{name} {len(demos)}" for name, demos in chosen.items())
        raise DatasetError(
            f"{file.path}: there are filter keys of this name already ({old} demos), and this would write {new}: "
            "use the existing ones, or replace them with --overwrite"
        )


def _write(
    source: Path, target: Target, chosen: Mapping[str, Sequence[str]], on_mb: Progress
) -> None:
    change(source, target, partial(_put, chosen=chosen), on_mb)


def _put(file: ConfinedFile, chosen: Mapping[str, Sequence[str]]) -> None:
    for name, demos in chosen.items():
        put_mask(file, name, demos)


# ---- copies with other demos, keys or scales -----------------------------------------------------


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
        raise DatasetError(
            f"{source}: 'actions' cannot be deleted, because each demo needs them: rename them instead"
        )
    with target.writing() as part:
        rewrite(source, part, FileChanges(demos=left, drop=set(keys)), on_demo)


def rename_keys(
    source: Path, target: Target, names: Mapping[str, str], on_demo: Progress = _silent
) -> dict[str, str]:
    """Rename arrays in a copy. With 'obs/x', 'next_obs/x' is renamed too, unless ``names`` contains it.

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
                f"{source}: '{new}' is not the name of an array: expected a name such as 'obs/object'"
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
    """Return the attribute ``features`` with its entries (LeRobot's names) under the new names of the arrays.

    The entry of a renamed 'actions' is dropped. The result is {} if nothing changes.
    """
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
    on_demo: Progress = _silent,
) -> ActionScale:
    """Write a copy whose ``actions`` are in [-1, 1], or have mean 0 and standard deviation 1, per dimension.

    Offset and scale are written as attributes of the copy. Other arrays, such as ``executed_actions``, are not changed.

    Returns:
        offset and scale.

    Raises:
        DatasetError: the actions are already rescaled, or not finite.
    """
    import torch  # imported here, because only this edit needs it

    from imitate.functional.normalization import mean_std_unless_constant, min_max

    with DatasetFile(source) as file:
        if recorded_scale(file) is not None:
            raise DatasetError(
                f"{source}: its actions are rescaled already: restore the original actions with --undo first"
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


def undo(source: Path, target: Target, on_demo: Progress = _silent) -> ActionScale:
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
