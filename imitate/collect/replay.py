"""Replay recorded states and actions, also to check that an environment behaves as the recorded one.

A file of another version of robosuite is translated to the installed version and checked by replay.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imitate.collect.recorded import RecordedDemo, recorded_demo
from imitate.crew import Crew, Limits, Lost
from imitate.crew.backend import Backend
from imitate.data import DatasetFile
from imitate.data.edit.rewrite import FileChanges, rewrite
from imitate.data.edit.target import Target
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.episode import Episode
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset, Options
from imitate.envs import Env, make_env
from imitate.envs.env import Array, ever, watched
from imitate.envs.migration import (
    ROBOSUITE,
    Change,
    fitted,
    installed_robosuite,
    migrate_env_args,
    migrate_model_xml,
)
from imitate.errors import DatasetError, EnvError
from imitate.system.extras import install_command
from imitate.system.processes import STEP_TIMEOUT_S, Beat

_SCENE = {"model": "model_file", "ep_meta": "ep_meta"}


def replayed(
    source: OpenedDataset, options: Options, report: ConversionReport
) -> Iterator[NamedDemo]:
    """Yield the demos of a source with the observations that the simulator gives in the recorded states.

    ``obs[t]`` belongs to ``states[t]``, and ``next_obs[t]`` to ``states[t + 1]``; at the last step T - 1 the last
    action is executed to reach the following state. A step that leads to success is terminal and has reward 1. The
    demos do not depend on ``options.workers``.

    Raises:
        DatasetError: a demo has no states.
        EnvError: the environment cannot be made, or a demo's states cannot be set in it.
    """
    report.synthesised["obs and next_obs"] = "from the simulator, set to each recorded state"
    report.synthesised["rewards"] = "1 at each step that leads to success, else 0"
    report.synthesised["terminals"] = "at each step that leads to success"
    return _from_workers(source, options.workers or 1, Path(report.source))


def _from_workers(source: OpenedDataset, workers: int, path: Path) -> Iterator[NamedDemo]:
    prepare = partial(_prepared, fitted(source.env_meta))
    with Crew[NamedDemo, Episode](prepare, workers) as crew:
        for done in crew.in_order(source.demos):
            if isinstance(done.result, Lost):
                raise _not_replayed(path, done.item.name, done.result.reason)
            yield NamedDemo(done.item.name, done.result)


def _not_replayed(path: Path, name: str, reason: str) -> EnvError:
    return EnvError(f"{path}: demo '{name}' cannot be replayed ({reason}): remove the demo")


def _prepared(env_meta: dict[str, Any], beat: Beat) -> Callable[[NamedDemo], Episode]:
    """Return a worker's function, which adds observations to a demo with states."""
    env = watched(partial(make_env, env_meta), beat)
    return lambda demo: _observed(env, demo)


def _observed(env: Env, demo: NamedDemo) -> Episode:
    episode = demo.episode
    if episode.states is None:
        raise DatasetError(
            f"demo '{demo.name}' has no 'states', so it cannot be replayed: remove the demo from the source"
        )
    states, actions = np.asarray(episode.states), np.asarray(episode.actions)
    scene = {key: episode.attrs[name] for key, name in _SCENE.items() if name in episode.attrs}
    seen: list[dict[str, Array]] = []
    success: list[bool | None] = []
    for step, state in enumerate(states):
        seen.append(env.reset_to({"states": state, **(scene if step == 0 else {})}))
        success.append(env.is_success()["task"])
    last, *_ = env.step(actions[-1])
    seen.append(last)
    success.append(env.is_success()["task"])
    terminals = np.array(success[1:]).astype(bool)
    known = {} if success[-1] is None else {"success": bool(terminals.any())}
    timeouts = np.zeros(len(terminals), dtype=bool)
    timeouts[-1] = not terminals[-1]
    return replace(
        episode,
        obs=_stacked(seen[:-1]),
        next_obs=_stacked(seen[1:]),
        rewards=terminals.astype(np.float32),
        terminals=terminals,
        timeouts=timeouts,
        attrs={**episode.attrs, **known},
    )


