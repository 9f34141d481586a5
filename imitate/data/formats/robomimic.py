"""robomimic's HDF5 layout, versions 0.1 to 0.5, and this package's layout, which has a few more arrays.

Every array of a demo with one row per step keeps its name (``action_dict/*``, ``actions_abs``, ``camera_info`` ...),
and so does every attribute (``model_file``, ``ep_meta``). Arrays of other lengths become attributes.

* ``env_args``: readers use ``type``; ``env_type``, the name in the documentation, is renamed.
* Images are (T, H, W, C) uint8; images with channels first are transposed, and images stored as one JPEG per step are
  decoded.
* If there are only ``dones``, they are used as terminals, and a demo without a final terminal ends with a timeout.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.action_scale import OFFSET
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.episode import MAX_ATTR_BYTES, Episode
from imitate.data.file.hdf5_format import natural_key
from imitate.data.file.writer import DatasetWriter
from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import (
    REAL_ROBOT,
    UNKNOWN_ENV,
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    robot_meta,
)
from imitate.errors import DatasetError
from imitate.system.plain_files import MAX_SETTINGS, json_value

ENV_TYPES = {1: "robosuite", 2: "gymnasium", 3: "iGibson", REAL_ROBOT: "a real robot"}
_OF_THE_WRITER = {"env_args", "total", "imitate_format", "control_freq", "num_samples"}
_ENDS = ("dones", "terminals", "timeouts")


def _recognises(path: Path) -> bool:
    with hdf5_tree.peeked(path) as file:
        return first_demo(file) is not None


def first_demo(file: h5py.File | dict[str, Any]) -> h5py.Group | None:
    """Return any demo of a file in robomimic's layout, or None if the file has another layout."""
    data = file.get("data")
    if not isinstance(data, h5py.Group):
        return None
    demos = (item for item in data.values() if isinstance(item, h5py.Group) and "actions" in item)
    return next(demos, None)


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    with hdf5_tree.opened(path) as file:
        yield open_source(file, path, report)


Complete = Callable[[h5py.Group, Episode], Episode]
"""Function that completes an episode of a related format, from the demo's group and the episode read from it."""


def open_source(
    file: h5py.File,
    path: Path,
    report: ConversionReport,
    complete: Complete = lambda _, episode: episode,
) -> OpenedDataset:
    """Open the dataset of a file in robomimic's layout."""
    data = file.get("data")
    if not isinstance(data, h5py.Group):
        raise DatasetError(
            f"{path}: has no group 'data', so it is not a file in robomimic's format"
        )
    attrs = hdf5_tree.attributes(data)
    if OFFSET in attrs:
        raise DatasetError(
            f"{path}: its actions are rescaled, which other formats cannot record: restore them with "
            f"`imitate dataset normalize-actions {path} --undo --out NEW` first"
        )
    names = sorted((name for name in data if isinstance(data[name], h5py.Group)), key=natural_key)
    frequency = attrs.get("control_freq")
    return OpenedDataset(
        env_meta=env_meta_of(attrs.get("env_args"), path, report),
        demos=(
            NamedDemo(name, complete(data[name], episode))
            for name in names
            if (episode := episode_of(data[name], f"{path}: demo '{name}'", report)) is not None
        ),
        count=len(names),
        masks=masks_of(file, names, report),
        control_freq=float(frequency) if isinstance(frequency, int | float) else None,
        attrs={key: value for key, value in attrs.items() if key not in _OF_THE_WRITER},
    )


