"""Setup of a run: construction of data and algorithm from its configuration.

The steps of ``train.preprocess`` are fitted to windows of the training data.
"""

import contextlib
import functools
import hashlib
import json
import logging
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.relative import check_deltas, check_relative
from imitate.config import Config, DatasetConfig, load_config, located_data
from imitate.config.data_paths import MissingFileError, expanded, located_file, url_of
from imitate.config.from_data import action_normalization, num_epochs, rollout_horizon
from imitate.config.loading import Source
from imitate.config.readiness import check_trainable, trainable_template
from imitate.data import SequenceDataset, build_datasets, dataset_metadata
from imitate.data.batches.build import names_of_numbers
from imitate.data.batches.streamed import build_streamed, with_shard_window
from imitate.data.download.catalogue import download_advice
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.envs.make import is_real, is_robot
from imitate.errors import ConfigError, offered
from imitate.evaluate.environments import environments
from imitate.models.preprocess import Preprocess
from imitate.models.preprocessing.measuring import Sample
from imitate.system.missing import no_such
from imitate.train.devices import with_precision
from imitate.train.observations import with_observations
from imitate.train.start import start_from, with_checksums
from imitate.train.training_data import FileShare, TrainingData, shares_of, with_filter_key

logger = logging.getLogger(__name__)

MAX_WINDOWS = 20_000
"""Largest number of windows, evenly spread, for the statistics of preprocessed values."""
MAX_FRAMES = 1000
"""Largest number of images per key in these windows."""
_WINDOWS_AT_ONCE = 256


