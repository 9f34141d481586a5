"""Diagnosis of a policy that does not succeed: possible causes, measured and ranked.

The policy acts on demonstrations of its training and, if there is one, on a recording of its failures; see
:mod:`imitate.checks.causes` for what is measured. A cause that another one explains, such as unknown states where
units are wrong, comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.checks import causes, fitted
from imitate.checks import recording_causes as recorded
from imitate.checks.causes import Array, Cause, flat, spread
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.outcomes import outcomes
from imitate.data.quality.doctor.motion import is_motion
from imitate.deploy.check.deploy_check import (
    ActionErrors,
    CheckedDemo,
    Predictions,
    check_memory,
    shape_findings,
)
from imitate.deploy.check.first_look import first_look
from imitate.deploy.check.inputs import DeployFinding
from imitate.deploy.check.statistics import Range, TrainingObservations, range_of, training_of
from imitate.deploy.resizing import IMAGE_KINDS
from imitate.deploy.server.served import schema_of
from imitate.errors import DatasetError, UserError
from imitate.policy.checkpoint import config_of
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.instructions import TASK_ATTRS, instruction_of
from imitate.system.run_folder import RunFolder, find_checkpoint
from imitate.train.metrics import MetricsFile

_FIRST = (
    "missing",
    "not finite",
    "shape",
    "order",
    "sign",
    "exchanged",
    "zeros",
    "units",
    "dropped frames",
    "normalization",
    "rate",
)
"""Causes that explain all others."""
_LAST = ("sensor", "outside", "other policy", "undertrained", "inconsistent")
"""Causes that others may explain."""
_CONSEQUENCES = ("drift", "other starts", "coverage")
"""Where failures begin and end: any cause of wrong actions explains it."""
_SEVERAL_WAYS = ("flow_policy", "diffusion_policy", "vq_bet", "act")
_SUCCEEDS = 0.8


@dataclass(frozen=True)
class Subject:
    """A policy and its run.

    Attributes:
        policy: the policy.
        known: statistics of the observations of its training.
        normalization: offset and scale of each observation in the checkpoint.
        losses: training loss of each epoch.
        success: success rate of the last evaluations, or None.
        horizon: longest evaluation episode in steps, or None.
        several_ways: true if the policy can learn several ways of acting in one state.
        part: filter key of the demonstrations of the training, and the largest number of them; None: all.
        imitates_all: true if all demonstrations are imitated, bad ones too.
    """

    policy: RolloutPolicy
    known: TrainingObservations
    normalization: Mapping[str, tuple[Array, Array]]
    losses: Sequence[float] = ()
    success: float | None = None
    horizon: int | None = None
    several_ways: bool = False
    part: tuple[str | None, int | None] = (None, None)
    imitates_all: bool = False

    def demos_of(self, data: DatasetFile) -> list[str]:
        """Return the names of the demonstrations of a file with which the policy was trained."""
        filter_key, limit = self.part
        known = filter_key is not None and filter_key in data.filter_keys()
        return data.demos(filter_key if known else None)[:limit]


@dataclass
class Diagnosis:
    """Result of a diagnosis.

    Attributes:
        causes: all that was measured, the likeliest first.
        notes: what could not be measured, and why.
        success: success rate of the recorded episodes, without a recording that of the run; None if it is unknown.
        success_of: which of the two it is.
    """

    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    success: float | None = None
    success_of: str = "the run"

    @property
    def named(self) -> list[Cause]:
        """Causes beyond what healthy runs show; none if the policy succeeds."""
        if self.success is not None and self.success >= _SUCCEEDS:
            return []
        return [cause for cause in self.causes if cause.is_named]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        named = self.named
        return {
            "named": [cause.kind for cause in named],
            "causes": [{**vars(cause), "named": cause in named} for cause in self.causes],
            "notes": self.notes,
            "success_rate": self.success,
        }


def subject_of(run: Path, device: str | None = None) -> tuple[Subject, Path | None]:
    """Load a policy and what its run recorded.

    Args:
        run: a run folder or a checkpoint.
        device: device of the policy; None is the CPU.

    Returns:
        the subject, and the file of its demonstrations if it exists.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    path = find_checkpoint(run)
    policy, ckpt = policy_from_checkpoint(device=device or "cpu", ckpt_path=path)
    config = config_of(ckpt)
    kinds = {key: policy.modalities[key] for key in policy.obs_keys}
    records = MetricsFile(RunFolder(path.parent.parent).metrics).read()
    losses = [r["Train/Loss"] for r in records if r.get("kind") == "epoch" and "Train/Loss" in r]
    rates = [r["Rollout/Success_Rate"] for r in records if "Rollout/Success_Rate" in r]
    sources = ckpt["provenance"].get("datasets", ())
    files = [Path(str(entry.get("path"))) for entry in sources]
    first: Mapping[str, Any] = next(iter(sources), {})
    normalization = {
        key: (entry["offset"].double().numpy().ravel(), entry["scale"].double().numpy().ravel())
        for key, entry in ckpt["preprocess"]["obs"].items()
    }
    ways = config.algo_name in _SEVERAL_WAYS or bool(
        getattr(getattr(config.algo, "gmm", None), "enabled", False)
    )
    chosen = config.train.sample_weight.kind, config.train.filter_best
    from_rewards = config.algo.data_needs(config).transitions is not None
    weighs = bool(getattr(getattr(config.algo, "advantage", None), "enabled", False))
    subject = Subject(
        policy,
        training_of(ckpt, None, kinds, reads_files=False),
        normalization,
        losses,
        max(rates) if rates else None,
        config.experiment.rollout.horizon if config.experiment.rollout.enabled else None,
        ways,
        (first.get("filter_key") or config.train.hdf5_filter_key, first.get("demo_limit")),
        chosen == (None, None) and not from_rewards and not weighs,
    )
    return subject, next((file for file in files if file.is_file()), None)


