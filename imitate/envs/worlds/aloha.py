"""ALOHA's transfer of a cube (Zhao et al. 2023, arXiv:2304.13705), with low-dimensional observations, without images.

Importing this module gives ``gym_aloha:gym_aloha/AlohaTransferCube-v0`` the ``obs_type`` "state", which gym-aloha lists
but does not implement: the same scene and rules, simulated by mujoco alone, without rendering three images in each
step. With other values of ``obs_type`` gym-aloha's own environment is made.

* Observations: ``agent_pos`` (14,), six joint angles and the gripper's opening, 0 to 1, of the left arm, then of the
  right arm; ``object_pos`` (3,), ``object_quat`` (4,) of the cube; with ``camera_names`` also ``<camera>_image``.
* Actions (14,): target angles and openings, in the same order.
* Success: the left gripper touches the cube, and the table does not. An episode ends after 300 steps only.
* Rewards: 1 at success, or with ``reward_shaping`` the stage of the transfer, 0 to 4.
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
    import gym_aloha  # noqa: F401 - registers its environments
    from gym_aloha.constants import (
        ASSETS_DIR,
        DT,
        START_ARM_POSE,
        normalize_puppet_gripper_position,
        unnormalize_puppet_gripper_position,
    )
    from gym_aloha.utils import sample_box_pose
except ImportError as error:
    raise EnvError(f"gym_aloha: {missing('aloha', error)}") from error

TRANSFER = "gym_aloha/AlohaTransferCube-v0"
SCENE = ASSETS_DIR / "bimanual_viperx_transfer_cube.xml"
_TOUCHES = {
    "left": "vx300s_left/10_left_gripper_finger",
    "right": "vx300s_right/10_right_gripper_finger",
    "table": "table",
}
"""Geoms whose contact with the cube determines the stage, as in gym-aloha."""
_VIEW = "angle"
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class AlohaStateEnv(gymnasium.Env[Any, Array]):
    """The transfer of a cube between two arms, with low-dimensional observations.

    Args:
        render_mode: ``rgb_array`` if ``render`` will be called.
        reward_shaping: true to use the stage of the transfer as the reward.
        camera_names: cameras to observe: top, angle, front_close, left_pillar, right_pillar, ...
        camera_size: side of the observed images, in pixels.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - gymnasium's

    def __init__(
        self,
        render_mode: str | None = None,
        reward_shaping: bool = False,
        camera_names: Sequence[str] = (),
        camera_size: int = 84,
    ) -> None:
        self.render_mode, self._shaped = render_mode, reward_shaping
        self.model = mujoco.MjModel.from_xml_path(str(SCENE))
        self.data = mujoco.MjData(self.model)
        self._substeps = round(DT / self.model.opt.timestep)
        self._cameras = ModelCameras(self.model, self.data, camera_names, camera_size)
        boxes = {
            key: spaces.Box(-np.inf, np.inf, (size,), np.float64)
            for key, size in (("agent_pos", 14), ("object_pos", 3), ("object_quat", 4))
        }
        self.observation_space = spaces.Dict({**boxes, **self._cameras.spaces()})
        # gym-aloha limits angles to 1 rad, but its demonstrations exceed that.
        self.action_space = spaces.Box(-np.pi, np.pi, (14,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start an episode with the cube at gym-aloha's position for this seed."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:16] = self.data.ctrl[:] = START_ARM_POSE
        self.data.qpos[16:] = sample_box_pose(drawn)
        mujoco.mj_forward(self.model, self.data)
        return self._observe(), {"success": False}

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action (14,) for 20 ms."""
        for arm, fingers in ((0, 6), (7, 14)):
            width = unnormalize_puppet_gripper_position(action[arm + 6])
            self.data.ctrl[fingers - 6 : fingers] = action[arm : arm + 6]
            self.data.ctrl[fingers : fingers + 2] = width, -width
        mujoco.mj_step(self.model, self.data, self._substeps)
        mujoco.mj_forward(self.model, self.data)  # compute the contacts of the new state
        stage = self.stage()
        reward = float(stage) if self._shaped else float(stage == 4)
        return self._observe(), reward, False, False, {"success": stage == 4, "stage": stage}

    def stage(self) -> int:
        """Return the stage of the transfer.

        0: no gripper touches the cube; 1: the right gripper touches it; 2: the right gripper lifts it; 3: the left
        gripper touches it; 4: the left gripper touches it and the table does not.
        """
        touched = set()
        for contact in self.data.contact:
            pair = [self.model.geom(number).name for number in contact.geom]
            if pair[0] == "red_box":
                touched.add(pair[1])
        free = _TOUCHES["table"] not in touched
        if _TOUCHES["left"] in touched:
            return 4 if free else 3
        if _TOUCHES["right"] in touched:
            return 2 if free else 1
        return 0

    def get_sim_state(self) -> Array:
        """Return MuJoCo's state, (S,)."""
        state = np.empty(mujoco.mj_stateSize(self.model, _STATE))
        mujoco.mj_getState(self.model, self.data, state, _STATE)
        return state

    def set_sim_state(self, state: Array) -> Obs:
        """Restore a state of :meth:`get_sim_state`."""
        mujoco.mj_setState(self.model, self.data, state, _STATE)
        mujoco.mj_forward(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, state, _STATE)  # includes the solver's warm start
        return self._observe()

    def render(self) -> Array:
        """Draw one frame, (480, 640, 3) uint8."""
        return self.draw(_VIEW, 480, 640)

    def draw(self, camera_name: str | None, height: int, width: int) -> Array:
        """Draw one frame of a camera, (height, width, 3) uint8."""
        return self._cameras.draw(camera_name or _VIEW, height, width)

    def close(self) -> None:
        """Free the simulator."""
        self._cameras.close()

    def _observe(self) -> Obs:
        qpos = self.data.qpos.copy()
        arms = [
            [*qpos[first : first + 6], normalize_puppet_gripper_position(qpos[first + 6])]
            for first in (0, 8)
        ]
        obs = {
            "agent_pos": np.concatenate(arms),
            "object_pos": qpos[16:19],
            "object_quat": qpos[19:23],
        }
        return obs | self._cameras.observe()


def make_transfer(obs_type: str = "pixels", task: str = "transfer_cube", **kwargs: Any) -> Any:
    """Make the environment of this module for ``obs_type`` "state", otherwise gym-aloha's."""
    if obs_type == "state":
        return AlohaStateEnv(**kwargs)
    from gym_aloha.env import AlohaEnv

    return AlohaEnv(task, obs_type=obs_type, **kwargs)


gymnasium.registry[TRANSFER].entry_point = make_transfer
