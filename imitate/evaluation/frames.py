"""Frames of videos: drawn in worker processes and written by the process that makes the video."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
