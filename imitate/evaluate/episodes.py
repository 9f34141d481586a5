"""Evaluation episodes: seed, reset, act until success or the horizon, with frames for a video if wanted.

One agent acts, or several that one policy controls, and predictions may be late.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.envs import make_env
from imitate.envs.cameras import sizes_of
from imitate.envs.env import Lanes, ever, has_team, of_all, random_actions, success_in, watched
from imitate.errors import (
    EnvError,
    NotFiniteError,
    RobotError,
    UserError,
    nearest,
)
from imitate.evaluate.named_rewards import RewardSums
from imitate.evaluate.result import EpisodeResult, failed_episode
from imitate.evaluate.settings import EpisodePlan, Lateness
from imitate.evaluate.video import FrameRecorder, OnFrames
from imitate.policy.asynchronous import GUIDANCE, ChunkCounts, ChunkPlayer, Ticket
from imitate.policy.checks import check_rate
from imitate.policy.rollout_policy import RolloutPolicy, not_trained
from imitate.system.processes import Beat, cpu_model
from imitate.system.seeding import seeded
from imitate.system.text import ACTION_MASK
from imitate.system.user_code import error_words

Vector = NDArray[np.float64]
_ROBOSUITE = 1


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

    def load(self, plan: EpisodePlan) -> None:
        """Load the policy of a plan, unless the previous plan already loaded it."""
        key = (plan.policy.key, plan.device)
        if key != self._policy_key:
            self._policy = plan.policy.load(plan.device)
            self._policy_key = key

    def use_policy(self, policy: RolloutPolicy) -> None:
        """Play with a loaded policy."""
        self._policy = policy

    def play(
        self, plan: EpisodePlan, index: int, on_frames: OnFrames | None = None
    ) -> EpisodeResult:
        """Play episode `index`; after an error of simulator or policy, try once more, then record the error.

        Args:
            plan: plan of the episodes.
            index: index of the episode.
            on_frames: receives the episode's frames for a video, or None to render nothing.

        Raises:
            UserError: policy and environment do not fit each other, or the environment cannot be made.
        """
        episode = self._try_to_play(plan, index, on_frames)
        if episode.error is None:
            return episode
        self.close()
        again = self._try_to_play(plan, index, on_frames)
        return again if again.error else replace(again, first_error=episode.error)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()

    def _try_to_play(
        self, plan: EpisodePlan, index: int, on_frames: OnFrames | None
    ) -> EpisodeResult:
        # A simulator may raise any exception; it then fails this episode only.
        try:
            with seeded(plan.seed_of(index)):
                return self._play(plan, index, on_frames)
        except RobotError:  # a person must check the robot before it moves again
            raise
        except NotFiniteError as error:
            return failed_episode(plan, index, str(error))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            return failed_episode(plan, index, describe_error(error))

    def _play(self, plan: EpisodePlan, index: int, on_frames: OnFrames | None) -> EpisodeResult:
        assert self._policy is not None
        policy = self._policy
        recorder = FrameRecorder(plan, index, policy, on_frames)
        env = self._env(plan.env_meta, policy, render=recorder.wanted)
        obs, _ = env.reset(seed=plan.seed_of(index))
        if has_team(env):
            return self._play_team(plan, index, env, obs, recorder)
        check_fit(policy, env, obs)
        goal = goal_of(policy, env)
        policy.start_episode(plan.lang)
        late = (
            None
            if plan.settings.late is None
            else LatePolicy(policy, plan.settings.late, plan.env_meta)
        )
        success: bool | None = None
        at_end: bool | None = None
        total, length, sums = 0.0, 0, RewardSums(plan.named)
        dice = np.random.default_rng(plan.seed_of(index))
        with recorder:
            over = False
            while length < plan.horizon and not over:
                action = policy(obs, goal) if late is None else late(obs)
                if dice.random() < plan.settings.epsilon:
                    action = _random_action(env, obs, dice)
                recorder.add(env, length, obs)
                obs, reward, terminated, truncated, info = env.step(action)
                policy.observe(reward)
                sums.add(reward, info)
                length += 1
                total += float(reward)
                at_end = success_in({"success": env.is_success()["task"]})
                success = ever(success, at_end)
                over = bool(
                    terminated or truncated or (success and plan.settings.terminate_on_success)
                )
            recorder.add(env, length, last=over)
        if success:
            policy.check(obs)  # a broken simulator may report success with NaN observations
        result = self._result(plan, index, recorder, success, total, length, at_end)
        return replace(result, rewards=sums.totals())

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
                terminate_on_success=plan.settings.terminate_on_success,
                show=lambda step: recorder.add(env, step),
            )
            recorder.add(env, play.length, last=play.over)
        if play.success:
            for obs in play.last:  # a broken simulator may report success with NaN observations
                policy.check(obs)
        result = self._result(
            plan, index, recorder, play.success, play.total, play.length, play.at_end
        )
        return replace(result, agents=play.results())

    def _result(
        self,
        plan: EpisodePlan,
        index: int,
        recorder: FrameRecorder,
        success: bool | None,
        total: float,
        length: int,
        at_end: bool | None,
    ) -> EpisodeResult:
        return EpisodeResult(
            index,
            plan.seed_of(index),
            success,
            total,
            length,
            at_end,
            frames=recorder.count,
            render_error=self._render_error or recorder.error,
            cpu=cpu_model(),
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
                # OpenGL is probably missing: continue without pictures, because the results matter more.
                self._render_error = (
                    str(error) if isinstance(error, UserError) else error_words(error)
                )
                return self._env(env_meta, policy, render=False)
        return self._envs[render]


class LatePolicy:
    """One episode of a policy whose predictions are late.

    Args:
        policy: policy at the beginning of an episode; it predicts chunks or single actions (then every action is late).
        late: the delay.
        env_meta: env_args, with the control rate and the action that keeps the robot still.

    Raises:
        UserError: the control rate is not known, or the chunk is too short for the delay.
    """

    def __init__(self, policy: RolloutPolicy, late: Lateness, env_meta: Mapping[str, Any]) -> None:
        rate = policy.control_freq or (env_meta.get("env_kwargs") or {}).get("control_freq")
        if rate is None:
            raise UserError(
                "--latency-ms: neither the checkpoint nor the environment contains the control rate"
            )
        self._policy, self._late = policy, late
        self._delay = math.ceil(late.latency_ms * float(rate) / 1000.0 - 1e-9)
        execution = policy.algo.execution
        self._execute = late.execute or (1 if execution is None else execution.execute)
        size = 1 if execution is None else execution.size
        if late.inference != "sync" and self._delay + 1 > size:
            raise UserError(
                f"a delay of {self._delay} control steps is longer than the chunk of {size} "
                "actions, so nothing of it would be left: use --inference sync, or a policy "
                "with longer chunks"
            )
        self._guidance = GUIDANCE.get(late.inference)
        if self._guidance == "prefix":
            self._check_prefix()
        self._player = ChunkPlayer("blend" if late.inference == "async" else "replace")
        self._history: deque[Mapping[str, Any]] = deque(maxlen=policy.history)
        self._coming: tuple[int, Ticket, Vector] | None = None
        self._step = self._since = 0
        low, high = policy.limits
        self._rest = np.clip(np.zeros(len(low)), low, high)
        self._keeps_gripper = env_meta.get("type") == _ROBOSUITE

    @property
    def counts(self) -> ChunkCounts:
        """Number of chunks by outcome."""
        return self._player.counts

    def __call__(self, ob: Mapping[str, Any]) -> Vector:
        """Return the robot's action (A,) in this control step."""
        self._history.append(ob)
        self._receive()
        if self._coming is None and self._is_due():
            self._predict()
            self._receive()
        self._step += 1
        action = self._player.next()
        if action is None:
            return self._rest.copy()
        self._since += 1
        if self._keeps_gripper:
            self._rest[-1] = action[-1]
        return action

    def _check_prefix(self) -> None:
        most = self._policy.max_prefix
        if not most:
            raise UserError(not_trained(self._policy.algo.global_config.algo_name))
        if self._delay > most:
            raise UserError(
                f"a delay of {self._delay} control steps is longer than the training's "
                f"algo.prefix.max_delay {most}: train the policy with {self._delay}, or use "
                "--inference rtc"
            )

    def _is_due(self) -> bool:
        if self._late.inference == "sync" or self._player.planned == 0:
            return self._player.planned == 0
        return self._since >= self._execute or self._player.planned <= self._delay

    def _predict(self) -> None:
        """Begin a prediction from the current observation; its result arrives later."""
        self._since = 0
        history = list(self._history)
        planned = self._player.remaining()
        ticket = self._player.request()
        if planned is None or self._guidance is None:
            chunk = self._policy.predict_chunk(history)
        else:
            chunk = self._policy.predict_chunk(history, planned, self._delay, self._guidance)
        if self._late.inference == "sync":
            chunk = chunk[: self._execute]
        self._coming = (self._step + self._delay, ticket, chunk)

    def _receive(self) -> None:
        if self._coming is not None and self._step >= self._coming[0]:
            _, ticket, chunk = self._coming
            self._coming = None
            self._player.accept(chunk, ticket)


