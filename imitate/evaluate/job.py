"""A job: one policy that is evaluated in one environment."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from imitate.config.experiment import DEFAULT_HORIZON
from imitate.data.download.download import sha256_of
from imitate.envs.make import check_description, is_real, is_robot, is_team
from imitate.envs.migration import fitted
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluate.environments import GYMNASIUM
from imitate.evaluate.named_rewards import RewardSpec, named_rewards
from imitate.evaluate.result import EpisodeResult, EvalResult, label
from imitate.evaluate.settings import EpisodePlan, EvalSettings, Mode
from imitate.evaluate.video import FrameFolder, OnFrames, write_mosaic
from imitate.policy.checkpoint import config_of, control_freq_of, load_checkpoint
from imitate.policy.loading import CheckpointFile
from imitate.policy.renaming import Rename
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import STEP_TIMEOUT_S, available_cores
from imitate.system.run_folder import find_checkpoint, to_json
from imitate.system.trust import check_trusted

# Policies with at least this many weights act faster by one batched call than by a copy in each process.
LARGE_POLICY = 50_000_000
# Policies with at least this many weights (image encoders) act faster on a GPU, if there is one, than on the CPU.
GPU_POLICY = 5_000_000

OnEpisode = Callable[[EpisodeResult], None]


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
        named: named rewards of its training (``algo.rewards``).
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
    named: tuple[RewardSpec, ...] = ()

    @property
    def file(self) -> Path:
        """Path of the checkpoint."""
        assert self.path is not None
        return self.path

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the checkpoint's bytes."""
        return sha256_of(self.file)


def subject_of(agent: str | Path | RolloutPolicy | EvaluatedPolicy) -> EvaluatedPolicy:
    """Describe a policy, or the checkpoint of a path; a description is returned as it is.

    Raises:
        CheckpointError: the path has no checkpoint.
    """
    if isinstance(agent, EvaluatedPolicy):
        return agent
    if isinstance(agent, RolloutPolicy):
        weights = sum(weight.numel() for weight in agent.algo.nets.parameters())
        config = agent.algo.global_config
        horizon = config.experiment.rollout.horizon or DEFAULT_HORIZON
        return EvaluatedPolicy(None, agent, {}, horizon, weights, named=named_rewards(config.algo))
    path = find_checkpoint(agent)
    return subject_in(load_checkpoint(path), path)


def subject_in(ckpt: Mapping[str, Any], path: Path) -> EvaluatedPolicy:
    """Describe the policy in the content of a checkpoint; ``path`` is its file."""
    own, shapes = dict(ckpt["env_metadata"] or {}), ckpt["shape_metadata"]
    config = config_of(ckpt)
    return EvaluatedPolicy(
        path,
        None,
        own,
        horizon=config.experiment.rollout.horizon or DEFAULT_HORIZON,
        weights=sum(weight.numel() for weight in ckpt["model"]["nets"].values()),
        longest_demo=shapes.get("longest_demo"),
        environments=tuple(ckpt.get("environments") or [own]),
        control_freq=control_freq_of(ckpt),
        rename=dict(ckpt.get("rename") or {}),
        obs_keys=tuple(shapes["all_shapes"]),
        named=named_rewards(config.algo),
    )


