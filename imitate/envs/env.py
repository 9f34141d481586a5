"""Interfaces of environments with one or several agents, and a wrapper that reports each call, to detect hangs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from imitate.errors import RewardError
from imitate.system.processes import MAKE, Beat
from imitate.system.text import INFO

Array = npt.NDArray[Any]
Obs = dict[str, Array]


@runtime_checkable
class Env(Protocol):
    """One environment whose observations are a dict of arrays.

    Images are (H, W, 3) uint8, right side up. Write a class with these members to use your own simulator or robot;
    nothing needs to be inherited.
    """

    name: str
    action_dim: int
    action_low: Array
    action_high: Array

    def reset(self, *, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; return observation and info. The same seed always gives the same initial state."""

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action (action_dim,); return observation, reward, terminated, truncated and info.

        ``info["success"]`` is true if the task is solved in the new state; if the key is missing, success is unknown.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the simulator's state: ``states`` (S,) and, if any, ``model`` (XML) and ``ep_meta`` (JSON)."""

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Set the simulator to a state from ``get_state`` or from a demonstration file; return the observation."""

    def is_success(self) -> Mapping[str, bool | None]:
        """Return ``{"task": success}``, which is None if unknown, with the success of sub-tasks if there are some."""

    def render(
        self, *, height: int = 256, width: int = 256, camera_name: str | None = None
    ) -> Array:
        """Draw one frame, (height, width, 3) uint8."""

    def serialize(self) -> dict[str, Any]:
        """Return the ``env_args`` with which ``make_env`` makes this environment again."""

    def close(self) -> None:
        """Free the simulator."""


def success_in(info: Mapping[str, Any]) -> bool | None:
    """Return the success that an ``info`` reports, or None if it is unknown."""
    for key in ("success", "is_success"):
        if info.get(key) is not None:
            return bool(info[key])
    return None


def ever(so_far: bool | None, now: bool | None) -> bool | None:
    """Return the success of an episode after one more step: True once any step succeeded, None if all are unknown."""
    return now if so_far is None else so_far or bool(now)


def of_all(each: Iterable[bool | None]) -> bool | None:
    """Return True if all agents succeed, or None if the success of all agents is unknown."""
    found = list(each)
    return None if all(success is None for success in found) else all(found)


def stage_setter(env: Any) -> Callable[[Mapping[str, Any]], None] | None:
    """Return the method ``set_stage(kwargs)`` of an environment or of one inside its wrappers, or None."""
    found = getattr(env, "set_stage", None)
    if found is None:
        found = getattr(getattr(env, "unwrapped", None), "set_stage", None)
    return cast("Callable[[Mapping[str, Any]], None] | None", found)


def first_observation(env: Env) -> Obs:
    """Return an observation, to learn keys and shapes; a robot is only observed by ``observe()`` and does not move.

    With several agents, the first agent's observation is returned.
    """
    look = getattr(env, "observe", None)
    if look is not None:
        return cast(Obs, look())
    obs: Any = env.reset(seed=0)[0]
    return cast(Obs, obs if getattr(env, "agents", None) is None else obs[0])


def one_reward(reward: Any, name: str) -> float:
    """Return the reward of a step as a number.

    Raises:
        RewardError: the environment ``name`` has several rewards.
    """
    if isinstance(reward, float):  # a number; numpy's float64 is a float, too
        return float(reward)
    if np.size(reward) != 1:
        raise RewardError(
            f"{name}: the reward has shape {np.shape(reward)}; expected one number per step: name its numbers in "
            "algo.rewards, with the sources 'reward:0', 'reward:1', ..., or add them to one number in a wrapper"
        )
    return float(np.asarray(reward).item())


def named_reward(source: str, reward: float, info: Mapping[str, Any]) -> float | None:
    """Return the number of a step that ``source`` names; None if info does not contain it.

    Args:
        source: "reward", "info:KEY", or "reward:0" and so on, which an environment made with ``reward_parts`` puts into
            info.
        reward: reward of the step.
        info: info of the step.
    """
    if source == "reward":
        return float(reward)
    key = source.removeprefix(INFO)
    return one_reward(info[key], key) if key in info else None


def random_actions(
    share: Array, low: Array, high: Array, num_choices: int = 0, mask: Array | None = None
) -> Array:
    """Return uniformly random actions (N, A), made from uniform numbers in [0, 1).

    Args:
        share: (N, A) uniform numbers.
        low: (A,) lower limits; an infinite one counts as -1.
        high: (A,) upper limits; an infinite one counts as 1.
        num_choices: number C of choices, one-hot in the first values of an action; 0 if actions are continuous.
        mask: (N, C), above 0 for allowed choices; None if all choices are allowed.
    """
    low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
    actions: Array = low + share * (high - low)
    if num_choices:
        allowed = np.ones((len(share), num_choices), np.bool_) if mask is None else mask > 0
        chosen = np.floor(share[:, :1] * allowed.sum(1, keepdims=True))
        actions[:, :num_choices] = allowed & (allowed.cumsum(1) - 1 == chosen)
    return actions.astype(np.float32)


Outcome = tuple[Mapping[str, Any], float, bool, bool, Mapping[str, Any]]
"""Observation, reward, terminated, truncated and info of one agent after a step."""


class Lanes(Protocol):
    """Interface of one simulator with K agents; each agent is a lane.

    Attributes:
        agents: names of the agents in the order of their lanes, which is the same in each episode.
    """

    agents: tuple[str, ...]

    def reset(
        self, *, seed: int | None = None
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """Start an episode with all agents; return their observations, and info."""

    def step(self, actions: Array) -> list[Outcome | None]:
        """Apply one action of each agent, (K, A); return None for agents that had left before this step.

        The actions of agents that have left are ignored. In an agent's last outcome terminated or truncated is true.
        """

    def close(self) -> None:
        """Free the simulator."""


class OneAgent:
    """Adapter of an environment with one agent, its only lane, to the interface :class:`Lanes`."""

    agents: tuple[str, ...] = ("",)

    def __init__(self, env: Env) -> None:
        self._env = env

    def reset(
        self, *, seed: int | None = None
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
        """Start an episode; return a list with the observation, and info."""
        obs, info = self._env.reset(seed=seed)
        return [obs], info

    def step(self, actions: Array) -> list[Outcome | None]:
        """Apply one action (1, A); return a list with the outcome."""
        return [self._env.step(actions[0])]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def lanes_of(env: Any) -> Lanes:
    """Return the environment itself if it has several agents, otherwise :class:`OneAgent` around it."""
    return cast(Lanes, env) if has_team(env) else OneAgent(env)


def has_team(env: Any) -> bool:
    """Return True for an environment with several agents, which implements :class:`Lanes`."""
    return getattr(env, "agents", None) is not None


def num_agents(env: Any) -> int:
    """Return the number K of lanes of an environment."""
    return len(lanes_of(env).agents)


AnyEnv = TypeVar("AnyEnv", bound=Env)


def watched(make: Callable[[], AnyEnv], beat: Beat | None) -> AnyEnv:
    """Make an environment and report each of its calls to ``beat``, to detect hangs; without ``beat`` only make it.

    Args:
        make: function that makes the environment; its call is reported, too.
        beat: see :data:`imitate.system.processes.Beat`.
    """
    if beat is None:
        return make()
    beat(MAKE)
    try:
        return cast(AnyEnv, _Watched(make(), beat))
    finally:
        beat("")


class _Watched:
    """Wrapper of an environment that reports calls which simulate or render."""

    def __init__(self, env: Env, beat: Beat) -> None:
        self._watched, self._beat = env, beat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    def reset(self, **kwargs: Any) -> Any:
        return self._reported("reset()", self._watched.reset, **kwargs)

    def step(self, action: Any) -> Any:
        return self._reported("step()", self._watched.step, action)

    def reset_to(self, state: dict[str, Any]) -> Any:
        return self._reported("reset_to()", self._watched.reset_to, state)

    def render(self, **kwargs: Any) -> Any:
        return self._reported("render()", self._watched.render, **kwargs)

    def _reported(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._beat(name)
        try:
            return call(*args, **kwargs)
        finally:
            self._beat("")
