"""Measurements of possible causes of failure in a recording of a policy's episodes, compared with its demonstrations.

:mod:`imitate.checks.causes` describes the scores. Causes in images are measured in :mod:`imitate.checks.image_causes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from imitate.checks.causes import MOST, Array, Cause, Neighbours, flat, scored
from imitate.data.quality.doctor.alignment import own_positions, target_distances
from imitate.deploy.check.deploy_check import CheckedDemo
from imitate.deploy.check.inputs import (
    FAR,
    OUTSIDE,
    SHARE,
    STILL,
    DeployFinding,
    vector_findings,
)
from imitate.deploy.check.statistics import Range


def of_vectors(
    key: str,
    demos: Sequence[Array],
    known: Range,
    shown: Sequence[Array],
    firsts: Array | None = None,
    follows: NDArray[np.bool_] | None = None,
    solved: Sequence[bool | None] = (),
) -> Iterator[Cause]:
    """Yield possible causes of failure that are seen in the values of a vector observation.

    Examples are units or frames that differ from those of the training, and values that the training never contained.

    Episodes that begin within the range of the training and leave it later have the cause "drift", which any wrong
    action may lead to.

    Args:
        key: the observation key.
        demos: (T, D) values of each recorded episode.
        known: statistics of this vector in the training.
        shown: (T, D) values of each demonstration; may be empty.
        firsts: (N, D) first values of demonstrations, possibly of more than in ``shown``; None to use those.
        follows: (D,) true for each dimension that follows the actions in the demonstrations; None if not known.
        solved: true for each recorded episode that solved the task, None if not known; may be empty.
    """
    every = np.concatenate(demos)
    findings = {found.kind: found for found in vector_findings(key, every, known)}
    far = _beyond(demos, known)[0]
    from_begin = _beyond([demo[:1] for demo in demos], known)[0] > SHARE
    if "constant" in findings:
        yield Cause("constant", 3.0, findings["constant"].words, _CONSTANT_ADVICE)
    if shown and firsts is None:
        firsts = np.stack([demo[0] for demo in shown])
    if "units" in findings and from_begin:
        scaled = _of_scale(np.stack([demo[0] for demo in demos]), known, firsts)
        if scaled is not None:
            yield scored("normalization", far, SHARE, f"'{key}' {scaled}", _TWICE)
            return
        words = findings["units"].words
        if "instead of" in words or _has_one_factor(demos, firsts):
            advice = "convert the units or frames in the robot's observe()"
            yield scored("units", far, SHARE, words, advice)
            return
    begun = [bool(_beyond([demo[:1]], known)[1] > 0) for demo in demos]
    chance = _by_chance(shown, len(demos))
    for kind, begins, limit in (("outside", True, chance), ("drift", False, _DRIFT)):
        numbers = [number for number, begin in enumerate(begun) if begin is begins]
        if not numbers:
            continue
        _, outside, first = _beyond([demos[number] for number in numbers], known)
        words = (
            f"{len(numbers)} of {len(demos)} episodes begin {'outside' if begins else 'inside'} the range of '{key}' "
            f"in the training, and {outside:.0%} of their steps are outside"
        )
        if first is not None:
            words += f"; first {key}[{first[2]}] in episode {numbers[first[0]]} at step {first[1]}"
        yield scored(kind, outside * len(numbers) / len(demos), limit, words, _OUTSIDE_ADVICE)
    if shown and firsts is not None:
        reached = [demo[0] for demo, one in zip(demos, solved, strict=False) if one]
        chance = _by_chance(shown, len(demos))
        yield _of_offset(key, demos, known, firsts, chance, reached, follows)
        yield from _of_sensor(key, demos, shown, firsts, follows)


_DRIFT = 0.55
"""Largest share of steps outside the training's range in the rare failures of a healthy policy."""


_TWICE = "give the policy raw values, which it normalizes itself"
_ODD = 3.0
"""First values may be normalized if they are farther than this from the training's mean, in standard deviations."""
_FITS = 1.0
"""A normalization fits if first values are nearer than this to the normalized mean, in standard deviations."""


