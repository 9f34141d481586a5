"""Recorded demonstrations as a video: from their states, from their actions, or from their images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import imageio
import numpy as np

from imitate.data import DatasetFile
from imitate.data.action_scale import recorded_scale
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.envs.make import is_real
from imitate.errors import DatasetError, nearest

SOURCES = ("states", "actions", "obs-images")
DEFAULT_RATE_HZ = 20.0
EXECUTED = "executed_actions"


@dataclass
class PlaybackReport:
    """What was played.

    Attributes:
        video: the file.
        frames: written.
        divergence: per demo, the largest difference between a recorded state and the one its actions led to
            (positions and velocities in SI units); only where actions are played.
        success: per demo, whether the task was solved at some step; only where actions are played.
    """

    video: str
    frames: int = 0
    divergence: dict[str, float] = field(default_factory=dict)
    success: dict[str, bool] = field(default_factory=dict)


def playback(
    path: str | Path,
    video: str | Path,
    *,
    demos: int | list[str] | None = None,
    by: str | None = None,
    env_meta: dict[str, Any] | None = None,
    camera: str | None = None,
    size: int = 256,
    skip: int = 2,
    on_demo: Callable[[str], None] | None = None,
    on_count: Callable[[int], None] | None = None,
) -> PlaybackReport:
    """Write a video of demonstrations; frames are written as they come.

    Args:
        path: the HDF5 file.
        video: the mp4 to write.
        demos: how many of the first, or which; None is all.
        by: ``states`` sets the simulator to each recorded state, ``actions`` plays the actions from the first state,
            ``obs-images`` shows the recorded images. None: states, or images where the file is of a real robot.
        env_meta: env_args of the environment; None: those of the file.
        camera: of the scene, or of the recorded images.
        size: side of a frame in pixels.
        skip: one frame in so many steps.
        on_demo: called with each demo's name when it is done.
        on_count: called first with how many demos there are.

    Raises:
        DatasetError: the file lacks what is to be played.
        EnvError: the environment cannot be made or drawn.
    """
    if by is not None and by not in SOURCES:
        raise DatasetError(f"playback by '{by}': {nearest(by, SOURCES)}")
    target = Path(video)
    if target.suffix != ".mp4":
        raise DatasetError(f"{target}: videos are written as .mp4; give the file that ending")
    report = PlaybackReport(video=str(target))
    with DatasetFile(path) as file:
        chosen = _choose(file, demos)
        if on_count is not None:
            on_count(len(chosen))
        meta = file.env_meta if env_meta is None else env_meta
        by = by or ("obs-images" if is_real(meta) and _has_images(file, chosen) else "states")
        env = None if by == "obs-images" else make_env(meta, obs_keys=[], render=True)
        rate = (file.control_freq or DEFAULT_RATE_HZ) / skip
        try:
            with _video(target, rate) as add_frame:
                for demo in chosen:
                    frames = _frames(file, demo, env, by, camera, size, report)
                    for step, draw in enumerate(frames):
                        if step % skip == 0:
                            add_frame(draw())
                            report.frames += 1
                    if on_demo is not None:
                        on_demo(demo)
        finally:
            if env is not None:
                env.close()
    return report


def _has_images(file: DatasetFile, demos: list[str]) -> bool:
    return any(key.endswith("_image") for demo in demos[:1] for key in file.obs_keys(demo))


@contextmanager
def _video(target: Path, rate_hz: float) -> Iterator[Callable[[Array], None]]:
    """A function that adds a frame; the file has its name once it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.stem}.partial{target.suffix}")
    try:
        writer: Any = imageio.get_writer(str(unfinished), fps=rate_hz, macro_block_size=1)
        with writer:
            yield writer.append_data
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _choose(file: DatasetFile, demos: int | list[str] | None) -> list[str]:
    names = file.demos()
    if demos is None:
        return names
    if isinstance(demos, int):
        return names[:demos]
    for demo in demos:
        if demo not in names:
            raise DatasetError(f"{file.path}: there is no demo '{demo}'; {nearest(demo, names)}")
    return demos


def _frames(
    file: DatasetFile,
    demo: str,
    env: Env | None,
    by: str,
    camera: str | None,
    size: int,
    report: PlaybackReport,
) -> Iterator[Callable[[], Array]]:
    """Per step a function that draws it, so that steps left out cost no drawing."""
    if env is None:
        return _from_images(file, demo, camera, size)

    def draw() -> Array:
        return env.render(height=size, width=size, camera_name=camera)

    if by == "states":
        return _from_states(file, demo, env, draw)
    return _from_actions(file, demo, env, draw, report)


def _from_states(
    file: DatasetFile, demo: str, env: Env, draw: Callable[[], Array]
) -> Iterator[Callable[[], Array]]:
    states = _read(file, demo, "states", "play its images: --by obs-images")
    for step, state in enumerate(states):
        env.reset_to(start_of(file, demo, state) if step == 0 else {"states": state})
        yield draw


def _from_actions(
    file: DatasetFile, demo: str, env: Env, draw: Callable[[], Array], report: PlaybackReport
) -> Iterator[Callable[[], Array]]:
    states = _read(file, demo, "states", "play its images: --by obs-images")
    actions = commands(file, demo)
    if states.shape[0] != actions.shape[0]:
        raise DatasetError(
            f"{file.path}: {demo}: {len(states)} states and {len(actions)} actions; record both per step"
        )
    env.reset_to(start_of(file, demo, states[0]))
    largest, success = 0.0, False
    for step, action in enumerate(actions):
        yield draw
        env.step(action)
        success = success or env.is_success()["task"]
        if step + 1 < len(states):
            reached = env.get_state()["states"]
            largest = max(largest, float(np.abs(reached - states[step + 1])[1:].max()))
    report.divergence[demo], report.success[demo] = largest, success


def commands(file: DatasetFile, demo: str) -> Array:
    """(T, A) what the robot was sent."""
    if EXECUTED in file.keys(demo):
        return _read(file, demo, EXECUTED, "record actions")
    actions = _read(file, demo, "actions", "record actions")
    scale = recorded_scale(file)
    return actions if scale is None else scale.to_commands(actions)


def _from_images(
    file: DatasetFile, demo: str, camera: str | None, size: int
) -> Iterator[Callable[[], Array]]:
    cameras = [key[: -len("_image")] for key in file.obs_keys(demo) if key.endswith("_image")]
    if not cameras:
        raise DatasetError(f"{file.path}: {demo}: no observed images; play its states: --by states")
    name = camera or cameras[0]
    if name not in cameras:
        raise DatasetError(
            f"{file.path}: {demo}: no images of camera '{name}'; {nearest(name, cameras)}"
        )
    for image in file.read(demo, f"obs/{name}_image"):
        yield partial(_resized, np.asarray(image), size)


def _resized(image: Array, size: int) -> Array:
    rows = np.arange(size) * image.shape[0] // size
    columns = np.arange(size) * image.shape[1] // size
    return np.ascontiguousarray(image[rows][:, columns], dtype=np.uint8)


def _read(file: DatasetFile, demo: str, key: str, remedy: str) -> Array:
    try:
        return np.asarray(file.read(demo, key))
    except DatasetError as error:
        raise DatasetError(f"{error}; {remedy}") from error


def start_of(file: DatasetFile, demo: str, state: Array) -> dict[str, Any]:
    """What an environment is reset to for a demo's first state: the state, and the scene where the file has it."""
    attrs = file.attrs(demo)
    start: dict[str, Any] = {"states": state}
    if "model_file" in attrs:
        start["model"] = attrs["model_file"]
        start["ep_meta"] = attrs.get("ep_meta")
    return start