def episodes_of(
    file: DatasetFile,
    names: Sequence[str],
    policy: RolloutPolicy,
    rename: Mapping[str, str] | None = None,
) -> list[CheckedDemo]:
    """Read the observations of the policy and the actions of some episodes.

    Args:
        file: open file.
        names: names of the episodes.
        policy: the policy.
        rename: from names of the file's observations to the policy's.

    Raises:
        UserError: an observation of the policy is missing.
        DatasetError: the file is damaged.
    """
    found = []
    names_there = _recorded_names(policy, rename)
    if names:
        check_memory(file, names, [*(f"obs/{key}" for key in names_there.values()), "actions"])
    for name in names:
        missing = [key for key in names_there.values() if not file.has(name, f"obs/{key}")]
        if missing:
            raise UserError(
                f"{file.path}: {name} has no observation {', '.join(missing)}; it has "
                f"{', '.join(file.obs_keys(name))}: give names by --rename NEW=OLD"
            )
        obs = {own: file.read(name, f"obs/{key}") for own, key in names_there.items()}
        actions = file.read(name, "actions")
        for own, values in obs.items():
            if len(values) != len(actions):
                raise DatasetError(
                    f"{file.path}: demo '{name}' has {len(values)} observations '{own}' and {len(actions)} actions: "
                    "find all such demos with imitate dataset doctor"
                )
        lang = instruction_of(file.attrs(name, TASK_ATTRS), None) if policy.instructions else None
        found.append(
            CheckedDemo(name, obs, actions.reshape(len(actions), -1).astype(np.float64), lang)
        )
    return found


def _recorded_names(policy: RolloutPolicy, rename: Mapping[str, str] | None) -> dict[str, str]:
    """Return the name in the file of each observation of the policy."""
    own = {old: new for new, old in (rename or {}).items()}
    return {key: own.get(key, key) for key in policy.obs_keys}


def acted(policy: RolloutPolicy, episodes: Sequence[CheckedDemo], seed: int = 0) -> Predictions:
    """Call the policy on all episodes with one instruction at once; each row of a batch is an episode.

    Args:
        policy: the policy.
        episodes: observations and actions of some episodes.
        seed: seed of policies that sample.
    """
    torch.manual_seed(seed)
    actions: list[Array] = [np.zeros(0)] * len(episodes)
    for lang in dict.fromkeys(episode.lang for episode in episodes):
        rows = [row for row, episode in enumerate(episodes) if episode.lang == lang]
        every = _acted([episodes[row] for row in rows], policy, lang)
        for row, found in zip(rows, every, strict=True):
            actions[row] = found[: len(episodes[row].actions)]
    return Predictions(episodes, actions, 0.0, np.zeros(0))


