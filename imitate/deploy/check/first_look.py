"""Compare a robot with the policy and its training data before it moves: sizes, units, order, cameras, ranges."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.data.file.features import dimension_words
from imitate.deploy.check.inputs import (
    BRIGHTNESS,
    FAR,
    OUTSIDE,
    DeployFinding,
    Severity,
    image_findings,
    vector_findings,
)
from imitate.deploy.check.statistics import Range, TrainingObservations, image_range
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Robot
from imitate.deploy.schema import Schema
from imitate.errors import UserError


def check_sizes(robot: Robot, schema: Schema | None, resizes: bool) -> None:
    """Compare the sizes of actions and observations, as far as the robot provides them before it is connected.

    Args:
        robot: robot that is not connected yet.
        schema: schema of the policy, or None if a server does not report it.
        resizes: true if the policy accepts images of other sizes.

    Raises:
        UserError: the sizes differ.
    """
    if schema is None:
        return
    limits = _attribute(robot, "limits")
    if limits is not None and limits.size != schema.action_dim:
        raise UserError(
            f"the robot takes actions of {limits.size} numbers, but the policy returns {schema.action_dim}: use the "
            "robot of the demonstrations"
        )
    for key, shape in (_attribute(robot, "observation_shapes") or {}).items():
        wanted = schema.observations.get(key)
        if wanted is None or tuple(shape) == tuple(wanted.shape):
            continue
        if wanted.kind == "low_dim":
            if np.prod(shape) != np.prod(wanted.shape):
                raise UserError(
                    f"the observation '{key}' of the robot has {int(np.prod(shape))} numbers, "
                    f"but the policy was trained with {int(np.prod(wanted.shape))}: use the robot of the demonstrations"
                )
        elif not resizes and len(shape) == len(wanted.shape):
            raise UserError(
                f"the image '{key}' of the robot is {_size(shape)}, but the policy was trained with "
                f"{_size(wanted.shape)}: use --resize if the training images were resized in the same way; "
                "otherwise let observe() return images of the training's size"
            )


def _attribute(robot: Robot, name: str) -> Any:
    """Return an attribute of a robot, or None if it is only available after connecting."""
    try:
        return getattr(robot, name, None)
    except Exception:
        return None


def _size(shape: Any) -> str:
    return " x ".join(map(str, shape))


_OTHERS = 0.2
"""During an episode the standard deviation of a number counts as at least this fraction of its vector's largest one."""
_NEAR = 3.0
"""A number fits a dimension of a vector if it is within this many standard deviations of the dimension's mean."""
_ODD = 2.5
"""A number outside its range and more than this many standard deviations from its mean indicates that the vector has
another order or sign, if this order or sign brings the number within one standard deviation."""
_LITTLE = 0.01
"""Only numbers whose standard deviation exceeds this fraction of their mean are checked for order and sign."""
_VECTORS, _IMAGES = ("units", "range", "constant"), ("channels", "image range", "blank image")


def first_look(
    seen: Mapping[str, NDArray[np.generic]],
    kinds: Mapping[str, str],
    training: TrainingObservations,
) -> list[DeployFinding]:
    """Compare one observation with the statistics of the training.

    Args:
        seen: observations by key while the robot is still.
        kinds: modality of each observation of the policy.
        training: statistics of the training data; observations without statistics are not compared.

    Returns:
        The findings: problems, with which the robot must not be moved, and warnings.
    """
    findings: list[DeployFinding] = []
    images: dict[str, tuple[Range, Range]] = {}
    for key, kind in kinds.items():
        known, value = training.ranges.get(key), np.asarray(seen.get(key, ()))
        if known is None or not value.size or not np.isfinite(value).all():
            continue
        if kind == "low_dim" and value.size == known.mean.size:
            findings += _rounded(key, value, known)
            x = value.ravel().astype(np.float64)
            findings += _of_vector(key, x, known) or _of_begin(key, x, known)
        elif kind == "rgb" and value.ndim == 3 and value.shape[-1] == known.mean.size:
            images[key] = (image_range([value[None]]), known)
            found = image_findings(key, [value[None]], known)
            findings += [entry for entry in found if entry.kind in (*_IMAGES, "brightness")]
    exchanged = list(_exchanged(images))
    odd = {key for finding in exchanged for key in finding.key.split(", ")}
    return exchanged + [finding for finding in findings if finding.key not in odd]


