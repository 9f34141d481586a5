"""Causes in what was executed: actions in a recording that are cut, smaller, late, or not of the policy."""

from collections.abc import Iterator

import numpy as np

from imitate.checks.causes import Array, Cause, scored
from imitate.deploy.check.deploy_check import Predictions


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
