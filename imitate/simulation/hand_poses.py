"""Poses of the grippers at each step of a demonstration: from observations, or from recorded states in a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from imitate.data import DatasetFile
from imitate.envs import make_env
from imitate.envs.robosuite_env import RobosuiteEnv
from imitate.errors import DatasetError
from imitate.functional.pose_commands import HandPoses
from imitate.functional.rotations import quaternion_to_matrix
from imitate.simulation.recorded import scene_of

PoseKeys = tuple[str, str]
"""Observations of a hand: its position, and its quaternion x, y, z, w."""


class PoseSource(Protocol):
    """Source of the hands' poses, one demo after the other; a context manager."""

    name: str

    def of(self, demo: str) -> tuple[HandPoses, Tensor]:
        """Return hands (T, arms, ...), and positions of their bases (T, arms, 3) in metres."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class ObservedPoses:
    """Hands' poses from the file's observations; commands are assumed to be along the world's axes."""

    name = "poses"

    def __init__(self, file: DatasetFile, keys: Sequence[PoseKeys]) -> None:
        self._file, self._keys = file, keys

    def of(self, demo: str) -> tuple[HandPoses, Tensor]:
        """See :class:`PoseSource`; bases are not known and taken to be at the origin."""
        position, quaternion = (
            torch.from_numpy(
                np.stack([self._read(demo, keys[index]) for keys in self._keys], axis=1)
            ).double()
            for index in range(2)
        )
        if position.shape[-1] != 3 or quaternion.shape[-1] != 4:
            raise DatasetError(
                f"{self._file.path}: {demo}: poses of {tuple(position.shape)} and {tuple(quaternion.shape)} values: "
                "a position has 3 and a quaternion 4 per step: name them with --pose-keys"
            )
        rotation = quaternion_to_matrix(quaternion)
        return HandPoses(position, rotation, torch.eye(3).double()), torch.zeros_like(position)

    def _read(self, demo: str, key: str) -> Any:
        return self._file.read(demo, f"obs/{key}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: there is nothing to close."""


class SimulatedPoses:
    """Gripper poses from robosuite's controllers, after setting the recorded states.

    Args:
        file: open.
        env_args: of its environment.
        base_frame: commands are given along the axes of the robots' bases.
    """

    name = "simulator"

    def __init__(self, file: DatasetFile, env_args: dict[str, Any], *, base_frame: bool) -> None:
        env = make_env(env_args, obs_keys=[])
        if not isinstance(env, RobosuiteEnv):
            env.close()
            raise DatasetError(f"{file.path}: --source simulator is for files of robosuite")
        self._file, self._env, self._base_frame = file, env, base_frame

    def of(self, demo: str) -> tuple[HandPoses, Tensor]:
        """See :class:`PoseSource`."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the simulator."""
        self._env.close()
