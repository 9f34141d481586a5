"""Evaluation episodes: seed, reset, act until success or the horizon, with frames for a video if wanted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from imitate.envs import make_env
from imitate.envs.cameras import sizes_of
from imitate.envs.env import has_team, watched
from imitate.errors import EnvError, NotFiniteError, RobotError, UserError, nearest
from imitate.evaluate.late import EpisodePlan, LatePolicy
from imitate.evaluate.policy_source import PolicySource
from imitate.evaluate.team_episodes import play_team
from imitate.evaluate.video import FrameRecorder, OnFrames
from imitate.policy.checks import check_rate
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import Beat, cpu_model
from imitate.system.seeding import preserved_rng, seed_everything, torch_threads


@dataclass(frozen=True)
class Job:
    """Task of a worker: episodes of one policy in one environment; picklable."""

    policy: PolicySource
    env_meta: dict[str, Any]
    plan: EpisodePlan
    device: str = "cpu"


@dataclass(frozen=True)
class EpisodeResult:
    """Result of one episode.

    Attributes:
        success: true if the task was solved at any step.
        success_at_end: true if it was solved at the last step.
        error: reason why it could not be played; it then counts as failed.
        first_error: reason why the first try failed; all else describes the second try.
        cpu: model of the processor that played it, or None if unknown.
        agents: return and success of each agent if there are several; the episode's return is then their sum, and it
            succeeds if all do.
    """

    index: int
    seed: int
    success: bool
    episode_return: float
    length: int
    success_at_end: bool
    frames: int = 0
    error: str | None = None
    render_error: str | None = None
    first_error: str | None = None
    cpu: str | None = field(default=None, compare=False)
    agents: dict[str, dict[str, float | bool]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def describe_error(error: BaseException) -> str:
    """Describe an error of a simulator or a policy."""
    if isinstance(error, SystemExit):
        return f"the environment or the policy called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"


def failed_episode(plan: EpisodePlan, index: int, error: str) -> EpisodeResult:
    """Return the record of an episode that could not be played."""
    return EpisodeResult(
        index,
        plan.seed + index,
        success=False,
        episode_return=0.0,
        length=0,
        success_at_end=False,
        error=error,
    )


class EpisodeRunner:
    """Plays episodes in this process; the environment and the policy are made once and kept.

    Args:
        beat: called before each call of the environment.
    """

    def __init__(self, beat: Beat | None = None) -> None:
        self._beat = beat
        self._policy: RolloutPolicy | None = None
        self._policy_key: tuple[Any, ...] = ()
        self._envs: dict[bool, Any] = {}
        self._env_key: tuple[Any, ...] = ()
        self._render_error: str | None = None

    def load(self, job: Job) -> None:
        """Load policy and environment of a job, unless the previous job already loaded them."""
        key = (job.policy.key, job.device)
        if key != self._policy_key:
            self._policy = job.policy.load(job.device)
            self._policy_key = key

    def use_policy(self, policy: RolloutPolicy) -> None:
        """Play with a loaded policy."""
        self._policy = policy

    def play(
        self,
        env_meta: dict[str, Any],
        plan: EpisodePlan,
        index: int,
        on_frames: OnFrames | None = None,
    ) -> EpisodeResult:
        """Play episode `index`; after an error of simulator or policy, try once more, then record the error.

        Args:
            env_meta: env_args of the environment.
            plan: plan of the episodes.
            index: index of the episode.
            on_frames: receives the episode's frames for a video, or None to render nothing.

        Raises:
            UserError: policy and environment do not fit each other, or the environment cannot be made.
        """
        episode = self._try_to_play(env_meta, plan, index, on_frames)
        if episode.error is None:
            return episode
        self.close()
        again = self._try_to_play(env_meta, plan, index, on_frames)
        return again if again.error else replace(again, first_error=episode.error)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _try_to_play(
        self,
        env_meta: dict[str, Any],
        plan: EpisodePlan,
        index: int,
        on_frames: OnFrames | None,
    ) -> EpisodeResult:
        # Simulators raise any exception; only this episode has failed.
        try:
            with preserved_rng(), torch_threads(1):
                seed_everything(plan.seed + index)
                return self._play(env_meta, plan, index, on_frames)
        except RobotError:  # a person must check the robot before it moves again
            raise
        except NotFiniteError as error:
            return failed_episode(plan, index, str(error))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            return failed_episode(plan, index, describe_error(error))

    def _play(
        self,
        env_meta: dict[str, Any],
        plan: EpisodePlan,
        index: int,
        on_frames: OnFrames | None,
    ) -> EpisodeResult:
        assert self._policy is not None
        policy = self._policy
        recorder = FrameRecorder(plan, index, policy, on_frames)
        env = self._env(env_meta, policy, render=recorder.wanted)
        obs, _ = env.reset(seed=plan.seed + index)
        if has_team(env):
            return self._play_team(plan, index, env, obs, recorder)
        check_fit(policy, env, obs)
        goal = goal_of(policy, env)
        policy.start_episode(env_meta.get("lang"))
        late = None if plan.late is None else LatePolicy(policy, plan.late, env_meta)
        success, at_end, total, length = False, False, 0.0, 0
        with recorder:
            over = False
            while length < plan.horizon and not over:
                action = policy(obs, goal) if late is None else late(obs)
                recorder.add(env, length, obs)
                obs, reward, terminated, truncated, _ = env.step(action)
                policy.observe(reward)
                length += 1
                total += float(reward)
                at_end = bool(env.is_success()["task"])
                success = success or at_end
                over = bool(terminated or truncated or (success and plan.terminate_on_success))
            recorder.add(env, length, last=over)
        if success:
            policy.check(obs)  # a broken simulator may report success
        return EpisodeResult(
            index,
            plan.seed + index,
            success,
            total,
            length,
            at_end,
            frames=recorder.count,
            render_error=recorder.error or self._render_error,
            cpu=cpu_model(),
        )

    def _play_team(
        self,
        plan: EpisodePlan,
        index: int,
        env: Any,
        first: Sequence[Mapping[str, Any]],
        recorder: FrameRecorder,
    ) -> EpisodeResult:
        """Play an episode of several agents, beginning with their first observations."""
        assert self._policy is not None
        policy = self._policy
        check_fit(policy, env, first[0])
        policy.start_episode()
        with recorder:
            play = play_team(
                policy,
                env,
                first,
                horizon=plan.horizon,
                terminate_on_success=plan.terminate_on_success,
                show=lambda step: recorder.add(env, step),
            )
            recorder.add(env, play.length, last=play.over)
        if play.success:
            for obs in play.last:  # a broken simulator may report success
                policy.check(obs)
        return EpisodeResult(
            index,
            plan.seed + index,
            play.success,
            play.total,
            play.length,
            play.at_end,
            frames=recorder.count,
            render_error=recorder.error or self._render_error,
            cpu=cpu_model(),
            agents=play.results(),
        )

    def _env(self, env_meta: dict[str, Any], policy: RolloutPolicy, *, render: bool) -> Any:
        sizes = sizes_of(policy.raw_shapes)
        key = (repr(env_meta), policy.obs_keys, tuple(sizes.items()))
        if key != self._env_key:
            self.close()
            self._env_key, self._render_error = key, None
        render = render and self._render_error is None
        if render not in self._envs:
            try:
                make = partial(
                    make_env,
                    env_meta,
                    obs_keys=policy.obs_keys,
                    render=render,
                    camera_size=sizes,
                    team=True,
                )
                self._envs[render] = watched(make, self._beat)
            except Exception as error:
                if not render:
                    raise
                # There is no OpenGL library: results matter more than the picture.
                self._render_error = f"{type(error).__name__}: {error}"
                return self._env(env_meta, policy, render=False)
        return self._envs[render]


def check_fit(policy: RolloutPolicy, env: Any, obs: Mapping[str, Any]) -> None:
    """Check that the policy's observations and actions match the environment's.

    Raises:
        EnvError: they differ; both sizes are named.
    """
    rate = getattr(env, "rate_hz", None)
    if rate is not None:
        check_rate(policy, rate)
    check_action_size(policy, env.name, int(env.action_dim))
    check_obs_shapes(policy, env.name, {key: np.shape(value) for key, value in obs.items()})


def check_obs_shapes(
    policy: RolloutPolicy, env_name: str, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise EnvError if an observation is missing or has another shape than in training."""
    for key in policy.obs_keys:
        wanted, own = tuple(policy.raw_shapes[key]), policy.rename.get(key, key)
        if key not in shapes:
            raise _misfit(
                env_name,
                f"gives no observation '{key}', but the checkpoint takes one of shape "
                f"{wanted} ({nearest(key, shapes)}; --rename NEW={own} if it has another name)",
            )
        if tuple(shapes[key]) != wanted:
            raise _misfit(
                env_name,
                f"gives observation '{key}' of shape {tuple(shapes[key])}, but the checkpoint "
                f"takes {wanted}",
            )


