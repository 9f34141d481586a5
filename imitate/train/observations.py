"""Observations of demonstration files by modality, and comparison with those that a configuration names.

They replace ``"auto"`` in ``observation.modalities``, and missing observations are refused before networks are built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imitate.config import Config, DatasetConfig, located_data
from imitate.config.observation import AUTO, ObservationConfig, Observations
from imitate.data.batches.build import training_filter_key, training_sources
from imitate.data.dataset_file import no_demos
from imitate.data.file.hdf5_format import DemoFile
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.data.shards.folder import shards_at
from imitate.errors import ConfigError, DatasetError, nearest
from imitate.system.instructions import LANGUAGE_KEY

Shape = tuple[int, ...]
Form = tuple[Shape, np.dtype[Any]]
SCAN_WORDS = ("scan", "lidar", "laser")


@dataclass(frozen=True)
class FileObservations:
    """Observations that all files have.

    Attributes:
        shapes: shape of one step as stored, by key, sorted.
        modalities: 'low_dim', 'rgb', 'depth' or 'scan' by key.
        left_out: keys that are not observations of a known modality, with the reason.
    """

    shapes: Mapping[str, Shape]
    modalities: Mapping[str, str]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def keys(self, modality: str) -> list[str]:
        """Return the keys of a modality."""
        return [key for key, kind in self.modalities.items() if kind == modality]

    @property
    def words(self) -> str:
        """Describe the observations, for example: position (2,), camera_image (96, 96, 3)."""
        return ", ".join(f"{key} {shape}" for key, shape in self.shapes.items())


def observed(files: Sequence[tuple[DemoFile, str]]) -> FileObservations:
    """Read the observations of one demo of each file.

    Args:
        files: open files, each with the name of one of its demos.

    Raises:
        DatasetError: there is no observation that all files have.
    """
    return observed_of([(str(file.path), observation_forms(file, demo)) for file, demo in files])


def observation_forms(file: DemoFile, demo: str) -> dict[str, Form]:
    """Return the shape of one step and the type of each observation of a demo."""
    return {
        key: (file.shape(demo, f"obs/{key}")[1:], file.dtype(demo, f"obs/{key}"))
        for key in file.obs_keys(demo)
    }


def observed_of(datasets: Sequence[tuple[str, Mapping[str, Form]]]) -> FileObservations:
    """Sort observations into modalities.

    Args:
        datasets: name of each dataset, and its observations: shape of one step and type by key.

    Raises:
        DatasetError: there is no observation that all datasets have.
    """
    common = set.intersection(*(set(forms) for _, forms in datasets))
    shapes, modalities, left_out = {}, {}, {}
    for key in sorted(common):
        shape, dtype = datasets[0][1][key]
        shapes[key] = shape
        kind = _modality(key, shape, dtype)
        if kind is None:
            left_out[key] = f"shape {shape} of {dtype} is not a vector, image, depth image or scan"
        else:
            modalities[key] = kind
    if not modalities:
        raise DatasetError(
            f"{', '.join(name for name, _ in datasets)}: have no observation in common: name other files"
        )
    return FileObservations(shapes, modalities, left_out)


def _modality(key: str, shape: Shape, dtype: np.dtype) -> str | None:  # type: ignore[type-arg]
    if dtype.kind not in "fiub":
        return None
    if len(shape) == 3:
        return {3: "rgb", 1: "depth"}.get(shape[-1])
    if len(shape) == 2 and dtype == np.uint8:
        return None
    if len(shape) == 2 and any(word in key.lower() for word in SCAN_WORDS):
        return "scan"
    return "low_dim" if len(shape) <= 2 else None


def with_observations(config: Config, files: DataFiles | None = None) -> Config:
    """Replace ``"auto"`` in a configuration by the observation keys of its files; keys of an environment come later.

    Args:
        config: configuration with located data, or without data.
        files: its data files; None to open them here and close them at the end.

    Raises:
        ConfigError: keys that no file has.
        DatasetError: a file cannot be read, or a training demo lacks an observation.
    """
    lists = dict(_key_lists(config.observation, "observation"))
    wants_auto = any(AUTO in keys for keys in lists.values())
    if not config.train.data or (config.train.online.enabled and not wants_auto):
        return config  # observations come from the environment; demonstrations are compared with it later
    with data_files(config, files) as files:
        found = _observed(config, files)
        config = with_auto(config, found)
        _refuse_missing(config, found)
        if not any(shards_at(entry.path) for entry in located_data(config)):
            _refuse_incomplete(config, files)
    return config


def with_auto(config: Config, found: FileObservations) -> Config:
    """Return the configuration with ``"auto"`` replaced by keys of the observations found."""
    lists = dict(_key_lists(config.observation, "observation"))
    values: dict[str, Any] = {}
    for path, keys in lists.items():
        if AUTO in keys:
            rest = [key for key in keys if key != AUTO]
            taken = {key for other in lists if _seen_with(path, other) for key in lists[other]}
            own = [key for key in found.keys(path.rpartition(".")[2]) if key not in taken]
            values[path] = [*rest, *own]
    return config.with_overrides(values) if values else config


def _refuse_incomplete(config: Config, files: DataFiles) -> None:
    """Raise an error for the first training demo that lacks an observation which its file's first demo has."""
    wanted = [key for key in config.all_obs_keys if key != LANGUAGE_KEY]
    for source in training_sources(config, files):
        file = files.open(source.path)
        for demo in source.chosen(file):
            for key in wanted:
                file.shape(demo, f"obs/{key}")


