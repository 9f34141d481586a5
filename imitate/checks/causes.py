"""Measurements of possible causes of failure in a training run and its demonstrations, each with a score.

A score is the measured value divided by the largest value found in healthy trainings. A cause with a score of 1 or more
is named in the report. `tests/checks/test_diagnosis.py` checks that healthy runs score below 1, and runs with planted
faults above.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from imitate.data.quality.doctor.motion import is_position
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions
from imitate.deploy.check.statistics import Range
from imitate.system.text import counted

Array = NDArray[np.float64]


MOST = 10.0
"""Largest score of a cause; higher scores are cut to this value."""


@dataclass(frozen=True)
class Cause:
    """A possible cause of failure.

    Attributes:
        kind: short name of the cause, such as "clipping".
        score: measured value divided by the largest value of healthy trainings, cut to 0 to 10.
        words: the evidence, with the measured numbers.
        advice: what the user can do about this cause, if possible with a command.
    """

    kind: str
    score: float
    words: str
    advice: str

    @property
    def is_named(self) -> bool:
        """True if the score is 1 or more: no healthy training had such a value."""
        return self.score >= 1


def scored(kind: str, value: float, limit: float, words: str, advice: str) -> Cause:
    """Return a cause with the score ``value / limit``, where ``limit`` is the largest value of healthy trainings."""
    score = 0.0 if np.isnan(value) else float(np.clip(value / limit, 0.0, MOST))
    return Cause(kind, score, words, advice)


def spread(names: Sequence[str], most: int) -> list[str]:
    """Return at most ``most`` of the names, one from each of as many equal parts of the list.

    The place within a part varies, so that a pattern in the list, such as every second demonstration, is not missed.
    """
    count = min(most, len(names))
    ends = [-(-i * len(names) // count) for i in range(count + 1)] if count else []
    return [names[a + int((_GOLDEN * i) % 1 * (b - a))] for i, (a, b) in enumerate(pairwise(ends))]


_GOLDEN = 0.618
"""Fraction whose multiples modulo 1 are spread evenly over [0, 1)."""


def flat(episodes: Sequence[CheckedDemo], key: str) -> list[Array]:
    """Return the values of an observation key in each episode, flattened to (T, D)."""
    values = [episode.obs[key] for episode in episodes]
    return [value.reshape(len(value), -1).astype(np.float64) for value in values]


def at_limits(actions: Sequence[Array], low: Array, high: Array) -> Array:
    """Return for each action dimension the share of steps (A,) in which the action is at its lower or upper limit."""
    every = np.concatenate(actions)
    room = 1e-6 * np.where(np.isfinite(high - low), high - low, 0.0)
    found: Array = ((every <= low + room) | (every >= high - room)).mean(axis=0)
    return found


def of_limits(predictions: Predictions, low: Array, high: Array) -> Cause:
    """Compare how often the actions of policy and demonstrations are at their limits ``low`` and ``high`` (A,)."""
    acted = at_limits(predictions.actions, low, high)
    shown = at_limits([demo.actions for demo in predictions.demos], low, high)
    more = acted - shown
    worst = int(more.argmax())
    words = (
        f"actions[{worst}] is at its limits in {acted[worst]:.0%} of the policy's actions "
        f"and in {shown[worst]:.0%} of the demonstrated actions"
    )
    return scored(
        "clipping",
        float(more[worst]),
        0.2,
        words,
        "normalize actions: train.action_config.actions.normalization min_max",
    )


def of_copying(predictions: Predictions) -> Cause | None:
    """Measure whether the policy repeats the previous demonstrated action in steps in which the action changes.

    Only the 10 % of the steps with the largest changes count. The measure is 0 if the policy's action equals the
    demonstrated one, 1 if it equals the demonstrated action of the step before, and 0.5 halfway between them.
    """
    changes, nearness = [], []
    std = np.concatenate([demo.actions for demo in predictions.demos]).std(axis=0)
    scale = np.where(std > 0.01 * std.max(), std, np.inf)
    for demo, actions in zip(predictions.demos, predictions.actions, strict=True):
        if len(actions) < 3:
            continue
        change = np.abs(np.diff(demo.actions, axis=0) / scale).mean(axis=1)
        right = np.abs((actions[1:] - demo.actions[1:]) / scale).mean(axis=1)
        before = np.abs((actions[1:] - demo.actions[:-1]) / scale).mean(axis=1)
        changes.append(change)
        nearness.append(right / np.maximum(right + before, 1e-12))
    if not changes:
        return None
    change, near = np.concatenate(changes), np.concatenate(nearness)
    large = change >= max(float(np.quantile(change, 0.9)), 0.1)
    if large.sum() < 10:
        return None
    copied = float(near[large].mean())
    words = (
        f"where the demonstrated action changes, the policy's action is at {copied:.2f} between the demonstrated "
        "action of the step (0) and that of the step before (1)"
    )
    return scored(
        "copying",
        copied,
        0.65,
        words,
        _NO_COPY,
    )


def copied_columns(
    demos: Sequence[CheckedDemo], keys: Sequence[str], before: int
) -> dict[str, NDArray[np.intp]]:
    """Return the columns of each observed vector that copy an action.

    A vector of robot positions that equals the whole previous action is no copy: the robot has reached its target.

    Args:
        demos: demonstrations.
        keys: observation keys of the vectors.
        before: 0 to look for the action of the same step, 1 for the action of the step before.
    """
    found = {}
    for key in keys:
        equal, changes = 0, 0
        for demo in demos:
            values = demo.obs[key].reshape(len(demo.actions), -1)[2:, :, None].astype(np.float64)
            end = len(demo.actions) - before
            own = demo.actions[2 - before : end]
            changed = own != demo.actions[1 - before : end - 1]
            close = np.isclose(values, own[:, None, :], rtol=1e-4, atol=1e-5)
            equal = equal + (close & changed[:, None, :]).sum(axis=0)
            changes = changes + changed.sum(axis=0)
        copies = (equal > 0.98 * changes) & (np.asarray(changes) > 9)
        columns = np.flatnonzero(copies.any(axis=1))
        if len(columns) and not (len(columns) == len(copies) and is_position(f"obs/{key}")):
            found[key] = columns
    return found


def of_repeating(share: float, columns: Mapping[str, NDArray[np.intp]], before: int) -> Cause:
    """Judge how much the policy relies on observations that are copies of actions.

    Args:
        share: change of the policy's actions when only these copies are exchanged for those of another demonstration,
            as a fraction of the change when all observations are exchanged.
        columns: columns of each observed vector that copy an action.
        before: 1 if they copy the action of the step before, 0 if that of the same step.
    """
    named = ", ".join(f"{key}[{', '.join(map(str, at))}]" for key, at in columns.items())
    words = (
        f"{named} is the action of the {'step before' if before else 'same step'}; if only this is taken from another "
        f"demonstration, the policy's actions change {share:.0%} as much as if all observations are"
    )
    return scored("copying", share, 0.68, words, _NO_COPY)


_NO_COPY = "leave the last action out of observation.modalities, shorten train.frame_stack, or use causal_bc"


class Neighbours:
    """Search for the nearest steps in demonstrations, by the distance of standardized observations.

    Args:
        demos: demonstrations.
        keys: observation keys of the vectors that make up a point; images are not used.
    """

    def __init__(self, demos: Sequence[CheckedDemo], keys: Sequence[str]) -> None:
        self.keys = keys
        self.parts = [self._joined(demo.obs) for demo in demos]
        every = np.concatenate(self.parts)
        self._mean = every.mean(axis=0)
        std = every.std(axis=0)
        self._scale = np.where(std > 1e-9 + 1e-6 * np.abs(self._mean), std, np.inf)
        self.points = (every - self._mean) / self._scale
        self.of = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        self.step = np.concatenate([np.arange(len(part)) for part in self.parts])

    def _joined(self, obs: Mapping[str, NDArray[np.generic]]) -> Array:
        return np.concatenate(
            [obs[key].reshape(len(obs[key]), -1).astype(np.float64) for key in self.keys], axis=1
        )

    def nearest(self, points: Array, without: int | None = None) -> tuple[Array, NDArray[np.intp]]:
        """Return the distance (N,) and row (N,) of the step nearest to each point (N, D).

        Steps of demonstration number ``without`` are not searched.
        """
        rows = (
            np.flatnonzero(self.of != without) if without is not None else np.arange(len(self.of))
        )
        others = self.points[rows]
        norms = (others**2).sum(axis=1)
        distance, row = np.empty(len(points)), np.empty(len(points), dtype=np.intp)
        for start in range(0, len(points), 256):
            part = points[start : start + 256]
            squares = (part**2).sum(axis=1)[:, None] - 2 * part @ others.T + norms
            best = squares.argmin(axis=1)
            distance[start : start + 256] = np.sqrt(np.maximum(squares.min(axis=1), 0.0))
            row[start : start + 256] = rows[best]
        return distance, row

    def standardized(self, obs: Mapping[str, NDArray[np.generic]]) -> Array:
        """Return an episode's observations as points (T, D), standardized as the demonstrations are."""
        found: Array = (self._joined(obs) - self._mean) / self._scale
        return found

    def among_demos(self) -> tuple[Array, NDArray[np.intp]]:
        """Return for each step of a demonstration the distance (N,) and row (N,) of the nearest step in the others."""
        found = [
            self.nearest(self.points[self.of == number], number)
            for number in range(len(self.parts))
        ]
        return np.concatenate([d for d, _ in found]), np.concatenate([r for _, r in found])

    def similar(self, most: float, number: int) -> NDArray[np.intp]:
        """Find states that several demonstrations pass.

        Args:
            most: largest distance that counts as the same state, in standard deviations per dimension that varies.
            number: number of demonstrations that have to pass a state.

        Returns:
            rows (N, number): for each such state one step of each of the demonstrations.
        """
        varied = int((self.points.std(axis=0) > 0).sum())
        firsts = np.flatnonzero(np.diff(self.of, prepend=-1))
        found = []
        for row in np.unique(np.linspace(0, len(self.points) - 1, _ROWS).astype(int)):
            squares = ((self.points - self.points[row]) ** 2).sum(axis=1)
            squares[self.of == self.of[row]] = np.inf
            near = np.minimum.reduceat(squares, firsts)
            others = np.argsort(near)[: number - 1]
            if near[others[-1]] <= most**2 * max(varied, 1):
                rows = [int(np.where(self.of == n, squares, np.inf).argmin()) for n in others]
                found.append([row, *rows])
        return np.array(found, dtype=np.intp).reshape(-1, number)


