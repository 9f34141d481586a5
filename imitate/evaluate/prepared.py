"""Preparation of an evaluation (policy, environment, plan) and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from imitate.config.experiment import DEFAULT_HORIZON
from imitate.envs.make import check_description, is_real, is_robot, is_team
from imitate.envs.migration import fitted
from imitate.envs.trust import check_trusted
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluate.environments import label
from imitate.evaluate.episodes import EpisodeResult, Job
from imitate.evaluate.eval_result import EvalResult
from imitate.evaluate.late import EpisodePlan, Lateness
from imitate.evaluate.mosaic import write_mosaic
from imitate.evaluate.policy_source import CheckpointFile
from imitate.evaluate.pool import EpisodeBatch
from imitate.evaluate.vector_episodes import VectorJob
from imitate.evaluate.video import FrameFolder
from imitate.policy.checkpoint import config_of, control_freq_of, load_checkpoint
from imitate.policy.loading import Precision
from imitate.policy.renaming import Rename
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import STEP_TIMEOUT_S, available_cores
from imitate.system.run_folder import find_checkpoint

Mode = Literal["auto", "processes", "vector"]

# Number of weights from which batched calls are faster than a policy in each process.
LARGE_POLICY = 50_000_000
# Number of weights from which (image encoders) a GPU, if there is one, is faster than the CPU's cores.
GPU_POLICY = 5_000_000
_COUNTS = ("episodes", "horizon", "workers", "give_up_after", "video_episodes", "video_skip")
_LEAST = {"seed": 0, **dict.fromkeys(_COUNTS, 1)}
"""Smallest values of the settings that are numbers."""


@dataclass(frozen=True)
class EvalSettings:
    """Settings of an evaluation.

    Attributes:
        episodes: number of episodes, at least 1; episode i starts from ``seed + i``.
        horizon: longest episode in steps, at least 1, or None for the value in the checkpoint's configuration.
        seed: seed of the first episode, at least 0.
        workers: number of processes, at least 1; one plays in this process unless a pool or ``step_timeout_s`` is
            given. In mode "vector" the number of environments.
        mode: "processes" (a policy copy in each worker), "vector" (environments in lockstep, batched calls), or
            "auto": vector on a GPU and for large policies.
        device: device of the policy; None means the CPU, or for policies with image encoders a GPU if there is one.
        terminate_on_success: true to end an episode at its first success.
        give_up_after: number of first episodes, at least 1; the evaluation stops if all of them failed.
        video: mp4 to write, a mosaic of the first ``video_episodes``, or None.
        video_episodes: number of episodes in the video, at least 1.
        video_skip: environment steps per frame of the video, at least 1.
        overlay: true to draw the policy's plan and its encoders' keypoints onto the video.
        step_timeout_s: seconds, above 0. A call of the environment (step, reset, render) that takes longer, or making
            one that takes five times as long, ends its process: the episode is tried once more and then counts as
            failed. None means 60 in worker processes, and no limit in this process, where a hanging simulator cannot
            be ended.
        late: delay of predictions, during which the environment continues; see :mod:`imitate.evaluate.late`.
        rename: from names of the environment's observations to those of the checkpoint, ``{"agent_pos": "state"}``.
        precision: precision of the policy's large linear layers, see
            :func:`imitate.policy.loading.policy_from_checkpoint`.

    Raises:
        UserError: a value is out of its range, or two contradict each other.
    """

    episodes: int = 50
    horizon: int | None = None
    seed: int = 0
    workers: int = 1
    mode: Mode = "auto"
    device: str | None = None
    terminate_on_success: bool = True
    give_up_after: int | None = None
    video: str | Path | None = None
    video_episodes: int = 9
    video_skip: int = 5
    overlay: bool = False
    step_timeout_s: float | None = None
    late: Lateness | None = None
    rename: Rename = field(default_factory=dict)
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value}, but must be at least {least}")
        if self.step_timeout_s is not None and not self.step_timeout_s > 0:
            raise UserError(f"step_timeout_s is {self.step_timeout_s}, but must be above 0")
        if self.mode not in (modes := get_args(Mode)):
            raise UserError(f"mode is '{self.mode}', but must be one of {', '.join(modes)}")
        if self.late is not None and self.mode == "vector":
            raise UserError(
                "--mode vector predicts for many environments at once, without delay: leave it out with --latency-ms"
            )


@dataclass(frozen=True, eq=False)
class EvaluatedPolicy:
    """A policy under evaluation.

    Attributes:
        path: its checkpoint, or None if a policy object was given.
        policy: the given policy object, or None if there is a checkpoint.
        env_meta: env_args of its first environment; empty if it names none.
        horizon: longest episode in steps, from its configuration.
        weights: number of its weights.
        longest_demo: steps of the longest demonstration that it learned from, or None if unknown.
        environments: env_args of all environments of its training.
        control_freq: actions per second of its data, or None if unknown.
        rename: new names of observations that are saved in the checkpoint.
        obs_keys: names of its observations.
    """

    path: Path | None
    policy: RolloutPolicy | None
    env_meta: dict[str, Any]
    horizon: int
    weights: int
    longest_demo: int | None = None
    environments: tuple[dict[str, Any], ...] = ()
    control_freq: float | None = None
    rename: Rename = field(default_factory=dict)
    obs_keys: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """The file of a checkpoint."""
        assert self.path is not None
        return self.path


def subject_of(agent: str | Path | RolloutPolicy | EvaluatedPolicy) -> EvaluatedPolicy:
    """Describe a policy, or the checkpoint of a path; a description is returned as it is.

    Raises:
        CheckpointError: the path has no checkpoint.
    """
    if isinstance(agent, EvaluatedPolicy):
        return agent
    if isinstance(agent, RolloutPolicy):
        weights = sum(weight.numel() for weight in agent.algo.nets.parameters())
        horizon = agent.algo.global_config.experiment.rollout.horizon or DEFAULT_HORIZON
        return EvaluatedPolicy(None, agent, {}, horizon, weights)
    path = find_checkpoint(agent)
    return subject_in(load_checkpoint(path), path)


def subject_in(ckpt: Mapping[str, Any], path: Path) -> EvaluatedPolicy:
    """Describe the policy in the content of a checkpoint; ``path`` is its file."""
    own, shapes = dict(ckpt["env_metadata"] or {}), ckpt["shape_metadata"]
    return EvaluatedPolicy(
        path,
        None,
        own,
        horizon=config_of(ckpt).experiment.rollout.horizon or DEFAULT_HORIZON,
        weights=sum(weight.numel() for weight in ckpt["model"]["nets"].values()),
        longest_demo=shapes.get("longest_demo"),
        environments=tuple(ckpt.get("environments") or [own]),
        control_freq=control_freq_of(ckpt),
        rename=dict(ckpt.get("rename") or {}),
        obs_keys=tuple(shapes["all_shapes"]),
    )


class EvalJob:
    """One evaluation of a subject in an environment.

    Args:
        subject: the evaluated policy.
        env_meta: env_args of the environment, or None for the policy's own.
        settings: settings of the evaluation.

    Attributes:
        mode: "processes" or "vector".
        plan: plan of the episodes.
        device: device of the policy.
        in_this_process: true if no worker can play it, because a policy object was given or the environment is a robot.

    Raises:
        EnvError: no environment is named, it is not trusted, or the settings need several copies of a robot.
    """

    def __init__(
        self, subject: EvaluatedPolicy, env_meta: Mapping[str, Any] | None, settings: EvalSettings
    ) -> None:
        _check(subject, env_meta, settings)
        meta = dict(subject.env_meta if env_meta is None else env_meta)
        check_trusted(meta)
        if is_robot(meta):
            _check_robot(label(meta), settings)
        self.subject, self.settings, self.env_meta = subject, settings, fitted(meta)
        self.device = _device(subject, settings.device)
        self.in_this_process = subject.policy is not None or is_robot(self.env_meta)
        self.mode: Mode = _mode(settings, subject, self.env_meta, self.device)
        if is_team(self.env_meta):
            _check_team(label(self.env_meta), settings)
        drawn = settings.video is not None and self.mode == "processes"
        self._frames = FrameFolder() if drawn else None
        self.plan = EpisodePlan(
            horizon=subject.horizon if settings.horizon is None else settings.horizon,
            seed=settings.seed,
            terminate_on_success=settings.terminate_on_success,
            video_episodes=settings.video_episodes if drawn else 0,
            video_skip=settings.video_skip,
            overlay=settings.overlay,
            step_timeout_s=STEP_TIMEOUT_S
            if settings.step_timeout_s is None
            else settings.step_timeout_s,
            late=settings.late,
        )

    @property
    def needs_processes(self) -> bool:
        """True if it must be played in worker processes, even if none exist yet."""
        several = self.mode == "processes" and self.settings.workers > 1
        return not self.in_this_process and (self.settings.step_timeout_s is not None or several)

    def check_movable(self) -> None:
        """Refuse an evaluation that only this process can play.

        Raises:
            EnvError: the environment is a robot, or the episodes are played in lockstep.
        """
        if self.in_this_process:
            raise EnvError(
                f"{label(self.env_meta)}: is controlled by this process, so no worker of a "
                "cluster can play it: leave --on out"
            )
        if self.mode == "vector":
            raise EnvError(
                "--mode vector plays all episodes in one process, which a cluster cannot "
                "speed up: leave it or --on out"
            )

    def load(self, ckpt: Mapping[str, Any]) -> None:
        """Make the policy from the content of the subject's checkpoint, to play in this process."""
        self.subject = replace(self.subject, policy=self._source.policy_of(ckpt, self.device))

    @property
    def job(self) -> Job:
        """Return the job for workers that play single episodes."""
        return Job(self._source, self.env_meta, self.plan, self.device)

    @property
    def _source(self) -> CheckpointFile:
        return CheckpointFile(str(self.subject.path), self.settings.rename, self.settings.precision)

    def planned(
        self,
        on_episode: Callable[[EpisodeResult], None] | None,
        earlier: Sequence[EpisodeResult] = (),
    ) -> EpisodeBatch:
        """Return the episodes to play.

        Args:
            on_episode: called with each episode as it ends.
            earlier: episodes that were played before; those in the video are played again.
        """
        settings = self.settings
        kept = tuple(episode for episode in earlier if episode.index >= self.plan.video_episodes)
        return EpisodeBatch(
            self.job,
            settings.episodes,
            on_episode,
            settings.give_up_after,
            None if self._frames is None else self._frames.add,
            kept,
        )

    @property
    def vector_job(self) -> VectorJob:
        """Return the job for one worker that plays all episodes in lockstep."""
        settings = self.settings
        return VectorJob(
            self._source,
            self.env_meta,
            self.plan,
            self.device,
            settings.episodes,
            settings.workers,
            settings.give_up_after,
        )

    def result(self, played: Sequence[EpisodeResult], wall_s: float) -> EvalResult:
        """Assemble the result and write the video.

        Raises:
            EvaluationError: no episode could be played.
        """
        if all(episode.error for episode in played):
            raise EvaluationError(f"no episode could be played: {played[0].error}")
        settings, written = self.settings, None
        if settings.video is not None and self._frames is not None:
            size = self.plan.frame_size
            written = write_mosaic(settings.video, self._frames.name, played, size=size)
        return EvalResult(
            env_name=label(self.env_meta),
            checkpoint=None if self.subject.path is None else str(self.subject.path),
            episodes=tuple(played),
            planned=settings.episodes,
            horizon=self.plan.horizon,
            seed=settings.seed,
            mode=self.mode,
            workers=settings.workers,
            wall_s=wall_s,
            video=None if written is None else str(written),
            longest_demo=self.subject.longest_demo,
            late=settings.late,
            warnings=tuple(
                _warnings(played, wants_video=settings.video is not None, mode=self.mode)
            ),
        )

    def close(self) -> None:
        """Remove the frames of the video."""
        if self._frames is not None:
            self._frames.close()