class LaterLook:
    """Checks the vectors of each later observation for values that cannot occur in the units of the training data.

    The numbers of a vector share one unit, so a number that hardly varied in training is judged by the largest
    deviation.

    Args:
        kinds: modality of each observation of the policy.
        training: statistics of the training.
    """

    def __init__(self, kinds: Mapping[str, str], training: TrainingObservations) -> None:
        known = {
            key: training.ranges[key]
            for key, kind in kinds.items()
            if kind == "low_dim" and key in training.ranges
        }
        self._ranges = {
            key: replace(range_, std=np.maximum(range_.std, _OTHERS * range_.std.max()))
            for key, range_ in known.items()
        }
        self._reported: dict[tuple[str, str], str] = {}

    def __call__(self, seen: Mapping[str, Any]) -> str:
        """Return the description of a problem, or ''; later problems of the same kind get the text of the first."""
        for key, known in self._ranges.items():
            x = np.asarray(seen.get(key, ()), dtype=np.float64).ravel()
            if x.size != known.mean.size or not np.isfinite(x).all():
                continue
            for finding in _of_vector(key, x, known):
                if finding.level is Severity.problem and finding.kind in ("units", "zeros"):
                    return self._reported.setdefault((key, finding.kind), finding.words)
        return ""


def look_at_actions(low: ArrayLike, high: ArrayLike, limits: ActionLimits) -> list[DeployFinding]:
    """Compare the actions of the demonstrations with the limits of a robot.

    Args:
        low, high: (A,) range of the policy's actions.
        limits: limits of the robot.
    """
    low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    span = np.where(np.isfinite(high - low), high - low, 0.0)
    least, most = np.asarray(limits.low), np.asarray(limits.high)
    ratio = span / (most - least)
    odd = ratio > FAR
    room = OUTSIDE * span
    beyond = (span > 0) & ((low < least - room) | (high > most + room))
    if not odd.any() and beyond.any():
        words = (
            f"the demonstrations' actions exceed the robot's limits in dimension "
            f"{', '.join(map(str, np.flatnonzero(beyond)))}, so the policy's will be cut"
        )
        return [DeployFinding(Severity.warning, "actions", "", words)]
    if not odd.any():
        return []
    words = (
        f"the policy's actions have a range {ratio[odd].max():.3g} times as large as the robot's limits in dimension "
        f"{', '.join(map(str, np.flatnonzero(odd)))}; check the robot and its units"
    )
    return [DeployFinding(Severity.problem, "actions", "", words)]


def look_at_pose(
    pose: NDArray[np.float64] | None, low: ArrayLike, high: ArrayLike
) -> list[DeployFinding]:
    """Report if ``pose()`` gives zeros, as for relative actions, although the policy sends position targets.

    Args:
        pose: (A,) action that keeps the robot at rest, or None if it is unknown.
        low, high: (A,) range of the policy's actions.
    """
    room = OUTSIDE * (np.asarray(high, dtype=np.float64) - np.asarray(low, dtype=np.float64))
    odd = (np.asarray(low) > room) | (np.asarray(high) < -room)
    if pose is None or pose.any() or odd.sum() < 2:
        return []
    words = (
        "pose() gives zeros, which keep a robot of relative actions at rest, but no action in training was near 0 in "
        f"dimension {', '.join(map(str, np.flatnonzero(odd)))}; let it return the measured position targets"
    )
    return [DeployFinding(Severity.problem, "pose", "", words)]


def _rounded(key: str, value: NDArray[np.generic], known: Range) -> list[DeployFinding]:
    """Report an observation of integers if the training data had fractions."""
    bounds = np.concatenate([known.low, known.high])
    is_whole = not np.isfinite(bounds).all() or bool((bounds == np.rint(bounds)).all())
    if value.dtype.kind not in "iu" or is_whole:
        return []
    words = f"'{key}' has whole numbers ({value.dtype}), unlike in training; check that the driver does not round them"
    return [DeployFinding(Severity.problem, "rounded", key, words)]


