"""Evaluation of policies in environments, over seeded episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from imitate.crew.backend import Backend
from imitate.errors import EvaluationError, RobotError, UserError
from imitate.evaluate.episodes import (
    EpisodeResult,
    EpisodeRunner,
    failed_episode,
    hopeless,
    in_order,
    timed,
)
from imitate.evaluate.eval_result import EvalResult
from imitate.evaluate.pool import EpisodeBatch, EpisodePool
from imitate.evaluate.prepared import (
    EvalJob,
    EvalSettings,
    EvaluatedPolicy,
    Mode,
    default_workers,
    subject_in,
    subject_of,
)
from imitate.evaluate.vector_episodes import run_vector_episodes
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import available_cores
from imitate.system.run_folder import find_checkpoint

__all__ = [
    "EvalSettings",
    "Mode",
    "OnEpisode",
    "EvalTask",
    "available_cores",
    "default_workers",
    "evaluate",
    "evaluate_all",
]

OnEpisode = Callable[[EpisodeResult], None]
Outcome = EvalResult | UserError | EvaluationError


def evaluate(
    agent: str | Path | RolloutPolicy,
    env_meta: Mapping[str, Any] | None = None,
    settings: EvalSettings | None = None,
    *,
    pool: EpisodePool | None = None,
    on_episode: OnEpisode | None = None,
) -> EvalResult:
    """Measure a policy in seeded episodes.

    Args:
        agent: a checkpoint, a run folder (its best checkpoint), or a policy, which then plays in this process.
        env_meta: env_args of the environment, or None for the checkpoint's first one. Its entry `lang` is the
            instruction, `key` the name under which the result is shown.
        settings: number of episodes, seed, workers and the rest; None for the defaults of :class:`EvalSettings`.
        pool: worker processes to use and keep.
        on_episode: called with each episode as it ends.

    Raises:
        UserError: the checkpoint or the environment is invalid, or they do not match.
        EvaluationError: no episode could be played.
    """
    settings = settings or EvalSettings()
    start = time.perf_counter()
    with ExitStack() as stack:
        subject, ckpt = _opened(agent)
        prepared = stack.enter_context(closing(EvalJob(subject, env_meta, settings)))
        if pool is None and prepared.needs_processes:
            one = prepared.mode == "vector"
            num = 1 if one else min(settings.workers, settings.episodes)
            pool = stack.enter_context(EpisodePool(num))
        if prepared.in_this_process:
            pool = None
        if pool is None and ckpt is not None:
            prepared.load(ckpt)
        del ckpt
        return prepared.result(_play(prepared, pool, on_episode), timed(start))


def _opened(agent: str | Path | RolloutPolicy) -> tuple[EvaluatedPolicy, dict[str, Any] | None]:
    """Return the description of a policy, and the content of its checkpoint if it has one."""
    if isinstance(agent, RolloutPolicy):
        return subject_of(agent), None
    path = find_checkpoint(agent)
    ckpt = load_checkpoint(path)
    return subject_in(ckpt, path), ckpt


@dataclass(frozen=True)
class EvalTask:
    """A checkpoint and the environment in which it is evaluated.

    Attributes:
        agent: a checkpoint, a run folder, or the description of a checkpoint.
        env_meta: env_args, or None for the checkpoint's first environment.
        settings: settings of the evaluation; all places must have the same ``step_timeout_s``.
        earlier: episodes of an interrupted evaluation, which are not played again (except in lockstep).
        on_episode: called with each episode that another evaluation may take over.
    """

    agent: str | Path | EvaluatedPolicy
    env_meta: Mapping[str, Any] | None
    settings: EvalSettings
    earlier: tuple[EpisodeResult, ...] = ()
    on_episode: OnEpisode | None = None


def evaluate_all(
    places: Sequence[EvalTask],
    *,
    workers: int = 1,
    on_episode: OnEpisode | None = None,
    backend: Backend[Any] | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Run several evaluations with the same workers, which keep their simulators.

    All episodes form one queue, grouped by environment. Each place has the same result as from :func:`evaluate`.

    Args:
        places: the evaluations.
        workers: number of processes.
        on_episode: called with each episode as it ends.
        backend: back end of the workers, or None for processes on this machine.

    Yields:
        the number of a place as soon as it is done, with its result or the reason why it failed.

    Raises:
        UserError: a checkpoint or an environment cannot be used, or settings contradict each other.
    """
    agents = dict.fromkeys(place.agent for place in places)
    subjects = {agent: subject_of(agent) for agent in agents}
    with ExitStack() as stack:
        prepared = [
            stack.enter_context(
                closing(EvalJob(subjects[place.agent], place.env_meta, place.settings))
            )
            for place in places
        ]
        if backend is not None:
            for entry in prepared:
                entry.check_movable()
        pool = stack.enter_context(EpisodePool(workers, backend))
        queue = _by_environment(prepared)
        tell = [
            _told(place, entry, on_episode) for place, entry in zip(places, prepared, strict=True)
        ]
        planned = [
            prepared[number].planned(tell[number], places[number].earlier) for number in queue
        ]
        with closing(pool.run_all(planned)) as results:
            for played in results:
                number = queue[played.number]
                yield number, _outcome(prepared[number], played.episodes, played.wall_s)
        for number, entry in enumerate(prepared):
            if number not in queue:
                own_pool = None if entry.in_this_process else pool
                play = partial(_play, entry, own_pool, tell[number], places[number].earlier)
                yield number, _outcome(entry, play)