def _check(
    subject: EvaluatedPolicy, env_meta: Mapping[str, Any] | None, settings: EvalSettings
) -> None:
    if subject.policy is not None and env_meta is None:
        raise EnvError("a policy object needs env_meta, the env_args of its environment")
    if subject.policy is not None and settings.step_timeout_s is not None:
        raise EnvError(
            "a policy object plays in this process, where a hanging simulator cannot be "
            "ended: leave step_timeout_s out, or give a checkpoint"
        )
    if subject.policy is not None and settings.rename:
        raise UserError(
            "a policy object already has its names: make it with RolloutPolicy(rename=...)"
        )
    if subject.policy is not None and settings.precision != "fp32":
        raise UserError("a policy object already has its precision: load it with the wanted one")
    description = subject.env_meta if env_meta is None else env_meta
    if not description:
        raise EnvError(f"{subject.path}: the checkpoint names no environment; give one with --env")
    if is_real(description) and not is_robot(description):
        check_description(description)  # refused before worker processes start


def _check_robot(name: str, settings: EvalSettings) -> None:
    """Raise EnvError if the settings need copies of a simulator, but the environment is a robot."""
    if settings.workers > 1 or settings.mode == "vector":
        raise EnvError(
            f"{name} is a single robot, controlled by this process: leave --workers and "
            f"--mode out (got {settings.workers} workers, mode {settings.mode})"
        )
    if settings.late is not None:
        raise EnvError(
            f"{name}: --latency-ms is for simulators; on a robot predictions have their real delay"
        )


