"""Several copies of an environment in separate processes, with gymnasium's vector interface."""

import functools
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from imitate.envs.cameras import Size
from imitate.envs.env import Array, Env, Obs, success_in
from imitate.envs.make import is_team, make_env
from imitate.errors import EnvError
from imitate.system.processes import end_with_parent

_WORKER_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class HungCopiesError(EnvError):
    """Copies of an environment that did not return from a call in time; all copies have been ended.

    Attributes:
        copies: indices of the copies.
        reason: description of the call and the limit.
    """

    def __init__(self, name: str, copies: Sequence[int], reason: str) -> None:
        super().__init__(f"{name}: copies {list(copies)}: {reason}")
        self.copies, self.reason = tuple(copies), reason


class AsGymnasium(gymnasium.Env[Any, Array]):
    """An ``Env`` as a ``gymnasium.Env``, whose Dict observation space follows from the first observation.

    Args:
        env: the environment.
        max_episode_steps: number of steps after which ``truncated`` is True; None for the environment's own limit.
    """

    def __init__(self, env: Env, max_episode_steps: int | None = None) -> None:
        self.env = env
        self._max_episode_steps = max_episode_steps
        self._steps = 0
        obs, _ = env.reset(seed=0)
        self.observation_space = spaces.Dict(
            {key: _space(np.asarray(value)) for key, value in obs.items()}
        )
        self.action_space = spaces.Box(
            env.action_low.astype(np.float32), env.action_high.astype(np.float32), dtype=np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; return observation and info."""
        super().reset(seed=seed)
        self._steps = 0
        return self.env.reset(seed=seed)

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action; return observation, reward, terminated, truncated and info."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        if self._max_episode_steps is not None and self._steps >= self._max_episode_steps:
            truncated = True
        success = success_in(info)
        known = {} if success is None else {"success": success}
        rest = {key: value for key, value in info.items() if key != "success"}
        return obs, reward, terminated, truncated, {**rest, **known}

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()


class VectorEnv(AsyncVectorEnv):
    """AsyncVectorEnv of gymnasium that reports crashed or hung worker processes."""

    def __init__(
        self, env_fns: Sequence[Any], name: str, step_timeout_s: float | None = None, **kwargs: Any
    ) -> None:
        self._name, self._timeout_s = name, step_timeout_s
        super().__init__(env_fns, **kwargs)

    def reset(self, **kwargs: Any) -> Any:
        """Reset all copies, or those in ``options["reset_mask"]``."""
        try:
            self.reset_async(**kwargs)
            return self.reset_wait(timeout=self._timeout_s)
        except _WORKER_GONE as error:
            raise self._gone() from error
        except multiprocessing.TimeoutError as error:
            raise self._hung("reset()") from error

    def step(self, actions: Any) -> Any:
        """Step all copies."""
        try:
            self.step_async(actions)
            return self.step_wait(timeout=self._timeout_s)
        except _WORKER_GONE as error:
            raise self._gone() from error
        except multiprocessing.TimeoutError as error:
            raise self._hung("step()") from error

    def _hung(self, call: str) -> HungCopiesError:
        copies = [n for n, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
        self.close(terminate=True)
        return HungCopiesError(
            self._name, copies, f"{call} did not return within {self._timeout_s:g} s"
        )

    def _gone(self) -> EnvError:
        dead = [index for index, process in enumerate(self.processes) if not process.is_alive()]
        self.close(terminate=True)
        return EnvError(
            f"{self._name}: the process of copy {dead or '?'} ended during a call (the simulator crashed, or memory "
            "was exhausted); try fewer copies"
        )

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the processes; if one has already ended, kill the others by a signal."""
        if terminate or not all(process.is_alive() for process in self.processes):
            for process in self.processes:
                process.kill()
                process.join()
            for pipe in self.parent_pipes:
                if pipe is not None:
                    pipe.close()
            return
        super().close_extras(timeout=timeout, terminate=terminate)


def make_vector_env(
    env_meta: dict[str, Any],
    num_envs: int,
    *,
    obs_keys: Sequence[str] | None = None,
    render: bool = False,
    camera_names: Sequence[str] | None = None,
    camera_size: Size | Mapping[str, Size] | None = None,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    context: str = "spawn",
    step_timeout_s: float | None = None,
) -> VectorEnv:
    """Make ``num_envs`` copies of an environment, each in its own process.

    Observations are a dict of (num_envs, ...) arrays; ``info["success"]`` is (num_envs,) bool, valid where
    ``info["_success"]`` is true. Reset with ``seed=[...]`` for one seed per copy.

    Args:
        env_meta: as for ``make_env``.
        num_envs: number of copies.
        obs_keys: as for ``make_env``.
        render: as for ``make_env``.
        camera_names: as for ``make_env``.
        camera_size: as for ``make_env``.
        max_episode_steps: number of steps after which an episode is truncated.
        autoreset_mode: gymnasium's mode; with ``DISABLED`` finished copies wait for ``options={"reset_mask": mask}``.
        context: how processes start; ``spawn`` is safe beside threads and OpenGL.
        step_timeout_s: longest time of a step or a reset in seconds, or None for no limit.

    Raises:
        EnvError: the environment cannot be made, or a process crashed; ``reset`` and ``step`` raise it, too.
        HungCopiesError: raised by ``reset`` and ``step`` if some copies took longer than the limit.
    """
    if is_team(env_meta):
        raise EnvError(
            f"{env_meta['env_name']} has several agents, which vectorized evaluation does not support: use mode "
            "'processes'"
        )
    make = functools.partial(
        _make_copy,
        env_meta,
        os.getpid(),
        max_episode_steps=max_episode_steps,
        obs_keys=obs_keys,
        render=render,
        camera_names=camera_names,
        camera_size=camera_size,
    )
    return VectorEnv(
        [make] * num_envs,
        name=str(env_meta.get("env_name")),
        step_timeout_s=step_timeout_s,
        context=context,
        autoreset_mode=autoreset_mode,
    )


def _make_copy(
    env_meta: dict[str, Any], parent: int, max_episode_steps: int | None, **kwargs: Any
) -> AsGymnasium:
    if os.getpid() != parent:  # gymnasium makes one additional copy to read its spaces
        end_with_parent()
    return AsGymnasium(make_env(env_meta, **kwargs), max_episode_steps)


def _space(value: Array) -> spaces.Box:
    if value.dtype == np.uint8:
        return spaces.Box(0, 255, value.shape, dtype=np.uint8)
    return spaces.Box(-np.inf, np.inf, value.shape, dtype=value.dtype.type)
