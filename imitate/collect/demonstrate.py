"""Record a demonstration: an expert, or the policy of a checkpoint, acts in an environment.

Worker processes import this module, so it imports neither the file format nor, without a policy, torch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from imitate.envs import Env, make_env
from imitate.envs.env import Array, Obs, named_reward, watched
from imitate.envs.experts import (
    LEVELS,
    QUALITIES,
    Demonstrator,
    ExpertKind,
    Habits,
    HumanLike,
    Style,
    arms_of,
    find_expert,
)
from imitate.errors import EnvError, UserError, nearest
from imitate.system.processes import Beat
from imitate.system.text import INFO
from imitate.system.user_code import error_words

if TYPE_CHECKING:
    from imitate.policy.rollout_policy import RolloutPolicy

MAX_ATTEMPTS = 25
OWN = "policy"
"""Quality level that is recorded for episodes of a policy."""
DESCRIBE = "env_args"
"""Work item for which a worker returns the env_args of its environment."""

# Action noise at --noise 1, per quality level: white noise on all motion axes, and sometimes a push in one direction
# for a few steps, from which the demonstrator must recover.
_WHITE_STD = (0.03, 0.06, 0.12, 0.0)
_PUSH_STD = (0.3, 0.4, 0.5, 0.0)
_PUSH_PROBABILITY = 0.03
_PUSH_STEPS = (3, 8)
_PAUSE_STEPS = (5, 16)
_OF_THE_SCENE = {"model_file": "model", "ep_meta": "ep_meta"}
"""Attributes of a demo in which the scene is stored, and the keys of ``get_state`` from which they are taken."""


@dataclass(frozen=True)
class Plan:
    """Settings of demonstrations, the same for all episodes of a collection.

    Attributes:
        env_meta: env_args of the environment.
        seed: base seed; an episode's own seed follows from it and the episode's number.
        qualities: quality levels of the demonstrators, which take turns.
        noise: scale of the action noise.
        horizon: number of steps after which an attempt has failed, or None for the expert's own.
        hold_steps: number of steps to record after the first success.
        keep_failures: record the first attempt even if it fails.
        label: recorded ``actions``: ``executed`` (with noise, so that they can be played back) or ``expert`` (without
            noise).
        habits: habits of a person that the expert imitates, or None.
        signals: names of numbers in the step's ``info`` to record.
        agent: path of a checkpoint whose policy acts instead of an expert, for ``horizon`` steps; None for an expert.
        agent_sha256: SHA-256 of the checkpoint, so that only the same policy resumes a collection.

    Raises:
        UserError: several quality levels are given for a task of two arms, whose experts have only one.
    """

    env_meta: dict[str, Any]
    seed: int = 0
    qualities: tuple[str, ...] = QUALITIES[:1]
    noise: float = 1.0
    horizon: int | None = None
    hold_steps: int = 8
    keep_failures: bool = False
    label: str = "executed"
    habits: Habits | None = None
    signals: tuple[str, ...] = ()
    agent: str | None = None
    agent_sha256: str | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        name = str(self.env_meta.get("env_name"))
        if arms_of(name) > 1 and self.qualities != QUALITIES[:1]:
            raise UserError(
                f"--quality mixed: {name} has two arms, for which only expert demonstrators exist: leave "
                "the option out"
            )

    def quality(self, index: int) -> str:
        """Return the quality level of the demonstrator in episode ``index``."""
        return self.qualities[index % len(self.qualities)]

    def expert(self) -> ExpertKind:
        """Return the scripted expert of the environment, or the policy of ``agent``."""
        name = str(self.env_meta["env_name"])
        if self.agent is None:
            return find_expert(name)
        return _policy(self.agent, name, self.horizon or 0)

    def randomness(self, seed: int) -> AbstractContextManager[None]:
        """Return a context in which a policy draws random numbers from a seed; experts have their own generator."""
        if self.agent is None:
            return nullcontext()
        from imitate.system.seeding import seeded

        return seeded(seed)

    def attempt_steps(self, expert: ExpertKind) -> int:
        """Return the number of steps after which an attempt has failed, twice as many with a person's habits."""
        return self.horizon or expert.horizon * (1 if self.habits is None else 2)

    def demonstrator(self, expert: Any, quality: str, rng: np.random.Generator) -> Demonstrator:
        """Return the demonstrator, which alters the expert's actions according to quality level and habits."""
        if self.habits is not None:
            return HumanLike(expert, rng, self.habits)
        return LEVELS[quality](expert, rng)


