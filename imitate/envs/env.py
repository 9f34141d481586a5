"""Protocol of every environment: gymnasium's step and reset, and the states that demonstrations need."""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import numpy.typing as npt

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
        """Start an episode. The same seed gives the same initial state, whatever happened before."""

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action (action_dim,): observation, reward, terminated, truncated, info.

        ``info["success"]`` is true if the task is solved in the new state.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the simulator's state: ``states`` (S,) and, if any, ``model`` (XML) and ``ep_meta`` (JSON)."""

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Put the simulator into a state from ``get_state`` or from a demonstration file."""

    def is_success(self) -> dict[str, bool]:
        """Return ``{"task": solved}``, with sub-tasks if the environment has them."""

    def render(
        self, *, height: int = 256, width: int = 256, camera_name: str | None = None
    ) -> Array:
        """Draw one frame, (height, width, 3) uint8."""

    def serialize(self) -> dict[str, Any]:
        """Return the ``env_args`` with which ``make_env`` makes this environment again."""

    def close(self) -> None:
        """Free the simulator."""


def first_observation(env: Env) -> Obs:
    """Return an observation from which to read keys and shapes; a robot (with ``observe()``) does not move.

    If there are several agents, it is the first agent's.
    """
    look = getattr(env, "observe", None)
    if look is not None:
        return cast(Obs, look())
    obs: Any = env.reset(seed=0)[0]
    return cast(Obs, obs if getattr(env, "agents", None) is None else obs[0])
