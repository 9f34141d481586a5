"""Use a robot as an environment with a fixed rate, for evaluation, DAgger and online RL, under the name ``robot:NAME``.

    {"env_name": "robot:my_robots:Arm", "type": 4, "env_kwargs": {"control_freq": 10, "take_over": "spacemouse"}}

``robot:NAME`` accepts the names of ``imitate run --robot``; ``robot:sim`` is a simulated environment in real time,
whose ``env_args`` are in ``options.env_meta``.

``step(action)`` passes the action to the control loop of :mod:`imitate.deploy.robot.loop`, which runs in its own
thread, and returns the observation one control period later. So all protections of the loop apply: limits, age checks,
the watchdog, a stop after any failure. If the next action does not come in time, for example during the updates of a
learner, the robot holds its pose, and is stopped after ``Safety.hold_s``; it continues from its current pose with the
next :meth:`RobotEnv.step`.
"""

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imitate.deploy.robot.driver import awaited, observed
from imitate.deploy.robot.exchange import END, ControlThread, Exchange, StepOutcome
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.report import Report
from imitate.deploy.robot.robot import (
    Robot,
    Teleoperator,
    check_declared,
    make_robot,
    make_teleoperator,
)
from imitate.deploy.robot.watchdog import AtExit, reset_robot, stop_robot
from imitate.envs.cameras import cameras_in
from imitate.envs.env import Array, Obs
from imitate.errors import EnvError, RobotError, UserError, nearest
from imitate.system.trust import ROBOT, SIMULATED, check_trusted, is_simulated, typed_object

Reward = Callable[[Mapping[str, Array], NDArray[np.float64]], float]
"""Function that returns the reward of an observation and the action (A,) that led to it."""

VERDICTS = {"success": True, "failure": False}
"""Events of a device that end an episode with a verdict on success."""
VOID = ("discard", "redo")
"""Events of a device that end an episode and discard it."""
_PATIENCE_S = 5.0
_log = logging.getLogger(__name__)