@dataclass
class Demonstration:
    """A recorded episode: (T, ...) arrays, attributes of the demo, and the number of attempts.

    ``terminals`` are true at steps that ended in success, and at the last step if the environment terminated there.
    """

    obs: dict[str, Array]
    next_obs: dict[str, Array]
    actions: Array
    rewards: Array
    successes: Array
    terminals: Array
    states: Array | None
    executed: Array
    signals: dict[str, Array]
    attrs: dict[str, Any]
    quality: str
    attempts: int = 1
    problems: list[str] = field(default_factory=list)
    is_reported: bool = True

    @property
    def success(self) -> bool | None:
        """True if the task was solved at some step, None if the environment reports no success."""
        return bool(self.successes.any()) if self.is_reported else None


class MotionNoise:
    """Adds white noise, pushes and pauses to an action on the motion axes, but not on the grippers.

    Args:
        rng: generator of the noise.
        scale: factor of the noise of the quality level; 0 for no noise.
        quality: quality level of the demonstrator.
        pause: probability per step of beginning a pause of 5 to 15 steps without motion.
        axes: number of leading dimensions of an arm's action that are motions; the first three are translations.
        arms: number of arms, among which the action is divided equally.
        low: lower limits of the action.
        high: upper limits of the action.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        scale: float,
        quality: str,
        pause: float,
        *,
        axes: int = 6,
        arms: int = 1,
        low: Array | float = -1.0,
        high: Array | float = 1.0,
    ) -> None:
        self._axes, self._arms, self._low, self._high = axes, arms, low, high
        level = QUALITIES.index(quality)
        self._rng, self._scale = rng, scale
        self._white, self._push_std = scale * _WHITE_STD[level], scale * _PUSH_STD[level]
        self._pause_probability = pause
        self._push, self._push_left, self._pause_left = np.zeros((arms, 3)), 0, 0

    def __call__(self, action: Array) -> Array:
        """Return the noisy action (A,) to execute in place of ``action``."""
        if self._axes == 0:
            return action
        rng = self._rng
        executed = np.array(action)
        parts = executed.reshape(self._arms, -1)
        if self._scale > 0 and self._push_left == 0 and rng.random() < _PUSH_PROBABILITY:
            self._push_left = int(rng.integers(*_PUSH_STEPS))
            self._push = rng.normal(0.0, self._push_std, self._push.shape)
        if self._pause_left == 0 and rng.random() < self._pause_probability:
            self._pause_left = int(rng.integers(*_PAUSE_STEPS))
        if self._pause_left > 0:
            self._pause_left -= 1
            parts[:, : self._axes] = 0.0
        if self._push_left > 0:
            self._push_left -= 1
            translations = min(3, self._axes)
            parts[:, :translations] += self._push[:, :translations]
        parts[:, : self._axes] += rng.normal(0.0, 1.0, (self._arms, self._axes)) * self._white
        return np.clip(executed, self._low, self._high)


def prepare_demonstrations(plan: Plan, beat: Beat) -> Callable[[int | str], Any]:
    """Return a worker's function, which returns the demo of an episode number, or the env_args for ``DESCRIBE``."""

    def work(item: int | str) -> Any:
        return demonstrate(plan, item, beat) if isinstance(item, int) else describe(plan, beat)

    return work