def env_meta_of(text: Any, path: Path, report: ConversionReport) -> dict[str, Any]:
    """Return the environment's description as readers need it, or if it is missing, the one of an unknown robot.

    Raises:
        DatasetError: the description is not valid JSON.
    """
    if text is None:
        report.synthesised["env_args"] = "a real robot: the file describes no environment"
        return robot_meta(UNKNOWN_ENV)
    try:
        meta = json_value(text, MAX_SETTINGS)
    except (TypeError, ValueError):
        meta = None
    if not isinstance(meta, dict):
        raise DatasetError(
            f"{path}: attribute 'env_args' of group 'data' is not a JSON object (begins {str(text)[:40]!r}): "
            "write one with env_name, type, env_kwargs"
        )
    if "type" not in meta and "env_type" in meta:
        meta["type"] = meta.pop("env_type")
        report.renamed["env_args.env_type"] = "env_args.type"
    if "type" not in meta:
        meta["type"] = 1 if "robots" in (meta.get("env_kwargs") or {}) else REAL_ROBOT
        report.synthesised["env_args.type"] = f"{meta['type']} ({ENV_TYPES[meta['type']]})"
    if meta["type"] not in ENV_TYPES:
        known = ", ".join(f"{key} ({name})" for key, name in ENV_TYPES.items())
        report.note(f"env_args.type is {meta['type']!r}, which no reader knows; known: {known}")
    report.keep("env_args")
    return meta


def masks_of(file: h5py.File, names: list[str], report: ConversionReport) -> dict[str, list[str]]:
    """Return the filter keys, without demos that do not exist."""
    masks: dict[str, list[str]] = {}
    group = file.get("mask")
    known = set(names)
    for key in sorted(group) if isinstance(group, h5py.Group) else ():
        listed = [str(hdf5_tree.plain(name)) for name in np.ravel(group[key][()])]
        masks[key] = [name for name in listed if name in known]
        if len(masks[key]) < len(listed):
            report.dropped[f"mask/{key}"] = (
                f"{len(listed) - len(masks[key])} names of demos that are not in the file"
            )
        report.keep(f"mask/{key}")
    return masks


def episode_of(group: h5py.Group, where: str, report: ConversionReport) -> Episode | None:
    """Read a demo; for a demo without steps, add a line to the report and return None."""
    arrays = hdf5_tree.leaves(group)
    length = len(hdf5_tree.wanted(group, "actions", where))
    if length == 0:
        report.dropped[group.name.rpartition("/")[2]] = "has no step"
        return None
    attrs = {
        key: value
        for key, value in hdf5_tree.attributes(group).items()
        if key not in _OF_THE_WRITER
    }
    said = group.attrs.get("num_samples", length)
    if said != length:
        report.note(
            f"{where}: attribute 'num_samples' is {said}, but there are {length} actions; corrected"
        )
    values: dict[str, NDArray[Any]] = {}
    for key, dataset in arrays.items():
        numbers = dataset.dtype.kind in "fiub" or hdf5_tree.is_encoded(dataset)
        if dataset.shape and len(dataset) == length and numbers:
            values[_step_name(key, report)] = _rows(key, dataset, report)
        else:
            _as_attribute(key, dataset, attrs, report)
    for key in attrs:
        report.keep(f"attribute {key}")
    return episode_from(values, attrs, report)


def episode_from(
    values: dict[str, NDArray[Any]], attrs: Mapping[str, Any], report: ConversionReport
) -> Episode:
    """Make an episode from arrays with the file's names; ``values`` is emptied."""
    length = len(values["actions"])
    return Episode(
        obs=_below("obs/", values),
        next_obs=_below("next_obs/", values) or None,
        actions=values.pop("actions").reshape(length, -1),
        rewards=_rewards(values, length, report),
        **ends_of(values, length, report),
        states=values.pop("states", None),
        attrs=attrs,
        steps=values,
    )


