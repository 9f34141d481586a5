"""Robots as environments by name: ``robot:NAME`` and its arguments in ``env_args``.

    {"env_name": "robot:my_robots:Arm", "type": 4, "env_kwargs": {"control_freq": 10, "take_over": "spacemouse"}}

``robot:NAME`` accepts the names of ``imitate run --robot``; ``robot:sim`` is a simulated environment in real time,
whose ``env_args`` are in ``options.env_meta``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from imitate.deploy.robot.loop import Safety
from imitate.deploy.robot.robot import make_robot, make_teleoperator
from imitate.deploy.robot.robot_env import Reward, RobotEnv
from imitate.envs.cameras import cameras_in
from imitate.errors import EnvError, UserError, nearest
from imitate.system.trust import ROBOT, SIMULATED, check_trusted, is_simulated, typed_object


@dataclass(frozen=True)
class RobotArgs:
    """``env_kwargs`` of a robot.

    Attributes:
        control_freq: control steps per second, or None for the robot's own.
        options: options of the robot's class.
        take_over: device with which a person may override: ``keyboard``, ``expert:TASK``, an installed one, or
            ``module:Class``.
        take_over_options: options of the device's class.
        reward: ``module:function`` of the observation and the executed action, or None for the robot's reward, which by
            default is
        1 at success.
        limits: fields of ActionLimits that replace the robot's own; they must be stricter.
        slow: factor in (0, 1] on the limits of step, speed and acceleration.
        safety: fields of Safety.
        horizon: steps after which an episode is truncated.
        prepare: true to wait for a person to prepare the scene if the robot cannot reset itself.
    """

    control_freq: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    take_over: str | None = None
    take_over_options: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    slow: float = 1.0
    safety: Mapping[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    prepare: bool = True


_DICTS = ("options", "take_over_options", "limits", "safety")


def robot_env(env_meta: Mapping[str, Any], obs_keys: Sequence[str] | None = None) -> RobotEnv:
    """Create the connected environment of ``robot:NAME``.

    Raises:
        EnvError: the arguments are unknown, or the robot cannot be connected.
    """
    check_trusted(env_meta)
    text = str(env_meta["env_name"])
    args = _robot_args(text, dict(env_meta.get("env_kwargs") or {}))
    name, options, safety = text.removeprefix(ROBOT), dict(args.options), dict(args.safety)
    if is_simulated(text):
        name = SIMULATED.removeprefix(ROBOT)
        if "env_meta" not in args.options:
            raise EnvError(
                f"{text}: no environment given: write its env_args as env_kwargs.options.env_meta, or give its name, "
                "such as --env robot:sim:Lift"
            )
        if args.control_freq is not None:
            options.setdefault("rate_hz", args.control_freq)
        options.setdefault("cameras", cameras_in(obs_keys or ()))
        for check in ("frozen", "frozen_pose"):  # a scene at rest repeats its images
            safety.setdefault(check, 0)
    device = None
    if args.take_over is not None:
        device = make_teleoperator(args.take_over, **args.take_over_options)
    try:
        return RobotEnv(
            make_robot(name, **options),
            args.control_freq,
            name=text,
            teleoperator=device,
            reward=None if args.reward is None else _function(args.reward),
            safety=Safety(**safety),
            slow=args.slow,
            limits=args.limits,
            horizon=args.horizon,
            obs_keys=obs_keys,
            prepare=args.prepare,
            meta=env_meta,
        )
    except (TypeError, ValueError) as error:
        raise EnvError(f"{text}: its env_kwargs do not fit: {error}") from error


def _robot_args(text: str, kwargs: Mapping[str, Any]) -> RobotArgs:
    known = [entry.name for entry in fields(RobotArgs)]
    for key, value in kwargs.items():
        if key not in known:
            raise EnvError(f"{text}: env_kwargs has an unknown key '{key}'; {nearest(key, known)}")
        if key in _DICTS and not isinstance(value, Mapping):
            raise EnvError(f"{text}: env_kwargs['{key}'] is {value!r}; expected a dict")
    return RobotArgs(**kwargs)


def _function(name: str) -> Reward:
    try:
        found: Reward = typed_object(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"reward: '{name}' is not a module:function that can be imported: {error}"
        ) from error
    return found
