"""Rendering of a demonstration's states by a simulator; runs in worker processes, so it imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

from imitate.data.dataset_file import DatasetFile
from imitate.envs import make_env
from imitate.envs.cameras import Camera, camera_kwargs
from imitate.envs.env import Array, Obs
from imitate.envs.migration import migrate_env_args
from imitate.envs.robosuite_env import ENV_TYPE, RobosuiteEnv
from imitate.envs.watched import watched
from imitate.errors import DatasetError, EnvError, UserError
from imitate.processes import Beat
from imitate.simulation.playback import commands, start_of

UNRESTORED = "joint_acc"
"""End of the names of observations that a state does not determine: accelerations follow from torques too."""


@dataclass(frozen=True)
class Drawing:
    """Settings of a rendering, the same for all demos.

    Attributes:
        path: the demonstration file.
        cameras: to look through.
        next_obs: also draw the state after each action.
    """

    path: Path
    cameras: tuple[Camera, ...]
    next_obs: bool = False

    @property
    def keys(self) -> list[str]:
        """Names of the observations of the cameras."""
        return [key for camera in self.cameras for key in camera.keys]


@dataclass(frozen=True)
class Drawn:
    """Observations of a demo of T steps from the simulator.

    Attributes:
        obs: (T, ...) per key, of the cameras and of the rest.
        next_obs: the same after each action; None where it is not requested.
        camera_info: see :func:`imitate.envs.cameras.camera_info`.
        differences: per recorded observation, the largest difference from what the simulator shows in the same state.
    """

    obs: dict[str, Array]
    next_obs: dict[str, Array] | None
    camera_info: dict[str, Any]
    differences: dict[str, float]


class Artist:
    """Renderer of recorded states in a simulator; call it with the name of a demo.

    Args:
        drawing: what to draw.
        beat: receives each call of the environment that begins.

    Raises:
        EnvError: the environment cannot be made, or lacks a camera.
    """

    def __init__(self, drawing: Drawing, beat: Beat | None = None) -> None:
        self._drawing, self._beat = drawing, beat
        self._file = DatasetFile(drawing.path)
        self._env: RobosuiteEnv | None = self._make()
        self._scene: tuple[Any, Any] | None = None

    def _make(self) -> RobosuiteEnv:
        meta, cameras = self._file.env_meta, self._drawing.cameras
        if meta.get("type") != ENV_TYPE:
            raise EnvError(
                f"{self._file.path}: {meta.get('env_name')} is no robosuite environment (env_args['type'] is "
                f"{meta.get('type')}): only robosuite's cameras are observed; see its states with "
                "`imitate dataset playback`"
            )
        names = [camera.name for camera in cameras]
        try:
            meta, _ = migrate_env_args(meta)
            kwargs = {**(meta.get("env_kwargs") or {}), **camera_kwargs(cameras)}
            make = partial(make_env, {**meta, "env_kwargs": kwargs}, camera_names=names)
            env = watched(make, self._beat)
        except EnvError as error:
            raise EnvError(f"{error}{self._version_hint()}") from error
        return cast(RobosuiteEnv, env)

    def __call__(self, demo: str) -> Drawn:
        """Draw a demo.

        Raises:
            UserError: it has no states, or they cannot be restored.
        """
        states, length = self._states(demo), self._file.length(demo)
        try:
            obs = _stacked(self._look(demo, states[:length]), length)
            env = self._ready()
            info = env.camera_info()
            following = None
            if self._drawing.next_obs:
                if len(states) > length:
                    last = env.reset_to({"states": states[length]})
                else:
                    last = env.step(commands(self._file, demo)[-1])[0]
                following = {k: np.concatenate([v[1:], last[k][None]]) for k, v in obs.items()}
        except UserError as error:
            raise type(error)(f"{error}{self._version_hint()}") from error
        except Exception as error:
            with suppress(Exception):  # its condition is unknown
                self._ready().close()
            self._env = self._scene = None
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise EnvError(
                f"its states cannot be restored ({reason}){self._version_hint()}"
            ) from error
        return Drawn(obs, following, info, self._differences(demo, obs))

    def _states(self, demo: str) -> Array:
        if not self._file.has(demo, "states"):
            raise DatasetError("it has no 'states', from which observations are drawn")
        states = np.asarray(self._file.read(demo, "states"))
        length = self._file.length(demo)
        if len(states) < length:
            raise DatasetError(
                f"it has {length} actions, but {len(states)} states; both are needed at each step"
            )
        return states

    def _ready(self) -> RobosuiteEnv:
        if self._env is None:
            self._env = self._make()
        return self._env

    def _look(self, demo: str, states: Array) -> Iterator[Obs]:
        env, start = self._ready(), start_of(self._file, demo, states[0])
        scene = start.get("model"), start.get("ep_meta")
        # A scene takes long to build. But a step after the last state needs a fresh controller.
        if scene == self._scene and not self._drawing.next_obs:
            start = {"states": states[0]}
        self._scene = None
        yield env.reset_to(start)
        self._scene = scene
        for state in states[1:]:
            yield env.reset_to({"states": state})

    def _version_hint(self) -> str:
        recorded, installed = self._file.env_meta.get("env_version"), installed_version()
        if recorded is None or recorded == installed:
            return ""
        return (
            f"; it was recorded with robosuite {recorded}, installed is {installed}: try "
            f"`imitate dataset migrate-env {self._file.path}` first"
        )

    def _differences(self, demo: str, obs: dict[str, Array]) -> dict[str, float]:
        found = {}
        for key in self._file.obs_keys(demo):
            if key in obs and key not in self._drawing.keys and not key.endswith(UNRESTORED):
                recorded = self._file.read(demo, f"obs/{key}")
                if recorded.shape == obs[key].shape:
                    found[key] = float(np.abs(recorded - obs[key]).max())
        return found


def installed_version() -> str:
    """Return the version of robosuite; 'none' where it is missing."""
    try:
        return metadata.version("robosuite")
    except metadata.PackageNotFoundError:
        return "none"


def _stacked(frames: Iterator[Obs], length: int) -> dict[str, Array]:
    """Stack frames to (length, ...) arrays, without a second copy of all of them."""
    arrays: dict[str, Array] = {}
    for step, obs in enumerate(frames):
        for key, value in obs.items():
            if step == 0:
                arrays[key] = np.empty((length, *value.shape), dtype=value.dtype)
            arrays[key][step] = value
    return arrays