def _check_team(name: str, settings: EvalSettings) -> None:
    """Raise EnvError if the settings do not support several agents."""
    if settings.mode == "vector" or settings.late is not None or settings.overlay:
        raise EnvError(
            f"{name} has several agents: leave --mode vector, --latency-ms and --overlay out"
        )


def _device(subject: EvaluatedPolicy, wanted: str | None) -> str:
    if subject.policy is not None:
        return str(subject.policy.algo.device)
    if wanted is not None:
        return wanted
    return device_beside(
        torch.device("cuda" if torch.cuda.is_available() else "cpu"), subject.weights
    )


def device_beside(device: torch.device, weights: int) -> str:
    """Return the device on which a policy acts: the CPU for small ones, otherwise the given device."""
    return str(device) if device.type == "cuda" and weights > GPU_POLICY else "cpu"


def resolved(
    subject: EvaluatedPolicy, env_meta: Mapping[str, Any], settings: EvalSettings
) -> EvalSettings:
    """Return the settings with "auto" replaced by the mode for this checkpoint and environment."""
    if settings.mode != "auto":
        return settings
    return replace(
        settings, mode=_mode(settings, subject, env_meta, _device(subject, settings.device))
    )


def _mode(
    settings: EvalSettings, subject: EvaluatedPolicy, env_meta: Mapping[str, Any], device: str
) -> Mode:
    if settings.late is not None or is_robot(env_meta) or is_team(env_meta):
        return "processes"
    if settings.mode != "auto":
        return settings.mode
    batched = subject.weights > LARGE_POLICY or not device.startswith("cpu")
    return "vector" if batched else "processes"


def _warnings(played: Sequence[EpisodeResult], *, wants_video: bool, mode: str) -> list[str]:
    warnings = [
        f"episode {episode.index} (seed {episode.seed}) could not be played and counts as failed: {episode.error}"
        for episode in played
        if episode.error
    ]
    warnings += [
        f"episode {episode.index} (seed {episode.seed}) was played a second time, which counts; the first try: "
        f"{episode.first_error}"
        for episode in played
        if episode.first_error
    ]
    render_errors = [episode.render_error for episode in played if episode.render_error]
    if render_errors:
        warnings.append(f"video incomplete or missing, rendering failed: {render_errors[0]}")
    if wants_video and mode == "vector":
        warnings.append("no video: mode 'vector' renders none; use mode 'processes'")
    return warnings


def default_workers(episodes: int) -> int:
    """Return the default number of workers: one per core, at most 16."""
    return max(1, min(available_cores(), episodes, 16))
