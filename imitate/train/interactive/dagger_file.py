"""Files of interactive imitation: ``demos.hdf5`` with all rounds' data, ``progress.json`` with the finished rounds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imitate.config import Config, DatasetConfig
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.batches.build import training_sources
from imitate.data.file.action_scale import refuse_rescaled
from imitate.data.shards.data_files import data_files
from imitate.envs.make import is_robot
from imitate.errors import ConfigError
from imitate.system.plain_files import check_not_linked, read_json
from imitate.system.run_folder import write_text
from imitate.system.statistics import rate_of
from imitate.train.training_data import LABELLED, with_filter_key


@dataclass
class Round:
    """Result of a round.

    Attributes:
        number: number of the round; 0 for the demonstrations.
        episodes: episodes recorded in it.
        steps: environment steps.
        interventions: steps in which the supervisor acted.
        labels: number of steps so far with a supervisor's action to learn.
        rollout_success: share of the round's episodes that succeeded, with the help of the supervisor, or None if
            success is unknown.
        success_rate: success rate of the policy trained after it, or None if it is unknown.
        mean_return: mean return of that policy, or None if it was not evaluated.
        checkpoint: checkpoint of that policy.
    """

    number: int
    episodes: int = 0
    steps: int = 0
    interventions: int = 0
    labels: int = 0
    rollout_success: float | None = None
    success_rate: float | None = None
    mean_return: float | None = None
    checkpoint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Round:
        """Make the round from the result of :meth:`to_dict`; unknown entries are ignored."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in entry.items() if key in names})


@dataclass
class DaggerProgress:
    """Finished rounds, and the exit code of the training that was interrupted, if one was."""

    rounds: list[Round] = field(default_factory=list)
    exit_code: int = 0


