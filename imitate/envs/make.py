"""Construction of an environment from the description in a demonstration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

from imitate.envs.cameras import Size
from imitate.envs.env import Env
from imitate.envs.migration import ROBOSUITE, fitted
from imitate.envs.wrappers import wrapped
from imitate.errors import EnvError
from imitate.system.trust import PETTINGZOO, ROBOT, check_trusted

_TYPES = {1: "robosuite", 2: "gymnasium"}
REAL_ROBOT = 4
ROBOTS_ROOM = "imitate.deploy.robot.robot_env"
"""Module with ``robot_env``. It belongs to a higher layer, so it is imported by name when a robot is requested."""


def can_be_made(env_meta: Mapping[str, Any]) -> bool:
    """Return true if the simulator of an environment is supported."""
    return env_meta.get("type") in _TYPES


def is_real(env_meta: Mapping[str, Any]) -> bool:
    """Return true if data were recorded on a real robot, or name no environment."""
    return env_meta.get("type") in (REAL_ROBOT, None) or is_robot(env_meta)


def is_robot(env_meta: Mapping[str, Any]) -> bool:
    """Return true for ``robot:NAME``, an environment that is a single robot, in one process."""
    return str(env_meta.get("env_name") or "").startswith(ROBOT)


def is_team(env_meta: Mapping[str, Any]) -> bool:
    """Return true for ``pettingzoo:MODULE``, an environment with several agents."""
    return str(env_meta.get("env_name") or "").startswith(PETTINGZOO)


def check_description(env_meta: Mapping[str, Any]) -> None:
    """Refuse env_args of an environment that cannot be made here.

    Raises:
        EnvError: they describe a real robot or an unknown simulator, or name no environment.
    """
    kind = env_meta.get("type")
    if is_real(env_meta):
        what = "is 4, a real robot" if kind == REAL_ROBOT else "is missing"
        raise EnvError(
            f"env_args['type'] {what}, so no environment can be made; name a simulated one with "
            "--env module:Name-v0, or a robot with --env robot:NAME (train, dagger, eval, dataset playback), or add it "
            "to the file: imitate dataset set-env FILE --env module:Name-v0"
        )
    if kind not in list(_TYPES):  # it may be a list, which has no hash
        known = ", ".join(f"{key} ({name})" for key, name in _TYPES.items())
        raise EnvError(
            f"env_args['type'] is {kind!r}; environments that can be made here have {known}; "
            "register another simulator's environment with gymnasium, and write type 2 and env_name "
            "'its_module:Its-id-v0'"
        )
    if "env_name" not in env_meta:
        raise EnvError("env_args has no 'env_name'; write the environment's name there")


def make_env(
    env_meta: dict[str, Any],
    *,
    obs_keys: Sequence[str] | None = None,
    render: bool = False,
    camera_names: Sequence[str] | None = None,
    camera_size: Size | Mapping[str, Size] | None = None,
    team: bool = False,
) -> Env:
    """Make the environment that ``env_meta``, the ``env_args`` of a demonstration file, describes.

    Args:
        env_meta: ``env_name``, ``type`` (1 robosuite, 2 gymnasium), ``env_kwargs`` and, optionally, ``env_version``;
            descriptions of older robosuite versions are translated, which is logged. ``robot:NAME`` is a robot,
            ``pettingzoo:MODULE`` an environment with several agents (:mod:`imitate.envs.env`). ``reward_parts`` is true
            if the numbers of a vector of rewards have names; ``wrappers`` are put around environments
            (:mod:`imitate.envs.wrappers`).
        obs_keys: the observations to return; None returns all.
        render: true if ``render`` will be called.
        camera_names: cameras to observe (robosuite); None takes those named by ``obs_keys``.
        camera_size: side of observed images in pixels, or (height, width), or one of these by camera.
        team: true if the caller can handle several agents, by :func:`imitate.envs.env.lanes_of`.

    Raises:
        EnvError: the description cannot be used, names what is not trusted (:mod:`imitate.system.trust`), or its
            simulator is not installed.
    """
    if env_meta.get("wrappers"):
        if is_robot(env_meta) or is_team(env_meta):
            raise EnvError(
                f"{env_meta['env_name']}: wrappers are for one simulated environment: leave them out"
            )
        inner = {key: value for key, value in env_meta.items() if key != "wrappers"}
        make = partial(
            make_env, inner, render=render, camera_names=camera_names, camera_size=camera_size
        )
        return wrapped(env_meta, obs_keys, lambda keys: make(obs_keys=keys))
    kind = env_meta.get("type")
    if is_robot(env_meta):
        check_trusted(env_meta)
        return cast(Env, import_module(ROBOTS_ROOM).robot_env(env_meta, obs_keys))
    check_description(env_meta)
    check_trusted(env_meta)
    if kind == ROBOSUITE:
        env_meta = fitted(env_meta)
    name, kwargs = str(env_meta["env_name"]), dict(env_meta.get("env_kwargs") or {})
    if (
        kind == ROBOSUITE
    ):  # imported here, because simulators are optional and take seconds to import
        from imitate.envs.robosuite_env import RobosuiteEnv

        return RobosuiteEnv(
            name,
            kwargs,
            obs_keys=obs_keys,
            render=render,
            camera_names=camera_names,
            camera_size=camera_size,
        )
    if is_team(env_meta):
        if not team:
            raise EnvError(
                f"{name} has several agents, which only online training, imitate eval, check-env and check-algo can "
                "handle"
            )
        from imitate.envs.pettingzoo_env import PettingZooEnv

        return cast(Env, PettingZooEnv(name, kwargs, obs_keys=obs_keys, render=render))
    from imitate.envs.gymnasium_env import GymnasiumEnv

    return GymnasiumEnv(
        name,
        kwargs,
        obs_keys=obs_keys,
        render=render,
        reward_parts=bool(env_meta.get("reward_parts")),
    )
