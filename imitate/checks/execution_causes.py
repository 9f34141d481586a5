"""Causes in what was executed and when: cut, smaller, late or foreign actions, and late observations.

How a vector changes in a step follows from all observed vectors and the action before. A regression of this change is
fitted to demonstrations. If a vector of a recording is k steps old, its changes follow best from the other vectors and
the action k steps before; if the robot acts k steps late, all vectors change as the action k steps before says.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from imitate.checks.causes import Array, Cause, scored
from imitate.checks.motion_model import Effects, Pairs
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions


def of_execution(predictions: Predictions, repeated: Predictions) -> Iterator[Cause]:
    """Compare the actions that were executed in a recording with the policy's actions for the same observations.

    Args:
        predictions: the executed actions and the policy's actions.
        repeated: a second prediction with another seed, which shows how much samples of the policy differ.
    """
    done = np.concatenate([demo.actions for demo in predictions.demos])
    wanted, again = np.concatenate(predictions.actions), np.concatenate(repeated.actions)
    scale = np.maximum(wanted.std(axis=0), 1e-9 + 0.01 * wanted.std(axis=0).max())
    own = float((np.abs(again - wanted) / scale).mean())
    error = float((np.abs(done - wanted) / scale).mean())
    cut, range_ = _cut(wanted, done, again)
    if cut > _CUT:
        words = (
            f"executed actions reach {range_}; where the policy's actions are beyond this range, in {cut:.0%} of the "
            "steps, the executed ones are at its ends"
        )
        yield scored("shortened", cut, _CUT, words, _WIDER_LIMITS)
        return
    gain = _gain(wanted, done)
    if error > max(0.2, 3 * own) and gain is not None and gain < 0.9:
        words = f"executed actions are {gain:.2f} times the policy's actions: limits or a slow mode shorten them"
        yield scored("shortened", 1 - gain, 0.1, words, _WIDER_LIMITS)
        return
    best, at_best = _best_lag(predictions)
    if best and at_best < 0.5 * error and error > 0.2:
        side = "earlier" if best > 0 else "later"
        words = f"executed actions match those that the policy gives {abs(best)} steps {side}"
        yield scored(
            "late actions",
            abs(best),
            0.9,
            words,
            "reduce the latency, or use imitate run --async --join rtc",
        )
        return
    words = (
        f"for the recorded observations the policy's actions are {error:.2f} standard deviations from the executed "
        f"ones (samples of the policy differ by {own:.2f})"
    )
    yield scored(
        "other policy",
        error,
        max(0.5, 3 * own),
        words,
        "check that the recording is of this checkpoint and that nothing changes observations before, or actions "
        "after the policy",
    )


_CUT = 0.1
"""Cut actions are reported as a cause if more than this share of the steps have them."""
_WIDER_LIMITS = "start imitate run with wider limits (--limits) and without --slow"


def _cut(wanted: Array, done: Array, again: Array) -> tuple[float, str]:
    """Measure in how many steps the policy's actions were cut to a range before they were executed.

    Args:
        wanted: (N, A) actions of the policy.
        done: (N, A) executed actions.
        again: (N, A) actions of the policy with another seed.

    Returns:
        the largest share over the action dimensions, and words for the range in this dimension. The share is 0 if
        cutting does not explain how ``done`` differs from ``wanted``, or if ``again`` differs as much.
    """
    low, high = done.min(axis=0), done.max(axis=0)
    share = ((wanted < low) | (wanted > high)).mean(axis=0)
    ends = np.clip(wanted, low, high)
    left, error, own = (
        np.abs(x - wanted).mean(axis=0) for x in (done + wanted - ends, done, again)
    )
    differs = error > np.maximum(0.2 * wanted.std(axis=0), 3 * own)
    share = np.where((left < 0.4 * error) & differs, share, 0.0)
    worst = int(share.argmax())
    return float(share[worst]), f"{low[worst]:.3g} to {high[worst]:.3g} in actions[{worst}]"


def _gain(wanted: Array, done: Array) -> float | None:
    """Return the factor between the policy's actions ``wanted`` and the executed ones, or None if no factor fits."""
    x, y = wanted - wanted.mean(axis=0), done - done.mean(axis=0)
    power = float((x**2).sum())
    if power < 1e-12:
        return None
    gain = float((x * y).sum() / power)
    left = float(((y - gain * x) ** 2).sum()) / max(float((y**2).sum()), 1e-12)
    return gain if left < 0.3 and gain > 0 else None


def _best_lag(predictions: Predictions) -> tuple[int, float]:
    """Return the shift in steps, -5 to 5, at which executed actions best match the policy's, and the error left."""
    scale = np.maximum(np.concatenate(predictions.actions).std(axis=0), 1e-9)
    errors = {}
    for lag in range(-5, 6):
        parts = []
        for demo, wanted in zip(predictions.demos, predictions.actions, strict=True):
            n = len(wanted) - abs(lag)
            if n > 0:
                done = demo.actions[lag:] if lag >= 0 else demo.actions[:lag]
                own = wanted[:n] if lag >= 0 else wanted[-lag:]
                parts.append(np.abs(done - own) / scale)
        if parts:
            errors[lag] = float(np.concatenate(parts).mean())
    best = min(errors, key=lambda lag: (errors[lag], abs(lag)))
    return best, errors[best]


