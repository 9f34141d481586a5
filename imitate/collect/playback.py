"""Play back demonstrations as a video, from recorded states, actions or images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import imageio
import numpy as np

from imitate.collect.recorded import RecordedDemo, recorded_demo
from imitate.crew import Crew, Limits, Lost, Reports
from imitate.crew.backend import Backend
from imitate.data import DatasetFile
from imitate.data.edit.selection import Selection, select
from imitate.envs import Env, make_env
from imitate.envs.env import Array, ever, watched
from imitate.envs.make import check_description, is_real, is_robot
from imitate.errors import DatasetError, EnvError, nearest
from imitate.evaluate.video import FrameFolder, FrameSender, read_frames
from imitate.system.plain_files import cleared, replaced
from imitate.system.processes import STEP_TIMEOUT_S
from imitate.system.trust import check_trusted

SOURCES = ("states", "actions", "obs-images")
DEFAULT_RATE_HZ = 20.0


@dataclass
class PlaybackReport:
    """Report of a playback.

    Attributes:
        video: path of the video.
        frames: number of written frames.
        divergence: by demo, the largest difference between a recorded state and the state that the actions led to
            (positions and velocities in SI units); empty unless actions are played.
        success: by demo, true if the task was solved at some step, None if unknown; empty unless actions are played.
    """

    video: str
    frames: int = 0
    divergence: dict[str, float] = field(default_factory=dict)
    success: dict[str, bool | None] = field(default_factory=dict)


def playback(
    path: str | Path,
    video: str | Path,
    *,
    demos: Sequence[str] | None = None,
    first: int | None = None,
    by: str | None = None,
    env_meta: dict[str, Any] | None = None,
    camera: str | None = None,
    size: int = 256,
    skip: int = 2,
    on_demo: Callable[[str], None] | None = None,
    on_count: Callable[[int], None] | None = None,
    step_timeout_s: float = STEP_TIMEOUT_S,
    backend: Backend[Any] | None = None,
) -> PlaybackReport:
    """Write a video of demonstrations.

    Args:
        path: the HDF5 file.
        video: the mp4 to write.
        demos: names of demos, or ranges such as ``demo_3-demo_7``; None for all.
        first: largest number of demos.
        by: ``states`` sets the simulator to each recorded state, ``actions`` plays the actions from the first state,
            ``obs-images`` shows the recorded images. None stands for states, or for images if the file was recorded on
            a real robot.
        env_meta: env_args of the environment, or None for the file's env_args.
        camera: camera of the simulator or of the recorded images; None for agentview or the first one.
        size: height and width of a frame in pixels.
        skip: number of steps from one frame to the next.
        on_demo: called with a demo's name when all of its frames are written.
        on_count: called once with the number of demos before the first demo.
        step_timeout_s: seconds after which a call of the simulator counts as hung; a second hang ends the playback.
        backend: back end of the simulator's process, or None for a process on this machine.

    Raises:
        DatasetError: the file lacks the states, actions or images to play.
        EnvError: the environment cannot be made or drawn, or hangs.
    """
    if by is not None and by not in SOURCES:
        raise DatasetError(f"playback by '{by}' is unknown; {nearest(by, SOURCES)}")
    target = Path(video)
    if target.suffix != ".mp4":
        raise DatasetError(f"{target}: videos are written only as .mp4: give the file this suffix")
    report = PlaybackReport(video=str(target))
    with DatasetFile(path) as file:
        chosen = select(file, Selection(demos=demos, first=first))
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
                check_trusted(meta)
                if not is_robot(meta):
                    check_description(meta)
                folder = stack.enter_context(closing(FrameFolder()))
                player = partial(DemoPlayer, View(meta, by, camera, size, skip))
                limits = Limits(call_s=step_timeout_s)
                crew = stack.enter_context(
                    Crew[RecordedDemo, PlayedDemo](player, limits=limits, backend=backend)
                )
                items = (_read(file, demo, by) for demo in chosen)
                shown = _played(crew, items, folder, size, report)
            for demo, frames in shown:
                for frame in frames:
                    add_frame(frame)
                    report.frames += 1
                if on_demo is not None:
                    on_demo(demo)
    return report


def _has_images(file: DatasetFile, demos: list[str]) -> bool:
    return any(key.endswith("_image") for demo in demos[:1] for key in file.obs_keys(demo))


def _played(
    crew: Crew[RecordedDemo, PlayedDemo],
    items: Iterator[RecordedDemo],
    folder: FrameFolder,
    size: int,
    report: PlaybackReport,
) -> Iterator[tuple[str, Iterable[Array]]]:
    """Yield the name and the frames of each demo; one worker process plays all demos."""
    for done in crew.as_completed(items, on_note=lambda _, frames: folder.add(frames)):
        demo, found = done.item.name, done.result
        if isinstance(found, Lost):
            if found.died:
                raise EnvError(f"{demo} cannot be played: {found.reason}")
            raise DatasetError(found.reason)
        if found.divergence is not None:
            report.divergence[demo], report.success[demo] = found.divergence, found.success
        yield demo, read_frames(folder.name, 0, found.count, size)


def _read(file: DatasetFile, demo: str, by: str) -> RecordedDemo:
    """Read the states of a demo, and for playback by actions also its actions.

    Raises:
        DatasetError: the demo lacks the states or actions.
    """
    recorded = recorded_demo(
        file, demo, "play its images: --by obs-images", with_commands=by == "actions"
    )
    if recorded.commands is not None and len(recorded.states) != len(recorded.commands):
        raise DatasetError(
            f"{file.path}: {demo}: {len(recorded.states)} states, but {len(recorded.commands)} actions: playback by "
            "actions needs both at each step; add --by states"
        )
    return recorded


@dataclass(frozen=True)
class PlayedDemo:
    """Result of playing one demo: number of frames, and divergence and success as in :class:`PlaybackReport`."""

    count: int
    divergence: float | None = None
    success: bool | None = None


@dataclass(frozen=True)
class View:
    """Picklable settings of a playback, which hold for all demos.

    Attributes:
        env_meta: env_args of the environment.
        by: ``states`` or ``actions``.
        camera, size, skip: as for :func:`playback`.
    """

    env_meta: dict[str, Any]
    by: str
    camera: str | None
    size: int
    skip: int


class DemoPlayer:
    """Callable of a worker process that plays a demo in a simulator; it needs no access to files.

    Args:
        view: settings of the playback.
        reports: receives the frames, and is notified of each call of the environment, to detect hangs.

    Raises:
        EnvError: the environment cannot be made.
    """

    def __init__(self, view: View, reports: Reports) -> None:
        self._view, self._reports = view, reports
        make = partial(make_env, view.env_meta, obs_keys=[], render=True)
        self._env = watched(make, reports)

    def __call__(self, demo: RecordedDemo) -> PlayedDemo:
        """Play a demo.

        Raises:
            UserError: the demo cannot be rendered.
        """
        view, outcome = self._view, _Outcome()
        sender = FrameSender(0, self._reports.note)
        steps = _by_states if view.by == "states" else _by_actions
        for step, _ in enumerate(steps(demo, self._env, outcome)):
            if step % view.skip == 0:
                frame = self._env.render(height=view.size, width=view.size, camera_name=view.camera)
                sender.add(np.ascontiguousarray(frame, dtype=np.uint8))
        sender.flush()
        return PlayedDemo(sender.count, outcome.divergence, outcome.success)


@dataclass
class _Outcome:
    """Divergence and success of a demo, which :func:`_by_actions` sets."""

    divergence: float | None = None
    success: bool | None = None


@contextmanager
def _video(target: Path, rate_hz: float) -> Iterator[Callable[[Array], None]]:
    """Yield a function that adds a frame to a video; the file gets its final name when the video is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target, target.suffix) as part:
        writer: Any = imageio.get_writer(str(cleared(part)), fps=rate_hz, macro_block_size=1)
        with writer:
            yield writer.append_data


def _by_states(demo: RecordedDemo, env: Env, outcome: _Outcome) -> Iterator[None]:
    for step, state in enumerate(demo.states):
        env.reset_to(demo.start if step == 0 else {"states": state})
        yield


def _by_actions(demo: RecordedDemo, env: Env, outcome: _Outcome) -> Iterator[None]:
    assert demo.commands is not None
    env.reset_to(demo.start)
    largest = 0.0
    success: bool | None = None
    for step, action in enumerate(demo.commands):
        yield
        env.step(action)
        success = ever(success, env.is_success()["task"])
        if step + 1 < len(demo.states):
            reached = env.get_state()["states"]
            largest = max(largest, float(np.abs(reached - demo.states[step + 1])[1:].max()))
    outcome.divergence, outcome.success = largest, success


def _from_images(file: DatasetFile, demo: str, camera: str | None, size: int) -> Iterator[Array]:
    cameras = [key[: -len("_image")] for key in file.obs_keys(demo) if key.endswith("_image")]
    if not cameras:
        raise DatasetError(
            f"{file.path}: {demo}: the demo has no images: play its states with --by states"
        )
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
