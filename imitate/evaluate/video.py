"""Videos of episodes: frames from worker processes, the policy's plan and keypoints on them, and their mosaic.

The planned actions are drawn as the path of each gripper if the environment can compute it (``env.planned_paths``),
otherwise as one curve per action dimension. Images with a spatial softmax are shown in the corner with its keypoints.
A mosaic shows several episodes: their borders are grey while an episode runs, then green (success), red (failure) or
white (success is unknown).
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from imitate.system.plain_files import cleared, replaced

if TYPE_CHECKING:
    from imitate.evaluate.result import EpisodeResult
    from imitate.evaluate.settings import EpisodePlan
    from imitate.policy.rollout_policy import RolloutPolicy

AT_ONCE = 16
"""Number of frames that are sent together, so that no process keeps a whole video in memory."""


@dataclass(frozen=True)
class Frames:
    """Successive frames of an episode.

    Attributes:
        index: index of the episode.
        start: index of the first frame in its episode.
        pixels: (F, H, W, 3) uint8.
    """

    index: int
    start: int
    pixels: NDArray[np.uint8]


OnFrames = Callable[[Frames], None]


class FrameSender:
    """Sends an episode's frames in groups.

    Args:
        index: index of the episode.
        on_frames: called with each group of frames.

    Attributes:
        count: number of frames so far.
    """

    def __init__(self, index: int, on_frames: OnFrames) -> None:
        self.count = 0
        self._index, self._on_frames = index, on_frames
        self._pending: list[NDArray[np.uint8]] = []

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Add the next frame (H, W, 3)."""
        self._pending.append(frame)
        self.count += 1
        if len(self._pending) == AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Send the remaining frames."""
        if self._pending:
            start = self.count - len(self._pending)
            self._on_frames(Frames(self._index, start, np.stack(self._pending)))
            self._pending.clear()


class FrameFolder:
    """Temporary folder with a file of raw frames per episode; ``close`` removes it."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="imitate-frames-")

    @property
    def name(self) -> str:
        """Path of the folder."""
        return self._folder.name

    def add(self, frames: Frames) -> None:
        """Write frames at their position; frames of an earlier try of the episode are overwritten."""
        path = frame_file(self.name, frames.index)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(frames.start * frames.pixels[0].nbytes)
            file.write(np.ascontiguousarray(frames.pixels).tobytes())

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()


def frame_file(frame_dir: str, index: int) -> Path:
    """Return the path of an episode's raw frames."""
    return Path(frame_dir) / f"episode_{index}.rgb"


def read_frames(frame_dir: str, index: int, count: int, size: int) -> NDArray[Any]:
    """Return the first ``count`` frames of an episode (F, size, size, 3), mapped from their file."""
    return np.memmap(
        frame_file(frame_dir, index), dtype=np.uint8, mode="r", shape=(count, size, size, 3)
    )


INSET = 80
MARGIN = 4
NEAR = (255, 230, 0)
"""Colour of the next action."""
FAR = (255, 0, 120)
"""Colour of the last planned action."""
FAINTEST = 0.35

BORDER = 6
RUNNING = (128, 128, 128)
OUTCOMES = {True: (40, 180, 60), False: (210, 40, 40), None: (235, 235, 235)}
"""Colours of finished episodes: green for success, red for failure, white if it is unknown."""
HOLD_FRAMES = 10

Picture = NDArray[np.uint8]
Values = NDArray[np.float64]


class Overlay:
    """Draws the planned actions and the keypoints of one policy.

    Args:
        policy: policy that has just acted on the drawn observation.
    """

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy

    def draw(
        self, frame: Picture, env: Any, camera_name: str | None, obs: Mapping[str, Any]
    ) -> Picture:
        """Draw the plan and the keypoints onto a copy of a frame (H, W, 3).

        Args:
            frame: camera image.
            env: environment in the shown state.
            camera_name: name of the camera.
            obs: raw observation of this state.
        """
        picture = Image.fromarray(frame)
        planned = self._policy.planned_actions()
        if planned is not None:
            draw_plan(picture, env, camera_name, without_repeats(planned[0]))
        places = self._policy.keypoints(obs)
        for number, (key, points) in enumerate(places.items()):
            image = np.asarray(obs[key])
            if image.dtype == np.uint8 and image.shape[-1] == 3:
                left = MARGIN + number * (INSET + MARGIN)
                picture.paste(inset(image, points), (left, picture.height - INSET - MARGIN))
        return np.asarray(picture)