def _of_scale(here: Array, known: Range, firsts: Array | None) -> str | None:
    """Describe the normalization that turns first values of the training into the recorded ones, or return None.

    Args:
        here: (N, D) first values of the recorded episodes.
        known: statistics of the training.
        firsts: (N, D) first values of demonstrations; None to use the statistics of all steps.
    """
    middle = known.mean if firsts is None else firsts.mean(axis=0)
    std = np.maximum(known.std, 1e-6 * np.maximum(np.abs(known.mean), 1.0))
    usual = known.std if firsts is None else firsts.std(axis=0)
    seen, spread, varied = here.mean(axis=0), here.std(axis=0), known.std >= std
    if not (varied & (np.abs(seen - middle) > _ODD * std)).any():
        return None
    ways = {
        "looks standardized": (known.mean, std),
        "looks scaled to [-1, 1]": ((known.low + known.high) / 2, (known.high - known.low) / 2),
        "looks scaled to [0, 1]": (known.low, known.high - known.low),
    }
    found = {}
    for words, (offset, scale) in ways.items():
        size = np.maximum(scale, 1e-12)
        left = np.abs(seen - (middle - offset) / size) / np.maximum(std / size, 0.1)
        width = np.log(np.maximum(spread, 1e-12) * size / np.maximum(usual, 1e-12))
        same = (usual <= 0.1 * std) | (len(here) <= 3) | (np.abs(width) < 1.0)
        if np.isfinite(size).all() and ((left < _FITS) & same)[varied].mean() >= 0.8:
            found[words] = float(np.abs(width[varied]).mean())
    if not found:
        return None
    best = min(found, key=lambda words: found[words])
    return f"{best} with the training's statistics, which the policy does itself: the mean is {_few(seen)}"


def _few(values: Array) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:3]) + (" ..." if len(values) > 3 else "")


def _has_one_factor(demos: Sequence[Array], firsts: Array | None) -> bool:
    """Return whether the first values differ from those of the training by about one factor in all dimensions.

    Such a factor means other units. If the robot or an object is somewhere else, only some dimensions differ.
    """
    if firsts is None:
        return True
    here = np.sqrt((np.stack([demo[0] for demo in demos]) ** 2).mean(axis=0))
    there = np.sqrt((firsts**2).mean(axis=0))
    known = (there > 1e-6 * there.max()) & (here > 0)
    logs = np.log(here[known] / there[known])
    return bool(known.any() and np.ptp(logs) < np.log(2) and abs(np.median(logs)) > np.log(3))


def _by_chance(shown: Sequence[Array], count: int) -> float:
    """Return the share of episodes that may begin outside the training's range by chance, at least 10 %.

    The probability that any dimension is outside more often is below 1 %. It follows from how often the first values of
    a demonstration are outside the range of the other demonstrations.

    Args:
        shown: (T, D) values of each demonstration; with fewer than two the share is 10 %.
        count: number of recorded episodes.
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
    key: str,
    demos: Sequence[Array],
    known: Range,
    there: Array,
    by_chance: float,
    reached: Sequence[Array],
    follows: NDArray[np.bool_] | None,
) -> Cause:
    """Test whether the first values of the episodes, which no action has changed, are all shifted to one side.

    If at least two episodes that begin outside the range of the training are solved (``reached`` has their first
    values), an object really is there, and the sensor is right. A sensor of the robot itself is shifted if its first
    values are; objects that begin outside the range in most episodes are more likely at another place.

    The score grows with the certainty of the shift and with the share of episodes that begin outside the range only
    because of the shift. If all failures begin within the range, they may as well come from starts that are rare in
    the demonstrations.
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
        f"{key}[{worst}] begins {shift[worst]:+.3g} away from the demonstrations ({errors[worst]:.1f} standard errors);"
        f" {outside:.0%} of the episodes begin outside the training's range, and {back:.0%} would without this shift"
    )
    middles = (np.ptp(np.percentile(values, (25, 75), axis=0), axis=0) for values in (here, there))
    narrow, wide = np.sort(np.stack([*middles]), axis=0)
    most = 1 + _WIDER / min(len(here), len(there))
    alike = (wide <= most * narrow) | (wide <= 0.1 * known.std)
    at = [worst]
    part = Range(known.mean[at], known.std[at], known.low[at], known.high[at])
    there_indeed = sum(_beyond([first[None, at]], part)[1] > 0 for first in reached) >= 2
    of_robot = follows is not None and bool(follows[worst])
    moved = alike.all() and (of_robot or not there_indeed)
    rare = not outside and not of_robot
    kind = (
        "coverage" if rare else "offset" if moved and (outside > 0 or of_robot) else "other starts"
    )
    if kind == "offset" and follows is not None and not of_robot and outside >= _ELSEWHERE:
        kind = "outside"
    return scored(
        kind,
        certain + (outside / by_chance if back < 0.5 * outside else 0.0),
        1.0,
        words,
        _OUTSIDE_ADVICE if rare else _CALIBRATE,
    )


