"""Tasks that need a memory, as gymnasium environments: name them as ``imitate.envs.memory_tasks:Recall-v0``.

| name | what is hidden |
|---|---|
| ``Recall-v0`` | the first observation says which of two choices will be right in the last step |
| ``RecallContinuous-v0`` | the same; the answer is a number, by its sign |
| ``CartPoleNoVelocity-v1`` | of CartPole-v1 both velocities |
| ``PendulumNoVelocity-v1`` | of Pendulum-v1 the angular velocity |

A policy without a memory is right in half of the episodes of the first two. As gymnasium requires of a module
in front of a name, importing this one registers them.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Recall(gymnasium.Env[Observation, Any]):
    """A cue, a delay, a question.

    An observation is (cue, question): the cue, -1 or 1, is shown only in the first step and is 0 later; the question is
    1 in the last step, and 0 before. Only the last action counts: its reward is 1 if it matches the cue, else -1; a
    continuous action in [-1, 1] is multiplied by the cue. ``info["success"]`` is true if it had the right sign.

    Args:
        continuous: true if actions are numbers instead of 0 for -1 and 1 for 1.
        delay: steps between the first and the last.
    """

    def __init__(self, continuous: bool = False, delay: int = 6) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: spaces.Space[Any] = (
            spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)
        )
        self.delay = delay
        self._cue, self._step = 1.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Sample a cue."""
        super().reset(seed=seed)
        self._cue, self._step = float(self.np_random.choice([-1.0, 1.0])), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Wait, or answer."""
        over = self._step > self.delay
        self._step += 1
        discrete = isinstance(self.action_space, spaces.Discrete)
        answer = 2.0 * float(action) - 1.0 if discrete else float(np.clip(action[0], -1.0, 1.0))
        reward = self._cue * answer if over else 0.0
        return self._observe(), reward, over, False, {"success": over and reward > 0}

    def _observe(self) -> Observation:
        cue = self._cue if self._step == 0 else 0.0
        return np.array([cue, float(self._step == self.delay + 1)], dtype=np.float32)


def only(env_id: str, seen: tuple[int, ...], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return an environment with only these indices of its observation."""
    env = gymnasium.make(env_id, **kwargs)
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    kept = list(seen)
    part = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[kept], part)


gymnasium.register("Recall-v0", f"{__name__}:Recall")
gymnasium.register("RecallContinuous-v0", f"{__name__}:Recall", kwargs={"continuous": True})
gymnasium.register(
    "CartPoleNoVelocity-v1",
    f"{__name__}:only",
    kwargs={"env_id": "CartPole-v1", "seen": (0, 2)},
)
gymnasium.register(
    "PendulumNoVelocity-v1",
    f"{__name__}:only",
    kwargs={"env_id": "Pendulum-v1", "seen": (0, 1)},
)
