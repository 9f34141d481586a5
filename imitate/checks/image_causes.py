"""Measurements of possible causes of failure in images of the demonstrations and of a recording.

A regression from images to observed vectors, such as the robot's pose, is fitted to demonstrations. It predicts the
vectors of a recording from the recorded images as they are, turned and mirrored: if turned images predict better, the
camera is mounted otherwise than in the demonstrations. Images that predict the vectors of an earlier step best are
late. If there are no vectors, the distance to the nearest image of the demonstrations is used instead of the error.
:mod:`imitate.checks.causes` describes the scores.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

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
    """Examine the images of a recording: range, order of colours, blank or frozen pictures, brightness, black borders.

    Args:
        key: observation key of the images.
        demos: images (T, H, W, C) of each recorded episode.
        known: statistics of these images in the training, or None.
        shown: images of each demonstration; may be empty. Oddities that they have too are not reported.
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


def of_exchanged(
    keys: Sequence[str], episodes: Sequence[CheckedDemo], shown: Sequence[CheckedDemo]
) -> Iterator[Cause]:
    """Test for each two cameras whether their recorded pictures look like those of the other in the demonstrations.

    Args:
        keys: observation keys of the images.
        episodes: recorded episodes.
        shown: demonstrations.
    """
    here, there = ({key: _mean_picture(part, key) for key in keys} for part in (episodes, shown))
    for a, b in combinations(keys, 2):
        if not here[a].shape == here[b].shape == there[a].shape == there[b].shape:
            continue
        straight = np.abs(here[a] - there[a]).mean() + np.abs(here[b] - there[b]).mean()
        crossed = np.abs(here[a] - there[b]).mean() + np.abs(here[b] - there[a]).mean()
        words = (
            f"the mean pictures of '{a}' and '{b}' differ from those of the demonstrations by {straight:.2g}, and by "
            f"{crossed:.2g} if the cameras are exchanged"
        )
        value = float(straight / max(crossed, 1e-3))
        yield scored(
            "exchanged", value, 2.0, words, "exchange the cameras in the robot's observe()"
        )


def _mean_picture(episodes: Sequence[CheckedDemo], key: str) -> Array:
    """Return the mean of all images of a camera (H, W, C), in [0, 1]."""
    images = [episode.obs[key] for episode in episodes]
    scale = 255.0 if images[0].dtype == np.uint8 else 1.0
    found: Array = np.mean([each.mean(axis=0, dtype=np.float64) for each in images], axis=0) / scale
    return found


def _of_border(key: str, demos: Sequence[Images], shown: Sequence[Images]) -> Cause:
    """Compare how many pixels are always black: more than in the demonstrations suggest bars around the picture."""
    here, there = (
        float(np.all([(images == 0).all(axis=(0, 3)) for images in part], axis=0).mean())
        for part in (demos, shown)
    )
    words = (
        f"{here:.0%} of the pixels of '{key}' are always black ({there:.0%} in the demonstrations)"
    )
    advice = "crop or scale images in the robot's observe() like those of the demonstrations, without bars"
    return scored("image border", here - there, 0.1, words, advice)


def _of_colours(key: str, demos: Sequence[Images], shown: Sequence[Images]) -> Cause:
    """Test whether first images would have the colours of the demonstrations if red and blue were exchanged."""
    here, there = ([images[0] for images in part] for part in (demos, shown))
    known, recorded = _colours(there), _colours(here)
    usual = _apart(_colours(there[::2]), _colours(there[1::2])) if len(there) > 3 else 0.1
    as_it_is, exchanged = _apart(recorded, known), _apart(recorded, known.transpose(2, 1, 0))
    words = (
        f"{as_it_is:.1%} of the pixels in first images of '{key}' differ in colour from the demonstrations, and "
        f"{exchanged:.1%} after red and blue are exchanged ({usual:.1%} between demonstrations)"
    )
    value = as_it_is / max(exchanged, usual, 1e-3)
    return scored("image channels", value, 2.0, words, _IMAGE_ADVICE["channels"])


def _colours(images: Sequence[Images]) -> Array:
    """Return the share (32, 32, 32) of each colour in images (H, W, 3), with 32 levels for each channel."""
    every = np.stack(images)
    scale = 255.0 if every.dtype == np.uint8 else 1.0
    levels = np.clip(np.floor(every.astype(np.float64) * (32 / scale)), 0, 31)
    found = np.histogramdd(levels.reshape(-1, 3), bins=(np.arange(33) - 0.5,) * 3)[0]
    return found / max(float(found.sum()), 1.0)


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).sum() / 2)


