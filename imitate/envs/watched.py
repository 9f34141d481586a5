"""Environment that reports which of its calls is running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from imitate.envs.env import Env
from imitate.system.processes import MAKE, Beat

AnyEnv = TypeVar("AnyEnv", bound=Env)


def watched(make: Callable[[], AnyEnv], beat: Beat | None) -> AnyEnv:
    """Make an environment whose calls are reported; without `beat` it is unchanged.

    Args:
        make: makes the environment; this call is also reported.
        beat: see :data:`imitate.system.processes.Beat`.
    """
    if beat is None:
        return make()
    beat(MAKE)
    try:
        return cast(AnyEnv, _Watched(make(), beat))
    finally:
        beat("")


class _Watched:
    """Wrapper of an environment that reports calls that simulate or draw."""

    def __init__(self, env: Env, beat: Beat) -> None:
        self._watched, self._beat = env, beat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    def reset(self, **kwargs: Any) -> Any:
        return self._reported("reset()", self._watched.reset, **kwargs)

    def step(self, action: Any) -> Any:
        return self._reported("step()", self._watched.step, action)

    def reset_to(self, state: dict[str, Any]) -> Any:
        return self._reported("reset_to()", self._watched.reset_to, state)

    def render(self, **kwargs: Any) -> Any:
        return self._reported("render()", self._watched.render, **kwargs)

    def _reported(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._beat(name)
        try:
            return call(*args, **kwargs)
        finally:
            self._beat("")