def without_repeats(actions: Values) -> Values:
    """Remove the repeated last actions of (K, A), which fill up a shorter plan."""
    differs = (actions != actions[-1]).any(axis=1)
    last = int(differs.nonzero()[0][-1]) + 1 if differs.any() else 0
    return actions[: last + 1]


def draw_plan(picture: Image.Image, env: Any, camera_name: str | None, actions: Values) -> None:
    """Draw the grippers' path under actions (K, A), or curves of them in the upper left corner."""
    paths = []
    if hasattr(env, "planned_paths"):
        size = {"height": picture.height, "width": picture.width}
        paths = env.planned_paths(actions, **size, camera_name=camera_name)
    drawing = ImageDraw.Draw(picture, "RGBA")
    for path in paths:
        draw_path(drawing, path)
    if not paths:
        draw_curves(drawing, actions, env.action_low, env.action_high)


def draw_path(drawing: ImageDraw.ImageDraw, path: Values) -> None:
    """Draw a path of pixels (K + 1, 2), fainter towards its end."""
    count = len(path) - 1
    for number in reversed(range(count)):
        ends = path[number : number + 2]
        if np.isfinite(ends).all():
            drawing.line(ends.flatten().tolist(), fill=_colour(number / count), width=3)
    if np.isfinite(path[0]).all():
        x, y = path[0].tolist()
        drawing.ellipse((x - 3, y - 3, x + 3, y + 3), outline=(*NEAR, 255), width=2)


def _colour(share: float) -> tuple[int, int, int, int]:
    """Return the colour for a fraction of the plan, 0 to 1."""
    red, green, blue = (
        round(near + share * (far - near)) for near, far in zip(NEAR, FAR, strict=True)
    )
    return red, green, blue, round(255 * (1 - share * (1 - FAINTEST)))


def draw_curves(
    drawing: ImageDraw.ImageDraw, actions: Values, low: NDArray[Any], high: NDArray[Any]
) -> None:
    """Draw each dimension of the actions (K, A) over time, between its limits, in a box in the upper left corner."""
    left = top = MARGIN
    drawing.rectangle((left, top, left + INSET, top + INSET), fill=(0, 0, 0, 140))
    low = np.where(np.isfinite(low), low, actions.min(axis=0))
    high = np.where(np.isfinite(high), high, actions.max(axis=0))
    heights = (actions - low) / np.maximum(high - low, 1e-9)
    times = np.linspace(0.0, 1.0, max(len(actions), 2))
    for number, curve in enumerate(heights.T):
        curve = np.resize(curve, len(times))  # repeats a single action: a horizontal line
        points = np.stack([left + times * INSET, top + (1 - curve) * INSET], axis=1)
        hue = colorsys.hsv_to_rgb(number / heights.shape[1], 0.7, 1.0)
        colour = tuple(round(255 * value) for value in hue)
        drawing.line(points.flatten().tolist(), fill=colour, width=1)


def inset(image: Picture, points: NDArray[Any]) -> Image.Image:
    """Scale an image (H, W, 3) to the size of insets and mark points (K, 2), given in its pixels."""
    height, width = image.shape[:2]
    picture = Image.fromarray(image).resize((INSET, INSET))
    drawing = ImageDraw.Draw(picture)
    for x, y in (np.asarray(points) + 0.5) * [INSET / width, INSET / height]:
        drawing.ellipse((x - 2, y - 2, x + 2, y + 2), fill=NEAR, outline=(0, 0, 0))
    drawing.rectangle((0, 0, INSET - 1, INSET - 1), outline=(255, 255, 255))
    return picture


