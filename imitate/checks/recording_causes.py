"""Measurements of possible causes in a recording of failures; scores are those of :mod:`imitate.checks.causes`.

Images are checked by a regression from images to vectors, such as a robot's pose, fitted to demonstrations. It
predicts the vectors of a recording from its images as they are, turned and mirrored; the best position is the one of
the training. Images that predict the vectors of some steps before are late. Without vectors the distance to the
nearest image of the demonstrations is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import MOST, Array, Cause, Neighbours, scored
from imitate.data.quality.doctor.alignment import own_positions, target_distances
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions
from imitate.deploy.check.inputs import (
    FAR,
    OUTSIDE,
    SHARE,
    STILL,
    DeployFinding,
    Severity,
    image_findings,
    vector_findings,
)
from imitate.deploy.check.statistics import Range


def of_vectors(
    key: str,
    demos: Sequence[Array],
    known: Range,
    shown: Sequence[Array],
    firsts: Array | None = None,
) -> Iterator[Cause]:
    """Compare a vector of the recording with its training: other units or frames, values that were never seen.

    Episodes that begin in the training's range and leave it later drift, which any wrong action leads to.

    Args:
        key: name of the observation.
        demos: (T, D) values of each episode.
        known: statistics of the training.
        shown: (T, D) values of each demonstration; may be empty.
        firsts: (N, D) first values of more demonstrations; None: those of ``shown``.
    """
    every = np.concatenate(demos)
    findings = {found.kind: found for found in vector_findings(key, every, known)}
    far = _beyond(demos, known)[0]
    from_begin = _beyond([demo[:1] for demo in demos], known)[0] > SHARE
    if "constant" in findings:
        yield Cause("constant", 3.0, findings["constant"].words, _CONSTANT_ADVICE)
    if "units" in findings and from_begin:
        yield scored(
            "units",
            far,
            SHARE,
            findings["units"].words,
            "convert the units or frames in the robot's observe()",
        )
        return
    begun = [bool(_beyond([demo[:1]], known)[1] > 0) for demo in demos]
    chance = _by_chance(shown, len(demos))
    for kind, begins, limit in (("outside", True, chance), ("drift", False, _DRIFT)):
        numbers = [number for number, begin in enumerate(begun) if begin is begins]
        if not numbers:
            continue
        _, outside, first = _beyond([demos[number] for number in numbers], known)
        words = (
            f"'{key}' is outside the training's range in {outside:.0%} of the steps of the {len(numbers)} of "
            f"{len(demos)} episodes that begin {'outside' if begins else 'inside'} of it"
        )
        if first is not None:
            words += (
                f"; first in episode {numbers[first[0]]} at step {first[1]} (number {first[2]})"
            )
        yield scored(kind, outside * len(numbers) / len(demos), limit, words, _OUTSIDE_ADVICE)
    if shown:
        begun_at = np.stack([demo[0] for demo in shown]) if firsts is None else firsts
        yield _of_offset(key, demos, known, begun_at, _by_chance(shown, len(demos)))
        yield from _of_sensor(key, demos, shown)


_DRIFT = 0.55
"""Largest share of steps outside of the training's range after healthy policies' single failures."""


def _by_chance(shown: Sequence[Array], count: int) -> float:
    """Return the share of episodes that begin outside of the training's range by chance, at least a tenth.

    It is the least one that any number exceeds with a probability below 1 %. How often a number is outside is known
    from the begin of each demonstration and the range of the others.

    Args:
        shown: (T, D) values of each demonstration; of fewer than two nothing is known.
        count: number of episodes.
    """
    if len(shown) < 2:
        return SHARE
    low, high = (np.sort([f(demo, axis=0) for demo in shown], axis=0) for f in (np.min, np.max))
    firsts = np.stack([demo[0] for demo in shown])
    least = np.where([demo.min(axis=0) > low[0] for demo in shown], low[0], low[1])
    most = np.where([demo.max(axis=0) < high[-1] for demo in shown], high[-1], high[-2])
    room = OUTSIDE * (most - least)
    outside = int(((firsts < least - room) | (firsts > most + room)).sum())
    chance = (outside + 0.5) / (firsts.size + 1)
    left = 1.0
    for number in range(count + 1):
        if left * firsts.shape[1] < 0.01:
            return max(SHARE, number / count)
        left -= comb(count, number) * chance**number * (1 - chance) ** (count - number)
    return 1.0


def _of_offset(
    key: str, demos: Sequence[Array], known: Range, there: Array, by_chance: float
) -> Cause:
    """Compare the first values of the episodes, which no action has changed: are all of them moved to one side?

    The score grows with the share of episodes that begin outside only because of it, and with its certainty. Failures
    that all begin in the training's range, or less far apart, may come from that part of it which the demonstrations
    hardly show, which is as likely as a wrong sensor.
    """
    here = np.stack([demo[0] for demo in demos])
    shift = np.median(here, axis=0) - np.median(there, axis=0)
    above, below = here.max(axis=0) - known.high, here.min(axis=0) - known.low
    one_side = np.where(below >= 0, np.maximum(above, 0.0), np.where(above <= 0, below, 0.0))
    outside, back = (_beyond([values], known)[1] for values in (here, here - one_side))
    width = np.maximum(here.std(axis=0), there.std(axis=0))
    width = np.maximum(width, 1e-6 + 1e-3 * np.maximum(np.abs(known.mean), 1.0))
    errors = np.abs(shift) / (width * np.sqrt(1 / len(here) + 1 / len(there)))
    worst = int(errors.argmax())
    certain = float(errors[worst]) / (_SHIFTED * (1 + 5 / len(there)))
    words = (
        f"'{key}' begins to one side of the demonstrations: number {worst} by {shift[worst]:+.3g} "
        f"({errors[worst]:.1f} standard errors); {outside:.0%} of the episodes begin outside the training's range, and "
        f"{back:.0%} without the shift"
    )
    spread = float(here[:, worst].std() / max(there[:, worst].std(), 1e-12))
    moved = outside > 0 and 1 / _SPREAD < spread < _SPREAD
    return scored(
        "offset" if moved else "other starts",
        certain + (outside / by_chance if back < 0.5 * outside else 0.0),
        1.0,
        words,
        "calibrate the sensor or camera that gives it, or place objects and robot as in the demonstrations",
    )


_OUTSIDE_ADVICE = "record demonstrations that begin in or pass such states, or correct the policy there: imitate dagger"
_CONSTANT_ADVICE = (
    "record demonstrations in which it varies, or leave it out of observation.modalities"
)
_SPREAD = 1.45
"""Factor by which the spread of first values may differ if all of them are moved."""
_SHIFTED = 6.0
"""Standard errors of a shift of the first values that healthy recordings do not reach."""


def _of_sensor(key: str, demos: Sequence[Array], shown: Sequence[Array]) -> Iterator[Cause]:
    """Compare how much each number varies within an episode: a stuck sensor gives the same value throughout."""
    here, there = (
        np.mean([part.std(axis=0) for part in parts], axis=0) for parts in (demos, shown)
    )
    varied = (there > 1e-3 * float(there.max())) & (there > 1e-9)
    if not varied.any():
        return
    ratio = np.where(varied, here / np.where(varied, there, 1.0), np.inf)
    worst = int(ratio.argmin())
    words = f"{key}[{worst}] varies {ratio[worst]:.2g} times as much within an episode as in the demonstrations"
    yield scored(
        "sensor",
        STILL / max(float(ratio[worst]), 1e-6),
        1.0,
        words,
        "check the sensor and its driver, and whether the robot moves there at all: gripper, brake, command",
    )


def of_dropped(key: str, demos: Sequence[Array], shown: Sequence[Array]) -> Cause:
    """Compare how often an observation is that of the step before while it moves.

    Args:
        key: name of the observation.
        demos: (T, D) values of each recorded episode.
        shown: (T, D) values of each demonstration.
    """
    here, there = (float(np.mean([_repeated(part) for part in parts])) for parts in (demos, shown))
    words = (
        f"'{key}' is the same as in the step before in {here:.0%} of the steps, after which it goes on ({there:.0%} in "
        "the demonstrations)"
    )
    advice = "compare the rates of sensors and policy: a sensor is slower than the control loop, or frames are lost"
    return scored("dropped frames", max(here - there, 0.0), 0.15, words, advice)


def _repeated(values: Array) -> float:
    """Return the share of steps that repeat the one before, in runs of at most five that a change follows."""
    moves = np.flatnonzero((np.diff(values, axis=0) != 0).any(axis=1))
    if len(moves) < 2:
        return 0.0
    runs = np.diff(moves) - 1
    return float(runs[runs <= _RUN].sum() / max(len(values) - 1, 1))


_RUN = 5
"""Longest run of equal steps that counts as lost frames; in longer ones the robot does not move."""


def _beyond(
    demos: Sequence[Array], known: Range
) -> tuple[float, float, tuple[int, int, int] | None]:
    """Return the largest shares of steps of a number that are far, and outside, and the first place outside."""
    size = np.maximum(np.abs(known.mean), 1.0)
    std = np.maximum(known.std, 1e-6 * size)
    span = known.high - known.low
    room = np.maximum(OUTSIDE * np.where(np.isfinite(span), span, 0.0), 1e-3 * size)
    every = np.concatenate(demos)
    far = (np.abs(every - known.mean) > FAR * np.maximum(std, 1e-3 * size)).mean(axis=0).max()
    first = None
    for number, demo in enumerate(demos):
        beyond = (demo < known.low - room) | (demo > known.high + room)
        if beyond.any():
            step, dim = (int(n) for n in np.argwhere(beyond)[0])
            first = number, step, dim
            break
    outside = ((every < known.low - room) | (every > known.high + room)).mean(axis=0).max()
    return float(far), float(outside), first


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


_IMAGE_ADVICE = {
    "channels": "exchange red and blue in the robot's observe()",
    "image range": "give uint8 images, or floats from 0 to 1",
    "blank image": "check the camera",
    "frozen image": "check the camera and its driver",
    "brightness": "adjust light and exposure, or train with train.augment",
}


def of_structure(found: DeployFinding) -> Cause:
    """Turn a finding on keys, sizes, orders or exchanged cameras, which no healthy run has, into a cause."""
    return Cause(
        found.kind, MOST, found.words, "record and train with the same names, sizes and order"
    )


def of_finite(episodes: Sequence[CheckedDemo]) -> Iterator[Cause]:
    """Find observations that are not finite."""
    for key in episodes[0].obs:
        parts = [episode.obs[key] for episode in episodes]
        if parts[0].dtype.kind != "f":
            continue
        bad = np.concatenate(
            [~np.isfinite(part.reshape(len(part), -1)).all(axis=1) for part in parts]
        )
        if bad.any():
            words = f"'{key}' is NaN or inf in {bad.mean():.0%} of the steps, first in step {int(bad.argmax())}"
            yield Cause("not finite", MOST, words, "check its sensor and driver")


def of_rate(recorded: float | None, trained: float | None) -> Cause | None:
    """Compare the control rates in Hz of a recording and of the training."""
    if not recorded or not trained:
        return None
    words = f"the recording has {recorded:g} Hz, the demonstrations had {trained:g} Hz"
    return scored(
        "rate",
        abs(np.log(recorded / trained)),
        np.log(1.05),
        words,
        f"run the policy at the rate of its demonstrations: imitate run --rate-hz {trained:g}",
    )


def of_exchange(
    here: Mapping[str, Array], there: Mapping[str, Array]
) -> Iterator[tuple[str, Cause]]:
    """Find pairs of vectors that are exchanged: their difference has the opposite sign to that in the demonstrations.

    Args:
        here, there: (N, D) values of each vector in the recording, and in the demonstrations.

    Returns:
        both keys, and the cause.
    """
    for a, b in combinations(here, 2):
        if here[a].shape != here[b].shape or there[a].shape != there[b].shape:
            continue
        usual, now = there[a] - there[b], (here[a] - here[b]).mean(axis=0)
        std = np.maximum(usual.std(axis=0), 1e-9 + 1e-3 * np.abs(usual).max())
        straight, crossed = (
            float((np.abs(way * now - usual.mean(axis=0)) / std).max()) for way in (1, -1)
        )
        if straight > 2 and 3 * crossed < straight:
            words = f"'{a}' and '{b}' look exchanged: their difference has the opposite sign in the demonstrations"
            yield (
                f"{a}, {b}",
                Cause("exchanged vectors", MOST, words, "exchange them in the robot's observe()"),
            )


def of_reach(
    recorded: Sequence[tuple[Array, Array]], trained: Sequence[tuple[Array, Array]]
) -> Cause | None:
    """Find the joint that stays farther from its commanded positions than in the demonstrations, or None.

    Args:
        recorded: actions (T, A) and positions (T, D) of each recorded episode.
        trained: the same of demonstrations.
    """
    recorded, trained = (
        [pair for pair in pairs if len(pair[0]) > _LONG] for pairs in (recorded, trained)
    )
    own = own_positions(trained)
    if not own or not recorded or recorded[0][1].shape[1] != trained[0][1].shape[1]:
        return None
    actions, columns = list(own), list(own.values())
    here, there = (
        np.sqrt(target_distances(pairs)[actions, columns]) for pairs in (recorded, trained)
    )
    size = np.ptp(np.concatenate([u for u, _ in trained]), axis=0)[actions]
    more = here / np.maximum(there, 0.02 * np.maximum(size, 1e-9))
    worst = int(more.argmax())
    words = (
        f"position {columns[worst]} stays {here[worst]:.3g} away from its target, action {actions[worst]}, on average "
        f"({there[worst]:.3g} in the demonstrations)"
    )
    return scored(
        "unreached",
        float(more[worst]),
        4.0,
        words,
        "look for contact, a load, or limits in the driver that cut the commands",
    )


_LONG = 12
"""Steps of an episode in which positions can come near to their targets."""


def of_execution(predictions: Predictions, repeated: Predictions) -> Iterator[Cause]:
    """Compare the actions that were executed in a recording with the policy's own for the same observations.

    Args:
        predictions: the policy's actions beside the executed ones.
        repeated: a second prediction, which shows how much a sampled policy differs from itself.
    """
    done = np.concatenate([demo.actions for demo in predictions.demos])
    wanted, again = np.concatenate(predictions.actions), np.concatenate(repeated.actions)
    scale = np.maximum(wanted.std(axis=0), 1e-9 + 0.01 * wanted.std(axis=0).max())
    own = float((np.abs(again - wanted) / scale).mean())
    error = float((np.abs(done - wanted) / scale).mean())
    gain = _gain(wanted, done)
    if error > max(0.2, 3 * own) and gain is not None and gain < 0.9:
        words = f"executed actions are {gain:.2f} times the policy's: limits or a slow mode shorten them"
        yield scored(
            "shortened",
            1 - gain,
            0.1,
            words,
            "give imitate run wider limits (--limits), or leave out its --slow",
        )
        return
    best, at_best = _best_lag(predictions)
    if best and at_best < 0.5 * error and error > 0.2:
        side = "earlier" if best > 0 else "later"
        words = f"executed actions are those that the policy gives {abs(best)} steps {side}"
        yield scored(
            "late actions",
            abs(best),
            0.9,
            words,
            "reduce the latency, or use imitate run --async --join rtc",
        )
        return
    words = (
        f"for the recorded observations the policy gives other actions than were executed: {error:.2f} standard "
        f"deviations away (its own samples differ by {own:.2f})"
    )
    yield scored(
        "other policy",
        error,
        max(0.5, 3 * own),
        words,
        "check that the recording is of this checkpoint and that nothing changes observations or actions between",
    )


def _gain(wanted: Array, done: Array) -> float | None:
    """Return the factor that explains the executed actions by the wanted ones, or None if none does."""
    x, y = wanted - wanted.mean(axis=0), done - done.mean(axis=0)
    power = float((x**2).sum())
    if power < 1e-12:
        return None
    gain = float((x * y).sum() / power)
    left = float(((y - gain * x) ** 2).sum()) / max(float((y**2).sum()), 1e-12)
    return gain if left < 0.3 and gain > 0 else None


def _best_lag(predictions: Predictions) -> tuple[int, float]:
    """Return the shift of the executed actions at which they are nearest to the policy's, and that distance."""
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


