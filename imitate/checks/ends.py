"""Test for failed episodes whose observations look solved, because they do not describe the scene.

At the end of successful demonstrations some combinations of observed values hardly vary, such as the difference between
a position and its goal: they define success in the task. A policy that observes a goal or a pose in another order, with
another sign or from another origin reaches the solved state in its observations but not in the scene.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array, Cause, scored


class Watched(NamedTuple):
    """One episode: all observed vectors, joined (T, D), and whether the task is solved in each step (T,)."""

    vectors: Array
    solved: NDArray[np.bool_]


_HELD = 0.1
"""A combination of values defines success if its variance at the ends is below this fraction of that over all steps."""
_FOLDS, _FEWEST = 5, 8
_BEFORE = 3
"""Number of unsolved steps before the first solved step that have to look different from solved ones."""
_RELIABLE = 0.9
"""The test is reliable if an unsolved step is farther from the solved state than a solved one this often."""
_EPISODES = 4
"""The cause is reported only if at least this number of failed episodes look solved."""
_SHARE = 0.5
"""The cause is reported only if at least this share of the failed episodes look solved."""


class SolvedState:
    """The state in which successful demonstrations end, and distances from this state.

    Args:
        demos: at least one demonstration; all have to be successful.
    """

    def __init__(self, demos: Sequence[Watched]) -> None:
        every = np.concatenate([demo.vectors for demo in demos])
        self._mean, std = every.mean(axis=0), every.std(axis=0)
        varied = std > 1e-6 * np.maximum(np.abs(self._mean), 1.0)
        self._scale = np.where(varied, std, np.inf)
        points = self._standard(every)
        size, ways = np.linalg.eigh(np.cov(points.T, ddof=0) + 1e-3 * np.eye(points.shape[1]))
        ways /= np.sqrt(size)
        ends = self._standard(np.stack([demo.vectors[-1] for demo in demos])) @ ways
        spread, turned = np.linalg.eigh(np.atleast_2d(np.cov(ends.T)))
        held = spread < _HELD
        # Values that never vary say nothing about the task.
        held[: np.count_nonzero(~varied)] = False
        width = np.sqrt(np.maximum(spread[held], 0) + 1e-4)
        self._ways = ways @ turned[:, held] / width
        self._middle = ends.mean(axis=0) @ turned[:, held] / width

    @property
    def found(self) -> bool:
        """True if the demonstrations end with some combination of values in common."""
        return bool(self._ways.shape[1] > 0)

    @property
    def weights(self) -> Array:
        """Weight (D,) of each observed dimension in the distance from the solved state."""
        found: Array = np.sqrt((self._ways**2).sum(axis=1))
        return found

    def _standard(self, vectors: Array) -> Array:
        found: Array = (vectors - self._mean) / self._scale
        return found

    def distances(self, vectors: Array) -> Array:
        """Return squared distances (T,) of vectors (T, D) from the solved state, in units of the ends' variance."""
        found: Array = ((self._standard(vectors) @ self._ways - self._middle) ** 2).mean(axis=1)
        return found


class LooksSolved:
    """Test of whether observations look like the solved state in which demonstrations end.

    Args:
        demos: demonstrations; all have to be successful.
    """

    def __init__(self, demos: Sequence[Watched]) -> None:
        self.reliable = False
        """True if the test distinguishes solved steps of left-out demonstrations from the unsolved steps before."""
        if len(demos) < max(_FEWEST, 2 * sum(one.vectors.shape[1] for one in demos[:1])):
            return
        self.state = SolvedState(demos)
        if not self.state.found:
            return
        after, before, firsts, lasts = [], [], [], []
        for fold in range(_FOLDS):
            known = SolvedState([demo for n, demo in enumerate(demos) if n % _FOLDS != fold])
            if not known.found:
                return
            for demo in demos[fold::_FOLDS]:
                far = known.distances(demo.vectors)
                first = int(demo.solved.argmax())
                begin = min(first + 1, len(far) - 1)
                after.append(far[begin:])
                before.append(far[max(begin - _BEFORE, 0) : begin])
                firsts.append(far[first])
                lasts.append(far[-1])
        inside, outside = np.concatenate(after)[:, None], np.concatenate(before)
        if outside.size:
            higher = (inside < outside).mean() + 0.5 * (inside == outside).mean()
            self.reliable = bool(higher >= _RELIABLE)
        self.limit = float(np.quantile(lasts, 0.9))
        """Largest distance from the solved state with which a step looks solved."""
        self.last = float(np.max(firsts))
        """Largest distance from the solved state of the first solved step in a demonstration."""

    def __call__(self, episode: Watched) -> bool:
        """Return whether some step of an episode looks solved."""
        return bool(self.state.distances(episode.vectors).min() <= self.limit)


def of_frame(
    looks: LooksSolved, episodes: Sequence[Watched], columns: Mapping[str, slice]
) -> Cause | None:
    """Judge the share of failed episodes that look solved.

    Args:
        looks: the test for solved states.
        episodes: recorded episodes.
        columns: columns of each observation key in the joined vectors.

    Returns:
        the cause, or None if the test is not reliable or no episode failed.
    """
    failed = [one for one in episodes if not one.solved.any()]
    right = sum(map(looks, (one for one in episodes if one.solved.any()))) if looks.reliable else 0
    if not looks.reliable or not failed:
        return None
    number = sum(map(looks, failed))
    weights = looks.state.weights
    strong = {key: float(weights[at].max()) for key, at in columns.items()}
    keys = [key for key, value in strong.items() if value > 0.3 * max(strong.values())]
    fixed = [key for key in keys if all(_is_fixed(one.vectors[:, columns[key]]) for one in failed)]
    words = (
        f"in {number} of {len(failed)} failed episodes {', '.join(map(repr, keys))} reach the values with which "
        f"demonstrations end: {' or '.join(map(repr, fixed or keys))} does not describe the scene"
    )
    # If as many solved episodes look solved, the observations are right, and the failures are near misses.
    enough = number >= _EPISODES and number > right
    value = number / (len(failed) + _DOUBT) if enough else 0.0
    return scored("frame", value, _SHARE, words, _FRAME)


_DOUBT = 3
"""Number of failed episodes that look unsolved which are added, so that few episodes count less."""
_FRAME = (
    "compare the order, signs, origin and units of its values in the robot's observe() with a measured pose, and the "
    "test of success with that of the demonstrations"
)


def _is_fixed(values: Array) -> bool:
    return bool(
        (np.ptp(values, axis=0) <= 1e-6 * np.maximum(np.abs(values).max(axis=0), 1.0)).all()
    )


def is_right(looks: LooksSolved, episodes: Sequence[Watched]) -> bool:
    """Return true if solved episodes end with the same observations as demonstrations, so observations are right."""
    solved = [one for one in episodes if one.solved.any()]
    if not looks.reliable or len(solved) < 2:
        return False
    far = [looks.state.distances(one.vectors).min() for one in solved]
    return bool(np.median(far) <= looks.last)