def _of_vector(key: str, x: NDArray[np.float64], known: Range) -> list[DeployFinding]:
    found = [f for f in vector_findings(key, x[None], known) if f.kind in _VECTORS]
    room = OUTSIDE * (known.high - known.low)
    outside = (x < known.low - room) | (x > known.high + room)
    std = np.maximum(known.std, 1e-6 * np.maximum(np.abs(known.mean), 1.0))
    if np.isfinite(known.low).all() and not (outside & (np.abs(x - known.mean) > FAR * std)).any():
        found = [f for f in found if f.level is not Severity.problem]
    if outside.any() and not x.any():
        words = f"'{key}' is exactly 0 in all numbers, unlike in training; check that the sensor was read"
        return [DeployFinding(Severity.problem, "zeros", key, words)]
    odd = (
        outside & (known.std > _LITTLE * np.abs(known.mean)) & (np.abs(x - known.mean) > _ODD * std)
    )
    order = _order(x, known, std) if outside.sum() >= 2 else _exchange(x, known, std, odd)
    if order is not None:
        words = (
            f"'{key}': its numbers fit the training only in the order "
            f"{', '.join(map(str, order))}; check the order of joints"
        )
        return [DeployFinding(Severity.problem, "order", key, words)]
    turned = odd & (np.abs(x + known.mean) <= std)
    if outside.any() and (turned == outside).all():
        dims = ", ".join(map(str, np.flatnonzero(turned)))
        words = f"{key}[{dims}] fit the training only with the opposite sign; check the direction of joints"
        return [DeployFinding(Severity.problem, "sign", key, words)]
    return found


def _of_begin(key: str, x: NDArray[np.float64], known: Range) -> list[DeployFinding]:
    """Report numbers that differ from the first steps of the demonstrations: the robot or objects are elsewhere."""
    if known.first is None or known.first[0].shape != x.shape:
        return []
    low, high = known.first
    room = OUTSIDE * (known.high - known.low) + 1e-3 * np.maximum(np.abs(known.mean), 1.0)
    odd = np.flatnonzero((x < low - room) | (x > high + room))
    if not len(odd):
        return []
    most = odd[np.argmax((np.maximum(low - x, x - high) / room)[odd])]
    words = (
        f"{key}[{dimension_words(odd, (), len(x))}] is unlike the first steps of the demonstrations: number {most} is "
        f"{x[most]:.4g}, and they began at {low[most]:.4g} to {high[most]:.4g}; bring the robot and the objects to "
        "where demonstrations began"
    )
    return [DeployFinding(Severity.warning, "begin", key, words)]


def _exchange(
    x: NDArray[np.float64], known: Range, std: NDArray[np.float64], odd: NDArray[np.bool_]
) -> list[int] | None:
    """Return the order of dimensions in which an odd value and another one are swapped and then near their means.

    Returns None if no swap has this effect.
    """
    for a in np.flatnonzero(odd):
        near = (np.abs(x[a] - known.mean) <= std) & (np.abs(x - known.mean[a]) <= std[a])
        if near.any():
            order, b = list(range(len(x))), int(np.flatnonzero(near)[0])
            order[a], order[b] = b, int(a)
            return order
    return None


def _order(x: NDArray[np.float64], known: Range, std: NDArray[np.float64]) -> list[int] | None:
    """Return for each dimension in training the robot's dimension that fits it, or None if not all values fit."""
    likely = (np.abs(x[None] - known.mean[:, None]) <= _NEAR * std[:, None]) & (
        (x[None] >= known.low[:, None]) & (x[None] <= known.high[:, None])
    )
    taken: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in [row, *np.flatnonzero(likely[row])]:
            if not likely[row, column] or column in tried:
                continue
            tried.add(int(column))
            if column not in taken or place(taken[int(column)], tried):
                taken[int(column)] = row
                return True
        return False

    if not all(place(row, set()) for row in range(len(x))):
        return None
    return [column for column, _ in sorted(taken.items(), key=lambda pair: pair[1])]


def _exchanged(images: Mapping[str, tuple[Range, Range]]) -> Iterator[DeployFinding]:
    """Find pairs of cameras whose mean colours in training fit better after the two are exchanged."""
    for first, second in combinations(images, 2):
        (a, trained_a), (b, trained_b) = images[first], images[second]
        if a.mean.shape != b.mean.shape:
            continue
        straight = _difference((a, b), (trained_a, trained_b))
        crossed = _difference((a, b), (trained_b, trained_a))
        reversed_ = _difference((_reversed(a), _reversed(b)), (trained_a, trained_b))
        if straight > BRIGHTNESS and crossed < min(straight / 3, reversed_):
            words = f"'{first}' and '{second}' look exchanged: each has the colours that the other one had in training"
            yield DeployFinding(Severity.problem, "exchanged", f"{first}, {second}", words)


def _reversed(seen: Range) -> Range:
    """Return the statistics of an image with its channels reversed, such as BGR for RGB."""
    return replace(seen, mean=seen.mean[::-1])


def _difference(seen: Sequence[Range], trained: Sequence[Range]) -> float:
    """Return the largest difference between the channel means of seen and training images."""
    pairs = zip(seen, trained, strict=True)
    return max(float(np.abs(here.mean - there.mean).max()) for here, there in pairs)
