"""Meta-World's 50 tasks of a Sawyer arm (McLean et al. 2025, arXiv:2505.11289): ``metaworld:push-v3``.

Importing this module registers them with gymnasium under Meta-World's own names.

* Observations, with the same keys for all tasks: ``hand_pos`` (3,) in m, ``gripper`` (1,) its opening, 0 to 1,
  ``object_pos`` (3,), ``object_quat`` (4,), ``object2_pos`` and ``object2_quat`` (0 in tasks with one object), ``goal``
  (3,). Meta-World's vector of 39 numbers contains these values and those of the previous step; here
  ``train.frame_stack`` can add previous steps. With ``camera_names`` also ``<camera>_image`` (size, size, 3).
* Actions (4,) in [-1, 1]: motion of the hand (1 is 1 cm), and the force that closes (1) or opens (-1) the fingers.
* Starts and goals are drawn with the seed of ``reset`` from the task's whole range, not from a list of 50.
* Success: ``info["success"]`` of the step. An episode of 500 steps succeeds if any of its steps does, as Meta-World and
  ``imitate eval`` define it. Success does not end the episode.
* Rewards: 1 in steps in which the task is solved, otherwise 0; with ``reward_shaping`` Meta-World's rewards, 0 to 10.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from imitate.envs.env import Array, Obs
from imitate.envs.worlds.drawing import ModelCameras
from imitate.errors import EnvError
from imitate.system.extras import missing

try:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
except ImportError as error:
    raise EnvError(f"metaworld: {missing('metaworld', error)}") from error

HORIZON = 500
PARTS = {
    "hand_pos": slice(0, 3),
    "gripper": slice(3, 4),
    "object_pos": slice(4, 7),
    "object_quat": slice(7, 11),
    "object2_pos": slice(11, 14),
    "object2_quat": slice(14, 18),
    "goal": slice(36, 39),
}
"""Slices of the observations in Meta-World's vector (39,)."""
_VIEW = "corner2"
_STATE = (
    mujoco.mjtState.mjSTATE_FULLPHYSICS
    | mujoco.mjtState.mjSTATE_MOCAP_POS
    | mujoco.mjtState.mjSTATE_MOCAP_QUAT
    | mujoco.mjtState.mjSTATE_WARMSTART
)


class MetaWorldEnv(gymnasium.Env[Any, Array]):
    """A task of Meta-World whose goal is observed.

    Args:
        task: Meta-World's name of the task.
        render_mode: ``rgb_array`` if ``render`` will be called.
        reward_shaping: true to use Meta-World's rewards.
        camera_names: cameras to observe: corner, corner2, corner3, corner4, topview, behindGripper, gripperPOV.
        camera_size: side of the observed images, in pixels.
        shadows: true to draw shadows; without them an image takes a quarter of the time on a CPU.

    Attributes:
        inner: Meta-World's environment.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012 - gymnasium's

    def __init__(
        self,
        task: str,
        render_mode: str | None = None,
        reward_shaping: bool = False,
        camera_names: Sequence[str] = (),
        camera_size: int = 84,
        shadows: bool = True,
    ) -> None:
        self.render_mode = render_mode
        self._shaped = reward_shaping
        inner: Any = ALL_V3_ENVIRONMENTS[task]()
        # The same as Meta-World's set_task, but with a start drawn from the seed instead of a pickled start.
        inner._set_task_called = True
        inner._freeze_rand_vec, inner.seeded_rand_vec = False, True
        inner._partially_observable = False
        vars(inner).pop("sawyer_observation_space", None)  # the cached space is for a hidden goal
        self.inner: Any = inner
        self._cameras = ModelCameras(inner.model, inner.data, camera_names, camera_size, shadows)
        self.action_space = inner.action_space
        low, high = inner.sawyer_observation_space.low, inner.sawyer_observation_space.high
        boxes: dict[str, Any] = {
            key: spaces.Box(low[part], high[part], dtype=np.float64) for key, part in PARTS.items()
        }
        self.observation_space = spaces.Dict({**boxes, **self._cameras.spaces()})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start an episode with start and goal drawn from the seed."""
        super().reset(seed=seed)
        if seed is not None:
            self.inner.seed(seed)
        self.inner._freeze_rand_vec = False
        vector, _ = self.inner.reset()
        return self._observe(vector), {"success": False}

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action (4,); return observation, reward, terminated (always false), truncated and info."""
        vector, shaped, _, truncated, info = self.inner.step(np.clip(action, -1.0, 1.0))
        success = bool(info["success"])
        reward = float(shaped) if self._shaped else float(success)
        return self._observe(vector), reward, False, bool(truncated), {**info, "success": success}

    def get_sim_state(self) -> Array:
        """Return the random vector of start and goal, and MuJoCo's state, (S,)."""
        model, data = self.inner.model, self.inner.data
        state = np.empty(mujoco.mj_stateSize(model, _STATE))
        mujoco.mj_getState(model, data, state, _STATE)
        return np.concatenate([self.inner._last_rand_vec, state])

    def set_sim_state(self, state: Array) -> Obs:
        """Restore a state of :meth:`get_sim_state`; the episode then begins anew with its full length."""
        inner = self.inner
        place = len(inner._last_rand_vec)
        inner._freeze_rand_vec, inner._last_rand_vec = True, state[:place].copy()
        inner.reset()  # this moves the task's fixtures, which are part of the model
        mujoco.mj_setState(inner.model, inner.data, state[place:], _STATE)
        mujoco.mj_forward(inner.model, inner.data)
        mujoco.mj_setState(
            inner.model, inner.data, state[place:], _STATE
        )  # includes the solver's warm start
        for site in inner._target_site_config:
            inner._set_pos_site(*site)
        return self._observe(inner._get_obs())

    def render(self) -> Array:
        """Draw one frame, (480, 480, 3) uint8."""
        return self.draw(_VIEW, 480, 480)

    def draw(self, camera_name: str | None, height: int, width: int) -> Array:
        """Draw one frame of a camera, (height, width, 3) uint8."""
        return self._cameras.draw(camera_name or _VIEW, height, width)

    def close(self) -> None:
        """Free the simulator."""
        self._cameras.close()
        self.inner.close()

    def _observe(self, vector: Array) -> Obs:
        obs = {key: vector[part].copy() for key, part in PARTS.items()}
        return obs | self._cameras.observe()


for _task in ALL_V3_ENVIRONMENTS:
    gymnasium.register(
        id=_task,
        entry_point=f"{__name__}:MetaWorldEnv",
        kwargs={"task": _task},
        max_episode_steps=HORIZON,
        disable_env_checker=True,  # imitate check-env makes this check instead
    )