def nearer(one: Predictions, other: Predictions) -> Predictions:
    """Return the action that is nearer to the demonstrated one at each step.

    A policy that samples may take another way than the demonstration, which is no error.
    """
    actions = []
    for demo, a, b in zip(one.demos, one.actions, other.actions, strict=True):
        first, second = (np.abs(x - demo.actions).sum(axis=1, keepdims=True) for x in (a, b))
        actions.append(np.where(first <= second, a, b))
    return Predictions(one.demos, actions, 0.0, np.zeros(0))


def _acted(episodes: Sequence[CheckedDemo], policy: RolloutPolicy, lang: str | None) -> Array:
    """Return the policy's actions (N, T, A); shorter episodes repeat their last observation."""
    policy.start_episode(lang)
    steps = []
    for step in range(max(len(episode.actions) for episode in episodes)):
        obs = {
            key: np.stack([e.obs[key][min(step, len(e.actions) - 1)] for e in episodes])
            for key in policy.obs_keys
        }
        steps.append(policy(obs, batched_ob=True))
    return np.stack(steps, axis=1)


def diagnose(
    subject: Subject,
    data: DatasetFile | None,
    recording: DatasetFile | None,
    *,
    most: int = 20,
    rename: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Measure all causes that can be measured, and rank them.

    Args:
        subject: policy and run.
        data: demonstrations of the training, or None.
        recording: recorded episodes in which the policy failed, or None.
        most: largest number of demonstrations, and of recorded episodes, on which the policy acts.
        rename: from names of the recording's observations to the policy's.

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
            "without the demonstrations (--dataset) only the recording was examined"
        )
    else:
        shown = episodes_of(data, spread(names, most), subject.policy)
        report.causes += _of_training(subject, data, names, shown, report)
    if recording is None or not failures:
        report.notes.append(
            "without a recording of failures (--recording) only the training was examined"
        )
    else:
        solved = list(outcomes(recording, failures).values())
        report.success_of = "the recorded episodes"
        report.success = None if None in solved else float(np.mean([one is True for one in solved]))
        if shown:
            end = causes.limit_of([recording.length(name) for name in failures], solved)
            steps = [len(demo.actions) for demo in shown]
            report.causes += _some(causes.of_horizon(end, steps, "recorded failures"))
        report.causes += _of_recording(
            subject, data, shown, recording, failures, rename, report, solved
        )
    report.causes = ranked(report.causes)
    return report


def ranked(found: Sequence[Cause]) -> list[Cause]:
    """Sort causes: named ones first, those that explain others before those that are explained, then by score."""

    def place(cause: Cause) -> tuple[bool, int, float]:
        tiers = _FIRST, (), _LAST, _CONSEQUENCES
        tier = next((n for n, kinds in enumerate(tiers) if cause.kind in kinds), 1)
        return not cause.is_named, tier if cause.is_named else 0, -cause.score

    return sorted(found, key=place)


def _of_training(
    subject: Subject,
    data: DatasetFile,
    names: Sequence[str],
    shown: list[CheckedDemo],
    report: Diagnosis,
) -> Iterator[Cause]:
    """Measure what the demonstrations (``names``, some of them ``shown``) and the policy's actions on them show."""
    policy = subject.policy
    vectors = _of_kind(policy, ("low_dim",))
    measured = {key: range_of([demo.obs[key] for demo in shown]) for key in vectors}
    yield from causes.of_normalization(subject.normalization, measured)
    for key in vectors:
        yield from _some(causes.of_units(key, flat(shown, key)))
    lengths = [data.length(name) for name in names]
    yield from _some(causes.of_horizon(subject.horizon, lengths))
    if subject.imitates_all:
        yield from _some(causes.of_failures(list(outcomes(data, names).values())))
    motions = _motions(data, shown)
    yield from _some(fitted.of_shift(motions))
    yield from fitted.of_parts(motions)
    if policy.goal_keys:
        report.notes.append(
            "the policy has goals: its actions on the demonstrations were not examined"
        )
        return
    if shown[0].actions.shape[1] != len(np.ravel(policy.limits[0])):
        report.notes.append("the demonstrations' actions have another form: they were not compared")
        return
    predictions = acted(policy, shown)
    again = acted(policy, shown, seed=1) if subject.several_ways else predictions
    error = ActionErrors(nearer(predictions, again)).overall
    low, high = (np.asarray(limit, dtype=np.float64) for limit in policy.limits)
    yield causes.of_limits(predictions, low, high)
    yield from _some(causes.of_copying(predictions))
    yield from _some(causes.of_training(subject.losses, error) if subject.losses else None)
    if len(names) < 3:
        yield causes.of_one_or_two(len(names), error)
        return
    copied = causes.copied_columns(shown, vectors)
    if copied:
        yield causes.of_repeating(_ablation(policy, predictions, copied), copied)
    images = _of_kind(policy, IMAGE_KINDS)
    if images:
        every = dict.fromkeys(images)
        yield causes.of_images_ignored(_ablation(policy, predictions, every), error, images)
        report.notes.append(
            "the policy has images: whether the demonstrations are enough and alike was not measured"
        )
        return
    alike = causes.of_consistency(causes.Neighbours(shown, vectors), shown, subject.several_ways)
    if alike is None:
        report.notes.append(
            "no two demonstrations come close: whether they are alike was not measured"
        )
    yield from _some(alike)
    yield from _of_left_out(policy, data, names, error)