_ROWS = 1500
"""Largest number of states, spread over all demonstrations, for which similar states are searched."""
_CLOSE = 0.2
"""Largest distance of states that count as the same, in standard deviations per dimension."""
_STATES = 30
"""Demonstrations are judged as consistent or not only if they share at least this number of states."""
_DEMOS = 5
"""Number of demonstrations whose actions are compared in a state that all of them pass."""
_STEPS = 5
"""Number of steps over which actions are averaged before they are compared."""
_FORKS = 1.0
"""Largest relative variance of actions, in healthy demonstrations, over the 5 % of shared states that differ most."""
_TAIL = 6.0
"""Equal noise in all states makes the variances in the worst 5 % of the states up to this multiple of the median."""
_CHANCE = 0.65
"""Largest median, in healthy demonstrations, of the relative variance of actions in shared states."""


def of_consistency(
    neighbours: Neighbours, demos: Sequence[CheckedDemo], several_ways: bool
) -> Cause | None:
    """Measure how much the actions of different demonstrations differ in almost equal states.

    Actions are averaged over 5 steps, so that noise counts little. Their variance in a state is divided by the variance
    over all states: 0 means equal actions in equal states, 1 actions that do not depend on the state. The median over
    the states finds actions that never follow from the state; the mean of the 5 % of the states with the largest
    variance finds demonstrations that go different ways from a few states.

    Args:
        neighbours: search over the steps of ``demos``.
        demos: demonstrations.
        several_ways: true for policies that can learn several ways of acting in one state.

    Returns:
        the cause, or None if the demonstrations share fewer than 30 states.
    """
    number = min(_DEMOS, len(demos))
    rows = neighbours.similar(_CLOSE, number)
    means = [_next_mean(demo.actions) for demo in demos]
    actions = np.concatenate(means)
    std = actions.std(axis=0)
    varied = std > 0.01 * std.max()
    if len(rows) < _STATES or number < 2 or not varied.any():
        return None
    ratio = actions[rows][:, :, varied].var(axis=1, ddof=1) / std[varied] ** 2
    median = np.median(ratio, axis=0)
    part = np.sort(ratio, axis=0)[-max(len(ratio) // 20, 5) :].mean(axis=0)
    apart = float(np.where((median < 0.5) & (part > _TAIL * median), part, 0.0).max())
    value = max(apart / _FORKS, float(median.mean()) / _CHANCE)
    words = (
        f"in {len(rows)} states that {number} demonstrations pass, the variance of their actions is "
        f"{median.mean():.2f} times that over all states, and {apart:.2f} times in the 5 % that differ most"
    )
    advice = (
        "record all demonstrations in one way, remove the others (imitate dataset filter), or train a policy that can "
        "learn several ways: flow_policy, diffusion_policy or vq_bet"
    )
    return scored("inconsistent", value, 5.0 if several_ways else 1.0, words, advice)


def _next_mean(actions: Array) -> Array:
    """Return for each step the mean (T, A) of its action and the next four, or fewer at the end of the episode."""
    sums = np.cumsum(np.concatenate([np.zeros((1, actions.shape[1])), actions]), axis=0)
    ends = np.minimum(np.arange(len(actions)) + _STEPS, len(actions))
    found: Array = (sums[ends] - sums[:-1]) / (ends - np.arange(len(actions)))[:, None]
    return found


_EPOCHS = 10
"""Shorter trainings are not judged as finished; the advice is to train at least this number of epochs."""
_FALLING = 0.12
"""A training is not finished if more than this fraction of the loss's decrease is from the last third of the epochs."""


def _falling(losses: Sequence[float]) -> float:
    """Return the loss's decrease in the last third of the epochs as a fraction of its decrease over all epochs.

    At least three losses are needed. The fraction is 0 if the loss did not decrease.
    """
    x = np.asarray(losses, dtype=np.float64)
    part = max(len(x) // 10, 1)
    third = 2 * len(x) // 3
    middle = float(x[max(third - part, 0) : third].mean())
    end, begin = float(x[-part:].mean()), float(x[0])
    return (middle - end) / max(begin - end, 1e-12) if begin > end else 0.0


def of_unlearnable(losses: Sequence[float], error: float) -> Cause | None:
    """Judge whether the observations determine the actions, by the error on the training data after the training.

    Args:
        losses: training loss of each epoch.
        error: the policy's action error on training demonstrations, divided by the error of the best constant action.

    Returns:
        the cause, or None if there are fewer than ten epochs or the loss was still falling.
    """
    if len(losses) < _EPOCHS or _falling(losses) > 0.5 * _FALLING:
        return None
    words = (
        f"the loss has stopped falling, and on its training demonstrations the policy's error is {error:.2f} times "
        "that of a constant action: its observations do not determine the demonstrated actions"
    )
    advice = (
        "if people acted differently in the same state, record them in one way or train flow_policy, "
        "diffusion_policy or vq_bet; otherwise look for an observation that is missing, late or wrong"
    )
    return scored("inconsistent", error, 0.75, words, advice)


def of_training(losses: Sequence[float], error: float, fails: bool = True) -> Cause:
    """Judge whether the training ended too early: the loss was still falling and the error is large.

    Args:
        losses: training loss of each epoch.
        error: the policy's action error on training demonstrations, divided by the error of the best constant action.
        fails: true if episodes are known, so that a policy that succeeds is not judged; otherwise a short training of
            an easy task may have been enough.
    """
    if len(losses) < 3:
        # Too few losses show no trend, so only the error decides.
        falling = (1.3 if fails else 0.9) * _FALLING
        words = f"the training had only {counted(len(losses), 'epoch')}"
    else:
        falling = _falling(losses)
        words = f"the last third of the epochs brought {falling:.0%} of the loss's whole fall"
    words += f", and on its training demonstrations the policy's error is {error:.2f} times that of a constant action"
    score = float(np.sqrt(max(falling, 0.0) / _FALLING * error / 0.55))
    epochs = max(2 * len(losses), _EPOCHS) if losses else "N"
    advice = f"continue the training: imitate train --resume RUN --epochs {epochs}"
    return scored("undertrained", score, 1.0, words, advice)


def of_normalization(
    saved: Mapping[str, tuple[Array, Array]], known: Mapping[str, Range]
) -> Iterator[Cause]:
    """Check that the policy's network gets the observations of the demonstrations in a usual range.

    Args:
        saved: offset and scale for each observation key.
        known: range, mean and standard deviation of each observation key in the demonstrations.
    """
    for key, range_ in known.items():
        offset, scale = saved.get(key, (np.zeros(1), np.ones(1)))
        if (scale == 1).all():
            yield _of_raw(key, range_)
            continue
        if range_.mean.shape != offset.shape:
            continue
        low, high = (range_.low - offset) / scale, (range_.high - offset) / scale
        reach = np.maximum(np.abs(low), np.abs(high))
        varied = range_.std > 1e-6 * np.maximum(np.abs(range_.mean), 1.0)
        if not varied.any() or not np.isfinite(reach).all():
            continue
        centre = np.abs(range_.mean - offset) / scale
        value = float(np.maximum(centre / 1.5, np.log10(np.maximum(reach, 1e-3)) - 1)[varied].max())
        # Values count as too small only if they are too small in every dimension.
        narrow = 0.02 / max(float(reach[varied].max()), 1e-12)
        words = (
            f"the checkpoint's normalization gives '{key}' in the data a largest value of {reach[varied].max():.3g} "
            f"(expected: about 1 to 10) and a mean of {centre[varied].max():.3g} (expected: 0)"
        )
        yield scored(
            "normalization",
            max(value, narrow),
            1.0,
            words,
            "train on data like those that the policy will observe, or give the file of its training: --dataset FILE",
        )


def _of_raw(key: str, known: Range) -> Cause:
    """Judge observations that are not normalized by their largest value; the cause is named above 300."""
    reach = float(np.maximum(np.abs(known.low), np.abs(known.high)).max())
    words = f"'{key}' is not normalized and has values up to {reach:.3g} in the data (expected: about 1 to 10)"
    advice = "train with train.obs_normalization mean_std"
    return scored("normalization", np.log10(max(reach, 30.0) / 30), 1.0, words, advice)


def of_clipping(limit: float | None, values: Mapping[str, Sequence[Array]]) -> Iterator[Cause]:
    """Measure how many observed values the option ``train.obs_clip`` cuts.

    Args:
        limit: largest magnitude of a normalized value: ``train.obs_clip``; None: nothing is cut.
        values: normalized values (T, D) of each observation key in each demonstration.
    """
    for key, demos in values.items() if limit is not None else ():
        beyond = np.mean(np.abs(np.concatenate([*demos])) > limit, axis=0)
        worst = int(beyond.argmax())
        words = (
            f"train.obs_clip cuts the normalized values of {key}[{worst}] at {limit:g} in {beyond[worst]:.0%} of the "
            "steps of the demonstrations"
        )
        advice = "train again with train.obs_clip null, or at least 5"
        yield scored("clipping", float(beyond[worst]), _CLIPPED, words, advice)


_CLIPPED = 0.1
"""The cause is reported if a larger share of a dimension's values is cut."""


def of_units(key: str, demos: Sequence[Array]) -> Cause | None:
    """Test whether some demonstrations have an observation in other units, so that its values are much larger.

    Args:
        key: the observation key.
        demos: (T, D) values of each demonstration.

    Returns:
        the cause, or None if fewer than four demonstrations have values other than 0.
    """
    sizes = np.array([np.sqrt((demo**2).mean()) for demo in demos])
    if (sizes > 0).sum() < 4:
        return None
    score, factor, large = split_of(sizes, _OTHER_UNIT)
    if score >= 1 and not _is_scaled(demos, sizes, factor, large):
        score = min(score, 0.9)
    words = f"'{key}' is {factor:.3g} times as large in {large} of {(sizes > 0).sum()} demonstrations as in the others"
    return scored(
        "units", score, 1.0, words, "convert all demonstrations to the same units and frames"
    )


def _is_scaled(demos: Sequence[Array], sizes: Array, factor: float, large: int) -> bool:
    """Return whether demonstrations with larger values also begin and end with larger ones, as in another unit.

    Demonstrations in which less moves, for example, have smaller velocities, but begin and end like the others.

    Args:
        demos: (T, D) values of each demonstration.
        sizes: size of the values of each demonstration.
        factor: factor between the large and the small sizes.
        large: number of large sizes.
    """
    is_large = sizes >= np.sort(sizes)[-large]
    for step in (0, -1):
        values = np.array([np.sqrt((demo[step] ** 2).mean()) for demo in demos])
        usual, small = np.median(values[is_large]), np.median(values[~is_large & (sizes > 0)])
        if usual > 0 and usual < np.sqrt(factor) * small:
            return False
    return True


def split_of(sizes: Array, least: float) -> tuple[float, float, int]:
    """Divide positive sizes into a group of small and a group of large ones; zeros are left out.

    Args:
        sizes: one size for each demonstration.
        least: smallest factor between the groups' means with which they count as different.

    Returns:
        the score, which is 1 or more if the groups are clearly different; the factor between their means; the number
        of sizes in the group of large ones. Fewer than four sizes are not divided: the score is 0 and the factor 1.
    """
    logs = np.sort(np.log10(sizes[sizes > 0]))
    if len(logs) < 4:
        return 0.0, 1.0, 0
    parts = [(logs[:n], logs[n:]) for n in range(1, len(logs))]
    within = [np.sqrt((len(a) * a.var() + len(b) * b.var()) / (len(logs) - 2)) for a, b in parts]
    best = int(np.argmin(within))
    small, large = (part.mean() for part in parts[best])
    apart = float(large - small)
    score = min(apart / np.log10(least), apart / max(_APART * float(within[best]), 1e-9))
    return score, 10**apart, len(parts[best][1])


_OTHER_UNIT = 8.0
_APART = 5.0
"""Two groups differ if their means are more than this number of standard deviations within a group apart."""


def limit_of(lengths: Sequence[int], solved: Sequence[bool | None]) -> int | None:
    """Return the step limit at which failed episodes were cut, or None if there seems to be no such limit.

    There is no limit if failures have different lengths or a solved episode is longer: then something else ends them,
    such as a collision.

    Args:
        lengths: number of steps of each recorded episode.
        solved: outcome of each episode; None counts as a failure.
    """
    failed = [n for n, one in zip(lengths, solved, strict=True) if one is not True]
    if len(failed) < 2 or np.mean(np.asarray(failed) >= max(failed) - 1) < 0.8:
        return None
    return max(failed) if max(failed) == max(lengths) else None


def of_horizon(
    horizon: int | None,
    lengths: Sequence[int],
    episodes: str = "evaluation episodes",
    *,
    on_robot: bool = False,
) -> Cause | None:
    """Judge whether episodes are cut before the task can be solved.

    Args:
        horizon: largest number of steps of an episode, or None if it is not known.
        lengths: number of steps of each demonstration.
        episodes: words for the episodes in the report.
        on_robot: true if a robot played the episodes, which `imitate eval` cannot do.

    Returns:
        the cause, or None without a horizon or demonstrations.
    """
    if horizon is None or not lengths:
        return None
    long = float(np.quantile(np.asarray(lengths), 0.9))
    words = f"{episodes} end after {horizon} steps; 10 % of the demonstrations have {long:.0f} steps or more"
    steps = 10 * int(np.ceil(long / 5))
    advice = f"imitate eval --agent RUN --horizon {steps}"
    if on_robot:
        advice = f"record longer: imitate run RUN --robot NAME --steps {steps}"
    return scored("horizon", long / horizon, 1.05, words, advice)


def of_failures(solved: Sequence[bool | None]) -> Cause | None:
    """Judge the share of failed episodes among the demonstrations that the policy imitates.

    Args:
        solved: outcome of each demonstration of the training; None if it is not known.

    Returns:
        the cause, or None if no demonstration is known to have failed.
    """
    failed = sum(one is False for one in solved)
    if not failed:
        return None
    return scored(
        "failed demonstrations",
        failed / len(solved),
        0.15,
        f"{failed} of {counted(len(solved), 'demonstration')} do not solve the task, and the policy imitates them too",
        "imitate dataset filter FILE solved --success --in-place, then train with train.hdf5_filter_key=solved",
    )


def of_one_or_two(number: int, own: float) -> Cause:
    """Return the cause "few demonstrations" of a training on one or two demonstrations.

    Args:
        number: number of demonstrations.
        own: the policy's action error on them, divided by the error of the best constant action.
    """
    words = (
        f"the policy was trained on {counted(number, 'demonstration')}, and other starts are new to it (its error on "
        f"the training data is {own:.2f} times that of a constant action)"
    )
    advice = "record more demonstrations, from other starts"
    return Cause("few demonstrations", MOST / number, words, advice)


def of_images_ignored(share: float, error: float, keys: Sequence[str]) -> Cause:
    """Judge whether the policy ignores its images.

    Args:
        share: change of the policy's actions when only the images are exchanged for those of another demonstration,
            as a fraction of the change when all observations are exchanged.
        error: the policy's action error on training demonstrations, divided by the error of the best constant action.
        keys: observation keys of the images.
    """
    words = (
        f"if only the images ({', '.join(keys)}) are taken from another demonstration, the policy's actions change "
        f"{share:.1%} as much as if all observations are, and its error is {error:.2f} times that of a constant action"
    )
    score = min(0.05 / max(share, 1e-6), error / 0.4)
    return scored(
        "blind",
        score,
        1.0,
        words,
        "train with a larger encoder or fewer vectors, and compare with a training without images: docs/encoders.md",
    )


def of_images_cropped(key: str, unseen: float, error: float) -> Cause:
    """Judge whether a crop hides too much of the images from the policy.

    Args:
        key: observation key of the images.
        unseen: fraction of the images' variance in the border that does not change the policy's actions.
        error: the policy's action error on training demonstrations, divided by the error of the best constant action.
    """
    words = (
        f"{unseen:.0%} of the variance of images '{key}' is in a border that does not change the policy's actions, "
        f"and the policy's error is {error:.2f} times that of a constant action"
    )
    advice = "enlarge crop_height and crop_width of the encoder: docs/encoders.md"
    return scored("blind", min(unseen / 0.6, error / 0.4), 1.0, words, advice)
