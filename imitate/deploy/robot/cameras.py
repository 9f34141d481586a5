"""Detect camera faults in an episode: pictures that repeat, or are suddenly exchanged, turned or recoloured.

Each camera's picture is compared with its previous one, in a grid of pixels. Between two control steps a scene changes
little; if a restarted driver has exchanged, turned or recoloured a picture, it fits the previous one only after this is
undone.
"""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.robot import Observation
from imitate.errors import RobotError

Grid = NDArray[np.float64]

_SIDE = 32
"""Number of rows and columns of pixels to compare."""
_CHANGED = 0.02
"""Mean change of the pixels, in [0, 1], from which a picture is checked for a fault."""
_UNDOING: dict[str, Callable[[Grid], Grid]] = {
    "is upside down": lambda grid: grid[::-1, ::-1],
    "is mirrored": lambda grid: grid[:, ::-1],
    "has exchanged red and blue channels": lambda grid: grid[..., ::-1],
}


class CameraWatch:
    """Checks each picture of an episode.

    Args:
        frozen: number of steps without a new picture after which a camera counts as frozen, even if a few pictures
            repeat in turn; 0 disables the check.
        least_s: shortest time in seconds without a new picture after which a camera counts as frozen.
    """

    def __init__(self, frozen: int, least_s: float) -> None:
        self._frozen, self._least_s = frozen, least_s
        self._recent: dict[str, list[int]] = {}
        self._since_s: dict[str, float] = {}
        self._repeated: Counter[str] = Counter()
        self._grids: dict[str, Grid] = {}

    def fault(self, observation: Observation, now_s: float) -> str:
        """Return the reason why a picture is unusable, or ''.

        Raises:
            RobotError: a camera has given no new picture for too long.
        """
        pictures = {key: value for key, value in observation.values.items() if _is_picture(value)}
        for key, value in pictures.items():
            self._count(key, value, now_s)
        grids = {key: _grid(value) for key, value in pictures.items()}
        words = _changed(grids, self._grids)
        if not words:
            self._grids = grids
        return words

    def _count(self, key: str, value: NDArray[Any], now_s: float) -> None:
        if not self._frozen:
            return
        recent, picture = self._recent.setdefault(key, []), crc32(np.ascontiguousarray(value).data)
        is_new = picture not in recent
        self._repeated[key] = 0 if is_new else self._repeated[key] + 1
        lasted_s = now_s - self._since_s.setdefault(key, now_s)
        count = self._repeated[key]
        if count >= self._frozen and lasted_s >= self._least_s - 1e-6:
            words = "been the same" if picture == recent[-1] else "only repeated earlier pictures"
            raise RobotError(
                f"the image '{key}' has {words} for {count} steps, so the camera is frozen; the robot was stopped"
            )
        if is_new:
            self._since_s[key] = now_s
        else:
            recent.remove(picture)
        self._recent[key] = [*recent, picture][-self._frozen :]


def _changed(now: dict[str, Grid], before: dict[str, Grid]) -> str:
    """Describe a picture that fits the previous one only after an exchange, turn or change of colours is undone."""
    keys = [key for key in now if key in before and now[key].shape == before[key].shape]
    for key in keys:
        if words := _emptied(now[key], before[key]):
            return f"the image '{key}' {words}"
    odd = [key for key in keys if _difference(now[key], before[key]) > _CHANGED]
    for key in odd:
        for words, undo in _UNDOING.items():
            if _fits(_difference(undo(now[key]), before[key]), now[key], before[key]):
                return f"the image '{key}' {words}, unlike before"
    for a, b in combinations([key for key in keys if now[key].shape[-1] == 3], 2):
        if now[a].shape != now[b].shape or not {a, b} & set(odd):
            continue
        if np.array_equal(now[a], now[b]) and not np.array_equal(before[a], before[b]):
            return f"the images '{a}' and '{b}' are the same, unlike before"
        crossed = max(_difference(now[a], before[b]), _difference(now[b], before[a]))
        if all(_fits(crossed, now[key], before[key]) for key in (a, b)):
            return f"the images '{a}' and '{b}' have been exchanged"
    return ""


def _fits(undone: float, now: Grid, before: Grid) -> bool:
    """Return True if ``undone``, the difference of two pictures without a change, is below a third of that with it."""
    return 3 * undone < _difference(now, before)


def _difference(a: Grid, b: Grid) -> float:
    with np.errstate(invalid="ignore"):  # values may be inf or NaN
        return float(np.abs(a - b).mean())


def _emptied(now: Grid, before: Grid) -> str:
    """Describe a picture of which at least the lower quarter has become uniform, as in a frame that was cut off.

    Each of these rows varied in the previous picture. White rows are no fault, because a bright light causes them too.
    """
    filled = (now == now[-1, -1]).all(axis=(1, 2))
    varied = (before != before[:, :1]).any(axis=(1, 2))
    if filled.all():
        return "has a single colour" if (before != before[-1, -1]).any() else ""
    count = int(filled[::-1].argmin())
    is_cut = 4 * count >= len(now) and count > 1 and now[-1, -1].min() < 1.0
    if is_cut and varied[-count:].all():
        return "has a single colour in its lower part: the frame was not transmitted whole"
    return ""


def _grid(value: NDArray[Any]) -> Grid:
    """Sample (h, w, C) pixels of a picture (H, W, C) in [0, 1], evenly and symmetrically spread."""
    rows, columns = (_places(size) for size in value.shape[:2])
    scale = 255.0 if value.dtype.kind in "iu" else 1.0
    found: Grid = value[rows[:, None], columns].astype(np.float64) / scale
    return found


def _places(size: int) -> NDArray[np.int64]:
    half = np.linspace(0, (size - 1) / 2, _SIDE // 2 + 1).astype(np.int64)
    found: NDArray[np.int64] = np.unique(np.concatenate([half, size - 1 - half]))
    return found


def _is_picture(value: Any) -> bool:
    """Return True for an image with any channels, of integers or floats."""
    is_array = getattr(value, "ndim", 0) == 3
    return is_array and (value.dtype == np.uint8 or value.shape[-1] == 3) and value.size > 0
