"""Comparison of a recording's images with those of demonstrations: are they turned, mirrored or late?

A regression from images to vectors, such as a robot's pose, is fitted to demonstrations. It predicts the vectors of a
recording from its images as they are and in each other position; the best position is the one of the training. Images
that predict the vectors of some steps before are late. Without
vectors the distance to the nearest image of the demonstrations is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array, Cause, scored
from imitate.deploy.check.deploy_check import CheckedDemo

Images = NDArray[np.generic]

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
        """Return the errors (K,) of the predicted vectors of each number of steps before, in those of a constant."""
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
    yield scored("image late", as_it_is - float(lags[late]), _LATE, words, advice)


_LATEST = 6
"""Largest number of steps by which images are looked for to be late."""
_LATE = 0.06
_FEWEST = 10


def _squares(a: Array, b: Array) -> Array:
    """Return the squared distances (N, M) of points (N, D) and (M, D)."""
    found: Array = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.maximum(found, 0.0)
