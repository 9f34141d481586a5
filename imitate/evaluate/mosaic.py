"""Video of several episodes side by side: the border is grey while an episode runs, then green (success) or red."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.evaluate.episodes import EpisodeResult
from imitate.evaluate.video import read_frames
from imitate.system.plain_files import cleared, replaced

BORDER = 6
GREY, GREEN, RED = (128, 128, 128), (40, 180, 60), (210, 40, 40)
HOLD_FRAMES = 10


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
        colour = (GREEN if episode.success else RED) if over else GREY
        row, column = divmod(number, columns)
        tile = picture[row * size : (row + 1) * size, column * size : (column + 1) * size]
        tile[:] = colour
        tile[BORDER:-BORDER, BORDER:-BORDER] = reel[min(t, len(reel) - 1)]
    return picture
