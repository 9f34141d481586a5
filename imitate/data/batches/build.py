"""Building of the training and validation datasets from a configuration, and of the weights of their steps.

Several files must fit together as one dataset, and training and validation demos must differ.
"""

import dataclasses
import hashlib
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.config import Config, DatasetConfig, located_data
from imitate.config.data_paths import located_file
from imitate.config.train import ALL_DEMOS, RewardConfig, SampleWeightConfig
from imitate.data.batches.demo_language import holds_language, instructions_in
from imitate.data.batches.rewards import fit_rewards, returns_of, returns_to_go
from imitate.data.batches.sequence_dataset import SequenceDataset
from imitate.data.batches.store import DataSource
from imitate.data.dataset_file import DatasetFile, no_demos
from imitate.data.file.action_scale import refuse_rescaled
from imitate.data.file.faults import ACTION_LIMIT, check_modality
from imitate.data.file.features import features_of, number_names
from imitate.data.file.fields import SCALARS, Field, read_steps
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.data.shards.folder import local_file, shards_at
from imitate.errors import ConfigError, DatasetError
from imitate.system.instructions import LANGUAGE_KEY, Instructions
from imitate.system.text import counted

_REWARD = Field("rewards", (), slice(0, 1), np.dtype(np.float32))


def best_demos(
    sources: Sequence[DataSource], fraction: float, files: DataFiles
) -> list[DataSource]:
    """Restrict the sources to a fraction of all demos, at least one demo: those with the highest returns.

    If returns are equal, the shorter demo is preferred.

    Raises:
        DatasetError: a demo has no rewards, so its return is unknown.
    """
    ranked = []
    for number, source in enumerate(sources):
        file = files.open(source.path)
        for demo in source.chosen(file):
            if not file.has(demo, "rewards"):
                raise DatasetError(
                    f"{source.path}: demo '{demo}' has no 'rewards', which train.filter_best compares: set "
                    "train.filter_best to null, or write rewards"
                )
            length = file.length(demo)
            total = float(read_steps(file, demo, _REWARD, 0, length).sum(dtype=np.float64))
            ranked.append((-total, length, number, demo))
    ranked.sort(key=lambda entry: entry[:2])
    kept = ranked[: max(1, math.floor(fraction * len(ranked) + 1e-9))]
    chosen = [frozenset(demo for *_, n, demo in kept if n == i) for i in range(len(sources))]
    return [
        dataclasses.replace(source, demos=demos)
        for source, demos in zip(sources, chosen, strict=True)
    ]


def weight_keys(config: SampleWeightConfig) -> tuple[str, ...]:
    """Return the names of the step arrays from which the weights of steps are computed."""
    if config.kind is None:
        return ()
    if config.kind == "interventions":
        return ("interventions",)
    return (config.key,) if config.key is not None else ("rewards",)


def step_weights(dataset: SequenceDataset, config: SampleWeightConfig) -> NDArray[np.float32]:
    """Compute the weight (N,) of each step of the training demos, with mean 1.

    Raises:
        DatasetError: the array of weights has negative values, or only zeros.
    """
    store = dataset.store
    if config.kind is None:
        return np.ones(len(store), dtype=np.float32)
    values = dataset.numbers.array(weight_keys(config)[0]).astype(np.float64)
    if config.kind == "key":
        weights = values.reshape(-1)
        if len(weights) != len(store) or weights.min() < 0 or weights.max() == 0:
            raise DatasetError(
                f"{dataset.hdf5_path}: '{config.key}' (train.sample_weight.key) needs one number per step, none below "
                f"0 and not all 0; found values from {values.min():g} to {values.max():g}"
            )
    elif config.kind == "interventions":
        weights = _by_hand(values.reshape(-1) > 0, config.policy_share, str(dataset.hdf5_path))
    else:
        rewards = dataset.numbers.reward(values.astype(np.float32))
        if config.kind == "return":
            lengths = store.demo_end - store.demo_start
            quality = np.repeat(returns_of(rewards, store.demo_start), lengths)
        else:
            never = np.zeros_like(rewards)
            quality = returns_to_go(
                rewards, never, store.demo_start, store.demo_end, config.discount
            ).astype(np.float64)
        spread = max(float(np.ptp(quality)), 1e-8)
        weights = np.exp((quality - quality.max()) / spread / config.temperature)
    scaled: NDArray[np.float32] = (weights / weights.mean()).astype(np.float32)
    return scaled