@dataclass
class AgentPlay:
    """One agent's part of an episode.

    Attributes:
        success: true if the agent succeeded at any of its steps, None if that is unknown.
        at_end: true if the agent succeeded at its last step, None if that is unknown.
        present: true until the agent leaves the episode.
    """

    total: float = 0.0
    success: bool | None = None
    at_end: bool | None = None
    present: bool = True


@dataclass(frozen=True)
class TeamPlay:
    """An episode of several agents.

    Attributes:
        agents: the agents' plays by name.
        length: steps until the last agent left.
        over: true if all agents left, or all succeeded, before the horizon.
        last: observation of each agent at its end.
    """

    agents: dict[str, AgentPlay]
    length: int
    over: bool
    last: Sequence[Mapping[str, Any]]

    @property
    def success(self) -> bool | None:
        """True if every agent succeeded, None if that is unknown."""
        return of_all(agent.success for agent in self.agents.values())

    @property
    def at_end(self) -> bool | None:
        """True if every agent's last step was a success, None if that is unknown."""
        return of_all(agent.at_end for agent in self.agents.values())

    @property
    def total(self) -> float:
        """Sum of the rewards of all agents."""
        return sum(agent.total for agent in self.agents.values())

    def results(self) -> dict[str, dict[str, float | bool | None]]:
        """Return and success of each agent, for files."""
        return {
            name: {"return": agent.total, "success": agent.success}
            for name, agent in self.agents.items()
        }


