"""Measurements of possible causes in a training and its data, each with a score on one scale.

A score is the measured value divided by the largest one that healthy trainings showed: from 1 on the cause is named.
The limits are constants at the head of each measurement; `tests/checks/test_diagnosis.py` holds healthy runs below and
planted faults above them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imitate.data.quality.doctor.motion import is_position
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions
from imitate.deploy.check.statistics import Range
from imitate.system.text import counted

Array = NDArray[np.float64]


MOST = 10.0
"""Largest score; values far beyond a limit differ in words, not in score."""


@dataclass(frozen=True)
class Cause:
    """A possible cause of failure.

    Attributes:
        kind: keyword for programs.
        score: measured value over the largest healthy one, 0 to 10; the cause is named from 1 on.
        words: the evidence, with the measured numbers.
        advice: what to do next, with a command.
    """

    kind: str
    score: float
    words: str
    advice: str

    @property
    def is_named(self) -> bool:
        """True if the value is beyond every healthy one."""
        return self.score >= 1


def scored(kind: str, value: float, limit: float, words: str, advice: str) -> Cause:
    """Return the cause of a measured value and the largest healthy value."""
    score = 0.0 if np.isnan(value) else float(np.clip(value / limit, 0.0, MOST))
    return Cause(kind, score, words, advice)


def spread(names: Sequence[str], most: int) -> list[str]:
    """Return at most ``most`` names, evenly spread."""
    count = min(most, len(names))
    return [names[round(i * (len(names) - 1) / max(count - 1, 1))] for i in range(count)]


def flat(episodes: Sequence[CheckedDemo], key: str) -> list[Array]:
    """Return the values (T, D) of an observation in each episode."""
    values = [episode.obs[key] for episode in episodes]
    return [value.reshape(len(value), -1).astype(np.float64) for value in values]


def at_limits(actions: Sequence[Array], low: Array, high: Array) -> Array:
    """Return the share of steps (A,) in which an action is at its limits."""
    every = np.concatenate(actions)
    room = 1e-6 * np.where(np.isfinite(high - low), high - low, 0.0)
    found: Array = ((every <= low + room) | (every >= high - room)).mean(axis=0)
    return found


def of_limits(predictions: Predictions, low: Array, high: Array) -> Cause:
    """Compare how often policy and demonstrations are at the limits of the actions."""
    acted = at_limits(predictions.actions, low, high)
    shown = at_limits([demo.actions for demo in predictions.demos], low, high)
    more = acted - shown
    worst = int(more.argmax())
    words = (
        f"the policy's actions[{worst}] are at their limits in {acted[worst]:.0%} of the steps, "
        f"the demonstrations' in {shown[worst]:.0%}"
    )
    return scored(
        "clipping",
        float(more[worst]),
        0.2,
        words,
        "normalize actions: train.action_config.actions.normalization min_max",
    )


def of_copying(predictions: Predictions) -> Cause | None:
    """Measure whether the policy repeats the last demonstrated action where the demonstrated action changes.

    At the tenth of the steps with the largest changes, 0.5 is as near to the action before as to the right one.
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
        f"where demonstrated actions change, predictions are nearer to the action before than to the right one "
        f"({copied:.2f}; 0 is right, 0.5 between, 1 the action before)"
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
    """Return the columns of each vector that are an action of the same step (``before`` 0) or of the last one (1).

    A vector of a robot's positions that equals the action before as a whole is where its targets led it, and no copy.
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
    """Judge the ablation of an observed action.

    Args:
        share: change of the actions when it alone is exchanged, as a fraction of their change when all
            observations are exchanged.
        columns: numbers of each vector that are an action.
        before: 1 for that of the step before, 0 for that of the same step.
    """
    named = ", ".join(f"{key}[{', '.join(map(str, at))}]" for key, at in columns.items())
    words = (
        f"{named} is the action of the {'step before' if before else 'same step'}; if it alone is taken from another "
        f"demonstration, actions change {share:.0%} as much as if all observations are"
    )
    return scored("copying", share, 0.68, words, _NO_COPY)


_NO_COPY = "leave the last action out of observation.modalities, shorten train.frame_stack, or use causal_bc"


class Neighbours:
    """Nearest steps of other demonstrations, by the standardized vectors that the policy observes.

    Args:
        demos: demonstrations.
        keys: names of the vectors.
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
        """Return distances (N,) and rows (N,) of the nearest steps, of other demonstrations than ``without``."""
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
        """Return the points (T, D) of an episode's observations."""
        found: Array = (self._joined(obs) - self._mean) / self._scale
        return found

    def among_demos(self) -> tuple[Array, NDArray[np.intp]]:
        """Return for each step of the demonstrations the distance and row of its nearest step in another one."""
        found = [
            self.nearest(self.points[self.of == number], number)
            for number in range(len(self.parts))
        ]
        return np.concatenate([d for d, _ in found]), np.concatenate([r for _, r in found])

    def similar(self, most: float, number: int) -> NDArray[np.intp]:
        """Return for steps of the demonstrations the nearest steps of as many others, in the same state.

        Args:
            most: largest distance, in standard deviations per number that varies.
            number: number of demonstrations.

        Returns:
            rows (N, number) of the steps, of which the first is the step itself; only steps that have them.
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
"""Largest number of steps for which similar ones are searched."""
_CLOSE = 0.2
"""Largest distance of states that should have one action, in standard deviations per number."""
_STATES = 30
"""Smallest number of such states."""
_DEMOS = 5
"""Number of demonstrations that are compared in each of these states."""
_STEPS = 5
"""Number of steps over which actions are averaged."""
_FORKS = 1.0
"""Largest variance of actions in one state that a twentieth of the states of healthy demonstrations exceeds."""
_CHANCE = 0.65
"""Largest variance of actions in one state that half of the states of healthy demonstrations exceed."""


def of_consistency(
    neighbours: Neighbours, demos: Sequence[CheckedDemo], several_ways: bool
) -> Cause | None:
    """Measure how much actions differ between almost equal states of different demonstrations.

    Means of the actions of some steps are compared, so noise counts little, and ways that part count even if few states
    show it. 0 is the same action in the same state; 1 is no more alike than at random. An action that nowhere follows
    from the state is judged by the median over the states, others by the twentieth of the states with the largest
    differences.

    Args:
        neighbours: steps of the demonstrations.
        demos: the same demonstrations.
        several_ways: true for policies that can learn several ways of acting in one state.

    Returns:
        the cause, or None if fewer than 30 states of the demonstrations are so near to each other.
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
    apart = float(np.where(median < 0.5, part, 0.0).max())
    value = max(apart / _FORKS, float(median.mean()) / _CHANCE)
    words = (
        f"in {len(rows)} states that {number} demonstrations pass, their actions differ {median.mean():.2f} times as "
        f"much as in any states, and in the twentieth of them where they part {apart:.2f} times"
    )
    advice = "record in one way, filter (imitate dataset filter), or train flow_policy, diffusion_policy or vq_bet"
    return scored("inconsistent", value, 5.0 if several_ways else 1.0, words, advice)