def _by_hand(by_hand: NDArray[np.bool_], policy_share: float, path: str) -> NDArray[np.float64]:
    """Return weights (N,) that give the policy's own steps the fraction ``policy_share`` of the total weight."""
    total, own = len(by_hand), int(by_hand.sum())
    if own == 0:
        raise DatasetError(
            f"{path}: 'interventions' is 0 everywhere, so every step would have weight 0: set "
            "train.sample_weight.kind to null"
        )
    if own == total:
        return np.ones(total)
    return np.where(by_hand, (1.0 - policy_share) / own, policy_share / (total - own))


Shape = tuple[int, ...]
TRAIN_MASK, VALID_MASK = "train", "valid"


def build_datasets(
    config: Config, files: DataFiles | None = None
) -> tuple[SequenceDataset, SequenceDataset | None]:
    """Build the training set, and with ``experiment.validate`` the validation set.

    Validation demos are selected by the mask ``train.hdf5_validation_filter_key``, or ``valid``, of each file; the
    training then uses ``train.hdf5_filter_key``, or the mask ``train`` if there is one. A file's own ``filter_key``
    applies only to training; ``"all"`` means every demo unless a mask has that name. A file with weight 0 is not read.

    Args:
        config: configuration of the training.
        files: open data files of the configuration; None to open them here and close them at the end.

    Raises:
        DatasetError: a file has a fault, files do not fit together, a mask is missing or empty, or a demo is in both
            sets.
    """
    with data_files(config, files) as files:
        return _datasets(config, files)


def _datasets(config: Config, files: DataFiles) -> tuple[SequenceDataset, SequenceDataset | None]:
    sources = training_sources(config, files)
    valid_sources = _validation_sources(config) if config.experiment.validate else []
    _check_files(sources, config, files)
    check_apart(sources, valid_sources, files)
    entries = {source.entry for source in sources}
    if len({entry.path for entry in located_data(config) if entry.weight > 0}) > 1:
        tell_of_copies(sources, valid_sources, files)
    instructions = instructions_of(config, files)
    train_set = _sequence_dataset(sources, config, instructions, files)
    if config.train.normalize_weights_by_ds_size and len(entries) > 1:
        train_set.sample_weights = _weights_by_size(train_set)
    _scale_rewards(train_set, config)
    train_set.numbers.weigh_steps(step_weights(train_set, config.train.sample_weight))
    if not valid_sources:
        return train_set, None
    valid_set = _sequence_dataset(valid_sources, config, instructions, files)
    valid_set.numbers.scale_rewards(train_set.numbers.reward)
    return train_set, valid_set


def window_set(
    sources: list[DataSource], config: Config, instructions: Instructions
) -> SequenceDataset:
    """Build the dataset of a window of shards.

    Args:
        sources: the shards.
        config: configuration of the training.
        instructions: language instructions of all shards.

    Raises:
        DatasetError: a file has a fault, or files do not fit together.
    """
    with data_files(config) as files:
        _check_files(sources, config, files)
        return _sequence_dataset(sources, config, instructions, files)


def validation_set(config: Config, instructions: Instructions, files: DataFiles) -> SequenceDataset:
    """Build the validation set of a training that loads its shards in windows.

    Raises:
        DatasetError: the mask is missing, or contains training demos.
    """
    sources = _validation_sources(config)
    check_held_out(config, sources[0].filter_key or VALID_MASK, files)
    return _sequence_dataset(sources, config, instructions, files)