def of_coverage(
    neighbours: Neighbours, episodes: Sequence[CheckedDemo], names: Sequence[str]
) -> Cause:
    """Compare the ends of failed episodes with the demonstrations: are there any at these states?

    The median over the episodes counts, because single failures of any policy end far away.

    Args:
        neighbours: steps of the demonstrations.
        episodes: failed episodes.
        names: names of the demonstrations.
    """
    usual = float(np.quantile(neighbours.among_demos()[0], 0.99))
    far, place, every = 0.0, "", []
    for episode in episodes:
        points = neighbours.standardized(episode.obs)
        last = max(len(points) // 3, 1)
        distance, row = neighbours.nearest(points[-last:])
        median = float(np.median(distance))
        every.append(median)
        if median >= far:
            far = median
            worst = int(distance.argmax())
            nearest = row[worst]
            place = (
                f"{episode.name}, step {len(points) - last + worst}; nearest: step {neighbours.step[nearest]} of "
                f"{names[neighbours.of[nearest]]}"
            )
    words = (
        f"the last third of the failed episodes is {np.median(every):.3g} standard deviations from the nearest "
        f"demonstration; between demonstrations 99 % are within {usual:.3g} (farthest: {place})"
    )
    return scored(
        "coverage",
        float(np.median(every)),
        max(2.2 * usual, 1e-9),
        words,
        "record demonstrations at these states, or correct the policy there: imitate dagger",
    )


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


_LATEST = 6
"""Largest number of steps by which images are looked for to be late."""
_LATE = 0.06
_FEWEST = 10


def _squares(a: Array, b: Array) -> Array:
    """Return the squared distances (N, M) of points (N, D) and (M, D)."""
    found: Array = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.maximum(found, 0.0)
