"""Replay of demonstrations, to compare an environment with the one in which they were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from imitate.crew import Crew, Limits, Lost
from imitate.crew.backend import Backend
from imitate.data import DatasetFile
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.envs.watched import watched
from imitate.errors import DatasetError, EnvError
from imitate.simulation.recorded import RecordedDemo, recorded_demo
from imitate.system.processes import STEP_TIMEOUT_S, Beat

_HAND = "_eef_pos"


@dataclass(frozen=True)
class Replay:
    """Replay of one demonstration in the installed simulator.

    Attributes:
        steps: its length.
        obs_error_m: the largest distance between a recorded observation of a hand's position and the hand in the
            recorded state; None where the file has no such observations.
        hand_error_m: the largest distance between the hand in the recorded state and where the actions, played from
            the first state, have led it.
        was_solved: as recorded; None where the file does not record it.
        is_solved: at some step of the actions' replay.
    """

    steps: int
    obs_error_m: float | None
    hand_error_m: float
    was_solved: bool | None
    is_solved: bool


def replay_some(
    file: DatasetFile,
    env_args: dict[str, Any],
    wanted: int,
    step_timeout_s: float = STEP_TIMEOUT_S,
    backend: Backend[Any] | None = None,
) -> dict[str, Replay]:
    """Play demos, spread over the file, by their states and by their actions; those without states are left out.

    Args:
        file: open.
        env_args: of the environment to play them in.
        wanted: how many.
        step_timeout_s: a call of the simulator that takes longer ends the check.
        backend: where the simulator runs; None: in a process of this machine.

    Raises:
        DatasetError: the actions or the states do not fit the environment.
        EnvError: it cannot be made, or hangs.
    """
    names = [demo for demo in file.demos() if file.has(demo, "states")]
    if wanted < 1 or not names:
        return {}
    chosen = np.unique(np.linspace(0, len(names) - 1, min(wanted, len(names))).astype(int))
    replays: dict[str, Replay] = {}
    limits = Limits(call_s=step_timeout_s)
    prepare = partial(_prepared, str(file.path), env_args)
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
    """A demo to play, with what was recorded of it.

    Attributes:
        demo: its states and commands.
        hands: (T, 3) per recorded observation of a hand's position.
        was_solved: None where it is not recorded.
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


def _prepared(path: str, env_args: dict[str, Any], beat: Beat) -> Callable[[_Recording], Replay]:
    """Make a worker's function from a demo to its replay; ``path`` is for messages."""
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
    hand_error, solved = 0.0, False
    for step, action in enumerate(actions):
        obs, *_ = env.step(action)
        solved = solved or env.is_success()["task"]
        if step + 1 < len(states):
            hand_error = max(hand_error, _distance(_hands(obs), reached[step + 1]))
    return Replay(len(states), obs_error, hand_error, recording.was_solved, solved)


def _hands(obs: dict[str, Array]) -> Array:
    """Return the positions (hands, 3)."""
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
