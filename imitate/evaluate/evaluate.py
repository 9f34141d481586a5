"""Evaluation of policies in environments, over seeded episodes."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from imitate.crew.backend import Backend
from imitate.errors import EvaluationError, RobotError, UserError
from imitate.evaluate.episodes import EpisodeRunner
from imitate.evaluate.job import EvalJob, OnEpisode, subject_in
from imitate.evaluate.lockstep import play_lockstep
from imitate.evaluate.result import (
    EpisodeResult,
    EvalResult,
    failed_episode,
    hopeless,
    in_order,
    timed,
)
from imitate.evaluate.settings import EvalSettings
from imitate.evaluate.worker import EpisodePool
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.run_folder import find_checkpoint

__all__ = ["EvalJob", "EvalSettings", "evaluate", "evaluate_all"]

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
        ckpt: dict[str, Any] | None = None
        if not isinstance(agent, RolloutPolicy):
            path = find_checkpoint(agent)
            ckpt = load_checkpoint(path)
        subject = agent if ckpt is None else subject_in(ckpt, path)
        job = stack.enter_context(closing(EvalJob(subject, env_meta, settings)))
        if pool is None and job.needs_processes:
            one = job.mode == "vector"
            num = 1 if one else min(settings.workers, settings.episodes)
            pool = stack.enter_context(EpisodePool(num))
        if pool is not None and not job.in_this_process:
            del ckpt
            played = pool.run(job, on_episode)
        else:
            policy = job.policy(ckpt)
            del ckpt
            played = _play_here(job, policy, on_episode)
        return job.result(played, timed(start))


def evaluate_all(
    jobs: Sequence[EvalJob],
    *,
    workers: int = 1,
    on_episode: OnEpisode | None = None,
    backend: Backend[Any] | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Run several evaluations with the same workers, which keep their simulators.

    All episodes form one queue, grouped by environment. Each job has the same result as from :func:`evaluate`.

    Args:
        jobs: the evaluations; closed at the end.
        workers: number of processes.
        on_episode: called with each episode as it ends.
        backend: back end of the workers, or None for processes on this machine.

    Yields:
        the number of a job as soon as it is done, with its result or the reason why it failed.

    Raises:
        EnvError: a back end is given, but only this process can play a job.
    """
    with ExitStack() as stack:
        for job in jobs:
            stack.enter_context(closing(job))
        if backend is not None:
            for job in jobs:
                job.check_movable()
        pool = stack.enter_context(EpisodePool(workers, backend))
        queue = _by_environment(jobs)
        running = pool.run_all([jobs[number] for number in queue], on_episode)
        with closing(running):
            for done in running:
                number = queue[done.number]
                yield number, _outcome(jobs[number], done.episodes, done.wall_s)
        for number, job in enumerate(jobs):
            if number not in queue:
                yield number, _outcome(job, partial(_play_alone, job, pool, on_episode))


def _by_environment(jobs: Sequence[EvalJob]) -> list[int]:
    """Return the jobs for all workers, ordered so that workers seldom change their environment."""
    first: dict[str, int] = {}
    for job in jobs:
        first.setdefault(repr(job.plan.env_meta), len(first))
    numbers = [
        number
        for number, job in enumerate(jobs)
        if job.mode == "processes" and not job.in_this_process
    ]
    return sorted(numbers, key=lambda number: first[repr(jobs[number].plan.env_meta)])


def _outcome(
    job: EvalJob, play: Callable[[], list[EpisodeResult]], wall_s: float | None = None
) -> Outcome:
    """Return the result of the episodes from ``play``; ``wall_s`` replaces the measured time if given."""
    start = time.perf_counter()
    try:
        played = play()
        return job.result(played, timed(start) if wall_s is None else wall_s)
    except (UserError, EvaluationError) as error:
        return error
    finally:
        job.close()


def _play_alone(
    job: EvalJob, pool: EpisodePool, on_episode: OnEpisode | None
) -> list[EpisodeResult]:
    """Play a job that cannot share the workers with others."""
    if job.in_this_process:
        return _play_here(job, job.policy(), on_episode)
    return pool.run(job, on_episode)


def _play_here(
    job: EvalJob, policy: RolloutPolicy, on_episode: OnEpisode | None
) -> list[EpisodeResult]:
    """Play the episodes in this process, one after the other or in lockstep."""
    plan, tell = job.plan, job.teller(on_episode)
    if job.mode == "vector":
        return play_lockstep(policy, plan, tell)
    runner = EpisodeRunner()
    runner.use_policy(policy)
    results = {episode.index: episode for episode in job.earlier}
    try:
        for index in range(plan.settings.episodes):
            if hopeless(results, plan.settings.give_up_after):
                break
            if index in results:
                continue
            results[index] = runner.play(plan, index, job.on_frames)
            tell(results[index])
    # A person must check the robot before it moves again; episodes played so far count.
    except RobotError as error:
        results[index] = failed_episode(plan, index, str(error))
    finally:
        runner.close()
    return in_order(results, plan.settings.give_up_after)
