"""From recorded simulator states to observations, rewards and ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from imitate.data.episode import Episode
from imitate.data.formats.base import Demo, Source
from imitate.data.formats.report import Report
from imitate.envs import Env, make_env
from imitate.envs.env import Array
from imitate.errors import DatasetError


def replayed(source: Source, report: Report) -> Iterator[Demo]:
    """The demos of a source, with what the simulator shows in their states.

    ``obs[t]`` is of ``states[t]``; ``next_obs[t]`` of ``states[t + 1]``, at the last step of the state that its action
    leads to. A step that leads to success is terminal and has reward 1.

    Raises:
        DatasetError: a demo has no states.
        EnvError: the environment cannot be made.
    """
    env = make_env(source.env_meta)
    report.synthesised["obs and next_obs"] = "from the simulator, set to each recorded state"
    report.synthesised["rewards"] = "1 at each step that leads to success, else 0"
    report.synthesised["terminals"] = "at each step that leads to success"
    try:
        for demo in source.demos:
            yield Demo(demo.name, _observed(env, demo))
    finally:
        env.close()


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


_SCENE = {"model": "model_file", "ep_meta": "ep_meta"}


def _stacked(seen: list[dict[str, Array]]) -> dict[str, Any]:
    return {key: np.stack([obs[key] for obs in seen]) for key in seen[0]}