_CALIBRATE = "calibrate the sensor or camera that measures it, or place objects and robot as in the demonstrations"

_OUTSIDE_ADVICE = "record demonstrations that begin in or pass such states, or correct the policy there: imitate dagger"
_CONSTANT_ADVICE = (
    "record demonstrations in which it varies, or remove it from observation.modalities"
)
_WIDER = 20.0
"""The interquartile ranges of first values in N episodes may differ by a factor of 1 + 20 / N by chance."""
_ELSEWHERE = 0.8
"""Share of episodes that begin outside the training's range from which on objects are taken to be elsewhere."""
_SHIFTED = 6.0
"""Shift of first values, in standard errors, that recordings of healthy policies do not reach."""


def _of_sensor(
    key: str,
    demos: Sequence[Array],
    shown: Sequence[Array],
    firsts: Array,
    follows: NDArray[np.bool_] | None,
) -> Iterator[Cause]:
    """Find dimensions that hardly vary within an episode, as from a broken sensor.

    The position of an object that a failing policy does not touch is constant within an episode but differs between
    episodes. So only dimensions of the robot (``follows``) are judged by episode; others have to be constant in all.
    """
    here, there = (
        np.mean([part.std(axis=0) for part in parts], axis=0) for parts in (demos, shown)
    )
    varied = (there > 1e-3 * float(there.max())) & (there > 1e-9)
    never = np.ptp(np.concatenate(demos), axis=0) == 0
    placed = firsts.std(axis=0) > 1e-6 * np.maximum(np.abs(firsts).max(axis=0), 1e-3)
    judged = varied & (never & placed if follows is None else follows | (never & placed))
    if not judged.any():
        return
    ratio = np.where(judged, here / np.where(varied, there, 1.0), np.inf)
    worst = int(ratio.argmin())
    words = f"{key}[{worst}] varies {ratio[worst]:.2g} times as much within an episode as within a demonstration"
    yield scored(
        "sensor",
        STILL / max(float(ratio[worst]), 1e-6),
        1.0,
        words,
        "check the sensor and its driver, and whether this joint or gripper moves at all (brake, commands)",
    )


def of_dropped(key: str, demos: Sequence[Array], shown: Sequence[Array]) -> Cause:
    """Compare how often an observation repeats its previous value for a few steps and then changes again.

    If it changes in practically every step of the demonstrations, longer repetitions count as well.

    Args:
        key: the observation key.
        demos: (T, D) values of each recorded episode.
        shown: (T, D) values of each demonstration.
    """
    always = np.mean([_repeated(part, np.inf) for part in shown]) < _NEVER
    run = _LONG_RUN if always else _RUN
    here, there = (
        float(np.mean([_repeated(part, run) for part in parts])) for parts in (demos, shown)
    )
    words = (
        f"'{key}' repeats its previous value for at most {run} steps and then changes again in {here:.0%} of the "
        f"steps ({there:.0%} in the demonstrations)"
    )
    advice = "compare the rates of sensor and control loop: the sensor may be slower, or its frames may get lost"
    pauses = demos[0].ndim == 2 and _only_pauses(demos)
    return scored("dropped frames", 0.0 if pauses else max(here - there, 0.0), 0.15, words, advice)


