"""An evaluation before and after its episodes: its policy, environment and plan, and the result that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from imitate.config.experiment import DEFAULT_HORIZON
from imitate.envs.make import check_description, is_real, is_robot, is_team
from imitate.envs.migration import fitted
from imitate.envs.trust import check_trusted
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluation.environments import label
from imitate.evaluation.episode_plan import EpisodePlan
from imitate.evaluation.episodes import Episode, Job
from imitate.evaluation.eval_result import EvalResult
from imitate.evaluation.frames import FrameFolder
from imitate.evaluation.late import Lateness
from imitate.evaluation.mosaic import write_mosaic
from imitate.evaluation.planned import Planned
from imitate.evaluation.policy_source import CheckpointFile
from imitate.evaluation.vector_episodes import VectorJob
from imitate.policy.checkpoint import config_of, load_checkpoint
from imitate.policy.loading import Precision
from imitate.policy.renaming import Rename
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import STEP_TIMEOUT_S, available_cores
from imitate.system.run_folder import find_checkpoint

Mode = Literal["auto", "processes", "vector"]

# From so many weights on, batched calls pay more than independent processes with a policy each.
LARGE_POLICY = 50_000_000
# From so many on (image encoders) a GPU, where there is one, pays more than the CPU's cores.
GPU_POLICY = 5_000_000


@dataclass(frozen=True)
class EvalSettings:
    """Settings of an evaluation; see :func:`imitate.evaluation.evaluate.evaluate`.

    Raises:
        UserError: they contradict each other.
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
        if self.late is not None and self.mode == "vector":
            raise UserError(
                "--mode vector predicts for many environments at once, without delay: leave it out with --latency-ms"
            )


@dataclass(frozen=True)
class Subject:
    """A policy under evaluation.

    Attributes:
        path: its checkpoint; None where the policy is at hand.
        policy: at hand; None where there is a checkpoint.
        env_meta: env_args of its first environment; empty where it names none.
        horizon: longest episode, as in its configuration.
        weights: how many it has.
        longest_demo: steps of the longest demonstration that it learned from; None: not known.
    """

    path: Path | None
    policy: RolloutPolicy | None
    env_meta: dict[str, Any]
    horizon: int
    weights: int
    longest_demo: int | None = None


def subject_of(agent: str | Path | RolloutPolicy) -> Subject:
    """Describe a policy, or the checkpoint that a path stands for.

    Raises:
        CheckpointError: if there is none.
    """
    if isinstance(agent, RolloutPolicy):
        weights = sum(weight.numel() for weight in agent.algo.nets.parameters())
        horizon = agent.algo.global_config.experiment.rollout.horizon or DEFAULT_HORIZON
        return Subject(None, agent, {}, horizon, weights)
    path = find_checkpoint(agent)
    ckpt = load_checkpoint(path)
    horizon = config_of(ckpt).experiment.rollout.horizon or DEFAULT_HORIZON
    weights = sum(weight.numel() for weight in ckpt["model"]["nets"].values())
    longest = ckpt["shape_metadata"].get("longest_demo")
    return Subject(path, None, dict(ckpt["env_metadata"] or {}), horizon, weights, longest)


