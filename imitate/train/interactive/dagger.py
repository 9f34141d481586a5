"""Interactive imitation learning in rounds: the policy acts, a supervisor corrects it, and it is trained on all data.

DAgger (Ross, Gordon, Bagnell, AISTATS 2011, arXiv:1011.0686): an expert labels the states that the policy visits, all
or every n-th, and acts itself with probability beta^k in round k. HG-DAgger (Kelly et al., ICRA 2019,
arXiv:1810.02890): a person takes over when needed, and the policy learns from these steps (and from the
demonstrations).

The data of all rounds are in one file, ``demos.hdf5``: round 0 contains the initial demonstrations. Each round trains
a run below ``round_<k>/``. ``progress.json`` lists the finished rounds, so that an interrupted run
resumes: with the round's next episode, or with its training.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imitate.algo.base.factory import algo_class_of
from imitate.config import Config, DatasetConfig
from imitate.crew.places import open_backend
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.batches.build import training_sources
from imitate.data.file.action_scale import refuse_rescaled
from imitate.data.shards.data_files import data_files
from imitate.envs.env import first_observation
from imitate.envs.make import is_robot
from imitate.errors import ConfigError, EnvError, TrainingError, UserError
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.uncertainty import UNCERTAIN
from imitate.system.instructions import LANGUAGE_KEY
from imitate.system.plain_files import check_not_linked, read_json
from imitate.system.processes import LOCAL, STEP_TIMEOUT_S
from imitate.system.run_folder import find_checkpoint, write_text
from imitate.system.statistics import rate_of
from imitate.system.text import counted
from imitate.train.interactive.supervision import (
    Players,
    Scene,
    SupervisedPlayer,
    SuperviseRound,
)
from imitate.train.trainer import RunResult, train
from imitate.train.training_data import LABELLED, with_filter_key

__all__ = ["DaggerPlan", "DaggerProgress", "Round", "SuperviseRound", "dagger"]


@dataclass(frozen=True)
class DaggerPlan:
    """Settings of the rounds.

    Attributes:
        rounds: number of rounds after the demonstrations.
        episodes: number of episodes per round.
        seed: seed of the episodes.
        horizon: steps per episode.
        hold_steps: further steps after the first success, before the episode ends.
        demos: number of demonstrations to use, or None for all.
        label_every: the supervisor labels every n-th step, and only these are learned.
        ask_above: quantile of the policy's uncertainty from which a step is labelled and learned, or None to
            label every step.
    """

    rounds: int = 5
    episodes: int = 10
    seed: int = 0
    horizon: int = 200
    hold_steps: int = 8
    demos: int | None = None
    label_every: int = 1
    ask_above: float | None = None

    @property
    def labels_some(self) -> bool:
        """True if the supervisor labels only some steps; the policy then learns from these alone."""
        return self.label_every > 1 or self.ask_above is not None


def dagger(
    config: Config,
    plan: DaggerPlan,
    supervise: SuperviseRound,
    env_meta: dict[str, Any],
    folder: str | Path,
    *,
    dataset: str | Path | None = None,
    init: str | Path | None = None,
    labels_all: bool = True,
    on_round: Callable[[Round], None] | None = None,
    on_episode: Callable[[int, int], None] | None = None,
    quiet: bool = True,
    workers: int | None = 1,
    on: str = LOCAL,
    step_timeout_s: float = STEP_TIMEOUT_S,
) -> DaggerProgress:
    """Run all rounds, or resume with the remaining ones.

    Args:
        config: configuration of the policy. Each round trains it from scratch on all data, or with ``init`` from the
            last weights.
        plan: rounds, episodes, seeds; ``rounds`` may be raised on resuming.
        supervise: returns the supervisor of a round.
        env_meta: env_args of the environment.
        folder: output folder; an existing one is resumed.
        dataset: initial demonstrations, or None to begin with ``init`` alone.
        init: a checkpoint or run folder to begin with, or None.
        labels_all: true if the supervisor labels steps; otherwise the steps in which it acted are learned.
        on_round: called after each round.
        on_episode: called with the round and the number of its episodes so far.
        quiet: true to print nothing during training.
        workers: number of processes that play episodes, which need a picklable ``supervise``; 1 means this process.
            Results do not depend on it. None means as many as fit.
        on: back end of the workers, ``local``, ``ray`` or ``ray:HOST:PORT``.
        step_timeout_s: longest time of a call of the environment in a worker (making the environment: five times as
            long); a slower worker is ended, and its episode is played again.

    Raises:
        UserError: there is nothing to begin with, or the folder was begun with other settings.
        TrainingError: a training failed.
    """
    if dataset is None and init is None:
        raise ConfigError(
            "interactive imitation begins with a policy: give demonstrations (--dataset) or a checkpoint (--init)"
        )
    init = None if init is None else find_checkpoint(init)
    if tuple(config.train.action_keys) != ("actions",):
        raise ConfigError(
            f"train.action_keys: {list(config.train.action_keys)}; supervisors give 'actions': set it to ['actions']"
        )
    if plan.ask_above is not None and not reports_uncertainty(config):
        raise ConfigError(
            f"--ask-above: {config.algo_name} reports no uncertainty: {UNCERTAIN}, or leave it out"
        )
    if plan.labels_some and config.train.sample_weight.kind is not None:
        raise ConfigError(
            f"train.sample_weight.kind: '{config.train.sample_weight.kind}'; if not all steps "
            "are labelled, the sample weights mark the labelled ones: leave it out, or label "
            "every step"
        )
    # A horizon computed from the data would grow from round to round.
    if config.experiment.rollout.horizon is None:
        config = config.with_overrides({"experiment.rollout.horizon": plan.horizon})
    work = _Work(config, plan, Path(folder), env_meta, init, labels_all, quiet)
    try:
        work.try_environment()
        with work.players(supervise, workers, on, step_timeout_s):
            return _rounds(work, plan, supervise, dataset, init, on_round, on_episode)
    finally:
        work.close()


def _rounds(
    work: _Work,
    plan: DaggerPlan,
    supervise: SuperviseRound,
    dataset: str | Path | None,
    init: str | Path | None,
    on_round: Callable[[Round], None] | None,
    on_episode: Callable[[int, int], None] | None,
) -> DaggerProgress:
    progress = work.files.begun(dataset, plan.demos)
    while len(progress.rounds) <= plan.rounds:
        number = len(progress.rounds)
        if number > 0:
            last = progress.rounds[-1].checkpoint
            work.roll_out(number, supervise, last, on_episode)
        over = work.files.counted(number)
        result = work.learn(number, progress.rounds[-1].checkpoint if number else None)
        if result is None:
            over.checkpoint = str(Path(str(init)).resolve())
        elif result.exit_code:
            progress.exit_code = result.exit_code
            return progress
        else:
            over.checkpoint = str(result.checkpoint)
            entry = result.results.get("best") or result.results.get("final") or {}
            over.success_rate, over.mean_return = (
                entry.get("success_rate"),
                entry.get("mean_return"),
            )
        progress.rounds.append(over)
        work.files.save(progress)
        if on_round is not None:
            on_round(over)
    return progress


class _Work:
    """The parts of a round (recording episodes, training), each of which resumes where it was interrupted."""

    def __init__(
        self,
        config: Config,
        plan: DaggerPlan,
        folder: Path,
        env_meta: dict[str, Any],
        init: str | Path | None,
        labels_all: bool,
        quiet: bool,
    ) -> None:
        more = ", ".join(config.observation.modality_of("critic"))
        if more:
            raise ConfigError(
                f"observation.modalities.critic lists {more}, but rounds record only the policy's observations: "
                "leave it empty"
            )
        self._config, self._plan, self._folder, self._init = config, plan, folder, init
        self._env_meta, self._labels_all = env_meta, labels_all
        self._quiet = quiet
        self._scene = Scene(
            env_meta, config.all_obs_keys, plan.seed, plan.horizon, plan.hold_steps, str(folder)
        )
        self._player = SupervisedPlayer(self._scene)
        self._players: Players | None = None
        settings = {
            **{key: value for key, value in vars(plan).items() if key != "rounds"},
            "env_name": env_meta.get("env_name"),
            "algo_name": config.algo_name,
            "labels_all": labels_all,
            "init": None if init is None else str(Path(init).resolve()),
        }
        self.files = RoundFiles(folder, config, env_meta, settings, labels_all=labels_all)

    def try_environment(self) -> None:
        """Open the environment before anything is trained or copied.

        Raises:
            EnvError: the environment cannot be made, or lacks an observation that the policy uses.
        """
        try:
            obs = first_observation(self._player.env())
        except UserError:
            raise
        except Exception as error:  # a simulator may raise any exception
            raise EnvError(
                f"{self._env_meta.get('env_name')}: cannot be opened ({type(error).__name__}: {error}): "
                "run imitate check-env to see the fault"
            ) from error
        served = {*obs, LANGUAGE_KEY}
        missing = [key for key in self._config.all_obs_keys if key not in served]
        if missing:
            raise EnvError(
                f"{self._env_meta.get('env_name')}: the environment has no observation '{missing[0]}', "
                f"but {', '.join(obs)}: name observations of this environment in observation.modalities"
            )

    @contextmanager
    def players(
        self, supervise: SuperviseRound, workers: int | None, on: str, step_timeout_s: float
    ) -> Iterator[None]:
        """Context in which episodes are played by workers if requested, otherwise by this process.

        Raises:
            ConfigError: the supervisor cannot be copied to workers.
        """
        if on == LOCAL and workers == 1:
            yield
            return
        _check_copies(supervise, self._env_meta)
        self._player.close()
        with (
            open_backend(on) as backend,
            Players(
                self._scene,
                supervise,
                workers or min(backend.places, self._plan.episodes),
                backend=backend,
                step_timeout_s=step_timeout_s,
            ) as self._players,
        ):
            yield

    def close(self) -> None:
        """Close the environment."""
        self._player.close()

    def roll_out(
        self,
        number: int,
        supervise: SuperviseRound,
        checkpoint: str,
        on_episode: Callable[[int, int], None] | None,
    ) -> None:
        """Record the missing episodes of a round."""
        if self.files.counted(number).episodes >= self._plan.episodes:
            return
        with self.files.appended() as writer:
            states = "states" in writer.arrays if writer.arrays else self._env_meta["type"] == 1
            before = self.files.recorded_before()
            if writer.num_episodes < before:
                raise ConfigError(
                    f"{self.files.demos}: has {counted(writer.num_episodes, 'episode')}, but "
                    f"{before} were recorded before round {number}: restore the file, or use "
                    "another folder"
                )
            done = writer.num_episodes - before
            for episode in self._episodes(number, done, supervise, checkpoint, states):
                writer.append_episode(alike(episode, writer))
                done += 1
                if on_episode is not None:
                    on_episode(number, done)

    def _episodes(
        self, number: int, first: int, supervise: SuperviseRound, checkpoint: str, states: bool
    ) -> Iterator[Episode]:
        """Yield the episodes of a round, beginning with number ``first``."""
        last = self._plan.episodes
        if self._players is not None:
            yield from self._players.episodes(number, first, last, checkpoint, states=states)
            return
        policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=checkpoint)
        supervisor = supervise(number)
        for index in range(first, last):
            yield self._player.play(number, index, policy, supervisor, states=states)

    def learn(self, number: int, last: str | None) -> RunResult | None:
        """Train on all data so far; return None in round 0 if a policy was given."""
        if number == 0 and self._init is not None:
            return None
        place = self.files.round_folder(number)
        cut = sorted(place.glob("*/*/checkpoints/last.pth"))
        if cut:
            return train(resume=cut[-1].parents[1], quiet=self._quiet)
        changes: dict[str, Any] = {
            "train.data": [{"path": str(self.files.demos.resolve())}],
            "train.output_dir": str(place.resolve()),
            "train.hdf5_filter_key": None,
            "train.hdf5_validation_filter_key": None,
            "experiment.validate": False,
            "experiment.save.on_best_validation": False,
        }
        if self._init is not None:
            changes["experiment.ckpt_path"] = last
        if self._plan.labels_some:
            changes["train.sample_weight.kind"] = "key"
            changes["train.sample_weight.key"] = LABELLED
        elif not self._labels_all and self._config.train.sample_weight.kind is None:
            changes["train.sample_weight.kind"] = "interventions"
        result = train(self._config.with_overrides(changes), quiet=self._quiet)
        if result.checkpoint is None and not result.exit_code:
            raise TrainingError(
                "experiment.save.enabled is false, but each round begins with the last policy: set it to true"
            )
        return result


def reports_uncertainty(config: Config) -> bool:
    """Return true if a policy of this configuration can report its uncertainty."""
    algo_class, _ = algo_class_of(config)
    return algo_class.gives_uncertainty or bool(config.algo.get("uncertainty_samples", 0))


def _check_copies(supervise: SuperviseRound, env_meta: dict[str, Any]) -> None:
    """Refuse workers for a robot, a person, or a supervisor that cannot be sent to another process."""
    advice = "leave --workers and --on out"
    if is_robot(env_meta):
        raise ConfigError(f"{env_meta.get('env_name')}: is a single robot: {advice}")
    try:
        pickle.dumps(supervise)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the supervisor cannot be sent to workers ({error}): {advice}") from None


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
        env_meta: env_args of the environment.
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
