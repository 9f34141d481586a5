"""Demos as plain values, so that workers without access to this machine's files can play and render them.

This module does not import torch, because workers import it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from imitate.data.dataset_file import DatasetFile
from imitate.data.file.action_scale import recorded_scale
from imitate.envs import make_env
from imitate.envs.cameras import Camera, camera_kwargs
from imitate.envs.env import Array, Obs, watched
from imitate.envs.migration import installed_robosuite, migrate_env_args
from imitate.envs.robosuite_env import ENV_TYPE, RobosuiteEnv
from imitate.errors import DatasetError, EnvError, UserError
from imitate.system.processes import Beat

EXECUTED = "executed_actions"


@dataclass(frozen=True)
class RecordedDemo:
    """Recorded states of a demo, and the robot's commands between them.

    Attributes:
        name: name of the demo.
        states: (T, S) states of the simulator, or (T + 1, S) if the file has the state after the last action.
        scene: ``model`` and ``ep_meta`` of the simulator, if the file has them.
        length: number T of steps; each has an observation.
        commands: (T, A) commands of the robot, or None if they are not requested.
    """

    name: str
    states: Array
    scene: dict[str, Any]
    length: int
    commands: Array | None = None

    @property
    def start(self) -> dict[str, Any]:
        """Argument of ``reset_to`` for the first state, with the scene."""
        return {"states": self.states[0], **self.scene}


def recorded_demo(
    file: DatasetFile, demo: str, remedy: str = "", *, with_commands: bool = True
) -> RecordedDemo:
    """Read a demo.

    Args:
        file: open demonstration file.
        demo: name of the demo.
        remedy: advice for the error message if the demo has no states.
        with_commands: true to read the actions too.

    Raises:
        DatasetError: the demo has no states, or no actions.
    """
    states = read(file, demo, "states", remedy)
    actions = commands(file, demo) if with_commands else None
    return RecordedDemo(demo, states, scene_of(file, demo), len(states), actions)


def scene_of(file: DatasetFile, demo: str) -> dict[str, Any]:
    """Return the demo's scene for ``reset_to``, or an empty dict if the file contains no scene."""
    attrs = file.attrs(demo)
    if "model_file" not in attrs:
        return {}
    return {"model": attrs["model_file"], "ep_meta": attrs.get("ep_meta")}


def commands(file: DatasetFile, demo: str) -> Array:
    """Return the robot's commands (T, A)."""
    if EXECUTED in file.keys(demo):
        return read(file, demo, EXECUTED, "record actions")
    actions = read(file, demo, "actions", "record actions")
    scale = recorded_scale(file)
    return actions if scale is None else scale.to_commands(actions)


def read(file: DatasetFile, demo: str, key: str, remedy: str) -> Array:
    """Read an array of a demo; the error for a missing array ends with ``remedy``."""
    try:
        return np.asarray(file.read(demo, key))
    except DatasetError as error:
        if not remedy:
            raise
        raise DatasetError(f"{error}; {remedy}") from error


UNRESTORED = "joint_acc"
"""Suffixes of observation keys that a state does not determine: accelerations also depend on torques."""


@dataclass(frozen=True)
class Drawing:
    """Picklable settings of a rendering, which hold for all demos.

    Attributes:
        path: path of the demonstration file, for error messages.
        env_meta: env_args of the file.
        cameras: cameras to render.
        next_obs: true to also render the state after each action.
    """

    path: Path
    env_meta: dict[str, Any]
    cameras: tuple[Camera, ...]
    next_obs: bool = False

    @property
    def keys(self) -> list[str]:
        """Observation keys of the cameras' images."""
        return [key for camera in self.cameras for key in camera.keys]

    def recorded(self, file: DatasetFile, demo: str) -> RecordedDemo:
        """Read the data of a demo that are needed to render it.

        Raises:
            DatasetError: the demo has no states, or fewer states than actions.
        """
        if not file.has(demo, "states"):
            raise DatasetError("the demo has no 'states' from which images could be rendered")
        states, length = np.asarray(file.read(demo, "states")), file.length(demo)
        if len(states) < length:
            raise DatasetError(
                f"the demo has {length} actions, but {len(states)} states: both are needed at each step"
            )
        actions = commands(file, demo) if self.next_obs else None
        return RecordedDemo(demo, states, scene_of(file, demo), length, actions)


