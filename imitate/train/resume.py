"""Resuming of a run that was cut short."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from imitate.config import Config, load_config
from imitate.config.data_paths import MissingFileError, located_data
from imitate.envs.trust import trust_options
from imitate.errors import CheckpointError, ConfigError, UserError
from imitate.evaluation.environments import untrusted_in
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.system.wording import counted

# Keys that may differ from the run's configuration. All others would make it another run. A new num_epochs also
# stretches a learning-rate schedule that depends on it.
CHANGEABLE = (
    "train.data",
    "train.num_epochs",
    "train.num_data_workers",
    "train.num_threads",
    "train.cuda",
    "train.device",
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
        folder: the run.
        overrides: ``key=value`` texts.
        dataset: new place of the run's only dataset; that it is the same is checked later.

    Raises:
        ConfigError: an override would make it another run, or its demonstrations are not where they were.
    """
    for text in overrides:
        key = text.partition("=")[0].strip()
        if not any(key == allowed or key.startswith(allowed + ".") for allowed in CHANGEABLE):
            raise ConfigError(
                f"--set {key}: cannot change in a resumed run ({folder.path}); these can: {', '.join(CHANGEABLE)}. "
                "Start a new run for others"
            )
    config = load_config(folder.config, overrides)
    entries = config.train.data or ()
    if dataset is not None:
        if len(entries) != 1:
            raise ConfigError(
                f"--dataset: the run has {counted(len(entries), 'dataset')}: name the new place of each by "
                "--set train.data=[...], or put them back"
            )
        moved = entries[0].model_copy(update={"path": str(dataset)})
        config = config.with_overrides({"train.data": [moved.to_dict()]})
    try:
        if entries:
            located_data(config)
    except MissingFileError as error:
        raise ConfigError(
            f"{error}; if it was moved, say where it is now: --dataset PATH"
        ) from error
    return config


def last_state(folder: RunFolder) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read; None for a run that was cut before its first.

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
        return load_checkpoint(paths[0])
    except CheckpointError:
        # Saving is atomic, so only a damaged disk or a copy cut short leads here.
        for path in paths[1:]:
            with contextlib.suppress(CheckpointError):
                return load_checkpoint(path)
        raise


def resuming(folder: RunFolder) -> str:
    """Return the command that resumes a run, with trust in what only its configuration names."""
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
    """Refuse to resume with other demonstrations under the same name.

    Args:
        saved: the datasets' provenance in the run's checkpoint.
        present: that of the files as they are.
        say: gets a line on files of which only the actions are compared, because an earlier version began the run.

    Raises:
        CheckpointError: a file has changed since the run began.
    """
    if len(saved) != len(present):
        raise CheckpointError(
            f"train.data: the run began with {counted(len(saved), 'dataset')}, now there are {len(present)}"
        )
    for before, now in zip(saved, present, strict=True):
        incomparable = {
            "size_bytes",
            "path",
        }  # a filter key more is no other data, nor is a new place
        if before.get("content_version") != now.get("content_version"):
            incomparable |= {"content_version", "content_sha256"}
            say(
                f"{now['path']}: its actions are those that the run began with; observations and rewards "
                "were not noted by the version that began it"
            )
        changed = [
            _NAMES.get(key, key)
            for key in before
            if key not in incomparable and before[key] != now.get(key)
        ]
        if changed:
            raise CheckpointError(
                f"{now['path']}: has changed since the run began ({', '.join(changed)}); "
                "put the file of that time back, or start a new run"
            )
