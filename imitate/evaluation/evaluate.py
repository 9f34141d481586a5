"""Evaluation of a policy in an environment, over seeded episodes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from imitate.config.experiment import DEFAULT_HORIZON
from imitate.deploy.robot import RobotError
from imitate.envs.make import is_robot
from imitate.envs.migration import fitted
from imitate.envs.trust import check_trusted
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluation.environments import label
from imitate.evaluation.episode_pool import EpisodePool
from imitate.evaluation.episodes import (
    Episode,
    EpisodePlan,
    EpisodeRunner,
    Job,
    failed_episode,
    hopeless,
    in_order,
    timed,
)
from imitate.evaluation.eval_result import EvalResult
from imitate.evaluation.late import Lateness
from imitate.evaluation.mosaic import write_mosaic
from imitate.evaluation.vector_episodes import VectorJob, run_vector_episodes
from imitate.policy.checkpoint import config_of, load_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.processes import STEP_TIMEOUT_S
from imitate.run_folder import find_checkpoint

Mode = Literal["auto", "processes", "vector"]
OnEpisode = Callable[[Episode], None]

# From so many weights on, batched calls pay more than independent processes with a policy each.
LARGE_POLICY = 50_000_000
# From so many on (image encoders) a GPU, where there is one, pays more than the CPU's cores.
GPU_POLICY = 5_000_000


def evaluate(
    agent: str | Path | RolloutPolicy,
    env_meta: Mapping[str, Any] | None = None,
    *,
    episodes: int = 50,
    horizon: int | None = None,
    seed: int = 0,
    workers: int = 1,
    mode: Mode = "auto",
    device: str | None = None,
    terminate_on_success: bool = True,
    give_up_after: int | None = None,
    video: str | Path | None = None,
    video_episodes: int = 9,
    video_skip: int = 5,
    overlay: bool = False,
    pool: EpisodePool | None = None,
    on_episode: OnEpisode | None = None,
    step_timeout_s: float | None = None,
    late: Lateness | None = None,
) -> EvalResult:
    """Measure a policy over `episodes` episodes; episode i starts from `seed + i`.

    Args:
        agent: a checkpoint, a run folder (its best checkpoint), or a policy, which then plays in this process.
        env_meta: env_args of the environment; None: the first one in the checkpoint. `lang` in it is the
            instruction, `key` the name under which the result is shown.
        horizon: longest episode; None: as in the checkpoint's configuration.
        workers: processes; 1 plays in this process unless `pool` or `step_timeout_s` is given.
        mode: "processes" (a policy copy in each worker), "vector" (environments in lockstep, batched calls), or
            "auto": vector on a GPU and for large policies.
        device: where the policy runs; None: the CPU, or for policies with image encoders a GPU where there is one.
        give_up_after: stop when that many first episodes all failed.
        video: mp4 to write, a mosaic of the first `video_episodes`, a frame every `video_skip` steps.
        overlay: draw onto the video what the policy plans, and where its encoders look.
        pool: worker processes to use and keep.
        on_episode: called with each episode as it ends.
        step_timeout_s: a call of the environment (step, reset, render) that takes longer, or making one that takes
            five times as long, ends its process: the episode is tried once more and then counts as failed. None: 60 in
            worker processes; no limit in this process, where nothing can end a simulator that hangs.
        late: predictions take time, during which the world goes on; see :mod:`imitate.evaluation.late`.

    Raises:
        UserError: the checkpoint, the environment or their match is wrong.
        EvaluationError: no episode could be played.
    """
    if late is not None and mode == "vector":
        raise UserError(
            "--mode vector predicts for many environments at once, without delay: leave it out with --latency-ms"
        )
    start = time.perf_counter()
    subject = _subject(agent, env_meta, device, step_timeout_s)
    if is_robot(subject.env_meta):
        _check_robot(subject.env_meta, workers, mode, late)
        mode, pool, step_timeout_s = "processes", None, None
    mode = _chosen(mode, subject) if late is None else "processes"
    with ExitStack() as stack:
        in_processes = step_timeout_s is not None or (mode == "processes" and workers > 1)
        if pool is None and subject.policy is None and in_processes:
            num = 1 if mode == "vector" else min(workers, episodes)
            pool = stack.enter_context(EpisodePool(num))
        frame_dir = None
        if video is not None and mode == "processes":
            frame_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="imitate-frames-"))
        plan = EpisodePlan(
            horizon=subject.horizon if horizon is None else horizon,
            seed=seed,
            terminate_on_success=terminate_on_success,
            frame_dir=frame_dir,
            video_episodes=video_episodes,
            video_skip=video_skip,
            overlay=overlay,
            step_timeout_s=STEP_TIMEOUT_S if step_timeout_s is None else step_timeout_s,
            late=late,
        )
        rest = (pool, on_episode, give_up_after)
        if mode == "vector":
            played = _play_vector(subject, plan, episodes, workers, *rest)
        else:
            played = _play_processes(subject, plan, episodes, *rest)
        if all(episode.error for episode in played):
            raise EvaluationError(f"no episode could be played: {played[0].error}")
        written = None
        if video is not None and frame_dir is not None:
            written = write_mosaic(video, frame_dir, played, size=plan.frame_size)
    return EvalResult(
        env_name=label(subject.env_meta),
        checkpoint=None if subject.path is None else str(subject.path),
        episodes=tuple(played),
        planned=episodes,
        horizon=plan.horizon,
        seed=seed,
        mode=mode,
        workers=workers,
        wall_s=timed(start),
        video=None if written is None else str(written),
        longest_demo=subject.longest_demo,
        late=late,
        warnings=tuple(_warnings(played, wants_video=video is not None, mode=mode)),
    )


@dataclass(frozen=True)
class _Subject:
    """A policy and the environment of its evaluation."""

    path: Path | None
    policy: RolloutPolicy | None
    env_meta: dict[str, Any]
    horizon: int
    weights: int
    device: str
    longest_demo: int | None = None


def _subject(
    agent: str | Path | RolloutPolicy,
    env_meta: Mapping[str, Any] | None,
    device: str | None,
    step_timeout_s: float | None,
) -> _Subject:
    if isinstance(agent, RolloutPolicy):
        if env_meta is None:
            raise EnvError("a policy object needs env_meta, the env_args of its environment")
        if step_timeout_s is not None:
            raise EnvError(
                "a policy object plays in this process, which cannot end a simulator that hangs: leave "
                "step_timeout_s out, or give a checkpoint"
            )
        weights = sum(weight.numel() for weight in agent.algo.nets.parameters())
        horizon = agent.algo.global_config.experiment.rollout.horizon or DEFAULT_HORIZON
        check_trusted(env_meta)
        return _Subject(None, agent, fitted(env_meta), horizon, weights, str(agent.algo.device))
    path = find_checkpoint(agent)
    ckpt = load_checkpoint(path)
    meta = dict(env_meta if env_meta is not None else ckpt["env_metadata"])
    if not meta:
        raise EnvError(f"{path}: the checkpoint names no environment; name one with --env")
    check_trusted(meta)
    horizon = config_of(ckpt).experiment.rollout.horizon or DEFAULT_HORIZON
    weights = sum(weight.numel() for weight in ckpt["model"]["nets"].values())
    if device is None:
        device = "cuda" if weights > GPU_POLICY and torch.cuda.is_available() else "cpu"
    longest = ckpt["shape_metadata"].get("longest_demo")
    return _Subject(path, None, fitted(meta), horizon, weights, device, longest)


def _check_robot(
    env_meta: Mapping[str, Any], workers: int, mode: Mode, late: Lateness | None
) -> None:
    """Raise EnvError where a robot is to do what only copies of a simulator can."""
    name = label(env_meta)
    if workers > 1 or mode == "vector":
        raise EnvError(
            f"{name} is one robot, driven by this process: leave --workers and --mode out (got {workers} workers, "
            f"mode {mode})"
        )
    if late is not None:
        raise EnvError(
            f"{name}: --latency-ms is for simulators; on a robot predictions take the time they take"
        )


def _chosen(mode: Mode, subject: _Subject) -> Mode:
    if mode != "auto":
        return mode
    batched = subject.weights > LARGE_POLICY or not subject.device.startswith("cpu")
    return "vector" if batched else "processes"


def _play_vector(
    subject: _Subject,
    plan: EpisodePlan,
    episodes: int,
    workers: int,
    pool: EpisodePool | None,
    on_episode: OnEpisode | None,
    give_up_after: int | None,
) -> list[Episode]:
    meta, path = subject.env_meta, str(subject.path)
    if pool is not None and subject.policy is None:
        job = VectorJob(path, meta, plan, subject.device, episodes, workers, give_up_after)
        return pool.run_vector(job, on_episode)
    policy = subject.policy
    if policy is None:
        policy, _ = policy_from_checkpoint(device=subject.device, ckpt_path=path)
    return run_vector_episodes(policy, meta, plan, episodes, workers, on_episode, give_up_after)


def _play_processes(
    subject: _Subject,
    plan: EpisodePlan,
    episodes: int,
    pool: EpisodePool | None,
    on_episode: OnEpisode | None,
    give_up_after: int | None,
) -> list[Episode]:
    job = Job(str(subject.path), subject.env_meta, plan, subject.device)
    if subject.policy is None and pool is not None:
        return pool.run(job, episodes, on_episode, give_up_after)
    runner = EpisodeRunner()
    if subject.policy is None:
        runner.load(job)
    else:
        runner.use_policy(subject.policy)
    results: dict[int, Episode] = {}
    try:
        for index in range(episodes):
            results[index] = runner.play(subject.env_meta, plan, index)
            if on_episode is not None:
                on_episode(results[index])
            if hopeless(results, give_up_after):
                break
    except (
        RobotError
    ) as error:  # what was measured before counts; a person has to look before it moves again
        index = len(results)
        results[index] = failed_episode(plan, index, str(error))
    finally:
        runner.close()
    return in_order(results, give_up_after)


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


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers(episodes: int) -> int:
    """Return the default number of workers: one per core, at most 16."""
    return max(1, min(available_cores(), episodes, 16))