def _stacked(seen: list[dict[str, Array]]) -> dict[str, Any]:
    return {key: np.stack([obs[key] for obs in seen]) for key in seen[0]}


_HAND = "_eef_pos"


@dataclass(frozen=True)
class Replay:
    """Replay of one demonstration in the installed simulator.

    Attributes:
        steps: number of steps of the demonstration.
        obs_error_m: largest distance in metres between the gripper position in the recorded observations and in the
            recorded state; None if the file has no such observations.
        hand_error_m: largest distance in metres between the gripper position in the recorded state and the one that the
            actions, executed from the first state, reach.
        was_solved: recorded success, or None if the file does not record it.
        is_solved: true if the task was solved at some step of the actions' replay, or None if the environment does not
            report success.
    """

    steps: int
    obs_error_m: float | None
    hand_error_m: float
    was_solved: bool | None
    is_solved: bool | None


def replay_some(
    file: DatasetFile,
    env_args: dict[str, Any],
    wanted: int,
    step_timeout_s: float = STEP_TIMEOUT_S,
    backend: Backend[Any] | None = None,
) -> dict[str, Replay]:
    """Replay demos, spread over the file, by states and by actions; demos without states are left out.

    Args:
        file: open demonstration file.
        env_args: env_args of the environment for the replay.
        wanted: number of demos.
        step_timeout_s: seconds for a call of the simulator, after which the check fails.
        backend: back end of the simulator's process, or None for this machine.

    Raises:
        DatasetError: the actions or the states do not fit the environment.
        EnvError: the environment cannot be made, or hangs.
    """
    names = [demo for demo in file.demos() if file.has(demo, "states")]
    if wanted < 1 or not names:
        return {}
    chosen = np.unique(np.linspace(0, len(names) - 1, min(wanted, len(names))).astype(int))
    replays: dict[str, Replay] = {}
    limits = Limits(call_s=step_timeout_s)
    prepare = partial(_prepared_check, str(file.path), env_args)
    with Crew[_Recording, Replay](prepare, limits=limits, backend=backend) as crew:
        for done in crew.in_order(_recording(file, names[number]) for number in chosen):
            demo, found = done.item.demo.name, done.result
            if isinstance(found, Lost):
                if found.died:
                    raise EnvError(f"{file.path}: {demo} cannot be played: {found.reason}")
                raise DatasetError(found.reason)
            replays[demo] = found
    return replays


@dataclass(frozen=True)
class _Recording:
    """A demo to replay, with the recorded data that are compared.

    Attributes:
        demo: states and commands of the demo.
        hands: recorded observations of each gripper's position, (T, 3) in metres.
        was_solved: recorded success, or None if it is not recorded.
    """

    demo: RecordedDemo
    hands: dict[str, Array]
    was_solved: bool | None


def _recording(file: DatasetFile, demo: str) -> _Recording:
    hands = {
        key: np.asarray(file.read(demo, f"obs/{key}"))
        for key in file.obs_keys(demo)
        if key.endswith(_HAND)
    }
    return _Recording(recorded_demo(file, demo), hands, _was_solved(file, demo))


def _prepared_check(
    path: str, env_args: dict[str, Any], beat: Beat
) -> Callable[[_Recording], Replay]:
    """Return a worker's function, which replays a demo; ``path`` is used in error messages."""
    env = watched(partial(make_env, env_args), beat)
    return lambda recording: _replay(path, recording, env)


