"""Interactive imitation learning in rounds: the policy acts, a supervisor corrects it, and it is trained on all data.

DAgger (Ross, Gordon, Bagnell, AISTATS 2011, arXiv:1011.0686): an expert labels the states that the policy visits, all
or one of so many, and acts itself with probability beta^k in round k. HG-DAgger (Kelly et al., ICRA 2019,
arXiv:1810.02890): a person takes over where that is needed, and the policy learns from these steps (and from the
demonstrations).

All data lie in one file, ``demos.hdf5``: round 0 are the demonstrations that there were. Each round trains a run of its
own below ``round_<k>/``. ``progress.json`` says which rounds are over, so that an interrupted run resumes: with
the round's next episode, or with its training.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from imitate.config import Config, DatasetConfig
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.batches.build import training_sources
from imitate.data.file.action_scale import refuse_rescaled
from imitate.data.language import LANGUAGE_KEY
from imitate.deploy.robot import RobotError
from imitate.envs import Env, make_env
from imitate.envs.env import first_observation
from imitate.envs.make import is_robot
from imitate.errors import ConfigError, EnvError, TrainingError, UserError
from imitate.interactive.supervision import DiscardedError, Supervisor, supervised_episode
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.trainer import RunResult, train
from imitate.train.training_data import with_filter_key

MAX_FAILURES = 10
LABELLED = "labelled"
_log = logging.getLogger(__name__)

SuperviseRound = Callable[[int], Supervisor]
"""From a round's number, from 1, to who supervises it."""


@dataclass(frozen=True)
class DaggerPlan:
    """Settings of the rounds.

    Attributes:
        rounds: rounds after the demonstrations.
        episodes: of a round.
        seed: of the episodes.
        horizon: steps of an episode.
        hold_steps: steps after the first success.
        demos: number of demonstrations that are used; None: all.
        label_every: the supervisor labels one of so many steps, and only these are learned from.
    """

    rounds: int = 5
    episodes: int = 10
    seed: int = 0
    horizon: int = 200
    hold_steps: int = 8
    demos: int | None = None
    label_every: int = 1


@dataclass
class Round:
    """Result of a round.

    Attributes:
        number: 0 are the demonstrations.
        episodes: recorded in it.
        steps: environment steps.
        interventions: steps in which the supervisor acted.
        labels: steps with an action of the supervisor's to learn from, so far.
        practised_success: share of the round's episodes that succeeded, with the help of the supervisor.
        success_rate: of the policy that was learned after it; None: not evaluated.
        checkpoint: that policy.
    """

    number: int
    episodes: int = 0
    steps: int = 0
    interventions: int = 0
    labels: int = 0
    practised_success: float | None = None
    success_rate: float | None = None
    checkpoint: str = ""


@dataclass
class Progress:
    """Finished rounds, and the exit code of the training that was interrupted, if one was."""

    rounds: list[Round] = field(default_factory=list)
    exit_code: int = 0


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
    stream: TextIO | None = None,
) -> Progress:
    """Run all rounds, or resume with those that are left.

    Args:
        config: of the policy. Each round trains it anew on all data, or with ``init`` from the last weights.
        plan: rounds, episodes, seeds; ``rounds`` may be raised on resuming.
        supervise: who supervises.
        env_meta: the environment.
        folder: output folder; an existing one is resumed.
        dataset: demonstrations.
        init: a checkpoint to begin with.
        labels_all: the supervisor is asked for labels; otherwise those steps count in which it acted.
        on_round: called after each round.
        on_episode: called with the round and the number of its episodes so far.
        quiet: trainings say nothing.
        stream: where trainings speak; stderr by default.

    Raises:
        UserError: there is nothing to begin with, or the folder is of other settings.
        TrainingError: a training had to stop.
    """
    if dataset is None and init is None:
        raise ConfigError(
            "interactive imitation begins with a policy: give demonstrations (--dataset) or a checkpoint (--init)"
        )
    if tuple(config.train.action_keys) != ("actions",):
        raise ConfigError(
            f"train.action_keys: {list(config.train.action_keys)}; supervisors give 'actions': set it to ['actions']"
        )
    if plan.label_every > 1 and config.train.sample_weight.kind is not None:
        raise ConfigError(
            f"train.sample_weight.kind: '{config.train.sample_weight.kind}'; where not all steps are labelled, the "
            "weights say which: leave it out, or label each step"
        )
    if config.experiment.rollout.horizon is None:  # from the data it would grow from round to round
        config = config.with_overrides({"experiment.rollout.horizon": plan.horizon})
    work = _Work(config, plan, Path(folder), env_meta, init, labels_all, quiet, stream)
    try:
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
) -> Progress:
    work.try_environment()
    progress = work.begun(dataset)
    while len(progress.rounds) <= plan.rounds:
        number = len(progress.rounds)
        if number > 0:
            last = progress.rounds[-1].checkpoint
            work.roll_out(number, supervise(number), last, on_episode)
        over = work.counted(number)
        result = work.learn(number, progress.rounds[-1].checkpoint if number else None)
        if result is None:
            over.checkpoint = str(Path(str(init)).resolve())
        elif result.exit_code:
            progress.exit_code = result.exit_code
            return progress
        else:
            over.checkpoint = str(result.checkpoint)
            over.success_rate = _success_rate(result)
        progress.rounds.append(over)
        work.save(progress)
        if on_round is not None:
            on_round(over)
    return progress