def _key_lists(section: Observations, path: str) -> Any:
    """Yield (dotted key, observation keys) for each group and modality, in each part of a hierarchical policy."""
    if not isinstance(section, ObservationConfig):
        for name, part in section.items():
            if isinstance(part, Observations):
                yield from _key_lists(part, f"{path}.{name}")
        return
    for group, modalities in section.modalities.items():
        for modality, keys in modalities.items():
            yield f"{path}.modalities.{group}.{modality}", keys


def _seen_with(path: str, other: str) -> bool:
    """Return true if a network that sees the list at ``path`` also sees that at ``other``: critics also see ``obs``."""
    group, beside = path.rpartition(".")[0], other.rpartition(".")[0]
    return beside in (group, group.replace(".modalities.critic", ".modalities.obs"))


def _observed(config: Config, files: DataFiles) -> FileObservations:
    """Read the observations of the first training demo of each file; for shards, read their index."""
    entries = [entry for entry in located_data(config) if entry.weight > 0]
    return observed_of([forms_of(entry, config, files) for entry in entries])


def forms_of(entry: DatasetConfig, config: Config, files: DataFiles) -> tuple[str, dict[str, Form]]:
    """Return the path of a dataset or folder of shards, and the shape and type of each of its observations."""
    shards = shards_at(entry.path)
    if shards is not None:
        return entry.path, shards.index.observations
    file, filter_key = files.open(entry.path), training_filter_key(entry, config, files)
    demos = file.demos(filter_key)
    if not demos:
        raise no_demos(file, filter_key)
    return entry.path, observation_forms(file, demos[0])


def _refuse_missing(config: Config, found: FileObservations) -> None:
    wanted = set(config.all_obs_keys) - {LANGUAGE_KEY}
    missing = sorted(wanted - found.shapes.keys())
    if not missing:
        return
    paths = ", ".join(entry.path for entry in config.train.data or ())
    near = [f"'{key}' ({nearest(key, found.shapes)})" for key in missing]
    words = ", ".join(near if len(found.shapes) > len(missing) else map(repr, missing))
    remedy = (
        f"use all of them with --set observation.modalities=auto, or write a configuration for the file with "
        f"`imitate config init {paths}`"
    )
    if config.experiment.ckpt_path is not None:  # its networks need the same observations
        have = [key for key in found.shapes if key not in wanted]
        renamed = _renamed(missing, have)
        remedy = (
            f"rename those that the weights of {config.experiment.ckpt_path} take, such as "
            f"`imitate dataset rename-key {paths} {renamed} --out renamed.hdf5`"
        )
    raise ConfigError(
        f"observation.modalities: {paths}: the demos have no {words}; they have {found.words}: {remedy}"
    )


def _renamed(missing: list[str], have: list[str]) -> str:
    """Return arguments of ``rename-key``: the file's observation that may be the missing one, and the latter's name."""
    alike = [key for key in have if ("image" in key) == ("image" in missing[0])] or have
    return f"obs/{alike[0] if alike else 'NAME'} obs/{missing[0]}"
