"""Replay of recorded simulator states: observations, rewards and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imitate.crew import Crew, Lost
from imitate.data.file.episode import Episode
from imitate.data.formats.base import Demo, Options, Source
from imitate.data.formats.report import Report
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.envs.migration import fitted
from imitate.envs.watched import watched
from imitate.errors import DatasetError, EnvError
from imitate.system.processes import Beat

_SCENE = {"model": "model_file", "ep_meta": "ep_meta"}


def replayed(source: Source, options: Options, report: Report) -> Iterator[Demo]:
    """Yield the demos of a source, with the simulator's observations in their states.

    ``obs[t]`` is of ``states[t]``; ``next_obs[t]`` of ``states[t + 1]``, at the last step of the state that its action
    leads to. A step that leads to success is terminal and has reward 1. The demos do not depend on ``options.workers``.

    Raises:
        DatasetError: a demo has no states.
        EnvError: the environment cannot be made, or does not take a demo's states.
    """
    report.synthesised["obs and next_obs"] = "from the simulator, set to each recorded state"
    report.synthesised["rewards"] = "1 at each step that leads to success, else 0"
    report.synthesised["terminals"] = "at each step that leads to success"
    return _from_workers(source, options.workers or 1, Path(report.source))


def _from_workers(source: Source, workers: int, path: Path) -> Iterator[Demo]:
    prepare = partial(_prepared, fitted(source.env_meta))
    with Crew[Demo, Episode](prepare, workers) as crew:
        for done in crew.in_order(source.demos):
            if isinstance(done.result, Lost):
                raise _not_replayed(path, done.item.name, done.result.reason)
            yield Demo(done.item.name, done.result)


def _not_replayed(path: Path, name: str, reason: str) -> EnvError:
    return EnvError(f"{path}: demo '{name}' cannot be replayed ({reason}): remove the demo")


def _prepared(env_meta: dict[str, Any], beat: Beat) -> Callable[[Demo], Episode]:
    """Make a worker's function from a demo with states to its episode with observations."""
    env = watched(partial(make_env, env_meta), beat)
    return lambda demo: _observed(env, demo)


def _observed(env: Env, demo: Demo) -> Episode:
    episode = demo.episode
    if episode.states is None:
        raise DatasetError(
            f"demo '{demo.name}' has no 'states': it cannot be replayed; remove the demo"
        )
    states, actions = np.asarray(episode.states), np.asarray(episode.actions)
    scene = {key: episode.attrs[name] for key, name in _SCENE.items() if name in episode.attrs}
    seen: list[dict[str, Array]] = []
    success: list[bool] = []
    for step, state in enumerate(states):
        seen.append(env.reset_to({"states": state, **(scene if step == 0 else {})}))
        success.append(env.is_success()["task"])
    last, *_ = env.step(actions[-1])
    seen.append(last)
    success.append(env.is_success()["task"])
    terminals = np.array(success[1:])
    timeouts = np.zeros(len(terminals), dtype=bool)
    timeouts[-1] = not terminals[-1]
    return replace(
        episode,
        obs=_stacked(seen[:-1]),
        next_obs=_stacked(seen[1:]),
        rewards=terminals.astype(np.float32),
        terminals=terminals,
        timeouts=timeouts,
        attrs={**episode.attrs, "success": bool(terminals.any())},
    )


def _stacked(seen: list[dict[str, Array]]) -> dict[str, Any]:
    return {key: np.stack([obs[key] for obs in seen]) for key in seen[0]}