class _Work:
    """The steps of a round, each of which resumes where it was interrupted."""

    def __init__(
        self,
        config: Config,
        plan: DaggerPlan,
        folder: Path,
        env_meta: dict[str, Any],
        init: str | Path | None,
        labels_all: bool,
        quiet: bool,
        stream: TextIO | None,
    ) -> None:
        self._config, self._plan, self._folder, self._init = config, plan, folder, init
        self._env_meta, self._labels_all = env_meta, labels_all
        self._quiet, self._stream = quiet, stream
        self._demos, self._progress = folder / "demos.hdf5", folder / "progress.json"
        self._env: Env | None = None

    def try_environment(self) -> None:
        """Open the environment before anything is trained or copied.

        Raises:
            EnvError: it cannot be made, or lacks an observation of the policy.
        """
        try:
            self._env = _make(self._env_meta, self._config.all_obs_keys)
            obs = first_observation(self._env)
        except UserError:
            raise
        except Exception as error:  # whatever a simulator may raise
            raise EnvError(
                f"{self._env_meta.get('env_name')}: cannot be opened ({type(error).__name__}: {error}): "
                "see what imitate check-env says of it"
            ) from error
        served = {*obs, LANGUAGE_KEY}
        missing = [key for key in self._config.all_obs_keys if key not in served]
        if missing:
            raise EnvError(
                f"{self._env_meta.get('env_name')}: the environment has no observation '{missing[0]}', "
                f"but {', '.join(obs)}"
            )

    def close(self) -> None:
        """Close the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    # ---- progress --------------------------------------------------------------------------------

    def begun(self, dataset: str | Path | None) -> Progress:
        """Return the progress so far; at the very start copy the demonstrations."""
        if self._progress.is_file():
            saved = self._saved()
            saved["settings"].setdefault("label_every", 1)  # begun before there was a choice
            if saved["settings"] != self._settings():
                raise ConfigError(
                    f"{self._folder}: was started with {saved['settings']}, now {self._settings()} is wanted: "
                    "take another folder"
                )
            return Progress([Round(**entry) for entry in saved["rounds"]])
        self._folder.mkdir(parents=True, exist_ok=True)
        if dataset is not None and not self._demos.exists():
            self._copy(Path(dataset))
        progress = Progress()
        self.save(progress)
        return progress

    def save(self, progress: Progress) -> None:
        """Write the finished rounds."""
        content = {"settings": self._settings(), "rounds": [vars(r) for r in progress.rounds]}
        temporary = self._progress.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, self._progress)

    def _saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = json.loads(self._progress.read_text(encoding="utf-8"))
        return saved

    def _settings(self) -> dict[str, Any]:
        """Return the settings that may not change between the rounds."""
        wanted = {key: value for key, value in vars(self._plan).items() if key != "rounds"}
        return {
            **wanted,
            "env_name": self._env_meta.get("env_name"),
            "algo_name": self._config.algo_name,
            "labels_all": self._labels_all,
            "init": None if self._init is None else str(Path(self._init).resolve()),
        }

    def counted(self, number: int) -> Round:
        """Count the numbers of a round from the file."""
        over = Round(number)
        if not self._demos.exists():
            return over
        solved = 0
        with DatasetFile(self._demos) as file:
            for demo in file.demos():
                by_hand = file.read(demo, "interventions").reshape(-1) > 0
                over.labels += self._labels(file, demo)
                if file.attrs(demo)["round"] == number:
                    over.episodes += 1
                    over.steps += len(by_hand)
                    over.interventions += int(by_hand.sum())
                    solved += bool(file.attrs(demo).get("success", False))
        if number > 0 and over.episodes:
            over.practised_success = solved / over.episodes
        return over

    def _labels(self, file: DatasetFile, demo: str) -> int:
        """Count the labels of one demo."""
        if file.has(demo, LABELLED):
            return int((file.read(demo, LABELLED) > 0).sum())
        if self._labels_all:  # files from before there was a choice
            return file.length(demo)
        return int((file.read(demo, "interventions") > 0).sum())

    # ---- data ------------------------------------------------------------------------------------

    def _copy(self, dataset: Path) -> None:
        """Copy the demonstrations as round 0, in which the supervisor always acted."""
        entry = with_filter_key(DatasetConfig(path=str(dataset.resolve())), self._config)
        named = self._config.with_overrides({"train.data": [entry.to_dict()]})
        (source,) = training_sources(named)
        with (
            DatasetFile(dataset) as file,
            self._writer(append=False, rate_hz=file.control_freq) as writer,
        ):
            refuse_rescaled(file)
            for demo in source.chosen(file)[: self._plan.demos]:
                episode = _demonstration(file, demo, self._config.all_obs_keys)
                if is_robot(
                    self._env_meta
                ):  # episodes of a file are alike, and those of a robot have no states
                    episode = dataclasses.replace(episode, states=None)
                writer.append_episode(episode)

    def _writer(self, *, append: bool, rate_hz: float | None = None) -> DatasetWriter:
        return DatasetWriter(
            self._demos,
            self._env_meta,
            append=append,
            overwrite=not append,
            control_freq=rate_hz,
            strict=False,
        )

    def roll_out(
        self,
        number: int,
        supervisor: Supervisor,
        checkpoint: str,
        on_episode: Callable[[int, int], None] | None,
    ) -> None:
        """Record the episodes of a round that are missing."""
        if self._demos.exists() and self.counted(number).episodes >= self._plan.episodes:
            return
        policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=checkpoint)
        with self._writer(append=True) as writer:
            states = "states" in writer.arrays if writer.arrays else self._env_meta["type"] == 1
            first = sum(entry["episodes"] for entry in self._saved()["rounds"])
            if writer.num_episodes < first:
                raise ConfigError(
                    f"{self._demos}: has {writer.num_episodes} episodes, but {first} were recorded before round "
                    f"{number}: put the file back, or take another folder"
                )
            while (done := writer.num_episodes - first) < self._plan.episodes:
                episode = self._episode(number, done, policy, supervisor, states)
                if writer.arrays and LABELLED not in writer.arrays:  # episodes of a file are alike
                    steps = {key: value for key, value in episode.steps.items() if key != LABELLED}
                    episode = dataclasses.replace(episode, steps=steps)
                writer.append_episode(episode)
                if on_episode is not None:
                    on_episode(number, done + 1)

    def _episode(
        self, number: int, index: int, policy: RolloutPolicy, supervisor: Supervisor, states: bool
    ) -> Episode:
        """Play episode ``index`` of a round; after a failure of the simulator anew, with another seed."""
        attempt = failures = 0
        while failures < MAX_FAILURES:
            attempt += 1
            entropy = [self._plan.seed, number, index, attempt - 1]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
            try:
                if self._env is None:
                    self._env = _make(self._env_meta, self._config.all_obs_keys)
                return supervised_episode(
                    self._env,
                    policy,
                    supervisor,
                    seed=seed,
                    horizon=self._plan.horizon,
                    hold_steps=self._plan.hold_steps,
                    round_number=number,
                    states=states,
                )
            except UserError:
                raise
            except RobotError as error:  # a person has to look before it moves again
                raise TrainingError(
                    f"round {number}, episode {index}: {error}; the same command resumes {self._folder}"
                ) from error
            except DiscardedError:
                _log.info("round %d, episode %d: discarded by a person", number, index)
            except Exception as error:  # whatever a simulator may raise
                failures += 1
                _log.warning(
                    "round %d, episode %d: %s: %s", number, index, type(error).__name__, error
                )
                self._env, problem = None, error
        raise EnvError(
            f"{self._env_meta.get('env_name')}: failed {MAX_FAILURES} times in a row in round {number} "
            f"({type(problem).__name__}: {problem}): see what imitate check-env says of it"
        )

    # ---- learning --------------------------------------------------------------------------------

    def learn(self, number: int, last: str | None) -> RunResult | None:
        """Train on all data so far; return None in round 0 of a given policy."""
        if number == 0 and self._init is not None:
            return None
        place = self._folder / f"round_{number}"
        cut = sorted(place.glob("*/*/checkpoints/last.pth"))
        if cut:
            return train(resume=cut[-1].parents[1], quiet=self._quiet, stream=self._stream)
        changes: dict[str, Any] = {
            "train.data": [{"path": str(self._demos.resolve())}],
            "train.output_dir": str(place.resolve()),
            "train.hdf5_filter_key": None,
            "train.hdf5_validation_filter_key": None,
            "experiment.validate": False,
            "experiment.save.on_best_validation": False,
        }
        if self._init is not None:
            changes["experiment.ckpt_path"] = last
        if self._plan.label_every > 1:
            changes["train.sample_weight.kind"] = "key"
            changes["train.sample_weight.key"] = LABELLED
        elif not self._labels_all and self._config.train.sample_weight.kind is None:
            changes["train.sample_weight.kind"] = "interventions"
        result = train(self._config.with_overrides(changes), quiet=self._quiet, stream=self._stream)
        if result.checkpoint is None and not result.exit_code:
            raise TrainingError(
                "experiment.save.enabled is false, but each round begins with the last one's policy"
            )
        return result


def _success_rate(result: RunResult) -> float | None:
    """Return the success rate of the evaluation that the checkpoint comes from."""
    entry = result.results.get("best") or result.results.get("final")
    rate = None if not entry else entry.get("success_rate")
    return None if rate is None else float(rate)


def _make(env_meta: dict[str, Any], keys: tuple[str, ...]) -> Env:
    """Make the environment with all observations, since experts may use more than the policy, and with its images."""
    cameras = [key.removesuffix("_image") for key in keys if key.endswith("_image")]
    return make_env(env_meta, camera_names=cameras or None)


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