def check_held_out(config: Config, filter_key: str, files: DataFiles) -> None:
    """Refuse validation demos in folders of shards that are also training demos, according to the index.

    Raises:
        DatasetError: a demo is in the masks of both.
    """
    for entry in located_data(config):
        shards = shards_at(entry.path)
        if shards is None or not entry.weight > 0:
            continue
        chosen = training_filter_key(entry, config, files)
        for shard in shards.index.shards:
            shared = sorted(set(shard.chosen(filter_key)) & set(shard.chosen(chosen)))
            if shared:
                raise DatasetError(
                    f"{entry.path}: validation demos of filter key '{filter_key}', such as '{shared[0]}', are training "
                    "demos too: set train.hdf5_filter_key to a mask without them"
                )


def _check_files(sources: list[DataSource], config: Config, files: DataFiles) -> None:
    """Refuse files with faults in their first demo, and files whose arrays differ."""
    keys = [*(f"obs/{key}" for key in _stored_keys(sources, config, files)), *_step_keys(config)]
    check_agreement(sources, keys, files)
    for source in sources:
        file = files.open(source.path)
        refuse_rescaled(file)
        _check_observations(file, source, config)


def _scale_rewards(train_set: SequenceDataset, config: Config) -> None:
    section = config.train.reward
    if section == RewardConfig():
        return
    if "rewards" not in train_set.store.fields:
        raise ConfigError(
            "train.reward scales rewards, but nothing uses them: add 'rewards' to train.dataset_keys, or leave "
            "train.reward out"
        )
    rewards, starts = train_set.numbers.array("rewards"), train_set.store.demo_start
    train_set.numbers.scale_rewards(fit_rewards(section, rewards, starts, train_set.hdf5_path))


def training_sources(config: Config, files: DataFiles) -> list[DataSource]:
    """Return the training files: the files of all entries of ``train.data`` with a positive weight.

    Args:
        config: configuration of the training.
        files: the configuration's data files.

    Raises:
        ConfigError: no entry has a positive weight.
    """
    sources = []
    for number, entry in enumerate(located_data(config)):
        if entry.weight > 0:
            filter_key = training_filter_key(entry, config, files)
            sources += _sources_of(entry, number, filter_key, entry.demo_limit)
    if not sources:
        raise ConfigError(
            "train.data: every weight is 0, so there is nothing to train on: give at least one file a positive weight"
        )
    fraction = config.train.filter_best
    return sources if fraction is None else best_demos(sources, fraction, files)


def instructions_of(
    config: Config, files: DataFiles, names: Collection[str] | None = None
) -> Instructions:
    """Return the table of instructions: ``train.language_embeddings``, or else the instructions of the training demos.

    Args:
        config: configuration of the training.
        files: the configuration's data files.
        names: instructions of the training demos; None to read them from the files.
    """
    if config.train.language_embeddings is not None:
        return Instructions.load(located_file(config, "train.language_embeddings"))
    if names is None:
        names = instructions_in(training_sources(config, files), files)
    size = config.train.language_bytes
    return Instructions.one_hot(names) if size is None else Instructions.texts(names, size)


def _validation_sources(config: Config) -> list[DataSource]:
    """Return the validation demos of each file once, with the instruction if all entries of the file share one."""
    filter_key = config.train.hdf5_validation_filter_key or VALID_MASK
    instructions: dict[str, set[str | None]] = {}
    first: dict[str, tuple[int, DatasetConfig]] = {}
    for number, entry in enumerate(located_data(config)):
        if entry.weight > 0:
            instructions.setdefault(entry.path, set()).add(entry.lang)
            first.setdefault(entry.path, (number, entry))
    sources = []
    for path, (number, entry) in first.items():
        said = instructions[path]
        lang = next(iter(said)) if len(said) == 1 else None
        alike = entry.model_copy(update={"lang": lang, "weight": 1.0})
        sources += _sources_of(alike, number, filter_key)
    return sources


