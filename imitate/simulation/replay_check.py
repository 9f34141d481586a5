"""Replay of demonstrations, to compare an environment with the one in which they were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imitate.crew import Crew, Limits, Lost
from imitate.data import DatasetFile
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.envs.watched import watched
from imitate.errors import DatasetError, EnvError
from imitate.processes import STEP_TIMEOUT_S, Beat
from imitate.simulation.playback import commands, start_of

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
) -> dict[str, Replay]:
    """Play demos, spread over the file, by their states and by their actions; those without states are left out.

    Args:
        file: open.
        env_args: of the environment to play them in.
        wanted: how many.
        step_timeout_s: a call of the simulator that takes longer ends the check.

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
    with Crew[str, Replay](partial(_prepared, file.path, env_args), limits=limits) as crew:
        for done in crew.in_order(names[number] for number in chosen):
            demo, found = done.item, done.result
            if isinstance(found, Lost):
                if found.died:
                    raise EnvError(f"{file.path}: {demo} cannot be played: {found.reason}")
                raise DatasetError(found.reason)
            replays[demo] = found
    return replays


def _prepared(path: Path, env_args: dict[str, Any], beat: Beat) -> Callable[[str], Replay]:
    """Make a worker's function from a demo's name to its replay."""
    env, file = watched(partial(make_env, env_args), beat), DatasetFile(path)
    return lambda demo: _replay(file, demo, env)


def _replay(file: DatasetFile, demo: str, env: Env) -> Replay:
    states = np.asarray(file.read(demo, "states"))
    actions = commands(file, demo)
    if actions.shape[1:] != (env.action_dim,) or len(actions) != len(states):
        raise DatasetError(
            f"{file.path}: {demo}: actions {actions.shape} and {len(states)} states do not fit the "
            f"environment, which takes ({env.action_dim},) per step: correct env_args, or --check 0"
        )
    first = env.reset_to(start_of(file, demo, states[0]))
    recorded = [_hands(env.reset_to({"states": state})) for state in states]
    obs_error = _obs_error(file, demo, [name for name in first if name.endswith(_HAND)], recorded)
    env.reset_to({"states": states[0]})
    hand_error, solved = 0.0, False
    for step, action in enumerate(actions):
        obs, *_ = env.step(action)
        solved = solved or env.is_success()["task"]
        if step + 1 < len(states):
            hand_error = max(hand_error, _distance(_hands(obs), recorded[step + 1]))
    return Replay(len(states), obs_error, hand_error, _was_solved(file, demo), solved)


def _hands(obs: dict[str, Array]) -> Array:
    """Return the positions (hands, 3)."""
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