class _Change:
    """Regression from the observed vectors and the action of a step to the change of one vector, by demonstrations.

    Args:
        demos: demonstrations.
        keys: observation keys of the vectors; the first is the vector whose change is predicted.
    """

    def __init__(self, demos: Sequence[CheckedDemo], keys: Sequence[str]) -> None:
        x, y = _steps(demos, keys)
        rows = np.unique(np.linspace(0, len(x) - 1, _ROWS).astype(int)) if len(x) else []
        x, y = x[rows], y[rows]
        self._middle, self._width = x.mean(axis=0), x.std(axis=0)
        self._varied = self._width > 1e-9 + 1e-6 * np.abs(self._middle)
        self._usual, size = np.median(y, axis=0), np.abs(y - np.median(y, axis=0)).mean(axis=0)
        self._moves = size > 1e-3 * max(float(size.max(initial=0.0)), 1e-12)
        self._size = size
        self._known, target = self._inputs(x), self._target(y)
        fits = [self._fitted(width, target) for width in _WIDTHS] if target.size else []
        self.error, self._kernel, self._weights = min(
            fits, key=lambda fit: fit[0], default=(np.inf, self._similar(1.0), target)
        )
        """Leave-one-out error, divided by the error of a constant."""

    def _inputs(self, x: Array) -> Array:
        found: Array = ((x - self._middle) / np.where(self._varied, self._width, 1.0))[
            :, self._varied
        ]
        return found

    def _target(self, y: Array) -> Array:
        found: Array = ((y - self._usual) / np.where(self._moves, self._size, 1.0))[:, self._moves]
        return found

    def _similar(self, width: float) -> Callable[[Array], Array]:
        """Return the kernel (N, M) of inputs and the M known ones: Gaussian and linear, in standard deviations."""
        known, size = self._known, max(self._known.shape[1], 1)

        def kernel(x: Array) -> Array:
            products = x @ known.T
            squares = (x**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2 * products
            found: Array = np.exp(-squares / (2 * width**2 * size)) + products / size
            return found

        return kernel

    def _fitted(self, width: float, target: Array) -> tuple[float, Callable[[Array], Array], Array]:
        kernel = self._similar(width)
        inverse = np.linalg.inv(kernel(self._known) + _RIDGE * np.eye(len(target)))
        weights = inverse @ target
        left = np.abs(weights / np.diag(inverse)[:, None]).mean()
        return float(left), kernel, weights

    def errors(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return the errors (N,) of the changes, and whether each input is near those of demonstrations."""
        inputs = self._inputs(x)
        error = np.abs(self._kernel(inputs) @ self._weights - self._target(y))
        return np.minimum(error, _LARGEST).mean(axis=1), (np.abs(inputs) < _NEAR).all(axis=1)


def _steps(
    episodes: Sequence[CheckedDemo],
    keys: Sequence[str],
    begin: int = 0,
    late: int = 0,
    acting: int = 0,
) -> tuple[Array, Array]:
    """Return the inputs and outputs of the regression in all steps.

    Args:
        episodes: demonstrations or recorded episodes.
        keys: observation keys of the vectors; the first is the vector whose change is predicted.
        begin: first step of each episode.
        late: number of steps by which the other vectors are taken earlier.
        acting: the same for the action.

    Returns:
        the vectors, joined, and the action (N, D); and the change of the first vector to the next step (N, C).
    """
    inputs, changes = [], []
    for episode in episodes:
        at = np.arange(begin, len(episode.actions) - 1)
        own, *others = (
            episode.obs[key].reshape(len(episode.actions), -1).astype(np.float64) for key in keys
        )
        before = [other[at - late] for other in others]
        inputs.append(np.concatenate([own[at], *before, episode.actions[at - acting]], axis=1))
        changes.append(own[at + 1] - own[at])
    return np.concatenate(inputs), np.concatenate(changes)


def of_lateness(
    recorded: Sequence[CheckedDemo], trained: Sequence[CheckedDemo], keys: Sequence[str]
) -> Cause | None:
    """Test whether an observed vector of a recording, or the robot's response to actions, is late.

    Args:
        recorded: recorded episodes.
        trained: demonstrations.
        keys: observation keys of the vectors.

    Returns:
        the cause for the vector whose changes show the largest delay, or None if actions have another size, or no
        change can be predicted and compared in at least 20 steps.
    """
    best: Cause | None = None
    trained = [demo for demo in trained if len(demo.actions) > 1]
    if not trained or recorded[0].actions.shape[1:] != trained[0].actions.shape[1:]:
        return None
    for key in keys:
        own = [key, *(other for other in keys if other != key)]
        change = _Change(trained, own)
        if change.error > _PREDICTED:
            continue
        for of_others, words in (
            (1, f"'{key}' is {{}} steps old"),
            (0, "the robot acts {} steps late"),
        ):
            lags = range(_LATEST + 1)
            found = [
                change.errors(*_steps(recorded, own, _LATEST, lag * of_others, lag)) for lag in lags
            ]
            near = np.all([inside for _, inside in found], axis=0)
            if near.sum() < _COMPARED:
                continue
            errors = [max(float(error[near].mean()), _EXACT) for error, _ in found]
            lag = int(np.argmin(errors))
            text = (
                f"the changes of '{key}' follow from the actions {'and the other vectors ' * of_others}{lag} steps "
                f"before with an error of {errors[lag]:.2f}, and from those of the same step with {errors[0]:.2f}: "
                f"{words.format(lag)}"
            )
            gain = float(np.log2(errors[0] / errors[lag]))
            cause = scored("delay", gain, _TIMES, text, _LATE_ADVICE)
            best = max(best or cause, cause, key=lambda one: one.score)
    return best


_ROWS = 600
_WIDTHS = (1.5, 4.0)
"""Widths of the Gaussian kernel that are tried, in standard deviations per dimension."""
_RIDGE = 0.01
_LATEST = 8
"""Largest delay, in steps, that is tried."""
_LARGEST = 4.0
"""Errors of changes are cut to this multiple of the usual change."""
_NEAR = 4.0
"""Steps with an input farther from the mean of the demonstrations, in standard deviations, are left out."""
_PREDICTED = 0.8
"""Only vectors are examined whose changes in demonstrations are predicted with a smaller error."""
_COMPARED = 20
"""Smallest number of steps of a recording that are compared."""
_EXACT = 0.02
"""Smaller errors count as this, since the smallest ones depend on rounding."""
_TIMES = 1.0
"""A delay is reported if it reduces the error at least by a factor of 2 to the power of this value."""
_LATE_ADVICE = "look for a queue, a filter or a slow sensor between robot and policy; measure with imitate run --json"


def of_blocked(recorded: Pairs, trained: Pairs) -> Cause | None:
    """Find a position that stops at one place while actions push it on, where demonstrations go further.

    Args:
        recorded: actions (T, A) and positions (T, D) of each recorded episode; the actions are not target positions.
        trained: actions and positions of each demonstration.

    Returns:
        the cause, or None if the demonstrations do not show which positions the actions move.
    """
    if not recorded or not trained or recorded[0][1].shape[1] != trained[0][1].shape[1]:
        return None
    effects = Effects(trained)
    best: Cause | None = None
    for a, d in enumerate(np.abs(effects.certain).argmax(axis=1)):
        if abs(effects.certain[a, d]) < _SURE:
            continue
        size = float(np.ptp(np.concatenate([q[:, d] for _, q in trained])))
        usual = float(np.quantile(np.abs(np.concatenate([u[:, a] for u, _ in trained])), 0.9))
        for side in (-1.0, 1.0):
            ends = np.array([(side * q[:, d]).max() for _, q in recorded])
            beyond = np.array([(side * q[:, d]).max() for _, q in trained]) - np.median(ends)
            push = side * np.sign(effects.size[a, d])
            shares = [
                np.mean(
                    (side * q[:, d] > end - _SAME_PLACE * size) & (push * u[:, a] > _PUSH * usual)
                )
                for (u, q), end in zip(recorded, ends, strict=True)
            ]
            same = np.abs(ends - np.median(ends)) < _SAME_PLACE * size
            same &= np.array([np.ptp(q[:, d]) for _, q in recorded]) > _FURTHER * size
            if np.mean(beyond > _FURTHER * size) < _MOST_OF or same.mean() < _MOST_OF:
                continue
            share = float(np.median(shares))
            words = (
                f"position {d} stays at {side * np.median(ends):.3g} in {share:.0%} of the steps although actions[{a}] "
                f"push it on; demonstrations go {np.median(beyond):.3g} further"
            )
            cause = scored("limits", share, _BLOCKED, words, _OBSTACLE)
            best = cause if best is None or cause.score > best.score else best
    return best


_SURE = 8.0
"""An action's effect in the demonstrations is certain if it is at least this number of standard errors."""
_SAME_PLACE = 0.02
"""Positions that differ by less than this fraction of the range in demonstrations count as the same place."""
_PUSH = 0.25
"""An action pushes a position if it has at least this fraction of its usual size in demonstrations."""
_FURTHER = 0.1
"""Positions move, and demonstrations go further, if they do so by more than this fraction of the range."""
_MOST_OF = 0.8
"""This fraction of the episodes must move to the same place, and this fraction of the demonstrations go further."""
_BLOCKED = 0.2
"""Positions are blocked if they stop and are pushed on in this fraction of the steps of half of the episodes."""
_OBSTACLE = "look for a limit of the positions in driver, controller or imitate run, or for an obstacle, at this place"
