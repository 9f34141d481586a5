"""Diagnosis of a policy that does not succeed: possible causes, measured and ranked.

The policy acts on its training demonstrations and, if given, on a recording of its failures. Causes are ranked by their
scores (:mod:`imitate.checks.causes`), but a cause that may follow from another one is put after it: observations in
other units, for example, are also outside the range of the training.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.checks import causes, ends, execution_causes, fitted, image_causes, response
from imitate.checks import recording_causes as recorded
from imitate.checks.causes import Array, Cause, flat, spread
from imitate.checks.motion_model import Pairs
from imitate.checks.subject import (
    Subject,
    acted,
    as_recorded,
    changed_by,
    driven,
    end_values,
    episodes_of,
    first_images,
    first_values,
    followed,
    motions_of,
    nearer,
    positions_among,
    recorded_names,
    remembers,
    unseen_by,
    vectors_of,
    watched,
)
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.hdf5_format import outcomes
from imitate.data.quality.doctor.motion import is_motion
from imitate.deploy.check.deploy_check import ActionErrors, CheckedDemo, Predictions, shape_findings
from imitate.deploy.check.first_look import first_look
from imitate.deploy.check.inputs import OUTSIDE, DeployFinding
from imitate.deploy.check.statistics import Range, TrainingObservations, range_of
from imitate.deploy.resizing import IMAGE_KINDS
from imitate.deploy.server.served import schema_of
from imitate.envs.make import is_real
from imitate.policy.rollout_policy import RolloutPolicy

_FIRST = (
    "missing",
    "not finite",
    "shape",
    "order",
    "sign",
    "exchanged",
    "exchanged vectors",
    "zeros",
    "units",
    "dropped frames",
    "normalization",
    "rate",
)
"""Kinds of causes that may lead to all other kinds; they are ranked first."""
_LAST = ("sensor", "clipping", "outside", "other policy", "undertrained", "inconsistent")
"""Kinds of causes that may follow from others; they are ranked after most others."""
_CONSEQUENCES = ("coverage", "other starts", "drift")
"""Kinds of causes that only say in which states episodes begin or end; they are ranked last."""
_OF_FRAME = ("exchanged vectors", "offset")
"""Kinds of causes that are excluded if solved episodes end with the same observations as demonstrations."""
_SUCCEEDS = 0.8


@dataclass
class Diagnosis:
    """Result of a diagnosis.

    Attributes:
        causes: all measured causes, the most likely first.
        notes: sentences about measurements that were left out, with the reason.
        success: success rate of the recorded episodes, or of the run if there is no recording; None if not known.
        success_of: "the recorded episodes" or "the run", whichever ``success`` belongs to.
    """

    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    success: float | None = None
    success_of: str = "the run"

    @property
    def named(self) -> list[Cause]:
        """Causes with a score of 1 or more; empty if the policy succeeds in at least 80 % of the episodes."""
        if self.success is not None and self.success >= _SUCCEEDS:
            return []
        return [cause for cause in self.causes if cause.is_named]

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as a dictionary that can be written as JSON."""
        named = self.named
        return {
            "named": [cause.kind for cause in named],
            "causes": [{**vars(cause), "named": cause in named} for cause in self.causes],
            "notes": self.notes,
            "success_rate": self.success,
        }