def _only_pauses(demos: Sequence[Array]) -> bool:
    """Return true if a vector goes on with a usual step after repetitions, as a joint that stood still.

    A value that was not updated jumps. Nothing can be compared if practically all changes follow a repetition.

    Args:
        demos: (T, D) values of each recorded episode.
    """
    jumps, others = [], []
    for demo in demos:
        steps = np.abs(np.diff(demo, axis=0)).max(axis=1, initial=0.0)
        moves = np.flatnonzero(steps)[1:]
        after = steps[moves - 1] == 0
        jumps += [*steps[moves[after]]]
        others += [*steps[moves[~after]]]
    return bool(
        len(others) > 0.2 * len(jumps) and np.median(jumps or [0.0]) < _JUMP * np.median(others)
    )


def _repeated(values: Array, most: float) -> float:
    """Return the share of steps that repeat the previous values; runs of more than ``most`` steps do not count."""
    moves = np.flatnonzero((np.diff(values, axis=0) != 0).any(axis=1))
    if len(moves) < 2:
        return 0.0
    runs = np.diff(moves) - 1
    return float(runs[runs <= most].sum() / max(len(values) - 1, 1))


_RUN = 5
"""Longest run of equal values that counts as lost frames; in longer runs the robot does not move."""
_LONG_RUN = 30
"""The same for observations that change in every step of the demonstrations."""
_JUMP = 1.4
"""A vector was not updated if its changes after repetitions are at least this multiple of its other changes."""
_NEVER = 0.01
"""Largest share of repeated values of an observation that changes in every step."""


def _beyond(
    demos: Sequence[Array], known: Range
) -> tuple[float, float, tuple[int, int, int] | None]:
    """Measure how often recorded values are beyond the values of the training.

    Returns:
        the largest share over the dimensions of steps far from the mean; the same of steps outside the range; and
        episode, step and dimension of the first value outside the range, or None.
    """
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


def of_structure(found: DeployFinding) -> Cause:
    """Turn a finding that no healthy run has, such as a missing key, into a cause of the largest score."""
    return Cause(
        found.kind,
        MOST,
        found.words,
        "give observations the names, sizes and order that they had in the training",
    )


def of_finite(episodes: Sequence[CheckedDemo]) -> Iterator[Cause]:
    """Yield a cause for each observation key with NaN or infinite values."""
    for key in episodes[0].obs:
        parts = [episode.obs[key] for episode in episodes]
        if parts[0].dtype.kind != "f":
            continue
        bad = np.concatenate(
            [~np.isfinite(part.reshape(len(part), -1)).all(axis=1) for part in parts]
        )
        if bad.any():
            words = f"'{key}' is NaN or inf in {bad.mean():.0%} of the steps, first in step {int(bad.argmax())}"
            yield Cause("not finite", MOST, words, "check the sensor and its driver")


def of_rate(recorded: float | None, trained: float | None) -> Cause | None:
    """Compare the control rates in Hz of recording and training; return None if one of them is not known."""
    if not recorded or not trained:
        return None
    words = f"the control rate of the recording is {recorded:g} Hz, that of the demonstrations {trained:g} Hz"
    return scored(
        "rate",
        abs(np.log(recorded / trained)),
        np.log(1.05),
        words,
        f"run the policy at the rate of the demonstrations: imitate run --rate-hz {trained:g}",
    )


def of_exchange(
    here: Mapping[str, Array], there: Mapping[str, Array]
) -> Iterator[tuple[str, Cause]]:
    """Find pairs of vectors whose difference has the opposite sign in the demonstrations: they are exchanged.

    Args:
        here: (N, D) first values of each vector in the recorded episodes.
        there: (M, D) first values of each vector in the demonstrations.

    Returns:
        for each pair both observation keys, joined by a comma, and the cause.
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
    """Find the joint that stays farther from its commanded positions than in the demonstrations.

    If it begins as far from where it begins in the demonstrations, before any command, its reading is shifted.

    Args:
        recorded: actions (T, A) and positions (T, D) of each recorded episode.
        trained: actions and positions of each demonstration.

    Returns:
        the cause, or None if the actions are not target positions or the recording cannot be compared.
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
        f"position {columns[worst]} stays on average {here[worst]:.3g} away from its target, actions[{actions[worst]}] "
        f"({there[worst]:.3g} in the demonstrations)"
    )
    advice = "look for a contact, a load, or limits in the driver that cut the commands"
    column = columns[worst]
    firsts = [np.array([q[0, column] for _, q in pairs]) for pairs in (recorded, trained)]
    shift = abs(float(np.mean(firsts[0]) - np.mean(firsts[1])))
    chance = float(np.sqrt(sum(np.var(first) / len(first) for first in firsts)))
    if shift > _CERTAIN * chance and abs(shift - here[worst]) < 0.3 * here[worst] + 2 * chance:
        words += f"; it begins {shift:.3g} away from where it begins in the demonstrations"
        return scored("offset", float(more[worst]), 4.0, words, _CALIBRATE)
    return scored("unreached", float(more[worst]), 4.0, words, advice)


