"""Expert of ALOHA's transfer of a cube: ``gym_aloha:gym_aloha/AlohaTransferCube-v0`` with ``obs_type`` "state".

The right arm grasps the cube from above, carries it to the middle and turns the gripper level. The left arm takes the
cube from the other side, with the fingers above and below; the right arm releases it and withdraws. The grippers move
in straight lines, and inverse kinematics give the angles. The next action depends on the observed poses and openings,
without timed waits, and on the remembered stage of the task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import Style
from imitate.errors import EnvError

_MEET_M = np.array([0.0, 0.5, 0.25])  # position at which the cube changes hands
_TIP_M = np.array([0.145, 0.0, 0.0])  # point between the fingertips, in the gripper's frame
_HOVER_M = 0.10  # height above the cube at which a gripper approaches
_READY_M = 0.12  # distance of the waiting gripper from the meeting point
_AWAY_M = 0.15  # distance to which a gripper withdraws from the meeting point
_NEAR_M = 0.012
_STEP_M = 0.012  # largest translation of a gripper per control step
_STEP_RAD = 0.06  # largest rotation of a joint per control step
_TURN_RAD = 0.04  # change of the right gripper's pitch per control step
_HELD = 0.65  # largest opening (1: open) of the right gripper while it holds the cube of 4 cm
_TAKEN = 0.8  # largest opening (1: open) of the left gripper while it holds the cube
_OPENED = 0.9
_DAMPING = 1e-4
_TURN_WEIGHT_M = 0.3  # weight of the angles: an error of 1 rad counts like this error in metres


class Arm:
    """Inverse kinematics of one of the two arms.

    Args:
        side: left or right.

    Attributes:
        command: (6,) commanded joint angles.
        tip: (3,) point between the fingertips at these angles, in m.
    """

    def __init__(self, side: str) -> None:
        import mujoco
        from gym_aloha.constants import START_ARM_POSE

        from imitate.envs.worlds.aloha import SCENE

        self._mujoco = mujoco
        self._model = mujoco.MjModel.from_xml_path(str(SCENE))
        self._data = mujoco.MjData(self._model)
        self._first = 0 if side == "left" else 8
        self._body = self._model.body(f"vx300s_{side}/gripper_link").id
        self.level = self.pose(np.zeros(6))[1]
        self.command = np.array(START_ARM_POSE[:6], dtype=np.float64)
        self.tip = self.pose(self.command)[0]

    def pose(self, angles: Array) -> tuple[Array, Array]:
        """Return the point between the fingertips (3,) and the gripper's axes (3, 3) at these angles (6,)."""
        self._data.qpos[:] = self._model.qpos0
        self._data.qpos[self._first : self._first + 6] = angles
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_comPos(self._model, self._data)
        axes = self._data.xmat[self._body].reshape(3, 3).copy()
        return self._data.xpos[self._body] + axes @ _TIP_M, axes

    def go(self, tip: Array, axes: Array) -> Array:
        """Return the command (6,), moved one step towards a pose."""
        way = tip - self.tip
        self.tip = self.tip + way * min(1.0, _STEP_M / max(float(np.linalg.norm(way)), 1e-9))
        turn = self._angles(self.tip, axes) - self.command
        self.command = self.command + np.clip(turn, -_STEP_RAD, _STEP_RAD)
        return self.command

    def _angles(self, tip: Array, axes: Array) -> Array:
        """Return the joint angles (6,) of a pose, by damped least squares from the commanded angles."""
        angles, columns = self.command.copy(), slice(self._first, self._first + 6)
        low, high = self._model.jnt_range[columns].T
        for _ in range(10):
            at, turned = self.pose(angles)
            quat, vector = np.empty(4), np.empty(3)
            self._mujoco.mju_mat2Quat(quat, (axes @ turned.T).ravel())
            self._mujoco.mju_quat2Vel(vector, quat, 1.0)
            error = np.concatenate([tip - at, _TURN_WEIGHT_M * vector])
            if np.abs(error).max() < 1e-4:
                break
            moved, rotated = np.zeros((2, 3, self._model.nv))
            self._mujoco.mj_jac(self._model, self._data, moved, rotated, at, self._body)
            jacobian = np.vstack([moved[:, columns], _TURN_WEIGHT_M * rotated[:, columns]])
            damped = jacobian @ jacobian.T + _DAMPING * np.eye(6)
            step = jacobian.T @ np.linalg.solve(damped, error)
            angles = np.clip(angles + np.clip(step, -0.2, 0.2), low, high)
        return angles