_LEFT_OUT = 100
"""Largest number of demonstrations of which each is predicted from the others."""


def _of_left_out(
    policy: RolloutPolicy, data: DatasetFile, names: Sequence[str], error: float
) -> Iterator[Cause]:
    """Measure what the demonstrations show of each other, and what other vectors of the file add."""
    names = spread(names, _LEFT_OUT)
    demos = episodes_of(data, names, policy)
    known = fitted.LeftOut(demos, policy.obs_keys)
    yield fitted.of_number(known, error)
    others = {}
    for key in data.obs_keys(names[0]):
        if key in policy.obs_keys or not all(data.has(name, f"obs/{key}") for name in names):
            continue
        firsts = [data.read(name, f"obs/{key}", 0, 1).ravel() for name in names]
        sizes = {first.size for first in firsts}
        if firsts[0].dtype.kind in "fiu" and len(sizes) == 1 and max(sizes) <= _LARGEST:
            others[key] = np.stack(firsts).astype(np.float64)
    yield from fitted.of_unobserved(known, others)


_LARGEST = 32
"""Numbers of the largest vector that is tried as an unobserved one."""


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
    """Measure what a recording of failures shows."""
    policy = subject.policy
    kinds = {key: policy.modalities[key] for key in policy.obs_keys}
    wanted = schema_of(policy).observations
    names = _recorded_names(policy, rename)
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
        report.notes.append("the policy cannot act on such values: its actions were not compared")
        return
    here = _motions(recording, episodes, rename)
    there = [] if data is None else _motions(data, shown)
    odd = at_begin(episodes, kinds, subject.known)
    if fitted.right_sides(here, there):
        odd = [one for one in odd if one.kind != "sign" or not is_motion(f"obs/{one.key}")]
    yield from _inputs(odd, episodes, shown, kinds, subject.known)
    rate = policy.control_freq or (data.control_freq if data is not None else None)
    yield from _some(recorded.of_rate(recording.control_freq, rate))
    if data is not None and shown:
        yield from _some(fitted.of_order(here, there))
        same = bool(rate and recording.control_freq)
        yield from _some(fitted.of_effects(here, there, same))
        yield from _some(recorded.of_reach(here, there))
        yield from _some(fitted.of_delay(here, there))
        vectors = _of_kind(policy, ("low_dim",))
        if vectors:
            neighbours = causes.Neighbours(shown, vectors)
            failed = [one for one, good in zip(episodes, solved, strict=True) if not good]
            names_there = [demo.name for demo in shown]
            yield recorded.of_coverage(neighbours, failed or episodes, names_there)
    if not policy.goal_keys and episodes[0].actions.shape[1] == len(np.ravel(policy.limits[0])):
        yield from recorded.of_execution(acted(policy, episodes), acted(policy, episodes, seed=1))