_CERTAIN = 4.0
"""A shift of the first positions counts if it is larger than this number of standard errors."""


_LONG = 12
"""Only episodes with more than this number of steps are long enough for positions to reach their targets."""


def of_failed(
    shown: Sequence[CheckedDemo],
    vectors: Sequence[str],
    failed: Sequence[CheckedDemo],
    share: float,
    firsts: Mapping[str, Array],
) -> Iterator[Cause]:
    """Measure how far from demonstrations failed episodes begin and end.

    Args:
        shown: demonstrations.
        vectors: observation keys of the vectors.
        failed: recorded episodes that failed.
        share: share of the recorded episodes that failed. The ends of less than half of the episodes are not judged,
            since the failures of a good policy end far from demonstrations, too.
        firsts: (N, D) first values of each vector in demonstrations; may be empty.
    """
    if share > 0.5:
        names = [demo.name for demo in shown]
        yield of_coverage(Neighbours(shown, vectors), failed, names)
    if firsts and failed:
        begins = [np.stack([one[0] for one in flat(failed, key)]) for key in firsts]
        here, there = (np.concatenate([*parts], axis=1) for parts in (begins, firsts.values()))
        rare = of_rare_starts(here, there)
        if rare is not None:
            yield rare


def of_rare_starts(here: Array, there: Array) -> Cause | None:
    """Test whether failed episodes begin in states near which few demonstrations begin.

    Args:
        here: (N, D) first values of the failed episodes.
        there: (M, D) first values of demonstrations.

    Returns:
        the cause, or None if there are fewer than 20 demonstrations, or all of them begin in the same state.
    """
    std = there.std(axis=0)
    varied = std > 1e-6 * np.maximum(np.abs(there).max(axis=0, initial=0.0), 1e-3)
    if len(there) < _STARTS or not len(here) or not varied.any():
        return None
    places = there[:, varied] / std[varied]

    def far(points: Array, skipped: int) -> Array:
        distances = np.linalg.norm(points[:, None] - places, axis=2)
        found: Array = np.sort(distances, axis=1)[:, _NEAR - 1 + skipped]
        return found

    # A demonstration's own start, at distance 0, is skipped.
    usual = float(np.quantile(far(places, 1), 0.95))
    median = float(np.median(far(here[:, varied] / std[varied], 0)))
    words = (
        f"failed episodes begin {median:.3g} standard deviations from the fifth nearest start of the {len(there)} "
        f"demonstrations; for 95 % of the demonstrations this distance is below {usual:.3g}"
    )
    return scored("coverage", median, max(1.4 * usual, 1e-9), words, _OUTSIDE_ADVICE)


_STARTS = 20
"""The starts of failed episodes are compared with at least this number of demonstrations, or not at all."""
_NEAR = 5
"""The distance of a start to the fifth nearest start of the demonstrations is measured."""


def of_coverage(
    neighbours: Neighbours, episodes: Sequence[CheckedDemo], names: Sequence[str]
) -> Cause:
    """Test whether failed episodes end in states that are far from all demonstrations.

    The median over the episodes counts, because even a good policy's rare failures end far away.

    Args:
        neighbours: search over the steps of the demonstrations.
        episodes: failed episodes.
        names: names of the demonstrations in the order of ``neighbours``.
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
        f"the last third of the failed episodes is {np.median(every):.3g} standard deviations from the nearest step of "
        f"a demonstration; 99 % of the demonstrations' steps are within {usual:.3g} of another demonstration (farthest "
        f"failure: {place})"
    )
    return scored(
        "coverage",
        float(np.median(every)),
        max(2.2 * usual, 1e-9),
        words,
        "record demonstrations in these states, or correct the policy there: imitate dagger",
    )