def check_action_size(policy: RolloutPolicy, env_name: str, size: int) -> None:
    """Raise EnvError if policy and environment disagree on the size of an action."""
    given = policy.algo.preprocess.actions.sent_dim
    if given != size:
        raise _misfit(
            env_name, f"takes actions of {size} numbers, but the checkpoint gives {given}"
        )


def _misfit(env_name: str, words: str) -> EnvError:
    return EnvError(
        f"environment '{env_name}' {words}; evaluate in the environment and with the robot it was trained for"
    )


def goal_of(policy: RolloutPolicy, env: Any) -> Any:
    """Return the goal of this episode, for a policy that takes one.

    Raises:
        EnvError: the environment has none.
    """
    if not policy.goal_keys:
        return None
    if not hasattr(env, "get_goal"):
        raise EnvError(
            f"environment '{env.name}' has no get_goal(), which a goal-conditioned policy needs "
            f"(goal keys {', '.join(policy.goal_keys)}); evaluate with an environment class that has it"
        )
    return env.get_goal()


def timed(start: float) -> float:
    """Return the seconds since `start` (time.perf_counter), to the millisecond."""
    return round(time.perf_counter() - start, 3)


def hopeless(results: dict[int, EpisodeResult], give_up_after: int | None) -> bool:
    """Return true if the first `give_up_after` episodes have all been played and all failed."""
    if give_up_after is None:
        return False
    first = [results.get(index) for index in range(give_up_after)]
    return all(episode is not None and not episode.success for episode in first)


def in_order(results: dict[int, EpisodeResult], give_up_after: int | None) -> list[EpisodeResult]:
    """Sort episodes by index; keep only the first if the evaluation was hopeless.

    So its result does not depend on timing.
    """
    if hopeless(results, give_up_after):
        return [results[index] for index in range(give_up_after or 0)]
    return [results[index] for index in sorted(results)]
