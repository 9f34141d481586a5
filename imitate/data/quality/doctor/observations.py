"""Checks of observations: of images, and of observations from which a policy cannot learn.

Images may be blank, have values that are not pixels, or be upside down. A policy cannot learn from constants and from
copies of the actions.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from imitate.data.file.episode import NO_COLOURS
from imitate.data.file.hdf5_format import PIECE_BYTES, DemoFile
from imitate.data.quality.doctor.actions import Ranges
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy, counted, runs_of
from imitate.data.quality.doctor.survey import HAND, Array, DemoSteps, FileLayout

_UNFIT = re.compile(r"hand|wrist|bird|top|overhead|depth|segmentation")
_MAX_DEMOS = 10
_MIN_FRAMES = 60
_FLICKER = 8  # changes of pixels below this, out of 255, are noise
_SURE = 0.6  # correlation coefficient above which images count as upside down


class Orientation:
    """Correlation of the hand's height with the image row in which most pixels change.

    Args:
        layout: layout of the file.
    """

    def __init__(self, layout: FileLayout) -> None:
        hands = [key for key, form in layout.steps.items() if HAND.match(key)]
        self._hand = next((key for key in hands if layout.steps[key].step == (3,)), "")
        self._keys = [
            key
            for key, form in layout.steps.items()
            if form.is_image and key.startswith("obs/") and not _UNFIT.search(key)
        ]
        self._heights: tuple[str, int, Array] | None = None
        self._demos: set[str] = set()
        self._seen: defaultdict[str, list[tuple[Array, Array]]] = defaultdict(list)

    def see(self, piece: DemoSteps) -> None:
        """Record the motion in the first demos."""
        if self._hand in piece.small:
            self._heights = piece.demo, piece.start, piece.small[self._hand][:, 2]
        arrays = dict([piece.large]) if piece.large else piece.small
        for key in self._keys:
            if key in arrays and (len(self._demos) < _MAX_DEMOS or piece.demo in self._demos):
                self._demos.add(piece.demo)
                self._follow(piece, key, arrays[key])

    def _follow(self, piece: DemoSteps, key: str, images: Array) -> None:
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
        rows = by_row[clear] @ np.arange(by_row.shape[1]) / weight[clear]
        self._seen[key].append((rows, (heights[1:] + heights[:-1])[clear]))

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each camera whose images are upside down."""
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


_MAX_RUNS = 100


class ImageChecks:
    """Check of images (H, W, C) with 1, 3 or 4 channels, except depth and segmentation.

    Args:
        layout: layout of the file.
    """

    def __init__(self, layout: FileLayout) -> None:
        self._keys = {
            key: form
            for key, form in layout.steps.items()
            if key.startswith("obs/") and form.is_image and not NO_COLOURS.search(key)
        }
        self._blank: defaultdict[str, list[Place]] = defaultdict(list)
        self._low: dict[str, float] = {}
        self._high: dict[str, float] = {}
        self._convention = layout.file.file_attrs.get("macros_image_convention")

    def see(self, piece: DemoSteps) -> None:
        """Check the frames of a piece."""
        arrays = dict([piece.large]) if piece.large else piece.small
        for key in self._keys.keys() & arrays.keys():
            if arrays[key].size == 0:
                continue
            frames = arrays[key].reshape(len(arrays[key]), -1)
            low, high = frames.min(axis=1), frames.max(axis=1)
            self._note(piece, key, low, high)

    def _note(self, piece: DemoSteps, key: str, low: Array, high: Array) -> None:
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
            what = f"images of '{key}' are {dtype} from {low:.4g} to {high:.4g}: normalized values, not pixels"
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
            return  # another finding reports blank images
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


_EQUAL = 0.98  # smallest fraction of the steps at which a copy equals the actions
_FEWEST = 10  # smallest number of steps to compare
_ROUNDING = 1e-5
_SHIFTS = {0: "the action of the same step", 1: "the action of the step before"}
_NAMED_FOR_ACTIONS = re.compile(r"action|command|target|ctrl", re.IGNORECASE)


class ActionCopies:
    """Search for observations that equal the actions of the same step, or of the previous step."""

    def __init__(self) -> None:
        self._steps: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._equal: defaultdict[tuple[str, int], int] = defaultdict(int)

    def see(self, piece: DemoSteps) -> None:
        """Count the steps of a piece at which actions change and an observation equals them."""
        actions = piece.small.get("actions")
        if actions is None or actions.dtype.kind != "f":
            return
        for key, values in piece.small.items():
            if not key.startswith("obs/") or values.shape != actions.shape:
                continue
            for shift in _SHIFTS:
                self._count(key, shift, values[shift:], actions[: len(actions) - shift])

    def _count(self, key: str, shift: int, values: Array, actions: Array) -> None:
        changed = np.any(actions[1:] != actions[:-1], axis=-1)
        values, actions = values[1:][changed], actions[1:][changed]
        self._steps[key, shift] += len(actions)
        equal = np.isclose(values, actions, rtol=_ROUNDING, atol=_ROUNDING).all(axis=-1)
        self._equal[key, shift] += int(equal.sum())

    def copies(self) -> dict[str, int]:
        """Return the shift in steps of each copy, by array."""
        return {
            key: shift
            for (key, shift), steps in sorted(self._steps.items(), reverse=True)
            if steps >= _FEWEST and self._equal[key, shift] >= _EQUAL * steps
        }

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each copy."""
        for key, shift in sorted(self.copies().items()):
            what = f"'{key}' is {_SHIFTS[shift]}"
            if _is_harmless(key, shift):
                words = f"{what}, as in data whose actions are the next state"
                yield Finding("action_copy", Level.info, words, [Place(key=key)])
                continue
            yield Finding(
                "action_copy",
                Level.warning,
                f"{what}: a policy can copy it and ignore the other observations",
                [Place(key=key)],
                Remedy(drop_keys=[key]),
            )


def _is_harmless(key: str, shift: int) -> bool:
    return shift > 0 and not _NAMED_FOR_ACTIONS.search(key)


def useless_observations(
    file: DemoFile, demos: Sequence[str], keys: Sequence[str]
) -> dict[str, str]:
    """Return the reason why an observation is useless, by key, with the same checks as the doctor.

    Args:
        file: the open file.
        demos: demos to read.
        keys: observations that are vectors.
    """
    ranges, copies = Ranges(), ActionCopies()
    for demo in demos:
        for piece in _pieces(file, demo, ["actions", *(f"obs/{key}" for key in keys)]):
            ranges.see(piece)
            copies.see(piece)
    found = {key: f"{value} in all steps" for key, value in ranges.constants().items()}
    found |= {
        key: f"it is {_SHIFTS[shift]}"
        for key, shift in copies.copies().items()
        if not _is_harmless(key, shift)
    }
    return {key: found[f"obs/{key}"] for key in keys if f"obs/{key}" in found}


def _pieces(file: DemoFile, demo: str, names: Sequence[str]) -> Iterator[DemoSteps]:
    """Yield consecutive steps of several arrays of a demo."""
    row = sum(
        math.prod(file.shape(demo, name)[1:]) * file.dtype(demo, name).itemsize for name in names
    )
    rows = max(1, PIECE_BYTES // max(1, row))
    for start in range(0, file.length(demo), rows):
        small = {name: file.read(demo, name, start, start + rows) for name in names}
        yield DemoSteps(demo, start, small)
