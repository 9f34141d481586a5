"""Measurements of possible causes in images, in the demonstrations and in a recording of failures.

A regression from images to vectors, such as a robot's pose, is fitted to demonstrations. It predicts the vectors of a
recording from its images as they are, turned and mirrored; the best position is the one of the training. Images that
predict the vectors of some steps before are late. Without vectors the distance to the nearest image of the
demonstrations is compared. Scores are those of :mod:`imitate.checks.causes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array, Cause, scored
from imitate.deploy.check.deploy_check import CheckedDemo
from imitate.deploy.check.inputs import Severity, image_findings
from imitate.deploy.check.statistics import Range

Images = NDArray[np.generic]


def of_images(
    key: str,
    demos: Sequence[NDArray[np.generic]],
    known: Range | None,
    shown: Sequence[NDArray[np.generic]],
) -> Iterator[Cause]:
    """Examine the images of a recording: range, order of colours, blank or frozen pictures, brightness.

    The demonstrations' images (`shown`, may be empty) may be of one colour or frozen too: then this is no cause.
    """
    usual = {found.kind for found in image_findings(key, shown, None)} if shown else set()
    for found in image_findings(key, demos, known):
        if found.level is Severity.note or found.kind in usual:
            continue
        score = 5.0 if found.level is Severity.problem else 1.5
        kind = found.kind if "image" in found.kind else f"image {found.kind}"
        yield Cause(kind, score, found.words, _IMAGE_ADVICE.get(found.kind, ""))
        usual.add(found.kind)
    if shown and "channels" not in usual and shown[0].shape[-1] == 3:
        yield _of_border(key, demos, shown)
        yield _of_colours(key, demos, shown)


def _of_border(key: str, demos: Sequence[Images], shown: Sequence[Images]) -> Cause:
    """Compare how many pixels are always black: bars beside a picture of another shape have none in training."""
    here, there = (
        float(np.all([(images == 0).all(axis=(0, 3)) for images in part], axis=0).mean())
        for part in (demos, shown)
    )
    words = (
        f"{here:.0%} of the pixels of '{key}' are always black, in the demonstrations {there:.0%}"
    )
    advice = (
        "crop or scale images in the robot's observe() as those of the demonstrations, without bars"
    )
    return scored("image border", here - there, 0.1, words, advice)


def _of_colours(key: str, demos: Sequence[Images], shown: Sequence[Images]) -> Cause:
    """Compare how often each colour occurs in first images: more alike once red and blue are exchanged?"""
    here, there = ([images[0] for images in part] for part in (demos, shown))
    known, recorded = _colours(there), _colours(here)
    usual = _apart(_colours(there[::2]), _colours(there[1::2])) if len(there) > 3 else 0.1
    as_it_is, exchanged = _apart(recorded, known), _apart(recorded, known.transpose(2, 1, 0))
    words = (
        f"{as_it_is:.1%} of the pixels of the first images of '{key}' have colours that the demonstrations do not have "
        f"as often, and {exchanged:.1%} once red and blue are exchanged ({usual:.1%} between demonstrations)"
    )
    value = as_it_is / max(exchanged, usual, 1e-3)
    return scored("image channels", value, 2.0, words, _IMAGE_ADVICE["channels"])


def _colours(images: Sequence[Images]) -> Array:
    """Return the share of each colour in images (H, W, 3), on 32 levels of each channel."""
    every = np.stack(images)
    scale = 255.0 if every.dtype == np.uint8 else 1.0
    levels = np.clip(np.floor(every.astype(np.float64) * (32 / scale)), 0, 31)
    found = np.histogramdd(levels.reshape(-1, 3), bins=(np.arange(33) - 0.5,) * 3)[0]
    return found / max(float(found.sum()), 1.0)


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).sum() / 2)


_IMAGE_ADVICE = {
    "channels": "exchange red and blue in the robot's observe()",
    "image range": "give uint8 images, or floats from 0 to 1",
    "blank image": "check the camera",
    "frozen image": "check the camera and its driver",
    "brightness": "adjust light and exposure, or train with train.augment",
}


_TURNS: dict[str, Callable[[Images], Images]] = {
    "upside down": lambda images: images[:, ::-1],
    "mirrored": lambda images: images[:, :, ::-1],
    "turned by half": lambda images: images[:, ::-1, ::-1],
    "turned by a quarter to the left": lambda images: np.rot90(images, 1, (1, 2)),
    "turned by a quarter to the right": lambda images: np.rot90(images, -1, (1, 2)),
}
_CELLS = 10
"""Rows and columns to which images are reduced."""
_ROWS = 400
"""Largest number of steps that are compared."""
_RIDGE = 0.1


class Views:
    """Images of one camera and the vectors beside them, in some steps.

    Args:
        episodes: demonstrations or recorded episodes.
        key: name of the camera.
        keys: names of the vectors.
    """

    def __init__(self, episodes: Sequence[CheckedDemo], key: str, keys: Sequence[str]) -> None:
        count = max(_ROWS // len(episodes), 2)
        images, states, before = [], [], []
        for episode in episodes:
            length = len(episode.actions)
            rows = np.unique(np.linspace(0, length - 1, count).astype(int))
            images.append(episode.obs[key][rows])
            flat = [episode.obs[name].reshape(length, -1) for name in keys]
            every = np.concatenate([np.zeros((length, 0)), *flat], axis=1)
            states.append(every[rows])
            before.append([every[np.maximum(rows - lag, 0)] for lag in range(_LATEST + 1)])
        self.images: Images = np.concatenate(images)
        self.states: Array = np.concatenate(states).astype(np.float64)
        self.before: Array = np.concatenate(before, axis=1).astype(np.float64)
        """States (K, N, D) of each number of steps before."""


def _cells(images: Images) -> Array:
    """Return the means (N, D) of cells of images (N, H, W, C)."""
    size = [max(n // _CELLS, 1) for n in images.shape[1:3]]
    rows, columns = (n // cell for n, cell in zip(images.shape[1:3], size, strict=True))
    cut = images[:, : rows * size[0], : columns * size[1]].astype(np.float64)
    found: Array = cut.reshape(len(cut), rows, size[0], columns, size[1], -1).mean(axis=(2, 4))
    return found.reshape(len(cut), -1)


class Seen:
    """Regression from images of demonstrations to vectors, and its errors in a recording.

    Args:
        recorded: images of the recording.
        trained: images of demonstrations.
    """

    def __init__(self, recorded: Views, trained: Views) -> None:
        low, high = trained.states.min(axis=0), trained.states.max(axis=0)
        self.alike = ((recorded.states >= low) & (recorded.states <= high)).all(axis=1)
        """Steps (N,) of the recording in the training's range."""
        self.moves: NDArray[np.bool_] = high > low
        self._images, self._known = recorded.images, _cells(trained.images)
        middle, scale = (f(trained.states, axis=0)[self.moves] for f in (np.mean, np.std))
        self._own = (recorded.before[:, :, self.moves] - middle) / scale
        distances = _squares(self._known, self._known)
        self._width = max(float(np.median(distances)), 1e-9)
        kernel = np.exp(-distances / self._width) + _RIDGE * np.eye(len(distances))
        states = (trained.states[:, self.moves] - middle) / scale
        self._weights = np.linalg.solve(kernel, states)

    def errors(self, turn: Callable[[Images], Images] = lambda images: images) -> Array:
        """Return the errors (K,) of the vectors predicted for each delay, divided by those of a constant."""
        here = _cells(turn(self._images[self.alike]))
        if here.shape[1] != self._known.shape[1]:
            return np.ones(1)
        squares = _squares(here, self._known)
        if not self.moves.any():
            typical: Array = np.median(squares.min(axis=1), keepdims=True) / self._width
            return np.sqrt(typical)
        own = self._own[:, self.alike]
        left = np.abs(np.exp(-squares / self._width) @ self._weights - own).mean(axis=(1, 2))
        found: Array = left / np.maximum(np.abs(own).mean(axis=(1, 2)), 1e-9)
        return found


