"""Controllers in the description of a robosuite 1.5 environment."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

from imitate.envs.migration import ARM_TYPES
from imitate.envs.robosuite_env import import_robosuite

DEFAULT_ROBOT = "Panda"


def robot_names(env_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of the robots, in the order of their actions."""
    robots = env_kwargs.get("robots", DEFAULT_ROBOT)
    return [robots] if isinstance(robots, str) else list(robots)


def with_explicit_controllers(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return env_args with robosuite's default controllers written out if none are given.

    Raises:
        EnvError: robosuite is not installed.
    """
    new: dict[str, Any] = copy.deepcopy(dict(env_args))
    kwargs = new.setdefault("env_kwargs", {})
    robots = robot_names(kwargs)
    configs = kwargs.get("controller_configs")
    if configs is None:
        import_robosuite()
        load = importlib.import_module("robosuite.controllers").load_composite_controller_config
        configs = [load(robot=robot) for robot in robots]
        kwargs["controller_configs"] = configs if len(robots) > 1 else configs[0]
    return new


def arm_controllers(env_kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return settings of the arms' controllers, robot by robot; the dicts are references into the description."""
    configs = env_kwargs.get("controller_configs")
    return [
        part
        for config in (configs if isinstance(configs, list) else [configs])
        if isinstance(config, dict)
        for part in (config.get("body_parts") or {}).values()
        if isinstance(part, dict) and part.get("type") in ARM_TYPES and "gripper" in part
    ]