def samples_of(train_set: SequenceDataset, algo: Algo, keys: Collection[str]) -> Iterator[Sample]:
    """Return windows with these observations and with the actions that an algorithm learns.

    Args:
        train_set: the data.
        algo: determines the reference observation of relative actions: at a chunk's beginning, or at each step.
        keys: requested observations.
    """
    first, per_chunk = algo.frame_stack - 1, algo.execution is not None
    most = min(len(train_set), MAX_WINDOWS)
    if any(len(train_set.obs_shapes[key]) > 1 for key in keys):
        most = min(most, max(1, MAX_FRAMES // train_set.window_steps))
    index = np.linspace(0, len(train_set) - 1, most).astype(np.int64)
    for part in np.array_split(index, -(-most // _WINDOWS_AT_ONCE)):
        window = train_set.windows(part, keys)
        obs, start = window["obs"], first if per_chunk else 0
        yield Sample(
            obs,
            window["actions"][:, start:],
            {key: obs[key][:, first] if per_chunk else obs[key] for key in keys},
            window["pad_mask"][:, start:],
        )


_PROVENANCE_IMAGES = 100


@dataclass(frozen=True)
class Setup:
    """The parts of a run: configuration, data and algorithm.

    Attributes:
        config: resolved configuration: data paths are absolute, and null is replaced by numbers.
        env_metas: env_args of the environments to evaluate in; the first is the data's own. If there are several, each
            has a name `key` and an instruction `lang`.
        language: instructions of a policy with the observation `lang_emb`, otherwise None.
        shares: parts of the demonstration files to train on.
    """

    config: Config
    device: torch.device
    train_set: Any
    valid_set: Any
    algo: Algo
    env_metas: tuple[dict[str, Any], ...]
    language: dict[str, Any] | None
    shape_metadata: dict[str, Any]
    provenance: dict[str, Any]
    shares: tuple[FileShare, ...]

    @functools.cached_property
    def training_data(self) -> TrainingData:
        """Description of the files, observations and network of the training."""
        return TrainingData.of(self.shares, self.shape_metadata["raw_shapes"], self.algo)

    @property
    def language_words(self) -> tuple[str, ...]:
        """Lines to print on the instructions that the policy receives."""
        return (
            ()
            if self.language is None or self.train_set is None
            else (self.train_set.instructions.words,)
        )

    @property
    def storage_words(self) -> tuple[str, ...]:
        """Lines to print on the storage of images."""
        return () if self.train_set is None else tuple(self.train_set.storage_words)


def load_resolved(
    source: Source,
    overrides: Iterable[str],
    dataset: str | Path | None,
    output_dir: str | Path | None,
    grid: Iterable[str] = (),
    say: Callable[[str], object] = logger.warning,
) -> Config:
    """Read a configuration, apply ``--set``, and resolve it (see :func:`load_overridden` and :func:`resolve`)."""
    config = load_overridden(source, overrides, dataset, output_dir, grid, say)
    return resolve(config, dataset, output_dir)


def load_overridden(
    source: Source,
    overrides: Iterable[str],
    dataset: str | Path | None,
    output_dir: str | Path | None,
    grid: Iterable[str] = (),
    say: Callable[[str], object] = logger.warning,
) -> Config:
    """Read a configuration and apply ``--set``; change values of a robomimic template that cannot be trained here.

    Args:
        source: configuration, see :func:`imitate.config.load_config`.
        overrides: texts ``"a.b=value"``, applied in order.
        dataset: demonstrations that will replace ``train.data``, or None.
        output_dir: folder that will replace ``train.output_dir``, or None.
        grid: dotted keys of ``source`` that a sweep has set.
        say: called with a line for each value of a template that is changed.

    Raises:
        ConfigError: a key is set that ``dataset`` or ``output_dir`` would replace.
    """
    overrides = list(overrides)
    keys = [*(text.partition("=")[0].strip() for text in overrides), *grid]
    for option, value, key in (
        ("--dataset", dataset, "train.data"),
        ("--output-dir", output_dir, "train.output_dir"),
    ):
        twice = [k for k in keys if k == key or k.startswith(key + ".")]
        if value is not None and twice:
            raise ConfigError(
                f"{option} replaces {key}, so {twice[0]} has no effect: omit one of them"
            )
    config, lines = trainable_template(load_config(source, overrides))
    for line in lines:
        if output_dir is None or not line.startswith("train.output_dir"):
            say(line)
    return config


def resolve(
    config: Config,
    dataset: str | Path | None,
    output_dir: str | Path | None,
    files: DataFiles | None = None,
) -> Config:
    """Apply command-line options, make data paths absolute, and replace ``auto`` by observation keys.

    Args:
        config: configuration of the training.
        dataset: demonstrations that replace ``train.data``, or None.
        output_dir: folder that replaces ``train.output_dir``, or None.
        files: its data files; None to open them here and close them at the end.

    Raises:
        ConfigError: no data are given, or a file is missing or lacks an observation.
    """
    overrides: dict[str, Any] = {}
    if output_dir is not None:
        overrides["train.output_dir"] = str(output_dir)
    if dataset is not None:
        overrides["train.data"] = _named(dataset)
    config = config.with_overrides(overrides) if overrides else config
    paths: dict[str, Any] = {}
    if config.train.language_embeddings is not None:
        paths["train.language_embeddings"] = str(located_file(config, "train.language_embeddings"))
    with data_files(config, files) as files:
        if config.train.data or not config.train.online.enabled:
            located = [with_filter_key(entry, config, files) for entry in _data_of(config)]
            paths["train.data"] = [entry.to_dict() for entry in located]
        config = with_observations(with_shard_window(config.with_overrides(paths)), files)
    config = with_checksums(config)
    check_trainable(config)
    _check_rollback(config)
    return config


def _named(dataset: str | Path) -> str:
    """Return the absolute path or the URL of ``--dataset``."""
    url = url_of(dataset)
    if url is not None:
        return url
    named = Path(dataset).expanduser()
    for path in expanded(str(named)):
        if not Path(path).exists():
            raise ConfigError(no_such(path, "demonstration file"))
    return str(named.resolve())


def _data_of(config: Config) -> tuple[DatasetConfig, ...]:
    """Locate the demonstration files; the error on a missing public file names the command that downloads it."""
    try:
        return located_data(config)
    except MissingFileError as error:
        advice = download_advice(error.path)
        if advice is None:
            raise
        raise ConfigError(f"{str(error).rpartition(': ')[0]}: {advice}") from None


def _check_rollback(config: Config) -> None:
    if config.train.on_bad_loss == "rollback" and not config.experiment.save.enabled:
        raise ConfigError(
            "train.on_bad_loss: 'rollback' needs checkpoints, but experiment.save.enabled is false: set it to true"
        )


def build(
    config: Config,
    device: torch.device,
    *,
    resumed: bool = False,
    stored: int | None = None,
    files: DataFiles | None = None,
) -> Setup:
    """Load the data, fit the normalization on the training demos, and build the algorithm.

    Args:
        config: resolved configuration.
        device: device of the algorithm's networks.
        resumed: true if weights will come from a checkpoint of the run.
        stored: number of weights in that checkpoint, which limit the size of the networks; None if unknown.
        files: its data files; None to open them here and close them at the end.
    """
    with data_files(config, files) as files:
        return _built(config, device, files, resumed=resumed, stored=stored)


def _built(
    config: Config, device: torch.device, files: DataFiles, *, resumed: bool, stored: int | None
) -> Setup:
    train_set: Any
    streamed = build_streamed(config, files)
    train_set, valid_set = streamed or build_datasets(config, files)
    numbers = _numbers_for_null(config, train_set, valid_set)
    config = with_precision(config.with_overrides(numbers), device)
    metadata = dataset_metadata(config, files) if streamed is None else train_set.metadata()
    _, raw_shapes, action_dims, action_low, action_high = metadata
    modalities = config.observation.modalities_of_all()
    begins = not resumed and config.experiment.ckpt_path is None
    algo = _learner(config, train_set, metadata, device, load_pretrained=begins, stored=stored)
    action_low, action_high = algo.preprocess.sent_limits(action_low, action_high)
    if not resumed:
        start_from(algo, config.experiment)
    if config.train.data_on_device:
        train_set.to(device)
    return Setup(
        config=config,
        device=device,
        train_set=train_set,
        valid_set=valid_set if config.experiment.validate else None,
        algo=algo,
        env_metas=environments(config, train_set.tasks if train_set.serves_language else (), files),
        language=train_set.instructions.to_dict() if train_set.serves_language else None,
        shape_metadata={
            "raw_shapes": {key: list(raw_shapes[key]) for key in modalities},
            "action_dims": dict(action_dims),
            "action_low": action_low,
            "action_high": action_high,
            "control_freq": train_set.control_freq,
            "names": names_of_numbers(train_set.sources, files) if streamed is None else {},
            "longest_demo": int(train_set.demo_lengths.max()),
        },
        provenance=_provenance(config, train_set, files),
        shares=shares_of(config, train_set.sources, files),
    )


def _learner(
    config: Config,
    train_set: Any,
    metadata: tuple[Any, ...],
    device: torch.device,
    *,
    load_pretrained: bool,
    stored: int | None,
) -> Algo:
    """Build the algorithm, and fit its normalization to the training set."""
    _, raw_shapes, action_dims, _, _ = metadata
    modalities = config.observation.modalities_of_all()
    preprocess = Preprocess.unfitted(
        {key: raw_shapes[key] for key in modalities},
        modalities,
        action_dims,
        obs_normalization=config.train.obs_normalization,
        unit_range_keys=config.observation.unit_range_keys(),
        action_config=dict(config.train.action_config.items()),
        obs_clip=config.train.obs_clip,
        steps=[entry.to_dict() for entry in config.train.preprocess],
        image_types=train_set.image_types,
    )
    check_relative(config, preprocess)
    with contextlib.nullcontext() if stored is None else AllocationLimit(stored):
        algo = algo_factory(
            config.algo_name,
            config,
            preprocess.obs_shapes,
            preprocess.action_dim,
            device,
            load_pretrained=load_pretrained,
        )
    check_deltas(algo, preprocess)
    algo.preprocess = preprocess
    preprocess.fit(train_set.statistics(), functools.partial(samples_of, train_set, algo))
    algo.preprocess = preprocess.to(device)
    return algo


def _numbers_for_null(config: Config, train_set: Any, valid_set: Any) -> dict[str, Any]:
    values = config.algo.values_from_horizon(int(train_set.demo_lengths.max()))
    values |= config.algo.values_from_data(train_set)
    numbers = {f"algo.{key}": value for key, value in values.items()}
    size = config.train.batch_size
    if config.experiment.epoch_every_n_steps is None:
        numbers["experiment.epoch_every_n_steps"] = max(1, len(train_set) // size)
    if config.train.num_epochs is None:
        steps = config.experiment.epoch_every_n_steps or numbers["experiment.epoch_every_n_steps"]
        numbers["train.num_epochs"] = num_epochs(len(train_set), size, steps)
    if config.experiment.rollout.horizon is None:
        lengths = train_set.demo_lengths.tolist()
        numbers["experiment.rollout.horizon"] = rollout_horizon(lengths)
    numbers |= normalization_for_auto(config, train_set)
    if config.experiment.validation_epoch_every_n_steps is None and valid_set is not None:
        numbers["experiment.validation_epoch_every_n_steps"] = max(1, -(-len(valid_set) // size))
    return numbers


def normalization_for_auto(config: Config, train_set: Any) -> dict[str, Any]:
    """Return ``train.action_config`` with a normalization in place of each ``auto``, or {} if no entry has ``auto``."""
    entries = config.train.action_config.to_dict()
    chosen = [key for key in config.train.action_keys if entries[key]["normalization"] == "auto"]
    if chosen and any(entry.step == "relative_actions" for entry in config.train.preprocess):
        raise ConfigError(
            f"train.action_config.{chosen[0]}.normalization is 'auto', which is computed from "
            "the stored actions, but step 'relative_actions' changes them: wanted 'min_max', "
            "'gaussian', 'quantile' or null"
        )
    for key in chosen:
        stats = train_set.statistics()["actions"][key]
        entries[key]["normalization"] = action_normalization(stats.min, stats.max)
    return {"train.action_config": entries} if chosen else {}


def _provenance(config: Config, train_set: Any, files: DataFiles) -> dict[str, Any]:
    """Return the data files with the demos in use, observation statistics, rewards, commit and packages."""
    names = train_set.demo_names()
    datasets = []
    for number, entry in enumerate(config.train.data or ()):
        chosen = entry.to_dict()
        del chosen["eval"], chosen["key"]
        taken = names.get(number, [])
        chosen["training_demos"] = len(taken)
        chosen["demos_sha256"] = hashlib.sha256(json.dumps(taken).encode()).hexdigest()
        datasets.append({**chosen, **files.fingerprint(entry.path)})
    return {
        "datasets": datasets,
        "observations": observation_statistics(train_set),
        "reward": train_set.reward.to_dict(),
        "git_commit": git_commit(),
        "packages": package_versions(),
    }


def observation_statistics(train_set: Any) -> dict[str, dict[str, list[float]]]:
    """Return mean, std, min and max of each vector and colour channel, for ``imitate check-deploy``.

    ``first_min`` and ``first_max`` are the least and largest values of a vector in the first steps of the demos.
    Images are read from only :data:`_PROVENANCE_IMAGES` steps, because this happens at the start of every training.
    """
    chosen = [
        key
        for key, shape in train_set.obs_shapes.items()
        if len(shape) == 1 or (len(shape) == 3 and shape[-1] == 3)
    ]
    known = train_set.statistics(max_images=_PROVENANCE_IMAGES)["obs"]
    found = {key: known[key] for key in chosen if key in known}
    recorded = {
        key: {name: getattr(stats, name).ravel().tolist() for name in ("mean", "std", "min", "max")}
        for key, stats in found.items()
    }
    for key, numbers in recorded.items():
        first = train_set.first_values(key)
        if first is not None:
            numbers["first_min"] = first.min(axis=0).tolist()
            numbers["first_max"] = first.max(axis=0).tolist()
    return recorded


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages that affect results."""
    return dict(_package_versions())


@functools.cache
def _package_versions() -> dict[str, str]:
    """Return the versions; they are cached, because reading each takes a millisecond."""
    versions = {}
    for name in ("imitate", "torch", "numpy", "h5py", "gymnasium", "robosuite", "mujoco"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_commit() -> str | None:
    """Return the commit of the working directory, or None if it is not a git checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def without_real_robots(setup: Setup) -> tuple[Setup, list[str]]:
    """Return the setup without impossible evaluations, and a line to print if some were removed.

    Raises:
        ConfigError: no environment is left, but early stopping depends on the success rate.
    """
    if not setup.config.experiment.rollout.enabled:
        return setup, []
    if not all(is_real(meta) for meta in setup.env_metas):
        return setup, []
    config = setup.config.with_overrides({"experiment.rollout.enabled": False})
    check_trainable(config)
    if is_robot(setup.env_metas[0]):
        name = setup.env_metas[0]["env_name"]
        return replace(setup, config=config), [
            f"rollouts are off, because {name} is a single robot, which this training uses; evaluate afterwards: "
            "imitate eval --agent RUN --env "
            f"{name}"
        ]
    kind = setup.env_metas[0].get("type")
    reason = "a real robot (env_args type 4)" if kind is not None else "no environment (env_args)"
    here = "--env module:Name-v0, or " if offered("--env") else ""
    note = (
        f"rollouts are off, because the data name {reason}; to evaluate in a simulator: {here}add it to the file: "
        "imitate dataset set-env FILE --env module:Name-v0"
    )
    return replace(setup, config=config), [note]
