"""Experts of gymnasium-robotics' tasks ``FetchReach``, ``FetchPush`` and ``FetchPickAndPlace``.

Their actions depend on the current observation alone. Actions (4,) in [-1, 1] are the motion of the gripper (1 is about
3 cm) and of its fingers (1 opens, -1 closes). ``FetchSlide`` has no expert: its puck must be hit at the right speed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import Style
from imitate.errors import EnvError, nearest

_GAIN = 12.0  # command per metre of distance
_OPEN, _CLOSE = 1.0, -1.0
_HELD_M = 0.052  # finger distance at which the fingers hold the block of 5 cm
_TRAVEL_M = 0.08  # height above the block at which the gripper crosses it
_PUSH_FROM_M = 0.075  # distance of the gripper behind the block's centre


def reach(obs: Obs) -> Array:
    """Move straight to the goal; return the action (4,)."""
    return _towards(obs["desired_goal"] - obs["observation"][:3], 0.0)


def pick_and_place(obs: Obs) -> Array:
    """Descend over the block, close, carry it to the goal; return the action (4,)."""
    seen = obs["observation"]
    to_block, width = seen[6:9], float(seen[9] + seen[10])
    sideways, vertical = float(np.linalg.norm(to_block[:2])), abs(float(to_block[2]))
    if sideways < 0.02 and vertical < 0.02:
        held = width < _HELD_M
        to_goal = obs["desired_goal"] - obs["achieved_goal"]
        return _towards(to_goal if held else to_block, _CLOSE)
    height = float(np.clip(4.0 * (sideways - 0.008), 0.0, _TRAVEL_M))
    return _towards(to_block + np.array([0.0, 0.0, height]), _OPEN)


def push(obs: Obs) -> Array:
    """Move behind the block, seen from the goal, and push it there; return the action (4,)."""
    to_block = obs["observation"][6:9]
    way = (obs["desired_goal"] - obs["achieved_goal"])[:2]
    far = float(np.linalg.norm(way))
    if far < 0.01:
        return _towards(np.zeros(3), _CLOSE)
    ahead = way / far
    along = float(to_block[:2] @ ahead)
    beside = to_block[:2] - along * ahead
    if along > 0.02 and float(np.linalg.norm(beside)) < 0.015 and abs(to_block[2]) < 0.025:
        step = ahead * min(0.08, 0.5 * far + 0.02) + 2.0 * beside
        return _towards(np.array([*step, to_block[2]]), _CLOSE)
    behind = to_block[:2] - ahead * _PUSH_FROM_M
    near = float(np.linalg.norm(behind)) < 0.015
    return _towards(np.array([*behind, to_block[2] + (0.0 if near else _TRAVEL_M)]), _CLOSE)


def _towards(displacement: Array, fingers: float) -> Array:
    return np.clip(np.array([*(_GAIN * displacement), fingers]), -1.0, 1.0)


@dataclass(frozen=True)
class FetchExpert:
    """Expert for one episode."""

    rule: Callable[[Obs], Array]

    def act(self, obs: Obs) -> Array:
        """Return the action (4,)."""
        return self.rule(obs)


@dataclass(frozen=True)
class FetchTask:
    """Expert of a Fetch task; see :class:`imitate.envs.experts.expert.ExpertKind`."""

    env_name: str
    instruction: str
    rule: Callable[[Obs], Array]
    horizon: ClassVar[int] = 50
    motion_axes: ClassVar[int] = 3
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    dense_kwargs: ClassVar[Mapping[str, Any]] = {"reward_type": "dense"}
    acts_as_person: ClassVar[bool] = False

    def __call__(self, style: Style) -> FetchExpert:
        """Return an expert for an episode; ``style`` is ignored."""
        return FetchExpert(self.rule)


_TASKS = {
    "FetchReach": ("reach the goal", reach),
    "FetchPush": ("push the block to the goal", push),
    "FetchPickAndPlace": ("bring the block to the goal", pick_and_place),
}


def expert_of(env_name: str) -> FetchTask:
    """Return the expert of an environment such as ``gymnasium_robotics:FetchReach-v4``, for any version.

    Raises:
        EnvError: the environment has no expert.
    """
    task = re.sub(r"(Dense)?-v\d+$", "", env_name.rpartition(":")[2])
    if task not in _TASKS:
        raise EnvError(f"there is no scripted expert for '{env_name}'; {nearest(task, _TASKS)}")
    return FetchTask(env_name, *_TASKS[task])
