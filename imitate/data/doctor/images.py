"""Checks of images: blank frames, values that are not pixels, images that are upside down."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from imitate.data.doctor.finding import Finding, Level, Place, Remedy, counted, runs_of
from imitate.data.doctor.layout import Layout
from imitate.data.doctor.orientation import flip
from imitate.data.doctor.survey import Array, Piece

_MAX_RUNS = 100
_NO_COLOURS = re.compile("depth|segmentation")


class Images:
    """Check of image arrays (H, W, C) with 1, 3 or 4 channels, but not of depth and segmentation.

    Args:
        layout: layout of the file.
    """

    def __init__(self, layout: Layout) -> None:
        self._keys = {
            key: form
            for key, form in layout.steps.items()
            if key.startswith("obs/") and form.is_image and not _NO_COLOURS.search(key)
        }
        self._blank: defaultdict[str, list[Place]] = defaultdict(list)
        self._low: dict[str, float] = {}
        self._high: dict[str, float] = {}
        self._convention = layout.file.file_attrs.get("macros_image_convention")

    def see(self, piece: Piece) -> None:
        """Check the frames of a piece."""
        arrays = dict([piece.large]) if piece.large else piece.small
        for key in self._keys.keys() & arrays.keys():
            if arrays[key].size == 0:
                continue
            frames = arrays[key].reshape(len(arrays[key]), -1)
            low, high = frames.min(axis=1), frames.max(axis=1)
            self._note(piece, key, low, high)

    def _note(self, piece: Piece, key: str, low: Array, high: Array) -> None:
        blank = np.flatnonzero(low == high)
        if len(blank):
            runs = runs_of(blank + piece.start)[:_MAX_RUNS]
            self._blank[key].append(Place(piece.demo, key, runs))
        self._low[key] = min(self._low.get(key, np.inf), float(low.min()))
        self._high[key] = max(self._high.get(key, -np.inf), float(high.max()))

    def findings(self) -> Iterator[Finding]:
        """Return the findings on all frames."""
        for key, places in sorted(self._blank.items()):
            demos = list(dict.fromkeys(place.demo or "" for place in places))
            yield Finding(
                "blank_images",
                Level.warning,
                f"{counted(len(demos), 'has have')} frames of one colour in '{key}'",
                places,
                Remedy(drop_demos=demos),
            )
        for key in sorted(self._high):
            yield from self._find_range(key)
        if self._convention == "opengl" and self._keys:
            yield self._upside_down()

    def _find_range(self, key: str) -> Iterator[Finding]:
        low, high, dtype = self._low[key], self._high[key], self._keys[key].dtype
        if dtype == np.uint8 and high > 1:
            return
        if dtype != np.uint8 and (low < 0 or high > 255):
            what = (
                f"images of '{key}' are {dtype} from {low:.4g} to {high:.4g}: normalized, no pixels"
            )
            yield Finding(
                "image_range",
                Level.error,
                what,
                [Place(key=key)],
                advice="write them as uint8 from 0 to 255",
            )
            return
        scale = 255 if high <= 1 else 1
        if dtype == np.uint8 and high == 0:
            return  # blank images are reported by another finding
        yield Finding(
            "image_range",
            Level.info if dtype.kind == "f" and high <= 1 else Level.warning,
            f"images of '{key}' are {dtype} from {low:.4g} to {high:.4g}: expected uint8 from 0 to 255",
            [Place(key=key)],
            Remedy(values={name: _to_pixels(scale) for name in (key, f"next_{key}")}),
        )

    def _upside_down(self) -> Finding:
        keys = [name for key in sorted(self._keys) for name in (key, f"next_{key}")]
        return Finding(
            "upside_down",
            Level.warning,
            "images are upside down: attribute 'macros_image_convention' is 'opengl', whose first row is the lowest",
            [Place(key=key) for key in sorted(self._keys)],
            Remedy(
                values=dict.fromkeys(keys, flip),
                attrs={"macros_image_convention": "opencv"},
            ),
        )


def _to_pixels(scale: int) -> Callable[[Array], Array]:
    return lambda values: np.rint(values * np.float32(scale)).clip(0, 255).astype(np.uint8)