def play_team(
    policy: RolloutPolicy,
    env: Lanes,
    first: Sequence[Mapping[str, Any]],
    *,
    horizon: int,
    terminate_on_success: bool,
    show: Callable[[int], None],
) -> TeamPlay:
    """Play an episode from the agents' ``first`` observations on; ``show`` is called with the steps so far.

    Raises:
        EnvError: the policy has goals, which multi-agent environments do not provide.
    """
    if policy.goal_keys:
        raise EnvError(
            f"the policy takes goals ({', '.join(policy.goal_keys)}), which multi-agent "
            "environments do not provide: train a policy without goals"
        )
    agents = {name: AgentPlay() for name in env.agents}
    seen, length, over = list(first), 0, False
    while length < horizon and not over:
        actions = policy(
            _batch(seen, [agent.present for agent in agents.values()]), batched_ob=True
        )
        show(length)
        outcomes = env.step(actions)
        length += 1
        for number, (agent, outcome) in enumerate(zip(agents.values(), outcomes, strict=True)):
            if outcome is None:
                continue
            seen[number], reward, terminated, truncated, info = outcome
            agent.total += float(reward)
            agent.at_end = success_in(info)
            agent.success = ever(agent.success, agent.at_end)
            agent.present = not (terminated or truncated)
        policy.observe(np.array([0.0 if o is None else float(o[1]) for o in outcomes]))
        solved = terminate_on_success and all(agent.success for agent in agents.values())
        over = solved or not any(agent.present for agent in agents.values())
    return TeamPlay(agents, length, over, seen)


def _batch(
    seen: Sequence[Mapping[str, Any]], present: Sequence[bool]
) -> dict[str, np.ndarray[Any, Any]]:
    """Stack the observations of all agents; actions of agents that have left are ignored."""
    rows = {key: np.stack([np.asarray(obs[key]) for obs in seen]) for key in seen[0]}
    if ACTION_MASK in rows:
        rows[ACTION_MASK][~np.array(present)] = 1
    return rows


def _random_action(env: Any, obs: Mapping[str, Any], dice: np.random.Generator) -> Vector:
    """Return a uniform random action (A,) of an environment; of discrete choices, one that is allowed now."""
    low, mask = np.asarray(env.action_low), obs.get(ACTION_MASK)
    choices = int(getattr(env, "num_choices", 0))
    allowed = None if mask is None else np.asarray(mask)[None]
    share = dice.random((1, len(low)))
    (action,) = random_actions(share, low, np.asarray(env.action_high), choices, allowed)
    return np.asarray(action, dtype=np.float64)


def describe_error(error: BaseException) -> str:
    """Describe an error of a simulator or a policy."""
    if isinstance(error, SystemExit):
        return f"the environment or the policy called sys.exit({error.code!r})"
    return error_words(error)


def check_fit(policy: RolloutPolicy, env: Any, obs: Mapping[str, Any]) -> None:
    """Check that the policy's observations and actions match the environment's.

    Raises:
        EnvError: observations or actions differ; the message names both sizes.
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
        EnvError: the environment provides no goals.
    """
    if not policy.goal_keys:
        return None
    if not hasattr(env, "get_goal"):
        raise EnvError(
            f"environment '{env.name}' has no get_goal(), which a goal-conditioned policy needs "
            f"(goal keys {', '.join(policy.goal_keys)}); evaluate with an environment class that has it"
        )
    return env.get_goal()
