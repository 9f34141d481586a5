"""Find problems of the observations in a deployment check.

Vectors are compared with the training data: units, coordinate frames, stuck sensors. Images are checked for their
range, blank and frozen pictures, the order of colours, and brightness.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.features import dimension_words
from imitate.deploy.check.statistics import Range, image_range
from imitate.system.text import counted


class Severity(str, Enum):
    """Severity of a finding: a note is not counted, a problem makes the check fail."""

    note = "note"
    warning = "warning"
    problem = "problem"


@dataclass(frozen=True)
class DeployFinding:
    """A problem, or something that could not be checked.

    Attributes:
        level: severity.
        kind: keyword for programs: ``missing``, ``shape``, ``rate``, ``range``, ``channels`` ...
        key: affected observation; empty if it is not about a single one.
        words: message for people.
    """

    level: Severity
    kind: str
    key: str
    words: str


def verdict(findings: Iterable[DeployFinding]) -> str:
    """Return the result of a check: ``ok``, ``warnings`` or ``fails``."""
    levels = {finding.level for finding in findings}
    if Severity.problem in levels:
        return "fails"
    return "warnings" if Severity.warning in levels else "ok"


FAR = 10.0
"""A value counts as far from its mean above this many standard deviations."""
OUTSIDE = 0.1
"""Fraction of the training's range by which a value may exceed that range."""
SHARE = 0.1
"""A dimension is reported if more than this share of its values is far from the mean or outside the range."""
STILL = 1 / 20
"""A dimension is reported as constant if its standard deviation is below this multiple of the training's."""
_CONSTANT = 1e-6
_UNITS = {
    180 / np.pi: "degrees instead of radians",
    np.pi / 180: "radians instead of degrees",
    1000.0: "millimetres instead of metres",
    0.001: "metres instead of millimetres",
    100.0: "centimetres instead of metres",
    0.01: "metres instead of centimetres",
}


def vector_findings(
    key: str, values: NDArray[Any], training: Range, names: Sequence[str] = ()
) -> list[DeployFinding]:
    """Compare an observation with its statistics in training.

    Args:
        key: key of the observation.
        values: (N, D) values of all steps.
        training: statistics of the observation in training, (D,) each.
        names: names of the dimensions, if they have names.
    """
    x = values.reshape(len(values), -1).astype(np.float64)
    size = np.maximum(np.abs(training.mean), 1.0)
    span = training.high - training.low
    constant = np.where(np.isfinite(span), span, training.std) <= _CONSTANT * size
    std = np.where(constant, 1.0, np.maximum(training.std, _CONSTANT * size))
    far = (np.abs(x - training.mean) > FAR * std).mean(axis=0)
    room = OUTSIDE * span
    outside = ((x < training.low - room) | (x > training.high + room)).mean(axis=0)
    ratio, words = x.std(axis=0) / std, "the deviation"
    if len(x) == 1:  # a single observation does not vary: compare its magnitude
        ratio = np.abs(x[0]) / np.maximum(np.abs(training.mean), _CONSTANT)
        words = "the training's mean"
    findings = []

    def add(level: Severity, kind: str, dims: NDArray[np.bool_], words: str) -> None:
        if dims.any():
            named = f"{key}[{dimension_words(np.flatnonzero(dims), names, dims.size)}]"
            findings.append(DeployFinding(level, kind, key, f"{named} {words}"))

    is_far = ~constant & (far > SHARE)
    add(
        Severity.problem,
        "units",
        is_far,
        f"are more than {FAR:.0f} standard deviations from the training's mean in {_most(far, is_far)} of the steps"
        f"{_hint(ratio, is_far, words)}: compare units and frames",
    )
    is_outside = ~constant & ~is_far & (outside > SHARE)
    add(
        Severity.warning,
        "range",
        is_outside,
        f"are outside the training's range in {_most(outside, is_outside)} of the steps: the policy was not trained on "
        "such values",
    )
    moved = np.abs(x - training.mean).max(axis=0) > 1e-3 * size
    add(
        Severity.warning,
        "constant",
        constant & moved,
        "were constant in training but have other values here, for which the policy was not trained",
    )
    still = ~constant & ~is_far & (ratio < STILL)
    add(
        Severity.warning,
        "still",
        still,
        f"vary less than a twentieth as much as in training{_hint(ratio, still, words)}; check the sensor and the "
        "units",
    )
    return findings


def _most(shares: NDArray[Any], dims: NDArray[np.bool_]) -> str:
    return f"{shares[dims].max():.0%}" if dims.any() else ""