def diagnose(
    subject: Subject,
    data: DatasetFile | None,
    recording: DatasetFile | None,
    *,
    most: int = 20,
    rename: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Measure all causes for which there are data, and rank them.

    Args:
        subject: policy and run.
        data: file of the training demonstrations, or None.
        recording: file of recorded episodes of the policy, or None.
        most: largest number of demonstrations, and of recorded episodes, on which the policy acts.
        rename: maps observation keys of the recording to those of the policy.

    Raises:
        UserError: an observation of the policy is missing in ``data``.
        DatasetError: a file is damaged.
    """
    report = Diagnosis(success=subject.success)
    failures = [] if recording is None else spread(recording.demos(), most)
    names = [] if data is None else subject.demos_of(data)
    shown: list[CheckedDemo] = []
    if data is None or not names:
        report.notes.append(
            "only the recording was examined: give the demonstrations by --dataset to examine the training"
        )
    else:
        shown = episodes_of(data, spread(names, most), subject.policy)
        report.causes += _of_training(
            subject, data, names, shown, report, bool(failures) or subject.success is not None
        )
    if recording is None or not failures:
        report.notes.append(
            "only the training was examined: give a recording of failures by --recording to examine it too"
        )
    else:
        solved = list(outcomes(recording, failures).values())
        report.success_of = "the recorded episodes"
        report.success = None if None in solved else float(np.mean([one is True for one in solved]))
        if shown:
            end = causes.limit_of([recording.length(name) for name in failures], solved)
            steps = [len(demo.actions) for demo in shown]
            real = is_real(recording.env_meta)
            cause = causes.of_horizon(end, steps, "recorded failures", on_robot=real)
            report.causes += _some(cause)
        report.causes += _of_recording(
            subject, data, shown, recording, failures, rename, report, solved
        )
    report.causes = ranked(report.causes)
    return report


def ranked(found: Sequence[Cause]) -> list[Cause]:
    """Sort causes: scores of at least 1 first; among these causes that explain others come first, then high scores."""

    def place(cause: Cause) -> tuple[bool, int, int, float, int]:
        tiers = _FIRST, (), _LAST, _CONSEQUENCES
        tier = next((n for n, kinds in enumerate(tiers) if cause.kind in kinds), 1)
        if not cause.is_named:
            return True, 0, 0, -cause.score, 0
        number = tiers[tier].index(cause.kind) if tiers[tier] else 0
        return False, tier, number if tier == 3 else 0, -cause.score, number

    return sorted(found, key=place)


def _of_training(
    subject: Subject,
    data: DatasetFile,
    names: Sequence[str],
    shown: list[CheckedDemo],
    report: Diagnosis,
    fails: bool,
) -> Iterator[Cause]:
    """Measure causes in the demonstrations, and in the policy's actions on them.

    Args:
        subject: policy and run.
        data: file of the demonstrations.
        names: names of all demonstrations of the training.
        shown: those demonstrations on which the policy acts.
        report: gets a note for each measurement that is left out.
        fails: true if episodes of the policy are known, in the run or in a recording.
    """
    policy = subject.policy
    vectors = _of_kind(policy, ("low_dim",))
    measured = {key: range_of([demo.obs[key] for demo in shown]) for key in vectors}
    yield from causes.of_normalization(subject.normalization, measured)
    normalized = {key: subject.normalized(key, flat(shown, key)) for key in vectors}
    yield from causes.of_clipping(policy.algo.preprocess.obs_clip, normalized)
    for key in vectors:
        yield from _some(causes.of_units(key, flat(shown, key)))
    lengths = [data.length(name) for name in names]
    yield from _some(causes.of_horizon(subject.horizon, lengths))
    if subject.imitates_all:
        yield from _some(causes.of_failures(list(outcomes(data, names).values())))
    yield from _of_motions(policy, data, shown)
    if policy.goal_keys:
        report.notes.append(
            "the policy needs goals, so its actions on the demonstrations were not examined"
        )
        return
    if shown[0].actions.shape[1] != len(np.ravel(policy.limits[0])):
        report.notes.append(
            "the demonstrations' actions have another size than the policy's, so they were not compared"
        )
        return
    predictions = acted(policy, shown)
    again = acted(policy, shown, seed=1) if subject.several_ways else predictions
    error = ActionErrors(nearer(predictions, again)).overall
    low, high = (np.asarray(limit, dtype=np.float64) for limit in policy.limits)
    yield causes.of_limits(predictions, low, high)
    yield from _some(causes.of_copying(predictions))
    if subject.losses:
        yield causes.of_training(subject.losses, error, fails)
        if not subject.several_ways:
            yield from _some(causes.of_unlearnable(subject.losses, error))
    if len(names) < 3:
        yield causes.of_one_or_two(len(names), error)
        return
    yield from _of_copies(policy, predictions, vectors)
    images = _of_kind(policy, IMAGE_KINDS)
    if images:
        yield from _of_images(policy, data, names, predictions, error)
        report.notes.append(
            "the policy observes images, so number and consistency of the demonstrations were not judged"
        )
        return
    alike = causes.of_consistency(causes.Neighbours(shown, vectors), shown, subject.several_ways)
    if alike is None:
        report.notes.append(
            "too few states are shared by demonstrations, so their consistency was not judged"
        )
    yield from _some(alike)
    yield from _of_left_out(policy, data, names, error, subject.several_ways)


def _of_motions(
    policy: RolloutPolicy, data: DatasetFile, shown: list[CheckedDemo]
) -> Iterator[Cause]:
    """Measure causes in the relation of actions and positions in the demonstrations."""
    seen = vectors_of(shown, shown)
    positions = motions_of(data, shown) or positions_among(seen)[0]
    if positions and policy.algo.preprocess.reference_keys:
        yield from _some(response.of_action_units(positions))
    motions, _ = driven(positions, vectors=(seen, []))
    yield from _some(response.of_shift(motions))
    yield from response.of_parts(motions)


def _of_images(
    policy: RolloutPolicy,
    data: DatasetFile,
    names: Sequence[str],
    predictions: Predictions,
    error: float,
) -> Iterator[Cause]:
    """Measure how much the policy uses its images, and whether the images predict how demonstrations end."""
    images, vectors = _of_kind(policy, IMAGE_KINDS), _of_kind(policy, ("low_dim",))
    every = dict.fromkeys(images)
    yield causes.of_images_ignored(changed_by(policy, predictions, every), error, images)
    successive = names[:_LEFT_OUT]
    begins = [*first_values(data, successive, vectors).values()]
    begin = np.concatenate([np.zeros((len(successive), 0)), *begins], axis=1)
    end = end_values(data, successive, vectors)
    for key in _of_kind(policy, ("rgb",)):
        yield causes.of_images_cropped(key, unseen_by(policy, predictions, key), error)
        first = first_images(data, successive, key)
        listed = _listed(data, [key, *vectors]) or successive
        others = first_images(data, listed, key), end_values(data, listed, vectors)
        yield from _some(image_causes.of_other_episodes(key, *others))
        yield from _some(image_causes.of_uninformative(key, first, begin, end, error))


def _of_copies(
    policy: RolloutPolicy, predictions: Predictions, vectors: Sequence[str]
) -> Iterator[Cause]:
    """Measure how much the policy relies on observations that copy the action of the same or the previous step."""
    for before in (0, 1):
        copied = causes.copied_columns(predictions.demos, vectors, before)
        if copied:
            yield causes.of_repeating(changed_by(policy, predictions, copied), copied, before)


def _listed(data: DatasetFile, keys: Sequence[str]) -> list[str]:
    """Return all demonstrations of a file, or the first 200; empty if one lacks a key or has another shape."""
    found, paths = data.demos()[:_LISTED], [f"obs/{key}" for key in keys]
    if not all(data.has(name, path) for name in found for path in paths):
        return []
    shapes = {tuple(data.read(name, path, 0, 1).shape for path in paths) for name in found}
    return found if len(shapes) == 1 else []


_LISTED = 200
"""Largest number of demonstrations whose images are looked for in other episodes."""
_LEFT_OUT = 100
"""Largest number of demonstrations for leave-one-out predictions."""


def _of_left_out(
    policy: RolloutPolicy,
    data: DatasetFile,
    names: Sequence[str],
    error: float,
    several_ways: bool,
) -> Iterator[Cause]:
    """Measure how well demonstrations predict each other, and whether missing observations would improve this."""
    names = spread(names, _LEFT_OUT)
    demos = episodes_of(data, names, policy)
    known = fitted.LeftOut(demos, policy.obs_keys)
    yield fitted.of_number(known, error)
    if policy.history == 1 and not remembers(policy):
        yield fitted.of_motion(known, fitted.LeftOut(demos, policy.obs_keys, before=True))
    others = [key for key in data.obs_keys(names[0]) if key not in policy.obs_keys]
    firsts = first_values(data, names, others)
    small = {key: values for key, values in firsts.items() if values.shape[1] <= _LARGEST}
    yield from fitted.of_unobserved(known, small, several_ways)


_LARGEST = 32
"""Largest size of a vector that is tested as a missing observation."""


def _of_recording(
    subject: Subject,
    data: DatasetFile | None,
    shown: list[CheckedDemo],
    recording: DatasetFile,
    failures: Sequence[str],
    rename: Mapping[str, str] | None,
    report: Diagnosis,
    solved: Sequence[bool | None],
) -> Iterator[Cause]:
    """Measure causes in a recording of failures.

    Args:
        subject: policy and run.
        data: file of the demonstrations, or None.
        shown: demonstrations on which the policy acts; may be empty.
        recording: file of the recorded episodes.
        failures: names of the recorded episodes to examine.
        rename: maps observation keys of the recording to those of the policy.
        report: gets a note for each measurement that is left out.
        solved: outcome of each examined episode, None if not known.
    """
    policy = subject.policy
    kinds = {key: policy.modalities[key] for key in policy.obs_keys}
    wanted = schema_of(policy).observations
    names = recorded_names(policy, rename)
    wrong = shape_findings(
        {names[key]: spec for key, spec in wanted.items()}, recording, failures[0]
    )
    yield from map(recorded.of_structure, wrong)
    if wrong:
        report.notes.append(
            "the policy cannot act on the recording, so its actions were not compared"
        )
        return
    episodes = episodes_of(recording, failures, policy, rename)
    broken = [*recorded.of_finite(episodes)]
    yield from broken
    if broken:
        report.notes.append(
            "the policy cannot act on NaN or inf, so the recording was not compared further"
        )
        return
    seen = vectors_of(shown, shown) if shown else [], vectors_of(episodes, shown)
    here = motions_of(recording, episodes, rename)
    there = [] if data is None else motions_of(data, shown)
    if not here or not there:
        there, here = positions_among(*seen)
    reached = recorded.of_reach(here, there)
    moved = None if reached else execution_causes.of_blocked(here, there)
    there, here = driven(there, here, seen)
    odd = at_begin(episodes, kinds, subject.known)
    order = response.of_order(here, there) if there else None
    reordered = order is not None and order.kind == "order"
    if reordered or response.right_sides(here, there):
        odd = [one for one in odd if one.kind != "sign" or not is_motion(f"obs/{one.key}")]
    vectors = _of_kind(policy, ("low_dim",))
    frame, right = _of_frame(subject, data, recording, failures, solved, episodes, names)
    yield from frame
    firsts = (
        {}
        if data is None
        else first_values(data, spread(subject.demos_of(data), _LEFT_OUT), vectors)
    )
    if right:
        odd = [one for one in odd if kinds.get(one.key) != "low_dim"]
    inputs = _inputs(odd, episodes, shown, kinds, subject.known, firsts, solved)
    yield from (cause for cause in inputs if not right or cause.kind not in _OF_FRAME)
    rate = policy.control_freq or (data.control_freq if data is not None else None)
    yield from _some(recorded.of_rate(recording.control_freq, rate))
    if data is not None and shown:
        yield from _some(order)
        same = bool(rate and recording.control_freq)
        yield from _of_response(here, there, moved, same, reordered)
        yield from _some(reached)
        yield from _some(execution_causes.of_lateness(episodes, shown, vectors))
        if vectors:
            failed = [one for one, good in zip(episodes, solved, strict=True) if not good]
            yield from recorded.of_failed(
                shown, vectors, failed, len(failed) / len(episodes), firsts
            )
    if not policy.goal_keys and episodes[0].actions.shape[1] == len(np.ravel(policy.limits[0])):
        yield from _of_execution(policy, recording, episodes)


def _of_response(
    here: Pairs, there: Pairs, blocked: Cause | None, same_rate: bool, reordered: bool
) -> Iterator[Cause]:
    """Compare how positions respond to actions in a recording, ``here``, and in demonstrations, ``there``.

    Effects of late actions seem small, so their sizes are not compared if there is a delay.

    Args:
        here: actions and positions of the recorded episodes.
        there: actions and positions of the demonstrations.
        blocked: the cause for positions that stop, if it was measured.
        same_rate: true if the control rates of both are known.
        reordered: true if the positions have another order, which seems to change signs.
    """
    late = response.of_delay(here, there)
    yield from _some(late)
    is_blocked = blocked is not None and blocked.is_named
    moved = blocked if is_blocked else response.of_effects(here, there, same_rate)
    wrong = {"sign"} if reordered else set()
    if late is not None and late.is_named:
        wrong |= {"rate", "gain"}
    yield from (cause for cause in _some(moved) if cause.kind not in wrong)


def _of_execution(
    policy: RolloutPolicy, recording: DatasetFile, episodes: Sequence[CheckedDemo]
) -> Iterator[Cause]:
    """Compare executed actions with the policy's: with those in the recording, or else with new ones."""
    wanted = as_recorded(recording, episodes)
    if wanted is not None:
        cut = [*execution_causes.of_execution(wanted, wanted)]
        if any(cause.is_named and cause.kind != "other policy" for cause in cut):
            yield from cut
            return
    yield from execution_causes.of_execution(
        acted(policy, episodes), acted(policy, episodes, seed=1)
    )


def _of_frame(
    subject: Subject,
    data: DatasetFile | None,
    recording: DatasetFile,
    failures: Sequence[str],
    solved: Sequence[bool | None],
    episodes: Sequence[CheckedDemo],
    names: Mapping[str, str],
) -> tuple[list[Cause], bool]:
    """Test whether the observations of recorded episodes describe the scene.

    Returns:
        the cause "frame", if it was measured; and true if solved episodes end like demonstrations, so that the
        observations are right.
    """
    vectors = _of_kind(subject.policy, ("low_dim",))
    if data is None or not vectors or None in solved:
        return [], False
    known = outcomes(data, subject.demos_of(data))
    good = spread([name for name, one in known.items() if one is not False], _LEFT_OUT)
    looks = ends.LooksSolved(watched(data, good, vectors, dict.fromkeys(good, True)))
    results = dict(zip(failures, solved, strict=True))
    seen = watched(recording, failures, [names[key] for key in vectors], results)
    sizes = np.cumsum([0, *(flat(episodes, key)[0].shape[1] for key in vectors)])
    columns = {key: slice(*sizes[n : n + 2]) for n, key in enumerate(vectors)}
    return [*_some(ends.of_frame(looks, seen, columns))], ends.is_right(looks, seen)


def _inputs(
    first: Sequence[DeployFinding],
    episodes: Sequence[CheckedDemo],
    shown: Sequence[CheckedDemo],
    kinds: Mapping[str, str],
    known: TrainingObservations,
    firsts: Mapping[str, Array],
    solved: Sequence[bool | None],
) -> Iterator[Cause]:
    """Compare the recorded observations with those of the training.

    Args:
        first: findings at the beginning of episodes; their observation keys are not examined further.
        episodes: recorded episodes.
        shown: demonstrations; may be empty.
        kinds: modality of each observation key.
        known: statistics of the training.
        firsts: (N, D) first values of each vector in demonstrations; may be empty.
        solved: outcome of each recorded episode.
    """
    yield from map(recorded.of_structure, first)
    odd = {key for found in first for key in found.key.split(", ")}
    vectors = [key for key, kind in kinds.items() if kind == "low_dim" and key not in odd]
    if shown:
        joined = (
            {key: np.stack([one[0] for one in flat(part, key)]) for key in vectors}
            for part in (episodes, shown)
        )
        for keys, cause in recorded.of_exchange(*joined):
            odd |= set(keys.split(", "))
            yield cause
        cameras = [key for key, kind in kinds.items() if kind == "rgb" and key not in odd]
        for exchanged in image_causes.of_exchanged(cameras, episodes, shown):
            odd |= set(cameras) if exchanged.is_named else set()
            yield exchanged
    for key, kind in kinds.items():
        range_: Range | None = known.ranges.get(key)
        if key in odd:
            continue
        if shown:
            yield recorded.of_dropped(key, flat(episodes, key), flat(shown, key))
        if kind == "rgb":
            yield from _of_camera(key, episodes, shown, vectors, range_)
        elif kind == "low_dim" and range_ is not None:
            mine, theirs = flat(episodes, key), flat(shown, key)
            pairs = [(demo.actions, values) for demo, values in zip(shown, theirs, strict=True)]
            follows = followed(pairs)
            if mine[0].shape[1] == range_.mean.size:
                yield from recorded.of_vectors(
                    key, mine, range_, theirs, firsts.get(key), follows, solved
                )


def _of_camera(
    key: str,
    episodes: Sequence[CheckedDemo],
    shown: Sequence[CheckedDemo],
    vectors: Sequence[str],
    known: Range | None,
) -> Iterator[Cause]:
    """Compare recorded images with those of the demonstrations, and with the vectors of the same steps."""
    images, theirs = ([one.obs[key] for one in part] for part in (episodes, shown))
    found = [*image_causes.of_images(key, images, known, theirs)]
    yield from found
    is_odd = any(one.is_named for one in found)
    if is_odd or not shown or images[0].shape[1:] != theirs[0].shape[1:]:
        return
    here, there = (image_causes.Views(part, key, vectors) for part in (episodes, shown))
    yield from image_causes.of_views(key, here, there)


def at_begin(
    episodes: Sequence[CheckedDemo], kinds: Mapping[str, str], known: TrainingObservations
) -> list[DeployFinding]:
    """Return wrong orders, signs, zeros and exchanged cameras in the first observations of episodes.

    A finding counts if it occurs in a quarter of the episodes, and in at least two, since one may begin oddly by
    chance. If there is only one episode, every finding counts.

    Args:
        episodes: recorded episodes.
        kinds: modality of each observation key.
        known: statistics of the training.
    """
    found: dict[tuple[str, str], list[DeployFinding]] = {}
    for episode in episodes:
        for one in first_look({k: v[0] for k, v in episode.obs.items()}, kinds, known):
            if one.kind in ("order", "sign", "exchanged", "zeros"):
                found.setdefault((one.kind, one.key), []).append(one)
    least = max(min(2, len(episodes)), len(episodes) / 4)
    return [
        every[0]
        for (kind, key), every in found.items()
        if len(every) >= least
        if kind != "sign" or _is_negated(flat(episodes, key), known.ranges[key])
    ]


def _is_negated(episodes: Sequence[Array], known: Range) -> bool:
    """Return whether first values outside the training's range would be inside with the opposite sign."""
    firsts = np.stack([values[0] for values in episodes])
    room = OUTSIDE * (known.high - known.low)

    def outside(values: Array) -> NDArray[np.bool_]:
        return (values < known.low - room) | (values > known.high + room)

    odd = outside(firsts).any(axis=0)
    return bool((outside(-firsts)[:, odd].mean(axis=0) <= _CONTRADICTED).all())


_CONTRADICTED = 0.2
"""Largest share of episodes that may be outside the training's range even with the opposite sign."""


def _of_kind(policy: RolloutPolicy, kinds: Sequence[str]) -> list[str]:
    return [key for key in policy.obs_keys if policy.modalities[key] in kinds]


def _some(cause: Cause | None) -> Iterator[Cause]:
    if cause is not None:
        yield cause
