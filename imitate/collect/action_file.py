"""Meaning of the actions in a demonstration file, and the poses of the grippers that a conversion of actions needs.

The meaning is the number of arms, whether commands are relative or absolute, their units and their frame. It follows
from the controllers in the description of a robosuite 1.5 environment. Poses come from the recorded observations, or
from the recorded states in a simulator.
"""

from __future__ import annotations

import copy
import importlib
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from imitate.collect.recorded import scene_of
from imitate.data import DatasetFile
from imitate.data.file.action_scale import refuse_rescaled
from imitate.envs import make_env
from imitate.envs.migration import ARM_TYPES, COMMAND, ROBOSUITE, version_note
from imitate.envs.robosuite_env import RobosuiteEnv, import_robosuite
from imitate.errors import DatasetError
from imitate.functional.rotations import CommandRange, HandPoses, quaternion_to_matrix

PoseKeys = tuple[str, str]
"""Observation keys of a gripper's position and of its orientation, a quaternion (x, y, z, w)."""


class PoseSource(Protocol):
    """Context manager that returns the gripper poses of demos."""

    name: str

    def of(self, demo: str) -> tuple[HandPoses, Tensor]:
        """Return a demo's gripper poses (T, arms, ...) and positions of the robots' bases (T, arms, 3) in metres."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ObservedPoses:
    """Gripper poses from the file's observations; actions are assumed to be along the world's axes."""

    name = "poses"

    def __init__(self, file: DatasetFile, keys: Sequence[PoseKeys]) -> None:
        self._file, self._keys = file, keys

    def of(self, demo: str) -> tuple[HandPoses, Tensor]:
        """Return the observed poses of a demo; the robots' bases are unknown and assumed to be at the origin."""
        position, quaternion = (
            torch.from_numpy(
                np.stack([self._read(demo, keys[index]) for keys in self._keys], axis=1)
            ).double()
            for index in range(2)
        )
        if position.shape[-1] != 3 or quaternion.shape[-1] != 4:
            raise DatasetError(
                f"{self._file.path}: {demo}: position and quaternion have the shapes {tuple(position.shape)} and "
                f"{tuple(quaternion.shape)}, but need 3 and 4 numbers per arm and step: name other keys with "
                "--pose-keys"
            )
        rotation = quaternion_to_matrix(quaternion)
        return HandPoses(position, rotation, torch.eye(3).double()), torch.zeros_like(position)

    def _read(self, demo: str, key: str) -> Any:
        return self._file.read(demo, f"obs/{key}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing, since no resource is open."""


class SimulatedPoses:
    """Gripper poses from robosuite's controllers, after setting the recorded states.

    Args:
        file: open demonstration file.
        env_args: env_args of the file's environment.
        base_frame: true if commands are given along the axes of the robots' bases.
    """

    name = "simulator"

    def __init__(self, file: DatasetFile, env_args: dict[str, Any], *, base_frame: bool) -> None:
        env = make_env(env_args, obs_keys=[])
        if not isinstance(env, RobosuiteEnv):
            env.close()
            raise DatasetError(
                f"{file.path}: --source simulator works only for files of robosuite: choose --source "
                "poses"
            )
        self._file, self._env, self._base_frame = file, env, base_frame

    def of(self, demo: str) -> tuple[HandPoses, Tensor]:
        """Return the gripper poses of a demo, as the controllers measure them in the recorded states."""
        steps = []
        for number, state in enumerate(self._file.read(demo, "states")):
            scene = scene_of(self._file, demo) if number == 0 else {}
            self._env.reset_to({"states": state, **scene})
            steps.append(self._env.arm_poses())
        position, rotation, base_position, base_rotation = (
            torch.from_numpy(np.array([[arm[field] for arm in step] for step in steps]))
            for field in range(4)
        )
        frame = base_rotation if self._base_frame else torch.eye(3).double()
        return HandPoses(position, rotation, frame), base_position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the simulator."""
        self._env.close()


DEFAULT_ROBOT = "Panda"


def robot_names(env_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of the robots, in the order of their actions.

    Raises:
        DatasetError: ``robots`` is neither a name nor a list of names.
    """
    robots = env_kwargs.get("robots", DEFAULT_ROBOT)
    names = [robots] if isinstance(robots, str) else robots
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DatasetError(
            f"env_args: robots is {reprlib.repr(robots)}; expected the name of a robot or a list of names"
        )
    return names


def with_explicit_controllers(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return env_args with robosuite's default controllers written out if none are given.

    Raises:
        EnvError: robosuite is not installed.
        DatasetError: robosuite has no such robot.
    """
    new: dict[str, Any] = copy.deepcopy(dict(env_args))
    kwargs = new.setdefault("env_kwargs", {})
    robots = robot_names(kwargs)
    configs = kwargs.get("controller_configs")
    if configs is None:
        import_robosuite()
        load = importlib.import_module("robosuite.controllers").load_composite_controller_config
        known = importlib.import_module("robosuite.robots").ROBOT_CLASS_MAPPING
        unknown = [robot for robot in robots if robot not in known]
        if unknown:
            raise DatasetError(
                f"env_args: robosuite has no robot {reprlib.repr(unknown[0])}: correct 'robots' in "
                "env_kwargs"
            )
        configs = [load(robot=robot) for robot in robots]
        kwargs["controller_configs"] = configs if len(robots) > 1 else configs[0]
    return new


def arm_controllers(env_kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of the arms' controllers, robot by robot; changing them changes ``env_kwargs``."""
    configs = env_kwargs.get("controller_configs")
    return [
        part
        for config in (configs if isinstance(configs, list) else [configs])
        if isinstance(config, dict)
        if isinstance(parts := config.get("body_parts"), dict)
        for part in parts.values()
        if isinstance(part, dict) and part.get("type") in ARM_TYPES and "gripper" in part
    ]


_MOTION = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5)
"""robosuite's default for controllers without limits: metres and radians by which an action of 1 moves the gripper."""


@dataclass(frozen=True)
class ActionFile:
    """An open demonstration file and the meaning of its actions.

    Attributes:
        file: open demonstration file.
        env_args: the file's env_args, with robosuite's default controllers written out.
        mode: 'absolute' if the array 'actions' contains target poses, 'delta' if it contains changes of the pose.
        arms: number of arms, whose actions are concatenated.
        limits: range of relative actions, and the motions in metres and radians that its ends command.
        base_frame: true if actions are along the axes of the robots' bases, false if they are along the world's axes.
        playable: true if robosuite can execute the actions.
    """

    file: DatasetFile
    env_args: dict[str, Any]
    mode: Literal["delta", "absolute"]
    arms: int
    limits: CommandRange
    base_frame: bool
    playable: bool

    @classmethod
    def of(
        cls, file: DatasetFile, *, to: str | None, scale: tuple[float, float] | None
    ) -> ActionFile:
        """Read the meaning of the actions.

        Args:
            file: open demonstration file.
            to: 'absolute' or 'delta', the mode to convert to; if the file names no robosuite environment, its actions
                are assumed to have the other mode.
            scale: metres and radians by which an action of 1 moves the gripper, if env_args describe no controller.

        Raises:
            DatasetError: the controller or robosuite's version is not supported, or the actions are rescaled.
        """
        refuse_rescaled(file)
        if file.env_meta.get("type") != ROBOSUITE:
            metres, radians = scale or (1.0, 1.0)
            limits = _limits({"output_max": [metres] * 3 + [radians] * 3})
            mode: Literal["delta", "absolute"] = "absolute" if to == "delta" else "delta"
            return cls(file, file.env_meta, mode, 1, limits, base_frame=False, playable=False)
        if version_note(file.env_meta) is not None:
            raise DatasetError(
                f"{file.path}: the file was recorded with another version of robosuite: first run "
                f"{COMMAND.replace('FILE', str(file.path))}"
            )
        env_args = with_explicit_controllers(file.env_meta)
        kwargs = env_args["env_kwargs"]
        robots, arms = robot_names(kwargs), arm_controllers(kwargs)
        first = arms[0] if arms else {}
        kind = f"{first.get('type')}, impedance_mode {first.get('impedance_mode', 'fixed')}"
        if len(arms) not in (1, len(robots)) or kind != "OSC_POSE, impedance_mode fixed":
            raise DatasetError(
                f"{file.path}: {len(robots)} robot(s) with {len(arms)} arm controller(s), {kind}: actions can be "
                "converted only for robots with one arm each and the controller OSC_POSE with fixed impedance"
            )
        return cls(
            file,
            env_args,
            "absolute" if first.get("input_type") == "absolute" else "delta",
            len(robots),
            _limits(first),
            base_frame=first.get("input_ref_frame", "base") == "base",
            playable=True,
        )

    def env_args_for(self, mode: str) -> dict[str, Any]:
        """Return env_args of an environment that takes actions of ``mode``; absolute ones are in the world's frame."""
        new = with_explicit_controllers(self.env_args)
        for arm in arm_controllers(new["env_kwargs"]):
            arm["input_type"] = mode
            if mode == "absolute":
                arm["input_ref_frame"] = "world"
        return new


def open_poses(
    about: ActionFile, source: str, keys: tuple[PoseKeys, ...] | None = None
) -> PoseSource:
    """Choose the source of the gripper poses.

    Args:
        about: open demonstration file and the meaning of its actions.
        source: 'poses', 'simulator', or 'auto' for poses if the file has them.
        keys: observation keys of each gripper's pose, or None for robosuite's keys.

    Raises:
        DatasetError: the file does not contain what ``source`` needs.
    """
    file = about.file
    keys = keys or tuple(
        (f"robot{number}_eef_pos", f"robot{number}_eef_quat_site") for number in range(about.arms)
    )
    missing = [key for pair in keys for key in pair if not file.has(file.demos()[0], f"obs/{key}")]
    oblique = about.base_frame and (about.arms > 1 or about.mode == "absolute")
    if source == "poses" or (source == "auto" and not missing and not oblique):
        if missing or oblique or len(keys) != about.arms:
            raise DatasetError(f"{file.path}: {_why_no_poses(about, keys, missing)}")
        return ObservedPoses(file, keys)
    if not about.playable or not file.has(file.demos()[0], "states"):
        raise DatasetError(
            f"{file.path}: gripper poses are unknown, because the file has neither the observations "
            f"{', '.join(missing)} nor states of robosuite: name the observations of position and quaternion (x, "
            "y, z, w) with --pose-keys"
        )
    return SimulatedPoses(file, about.env_args, base_frame=about.base_frame)


def _why_no_poses(about: ActionFile, keys: tuple[PoseKeys, ...], missing: list[str]) -> str:
    if missing:
        return (
            f"the file has no observation '{missing[0]}': name position and quaternion with --pose-keys, or add "
            "--source simulator"
        )
    if len(keys) != about.arms:
        return f"--pose-keys has {len(keys)} pair(s) for {about.arms} arm(s): name one pair for each arm"
    return "actions are in the frames of the robots' bases, which only the simulator knows: add --source simulator"


def _limits(controller: Mapping[str, Any]) -> CommandRange:
    def six(key: str, default: Any) -> torch.Tensor:
        given = controller.get(key, default)
        try:
            found = torch.as_tensor(given, dtype=torch.float64).expand(6)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            found = torch.full((6,), torch.inf)
        if not found.isfinite().all():
            raise DatasetError(
                f"env_args: {key} of the arm's controller is {reprlib.repr(given)}; expected one finite number or six"
            )
        return found

    most = six("output_max", _MOTION)
    least = six("output_min", (-most).tolist())
    return CommandRange(six("input_min", -1.0), six("input_max", 1.0), least, most)
