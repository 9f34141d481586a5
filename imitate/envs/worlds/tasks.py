"""Small test tasks as gymnasium environments, with names such as ``imitate.envs.worlds.tasks:Recall-v0``.

Each task needs a certain ability of the learner:

* ``Doors-v0``: an action mask, because some choices are not allowed.
* ``Ledge-v0``: a curriculum; its difficulty can be set.
* ``SpeedLimit-v0``: a bound on a cost.
* ``Recall-v0``: a memory; the first observation shows which of two choices will be right in the last step.
* ``RecallContinuous-v0``: a memory, as in ``Recall-v0``; the action is a number whose sign counts.
* ``CartPoleNoVelocity-v1``: a memory; both velocities of CartPole-v1 are hidden.
* ``PendulumNoVelocity-v1``: a memory; the angular velocity of Pendulum-v1 is hidden.

A policy without a memory is right in half of the episodes of ``Recall-v0``. Importing this module registers the
environments with gymnasium.
"""

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

ROOMS, DOORS, OPEN = 8, 6, 2


class Doors(gymnasium.Env[Any, Any]):
    """Eight rooms in a row, each with six doors, of which two are open; choosing a closed door ends the episode.

    Door k gives the reward k / 5, so the best policy chooses the higher open one. Only the mask shows which doors are
    open; an observation is the room, one-hot. ``info["success"]`` is true after the last room.

    Args:
        mask: where the mask is: in the observations (then a dict), in ``info``, or nowhere.
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


Observation = NDArray[np.float32]


class Recall(gymnasium.Env[Observation, Any]):
    """Memory task: a cue is shown, and after a delay the policy must answer with it.

    An observation is (cue, question): the cue, -1 or 1, is shown only in the first step and is 0 later; the question is
    1 in the last step, and 0 before. Only the last action counts: its reward is 1 if it matches the cue, else -1; a
    continuous action in [-1, 1] is multiplied by the cue. ``info["success"]`` is true if the sign was right.

    Args:
        continuous: true if actions are numbers; false if they are the choices 0 (for -1) and 1 (for 1).
        delay: number of steps between the cue and the question.
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
        """Wait for the question, or answer it."""
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
    """Return an environment whose observation has only the numbers at the indices ``seen``."""
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


WIDTH = 8


class Ledge(gymnasium.Env[Any, Any]):
    """A walk of ``length`` steps along a ledge; the only reward, 1, is at its end.

    At each position one of four choices, always the same one, moves forward; the others fall off, which ends the
    episode. An observation is the position, one-hot. Random choices reach the end with probability 1 / 4^length, so a
    long ledge gives no learning signal; a policy that has learned the last part of the ledge needs to find only the
    rest.

    Args:
        length: steps from the start to the end, at most 8; a shorter walk begins nearer to the end.
    """

    def __init__(self, length: int = WIDTH) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (WIDTH,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(4)
        self._start = self._place = WIDTH - length
        self._path = np.random.default_rng(7).integers(4, size=WIDTH)

    def set_stage(self, kwargs: Mapping[str, Any]) -> None:
        """Set the length for the next episodes, as the argument of the constructor does."""
        self._start = WIDTH - int(kwargs.get("length", WIDTH))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Step onto the ledge."""
        super().reset(seed=seed)
        self._place = self._start
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move forward, or fall."""
        stays = int(action) == self._path[self._place]
        self._place += int(stays)
        solved = self._place == WIDTH
        return self._observe(), float(solved), solved or not stays, False, {"success": solved}

    def _observe(self) -> NDArray[np.float32]:
        place = np.zeros(WIDTH, dtype=np.float32)
        place[min(self._place, WIDTH - 1)] = float(self._place < WIDTH)
        return place


gymnasium.register("Ledge-v0", f"{__name__}:Ledge")


class SpeedLimit(gymnasium.Env[Any, Any]):
    """Task with a cost: the action is a speed in [-1, 1], the reward is the speed, and ``info["cost"]`` its square.

    If the mean cost may be at most 0.25, the best constant speed is 0.5. The observation is noise.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1, 1, 1).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; the observation is a random number."""
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move at a speed (1,): it is the reward, and its square the cost."""
        speed = float(np.clip(action[0], -1.0, 1.0))
        return self._observe(), speed, False, False, {"cost": speed * speed}


gymnasium.register("SpeedLimit-v0", f"{__name__}:SpeedLimit", max_episode_steps=50)
