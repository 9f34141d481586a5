"""From a configuration to the datasets of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.config import Config, DatasetConfig, located_data
from imitate.data.faults import ACTION_LIMIT, check_modality
from imitate.data.hdf5_format import DatasetFile
from imitate.data.sequence_dataset import SequenceDataset
from imitate.data.store import DataSource
from imitate.errors import DatasetError

Shape = tuple[int, ...]


def build_datasets(config: Config) -> tuple[SequenceDataset, SequenceDataset | None]:
    """The training set, and with ``experiment.validate`` the validation set.

    Validation demos are those of the mask ``train.hdf5_validation_filter_key``, or ``valid``; the training then uses
    ``train.hdf5_filter_key``, or the mask ``train`` if there is one. A file's own ``filter_key`` is for the training
    only.

    Raises:
        DatasetError: a file has a fault, a mask is missing or empty, or both sets share a demo.
    """
    entries = located_data(config)
    train_sources = [_train_source(entry, config) for entry in entries]
    valid_sources = [
        DataSource(Path(entry.path), config.train.hdf5_validation_filter_key or "valid")
        for entry in entries
    ]
    for train_source, valid_source in zip(train_sources, valid_sources, strict=True):
        with DatasetFile(train_source.path) as file:
            _check_observations(file, train_source, config)
            if config.experiment.validate:
                _check_apart(file, train_source, valid_source)
    train_set = _sequence_dataset(train_sources, config)
    if config.train.normalize_weights_by_ds_size and len(entries) > 1:
        train_set.sample_weights = _weights_by_size(train_set)
    if not config.experiment.validate:
        return train_set, None
    return train_set, _sequence_dataset(valid_sources, config)


def dataset_metadata(
    config: Config,
) -> tuple[dict[str, Any], dict[str, Shape], dict[str, int], list[float], list[float]]:
    """What a checkpoint records of the training data, from the files themselves.

    Returns:
        env_meta; shape of one step per observation key as stored; size per action key; lowest and highest action to
        send, per dimension: -1 and 1 for an action key that stays within, else its range in the training demos.
    """
    entries = located_data(config)
    sources = [_train_source(entry, config) for entry in entries]
    env_source = next(
        (s for s, entry in zip(sources, entries, strict=True) if entry.eval), sources[0]
    )
    with DatasetFile(env_source.path) as file:
        env_meta = file.env_meta
    with DatasetFile(sources[0].path) as file:
        first = file.demos(sources[0].filter_key)[0]
        shapes = {key: file.shape(first, f"obs/{key}")[1:] for key in config.all_obs_keys}
    low, high, dims = [], [], {}
    for key in config.train.action_keys:
        key_low, key_high = _action_range(sources, key)
        dims[key] = len(key_low)
        if max(key_high.max(), -key_low.min()) <= ACTION_LIMIT:
            key_low, key_high = -np.ones(dims[key]), np.ones(dims[key])
        low += key_low.tolist()
        high += key_high.tolist()
    return env_meta, shapes, dims, low, high


def _action_range(sources: list[DataSource], key: str) -> tuple[Any, Any]:
    lows, highs = [], []
    for source in sources:
        with DatasetFile(source.path) as file:
            for demo in file.demos(source.filter_key)[: source.demo_limit]:
                values = file.read(demo, key).astype(np.float64)
                values = values.reshape(len(values), -1)
                lows.append(values.min(axis=0))
                highs.append(values.max(axis=0))
    return np.min(lows, axis=0), np.max(highs, axis=0)


def _train_source(entry: DatasetConfig, config: Config) -> DataSource:
    filter_key = entry.filter_key or config.train.hdf5_filter_key
    if filter_key is None and config.experiment.validate:
        with DatasetFile(entry.path) as file:
            filter_key = "train" if "train" in file.filter_keys() else None
    return DataSource(Path(entry.path), filter_key, entry.demo_limit, entry.weight)


def _weights_by_size(dataset: SequenceDataset) -> NDArray[np.float64]:
    """Weight per sample such that a file's share of a batch is its weight."""
    source = dataset.source_of_samples()
    sizes = np.bincount(source, minlength=len(dataset.sources))
    weights: NDArray[np.float64] = np.array([s.weight for s in dataset.sources]) / np.maximum(
        sizes, 1
    )
    return weights[source]


def _check_observations(file: DatasetFile, source: DataSource, config: Config) -> None:
    modalities = {**config.observation.modality_of("obs"), **config.observation.modality_of("goal")}
    for demo in file.demos(source.filter_key)[:1]:
        for key, modality in modalities.items():
            check_modality(file, demo, key, modality)


def _check_apart(file: DatasetFile, train: DataSource, valid: DataSource) -> None:
    train_demos = file.demos(train.filter_key)[: train.demo_limit]
    shared = [demo for demo in file.demos(valid.filter_key) if demo in set(train_demos)]
    if shared:
        chosen = (
            f"filter key '{train.filter_key}'"
            if train.filter_key
            else "no filter key, so all demos"
        )
        raise DatasetError(
            f"{file.path}: {len(shared)} validation demos of filter key '{valid.filter_key}', such as '{shared[0]}', "
            f"are training demos too ({chosen}): set train.hdf5_filter_key to a mask without them"
        )


def _sequence_dataset(sources: list[DataSource], config: Config) -> SequenceDataset:
    train = config.train
    return SequenceDataset(
        sources,
        obs_keys=config.all_obs_keys,
        action_keys=train.action_keys,
        dataset_keys=train.dataset_keys,
        action_config=dict(train.action_config.items()),
        frame_stack=train.frame_stack,
        seq_length=train.seq_length,
        pad_frame_stack=train.pad_frame_stack,
        pad_seq_length=train.pad_seq_length,
        get_pad_mask=train.seq_length > 1 or train.frame_stack > 1,
        goal_mode=train.goal_mode,
        hdf5_cache_mode=train.hdf5_cache_mode,
        hdf5_use_swmr=train.hdf5_use_swmr,
        hdf5_normalize_obs=train.hdf5_normalize_obs,
        load_next_obs=train.hdf5_load_next_obs,
        lang=train.data[0].lang if train.data else None,
    )
