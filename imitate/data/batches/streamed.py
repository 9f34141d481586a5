"""A folder of shards as a training set, of which only a few shards are in memory at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from imitate.config import Config, DatasetConfig, located_data
from imitate.config.train import RewardConfig
from imitate.data.batches.build import (
    action_limits,
    instructions_of,
    training_filter_key,
    validation_set,
    window_set,
)
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.sampling import WindowSchedule
from imitate.data.batches.sequence_dataset import MAX_IMAGES, SequenceDataset
from imitate.data.batches.statistics import KeyStats
from imitate.data.batches.store import DataSource
from imitate.data.batches.windows import Windows
from imitate.data.file.cache import limit_bytes
from imitate.data.shards.data_files import DataFiles
from imitate.data.shards.folder import ShardFolder, shards_at
from imitate.data.shards.index import Moments
from imitate.errors import ConfigError, DatasetError
from imitate.system.instructions import LANGUAGE_KEY

WINDOW_BYTES = 4e9
"""Size of the window in bytes for a dataset behind a URL, if ``train.shard_window`` is null."""


def with_shard_window(config: Config) -> Config:
    """Return the configuration of a new run, with ``train.shard_window`` set if it is null and shards are at a URL.

    Args:
        config: configuration with absolute paths of the data.
    """
    if config.train.shard_window is not None or config.train.online.enabled:
        return config
    streamed = _only_folder(config)
    if streamed is None or not streamed[1].is_remote:
        return config
    shards = streamed[1].index.shards
    mean = sum(shard.bytes for shard in shards) / len(shards)
    window = max(1, int(WINDOW_BYTES / max(1.0, mean)))
    if window >= len(shards):
        return config
    return config.with_overrides({"train.shard_window": window})


def build_streamed(
    config: Config, files: DataFiles
) -> tuple[StreamedDataset, SequenceDataset | None] | None:
    """Build the training set, and with ``experiment.validate`` the validation set, if shards are loaded in windows.

    Args:
        config: configuration with absolute paths of the data.
        files: the configuration's data files.

    Returns:
        None if ``train.shard_window`` is null or includes all shards, because the dataset is then built as a whole.

    Raises:
        ConfigError: the configuration needs all data at once.
    """
    window = config.train.shard_window
    found = None if window is None else _only_folder(config)
    if window is None:
        return None
    if found is None:
        named = len(located_data(config))
        if named > 1 and any(shards_at(entry.path) for entry in located_data(config)):
            raise ConfigError(
                f"train.shard_window is {window}, but train.data has {named} entries: name one folder of "
                "shards, or set train.shard_window to null"
            )
        return None
    number, shards, entry = found[0], found[1], located_data(config)[found[0]]
    train_set = StreamedDataset(shards, entry, number, config, window, files)
    if len(train_set.samples) <= window:
        return None
    _check_window(config, shards, window)
    train_set.look()
    if not config.experiment.validate:
        return train_set, None
    return train_set, validation_set(config, train_set.instructions, files)


class StreamedDataset:
    """Training set that reads batches from windows of shards, and statistics from the index of the shards.

    It has the methods of :class:`SequenceDataset` that a training setup uses; methods that need all demos at once raise
    an error.

    Args:
        shards: the folder of shards.
        entry: the entry of ``train.data``.
        number: index of the entry.
        config: configuration with absolute paths of the data.
        window: number of shards in memory at a time.
        files: open data files of the training.

    Attributes:
        sources: the shards with selected demos; each ``path`` is only the name of the shard's file.
        samples: number of samples of each shard.
        demo_lengths: (number of demos,) number of steps of each demo.
        instructions: the instructions in the order of ``task_id``, and their embeddings.
    """

    sample_weights = None

    def __init__(
        self,
        shards: ShardFolder,
        entry: DatasetConfig,
        number: int,
        config: Config,
        window: int,
        files: DataFiles,
    ) -> None:
        self._folder, self._config, self._window, self._number = shards, config, window, number
        evaluated = next((e.path for e in located_data(config) if e.eval), entry.path)
        self._env_meta = files.outline(evaluated).env_meta
        self.filter_key = training_filter_key(entry, config, files)
        parts = shards.parts(self.filter_key)
        named = {said for shard, _ in parts for said in shard.language}
        names = {entry.lang} if entry.lang else {said for said in named if said is not None}
        self.instructions = instructions_of(config, files, names)
        sizes = [_samples(shard.steps_of(demos), config) for shard, demos in parts]
        if not any(sizes):
            raise DatasetError(
                f"{shards.place}: no demo has the steps of a window: lower train.frame_stack and train.seq_length, or "
                "set pad_frame_stack and pad_seq_length to true"
            )
        kept = [part for part, size in zip(parts, sizes, strict=True) if size]
        self.samples = tuple(size for size in sizes if size)
        self._shards = [shard for shard, _ in kept]
        self._names = [demo for _, demos in kept for demo in demos]
        self.demo_lengths: NDArray[np.int64] = np.concatenate(
            [shard.steps_of(demos) for shard, demos in kept]
        )
        self.sources = tuple(
            DataSource(Path(shard.file), self.filter_key, lang=entry.lang, entry=number)
            for shard in self._shards
        )
        self.hdf5_path = shards.place

    def __len__(self) -> int:
        return sum(self.samples)

    def look(self) -> None:
        """Read the shapes of the data from the first training shard."""
        first = self.schedule(1, self._config.train.seed).windows(0)[0][:1]
        dataset = self.window(first)
        self.release(first)
        self.obs_shapes, self.action_dims = dataset.obs_shapes, dataset.action_dims
        self.image_types = dataset.image_types
        self.serves_language, self._served = dataset.serves_language, dataset.statistics()["obs"]
        self.action_keys, self.obs_keys = dataset.action_keys, dataset.obs_keys
        if not self.serves_language:
            self._served = {}
        self.reward: RewardTransform = dataset.numbers.reward

    # ---- windows ---------------------------------------------------------------------------------

    def schedule(
        self, batch_size: int, seed: int, *, drop_last: bool = False, part: slice = slice(None)
    ) -> WindowSchedule:
        """Return the order of windows and batches."""
        return WindowSchedule(
            self.samples, self._window, batch_size, seed, drop_last=drop_last, part=part
        )

    def window(
        self, numbers: Sequence[int], stopped: threading.Event | None = None
    ) -> SequenceDataset:
        """Build the dataset of a window of shards; download missing shards first.

        Args:
            numbers: indices of the shards.
            stopped: event that another thread sets to stop the download with InterruptedError.
        """
        shards = [self._shards[i] for i in numbers]
        paths = self._folder.files.local(shards, stopped)
        sources = [
            DataSource(path, self.filter_key, lang=self.sources[i].lang, entry=self._number)
            for i, path in zip(numbers, paths, strict=True)
        ]
        try:
            return window_set(sources, self._config, self.instructions)
        except BaseException:
            self.release(numbers)
            raise

    def release(self, numbers: Sequence[int]) -> None:
        """Allow the removal of a window's shards from the cache."""
        self._folder.files.release([self._shards[i] for i in numbers])

    # ---- about the data --------------------------------------------------------------------------

    @property
    def tasks(self) -> tuple[str, ...]:
        """Language instructions, in the order of ``task_id``."""
        return self.instructions.names

    @property
    def storage_words(self) -> list[str]:
        """Description of the windows, one line for the log."""
        return [
            f"{len(self._shards)} shards, {self._window} at a time (train.shard_window), the next ones are prepared "
            "meanwhile"
        ]

    def demo_names(self) -> dict[int, list[str]]:
        """Return the names of the demos by index of their entry in ``train.data``."""
        return {self._number: self._names}

    def metadata(self) -> tuple[Any, ...]:
        """Return the result of :func:`imitate.data.dataset_metadata` for these shards."""
        ranges = {}
        for key in self.action_keys:
            moments = self._moments(key)
            ranges[key] = moments.min, moments.max
        return self._env_meta, self.obs_shapes, *action_limits(ranges)

    @property
    def control_freq(self) -> float | None:
        """Control rate of the data in Hz."""
        return self._folder.index.control_freq

    def statistics(self, max_images: int = MAX_IMAGES) -> dict[str, Mapping[str, KeyStats]]:
        """Return the statistics in the index of shards.

        Statistics of vectors are exact. Statistics of images are per channel, from some frames of each shard.
        """
        return {
            "obs": _IndexStats(self, {key: f"obs/{key}" for key in self.obs_keys}, self._served),
            "actions": _IndexStats(self, {key: key for key in self.action_keys}, {}),
        }

    def first_values(self, key: str) -> None:
        """Return None, because the index of shards has no values of single steps."""

    def key_stats(self, array: str) -> KeyStats:
        """Return the statistics of one array.

        Raises:
            ConfigError: the index has no such statistics.
        """
        moments = self._moments(array)
        shape = tuple(self._folder.index.arrays[array].shape)
        shape = shape if len(shape) <= 1 else shape[-1:]
        std = np.sqrt(moments.m2 / moments.count)
        return KeyStats(
            moments.mean.reshape(shape),
            std.reshape(shape),
            moments.min.reshape(shape),
            moments.max.reshape(shape),
        )

    def measured(self, array: str) -> bool:
        """Return true if the index has statistics of an array."""
        return array in self._folder.index.statistics(self.filter_key)

    def _moments(self, array: str) -> Moments:
        found = self._folder.index.statistics(self.filter_key).get(array)
        if found is None:
            self._refuse(f"statistics of '{array}', which the index does not have")
        return found

    @property
    def return_statistics(self) -> NoReturn:
        """Raise an error, because the statistics need the returns of all demos at once."""
        self._refuse("returns of all demos (set algo.target_return and algo.return_scale)")

    def windows(self, index: object, obs_keys: object) -> NoReturn:
        """Raise an error, because steps of ``train.preprocess`` are fitted to windows of all demos at once."""
        self._refuse("samples of all demos, which a step of train.preprocess is fitted to")

    @property
    def window_steps(self) -> int:
        """Number of steps T in a sample's window."""
        return self._config.train.frame_stack - 1 + self._config.train.seq_length

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(
            f"train.shard_window: {self._window} of {len(self._shards)} shards are in memory at a time, but the "
            f"training needs {what}: leave that out, or set train.shard_window={len(self._shards)} to "
            "load all of them"
        )


