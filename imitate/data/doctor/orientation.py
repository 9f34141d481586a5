"""Check that images of a fixed camera are not upside down: moving pixels rise when the hand rises."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from imitate.data.doctor.finding import Finding, Level, Place, Remedy
from imitate.data.doctor.layout import Layout
from imitate.data.doctor.survey import Array, Piece

_HAND = re.compile(r"^obs/(\w+_)?(eef|ee|tcp)_pos$")
_UNFIT = re.compile(r"hand|wrist|bird|top|overhead|depth|segmentation")
_MAX_DEMOS = 10
_MIN_FRAMES = 60
_FLICKER = 8  # on a scale of 255; smaller changes are noise
_SURE = 0.6  # correlation coefficient


class Orientation:
    """Correlation of the hand's height with the image row in which most pixels change.

    Args:
        layout: layout of the file.
    """

    def __init__(self, layout: Layout) -> None:
        hands = [key for key, form in layout.steps.items() if _HAND.match(key)]
        self._hand = next((key for key in hands if layout.steps[key].step == (3,)), None)
        self._keys = [
            key
            for key, form in layout.steps.items()
            if form.is_image and key.startswith("obs/") and not _UNFIT.search(key)
        ]
        self._heights: tuple[str, int, Array] | None = None
        self._demos: set[str] = set()
        self._seen: defaultdict[str, list[tuple[Array, Array]]] = defaultdict(list)

    def see(self, piece: Piece) -> None:
        """Record the motion in the first demos."""
        if self._hand is None or not self._keys:
            return
        if self._hand in piece.small:
            self._heights = piece.demo, piece.start, piece.small[self._hand][:, 2]
        arrays = dict([piece.large]) if piece.large else piece.small
        for key in self._keys:
            if key in arrays and (len(self._demos) < _MAX_DEMOS or piece.demo in self._demos):
                self._demos.add(piece.demo)
                self._follow(piece, key, arrays[key])

    def _follow(self, piece: Piece, key: str, images: Array) -> None:
        if self._heights is None or self._heights[0] != piece.demo or len(images) < 2:
            return
        _, start, heights = self._heights
        heights = heights[piece.start - start :][: len(images)]
        if piece.start < start or len(heights) < len(images):
            return
        gray = images[..., images.shape[-1] // 2].astype(np.float32)
        change = np.abs(np.diff(gray, axis=0))
        change[change < _FLICKER] = 0
        by_row = change.sum(axis=2)
        weight = by_row.sum(axis=1)
        clear = weight > 0.1 * weight.max()
        rows = by_row @ np.arange(by_row.shape[1]) / np.maximum(weight, 1e-9)
        between = (heights[1:] + heights[:-1]) / 2
        self._seen[key].append((rows[clear], between[clear]))

    def findings(self) -> Iterator[Finding]:
        """Return the cameras whose images are upside down."""
        for key, seen in sorted(self._seen.items()):
            rows, heights = (np.concatenate([pair[i] for pair in seen]) for i in (0, 1))
            if len(rows) < _MIN_FRAMES or rows.std() == 0 or heights.std() == 0:
                continue
            correlation = float(np.corrcoef(rows, heights)[0, 1])
            if correlation > _SURE:
                yield Finding(
                    "orientation",
                    Level.info,
                    f"images of '{key}' look upside down: moving pixels go down when "
                    f"'{self._hand}' goes up (correlation {correlation:.2f}); look at some images",
                    [Place(key=key)],
                    Remedy(values={name: flip for name in (key, f"next_{key}")}),
                )


def flip(images: Array) -> Array:
    """Flip images (n, H, W, C) vertically."""
    return images[:, ::-1]