class FrameRecorder:
    """Draws an episode's frames and sends them; a context manager.

    Args:
        plan: plan of the episodes.
        index: index of the episode.
        policy: policy that acts in it.
        on_frames: receives the frames, or None to draw nothing.

    Attributes:
        error: reason why rendering stopped, or None if nothing failed.
    """

    def __init__(
        self, plan: EpisodePlan, index: int, policy: RolloutPolicy, on_frames: OnFrames | None
    ) -> None:
        drawn = on_frames is not None and index < plan.shown
        self._sender = FrameSender(index, on_frames) if on_frames is not None and drawn else None
        self.error: str | None = None
        self._plan = plan
        self._overlay = Overlay(policy) if plan.settings.overlay and drawn else None

    @property
    def wanted(self) -> bool:
        """True if the episode is drawn."""
        return self._sender is not None

    @property
    def count(self) -> int:
        """Number of frames so far."""
        return 0 if self._sender is None else self._sender.count

    def __enter__(self) -> FrameRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._sender is not None:
            self._sender.flush()

    def add(
        self, env: Any, step: int, obs: Mapping[str, Any] | None = None, *, last: bool = False
    ) -> None:
        """Render if this step has a frame; a failing renderer ends the video, not the episode.

        Args:
            env: environment in the state to show.
            step: number of steps so far.
            obs: observation on which the policy has just acted, or None if it has not acted on this state.
            last: true for the last state, which always gets a frame.
        """
        plan = self._plan
        if self._sender is None or self.error is not None:
            return
        if step % plan.settings.video_skip and not last:
            return
        try:
            frame = env.render(
                height=plan.frame_size, width=plan.frame_size, camera_name=plan.camera
            )
            frame = np.ascontiguousarray(frame, dtype=np.uint8)
            if frame.shape != (plan.frame_size, plan.frame_size, 3):
                raise ValueError(f"the renderer returned an image of shape {frame.shape}")
            if self._overlay is not None and obs is not None:
                frame = self._overlay.draw(frame, env, plan.camera, obs)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            return
        self._sender.add(frame)


def write_mosaic(
    path: str | Path,
    frame_dir: str,
    episodes: Sequence[EpisodeResult],
    *,
    size: int,
    rate_hz: float = 10.0,
) -> Path | None:
    """Compose the raw frames of `episodes` (those that have some) into one mp4, frame by frame.

    Returns:
        the path, or None if no episode has a frame.
    """
    shown = [episode for episode in episodes if episode.frames]
    if not shown:
        return None
    from imageio.v2 import get_writer

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    reels = [read_frames(frame_dir, episode.index, episode.frames, size) for episode in shown]
    # macro_block_size 2: the codec needs even sides, and 16 would rescale the picture.
    how: Any = {"fps": rate_hz, "macro_block_size": 2, "codec": "libx264", "quality": 7}
    with replaced(path, path.suffix) as part, get_writer(cleared(part), **how) as opened:
        writer: Any = opened
        for t in range(max(len(reel) for reel in reels) + HOLD_FRAMES):
            writer.append_data(compose(shown, reels, t))
    return path


def compose(
    episodes: Sequence[EpisodeResult], reels: Sequence[NDArray[Any]], t: int
) -> NDArray[np.uint8]:
    """Compose picture t of the mosaic; a finished episode shows its last frame."""
    size = reels[0].shape[1] + 2 * BORDER
    columns = math.ceil(math.sqrt(len(reels)))
    rows = math.ceil(len(reels) / columns)
    picture = np.zeros((rows * size, columns * size, 3), dtype=np.uint8)
    for number, (episode, reel) in enumerate(zip(episodes, reels, strict=True)):
        over = t >= len(reel) - 1
        colour = OUTCOMES[episode.success] if over else RUNNING
        row, column = divmod(number, columns)
        tile = picture[row * size : (row + 1) * size, column * size : (column + 1) * size]
        tile[:] = colour
        tile[BORDER:-BORDER, BORDER:-BORDER] = reel[min(t, len(reel) - 1)]
    return picture