class RobotEnv(gymnasium.Env[Obs, Array]):
    """A robot as a :class:`gymnasium.Env` and an :class:`imitate.envs.Env`.

    An episode ends as a terminal after a person's ``success`` or ``failure`` or if :meth:`Robot.ended` is true; as a
    timeout after ``horizon`` steps or by a person's ``end``. ``info`` has

    * ``success``: verdict of the robot or of a person;
    * ``executed_action``: (A,) executed action: the action within the limits, the person's action after a take-over, or
        the action that keeps the pose if none came in time;
    * ``intervened``, ``held``: true if a person acted, true if the pose was held;
    * ``interventions``: 1 if a person acted, else 0; the sum over the episode is logged;
    * ``discarded``: true if a person discarded the episode.

    Args:
        robot: robot that is not connected; this object connects and closes it.
        rate_hz: control steps per second, or None for the robot's own rate.
        name: name of the environment.
        teleoperator: device that is not connected; whenever it returns an action, it overrides the given one, and its
            events judge episodes.
        reward: function that returns the reward of a step, or None for the reward that the robot measures; a robot that
            measures none gives 1 at success, else 0.
        safety: settings of the loop; ``hold_s`` is the time without an action after which the robot is stopped.
        slow: factor in (0, 1] on the limits of step, speed and acceleration.
        limits: fields of :class:`ActionLimits` that replace the robot's own; they must be stricter.
        horizon: number of steps after which an episode is truncated, or None for no limit.
        obs_keys: observation keys to return, or None for all.
        prepare: true to wait for a person to prepare the scene if the robot cannot reset itself.
        meta: ``env_args`` that describe the environment.

    Attributes:
        counts: numbers of control steps so far: ``steps``, ``held``, ``late``, ``interventions``.
    """

    def __init__(
        self,
        robot: Robot,
        rate_hz: float | None = None,
        *,
        name: str = "robot",
        teleoperator: Teleoperator | None = None,
        reward: Reward | None = None,
        safety: Safety | None = None,
        slow: float = 1.0,
        limits: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        obs_keys: Sequence[str] | None = None,
        prepare: bool = True,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self._robot, self._device = name, robot, teleoperator
        self._reward, self._horizon, self._prepare = reward, horizon, prepare
        self._slow = slow
        self._meta = dict(meta or {"env_name": name, "type": 4, "env_kwargs": {}})
        self.counts: Counter[str] = Counter()
        self._run: Future[Report] | None = None
        self._goes_on = False
        self._success: bool | None = None
        self._seen: Mapping[str, Any] = {}
        self._thread = ControlThread()
        self._closed = False
        self._at_exit = AtExit(self._end_of_process)
        try:
            self._in_thread(lambda: awaited(robot.connect))
            check_declared(robot)
            if limits:
                robot.limits = _stricter(name, robot.limits, limits)
            rate = rate_hz or robot.rate_hz
            if rate is None:
                raise UserError(
                    f"{name}: the robot has no control rate of its own: set control_freq in env_kwargs"
                )
            self.rate_hz = float(rate)
            if teleoperator is not None:
                self._in_thread(lambda: awaited(teleoperator.connect, robot))
            self._exchange = Exchange(robot, teleoperator)
            self._loop = ControlLoop(
                robot,
                None,
                self.rate_hz,
                safety=safety,
                teleoperator=self._exchange,
                slow=slow,
                on_step=self._exchange.on_step,
            )
            self._exchange.attach(self._loop)
            self._describe(obs_keys)
        except BaseException:
            self.close()
            raise

    def _describe(self, obs_keys: Sequence[str] | None) -> None:
        """Set the observation space, the action space and the limits according to the connected robot."""
        seen = self._in_thread(lambda: observed(self._robot)).values
        keys = tuple(seen if obs_keys is None else obs_keys)
        missing = [key for key in keys if key not in seen]
        if missing:
            raise EnvError(
                f"{self.name}: the robot gives no observation '{missing[0]}', but only {', '.join(seen)}"
            )
        self._spaces: dict[str, spaces.Space[Any]] = {
            key: _space(np.asarray(seen[key])) for key in keys
        }
        self.observation_space: Any = spaces.Dict(self._spaces)
        self._seen = seen
        limits = self._robot.limits
        margin = np.asarray(limits.margin)
        self.action_low = np.asarray(limits.low) + margin
        self.action_high = np.asarray(limits.high) - margin
        self.action_dim = limits.size
        self.action_space = spaces.Box(
            self.action_low.astype(np.float32), self.action_high.astype(np.float32)
        )

    # ---- episodes --------------------------------------------------------------------------------

    def observe(self) -> Obs:
        """Return the robot's observation between two episodes; nothing moves."""
        if self._run is None:
            self._seen = self._in_thread(lambda: observed(self._robot)).values
        return self._obs()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Stop the robot, reset robot and scene, and begin an episode.

        Args:
            seed: number of the initial state, for :meth:`Robot.reset_to`, or None for any.
            options: ignored.

        Raises:
            RobotError: the robot failed or could not continue safely.
        """
        super().reset(seed=seed)
        self._end_run()
        self._goes_on, self._success = False, None
        self._steps = 0
        robot = self._robot
        begun = self._in_thread(lambda: reset_robot(robot, seed))
        if begun is None and self._prepare:
            self._wait_for_the_scene()
        self._exchange.begin()
        self._begin_run()
        outcome = self._outcome()
        self._goes_on = True
        return self._obs(), self._info(outcome)

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Execute an action; return gymnasium's five values, with the observation a control period later.

        Raises:
            RobotError: it was not safe to continue; the robot was stopped.
            EnvError: no episode is running.
        """
        if not self._goes_on or self._run is None:
            raise EnvError(f"{self.name}: no episode is running: call reset() before step()")
        if self._exchange.decide(np.array(action, dtype=np.float64).reshape(-1)):
            self._end_run()
            self._exchange.enter()
            self._begin_run()
        outcome = self._outcome()
        self._steps += 1
        self.counts.update(steps=1, held=outcome.held, interventions=outcome.intervened)
        info = self._info(outcome)
        terminated = outcome.ended or bool(outcome.events & VERDICTS.keys())
        over = self._horizon is not None and self._steps >= self._horizon
        truncated = not terminated and (over or bool(outcome.events & {"end", *VOID}))
        self._goes_on = not (terminated or truncated)
        return self._obs(), self._reward_of(outcome), terminated, truncated, info

    def _outcome(self) -> StepOutcome:
        """Wait for the end of the control step.

        Raises:
            RobotError: the loop ended, or a person pressed ``quit``.
        """
        assert self._run is not None
        try:
            outcome = self._exchange.outcome(self._run)
        except BaseException:
            self._goes_on = False
            raise
        self._seen = outcome.observation.values
        if "quit" in outcome.events:
            self._end_run()
            raise RobotError("a person ended the run at the device (quit); the robot was stopped")
        by_person = [VERDICTS[event] for event in sorted(outcome.events & VERDICTS.keys())]
        self._success = by_person[0] if by_person else outcome.success
        return outcome

    def _info(self, outcome: StepOutcome) -> dict[str, Any]:
        return {
            "success": self._success,
            "executed_action": outcome.action,
            "intervened": outcome.intervened,
            "held": outcome.held,
            "interventions": int(outcome.intervened),
            "discarded": bool(outcome.events.intersection(VOID)),
        }

    def _reward_of(self, outcome: StepOutcome) -> float:
        if self._reward is not None:
            return float(self._reward(self._obs(), outcome.action))
        return float(bool(self._success)) if outcome.reward is None else outcome.reward

    def _obs(self) -> Obs:
        return {
            key: np.array(self._seen[key], dtype=space.dtype) for key, space in self._spaces.items()
        }

    def is_success(self) -> dict[str, bool | None]:
        """Return {"task": True} if the task was solved at the last step, {"task": None} if nobody measured success."""
        return {"task": self._success}

    # ---- the control thread ----------------------------------------------------------------------

    def _in_thread(self, function: Callable[[], Any]) -> Any:
        return self._thread.submit(function).result()

    def _begin_run(self) -> None:
        self._run = self._thread.submit(lambda: self._loop.run(None, ends=frozenset({END})))
        self._run.add_done_callback(lambda _: self._exchange.wake())

    def _end_run(self) -> None:
        """End the control loop's run if there is one; the robot is then at rest.

        Raises:
            RobotError: the loop had already ended, because it was not safe to continue.
        """
        run, self._run = self._run, None
        if run is not None:
            self._exchange.leave()
            self.counts["late"] += run.result().late

    def _wait_for_the_scene(self) -> None:
        """Wait until a person has prepared the scene; with a device the person can move the robot meanwhile."""
        if self._device is not None:
            sys.stderr.write("prepare the scene, then press success at the device\n")
            device = self._device
            loop = ControlLoop(
                self._robot,
                None,
                self.rate_hz,
                safety=self._loop.safety,
                teleoperator=device,
                slow=self._slow,
            )
            ends = frozenset({"success", "quit"})
            report = self._in_thread(lambda: loop.run(None, ends=ends))
            if report.ended_by == "quit":
                raise RobotError(
                    "a person ended the run at the device (quit); the robot was stopped"
                )
        elif sys.stdin is not None and sys.stdin.isatty():
            sys.stderr.write("prepare the scene, then press Enter: ")
            sys.stderr.flush()
            sys.stdin.readline()
        else:
            raise RobotError(
                f"{self.name}: the robot has no reset(), and nobody can confirm that the "
                "scene is ready: run it in a terminal, give a device (take_over), or set prepare to false"
            )

    def close(self) -> None:
        """Stop the robot and release it and the device. May be called more than once, from any thread."""
        if self._closed:
            return
        self._closed = True
        run, self._run = self._run, None
        try:
            if run is not None:
                self._exchange.leave()
                with suppress(
                    NotInTimeError, RobotError
                ):  # the error was already reported, or the robot is stopped below
                    self.counts["late"] += run.result(_PATIENCE_S).late
        finally:
            stop_robot(self._robot)
            self._at_exit.release()
            for part in (self._device, self._robot):
                if part is not None:
                    self._thread.submit(part.close)
            self._thread.end(_PATIENCE_S)
        if self.counts["held"] or self.counts["late"]:
            _log.warning("%s: %s", self.name, self._summary())

    def _end_of_process(self) -> None:
        """Close the environment; if another call is already closing it, only stop the robot, at once."""
        if self._closed:
            stop_robot(self._robot)
        self.close()

    def _summary(self) -> str:
        counts = self.counts
        return (
            f"of {counts['steps']} control steps at {self.rate_hz:g} Hz {counts['held']} held the pose because the "
            f"action came too late, {counts['late']} were late, {counts['interventions']} were a person's"
        )

    # ---- the other methods of Env ----------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Raise EnvError: a robot's state can be neither read nor set."""
        raise EnvError(
            f"{self.name}: the state of a real robot and its scene cannot be read: use a simulated "
            "environment"
        )

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Raise EnvError, see :meth:`get_state`."""
        raise EnvError(
            f"{self.name}: a real robot and its scene cannot be set to a recorded state: use a simulated "
            "environment"
        )

    def render(
        self, *, height: int = 256, width: int = 256, camera_name: str | None = None
    ) -> Array:
        """Return the last image of the camera ``camera_name``, by default the first one."""
        images = [key for key, value in self._seen.items() if np.ndim(value) == 3]
        if not images:
            raise EnvError(f"{self.name}: the robot has no camera")
        chosen = [key for key in images if key.removesuffix("_image") == camera_name]
        frame = np.asarray(self._seen[(chosen or images)[0]])
        rows = np.arange(height) * frame.shape[0] // height
        columns = np.arange(width) * frame.shape[1] // width
        return np.ascontiguousarray(frame[rows][:, columns], dtype=np.uint8)

    def serialize(self) -> dict[str, Any]:
        """Return ``env_args`` with the control rate."""
        kwargs = {**(self._meta.get("env_kwargs") or {}), "control_freq": self.rate_hz}
        return {**self._meta, "env_kwargs": kwargs}


def _stricter(name: str, own: ActionLimits, changes: Mapping[str, Any]) -> ActionLimits:
    """Return the limits with some fields replaced.

    Raises:
        UserError: they are looser than the robot's own.
    """
    limits = replace(own, **changes)
    looser = limits.looser_than(own)
    if looser:
        raise UserError(
            f"{name}: limits looser than the robot's own: {'; '.join(looser)}: give stricter limits"
        )
    return limits


def _space(value: Array) -> spaces.Box:
    if value.dtype == np.uint8:
        return spaces.Box(0, 255, value.shape, np.uint8)
    return spaces.Box(-math.inf, math.inf, value.shape, np.float32)


@dataclass(frozen=True)
class RobotArgs:
    """``env_kwargs`` of a robot.

    Attributes:
        control_freq: control steps per second, or None for the robot's own rate.
        options: options of the robot's class.
        take_over: device with which a person may override the actions: ``keyboard``, ``expert:TASK``, an installed
            device, or ``module:Class``.
        take_over_options: options of the device's class.
        reward: ``module:function`` that returns the reward of an observation and the executed action, or None for the
            robot's reward, by default 1 at success, else 0.
        limits: fields of ActionLimits that replace the robot's own; they must be stricter.
        slow: factor in (0, 1] on the limits of step, speed and acceleration.
        safety: fields of :class:`Safety`.
        horizon: number of steps after which an episode is truncated.
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
                f"{text}: no environment is given: write its env_args as env_kwargs.options.env_meta, or give its "
                "name, such as --env robot:sim:Lift"
            )
        if args.control_freq is not None:
            options.setdefault("rate_hz", args.control_freq)
        options.setdefault("cameras", cameras_in(obs_keys or ()))
        for check in ("frozen", "frozen_pose"):  # images of a simulated scene at rest are identical
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
        raise EnvError(f"{text}: env_kwargs do not fit the robot: {error}") from error


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
