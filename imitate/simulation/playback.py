"""Playback of recorded demonstrations as a video: from their states, their actions, or their images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import imageio
import numpy as np

from imitate.crew import Crew, Limits, Lost
from imitate.data import DatasetFile
from imitate.data.file.action_scale import recorded_scale
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.envs.make import is_real
from imitate.envs.watched import watched
from imitate.errors import DatasetError, EnvError, nearest
from imitate.processes import STEP_TIMEOUT_S, Beat

SOURCES = ("states", "actions", "obs-images")
DEFAULT_RATE_HZ = 20.0
EXECUTED = "executed_actions"


@dataclass
class PlaybackReport:
    """Report of a playback.

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
    step_timeout_s: float = STEP_TIMEOUT_S,
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
        step_timeout_s: a call of the simulator that takes longer, twice, ends the playback.

    Raises:
        DatasetError: the file lacks the states, actions or images to play.
        EnvError: the environment cannot be made or drawn, or hangs.
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
        rate = (file.control_freq or DEFAULT_RATE_HZ) / skip
        with ExitStack() as stack:
            add_frame = stack.enter_context(_video(target, rate))
            if by == "obs-images":
                shown: Iterator[tuple[str, Iterable[Array]]] = (
                    (demo, islice(_from_images(file, demo, camera, size), 0, None, skip))
                    for demo in chosen
                )
            else:
                folder = stack.enter_context(TemporaryDirectory(prefix="imitate-frames-"))
                player = partial(Player, file.path, meta, Path(folder), by, camera, size, skip)
                limits = Limits(call_s=step_timeout_s)
                crew = stack.enter_context(Crew[str, Played](player, limits=limits))
                shown = _played(crew, chosen, report)
            for demo, frames in shown:
                for frame in frames:
                    add_frame(frame)
                    report.frames += 1
                if on_demo is not None:
                    on_demo(demo)
    return report


def _has_images(file: DatasetFile, demos: list[str]) -> bool:
    return any(key.endswith("_image") for demo in demos[:1] for key in file.obs_keys(demo))


@dataclass(frozen=True)
class Played:
    """A demo that was played: its frames (F, size, size, 3) in a file, and the report's numbers on its actions."""

    frames: Path
    shape: tuple[int, ...]
    divergence: dict[str, float]
    success: dict[str, bool]


def _played(
    crew: Crew[str, Played], demos: list[str], report: PlaybackReport
) -> Iterator[tuple[str, Iterable[Array]]]:
    """Yield each demo's frames, from a process that plays it."""
    for done in crew.in_order(demos):
        demo, found = done.item, done.result
        if isinstance(found, Lost):
            if found.died:
                raise EnvError(f"{demo} cannot be played: {found.reason}")
            raise DatasetError(found.reason)
        report.divergence.update(found.divergence)
        report.success.update(found.success)
        yield demo, np.memmap(found.frames, dtype=np.uint8, mode="r", shape=found.shape)
        found.frames.unlink()


class Player:
    """Plays demos in a simulator, in a process of its own: call it with a demo's name.

    Args:
        path: the HDF5 file.
        env_meta: env_args of the environment.
        folder: for the frames.
        by: ``states`` or ``actions``.
        camera, size, skip: as for :func:`playback`.
        beat: receives each call of the environment that begins.

    Raises:
        EnvError: the environment cannot be made.
    """

    def __init__(
        self,
        path: Path,
        env_meta: dict[str, Any],
        folder: Path,
        by: str,
        camera: str | None,
        size: int,
        skip: int,
        beat: Beat | None = None,
    ) -> None:
        self._file, self._folder, self._skip = DatasetFile(path), folder, skip
        self._by, self._camera, self._size = by, camera, size
        make = partial(make_env, env_meta, obs_keys=[], render=True)
        self._env = watched(make, beat)

    def __call__(self, demo: str) -> Played:
        """Play a demo.

        Raises:
            UserError: it lacks the states or actions to play, or cannot be drawn.
        """
        report, count = PlaybackReport(video=""), 0
        path = self._folder / f"{demo}.rgb"
        with path.open("wb") as frames:
            for step, _ in enumerate(self._steps(demo, report)):
                if step % self._skip == 0:
                    frame = self._env.render(
                        height=self._size, width=self._size, camera_name=self._camera
                    )
                    frames.write(np.ascontiguousarray(frame, dtype=np.uint8).tobytes())
                    count += 1
        shape = (count, self._size, self._size, 3)
        return Played(path, shape, report.divergence, report.success)

    def _steps(self, demo: str, report: PlaybackReport) -> Iterator[None]:
        """Bring the simulator into the state of each step."""
        if self._by == "states":
            return _by_states(self._file, demo, self._env)
        return _by_actions(self._file, demo, self._env, report)


@contextmanager
def _video(target: Path, rate_hz: float) -> Iterator[Callable[[Array], None]]:
    """Yield a function that adds a frame; the file gets its name once it is complete."""
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


def _by_states(file: DatasetFile, demo: str, env: Env) -> Iterator[None]:
    states = _read(file, demo, "states", "play its images: --by obs-images")
    for step, state in enumerate(states):
        env.reset_to(start_of(file, demo, state) if step == 0 else {"states": state})
        yield


def _by_actions(file: DatasetFile, demo: str, env: Env, report: PlaybackReport) -> Iterator[None]:
    states = _read(file, demo, "states", "play its images: --by obs-images")
    actions = commands(file, demo)
    if states.shape[0] != actions.shape[0]:
        raise DatasetError(
            f"{file.path}: {demo}: {len(states)} states and {len(actions)} actions; record both per step"
        )
    env.reset_to(start_of(file, demo, states[0]))
    largest, success = 0.0, False
    for step, action in enumerate(actions):
        yield
        env.step(action)
        success = success or env.is_success()["task"]
        if step + 1 < len(states):
            reached = env.get_state()["states"]
            largest = max(largest, float(np.abs(reached - states[step + 1])[1:].max()))
    report.divergence[demo], report.success[demo] = largest, success


def commands(file: DatasetFile, demo: str) -> Array:
    """Return the robot's commands (T, A)."""
    if EXECUTED in file.keys(demo):
        return _read(file, demo, EXECUTED, "record actions")
    actions = _read(file, demo, "actions", "record actions")
    scale = recorded_scale(file)
    return actions if scale is None else scale.to_commands(actions)


def _from_images(file: DatasetFile, demo: str, camera: str | None, size: int) -> Iterator[Array]:
    cameras = [key[: -len("_image")] for key in file.obs_keys(demo) if key.endswith("_image")]
    if not cameras:
        raise DatasetError(f"{file.path}: {demo}: no observed images; play its states: --by states")
    name = camera or cameras[0]
    if name not in cameras:
        raise DatasetError(
            f"{file.path}: {demo}: no images of camera '{name}'; {nearest(name, cameras)}"
        )
    for image in file.read(demo, f"obs/{name}_image"):
        yield _resized(np.asarray(image), size)


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
    """Return a demo's first state for ``reset_to``, with the scene where the file has it."""
    attrs = file.attrs(demo)
    start: dict[str, Any] = {"states": state}
    if "model_file" in attrs:
        start["model"] = attrs["model_file"]
        start["ep_meta"] = attrs.get("ep_meta")
    return start
