"""Try a training's environments before its first update, so that a broken one is found at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from imitate.algo.base.algo import Algo
from imitate.data.language import LANGUAGE_KEY
from imitate.envs import make_env
from imitate.envs.cameras import sizes_of
from imitate.envs.env import lanes_of, watched
from imitate.envs.make import can_be_made
from imitate.errors import EnvError, UserError
from imitate.system.processes import Beat

NO_ROLLOUTS = "--set experiment.rollout.enabled=false"


@dataclass(frozen=True)
class EnvTrial:
    """Trial of an environment by one reset and one step; picklable.

    Attributes:
        env_meta: its env_args.
        obs_shapes: shape of one step of each observation that the policy takes, as recorded.
        action_dim: size of the policy's actions.
    """

    env_meta: dict[str, Any]
    obs_shapes: dict[str, tuple[int, ...]]
    action_dim: int

    def play(self, beat: Beat | None = None) -> None:
        """Make the environment, compare it with the data, take a step, close it; ``beat`` receives each call.

        Raises:
            EnvError: the environment cannot be made, fails, or does not fit the data.
        """
        name = str(self.env_meta.get("env_name", "?"))
        try:
            self._play(name, beat)
        except UserError as error:
            raise EnvError(f"{error}; to train without rollouts: {NO_ROLLOUTS}") from error
        except (Exception, SystemExit) as error:  # an environment may raise any exception
            raise EnvError(
                f"environment '{name}' fails ({type(error).__name__}: {error}); see what imitate check-env says of it; "
                f"to train without rollouts: {NO_ROLLOUTS}"
            ) from error

    def _play(self, name: str, beat: Beat | None) -> None:
        keys, sizes = tuple(self.obs_shapes), sizes_of(self.obs_shapes)
        env = watched(
            partial(make_env, self.env_meta, obs_keys=keys, camera_size=sizes, team=True),
            beat,
        )
        try:
            lanes = lanes_of(env)
            obs = lanes.reset(seed=0)[0][0]
            self._compare(name, {key: tuple(np.shape(obs[key])) for key in obs}, env.action_dim)
            low, high = np.asarray(env.action_low), np.asarray(env.action_high)
            bounded = np.isfinite(low) & np.isfinite(high)
            middle = np.zeros(len(low))
            middle[bounded] = (low[bounded] + high[bounded]) / 2
            lanes.step(np.tile(middle, (len(lanes.agents), 1)))
        finally:
            env.close()

    def _compare(self, name: str, found: Mapping[str, tuple[int, ...]], action_dim: int) -> None:
        for key, wanted in self.obs_shapes.items():
            if key not in found:
                raise EnvError(
                    f"environment '{name}' gives no observation '{key}', but {', '.join(found)}"
                )
            if found[key] != wanted:
                raise EnvError(
                    f"environment '{name}' gives observation '{key}' of shape {found[key]}, "
                    f"but the data have {wanted}"
                )
        if action_dim != self.action_dim:
            raise EnvError(
                f"environment '{name}' takes actions of {action_dim} numbers, but the data "
                f"have {self.action_dim}"
            )


def trials(
    algo: Algo, env_metas: Sequence[Mapping[str, Any]], *, serves_language: bool
) -> list[EnvTrial]:
    """Make a trial for each environment that a training is evaluated in.

    Args:
        algo: the policy that will act in them.
        env_metas: env_args of each task; tasks that differ only in ``key`` and ``lang`` share a trial.
        serves_language: true if the policy's instruction comes with the task, not from the environment.
    """
    shapes = _recorded_shapes(algo, serves_language)
    sent = int(algo.preprocess.actions.sent_dim)
    metas = {
        repr({key: value for key, value in meta.items() if key not in ("key", "lang")}): meta
        for meta in env_metas
    }
    return [EnvTrial(dict(meta), shapes, sent) for meta in metas.values()]


def simulated(env_metas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the env_args of the environments that can be made here."""
    return [meta for meta in env_metas if can_be_made(meta)]


def _recorded_shapes(algo: Algo, served: bool) -> dict[str, tuple[int, ...]]:
    recorded = algo.preprocess.raw_shapes
    return {
        key: tuple(recorded[key]) for key in algo.obs_shapes if not (served and key == LANGUAGE_KEY)
    }