def of_views(key: str, recorded: Views, trained: Views) -> Iterator[Cause]:
    """Compare the images of a recording in all positions and with the states of the steps before.

    Nothing is measured if the recording has fewer than ten steps in states of the demonstrations.

    Args:
        key: name of the camera.
        recorded: images of the recording.
        trained: images of demonstrations.
    """
    seen = Seen(recorded, trained)
    if seen.alike.sum() < _FEWEST:
        return
    lags = seen.errors()
    as_it_is = min(float(lags[0]), 1.0)
    every = {name: float(seen.errors(turn)[0]) for name, turn in _TURNS.items()}
    best = min(every, key=lambda name: every[name])
    words = (
        f"once images of '{key}' are {best}, they show the recorded state with an error of {every[best]:.2f}, "
        f"and as they are with {as_it_is:.2f} (1: no better than a constant)"
    )
    advice = "turn the images in the robot's observe() as in the demonstrations"
    yield scored("image turned", as_it_is - every[best], 0.2, words, advice)
    late = int(lags.argmin())
    words = (
        f"images of '{key}' show the state {late} steps before with an error of {lags[late]:.2f}, and that of their "
        f"own step with {lags[0]:.2f} (1: no better than a constant)"
    )
    advice = "reduce the camera's buffer and latency, and give each observation its newest image"
    shown = max(1 - float(lags[late]), 0.0)
    yield scored("image late", shown * (as_it_is - float(lags[late])), _LATE, words, advice)