@dataclass(frozen=True)
class Drawn:
    """Observations that the simulator gives for a demo of T steps.

    Attributes:
        obs: (T, ...) images and other observations by key.
        next_obs: the observations after each action, or None if they are not requested.
        camera_info: see :func:`imitate.envs.cameras.camera_info`.
    """

    obs: dict[str, Array]
    next_obs: dict[str, Array] | None
    camera_info: dict[str, Any]


class Artist:
    """Callable of a worker process that renders the states of a demo in a simulator; it needs no access to files.

    Args:
        drawing: settings of the rendering.
        beat: notified of each call of the environment, to detect hangs.

    Raises:
        EnvError: the environment cannot be made, or lacks a camera.
    """

    def __init__(self, drawing: Drawing, beat: Beat | None = None) -> None:
        self._drawing, self._beat = drawing, beat
        self._env: RobosuiteEnv | None = self._make()
        self._scene: dict[str, Any] | None = None

    def _make(self) -> RobosuiteEnv:
        meta, cameras = self._drawing.env_meta, self._drawing.cameras
        if meta.get("type") != ENV_TYPE:
            raise EnvError(
                f"{self._drawing.path}: {meta.get('env_name')} is not a robosuite environment (env_args['type'] is "
                f"{meta.get('type')}): images can be rendered only for robosuite; watch the demos with `imitate "
                "dataset playback`"
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

    def __call__(self, demo: RecordedDemo) -> Drawn:
        """Return the simulator's observations in the states of a demo.

        Raises:
            UserError: the demo's states cannot be restored.
        """
        try:
            obs = _stacked(self._look(demo), demo.length)
            env = self._ready()
            info = env.camera_info()
            following = None
            if demo.commands is not None:
                if len(demo.states) > demo.length:
                    last = env.reset_to({"states": demo.states[demo.length]})
                else:
                    last = env.step(demo.commands[-1])[0]
                following = {k: np.concatenate([v[1:], last[k][None]]) for k, v in obs.items()}
        except UserError as error:
            raise type(error)(f"{error}{self._version_hint()}") from error
        except Exception as error:
            with suppress(Exception):  # the simulator may be in any state now
                self._ready().close()
            self._env = self._scene = None
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise EnvError(
                f"the demo's states cannot be restored in the simulator ({reason}){self._version_hint()}"
            ) from error
        return Drawn(obs, following, info)

    def _ready(self) -> RobosuiteEnv:
        if self._env is None:
            self._env = self._make()
        return self._env

    def _look(self, demo: RecordedDemo) -> Iterator[Obs]:
        env, start = self._ready(), demo.start
        # Building a scene takes long, so it is reused. But a step after the last state needs a new controller.
        if demo.scene == self._scene and not self._drawing.next_obs:
            start = {"states": demo.states[0]}
        self._scene = None
        yield env.reset_to(start)
        self._scene = demo.scene
        for state in demo.states[1 : demo.length]:
            yield env.reset_to({"states": state})

    def _version_hint(self) -> str:
        recorded, installed = self._drawing.env_meta.get("env_version"), installed_robosuite()
        if recorded is None or recorded == installed:
            return ""
        return (
            f"; it was recorded with robosuite {recorded}, installed is {installed}: try "
            f"`imitate dataset migrate-env {self._drawing.path}` first"
        )


def differences(file: DatasetFile, demo: str, drawn: Drawn, cameras: list[str]) -> dict[str, float]:
    """Return for each recorded observation the largest difference from the simulator's observation in the same state.

    Args:
        file: demonstration file with the demo.
        demo: name of the demo.
        drawn: observations of the simulator in the demo's states.
        cameras: names of camera observations, which are not compared.
    """
    found = {}
    for key in file.obs_keys(demo):
        if key in drawn.obs and key not in cameras and not key.endswith(UNRESTORED):
            recorded = file.read(demo, f"obs/{key}")
            if recorded.shape == drawn.obs[key].shape:
                # unsigned integers and booleans cannot be subtracted
                gap = recorded.astype(np.float64) - drawn.obs[key]
                found[key] = float(np.abs(gap).max())
    return found


def _stacked(frames: Iterator[Obs], length: int) -> dict[str, Array]:
    """Stack the observations of each step to (length, ...) arrays, without keeping all of them twice in memory."""
    arrays: dict[str, Array] = {}
    for step, obs in enumerate(frames):
        for key, value in obs.items():
            if step == 0:
                arrays[key] = np.empty((length, *value.shape), dtype=value.dtype)
            arrays[key][step] = value
    return arrays