def _inputs(
    first: Sequence[DeployFinding],
    episodes: Sequence[CheckedDemo],
    shown: Sequence[CheckedDemo],
    kinds: Mapping[str, str],
    known: TrainingObservations,
) -> Iterator[Cause]:
    """Compare the recorded observations with those of the training; ``first`` was found at the begin of episodes."""
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
    for key, kind in kinds.items():
        range_: Range | None = known.ranges.get(key)
        if key in odd:
            continue
        if shown:
            yield recorded.of_dropped(key, flat(episodes, key), flat(shown, key))
        if kind == "rgb":
            images, theirs = ([one.obs[key] for one in part] for part in (episodes, shown))
            found = [*recorded.of_images(key, images, range_, theirs)]
            yield from found
            if not found and shown and images[0].shape[1:] == theirs[0].shape[1:]:
                here, there = (recorded.Views(part, key, vectors) for part in (episodes, shown))
                yield from recorded.of_views(key, here, there)
        elif kind == "low_dim" and range_ is not None:
            mine, theirs = flat(episodes, key), flat(shown, key)
            if mine[0].shape[1] == range_.mean.size:
                yield from recorded.of_vectors(key, mine, range_, theirs)


def at_begin(
    episodes: Sequence[CheckedDemo], kinds: Mapping[str, str], known: TrainingObservations
) -> list[DeployFinding]:
    """Return wrong orders, signs, zeros and exchanged cameras in the first observations of a quarter of the episodes.

    One alone may begin oddly by chance.
    """
    found: dict[tuple[str, str], list[DeployFinding]] = {}
    for episode in episodes:
        for one in first_look({k: v[0] for k, v in episode.obs.items()}, kinds, known):
            if one.kind in ("order", "sign", "exchanged", "zeros"):
                found.setdefault((one.kind, one.key), []).append(one)
    least = max(min(2, len(episodes)), len(episodes) / 4)
    return [every[0] for every in found.values() if len(every) >= least]


def _motions(
    file: DatasetFile, episodes: Sequence[CheckedDemo], rename: Mapping[str, str] | None = None
) -> list[tuple[Array, Array]]:
    """Return actions and positions of the episodes."""
    found = []
    new = rename or {}
    for episode in episodes:
        own = {new.get(key, key): key for key in file.obs_keys(episode.name)}
        keys = [own[key] for key in sorted(own) if is_motion(f"obs/{key}")]
        if keys:
            parts = [file.read(episode.name, f"obs/{key}") for key in keys]
            flat = [part.reshape(len(part), -1).astype(np.float64) for part in parts]
            found.append((episode.actions, np.concatenate(flat, axis=1)))
    return found


def _ablation(
    policy: RolloutPolicy,
    predictions: Predictions,
    chosen: Mapping[str, NDArray[np.intp] | None],
) -> float:
    """Return how much the actions change if some observations are taken from other demonstrations.

    The change is a fraction of the change if all observations are taken from other demonstrations.

    Args:
        policy: the policy.
        predictions: its actions.
        chosen: columns of each key that are exchanged, or None for the whole key.
    """

    def mixed_value(own: Array, other: Array, columns: NDArray[np.intp] | None) -> Array:
        taken: Array = other[np.arange(len(own)) % len(other)]
        if columns is None:
            return taken
        mixed = own.reshape(len(own), -1).copy()
        mixed[:, columns] = taken.reshape(len(own), -1)[:, columns]
        return mixed.reshape(own.shape)

    def changed(keys: Mapping[str, NDArray[np.intp] | None]) -> float:
        episodes = predictions.demos
        others = [*episodes[1:], episodes[0]]
        mixed = [
            CheckedDemo(
                own.name,
                {
                    key: mixed_value(own.obs[key], other.obs[key], keys[key])
                    if key in keys
                    else own.obs[key]
                    for key in policy.obs_keys
                },
                own.actions,
                own.lang,
            )
            for own, other in zip(episodes, others, strict=True)
        ]
        again = acted(policy, mixed)
        pairs = zip(again.actions, predictions.actions, strict=True)
        return float(np.concatenate([np.abs(a - b).mean(axis=1) for a, b in pairs]).mean())

    return changed(chosen) / max(changed(dict.fromkeys(policy.obs_keys)), 1e-9)


def _of_kind(policy: RolloutPolicy, kinds: Sequence[str]) -> list[str]:
    return [key for key in policy.obs_keys if policy.modalities[key] in kinds]


def _some(cause: Cause | None) -> Iterator[Cause]:
    if cause is not None:
        yield cause