class EvalJob:
    """One evaluation of a policy in an environment.

    Args:
        agent: the policy, a checkpoint, a run folder, or the description of one; describe a checkpoint once with
            :func:`subject_of` if it has several jobs.
        env_meta: env_args of the environment, or None for the policy's own.
        settings: settings of the evaluation; jobs that share workers must have the same ``step_timeout_s``.

    Attributes:
        mode: "processes" or "vector".
        plan: plan of the episodes.
        earlier: episodes that are not played again.
        in_this_process: true if no worker can play it, because a policy object was given or the environment is a robot.

    Raises:
        UserError: there is no checkpoint, no environment is named, it is not trusted, or the settings do not fit.
    """

    def __init__(
        self,
        agent: str | Path | RolloutPolicy | EvaluatedPolicy,
        env_meta: Mapping[str, Any] | None = None,
        settings: EvalSettings | None = None,
    ) -> None:
        settings = settings or EvalSettings()
        subject = subject_of(agent)
        _check(subject, env_meta, settings)
        meta = dict(subject.env_meta if env_meta is None else env_meta)
        check_trusted(meta)
        if meta.get("type") == GYMNASIUM and not is_team(meta):
            from imitate.envs.gymnasium_env import check_registered

            check_registered(str(meta.get("env_name")))
        if is_robot(meta):
            _check_robot(label(meta), settings)
        self.subject, self.settings, self._given_meta = subject, settings, meta
        self.earlier: tuple[EpisodeResult, ...] = ()
        self._keep: OnEpisode | None = None
        meta = fitted(meta)
        device = _device(subject, settings.device)
        self.in_this_process = subject.policy is not None or is_robot(meta)
        self.mode: Mode = _mode(settings, subject, meta, device)
        if is_team(meta):
            _check_team(label(meta), settings)
        drawn = settings.video is not None and self.mode == "processes"
        limit_s = settings.step_timeout_s
        self.plan = EpisodePlan(
            CheckpointFile(str(subject.path), settings.rename, settings.precision),
            meta,
            device,
            settings,
            horizon=subject.horizon if settings.horizon is None else settings.horizon,
            step_timeout_s=STEP_TIMEOUT_S if limit_s is None else limit_s,
            shown=settings.video_episodes if drawn else 0,
            named=subject.named,
        )

    def resume(self, earlier: Sequence[EpisodeResult], keep: OnEpisode) -> None:
        """Keep the results of an interrupted job's episodes, except episodes of the video; do nothing in lockstep.

        Args:
            earlier: results of the interrupted job's episodes.
            keep: called with each episode that is played, to store it for resuming this job.
        """
        if self.mode == "processes":
            self.earlier = tuple(e for e in earlier if e.index >= self.plan.shown)
            self._keep = keep

    @property
    def label(self) -> str:
        """Name under which the results in the job's environment are shown."""
        return label(self.plan.env_meta)

    @property
    def needs_processes(self) -> bool:
        """True if the job must be played in worker processes, even if none exist yet."""
        several = self.mode == "processes" and self.settings.workers > 1
        return not self.in_this_process and (self.settings.step_timeout_s is not None or several)

    def check_movable(self) -> None:
        """Refuse an evaluation that only this process can play.

        Raises:
            EnvError: the environment is a robot, or the episodes are played in lockstep.
        """
        if self.in_this_process:
            raise EnvError(
                f"{self.label}: is controlled by this process, so no worker of a "
                "cluster can play it: leave --on out"
            )
        if self.mode == "vector":
            raise EnvError(
                "--mode vector plays all episodes in one process, which a cluster cannot "
                "speed up: leave it or --on out"
            )

    def policy(self, ckpt: Mapping[str, Any] | None = None) -> RolloutPolicy:
        """Return the policy, to play in this process.

        Args:
            ckpt: content of its checkpoint, or None to read it if no policy object was given.
        """
        if self.subject.policy is not None:
            return self.subject.policy
        source, device = self.plan.policy, self.plan.device
        if ckpt is None or not isinstance(source, CheckpointFile):
            return source.load(device)
        return source.policy_of(ckpt, device)

    def teller(self, on_episode: OnEpisode | None) -> OnEpisode:
        """Return the function that is called with each episode as it ends."""
        calls = [call for call in (self._keep, on_episode) if call is not None]

        def tell(episode: EpisodeResult) -> None:
            for call in calls:
                call(episode)

        return tell

    @property
    def on_frames(self) -> OnFrames | None:
        """Function that takes the frames of the video, or None without a video."""
        return self._frames.add if self.plan.shown else None

    @cached_property
    def _frames(self) -> FrameFolder:
        return FrameFolder()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on, in the form read from JSON."""
        settings = self.settings
        same = {
            "checkpoint": str(self.subject.file.resolve()),
            "checkpoint_sha256": self.subject.sha256,
            "env_args": self._given_meta,
            "episodes": settings.episodes,
            "horizon": settings.horizon,
            "seed": settings.seed,
            "mode": self.mode,
            # In lockstep, a stochastic policy draws for all environments at once, so their number changes the result.
            "num_envs": settings.workers if self.mode == "vector" else None,
            "terminate_on_success": settings.terminate_on_success,
            "give_up_after": settings.give_up_after,
            "late": None if settings.late is None else vars(settings.late),
        }
        # Entries of earlier versions lack this key, so it is added only if needed.
        if settings.rename:
            same["rename"] = dict(settings.rename)
        if settings.precision != "fp32":
            same["precision"] = settings.precision
        if settings.epsilon:
            same["epsilon"] = settings.epsilon
        return dict(json.loads(to_json(same)))

    def result(self, played: Sequence[EpisodeResult], wall_s: float) -> EvalResult:
        """Assemble the result and write the video.

        Raises:
            EvaluationError: no episode could be played.
        """
        if all(episode.error for episode in played):
            raise EvaluationError(f"no episode could be played: {played[0].error}")
        settings, written = self.settings, None
        if settings.video is not None and self.plan.shown:
            size = self.plan.frame_size
            written = write_mosaic(settings.video, self._frames.name, played, size=size)
        return EvalResult(
            env_name=self.label,
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
            named=self.plan.named,
            warnings=tuple(
                _warnings(played, wants_video=settings.video is not None, mode=self.mode)
            ),
        )

    def close(self) -> None:
        """Remove the frames of the video."""
        if "_frames" in self.__dict__:
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
        check_description(description)  # raises an error before worker processes start


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
    if settings.epsilon:
        raise EnvError(f"{name}: a robot takes no random actions: leave --epsilon out")


def _check_team(name: str, settings: EvalSettings) -> None:
    """Raise EnvError if the settings do not support several agents."""
    if settings.mode == "vector" or settings.late or settings.overlay or settings.epsilon:
        raise EnvError(
            f"{name} has several agents: leave --mode vector, --latency-ms, --overlay and --epsilon out"
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


def _mode(
    settings: EvalSettings, subject: EvaluatedPolicy, env_meta: Mapping[str, Any], device: str
) -> Mode:
    if settings.late is not None or settings.epsilon or is_robot(env_meta) or is_team(env_meta):
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