def of_other_episodes(key: str, firsts: Images, ends: Array) -> Cause | None:
    """Test whether the first image of the episode before or after tells more about an episode than its own.

    The image shows where objects are, and so where the robot ends. Ends are predicted from images in other episodes.

    Args:
        key: name of the camera.
        firsts: (N, H, W, C) first images of successive demonstrations.
        ends: (N, D) numbers that depend on the objects, such as the last position of the robot.

    Returns:
        the cause, or None for fewer than twenty demonstrations.
    """
    if len(firsts) < _SUCCESSIVE:
        return None
    cells, standard = _standard(_cells(firsts)), _standard(ends)[1:-1]
    errors = {
        offset: _left_out(cells[1 + offset : len(cells) - 1 + offset], standard)
        for offset in (-1, 0, 1)
    }
    best = min((-1, 1), key=lambda offset: errors[offset])
    words = (
        f"first images of '{key}' in the episode {'after' if best > 0 else 'before'} predict how an episode ends with "
        f"an error of {errors[best]:.2f}, and those of its own with {errors[0]:.2f} (1: no better than a constant)"
    )
    advice = "give each episode its own images where the dataset is made, and watch it: imitate dataset playback"
    score = max(min(errors[0], 1.0) - errors[best], 0.0)
    return scored("images of other episodes", score, 0.2, words, advice)


def of_uninformative(
    key: str, firsts: Images, vectors: Array, ends: Array, error: float
) -> Cause | None:
    """Test whether anything in the first step tells how an episode ends, while the policy errs on its training data.

    Args:
        key: name of the camera.
        firsts: (N, H, W, C) first images of demonstrations.
        vectors: (N, D) first values of all vectors.
        ends: (N, E) numbers that depend on the objects, such as the last position of the robot.
        error: error of the policy's actions on training demonstrations, divided by that of the best constant action.

    Returns:
        the cause, or None for fewer than twenty demonstrations.
    """
    if len(firsts) < _SUCCESSIVE:
        return None
    seen, felt = (
        _left_out(_standard(values), _standard(ends)) for values in (_cells(firsts), vectors)
    )
    words = (
        f"neither first images of '{key}' nor vectors predict how another episode ends: their errors are {seen:.2f} "
        f"and {felt:.2f} (1: no better than a constant), and on its own demonstrations the policy's is {error:.2f}"
    )
    advice = "watch the images (imitate dataset playback FILE): the camera does not see what decides, or not clearly"
    return scored("blind", min(seen / 0.85, felt / 0.85, error / 0.5), 1.0, words, advice)


def _standard(values: Array) -> Array:
    """Return the columns of values (N, D) that vary, with mean 0 and variance 1."""
    middle, scale = values.mean(axis=0), values.std(axis=0)
    varied = scale > 1e-6 * np.maximum(np.abs(middle), 1.0)
    found: Array = ((values - middle) / np.maximum(scale, 1e-12))[:, varied]
    return found


_SUCCESSIVE = 20
"""Fewest demonstrations from whose images ends are predicted."""


def _left_out(known: Array, states: Array) -> float:
    """Return the error of states (N, D) predicted from inputs (N, F) of the others, divided by a constant's."""
    if not known.size or not states.size:
        return 1.0
    products = known @ known.T
    products /= np.trace(products) / len(products)
    # The residual of a left-out row follows from the fit to all rows: Rasmussen and Williams 2006, equation 5.12.
    inverse = np.linalg.inv(products + _RIDGE * np.eye(len(known)))
    left = inverse @ states / np.diag(inverse)[:, None]
    return float(np.abs(left).mean() / max(float(np.abs(states).mean()), 1e-9))


_LATEST = 6
"""Largest number of steps by which images are looked for to be late."""
_LATE = 0.06
_FEWEST = 10


def _squares(a: Array, b: Array) -> Array:
    """Return the squared distances (N, M) of points (N, D) and (M, D)."""
    found: Array = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.maximum(found, 0.0)