def describe(plan: Plan, beat: Beat | None = None) -> dict[str, Any]:
    """Return the ``env_args`` with which the plan's environment can be made again."""
    return watched(partial(_worker_env, json.dumps(plan.env_meta)), beat).serialize()


def demonstrate(plan: Plan, index: int, beat: Beat | None = None) -> Demonstration:
    """Record episode ``index`` of a collection; ``beat`` is notified of each call of the environment, to detect hangs.

    A failed attempt is repeated with another seed, unless the plan keeps failures.

    Raises:
        EnvError: the expert failed ``MAX_ATTEMPTS`` times.
    """
    quality = plan.quality(index)
    kind = plan.expert()
    horizon, plays = plan.attempt_steps(kind), bool(getattr(kind, "plays", False))
    problems: list[str] = []
    for attempt in range(MAX_ATTEMPTS):
        env_seed, rng = _seeds(plan.seed, index, attempt)
        style = Style.sample(rng, quality)
        try:
            env = watched(partial(_worker_env, json.dumps(plan.env_meta)), beat)
            noise = MotionNoise(
                rng,
                plan.noise,
                quality,
                style.hesitation,
                axes=kind.motion_axes,
                arms=arms_of(kind.env_name),
                low=env.action_low,
                high=env.action_high,
            )
            expert: Any = kind(style)
            if plays or plan.agent is not None:
                expert.attach(env)
            who = plan.demonstrator(expert, quality, rng)
            hold = horizon if plays else plan.hold_steps
            with plan.randomness(env_seed):
                episode = _record(env, who, noise, env_seed, horizon, hold, plan)
        except UserError:
            raise
        except Exception as error:  # the simulator failed: try again in a new one
            _worker_env.cache_clear()
            problems.append(f"episode {index}, attempt {attempt}: {error_words(error)}")
            continue
        if episode.success or plan.keep_failures or plays:
            level = quality if plan.agent is None else OWN
            episode.attempts, episode.problems, episode.quality = attempt + 1, problems, level
            episode.attrs.update(quality=level, seed=env_seed)
            if episode.success is not None:
                episode.attrs["success"] = episode.success
            episode.attrs.update(episode=index, attempts=attempt + 1)
            if kind.instruction is not None:
                episode.attrs["language"] = kind.instruction
            return episode
    raise EnvError(
        f"{plan.env_meta['env_name']}: the expert failed {MAX_ATTEMPTS} times in a row at episode {index} "
        f"(horizon {horizon}, noise {plan.noise:g}"
        + (f"; last problem: {problems[-1]}" if problems else "")
        + "); use a longer --horizon, less --noise, or --keep-failures"
    )


@functools.cache
def _worker_env(env_meta: str) -> Env:
    """Return this process's environment, made at the first call, with the cameras in its env_args."""
    meta = json.loads(env_meta)
    kwargs = meta.get("env_kwargs") or {}
    names = kwargs.get("camera_names") if kwargs.get("use_camera_obs") else None
    return make_env(meta, camera_names=[names] if isinstance(names, str) else names)


@functools.cache
def _policy(agent: str, env_name: str, horizon: int) -> ExpertKind:
    """Return this process's policy, loaded at the first call."""
    return PolicyKind(agent, env_name, horizon)


def _seeds(seed: int, index: int, attempt: int) -> tuple[int, np.random.Generator]:
    sequence = np.random.SeedSequence([seed, index, attempt])
    return int(sequence.generate_state(1)[0]), np.random.default_rng(sequence)