class RoundFiles:
    """Files of all rounds in their folder.

    Args:
        folder: folder of the rounds.
        config: configuration of the policy.
        env_meta: the environment.
        settings: settings that may not change between the rounds.
        labels_all: true if every step has a label in files of earlier versions.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        env_meta: dict[str, Any],
        settings: Mapping[str, Any],
        *,
        labels_all: bool,
    ) -> None:
        self.folder, self.demos = folder, folder / "demos.hdf5"
        self._progress = folder / "progress.json"
        self._config, self._env_meta = config, env_meta
        self._settings, self._labels_all = dict(settings), labels_all

    def begun(self, dataset: str | Path | None, most: int | None) -> DaggerProgress:
        """Return the progress so far; at the start, copy at most ``most`` demonstrations.

        Raises:
            ConfigError: the folder was begun with other settings.
        """
        if self._progress.is_file():
            saved = self._saved()
            # Folders begun by an earlier version lack these settings.
            saved["settings"] = {"label_every": 1, "ask_above": None, **saved["settings"]}
            if saved["settings"] != self._settings:
                raise ConfigError(
                    f"{self.folder}: was begun with {saved['settings']}, but the settings are "
                    f"now {self._settings}: use another folder"
                )
            return DaggerProgress([Round.from_dict(entry) for entry in saved["rounds"]])
        self.folder.mkdir(parents=True, exist_ok=True)
        if dataset is not None and not self.demos.exists():
            self._copy(Path(dataset), most)
        progress = DaggerProgress()
        self.save(progress)
        return progress

    def round_folder(self, number: int) -> Path:
        """Return the folder of a round's run; raise OSError if the folder is a link."""
        folder = self.folder / f"round_{number}"
        check_not_linked(folder)
        return folder

    def save(self, progress: DaggerProgress) -> None:
        """Write the finished rounds."""
        rounds = [over.to_dict() for over in progress.rounds]
        content = {"settings": self._settings, "rounds": rounds}
        write_text(self._progress, json.dumps(content, indent=2) + "\n")

    def _saved(self) -> dict[str, Any]:
        saved = read_json(self._progress)
        try:
            rounds = [Round.from_dict(entry) for entry in saved["rounds"]]
            if all(type(over.episodes) is int for over in rounds):
                return {"settings": dict(saved["settings"]), "rounds": saved["rounds"]}
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        raise ConfigError(f"{self._progress}: is not a progress file: use another folder")

    def recorded_before(self) -> int:
        """Return the number of episodes of the finished rounds."""
        return sum(int(entry["episodes"]) for entry in self._saved()["rounds"])

    def counted(self, number: int) -> Round:
        """Count the episodes, steps, interventions and labels of a round in ``demos.hdf5``."""
        over = Round(number)
        if not self.demos.exists():
            return over
        outcomes: list[bool | None] = []
        with DatasetFile(self.demos) as file:
            for demo in file.demos():
                by_hand = file.read(demo, "interventions").reshape(-1) > 0
                over.labels += self._labels(file, demo)
                if file.attrs(demo)["round"] == number:
                    over.episodes += 1
                    over.steps += len(by_hand)
                    over.interventions += int(by_hand.sum())
                    outcomes.append(file.success(demo))
        rate = rate_of(outcomes) if number > 0 else None
        over.rollout_success = None if rate is None else rate.value
        return over

    def _labels(self, file: DatasetFile, demo: str) -> int:
        """Count the labels of one demo."""
        if file.has(demo, LABELLED):
            return int((file.read(demo, LABELLED) > 0).sum())
        if self._labels_all:  # files of earlier versions do not mark the labelled steps
            return file.length(demo)
        return int((file.read(demo, "interventions") > 0).sum())

    def appended(self) -> DatasetWriter:
        """Open the file to append episodes."""
        return self._writer(append=True)

    def _writer(self, *, append: bool, rate_hz: float | None = None) -> DatasetWriter:
        return DatasetWriter(
            self.demos,
            self._env_meta,
            append=append,
            overwrite=not append,
            control_freq=rate_hz,
            strict=False,
        )

    def _copy(self, dataset: Path, most: int | None) -> None:
        """Copy the demonstrations as round 0, in which the supervisor always acted."""
        entry = DatasetConfig(path=str(dataset.resolve()))
        with data_files(self._config) as files:
            entry = with_filter_key(entry, self._config, files)
            named = self._config.with_overrides({"train.data": [entry.to_dict()]})
            (source,) = training_sources(named, files)
            file = files.open(source.path)
            refuse_rescaled(file)
            self._copy_demos(file, source.chosen(file)[:most])

    def _copy_demos(self, file: DatasetFile, demos: Sequence[str]) -> None:
        with self._writer(append=False, rate_hz=file.control_freq) as writer:
            for demo in demos:
                episode = _demonstration(file, demo, self._config.all_obs_keys)
                # All episodes of a file need the same arrays, and episodes of a robot have no states.
                if is_robot(self._env_meta):
                    episode = dataclasses.replace(episode, states=None)
                writer.append_episode(episode)


def alike(episode: Episode, writer: DatasetWriter) -> Episode:
    """Return an episode without labels if the file's episodes have none: all must have the same arrays."""
    if not writer.arrays or LABELLED in writer.arrays:
        return episode
    steps = {key: value for key, value in episode.steps.items() if key != LABELLED}
    return dataclasses.replace(episode, steps=steps)


def _demonstration(file: DatasetFile, demo: str, keys: tuple[str, ...]) -> Episode:
    """Convert a demonstration to the form of a supervised episode."""
    length = file.length(demo)
    actions = file.read(demo, "actions")
    ends = "terminals" if file.has(demo, "terminals") else "dones"
    terminals = file.read(demo, ends).reshape(length) if file.has(demo, ends) else np.zeros(length)
    timeouts = np.zeros(length)
    timeouts[-1] = not terminals[-1]
    rewards = file.read(demo, "rewards").reshape(length) if file.has(demo, "rewards") else None
    kept = ("model_file", "ep_meta", "success")
    attrs = {key: value for key, value in file.attrs(demo).items() if key in kept}
    return Episode(
        obs={key: file.read(demo, f"obs/{key}") for key in keys},
        actions=actions,
        rewards=np.zeros(length) if rewards is None else rewards,
        terminals=terminals,
        timeouts=timeouts,
        states=file.read(demo, "states") if file.has(demo, "states") else None,
        attrs={**attrs, "round": 0},
        steps={
            LABELLED: np.ones(length, dtype=np.uint8),
            "interventions": np.ones(length, dtype=np.uint8),
            "policy_actions": actions,
            "executed_actions": actions,
            "round": np.zeros(length, dtype=np.int32),
        },
    )
