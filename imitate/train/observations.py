"""Comparison of a configuration's observations with those of its demonstrations, before networks are built."""

from __future__ import annotations

from typing import Any

from imitate.config import Config, DatasetConfig, located_data
from imitate.config.observation import AUTO, ObservationConfig, Observations
from imitate.data.batches.build import training_filter_key
from imitate.data.dataset_file import no_demos
from imitate.data.file.observed import FileObservations, Form, observation_forms, observed_of
from imitate.data.language import LANGUAGE_KEY
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.data.shards.folder import shards_at
from imitate.errors import ConfigError, nearest


def with_observations(config: Config, files: DataFiles | None = None) -> Config:
    """Replace ``"auto"`` in a configuration by the observation keys of its files.

    Args:
        config: configuration with located data, or without data.
        files: its data files; None to open them here and close them at the end.

    Raises:
        ConfigError: ``"auto"`` without data, or keys that no file has.
        DatasetError: a file cannot be read.
    """
    lists = dict(_key_lists(config.observation, "observation"))
    wants_auto = any(AUTO in keys for keys in lists.values())
    if not config.train.data:
        if wants_auto:
            raise ConfigError(
                "observation.modalities: 'auto' means all observations of the demonstrations, but no data file is "
                "given: list the keys, or name a file in train.data or with --dataset"
            )
        return config
    if config.train.online.enabled and not wants_auto:
        return config  # the environment has them, and the demonstrations are read later
    with data_files(config, files) as files:
        found = _observed(config, files)
    values: dict[str, Any] = {}
    for path, keys in lists.items():
        if AUTO in keys:
            rest = [key for key in keys if key != AUTO]
            taken = {
                key for other, taken in lists.items() if _same_group(path, other) for key in taken
            }
            own = [key for key in found.keys(path.rpartition(".")[2]) if key not in taken]
            values[path] = [*rest, *own]
    config = config.with_overrides(values) if values else config
    _refuse_missing(config, found)
    return config


def _key_lists(section: Observations, path: str) -> Any:
    """Yield (dotted key, observations) for each group and modality of each part."""
    if not isinstance(section, ObservationConfig):
        for name, part in section.items():
            if isinstance(part, Observations):
                yield from _key_lists(part, f"{path}.{name}")
        return
    for group, modalities in section.modalities.items():
        for modality, keys in modalities.items():
            yield f"{path}.modalities.{group}.{modality}", keys


def _same_group(path: str, other: str) -> bool:
    return path.rpartition(".")[0] == other.rpartition(".")[0]


def _observed(config: Config, files: DataFiles) -> FileObservations:
    """Read the observations of the first training demo of each file; for shards, read their index."""
    entries = [entry for entry in located_data(config) if entry.weight > 0]
    return observed_of([_forms(entry, config, files) for entry in entries])


def _forms(entry: DatasetConfig, config: Config, files: DataFiles) -> tuple[str, dict[str, Form]]:
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
    if config.experiment.ckpt_path is not None:  # other observations would need other networks
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
    """Return the names of an observation of the file and of the missing one that it could be."""
    alike = [key for key in have if ("image" in key) == ("image" in missing[0])] or have
    return f"obs/{alike[0] if alike else 'NAME'} obs/{missing[0]}"