def _told(place: EvalTask, prepared: EvalJob, on_episode: OnEpisode | None) -> OnEpisode:
    """Return the function to call with each episode of a place."""
    keeps = place.on_episode if prepared.mode == "processes" else None

    def tell(episode: EpisodeResult) -> None:
        for call in (keeps, on_episode):
            if call is not None:
                call(episode)

    return tell


def _by_environment(prepared: Sequence[EvalJob]) -> list[int]:
    """Return the evaluations for all workers, ordered so that workers seldom change their environment."""
    first: dict[str, int] = {}
    for entry in prepared:
        first.setdefault(repr(entry.env_meta), len(first))
    numbers = [
        number
        for number, entry in enumerate(prepared)
        if entry.mode == "processes" and not entry.in_this_process
    ]
    return sorted(numbers, key=lambda number: first[repr(prepared[number].env_meta)])


def _outcome(
    prepared: EvalJob, play: Callable[[], list[EpisodeResult]], wall_s: float | None = None
) -> Outcome:
    """Return the result of the episodes from ``play``; ``wall_s`` replaces the measured time if given."""
    start = time.perf_counter()
    try:
        played = play()
        return prepared.result(played, timed(start) if wall_s is None else wall_s)
    except (UserError, EvaluationError) as error:
        return error
    finally:
        prepared.close()


def _play(
    prepared: EvalJob,
    pool: EpisodePool | None,
    on_episode: OnEpisode | None,
    earlier: Sequence[EpisodeResult] = (),
) -> list[EpisodeResult]:
    if prepared.mode == "vector":
        return _play_lockstep(prepared, pool, on_episode)
    planned = prepared.planned(on_episode, earlier)
    if pool is not None:
        return pool.run(planned)
    return _play_here(prepared, planned)


def _play_lockstep(
    prepared: EvalJob, pool: EpisodePool | None, on_episode: OnEpisode | None
) -> list[EpisodeResult]:
    job, policy = prepared.vector_job, prepared.subject.policy
    if pool is not None:
        return pool.run_vector(job, on_episode)
    if policy is None:
        policy = job.policy.load(job.device)
    return run_vector_episodes(
        policy, job.env_meta, job.plan, job.episodes, job.num_envs, on_episode, job.give_up_after
    )


def _play_here(prepared: EvalJob, planned: EpisodeBatch) -> list[EpisodeResult]:
    """Play the episodes in this process, one after the other."""
    job, runner = planned.job, EpisodeRunner()
    if prepared.subject.policy is None:
        runner.load(job)
    else:
        runner.use_policy(prepared.subject.policy)
    results = {episode.index: episode for episode in planned.earlier}
    try:
        for index in range(planned.episodes):
            if hopeless(results, planned.give_up_after):
                break
            if index in results:
                continue
            results[index] = runner.play(job.env_meta, job.plan, index, planned.on_frames)
            if planned.on_episode is not None:
                planned.on_episode(results[index])
    except RobotError as error:  # episodes measured before count; a person must check the robot
        results[index] = failed_episode(job.plan, index, str(error))
    finally:
        runner.close()
    return in_order(results, planned.give_up_after)