def _next_mean(actions: Array) -> Array:
    """Return the means (T, A) of the actions of each step and the next ones."""
    sums = np.cumsum(np.concatenate([np.zeros((1, actions.shape[1])), actions]), axis=0)
    ends = np.minimum(np.arange(len(actions)) + _STEPS, len(actions))
    found: Array = (sums[ends] - sums[:-1]) / (ends - np.arange(len(actions)))[:, None]
    return found


_EPOCHS = 10
"""Fewest epochs that are advised."""
_FALLING = 0.12
"""Share of the loss's fall in the last third of the epochs above which a training is not finished."""


def _falling(losses: Sequence[float]) -> float:
    """Return the share of the whole fall of the loss that the last third of at least three epochs brought."""
    x = np.asarray(losses, dtype=np.float64)
    part = max(len(x) // 10, 1)
    third = 2 * len(x) // 3
    middle = float(x[max(third - part, 0) : third].mean())
    end, begin = float(x[-part:].mean()), float(x[0])
    return (middle - end) / max(begin - end, 1e-12) if begin > end else 0.0


def of_unlearnable(losses: Sequence[float], error: float) -> Cause | None:
    """Judge whether the actions follow from the observations: a finished training that does not fit its own data.

    Args:
        losses: training loss of each epoch; of fewer than ten nothing is known.
        error: error of the policy's actions on training demonstrations, divided by that of the best constant action.
    """
    if len(losses) < _EPOCHS or _falling(losses) > 0.5 * _FALLING:
        return None
    words = (
        f"the loss has stopped falling, and on its own demonstrations the policy errs {error:.2f} times as much as a "
        "constant action: its observations do not tell the demonstrated actions"
    )
    advice = (
        "if people acted differently in one state, record one way or train flow_policy, diffusion_policy or vq_bet; "
        "else look for an observation that is missing, late or wrong"
    )
    return scored("inconsistent", error, 0.75, words, advice)


def of_training(losses: Sequence[float], error: float) -> Cause:
    """Judge whether the loss still fell at the end while the policy errs on its own training data.

    Args:
        losses: training loss of each epoch.
        error: error of the policy's actions on training demonstrations, divided by that of the best constant action.
    """
    if len(losses) < 3:
        # the losses are too few to judge: only the error of the actions counts
        falling = 1.3 * _FALLING
        words = f"the training has {counted(len(losses), 'epoch')} only"
    else:
        falling = _falling(losses)
        words = f"the last third of the epochs brought {falling:.0%} of the loss's whole fall"
    words += f", and on its own demonstrations the policy errs {error:.2f} times as much as a constant action"
    score = float(np.sqrt(max(falling, 0.0) / _FALLING * error / 0.5))
    epochs = max(2 * len(losses), _EPOCHS) if losses else "N"
    advice = f"train on: imitate train --resume RUN --epochs {epochs}"
    return scored("undertrained", score, 1.0, words, advice)


def of_normalization(
    saved: Mapping[str, tuple[Array, Array]], known: Mapping[str, Range]
) -> Iterator[Cause]:
    """Compare the normalization in the checkpoint with the statistics of the data.

    Args:
        saved: offset and scale of each observation's normalization.
        known: statistics of the data.
    """
    for key, (offset, scale) in saved.items():
        range_ = known.get(key)
        if range_ is None or range_.mean.shape != offset.shape or (scale == 1).all():
            continue
        low, high = (range_.low - offset) / scale, (range_.high - offset) / scale
        reach = np.maximum(np.abs(low), np.abs(high))
        varied = range_.std > 1e-6 * np.maximum(np.abs(range_.mean), 1.0)
        if not varied.any() or not np.isfinite(reach).all():
            continue
        centre = np.abs(range_.mean - offset) / scale
        value = float(np.maximum(centre / 1.5, np.log10(np.maximum(reach, 1e-3)) - 1)[varied].max())
        narrow = 0.02 / max(float(reach[varied].max()), 1e-12)  # one number alone may hardly vary
        words = (
            f"after the checkpoint's normalization '{key}' reaches {reach[varied].max():.3g} in the data and has a "
            f"mean of {centre[varied].max():.3g} (expected: about 1 to 10, and 0)"
        )
        yield scored(
            "normalization",
            max(value, narrow),
            1.0,
            words,
            "train on the data that the policy will see, or name them: --dataset FILE",
        )


def of_units(key: str, demos: Sequence[Array]) -> Cause | None:
    """Divide the demonstrations into those with small and with large values: are some in other units?

    Args:
        key: name of the observation.
        demos: (T, D) values of each demonstration.

    Returns:
        the cause, or None for fewer than four demonstrations that are not 0.
    """
    sizes = np.array([np.sqrt((demo**2).mean()) for demo in demos])
    if (sizes > 0).sum() < 4:
        return None
    score, factor, large = split_of(sizes, _OTHER_UNIT)
    words = f"'{key}' is {factor:.3g} times as large in {large} of {(sizes > 0).sum()} demonstrations as in the others"
    return scored(
        "units", score, 1.0, words, "convert all demonstrations to the same units and frames"
    )


def split_of(sizes: Array, least: float) -> tuple[float, float, int]:
    """Divide sizes that are not 0 into small and large ones.

    Args:
        sizes: sizes; fewer than four are not divided.
        least: factor from which on the two are different.

    Returns:
        the score, which is 1 or more if there are two kinds; the factor between their means; the number of large ones.
    """
    logs = np.sort(np.log10(sizes[sizes > 0]))
    if len(logs) < 4:
        return 0.0, 1.0, 0
    parts = [(logs[:n], logs[n:]) for n in range(1, len(logs))]
    within = [np.sqrt((len(a) * a.var() + len(b) * b.var()) / len(logs)) for a, b in parts]
    best = int(np.argmin(within))
    small, large = (part.mean() for part in parts[best])
    apart = float(large - small)
    score = min(apart / np.log10(least), apart / max(_APART * float(within[best]), 1e-9))
    return score, 10**apart, len(parts[best][1])


_OTHER_UNIT = 8.0
_APART = 5.0
"""Distance of two parts, in deviations within them, that one distribution of values does not show."""


def limit_of(lengths: Sequence[int], solved: Sequence[bool | None]) -> int | None:
    """Return the number of steps after which failed episodes end, or None if they end at different ones.

    It is no limit if another episode is longer: then failures end by themselves, such as with a collision.

    Args:
        lengths: steps of each recorded episode.
        solved: outcome of each.
    """
    failed = [n for n, one in zip(lengths, solved, strict=True) if one is not True]
    if len(failed) < 2 or np.mean(np.asarray(failed) >= max(failed) - 1) < 0.8:
        return None
    return max(failed) if max(failed) == max(lengths) else None


def of_horizon(
    horizon: int | None, lengths: Sequence[int], episodes: str = "evaluation episodes"
) -> Cause | None:
    """Compare the longest episode with the demonstrations, in steps."""
    if horizon is None or not lengths:
        return None
    long = float(np.quantile(np.asarray(lengths), 0.9))
    words = f"{episodes} end after {horizon} steps; a tenth of the demonstrations have {long:.0f} or more"
    return scored(
        "horizon",
        long / horizon,
        1.05,
        words,
        f"imitate eval --agent RUN --horizon {10 * int(np.ceil(long / 5))}",
    )


def of_failures(solved: Sequence[bool | None]) -> Cause | None:
    """Judge the share of imitated demonstrations that fail; None if the file does not say which do.

    Args:
        solved: outcome of each demonstration of the training.
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
    """Judge a training on one or two demonstrations, too few to predict one of them from others.

    Args:
        number: number of demonstrations.
        own: error of the policy on them, divided by that of the best constant action.
    """
    words = (
        f"the policy was trained on {counted(number, 'demonstration')} (its error on it: {own:.2f}, 1: as badly as a "
        "constant action): other starts are new to it"
    )
    return Cause("few demonstrations", MOST / number, words, "record more, from other starts")


def of_images_ignored(share: float, error: float, keys: Sequence[str]) -> Cause:
    """Judge the ablation of the images.

    Args:
        share: change of the actions when images alone are exchanged, as a fraction of their change when all
            observations are exchanged.
        error: error of the policy's actions on training demonstrations, divided by that of the best constant action.
        keys: names of the images.
    """
    words = (
        f"if the images ({', '.join(keys)}) alone are taken from another demonstration, actions change {share:.1%} as "
        f"much as if all observations are, and the policy errs {error:.2f} times as much as a constant action"
    )
    score = min(0.05 / max(share, 1e-6), error / 0.4)
    return scored(
        "blind",
        score,
        1.0,
        words,
        "compare a training without images: docs/encoders.md; a larger encoder, or fewer vectors",
    )


def of_images_cropped(key: str, unseen: float, error: float) -> Cause:
    """Judge a border of the images that the policy does not see.

    Args:
        key: name of the images.
        unseen: part of the images' variance in the border.
        error: error of the policy's actions on training demonstrations, divided by that of the best constant action.
    """
    words = (
        f"{unseen:.0%} of what varies in the images of '{key}' is in a border that changes no action, and the policy "
        f"errs {error:.2f} times as much as a constant action"
    )
    advice = "enlarge crop_height and crop_width of the encoder: docs/encoders.md"
    return scored("blind", min(unseen / 0.6, error / 0.4), 1.0, words, advice)
