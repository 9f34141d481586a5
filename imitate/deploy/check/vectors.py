"""Compare vectors with the training: units, coordinate frames, stuck sensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.check.finding import Finding, Level
from imitate.deploy.check.statistics import Range

FAR, OUTSIDE = 10.0, 0.1
"""Distance in standard deviations that counts as far; fraction of the training's range by which a value may exceed
it."""
SHARE = 0.1
"""A dimension is reported if more than this share of its steps is far or outside."""
STILL = 1 / 20
"""A dimension is reported if its deviation is below this multiple of the training's."""
_CONSTANT = 1e-6
_UNITS = {
    180 / np.pi: "degrees in place of radians",
    np.pi / 180: "radians in place of degrees",
    1000.0: "millimetres in place of metres",
    0.001: "metres in place of millimetres",
    100.0: "centimetres in place of metres",
    0.01: "metres in place of centimetres",
}


def vector_findings(key: str, values: NDArray[Any], training: Range) -> list[Finding]:
    """Compare an observation with its statistics in training.

    Args:
        key: key of the observation.
        values: (N, D) values of all steps.
        training: statistics in training, (D,) each.
    """
    x = values.reshape(len(values), -1).astype(np.float64)
    size = np.maximum(np.abs(training.mean), 1.0)
    span = training.high - training.low
    constant = np.where(np.isfinite(span), span, training.std) <= _CONSTANT * size
    std = np.where(constant, 1.0, np.maximum(training.std, _CONSTANT * size))
    far = (np.abs(x - training.mean) > FAR * std).mean(axis=0)
    room = OUTSIDE * np.where(np.isfinite(span), span, 0.0)
    outside = ((x < training.low - room) | (x > training.high + room)).mean(axis=0)
    ratio, words = x.std(axis=0) / std, "the deviation"
    if len(x) == 1:  # one observation that does not vary: its size indicates its unit
        ratio = np.abs(x[0]) / np.maximum(np.abs(training.mean), _CONSTANT)
        words = "the training's mean"
    findings = []

    def add(level: Level, kind: str, dims: NDArray[np.bool_], words: str) -> None:
        if dims.any():
            named = _named(key, dims)
            findings.append(Finding(level, kind, key, f"{named} {words}"))

    is_far = ~constant & (far > SHARE)
    add(
        Level.problem,
        "units",
        is_far,
        f"lie more than {FAR:.0f} standard deviations from the training's mean in {_most(far, is_far)} of the steps"
        f"{_hint(ratio, is_far, words)}: compare units and frames",
    )
    is_outside = ~constant & ~is_far & (outside > SHARE)
    add(
        Level.warning,
        "range",
        is_outside,
        f"are outside the training's range in {_most(outside, is_outside)} of the steps: the policy has not seen such "
        "values",
    )
    moved = np.abs(x - training.mean).max(axis=0) > 1e-3 * size
    add(
        Level.warning,
        "constant",
        constant & moved,
        "had one value in training and have others here: the policy has not learned what they mean",
    )
    still = ~constant & ~is_far & (ratio < STILL)
    add(
        Level.warning,
        "still",
        still,
        f"vary less than a twentieth as much as in training{_hint(ratio, still, words)}: is a "
        "sensor stuck, or are the units different?",
    )
    return findings


def _named(key: str, dims: NDArray[np.bool_]) -> str:
    """Format as ``joints[0, 3]``."""
    return f"{key}[{', '.join(map(str, np.flatnonzero(dims)))}]"


def _most(shares: NDArray[Any], dims: NDArray[np.bool_]) -> str:
    return f"{shares[dims].max():.0%}" if dims.any() else ""


def _hint(ratio: NDArray[Any], dims: NDArray[np.bool_], of: str) -> str:
    """Return a change of units that explains the ratio to the training's values."""
    if not dims.any():
        return ""
    typical = float(np.median(ratio[dims]))
    for factor, words in _UNITS.items():
        if 0.6 < typical / factor < 1.6:
            return f" (about {typical:.3g} times {of}: {words}?)"
    return ""