class Prepared:
    """One evaluation of a subject in an environment.

    Args:
        subject: who is evaluated.
        env_meta: env_args of the environment; None: the subject's own.
        settings: of the evaluation.

    Attributes:
        mode: "processes" or "vector".
        plan: of the episodes.
        device: where the policy runs.
        in_this_process: no worker can play it: the policy is at hand, or the environment is a robot.

    Raises:
        EnvError: no environment is named, it is not trusted, or is a robot, of which there is one.
    """

    def __init__(
        self, subject: Subject, env_meta: Mapping[str, Any] | None, settings: EvalSettings
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
        """True if it is to be played in worker processes, even where nobody keeps any."""
        several = self.mode == "processes" and self.settings.workers > 1
        return not self.in_this_process and (self.settings.step_timeout_s is not None or several)

    def check_movable(self) -> None:
        """Refuse what only this process can play.

        Raises:
            EnvError: the environment is a robot, or the episodes are played in lockstep.
        """
        if self.in_this_process:
            raise EnvError(
                f"{label(self.env_meta)}: is driven by this process, no worker of a cluster can play it: leave --on out"
            )
        if self.mode == "vector":
            raise EnvError(
                "--mode vector plays all episodes in one process, which a cluster makes no faster: leave it or --on out"
            )

    @property
    def job(self) -> Job:
        """Task of workers that play an episode each."""
        return Job(self._source, self.env_meta, self.plan, self.device)

    @property
    def _source(self) -> CheckpointFile:
        return CheckpointFile(str(self.subject.path), self.settings.rename, self.settings.precision)

    def planned(
        self, on_episode: Callable[[Episode], None] | None, earlier: Sequence[Episode] = ()
    ) -> Planned:
        """Return the episodes to play.

        Args:
            on_episode: called with each episode as it ends.
            earlier: episodes that were played before; those that are to be drawn are played again.
        """
        settings = self.settings
        kept = tuple(episode for episode in earlier if episode.index >= self.plan.video_episodes)
        return Planned(
            self.job,
            settings.episodes,
            on_episode,
            settings.give_up_after,
            None if self._frames is None else self._frames.add,
            kept,
        )

    @property
    def vector_job(self) -> VectorJob:
        """Task of one worker that plays all episodes in lockstep."""
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

    def result(self, played: Sequence[Episode], wall_s: float) -> EvalResult:
        """Put the result together, with its video.

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


def _check(subject: Subject, env_meta: Mapping[str, Any] | None, settings: EvalSettings) -> None:
    if subject.policy is not None and env_meta is None:
        raise EnvError("a policy object needs env_meta, the env_args of its environment")
    if subject.policy is not None and settings.step_timeout_s is not None:
        raise EnvError(
            "a policy object plays in this process, which cannot end a simulator that hangs: leave "
            "step_timeout_s out, or give a checkpoint"
        )
    if subject.policy is not None and settings.rename:
        raise UserError(
            "a policy object has its names already: make it with RolloutPolicy(rename=...)"
        )
    if subject.policy is not None and settings.precision != "fp32":
        raise UserError("a policy object has its precision already: load it with that one")
    description = subject.env_meta if env_meta is None else env_meta
    if not description:
        raise EnvError(f"{subject.path}: the checkpoint names no environment; name one with --env")
    if is_real(description) and not is_robot(description):
        check_description(description)  # refused before worker processes start


def _check_robot(name: str, settings: EvalSettings) -> None:
    """Raise EnvError where a robot is to do what only copies of a simulator can."""
    if settings.workers > 1 or settings.mode == "vector":
        raise EnvError(
            f"{name} is one robot, driven by this process: leave --workers and --mode out (got {settings.workers} "
            f"workers, mode {settings.mode})"
        )
    if settings.late is not None:
        raise EnvError(
            f"{name}: --latency-ms is for simulators; on a robot predictions take the time they take"
        )


def _check_team(name: str, settings: EvalSettings) -> None:
    """Raise EnvError where several agents are to do what only one can."""
    if settings.mode == "vector" or settings.late is not None or settings.overlay:
        raise EnvError(
            f"{name} has several agents: leave --mode vector, --latency-ms and --overlay out"
        )


def _device(subject: Subject, wanted: str | None) -> str:
    if subject.policy is not None:
        return str(subject.policy.algo.device)
    if wanted is not None:
        return wanted
    return device_beside(
        torch.device("cuda" if torch.cuda.is_available() else "cpu"), subject.weights
    )


def device_beside(device: torch.device, weights: int) -> str:
    """Return where a policy of so many weights acts that learns, or may act, on a device: small ones on the CPU."""
    return str(device) if device.type == "cuda" and weights > GPU_POLICY else "cpu"


def resolved(agent: Path, env_meta: Mapping[str, Any], settings: EvalSettings) -> EvalSettings:
    """Return the settings with the mode that "auto" stands for with this checkpoint and environment."""
    if settings.mode != "auto":
        return settings
    subject = subject_of(agent)
    return replace(
        settings, mode=_mode(settings, subject, env_meta, _device(subject, settings.device))
    )


def _mode(
    settings: EvalSettings, subject: Subject, env_meta: Mapping[str, Any], device: str
) -> Mode:
    if settings.late is not None or is_robot(env_meta) or is_team(env_meta):
        return "processes"
    if settings.mode != "auto":
        return settings.mode
    batched = subject.weights > LARGE_POLICY or not device.startswith("cpu")
    return "vector" if batched else "processes"


def _warnings(played: Sequence[Episode], *, wants_video: bool, mode: str) -> list[str]:
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