_IMAGE_ADVICE = {
    "channels": "exchange red and blue in the robot's observe()",
    "image range": "return uint8 images, or floats from 0 to 1, from the robot's observe()",
    "blank image": "check the camera: is it connected, and uncovered?",
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
"""Number of rows and of columns to which images are reduced by averaging."""
_ROWS = 400
"""Largest number of images that are compared, spread over all episodes."""
_RIDGE, _LINEAR_RIDGE = 0.1, 1e-3
_Kernel = Callable[[Array], Array]


class Views:
    """Images of one camera in some steps of episodes, with the vectors observed in the same steps and before.

    Args:
        episodes: demonstrations or recorded episodes.
        key: observation key of the images.
        keys: observation keys of the vectors.
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
        """Vectors (K, N, D) observed k steps before each of the N images, for k from 0 to K - 1."""


def _cells(images: Images) -> Array:
    """Return images (N, H, W, C) averaged over a coarse grid, and flattened to (N, D)."""
    size = [max(n // _CELLS, 1) for n in images.shape[1:3]]
    rows, columns = (n // cell for n, cell in zip(images.shape[1:3], size, strict=True))
    cut = images[:, : rows * size[0], : columns * size[1]]
    tiles = cut.reshape(len(cut), rows, size[0], columns, size[1], -1)
    found: Array = tiles.mean(axis=(2, 4), dtype=np.float64)
    return found.reshape(len(cut), -1)


class Seen:
    """Regression from images to vectors, fitted to demonstrations, with its errors in a recording.

    Args:
        recorded: images and vectors of the recording.
        trained: images and vectors of demonstrations.
    """

    def __init__(self, recorded: Views, trained: Views) -> None:
        low, high = trained.states.min(axis=0), trained.states.max(axis=0)
        self.alike = ((recorded.states >= low) & (recorded.states <= high)).all(axis=1)
        """(N,) true for each step of the recording whose vectors are within the range of the demonstrations."""
        self.moves: NDArray[np.bool_] = high > low
        self._images, self._known = recorded.images, _cells(trained.images)
        middle, scale = (f(trained.states, axis=0)[self.moves] for f in (np.mean, np.std))
        self._own = (recorded.before[:, :, self.moves] - middle) / scale
        self._width = max(float(np.median(_squares(self._known, self._known))), 1e-9)
        states = (trained.states[:, self.moves] - middle) / scale
        self._kernel, self._weights = min(
            (
                self._fitted(self._near, _RIDGE, states),
                self._fitted(self._linear, _LINEAR_RIDGE, states),
            ),
            key=lambda fit: fit[0],
        )[1:]

    def _near(self, images: Array) -> Array:
        """Return the similarity (N, M) of images to the M known ones, which decreases with their distance."""
        found: Array = np.exp(-_squares(images, self._known) / self._width)
        return found

    def _linear(self, images: Array) -> Array:
        """Return the kernel (N, M) of a linear regression, which finds one small object beside others that move."""
        middle = self._known.mean(axis=0)
        size = float(((self._known - middle) ** 2).sum(axis=1).mean())
        found: Array = (images - middle) @ (self._known - middle).T / max(size, 1e-9)
        return found

    def _fitted(self, kernel: _Kernel, ridge: float, states: Array) -> tuple[float, _Kernel, Array]:
        """Return the leave-one-out error of the regression with a kernel, the kernel, and the weights (M, D)."""
        inverse = np.linalg.inv(kernel(self._known) + ridge * np.eye(len(states)))
        weights = inverse @ states
        return float(np.abs(weights / np.diag(inverse)[:, None]).mean()), kernel, weights

    def errors(self, turn: Callable[[Images], Images] = lambda images: images) -> Array:
        """Return the errors (K,) of the vectors 0 to K - 1 steps before, as predicted from the turned images.

        They are divided by the error of the best constant. Without vectors the only error is the typical distance to
        the nearest image of the demonstrations.
        """
        here = _cells(turn(self._images[self.alike]))
        if here.shape[1] != self._known.shape[1]:
            return np.ones(1)
        squares = _squares(here, self._known)
        if not self.moves.any():
            typical: Array = np.median(squares.min(axis=1), keepdims=True) / self._width
            return np.sqrt(typical)
        own = self._own[:, self.alike]
        left = np.abs(self._kernel(here) @ self._weights - own).mean(axis=(1, 2))
        found: Array = left / np.maximum(np.abs(own).mean(axis=(1, 2)), 1e-9)
        return found


def of_views(key: str, recorded: Views, trained: Views) -> Iterator[Cause]:
    """Test whether the images of a recording are turned or mirrored, or show an earlier step.

    Nothing is measured if the recording has fewer than ten steps within the range of the demonstrations.

    Args:
        key: observation key of the images.
        recorded: images and vectors of the recording.
        trained: images and vectors of demonstrations.
    """
    seen = Seen(recorded, trained)
    if seen.alike.sum() < _FEWEST:
        return
    lags = seen.errors()
    as_it_is = min(float(lags[0]), 1.0)
    every = {name: float(seen.errors(turn)[0]) for name, turn in _TURNS.items()}
    best = min(every, key=lambda name: every[name])
    words = (
        f"if the images of '{key}' are {best}, they predict the recorded state with an error of {every[best]:.2f}, "
        f"instead of {as_it_is:.2f} as they are (1 means no better than a constant)"
    )
    advice = (
        "turn the images in the robot's observe() to the position of those in the demonstrations"
    )
    yield scored("image turned", as_it_is - every[best], 0.2, words, advice)
    late = int(lags.argmin())
    words = (
        f"images of '{key}' predict the state {late} steps before with an error of {lags[late]:.2f}, and the state of "
        f"their own step with {lags[0]:.2f} (1 means no better than a constant)"
    )
    advice = (
        "reduce the camera's buffer and latency, and return its newest image in each observation"
    )
    shown = max(1 - float(lags[late]), 0.0)
    yield scored("image late", shown * (as_it_is - float(lags[late])), _LATE, words, advice)


def of_other_episodes(key: str, firsts: Images, ends: Array) -> Cause | None:
    """Test whether demonstrations are stored with the images of other episodes.

    A first image shows where objects are, and so predicts where the robot ends. If the first image of the neighbouring
    episode predicts the end better, images and vectors do not belong together. The same holds if first images predict
    the ends better in the order of the numbers as texts (0, 1, 10, 11, 2), in which programs list files.

    Args:
        key: observation key of the images.
        firsts: (N, H, W, C) first images of all demonstrations of a file, or of the first N.
        ends: (N, D) values at the end that depend on the objects, such as the last position of the robot.

    Returns:
        the cause, or None for fewer than twenty demonstrations.
    """
    if len(firsts) < _SUCCESSIVE:
        return None
    cells, standard = _standard(_cells(firsts)), _standard(ends)
    own = np.arange(len(cells))
    by_name = [np.array(sorted(own, key=lambda n: str(n + start))) for start in (0, 1)]
    named = "of the episode at its place in the order of names"
    others = [("of the episode before", own - 1), ("of the episode after", own + 1)]
    others += [(named, one) for order in by_name for one in (order, np.argsort(order))]

    def error(places: NDArray[np.intp]) -> float:
        inside = (places >= 0) & (places < len(cells))
        return _left_out(cells[places[inside]], standard[inside])

    before, (best, words) = error(own), min((error(places), words) for words, places in others)
    words = (
        f"the first image of '{key}' {words} predicts how an episode ends with an error of {best:.2f}, and its own "
        f"first image with {before:.2f} (1 means no better than a constant)"
    )
    advice = (
        "watch the demonstrations (imitate dataset playback FILE), and correct the program that wrote them: it seems "
        "to store the images of other episodes"
    )
    score = max(min(before, 1.0) - best, 0.0)
    return scored("images of other episodes", score, 0.2, words, advice)


def of_uninformative(
    key: str, firsts: Images, vectors: Array, ends: Array, error: float
) -> Cause | None:
    """Test whether first observations fail to predict how an episode ends while the policy errs on its training data.

    Args:
        key: observation key of the images.
        firsts: (N, H, W, C) first images of demonstrations.
        vectors: (N, D) first values of all observed vectors.
        ends: (N, E) values at the end that depend on the objects, such as the last position of the robot.
        error: the policy's action error on training demonstrations, divided by the error of the best constant action.

    Returns:
        the cause, or None for fewer than twenty demonstrations.
    """
    if len(firsts) < _SUCCESSIVE:
        return None
    seen, felt = (
        _left_out(_standard(values), _standard(ends)) for values in (_cells(firsts), vectors)
    )
    words = (
        f"neither the first images of '{key}' nor the first vectors predict how episodes end: their errors are "
        f"{seen:.2f} and {felt:.2f}, and the policy's on its training demonstrations is {error:.2f} (1 means no better "
        "than a constant)"
    )
    advice = "watch the images (imitate dataset playback FILE): the camera may not see what the motion depends on"
    return scored("blind", min(seen / 0.85, felt / 0.8, error / 0.27), 1.0, words, advice)


def _standard(values: Array) -> Array:
    """Return those columns of values (N, D) that vary, standardized to mean 0 and variance 1."""
    middle, scale = values.mean(axis=0), values.std(axis=0)
    varied = scale > 1e-6 * np.maximum(np.abs(middle), 1.0)
    found: Array = ((values - middle) / np.maximum(scale, 1e-12))[:, varied]
    return found


_SUCCESSIVE = 20
"""Smallest number of demonstrations with which the ends of episodes are predicted from images."""


def _left_out(known: Array, states: Array) -> float:
    """Return the leave-one-out error of a linear prediction of states (N, D) from inputs ``known`` (N, F).

    It is divided by the error of a constant; 1 if there are no inputs or states.
    """
    if not known.size or not states.size:
        return 1.0
    products = known @ known.T
    products /= np.trace(products) / len(products)
    # The residual of a left-out row follows from the fit to all rows: Rasmussen and Williams 2006, equation 5.12.
    inverse = np.linalg.inv(products + _RIDGE * np.eye(len(known)))
    left = inverse @ states / np.diag(inverse)[:, None]
    return float(np.abs(left).mean() / max(float(np.abs(states).mean()), 1e-9))


_LATEST = 8
"""Largest delay of images, in steps, that is tried."""
_LATE = 0.04
_FEWEST = 10


def _squares(a: Array, b: Array) -> Array:
    """Return the squared distances (N, M) of points (N, D) and (M, D)."""
    found: Array = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.maximum(found, 0.0)