class TransferExpert:
    """Expert of the transfer for one episode."""

    def __init__(self) -> None:
        self._left, self._right = Arm("left"), Arm("right")
        self._part = self._above
        self._pitch = np.pi / 2  # pitch of the right gripper: it points down; 0 is level

    def act(self, obs: Obs) -> Array:
        """Return the commanded angles and openings, (14,)."""
        seen = obs["agent_pos"]
        cube = np.asarray(obs["object_pos"], dtype=np.float64)
        tips = self._left.pose(seen[:6])[0], self._right.pose(seen[7:13])[0]
        left, left_opens, right, right_opens = self._part(
            cube, *tips, float(seen[6]), float(seen[13])
        )
        sideways = self._left.level @ _about_x(np.pi / 2)
        down = self._right.level @ _about_y(self._pitch)
        return np.concatenate(
            [
                self._left.go(left, sideways),
                [left_opens],
                self._right.go(right, down),
                [right_opens],
            ]
        )

    # Each method returns target (3,) and opening of the left gripper, then of the right gripper.

    def _above(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        if float(np.linalg.norm((right - cube)[:2])) < _NEAR_M:
            self._part = self._down
        return _ready(), 1.0, cube + [0.0, 0.0, _HOVER_M], 1.0

    def _down(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        if float(np.linalg.norm(right - cube)) < _NEAR_M:
            self._part = self._grasp
        return _ready(), 1.0, cube - [0.0, 0.0, 0.005], 1.0

    def _grasp(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        if widths[1] < _HELD:
            self._part = self._carry
        return _ready(), 1.0, self._right.tip, 0.0

    def _carry(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        if float(np.linalg.norm(right - _MEET_M)) < _NEAR_M:
            self._part = self._turn
        return _ready(), 1.0, _MEET_M, 0.0

    def _turn(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        self._pitch = max(0.0, self._pitch - _TURN_RAD)
        if self._pitch == 0.0 and float(np.linalg.norm(left - _ready())) < 2 * _NEAR_M:
            self._part = self._take
        return _ready(), 1.0, _MEET_M, 0.0

    def _take(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        if float(np.linalg.norm(left - cube)) < _NEAR_M:
            self._part = self._hand_over
        return cube, 1.0, _MEET_M, 0.0

    def _hand_over(self, cube: Array, left: Array, right: Array, *widths: float) -> Any:
        held = widths[0] < _TAKEN
        away = _MEET_M + [_AWAY_M, 0.0, 0.0] if widths[1] > _OPENED else _MEET_M
        return self._left.tip, 0.0, away, 1.0 if held else 0.0


def _ready() -> Array:
    ready: Array = _MEET_M - np.array([_READY_M, 0.0, 0.0])
    return ready


def _about_x(angle: float) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])


def _about_y(angle: float) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]])


@dataclass(frozen=True)
class TransferTask:
    """Expert of the transfer of a cube; see :class:`imitate.envs.experts.expert.ExpertKind`."""

    env_name: str
    instruction: ClassVar[str] = "hand the cube from the right arm to the left one"
    horizon: ClassVar[int] = 300
    motion_axes: ClassVar[int] = 0  # actions are target angles, not motions
    env_kwargs: ClassVar[Mapping[str, Any]] = {"obs_type": "state"}
    dense_kwargs: ClassVar[Mapping[str, Any]] = {"reward_shaping": True}
    acts_as_person: ClassVar[bool] = False

    def __call__(self, style: Style) -> TransferExpert:
        """Return an expert for an episode; ``style`` is ignored."""
        return TransferExpert()


def expert_of(env_name: str) -> TransferTask:
    """Return the expert of the transfer.

    Raises:
        EnvError: ``env_name`` is another environment of gym-aloha.
    """
    if not env_name.endswith(":gym_aloha/AlohaTransferCube-v0"):
        raise EnvError(
            f"there is no scripted expert for '{env_name}'; there is one for "
            "gym_aloha:gym_aloha/AlohaTransferCube-v0"
        )
    return TransferTask(env_name)