def _replay(path: str, recording: _Recording, env: Env) -> Replay:
    demo = recording.demo
    states, actions = demo.states, demo.commands
    assert actions is not None
    if actions.shape[1:] != (env.action_dim,) or len(actions) != len(states):
        raise DatasetError(
            f"{path}: {demo.name}: actions {actions.shape} and {len(states)} states do not fit the "
            f"environment, which takes ({env.action_dim},) per step: correct env_args, or --check 0"
        )
    first = env.reset_to(demo.start)
    reached = [_hands(env.reset_to({"states": state})) for state in states]
    keys = [name for name in first if name.endswith(_HAND)]
    obs_error = _obs_error(recording.hands, keys, reached)
    env.reset_to({"states": states[0]})
    hand_error = 0.0
    solved: bool | None = None
    for step, action in enumerate(actions):
        obs, *_ = env.step(action)
        solved = ever(solved, env.is_success()["task"])
        if step + 1 < len(states):
            hand_error = max(hand_error, _distance(_hands(obs), reached[step + 1]))
    return Replay(len(states), obs_error, hand_error, recording.was_solved, solved)


def _hands(obs: dict[str, Array]) -> Array:
    """Return the positions (hands, 3) of the end effectors in meters."""
    return np.stack([value for key, value in obs.items() if key.endswith(_HAND)])


def _distance(first: Array, second: Array) -> float:
    return float(np.linalg.norm(first - second, axis=-1).max())


def _obs_error(hands: dict[str, Array], keys: list[str], reached: list[Array]) -> float | None:
    if any(key not in hands for key in keys):
        return None
    return _distance(np.stack([hands[key] for key in keys], axis=1), np.stack(reached))


def _was_solved(file: DatasetFile, demo: str) -> bool | None:
    success = file.attrs(demo).get("success")
    if success is not None:
        return bool(success)
    return bool(file.read(demo, "rewards").max() > 0) if file.has(demo, "rewards") else None


RECORDED_ENV_ARGS = "recorded_env_args"
"""Attribute of ``data`` that keeps the original env_args of the recording."""


@dataclass
class MigrationReport:
    """Report of a migration.

    Attributes:
        path: the written file, or the file that a run without ``--dry-run`` would write.
        robosuite: version of robosuite for which the file is translated.
        changes: descriptions of the changes of ``env_args``.
        scenes: number of demos by description of a change of their attribute ``model_file``.
        demos: number of demos in the file.
        replays: results of the checked demos.
        not_checked: reason why no demo was checked, or '' if some were.
        written: true if a file was written.
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
        """Return plain values, for JSON."""
        return asdict(self)


def migrate_file(
    source: Path,
    target: Target | None,
    *,
    check: int = 3,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> MigrationReport:
    """Write a copy whose env_args and scenes fit the installed robosuite; all other data stay the same.

    Args:
        source: a demonstration file.
        target: file to write, or None to only list and check the changes.
        check: number of demos to replay, spread over the file.
        on_demo: called with the number of finished demos and the number of all demos.

    Raises:
        DatasetError: the file cannot be read, is not robosuite's, or the copy cannot be written.
        EnvError: the env_args cannot be translated, or robosuite does not accept the translation.
    """
    with DatasetFile(source) as file:
        old = file.env_meta
        version = installed_robosuite()
        if old.get("type") != ROBOSUITE:
            raise DatasetError(
                f"{source}: env_args['type'] is {old.get('type')!r}: only files of robosuite (type 1) can be migrated"
            )
        if version is None:
            raise EnvError(f"robosuite is not installed: run {install_command('robosuite')}")
        new, changes = migrate_env_args(old)
        report = MigrationReport(str(target.path if target else source), version, changes)
        scenes = _scenes(file, report)
        if not changes and not scenes:
            return report
        report.replays = replay_some(file, new, check)
        if not report.replays:
            report.not_checked = "the demos have no states" if check else "not wanted"
    if target is not None:
        attrs = {"env_args": json.dumps(new), RECORDED_ENV_ARGS: json.dumps(old)}
        with target.writing() as part:
            rewrite(source, part, FileChanges(attrs=attrs), on_demo)
            with ConfinedFile(part, "r+") as copy:
                for demo, scene in scenes.items():
                    copy["data"][demo].attrs["model_file"] = scene
        report.written = True
    return report


def _scenes(file: DatasetFile, report: MigrationReport) -> dict[str, str]:
    """Return the translated scenes of the demos whose scene changes, by demo."""
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
