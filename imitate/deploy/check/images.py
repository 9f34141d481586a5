"""Checks of images: range, blank and frozen pictures, order of colours, brightness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.check.finding import Finding, Level
from imitate.deploy.check.statistics import Range, image_range
from imitate.system.wording import counted

BRIGHTNESS = 0.15
"""Largest difference of a channel's mean from training, in [0, 1]."""
_COLOURED = 0.02
"""Smallest difference of red and blue in training with which their order can be recognized."""
_DARK = 2 / 255
_SHARE = 0.05
_FROZEN_STEPS = 10


def image_findings(
    key: str, demos: Sequence[NDArray[Any]], training: Range | None
) -> list[Finding]:
    """Examine the images of some demos.

    Args:
        key: key of the observation.
        demos: (T, H, W, C) images of each demo.
        training: statistics of the training's images per channel, or None if unknown.
    """
    kind = demos[0].dtype.kind
    high = max(float(images.max()) for images in demos)
    low = min(float(images.min()) for images in demos)
    broken = _range_words(kind in "iu", low, high)
    if broken:
        return [Finding(Level.problem, "image range", key, f"'{key}': {broken}")]
    findings = _blank(key, demos)
    if training is None:
        return findings
    seen = image_range(demos)
    if seen.mean.shape != training.mean.shape:
        return findings  # another number of channels: reported with the shapes
    return findings + _colours(key, seen.mean, training.mean)


def _range_words(integer: bool, low: float, high: float) -> str:
    if low == high == 0:
        return "all images are black"
    if integer and high <= 1:
        return f"integer pixels from {low:g} to {high:g}: divided by 255 before they became integers? Expected 0 to 255"
    if not integer and high <= _DARK:
        return f"float pixels from {low:.3g} to {high:.3g}: divided by 255 twice? Expected 0 to 1"
    if not integer and (high > 1.01 or low < -0.01):
        return (
            f"float pixels from {low:.3g} to {high:.3g}: the policy expects uint8, or "
            "floats from 0 to 1"
        )
    return ""


def _blank(key: str, demos: Sequence[NDArray[Any]]) -> list[Finding]:
    """Find images of a single colour, and demos in which the image never changes."""
    blank = np.concatenate([np.ptp(images, axis=(1, 2)).max(axis=-1) == 0 for images in demos])
    findings = []
    if blank.mean() > _SHARE:
        level = Level.problem if blank.mean() > 0.5 else Level.warning
        words = f"'{key}': {blank.mean():.0%} of the images have a single colour"
        findings.append(Finding(level, "blank image", key, words))
    frozen = sum(
        len(images) > _FROZEN_STEPS and bool((images == images[0]).all()) for images in demos
    )
    if frozen and not blank.all():
        words = f"'{key}': the image never changes in {frozen} of {counted(len(demos), 'demo')}: is the camera frozen?"
        findings.append(Finding(Level.warning, "frozen image", key, words))
    return findings


def _colours(key: str, seen: NDArray[Any], trained: NDArray[Any]) -> list[Finding]:
    """Check the order of the channels, then the brightness."""
    straight = float(np.abs(seen - trained).sum())
    means = f"means {_shown(seen)}, in training {_shown(trained)}"
    if len(seen) == 3:
        swapped = float(np.abs(seen[::-1] - trained).sum())
        difference = abs(trained[0] - trained[2])
        if difference < _COLOURED:
            words = (
                f"'{key}': red and blue were equally bright in training: their order cannot "
                "be checked"
            )
            return [Finding(Level.note, "channels", key, words), *_brightness(key, seen, trained)]
        if straight > difference and swapped < straight / 2:
            words = f"'{key}': red and blue seem to be swapped (BGR instead of RGB): {means}"
            return [Finding(Level.problem, "channels", key, words)]
    return _brightness(key, seen, trained)


def _brightness(key: str, seen: NDArray[Any], trained: NDArray[Any]) -> list[Finding]:
    if np.abs(seen - trained).max() <= BRIGHTNESS:
        return []
    words = (
        f"'{key}': other colours or brightness: means {_shown(seen)}, in training {_shown(trained)}"
    )
    return [Finding(Level.warning, "brightness", key, words)]


def _shown(means: NDArray[Any]) -> str:
    return " ".join(f"{mean:.2f}" for mean in means)