def _sources_of(
    entry: DatasetConfig, number: int, filter_key: str | None, demo_limit: int | None = None
) -> list[DataSource]:
    """Return the files of an entry of ``train.data``: the file itself, or the shards with selected demos."""
    shards = shards_at(entry.path)
    if shards is None:
        path = local_file(entry.path)
        return [DataSource(path, filter_key, demo_limit, entry.weight, entry.lang, entry=number)]
    parts = shards.parts(filter_key, demo_limit)
    paths = shards.files.local([shard for shard, _ in parts])
    return [
        DataSource(
            path,
            filter_key,
            None if demo_limit is None else len(demos),
            entry.weight,
            entry.lang,
            entry=number,
        )
        for path, (_, demos) in zip(paths, parts, strict=True)
    ]


def _stored_keys(sources: list[DataSource], config: Config, files: DataFiles) -> list[str]:
    """Return the keys of the observations that are read from the files."""
    served = None if holds_language(sources, files) else LANGUAGE_KEY
    return [key for key in config.all_obs_keys if key != served]


def _step_keys(config: Config) -> list[str]:
    keys = [key for key in config.train.dataset_keys if key != "actions"]
    return [*config.train.action_keys, *keys]


def dataset_metadata(
    config: Config, files: DataFiles | None = None
) -> tuple[dict[str, Any], dict[str, Shape], dict[str, int], list[float], list[float]]:
    """Collect the metadata of the training data that a checkpoint contains.

    Args:
        config: configuration of the training.
        files: open data files of the configuration; None to open them here and close them at the end.

    Returns:
        env_meta; stored shape of one step by observation key; size by action key; lowest and highest action that the
        policy may send, per dimension: -1 and 1 if all actions of the key are within these limits, else their range.
    """
    with data_files(config, files) as files:
        sources = training_sources(config, files)
        entries = located_data(config)
        evaluated = [entry.path for entry in entries if entry.eval]
        env_meta = files.outline(next(iter(evaluated), entries[sources[0].entry].path)).env_meta
        stored = _stored_keys(sources, config, files)
        file = files.open(sources[0].path)
        first = file.demos(sources[0].filter_key)[0]
        shapes = {key: file.shape(first, f"obs/{key}")[1:] for key in stored}
        if LANGUAGE_KEY in config.all_obs_keys and LANGUAGE_KEY not in stored:
            shapes[LANGUAGE_KEY] = (instructions_of(config, files).size,)
        ranges = {key: _action_range(sources, key, files) for key in config.train.action_keys}
    return env_meta, shapes, *action_limits(ranges)


def names_of_numbers(sources: Sequence[DataSource], files: DataFiles) -> dict[str, list[str]]:
    """Return the names of the components of observations and ``actions`` on which all training files agree.

    Only data from LeRobot have such names (:mod:`imitate.data.file.features`); {} for other data.
    """
    names: dict[str, list[str]] | None = None
    for path in dict.fromkeys(source.path for source in sources):
        found = number_names(features_of(files.open(path).file_attrs, str(path)))
        if names is None:
            names = found
        for key in [key for key in names if names[key] != found.get(key)]:
            del names[key]
    return names or {}