class _IndexStats(Mapping[str, KeyStats]):
    """Statistics by key, read from the index of shards; a key without statistics raises an error."""

    def __init__(
        self, dataset: StreamedDataset, arrays: Mapping[str, str], given: Mapping[str, KeyStats]
    ) -> None:
        self._dataset, self._arrays, self._given = dataset, arrays, given

    def __getitem__(self, key: str) -> KeyStats:
        if key == LANGUAGE_KEY and key in self._given:
            return self._given[key]
        return self._dataset.key_stats(self._arrays[key])

    def __contains__(self, key: object) -> bool:
        known = key in self._arrays and self._dataset.measured(self._arrays[str(key)])
        return known or (key == LANGUAGE_KEY and key in self._given)

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._arrays if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _only_folder(config: Config) -> tuple[int, ShardFolder] | None:
    """Return index and content of the only entry with a positive weight if it is a folder of shards, else None."""
    weighted = [(i, entry) for i, entry in enumerate(located_data(config)) if entry.weight > 0]
    if len(weighted) != 1:
        return None
    shards = shards_at(weighted[0][1].path)
    return None if shards is None else (weighted[0][0], shards)


def _samples(lengths: NDArray[np.int64], config: Config) -> int:
    """Return the number of samples of demos with these lengths."""
    train, ends = config.train, np.cumsum(lengths)
    return len(
        Windows(
            ends - lengths,
            ends,
            train.frame_stack,
            train.seq_length,
            train.pad_frame_stack,
            train.pad_seq_length,
        )
    )