def _record(
    env: Env,
    who: Demonstrator,
    noise: MotionNoise,
    seed: int,
    horizon: int,
    hold_steps: int,
    plan: Plan,
) -> Demonstration:
    obs, _ = env.reset(seed=seed)
    start = _state_of(env, plan)
    frames: list[Obs] = [obs]
    states: list[Any] = [start.get("states")]
    actions: list[Array] = []
    executed_actions: list[Array] = []
    rewards: list[float] = []
    signals: list[list[float]] = []
    successes: list[bool] = []
    is_reported = False
    stop, over = horizon, False
    while not over and len(actions) < stop and not (who.gave_up and not any(successes)):
        wanted = np.clip(who.act(obs), env.action_low, env.action_high)
        executed = wanted if who.still else noise(wanted)
        obs, reward, terminated, truncated, info = env.step(executed)
        over = terminated or truncated
        if info["success"] and not any(successes):
            stop = min(horizon, len(actions) + 1 + hold_steps)
        actions.append(executed if plan.label == "executed" else wanted)
        executed_actions.append(executed)
        rewards.append(reward)
        signals.append([_signal(info, name) for name in plan.signals])
        successes.append(bool(info["success"]))
        is_reported = is_reported or info["success"] is not None
        frames.append(obs)
        states.append(env.get_state()["states"] if start else None)
    series = {key: np.stack([frame[key] for frame in frames]) for key in obs}
    terminals = np.array(successes)
    terminals[-1] |= terminated
    return Demonstration(
        obs={key: values[:-1] for key, values in series.items()},
        next_obs={key: values[1:] for key, values in series.items()},
        actions=np.stack(actions),
        rewards=np.asarray(rewards),
        successes=np.asarray(successes),
        terminals=terminals,
        is_reported=is_reported,
        states=np.stack(states[:-1]) if start else None,
        executed=np.stack(executed_actions),
        signals={name: np.array(signals)[:, k] for k, name in enumerate(plan.signals)},
        attrs={
            **{attr: start[key] for attr, key in _OF_THE_SCENE.items() if key in start},
            "action_label": plan.label,
        },
        quality="",
    )


def _state_of(env: Env, plan: Plan) -> dict[str, Any]:
    """Return the simulator's state; {} if the environment has none and a policy acts, which needs no state."""
    try:
        return env.get_state()
    except EnvError:
        if plan.agent is None:
            raise
        return {}


def _signal(info: Mapping[str, Any], name: str) -> float:
    """Return the number ``name`` in a step's info.

    Raises:
        UserError: info has no such number, or it is not finite.
    """
    found = named_reward(INFO + name, 0.0, info)
    if found is None or not np.isfinite(found):
        known = sorted(key for key, value in info.items() if np.isscalar(value))
        lacks = "has no such number" if found is None else f"is {found}"
        raise UserError(f"--signals {name}: the info of a step {lacks}; {nearest(name, known)}")
    return found


class PolicyKind:
    """Replaces a scripted expert by the policy of a checkpoint, whose actions get no noise.

    Args:
        agent: path of the checkpoint.
        env_name: name of the environment.
        horizon: number of steps after which an episode has failed.
    """

    motion_axes = 0
    instruction: str | None = None
    env_kwargs: Mapping[str, Any] = {}
    dense_kwargs: Mapping[str, Any] | None = None
    acts_as_person = False

    def __init__(self, agent: str, env_name: str, horizon: int) -> None:
        from imitate.policy.loading import policy_from_checkpoint  # imports torch

        self.env_name, self.horizon = env_name, horizon
        self._policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=agent)

    def __call__(self, style: Style) -> ActingPolicy:
        """Return the policy for a new episode; ``style`` is ignored."""
        return ActingPolicy(self._policy)


class ActingPolicy:
    """Expert for one episode that acts by a policy."""

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy
        self._env: Env | None = None
        self._goal: Any = None

    def attach(self, env: Env) -> None:
        """Set the environment from which the first call of :meth:`act` takes the goal."""
        self._env = env

    def act(self, obs: Obs) -> Array:
        """Return the policy's action (A,); the first call starts the policy's episode."""
        if self._env is not None:
            from imitate.evaluate.episodes import check_fit, goal_of  # imports torch

            check_fit(self._policy, self._env, obs)
            self._goal = goal_of(self._policy, self._env)
            self._policy.start_episode()
            self._env = None
        return self._policy(obs, self._goal)
