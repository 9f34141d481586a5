"""A task with a mask of actions, as a gymnasium environment: name it as ``imitate.envs.masked_tasks:Doors-v0``.

As gymnasium requires of a module in front of a name, importing this one registers it.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ROOMS, DOORS, OPEN = 8, 6, 2


class Doors(gymnasium.Env[Any, Any]):
    """Eight rooms in a row, each with six doors, of which two are open: a closed one ends the episode, as a terminal.

    Door k gives the reward k / 5, so the best policy takes the higher open one. Only the mask shows which doors are
    open; an observation is the room, one-hot. ``info["success"]`` is true beyond the last room.

    Args:
        mask: position of the mask: in the observations (then a dict), in ``info``, or nowhere.
    """

    def __init__(self, mask: Literal["observation", "info", "none"] = "info") -> None:
        self._mask: Literal["observation", "info", "none"] = mask
        room = spaces.Box(0.0, 1.0, (ROOMS,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(DOORS)
        self.observation_space: spaces.Space[Any] = room
        if mask == "observation":
            self.observation_space = spaces.Dict(
                {"observation": room, "action_mask": spaces.MultiBinary(DOORS)}
            )
        self._room = 0
        self._open = np.zeros(DOORS, dtype=np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Enter the first room."""
        super().reset(seed=seed)
        self._enter(0)
        return self._observe(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go through a door."""
        through = bool(self._open[action])
        if through:
            self._enter(self._room + 1)
        solved = self._room == ROOMS
        reward = float(action) / (DOORS - 1) if through else 0.0
        info = {"success": solved, **self._info()}
        return self._observe(), reward, solved or not through, False, info

    def _enter(self, room: int) -> None:
        self._room = room
        self._open[:] = 0
        self._open[self.np_random.choice(DOORS, OPEN, replace=False)] = 1

    def _observe(self) -> Any:
        room: NDArray[np.float32] = np.zeros(ROOMS, dtype=np.float32)
        if self._room < ROOMS:
            room[self._room] = 1.0
        if self._mask != "observation":
            return room
        return {"observation": room, "action_mask": self._open.copy()}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._open.copy()} if self._mask == "info" else {}


gymnasium.register("Doors-v0", f"{__name__}:Doors")