def _below(prefix: str, values: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Remove the arrays below a prefix from ``values`` and return them."""
    return {key[len(prefix) :]: values.pop(key) for key in list(values) if key.startswith(prefix)}


def _step_name(key: str, report: ConversionReport) -> str:
    """Return the new name of an array; MimicGen's group ``states`` is renamed, because ``states`` is an array here."""
    if not key.startswith("states/"):
        return key
    report.renamed[key] = f"state_dict/{key[7:]}"
    return report.renamed[key]


def _rows(key: str, dataset: h5py.Dataset, report: ConversionReport) -> NDArray[Any]:
    if hdf5_tree.is_encoded(dataset):
        kind = str(dataset.attrs["encoding"])
        words = "a video" if kind == "video" else f"a {kind.upper()} per step"
        report.changed[key] = f"{words} -> (T, H, W, 3) uint8"
        return hdf5_tree.frame_rows(dataset)
    values = hdf5_tree.rows(dataset)
    if key.startswith(("obs/", "next_obs/")) and channels_first(values.shape[1:]):
        report.changed[key] = "channels first -> (T, H, W, C)"
        return np.moveaxis(values, 1, -1)
    if key not in report.renamed:
        report.keep(key)
    return values


def channels_first(step: tuple[int, ...]) -> bool:
    """Return true if an image's shape is (C, H, W)."""
    return len(step) == 3 and step[0] in (1, 3, 4) and step[2] not in (1, 3, 4)


def _as_attribute(
    key: str, dataset: h5py.Dataset, attrs: dict[str, Any], report: ConversionReport
) -> None:
    name = key.replace("/", ".")
    if dataset.size and dataset.size * dataset.dtype.itemsize > MAX_ATTR_BYTES:
        report.dropped[key] = f"shape {dataset.shape}: not one row per step"
        return
    value = hdf5_tree.plain(hdf5_tree.rows(dataset)[()])
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fiub":
        value = json.dumps([hdf5_tree.plain(item) for item in value.ravel().tolist()])
    attrs[name] = value
    report.renamed[key] = f"attribute {name}"


def _rewards(
    values: dict[str, NDArray[Any]], length: int, report: ConversionReport
) -> NDArray[Any]:
    if "rewards" in values:
        return values.pop("rewards")
    report.synthesised["rewards"] = "0: the file has none"
    return np.zeros(length, dtype=np.float32)


def ends_of(
    values: dict[str, NDArray[Any]], length: int, report: ConversionReport
) -> dict[str, NDArray[np.bool_]]:
    """Return terminals and timeouts of a demo, and remove its dones, terminals and timeouts from ``values``."""
    flags = {key: values.pop(key).reshape(length).astype(bool) for key in _ENDS if key in values}
    terminals = flags.get("terminals")
    if terminals is None:
        terminals = flags.get("dones", np.zeros(length, dtype=bool))
        report.synthesised["terminals"] = (
            "= dones" if "dones" in flags else "none: the file has neither dones nor terminals"
        )
    elif "dones" in flags and (flags["dones"] != terminals).any():
        report.changed["dones"] = "= terminals; they differed"
    timeouts = flags.get("timeouts")
    if timeouts is None:
        timeouts = np.zeros(length, dtype=bool)
        timeouts[-1] = not terminals[-1]
        report.synthesised["timeouts"] = (
            "at the last step of a demo that does not end with a terminal"
        )
    return {"terminals": terminals, "timeouts": timeouts}


@contextmanager
def _write(
    path: Path, source: OpenedDataset, options: Options, report: ConversionReport
) -> Iterator[Callable[[NamedDemo], None]]:
    written: set[str] = set()
    with DatasetWriter(
        path,
        source.env_meta,
        control_freq=source.control_freq,
        image_storage=_image_storage(options, source),
        keep_partial=False,
        strict=False,
        optional=source.optional,
    ) as writer:

        def append(demo: NamedDemo) -> None:
            if np.asarray(demo.episode.rewards).dtype == np.float64:
                report.changed["rewards"] = "float64 -> float32"
            written.add(writer.append_episode(demo.episode, demo.name))

        yield append
        for key, demos in source.masks.items():
            writer.add_filter_key(key, [name for name in demos if name in written])
    if source.attrs:
        _set_attributes(path, source.attrs)


def _image_storage(options: Options, source: OpenedDataset) -> Any:
    chosen = options.images or source.images
    if chosen == "as-source":
        return "jpeg" if source.lossy_images else "raw"
    return chosen


def _set_attributes(path: Path, attrs: Mapping[str, Any]) -> None:
    with ConfinedFile(path, "r+") as file:
        for key, value in attrs.items():
            file["data"].attrs[key] = (
                value if isinstance(value, str | int | float) else np.asarray(value)
            )


FORMAT = Format(
    name="robomimic",
    summary="robomimic's HDF5 demonstrations, 0.1 to 0.5, and our own",
    recognises=_recognises,
    read=_read,
    write=_write,
    write_options=frozenset({"images"}),
    endings=hdf5_tree.ENDINGS,
)
