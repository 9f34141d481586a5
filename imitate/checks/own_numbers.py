"""Numbers of the robot itself among the observed ones, by their response to actions where no name says it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import Array
from imitate.checks.response import Effects, Pairs, Response


def followed(pairs: Pairs) -> NDArray[np.bool_] | None:
    """Return true (D,) for numbers of the robot itself, which follow the actions from the first steps on.

    Those of an object follow them too, once the robot has taken it. None if there are too few steps to know.
    """
    model = _long_model(pairs)
    return None if model is None else model.follows & _moved_by(pairs) & _moves_early(pairs)


def _moved_by(pairs: Pairs) -> NDArray[np.bool_]:
    """Return true (D,) for numbers whose motion certainly depends on an action, not on their own value alone."""
    found: NDArray[np.bool_] = (np.abs(Effects(pairs).certain) >= _CERTAIN).any(axis=0)
    return found


def _long_model(pairs: Pairs) -> Response | None:
    pairs = [pair for pair in pairs if len(pair[0]) > _SHORT]
    model = Response(pairs) if pairs else None
    return model if model is not None and model.enough else None


def _moves_early(pairs: Pairs) -> NDArray[np.bool_]:
    """Return true (D,) for numbers that move about as much in the first quarter of the episodes as later."""
    moves = [np.abs(np.diff(q, axis=0)) for _, q in pairs if len(q) > 1]
    early = np.mean([part[: max(len(part) // 4, 1)].mean(axis=0) for part in moves], axis=0)
    found: NDArray[np.bool_] = early > 0.3 * np.mean([part.mean(axis=0) for part in moves], axis=0)
    return found


def _correlation(pairs: Pairs) -> Array:
    """Return the largest correlation (D,) of each number's motion with an action, of either sign in each episode."""
    every = []
    for u, q in pairs:
        if len(u) > _LONG_ENOUGH:
            x, y = u[:-1] - u[:-1].mean(axis=0), np.diff(q, axis=0)
            y = y - y.mean(axis=0)
            size = np.sqrt((x**2).sum(axis=0))[:, None] * np.sqrt((y**2).sum(axis=0))
            every.append(np.abs(x.T @ y) / np.maximum(size, 1e-12))
    found: Array = np.mean(every, axis=0).max(axis=0) if every else np.zeros(pairs[0][1].shape[1])
    return found


def positions_among(trained: Pairs, recorded: Pairs = ()) -> tuple[Pairs, Pairs]:
    """Keep the numbers that follow the actions of demonstrations as positions of the robot do.

    Velocities follow them less closely, and objects later.

    Args:
        trained: demonstrations.
        recorded: episodes with the same numbers.

    Returns:
        both with these numbers alone; empty if there are none.
    """
    model = _long_model(trained)
    if model is None or (recorded and recorded[0][1].shape[1] != len(model.left)):
        return [], []
    closely = (np.nan_to_num(model.left, nan=1.0) < _CLOSELY) & _moved_by(trained)
    kept = (closely | (_correlation(trained) > _ALIKE)) & _moves_early(trained)
    if not kept.any():
        return [], []
    own = ([(u, q[:, kept]) for u, q in pairs] for pairs in (trained, recorded))
    return next(own), next(own)


_SHORT, _LONG_ENOUGH = 4, 10
"""Steps of an episode that is too short for a model, and above which actions and motions are correlated."""
_CERTAIN = 8.0
"""Standard errors from which on an action moves a number."""
_CLOSELY, _ALIKE = 0.05, 0.9
"""Largest unexplained fraction of the motion of positions without names that suggest it; and the correlation that shows
them too, if actions of some demonstrations have the other sign."""
