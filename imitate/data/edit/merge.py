"""Merging of several files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import (
    FileChanges,
    copy_attrs,
    copy_demo,
    copying,
    read_masks,
    write_masks,
)
from imitate.data.edit.target import Target
from imitate.data.file.action_scale import recorded_scale
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.features import (
    FEATURES,
    as_attribute,
    features_of,
    without_other_names,
)
from imitate.errors import DatasetError

Names = dict[str, str]
_ONES = frozenset({"interventions", "labelled"})
# Array of recordings by this package, left out of the merged file if some demos do not have it.
_TIMES = "timestamps"
CORRECTED = _ONES | {"policy_actions", "executed_actions"}
"""Arrays of recordings with a person's corrections; for other demonstrations they are derived from the actions."""


def merge(
    sources: Sequence[Path],
    target: Target,
    *,
    common_keys: bool = False,
    any_env: bool = False,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> list[Names]:
    """Merge the demos of several files into one, with the attributes of the first file.

    A recording with a person's corrections (``imitate run --take-over --record``) has arrays that demonstrations do not
    have. In the merged file, demonstrations get these arrays too, as if a person had acted at every step.

    Demos keep their names if all names differ; otherwise all demos are renamed demo_0, demo_1 ... Filter keys with the
    same name are joined.

    Args:
        sources: two files or more.
        target: the new file.
        common_keys: true to leave out arrays that not all demos have; if false, such arrays are an error.
        any_env: true to allow different environments; the first file's environment is written.
        on_demo: called with the number of copied demos and the number of all demos.

    Returns:
        for each file, the new names of its demos by their old names.
    """
    if len(sources) < 2:
        raise DatasetError("a merge needs at least two files: name another file")
    drop = check_alike(sources, common_keys, any_env)
    added = sorted(drop & CORRECTED)
    drop = drop - CORRECTED
    names = new_names(sources)
    total = sum(map(len, names))
    with target.writing() as part, h5py.File(part, "w") as new:
        masks: dict[str, list[str]] = {}
        steps, done = 0, 0
        data = new.create_group("data")
        for path, renamed in zip(sources, names, strict=True):
            with DatasetFile(path) as file, ConfinedFile(file.hdf5_path, "r") as old:
                if path is sources[0]:
                    copy_attrs(old, new)
                    copy_attrs(old["data"], data)
                for name, new_name in renamed.items():
                    with copying(file, name):
                        steps += copy_demo(
                            old["data"][name], data, new_name, FileChanges(drop=drop)
                        )
                    _add_as_demonstration(data[new_name], added)
                    done += 1
                    on_demo(done, total)
                for key, demos in read_masks(file).items():
                    masks.setdefault(key, []).extend(renamed[demo] for demo in demos)
        write_masks(new, masks)
        data.attrs["total"] = steps
        _keep_shared_names(data, sources)
    return names


def _add_as_demonstration(demo: h5py.Group, keys: Sequence[str]) -> None:
    """Write the arrays for corrections that are missing in a demonstration."""
    for key in keys:
        if key in demo:
            continue
        if key in _ONES:
            demo[key] = np.ones(len(demo["actions"]), dtype=np.uint8)
        else:
            demo[key] = demo["actions"][()]


def _keep_shared_names(data: h5py.Group, sources: Sequence[Path]) -> None:
    """Write the names of components of vectors on which all files agree."""
    found = []
    for path in sources:
        with DatasetFile(path) as file:
            found.append(features_of(file.file_attrs, str(path)))
    if not found[0]:
        return
    text = as_attribute(without_other_names(found[0], found[1:]))
    if text is None:
        del data.attrs[FEATURES]
    else:
        data.attrs[FEATURES] = text


def new_names(sources: Sequence[Path]) -> list[Names]:
    """Return for each file the new name of each demo by its old name; names are kept if all of them differ."""
    found = []
    for path in sources:
        with DatasetFile(path) as file:
            found.append(file.demos())
    every = [name for names in found for name in names]
    if len(set(every)) == len(every):
        return [{name: name for name in names} for names in found]
    numbers = iter(range(len(every)))
    return [{name: f"demo_{next(numbers)}" for name in names} for names in found]


def environments_left_out(sources: Sequence[Path]) -> list[str]:
    """Return the environments that differ from the first file's, and so are not written to the merged file."""
    found = []
    for path in sources:
        with DatasetFile(path) as file:
            found.append(str(file.env_meta.get("env_name")))
    return [name for name in dict.fromkeys(found) if name != found[0]]


def _plain(name: object) -> object:
    """Return ``arm:Arm`` for a class ``folder/arm.py:Arm``, which has this name if the folder is on the module path."""
    path, colon, attribute = str(name).rpartition(".py:")
    return f"{Path(path).name}:{attribute}" if colon else name


def check_alike(sources: Sequence[Path], common_keys: bool, any_env: bool) -> set[str]:
    """Return the arrays that not all demos have.

    Raises:
        DatasetError: environments, arrays or shapes differ from the first file's, and the arguments do not allow it.
    """
    forms: list[dict[str, tuple[int, ...]]] = []
    whole: list[str] = []  # first demo of each file, for messages
    environments = []
    scales = []
    for path in sources:
        with DatasetFile(path) as file:
            scale = recorded_scale(file)
            scales.append(None if scale is None else (scale.offset.tolist(), scale.scale.tolist()))
            meta = file.env_meta
            environments.append((_plain(meta.get("env_name")), meta.get("type")))
            for demo in file.demos():
                forms.append({key: file.shape(demo, key)[1:] for key in file.keys(demo)})
                whole.append(f"{path}: demo '{demo}'")
    if len(set(environments)) > 1 and not any_env:
        other = next(i for i, env in enumerate(environments) if env != environments[0])
        raise DatasetError(
            f"{sources[other]}: environment {environments[other]}, but {environments[0]} in {sources[0]}: "
            "merge files of one environment, or add --any-env"
        )
    if any(scale != scales[0] for scale in scales):
        raise DatasetError(
            f"{sources[0]}: the actions of the files are rescaled in different ways: restore the commands with "
            "`imitate dataset normalize-actions FILE --undo --out NEW` first"
        )
    if not forms:
        raise DatasetError(f"{sources[0]}: there is no demo to merge")
    shared = set(forms[0]).intersection(*forms)
    every = set(forms[0]).union(*forms)
    for where, form in zip(whole, forms, strict=True):
        for key in shared:
            if form[key] != forms[0][key]:
                raise DatasetError(
                    f"{where}: a step of '{key}' has shape {form[key]}, but {forms[0][key]} in {whole[0]}: "
                    f"leave it out with `imitate dataset delete --keys {key}` first"
                )
    needed = every - shared - CORRECTED - {_TIMES}
    if needed and not common_keys:
        key = min(needed)
        where = next(where for where, form in zip(whole, forms, strict=True) if key not in form)
        raise DatasetError(
            f"{where} has no '{key}', but other demos have it: leave such keys out with --common-keys"
        )
    return every - shared
