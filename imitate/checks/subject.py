"""The policy and run to diagnose, and the episodes, robot positions and predicted actions that are measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.checks.causes import Array, copied_columns
from imitate.checks.ends import Watched
from imitate.checks.motion_model import Effects, Pairs, Response, correlations, reach_of
from imitate.data.dataset_file import DatasetFile
from imitate.data.quality.doctor.motion import is_motion
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions, check_memory
from imitate.deploy.check.statistics import TrainingObservations, training_of
from imitate.errors import DatasetError, UserError
from imitate.policy.checkpoint import config_of
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.instructions import TASK_ATTRS, instruction_of
from imitate.system.run_folder import RunFolder, find_checkpoint
from imitate.train.metrics import MetricsFile

_SEVERAL_WAYS = ("flow_policy", "diffusion_policy", "vq_bet", "act")


@dataclass(frozen=True)
class Subject:
    """A policy and its run.

    Attributes:
        policy: the policy.
        known: statistics of the observations in the training.
        normalization: offset and scale for each observation key, as in the checkpoint.
        losses: training loss of each epoch.
        success: best success rate of the run's evaluations, or None if it has none.
        horizon: step limit of the run's evaluation episodes, or None if it has none.
        several_ways: true if the policy can learn several ways of acting in one state.
        part: filter key and largest number of the demonstrations of the training; None where there is no restriction.
        imitates_all: true if all demonstrations are imitated alike, false if bad ones are left out or have less weight.
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

    def normalized(self, key: str, values: Sequence[Array]) -> list[Array]:
        """Return values (T, D) of an observation key as the checkpoint normalizes them."""
        offset, scale = self.normalization.get(key, (np.zeros(1), np.ones(1)))
        return [(each - offset) / scale for each in values]

    def demos_of(self, data: DatasetFile) -> list[str]:
        """Return the names of those demonstrations of the file with which the policy was trained."""
        filter_key, limit = self.part
        known = filter_key is not None and filter_key in data.filter_keys()
        return data.demos(filter_key if known else None)[:limit]