def _check_window(config: Config, shards: ShardFolder, window: int) -> None:
    """Refuse settings that need all demos at once.

    Raises:
        ConfigError: the message names the key and the remedy.
    """
    train = config.train
    entries = train.action_config.to_dict()
    quantile = [key for key in train.action_keys if entries[key]["normalization"] == "quantile"]
    problems = {
        "train.filter_best": train.filter_best is not None,
        "train.reward": train.reward != RewardConfig(),
        "train.sample_weight": train.sample_weight.kind is not None,
        "train.data_on_device": train.data_on_device,
        "train.data.demo_limit": any(entry.demo_limit for entry in train.data or ()),
        "train.obs_normalization 'quantile'": train.obs_normalization == "quantile",
        "train.action_config normalization 'quantile'": bool(quantile),
    }
    for key, there in problems.items():
        if there:
            raise ConfigError(
                f"{key}: needs all demos at once, but train.shard_window loads {window} of "
                f"{len(shards.index.shards)} shards: leave it out, or set "
                f"train.shard_window={len(shards.index.shards)}"
            )
    largest = sorted(shard.bytes for shard in shards.index.shards)[-2 * window :]
    if shards.is_remote and sum(largest) > limit_bytes():
        raise ConfigError(
            f"train.shard_window: two windows of {window} shards take {sum(largest) / 1e9:.3g} GB, "
            f"but the cache is limited to {limit_bytes() / 1e9:.3g} GB: lower train.shard_window, or "
            "raise IMITATE_CACHE_GB"
        )
