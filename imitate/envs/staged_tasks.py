"""A task with a curriculum, as a gymnasium environment: name it as ``imitate.envs.staged_tasks:Ledge-v0``.

As gymnasium requires of a module in front of a name, importing this one registers it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

WIDTH = 8


class Ledge(gymnasium.Env[Any, Any]):
    """A walk of ``length`` steps along a ledge; the one reward, 1, is at its end.

    At each position one of four choices, always the same one, moves forward; the others fall off, which ends the
    episode. An observation is the position, one-hot. Random choices arrive with probability 1 / 4^length, so a long
    ledge gives no learning signal; a policy that has learned its last part needs to find only the rest.

    Args:
        length: steps from the start to the end, at most 8; a shorter walk begins nearer to the end.
    """

    def __init__(self, length: int = WIDTH) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (WIDTH,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(4)
        self._start = WIDTH - length
        self._place = self._start
        self._path = np.random.default_rng(7).integers(4, size=WIDTH)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Step onto the ledge."""
        super().reset(seed=seed)
        self._place = self._start
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Go on, or fall."""
        stays = int(action) == self._path[self._place]
        self._place += int(stays)
        solved = self._place == WIDTH
        return self._observe(), float(solved), solved or not stays, False, {"success": solved}

    def _observe(self) -> NDArray[np.float32]:
        place = np.zeros(WIDTH, dtype=np.float32)
        place[min(self._place, WIDTH - 1)] = float(self._place < WIDTH)
        return place


gymnasium.register("Ledge-v0", f"{__name__}:Ledge")