def subject_of(run: Path, device: str | None = None) -> tuple[Subject, Path | None]:
    """Load a policy with the losses and success rates of its run.

    Args:
        run: a run folder or a checkpoint.
        device: device of the policy; None is the CPU.

    Returns:
        the subject, and the path of its training demonstrations, or None if the file does not exist.

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
        rename: maps observation keys of the file to those of the policy.

    Raises:
        UserError: an observation key of the policy is missing in an episode.
        DatasetError: the file is damaged, or an episode has different numbers of observations and actions.
    """
    found = []
    names_there = recorded_names(policy, rename)
    if names:
        check_memory(file, names, [*(f"obs/{key}" for key in names_there.values()), "actions"])
    for name in names:
        missing = [key for key in names_there.values() if not file.has(name, f"obs/{key}")]
        if missing:
            raise UserError(
                f"{file.path}: '{name}' has no observation {', '.join(missing)}, only "
                f"{', '.join(file.obs_keys(name))}: give the file of the training by --dataset, or map names of a "
                "recording by --rename NEW=OLD"
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


def recorded_names(policy: RolloutPolicy, rename: Mapping[str, str] | None) -> dict[str, str]:
    """Return the keys in the file of the policy's observations, by the policy's observation keys."""
    own = {old: new for new, old in (rename or {}).items()}
    return {key: own.get(key, key) for key in policy.obs_keys}


def as_recorded(file: DatasetFile, episodes: Sequence[CheckedDemo]) -> Predictions | None:
    """Return the policy's actions (T, A) that a recording has beside the executed ones.

    Where a person acted, the executed actions take the place of the policy's. Returns None if an episode has none, or
    if its arrays have other shapes or values that are not finite numbers.
    """
    if not all(file.has(one.name, "policy_actions") for one in episodes):
        return None
    actions = []
    for one in episodes:
        wanted = file.read(one.name, "policy_actions")
        by_person = np.zeros(len(one.actions), dtype=bool)
        if file.has(one.name, "interventions"):
            by_person = file.read(one.name, "interventions").astype(bool).ravel()
        fits = wanted.shape == one.actions.shape and len(by_person) == len(wanted)
        if not fits or wanted.dtype.kind not in "fiu" or not np.isfinite(wanted).all():
            return None
        wanted = np.where(by_person[:, None], one.actions, wanted.astype(np.float64))
        actions.append(wanted)
    return Predictions(episodes, actions, 0.0, np.zeros(0))


def acted(policy: RolloutPolicy, episodes: Sequence[CheckedDemo], seed: int = 0) -> Predictions:
    """Return the policy's actions for the observations of episodes.

    Episodes with the same instruction are predicted together, as rows of a batch.

    Args:
        policy: the policy.
        episodes: observations and actions of some episodes.
        seed: random seed for policies that sample their actions.
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
    """Combine two predictions: at each step the action that is nearer to the demonstrated one.

    So a policy that samples is not blamed if one sample goes another way than the demonstration.
    """
    actions = []
    for demo, a, b in zip(one.demos, one.actions, other.actions, strict=True):
        first, second = (np.abs(x - demo.actions).sum(axis=1, keepdims=True) for x in (a, b))
        actions.append(np.where(first <= second, a, b))
    return Predictions(one.demos, actions, 0.0, np.zeros(0))


def _acted(episodes: Sequence[CheckedDemo], policy: RolloutPolicy, lang: str | None) -> Array:
    """Return the policy's actions (N, T, A) in a batch of episodes; shorter ones repeat their last observation."""
    policy.start_episode(lang)
    steps = []
    for step in range(max(len(episode.actions) for episode in episodes)):
        obs = {
            key: np.stack([e.obs[key][min(step, len(e.actions) - 1)] for e in episodes])
            for key in policy.obs_keys
        }
        steps.append(policy(obs, batched_ob=True))
    return np.stack(steps, axis=1)


def motions_of(
    file: DatasetFile, episodes: Sequence[CheckedDemo], rename: Mapping[str, str] | None = None
) -> Pairs:
    """Return actions and positions of the episodes; empty if no observation key is named like a robot's positions.

    Args:
        file: open file.
        episodes: episodes of the file.
        rename: maps observation keys of the file to those of the policy.
    """
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


def vectors_of(episodes: Sequence[CheckedDemo], shown: Sequence[CheckedDemo]) -> Pairs:
    """Return actions and all observed vectors of the episodes, except numbers that copy an action.

    Args:
        episodes: demonstrations or recorded episodes.
        shown: demonstrations, in which copies are looked for; may be empty.
    """
    keys = [key for key, part in sorted(episodes[0].obs.items()) if part.ndim == 2]
    copies: dict[str, list[int]] = {key: [] for key in keys}
    for before in (0, 1) if shown else ():
        for key, columns in copied_columns(shown, keys, before).items():
            copies[key] += columns.tolist()
    found = []
    for episode in episodes if keys else ():
        parts = [np.delete(episode.obs[key], copies[key], axis=1) for key in keys]
        vectors = np.concatenate(parts, axis=1, dtype=np.float64)
        if vectors.shape[1]:
            found.append((episode.actions, vectors))
    return found


def followed(pairs: Pairs) -> NDArray[np.bool_] | None:
    """Return for each dimension whether it belongs to the robot (D,): it follows the actions from the first steps on.

    Dimensions of an object follow the actions only after the robot has grasped it. The result is None if the episodes
    have too few steps.
    """
    model = _long_model(pairs)
    return None if model is None else model.follows & _moved_by(pairs) & _moves_early(pairs)


def _moved_by(pairs: Pairs) -> NDArray[np.bool_]:
    """Return for each dimension whether its motion significantly depends on some action (D,)."""
    found: NDArray[np.bool_] = (np.abs(Effects(pairs).certain) >= _CERTAIN).any(axis=0)
    return found


def _long_model(pairs: Pairs) -> Response | None:
    pairs = [pair for pair in pairs if len(pair[0]) > _SHORT]
    model = Response(pairs) if pairs else None
    return model if model is not None and model.enough else None


def _moves_early(pairs: Pairs) -> NDArray[np.bool_]:
    """Return for each dimension (D,) whether it moves about as much in the first quarter of the episodes as later."""
    moves = [np.abs(np.diff(q, axis=0)) for _, q in pairs if len(q) > 1]
    early = np.mean([part[: max(len(part) // 4, 1)].mean(axis=0) for part in moves], axis=0)
    found: NDArray[np.bool_] = early > 0.3 * np.mean([part.mean(axis=0) for part in moves], axis=0)
    return found


def _strongest(pairs: Pairs) -> Array:
    """Return for each dimension the largest absolute correlation (D,) of its motion with an action, over episodes."""
    found = correlations(pairs)
    strongest: Array = np.abs(found).mean(axis=0).max(axis=0) if len(found) else np.zeros(1)
    return strongest


def positions_among(trained: Pairs, recorded: Pairs = ()) -> tuple[Pairs, Pairs]:
    """Keep those dimensions of vectors that look like positions of the robot.

    Positions follow the actions; velocities follow them less closely, and objects later.

    Args:
        trained: actions and vectors of demonstrations.
        recorded: actions and vectors of recorded episodes.

    Returns:
        ``trained`` and ``recorded`` with the kept dimensions; both empty if no dimension looks like a position.
    """
    model = _long_model(trained)
    if model is None or (recorded and recorded[0][1].shape[1] != len(model.left)):
        return [], []
    closely = (np.nan_to_num(model.left, nan=1.0) < _CLOSELY) & _moved_by(trained)
    kept = (closely | (_strongest(trained) > _ALIKE)) & _moves_early(trained)
    if not kept.any():
        return [], []
    own = ([(u, q[:, kept]) for u, q in pairs] for pairs in (trained, recorded))
    return next(own), next(own)


def remembers(policy: RolloutPolicy) -> bool:
    """Return true if the policy's memory has more than planned actions and stacked frames."""
    return bool(set(policy.algo.initial_state(1)["policy"]) - {"chunk", "uncertainty"})


def driven(
    trained: Pairs, recorded: Pairs = (), vectors: tuple[Pairs, Pairs] = ((), ())
) -> tuple[Pairs, Pairs]:
    """Replace positions by velocities if actions change the velocity, as forces do.

    The response model then describes velocities: actions accelerate, and friction is the pull towards a velocity of 0.
    Velocities are the changes of the positions or, if these are too noisy, the observed values that the actions move.

    Args:
        trained: actions and positions of demonstrations.
        recorded: actions and positions of recorded episodes.
        vectors: actions and all observed vectors of the same demonstrations and of the same recorded episodes.

    Returns:
        ``trained`` and ``recorded``, with velocities in place of the positions if the actions explain the
        demonstrations far better so.
    """
    most = _least_unexplained(trained)
    if most <= _NOT_EXACT:
        return trained, recorded
    enough = min(_FAR_BETTER * most, _EXPLAINED)
    changes = _changes(trained)
    if _least_unexplained(changes) < enough:
        return changes, _changes(recorded)
    moved = _closely_moved(*vectors)
    if _least_unexplained(moved[0]) < enough and not _loses_an_action(trained, moved[0]):
        return moved
    return trained, recorded


def _loses_an_action(positions: Pairs, others: Pairs) -> bool:
    """Return true if an action goes along with motions, of either sign in each episode, of positions alone."""
    strongest = [
        np.abs(correlations(pairs)).mean(axis=0).max(axis=1) for pairs in (positions, others)
    ]
    return bool((strongest[1] < strongest[0] - 0.1).any())


def _closely_moved(trained: Pairs, recorded: Pairs) -> tuple[Pairs, Pairs]:
    """Keep those dimensions of vectors of which the actions explain nearly all motion; both are empty without any."""
    model = _long_model(trained)
    if model is None or (recorded and recorded[0][1].shape[1] != len(model.left)):
        return [], []
    kept = (np.nan_to_num(model.left, nan=1.0) < _EXPLAINED) & _moved_by(trained)
    if not kept.any():
        return [], []
    return [(u, q[:, kept]) for u, q in trained], [(u, q[:, kept]) for u, q in recorded]


def _changes(pairs: Pairs) -> Pairs:
    return [(u[1:], np.diff(q, axis=0)) for u, q in pairs if len(u) > 1]


def _least_unexplained(pairs: Pairs) -> float:
    """Return the mean unexplained fraction of the motion at the best shift of the actions; 1 if it is unknown."""
    reach = min(reach_of(pairs), _SHIFTS)
    models = [Response(pairs, delay, reach) for delay in range(-reach, reach + 1) if reach]
    fractions = [np.nan_to_num(model.left, nan=1.0) for model in models if model.enough]
    return min((float(left.mean()) for left in fractions), default=1.0)


_SHIFTS = 3
_NOT_EXACT = 0.03
"""If a smaller fraction of the motion is unexplained, actions certainly move positions."""
_FAR_BETTER = 0.4
"""Actions change velocities if this reduces the unexplained fraction at least by this factor."""
_EXPLAINED = 0.15
"""Actions change velocities only if at most this fraction is unexplained: noise predicts its own changes a little."""
_SHORT = 4
"""Episodes of at most this number of steps are too short for a model of the response."""
_CERTAIN = 8.0
"""An action's effect is significant if it is at least this number of standard errors."""
_CLOSELY = 0.05
"""A dimension counts as a position if the response model leaves less than this fraction of its motion unexplained."""
_ALIKE = 0.9
"""A dimension also counts as a position if its motion's correlation with an action is larger than this.
"""


def first_values(file: DatasetFile, names: Sequence[str], keys: Sequence[str]) -> dict[str, Array]:
    """Return the first values (N, D) of each vector in N episodes; keys that an episode lacks are left out."""
    found = {}
    for key in keys:
        if all(file.has(name, f"obs/{key}") for name in names):
            firsts = [file.read(name, f"obs/{key}", 0, 1).ravel() for name in names]
            if firsts[0].dtype.kind in "fiu" and len({first.size for first in firsts}) == 1:
                found[key] = np.stack(firsts).astype(np.float64)
    return found


def first_images(file: DatasetFile, names: Sequence[str], key: str) -> NDArray[np.generic]:
    """Return the first image (N, H, W, C) of a camera in each of N episodes."""
    return np.concatenate([file.read(name, f"obs/{key}", 0, 1) for name in names])


def end_values(file: DatasetFile, names: Sequence[str], keys: Sequence[str]) -> Array:
    """Return the last values of the vectors and the mean action of each of N episodes, joined (N, D)."""
    rows = []
    for name in names:
        last = file.length(name) - 1
        parts = [file.read(name, f"obs/{key}", last, last + 1).ravel() for key in keys]
        rows.append(np.concatenate([*parts, file.read(name, "actions").mean(axis=0).ravel()]))
    found: Array = np.stack(rows).astype(np.float64)
    return found


def watched(
    file: DatasetFile, names: Sequence[str], keys: Sequence[str], solved: Mapping[str, bool | None]
) -> list[Watched]:
    """Read vectors of episodes, and in which steps the task is solved.

    In a successful episode these are the steps with a positive reward, or only the last step if rewards are missing or
    do not differ.

    Args:
        file: open file.
        names: names of the episodes.
        keys: observation keys of the vectors in the file.
        solved: outcome of each episode.
    """
    check_memory(file, names, [f"obs/{key}" for key in keys])
    found = []
    for name in names:
        parts = [file.read(name, f"obs/{key}") for key in keys]
        joined = [part.reshape(len(part), -1).astype(np.float64) for part in parts]
        rewarded = np.zeros(len(parts[0]), dtype=bool)
        if solved[name] and file.has(name, "rewards"):
            rewarded |= file.read(name, "rewards").ravel() > 0
        if solved[name] and (not rewarded.any() or rewarded.all()):
            rewarded[:] = np.arange(len(rewarded)) == len(rewarded) - 1
        found.append(Watched(np.concatenate(joined, axis=1), rewarded))
    return found


def changed_by(
    policy: RolloutPolicy,
    predictions: Predictions,
    chosen: Mapping[str, NDArray[np.intp] | None],
) -> float:
    """Return how much the policy's actions change if some observations are taken from other demonstrations.

    The value is a fraction of the change when all observations are taken from other demonstrations.

    Args:
        policy: the policy.
        predictions: the policy's actions for the demonstrations as they are.
        chosen: for each observation key the columns that are exchanged, or None for all columns.
    """
    everything = _change(policy, predictions, dict.fromkeys(policy.obs_keys))
    return _change(policy, predictions, chosen) / max(everything, 1e-9)


def unseen_by(policy: RolloutPolicy, predictions: Predictions, key: str) -> float:
    """Return the fraction of the images' variance in the largest border that does not change the policy's actions.

    A crop in the policy's encoder causes such a border.

    Args:
        policy: the policy.
        predictions: the policy's actions for the demonstrations as they are.
        key: observation key of the images (H, W, C).
    """
    frames = np.concatenate([demo.obs[key] for demo in predictions.demos])
    variance, unseen = frames.var(axis=0, dtype=np.float64), 0.0
    for part in _CENTRES:
        around = np.ones(variance.shape, dtype=bool)
        skip = [round((1 - part) * size / 2) for size in variance.shape[:2]]
        around[skip[0] : -skip[0], skip[1] : -skip[1]] = False
        if not around.any() or _change(policy, predictions, {key: np.flatnonzero(around)}) > 0:
            break
        unseen = float(variance[around].sum() / max(variance.sum(), 1e-12))
    return unseen


_CENTRES = (0.8, 0.65, 0.5, 0.35, 0.2)
"""Sizes of the image's centre that are tried, as fractions of the image's height and width."""


def _change(
    policy: RolloutPolicy,
    predictions: Predictions,
    keys: Mapping[str, NDArray[np.intp] | None],
) -> float:
    """Return the mean absolute change of the actions if columns of observations come from the next demonstration.

    Args:
        policy: the policy.
        predictions: the policy's actions for the demonstrations as they are.
        keys: for each observation key the columns that are exchanged, or None for all columns.
    """

    def mixed_value(own: Array, other: Array, columns: NDArray[np.intp] | None) -> Array:
        taken: Array = other[np.arange(len(own)) % len(other)]
        if columns is None:
            return taken
        mixed = own.reshape(len(own), -1).copy()
        mixed[:, columns] = taken.reshape(len(own), -1)[:, columns]
        return mixed.reshape(own.shape)

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
    pairs = zip(acted(policy, mixed).actions, predictions.actions, strict=True)
    return float(np.concatenate([np.abs(a - b).mean(axis=1) for a, b in pairs]).mean())
