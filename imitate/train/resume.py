"""Resuming of an interrupted run: its configuration, state and data."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from imitate.algo.base.acting import OMITTED, REMEDY
from imitate.config import Config, load_config
from imitate.config.data_paths import MissingFileError, located_data
from imitate.errors import CheckpointError, ConfigError, UserError
from imitate.evaluate.environments import check_cluster, untrusted_in
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.system.text import counted
from imitate.system.trust import trust_options

# Keys that may differ from the run's configuration. Changing any other key would make it another run. A new num_epochs
# also changes a learning-rate schedule that depends on it.
CHANGEABLE = (
    "train.data",
    "train.num_epochs",
    "train.num_data_workers",
    "train.num_threads",
    "train.cuda",
    "train.device",
    "train.cuda_graph",
    "train.data_on_device",
    "train.cache_features",
    "train.hdf5_cache_mode",
    "train.on_bad_loss",
    "cluster",
    "experiment.logging",
    "experiment.save",
    "experiment.rollout",
    "experiment.early_stopping",
    "experiment.render_video",
    "experiment.keep_all_videos",
    "experiment.video_skip",
)


def resumed_config(
    folder: RunFolder, overrides: Sequence[str], dataset: str | Path | None = None
) -> Config:
    """Return the run's configuration with permitted overrides.

    Args:
        folder: folder of the run.
        overrides: ``key=value`` texts.
        dataset: new path of the run's only dataset; its content is checked later.

    Raises:
        ConfigError: an override would make it another run, or its demonstrations are no longer at their path.
    """
    for text in overrides:
        key = text.partition("=")[0].strip()
        if not any(key == allowed or key.startswith(allowed + ".") for allowed in CHANGEABLE):
            raise ConfigError(
                f"--set {key}: cannot change in a resumed run ({folder.path}); only these may "
                f"change: {', '.join(CHANGEABLE)}. Start a new run to change others"
            )
    config = load_config(folder.config, overrides)
    check_cluster(config, overrides)
    entries = config.train.data or ()
    if dataset is not None:
        if len(entries) != 1:
            raise ConfigError(
                f"--dataset: the run has {counted(len(entries), 'dataset')}: give the new path of each with --set "
                "train.data=[...], or move them back"
            )
        moved = entries[0].model_copy(update={"path": str(dataset)})
        config = config.with_overrides({"train.data": [moved.to_dict()]})
    try:
        if entries:
            located_data(config)
    except MissingFileError as error:
        raise ConfigError(f"{error}; if it was moved, give its new path: --dataset PATH") from error
    return config


def last_state(folder: RunFolder) -> dict[str, Any] | None:
    """Return the newest readable checkpoint, or None if the run was interrupted before its first.

    Raises:
        CheckpointError: there are checkpoints, but none can be read.
    """
    numbered = sorted(
        folder.checkpoints.glob("epoch_*.pth"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    paths = [path for path in (folder.last, *numbered) if path.is_file()]
    if not paths:
        return None
    try:
        ckpt = load_checkpoint(paths[0])
    except CheckpointError:
        # Saving is atomic, so only a disk error or an incomplete copy of the folder damages a checkpoint.
        for path in paths[1:]:
            with contextlib.suppress(CheckpointError):
                return load_checkpoint(path)
        raise
    if OMITTED in ckpt["model"]:
        raise CheckpointError(f"{paths[0]}: cannot be resumed, because it {REMEDY}")
    return ckpt


@contextlib.contextmanager
def restored(path: Path) -> Iterator[None]:
    """Context that converts errors of restoring a checkpoint, whose values may have any type, to CheckpointError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        words = (str(error).strip().splitlines() or [""])[-1].strip()
        raise CheckpointError(
            f"{path}: no run can be resumed from it ({type(error).__name__}: {words}): replace it by another "
            "checkpoint of the run"
        ) from error


def resuming(folder: RunFolder) -> str:
    """Return the command that resumes a run, including --trust options if its configuration needs them."""
    words = ["imitate", "train", "--resume", str(folder.path)]
    with contextlib.suppress(UserError):
        words += trust_options(untrusted_in(load_config(folder.config)))
    return shlex.join(words)


_NAMES = {
    "content_sha256": "content_sha256: observations, rewards or other values",
    "sha256": "sha256: actions, or names of demos",
    "demos_sha256": "demos_sha256: which demos the filter key selects",
}


def check_same_data(
    saved: Sequence[Any], present: Sequence[Any], say: Callable[[str], None]
) -> None:
    """Refuse to resume if the demonstrations have changed.

    Args:
        saved: the datasets' provenance in the run's checkpoint.
        present: provenance of the files now.
        say: called with a line for files of which only the actions can be compared (the run was begun by an earlier
            version).

    Raises:
        CheckpointError: a file has changed since the run began.
    """
    if len(saved) != len(present):
        raise CheckpointError(
            f"train.data: the run began with {counted(len(saved), 'dataset')}, but now has {len(present)}: restore "
            "train.data, or start a new run"
        )
    for before, now in zip(saved, present, strict=True):
        # These may differ: another filter key or path does not change a file's content.
        incomparable = {"size_bytes", "path"}
        if before.get("content_version") != now.get("content_version"):
            incomparable |= {"content_version", "content_sha256"}
            say(
                f"{now['path']}: its actions are unchanged since the run began; the version "
                "that began it recorded no checksum of observations and rewards"
            )
        changed = [
            _NAMES.get(key, key)
            for key in before
            if key not in incomparable and before[key] != now.get(key)
        ]
        if changed:
            raise CheckpointError(
                f"{now['path']}: has changed since the run began ({', '.join(changed)}); "
                "restore the original file, or start a new run"
            )