def action_limits(
    ranges: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[dict[str, int], list[float], list[float]]:
    """Return the size of each action key, and the lowest and highest action that the policy may send.

    Args:
        ranges: lowest and highest value per dimension in the training demos, by key.
    """
    low: list[float] = []
    high: list[float] = []
    dims: dict[str, int] = {}
    for key, (key_low, key_high) in ranges.items():
        dims[key] = len(key_low)
        if max(key_high.max(), -key_low.min()) <= ACTION_LIMIT:
            key_low, key_high = -np.ones(dims[key]), np.ones(dims[key])
        low += key_low.tolist()
        high += key_high.tolist()
    return dims, low, high


def _action_range(sources: list[DataSource], key: str, files: DataFiles) -> tuple[Any, Any]:
    lows, highs = [], []
    for source in sources:
        file = files.open(source.path)
        for demo in source.chosen(file):
            for _, piece in file.pieces(demo, key):
                values = piece.astype(np.float64).reshape(len(piece), -1)
                lows.append(values.min(axis=0))
                highs.append(values.max(axis=0))
    return np.min(lows, axis=0), np.max(highs, axis=0)


def training_filter_key(entry: DatasetConfig, config: Config, files: DataFiles) -> str | None:
    """Return the mask of an entry's training demos, or None for all demos."""
    filter_key = entry.filter_key or config.train.hdf5_filter_key
    if filter_key in (None, ALL_DEMOS):
        masks = files.outline(entry.path).filter_keys
        if filter_key not in masks:
            return TRAIN_MASK if config.experiment.validate and TRAIN_MASK in masks else None
    return filter_key


def _weights_by_size(dataset: SequenceDataset) -> NDArray[np.float64]:
    """Compute a weight per sample, such that the expected fraction of a batch from a file is the file's weight."""
    source = dataset.source_of_samples()
    entry = np.array([source.entry for source in dataset.sources])[source]
    sizes = np.bincount(entry)
    weights: NDArray[np.float64] = np.array([s.weight for s in dataset.sources])[source]
    weights /= sizes[entry]
    return weights


def _check_observations(file: DatasetFile, source: DataSource, config: Config) -> None:
    modalities = config.observation.modalities_of_all()
    for demo in file.demos(source.filter_key)[:1]:
        for key, modality in modalities.items():
            if key != LANGUAGE_KEY or file.has(demo, f"obs/{key}"):
                check_modality(file, demo, key, modality)


def _sequence_dataset(
    sources: list[DataSource], config: Config, instructions: Instructions, files: DataFiles
) -> SequenceDataset:
    train, needs = config.train, config.algo.data_needs(config)
    return SequenceDataset(
        sources,
        obs_keys=config.all_obs_keys,
        action_keys=train.action_keys,
        dataset_keys=(*train.dataset_keys, *weight_keys(train.sample_weight)),
        action_config=dict(train.action_config.items()),
        frame_stack=train.frame_stack,
        seq_length=train.seq_length,
        pad_frame_stack=train.pad_frame_stack,
        pad_seq_length=train.pad_seq_length,
        get_pad_mask=train.seq_length > 1 or train.frame_stack > 1,
        goal_mode=train.goal_mode,
        hdf5_cache_mode=train.hdf5_cache_mode,
        hdf5_normalize_obs=train.hdf5_normalize_obs,
        load_next_obs=bool(train.hdf5_load_next_obs) and needs.subgoals is None,
        instructions=instructions,
        image_steps=needs.observed_steps,
        transitions=needs.transitions,
        returns=needs.returns,
        subgoals=needs.subgoals,
        following=config.algo.following(config),
        goals=needs.goals,
        outcome=needs.outcome,
        files=files,
    )


_log = logging.getLogger(__name__)


def check_agreement(sources: Sequence[DataSource], keys: Sequence[str], files: DataFiles) -> None:
    """Refuse files whose first demos have different arrays; warn of different control rates.

    Args:
        sources: files to train on together.
        keys: arrays of a demo that are read.
        files: open files of the sources.

    Raises:
        DatasetError: arrays differ; the message names both files, each such key, both shapes and the remedy.
    """
    first = files.open(sources[0].path)
    first_demo = _first_demo(first, sources[0])
    wanted, rate = _layout(first, first_demo, keys), first.control_freq
    for source in sources[1:]:
        file = files.open(source.path)
        demo = _first_demo(file, source)
        found, own_rate = _layout(file, demo, keys), file.control_freq
        differences = list(_differences(found, wanted))
        if differences:
            raise DatasetError(
                f"{source.path} (demo '{demo}') does not fit {sources[0].path} (demo '{first_demo}'): "
                f"{'; '.join(differences)}: list under observation and train only keys with the same "
                "shape and type in all files, change the files (imitate dataset rename-key; one size for "
                "images), or leave a file out of train.data"
            )
        if rate and own_rate and rate != own_rate:
            _log.warning(
                "%s was recorded at %g Hz, but %s at %g Hz: a policy would learn both rates",
                *(source.path, own_rate, sources[0].path, rate),
            )


def _first_demo(file: DatasetFile, source: DataSource) -> str:
    demos = file.demos(source.filter_key)
    if not demos:
        raise no_demos(file, source.filter_key)
    return demos[0]


def _layout(
    file: DatasetFile, demo: str, keys: Sequence[str]
) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the shape of a step and whether it is uint8, for each key that the demo has."""
    return {
        key: (file.shape(demo, key)[1:], file.dtype(demo, key) == np.uint8)
        for key in dict.fromkeys(keys)
        if key not in SCALARS and file.has(demo, key)
    }


def _differences(
    found: Mapping[str, tuple[tuple[int, ...], bool]],
    wanted: Mapping[str, tuple[tuple[int, ...], bool]],
) -> Iterator[str]:
    for key in dict.fromkeys([*wanted, *found]):
        here, there = found.get(key), wanted.get(key)
        if here is None and there is not None:
            yield f"'{key}' is missing, but has shape {there[0]} in the other file"
        elif there is None and here is not None:
            yield f"'{key}' has shape {here[0]}, but is missing in the other file"
        elif here is not None and there is not None and _step(here[0]) != _step(there[0]):
            yield f"a step of '{key}' has shape {here[0]}, but {there[0]} in the other file"
        elif here is not None and there is not None and here[1] != there[1]:
            yield f"'{key}' is {_kind(here[1])}, but {_kind(there[1])} in the other file"


def _step(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)  # a scalar per step may be stored as (T,) or (T, 1)


def _kind(is_uint8: bool) -> str:
    return "uint8" if is_uint8 else "not uint8"


def check_apart(train: Sequence[DataSource], valid: Sequence[DataSource], files: DataFiles) -> None:
    """Refuse validation demos that are also training demos, even if a file is listed several times.

    Raises:
        DatasetError: a demo is in both sets, or a file lacks the mask of its validation demos.
    """
    for source in valid:
        file = files.open(source.path)
        if source.filter_key not in file.filter_keys():
            raise DatasetError(
                f"{source.path}: there is no filter key '{source.filter_key}' for the validation demos: "
                f"make the filter keys train and valid with: imitate dataset split {source.path} "
                "--in-place"
            )
        held_out = file.demos(source.filter_key)
        for part in (part for part in train if part.path == source.path):
            trained = set(part.chosen(file))
            shared = [demo for demo in held_out if demo in trained]
            if shared:
                raise DatasetError(_shared_words(source, part, shared))


def _shared_words(valid: DataSource, train: DataSource, shared: Sequence[str]) -> str:
    chosen = (
        f"filter key '{train.filter_key}'" if train.filter_key else "no filter key, so all demos"
    )
    return (
        f"{valid.path}: {len(shared)} validation demos of filter key '{valid.filter_key}', such as '{shared[0]}', are "
        f"training demos too ({chosen}): set train.hdf5_filter_key, or filter_key of this file in train.data, to a "
        "mask without them"
    )


def tell_of_copies(
    train: Sequence[DataSource], valid: Sequence[DataSource], files: DataFiles
) -> None:
    """Warn of equal demos under different names, in the training data or in the training and the validation data."""
    first: dict[bytes, str] = {}
    twice = []
    for digest, demo in _digests(train, files):
        if digest in first:
            twice.append((demo, first[digest]))
        first.setdefault(digest, demo)
    leaks = [(demo, first[digest]) for digest, demo in _digests(valid, files) if digest in first]
    for words, pairs in (
        ("twice in the training data", twice),
        ("in both training and validation data", leaks),
    ):
        if pairs:
            (copy, original), count = pairs[0], counted(len(pairs), "demo")
            _log.warning("%s %s: %s has the same actions as %s", count, words, copy, original)


def _digests(sources: Sequence[DataSource], files: DataFiles) -> Iterator[tuple[bytes, str]]:
    """Yield a digest of the actions of each demo, and a name of the demo for messages."""
    for source in sources:
        file = files.open(source.path)
        for demo in source.chosen(file):
            form = f"{file.shape(demo, 'actions')} {file.dtype(demo, 'actions')}"
            digest = hashlib.blake2b(form.encode())
            for _, actions in file.pieces(demo, "actions"):
                digest.update(np.ascontiguousarray(actions).data)
            yield digest.digest(), f"demo '{demo}' of {source.path}"