def _hint(ratio: NDArray[Any], dims: NDArray[np.bool_], of: str) -> str:
    """Describe a change of units that explains a ratio of values to the training's values, or return ''."""
    if not dims.any():
        return ""
    typical = float(np.median(ratio[dims]))
    for factor, words in _UNITS.items():
        if 0.6 < typical / factor < 1.6:
            return f" (about {typical:.3g} times {of}: {words}?)"
    return ""


BRIGHTNESS = 0.15
"""Largest allowed difference between a channel's mean and its mean in training, for pixels in [0, 1]."""
_COLOURED = 0.02
"""The order of colours is checked only if the means of red and blue differ by at least this much in training."""
_DARK = 2 / 255
_SHARE = 0.05
_FROZEN_STEPS = 10


def image_findings(
    key: str, demos: Sequence[NDArray[Any]], training: Range | None
) -> list[DeployFinding]:
    """Examine the images of some demos.

    Args:
        key: key of the observation.
        demos: (T, H, W, C) images of each demo.
        training: statistics per channel of the images in training, or None if unknown.
    """
    kind = demos[0].dtype.kind
    high = max(float(images.max()) for images in demos)
    low = min(float(images.min()) for images in demos)
    broken = _range_words(kind in "iu", low, high)
    if broken:
        return [DeployFinding(Severity.problem, "image range", key, f"'{key}': {broken}")]
    findings = _blank(key, demos)
    if training is None:
        return findings
    seen = image_range(demos)
    if seen.mean.shape != training.mean.shape:
        return findings  # the number of channels differs, which is reported with the shapes
    return findings + _colours(key, seen.mean, training.mean)


def _range_words(integer: bool, low: float, high: float) -> str:
    if low == high == 0:
        return "all images are black; check the camera"
    if integer and high <= 1:
        return f"integer pixels from {low:g} to {high:g}: expected 0 to 255; perhaps floats from 0 to 1 became integers"
    if not integer and high <= _DARK:
        return f"float pixels from {low:.3g} to {high:.3g}: expected 0 to 1; perhaps they were divided by 255 twice"
    if not integer and (high > 1.01 or low < -0.01):
        return (
            f"float pixels from {low:.3g} to {high:.3g}: the policy expects uint8, or "
            "floats from 0 to 1"
        )
    return ""


def _blank(key: str, demos: Sequence[NDArray[Any]]) -> list[DeployFinding]:
    """Find images of a single colour, and demos in which the image never changes."""
    blank = np.concatenate([np.ptp(images, axis=(1, 2)).max(axis=1) == 0 for images in demos])
    findings = []
    if blank.mean() > _SHARE:
        level = Severity.problem if blank.mean() > 0.5 else Severity.warning
        words = f"'{key}': {blank.mean():.0%} of the images have a single colour"
        findings.append(DeployFinding(level, "blank image", key, words))
    frozen = sum(
        len(images) > _FROZEN_STEPS and bool((images == images[0]).all()) for images in demos
    )
    if frozen and not blank.all():
        words = f"'{key}': the image never changes in {frozen} of {counted(len(demos), 'demo')}; check the camera"
        findings.append(DeployFinding(Severity.warning, "frozen image", key, words))
    return findings


def _colours(key: str, seen: NDArray[Any], trained: NDArray[Any]) -> list[DeployFinding]:
    """Compare the means of the channels with training: find reversed channels, or another brightness."""
    straight = float(np.abs(seen - trained).sum())
    means = f"means {_shown(seen)}, in training {_shown(trained)}"
    if len(seen) == 3:
        swapped = float(np.abs(seen[::-1] - trained).sum())
        if abs(trained[0] - trained[2]) < _COLOURED:
            words = f"'{key}': red and blue were equally bright in training, so their order cannot be checked"
            return [
                DeployFinding(Severity.note, "channels", key, words),
                *_brightness(key, seen, trained),
            ]
        if swapped < straight / 2:
            words = f"'{key}': red and blue seem to be swapped (BGR instead of RGB): {means}"
            return [DeployFinding(Severity.problem, "channels", key, words)]
    return _brightness(key, seen, trained)


def _brightness(key: str, seen: NDArray[Any], trained: NDArray[Any]) -> list[DeployFinding]:
    if np.abs(seen - trained).max() <= BRIGHTNESS:
        return []
    words = (
        f"'{key}': other colours or brightness: means {_shown(seen)}, in training {_shown(trained)}"
    )
    return [DeployFinding(Severity.warning, "brightness", key, words)]


def _shown(means: NDArray[Any]) -> str:
    return " ".join(f"{mean:.2f}" for mean in means)
