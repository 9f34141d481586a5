"""A demonstration file of another robosuite, translated for the one that is installed and checked by replay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from imitate.collection.playback import EXECUTED
from imitate.data import DatasetFile
from imitate.data.curate.rewrite import Changes, rewrite
from imitate.data.curate.target import Target
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.envs.migration import (
    ROBOSUITE,
    Change,
    fitted,
    installed_robosuite,
    migrate_env_args,
)
from imitate.envs.model_migration import migrate_model_xml
from imitate.errors import DatasetError, EnvError

RECORDED_ENV_ARGS = "recorded_env_args"
"""Attribute of ``data``: the description as it was when the demonstrations were recorded."""
_HAND = "_eef_pos"


@dataclass(frozen=True)
class Replay:
    """One demonstration in the installed simulator.

    Attributes:
        steps: its length.
        obs_error_m: the largest distance between a recorded observation of a hand's position and the hand in the
            recorded state; None where the file has no such observations.
        hand_error_m: the largest distance between the hand in the recorded state and where the actions, played from
            the first state, have led it.
        was_solved: as recorded; None where nothing says so.
        is_solved: at some step of the actions' replay.
    """

    steps: int
    obs_error_m: float | None
    hand_error_m: float
    was_solved: bool | None
    is_solved: bool


@dataclass
class MigrationReport:
    """What was translated.

    Attributes:
        path: the file that was written, or that would be.
        robosuite: the version that it fits now.
        changes: of ``env_args``.
        scenes: how often what was changed in the demos' ``model_file``.
        demos: how many demos the file has.
        replays: of the demos that were checked.
        not_checked: why none was; '' if some were.
        written: whether a file was written.
    """

    path: str
    robosuite: str
    changes: list[Change]
    scenes: dict[str, int] = field(default_factory=dict)
    demos: int = 0
    replays: dict[str, Replay] = field(default_factory=dict)
    not_checked: str = ""
    written: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def migrate_file(
    source: Path,
    target: Target | None,
    *,
    check: int = 3,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> MigrationReport:
    """Write a copy whose environment and scenes fit the installed robosuite; nothing else in it changes.

    Args:
        source: a demonstration file.
        target: the copy; None: only say what would change, and check it.
        check: how many demos to replay, spread over the file.
        on_demo: called with how many demos are done, and how many there are.

    Raises:
        DatasetError: the file cannot be read, is not robosuite's, or the copy cannot be written.
        EnvError: the description cannot be translated, or robosuite does not take the translation.
    """
    with DatasetFile(source) as file:
        old = file.env_meta
        version = installed_robosuite()
        if old.get("type") != ROBOSUITE:
            raise DatasetError(
                f"{source}: env_args['type'] is {old.get('type')!r}: only robosuite's (1) have versions to translate"
            )
        if version is None:
            raise EnvError("robosuite is not installed; do: pip install 'imitate[robosuite]'")
        new, changes = migrate_env_args(old)
        report = MigrationReport(str(target.path if target else source), version, changes)
        scenes = _scenes(file, report)
        if not changes and not scenes:
            return report
        _check(file, new, check, report)
    if target is not None:
        attrs = {"env_args": json.dumps(new), RECORDED_ENV_ARGS: json.dumps(old)}
        with target.writing() as part:
            rewrite(source, part, Changes(attrs=attrs), on_demo)
            with h5py.File(part, "r+") as copy:
                for demo, scene in scenes.items():
                    copy["data"][demo].attrs["model_file"] = scene
        report.written = True
    return report


def _scenes(file: DatasetFile, report: MigrationReport) -> dict[str, str]:
    """The scenes that change, by demo."""
    scenes = {}
    counts: Counter[str] = Counter()
    for demo in file.demos():
        report.demos += 1
        old = file.attrs(demo).get("model_file")
        if old is None:
            continue
        try:
            new, changes = migrate_model_xml(str(old))
        except EnvError as error:
            raise EnvError(f"{file.path}: {demo}: {error}") from error
        if changes:
            scenes[demo] = new
            counts += changes
    report.scenes = dict(counts)
    return scenes


def _check(
    file: DatasetFile, env_args: dict[str, Any], wanted: int, report: MigrationReport
) -> None:
    names = [demo for demo in file.demos() if file.has(demo, "states")]
    if wanted < 1 or not names:
        report.not_checked = "the demos have no states" if wanted else "not wanted"
        return
    env = make_env(fitted(env_args))
    try:
        chosen = np.unique(np.linspace(0, len(names) - 1, min(wanted, len(names))).astype(int))
        for number in chosen:
            report.replays[names[number]] = _replay(file, names[number], env)
    finally:
        env.close()


def _replay(file: DatasetFile, demo: str, env: Env) -> Replay:
    states = np.asarray(file.read(demo, "states"))
    key = EXECUTED if file.has(demo, EXECUTED) else "actions"
    actions = np.asarray(file.read(demo, key))
    if actions.shape[1:] != (env.action_dim,) or len(actions) != len(states):
        raise DatasetError(
            f"{file.path}: {demo}: {key} {actions.shape} and {len(states)} states do not fit the translated "
            f"environment, which takes ({env.action_dim},) per step: correct env_args, or --check 0"
        )
    attrs = file.attrs(demo)
    scene = {"model": attrs["model_file"]} if "model_file" in attrs else {}
    scene |= {"ep_meta": attrs["ep_meta"]} if "ep_meta" in attrs else {}
    first = env.reset_to({"states": states[0], **scene})
    recorded = [_hands(env.reset_to({"states": state})) for state in states]
    obs_error = _obs_error(file, demo, [name for name in first if name.endswith(_HAND)], recorded)
    env.reset_to({"states": states[0], **scene})
    hand_error, solved = 0.0, False
    for step, action in enumerate(actions):
        obs, *_ = env.step(action)
        solved = solved or env.is_success()["task"]
        if step + 1 < len(states):
            hand_error = max(hand_error, _distance(_hands(obs), recorded[step + 1]))
    return Replay(len(states), obs_error, hand_error, _was_solved(file, demo), solved)


def _hands(obs: dict[str, Array]) -> Array:
    """(hands, 3) positions."""
    return np.stack([value for key, value in obs.items() if key.endswith(_HAND)])


def _distance(first: Array, second: Array) -> float:
    return float(np.linalg.norm(first - second, axis=-1).max())


def _obs_error(
    file: DatasetFile, demo: str, keys: list[str], recorded: list[Array]
) -> float | None:
    if not all(file.has(demo, f"obs/{key}") for key in keys):
        return None
    observed = np.stack([np.asarray(file.read(demo, f"obs/{key}")) for key in keys], axis=1)
    return _distance(observed, np.stack(recorded))


def _was_solved(file: DatasetFile, demo: str) -> bool | None:
    success = file.attrs(demo).get("success")
    if success is not None:
        return bool(success)
    return bool(file.read(demo, "rewards").max() > 0) if file.has(demo, "rewards") else None
