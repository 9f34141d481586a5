"""The control loop: a policy moves a robot at a fixed rate, and the robot is stopped after any failure.

Each control step: observe, act, limit, send, wait for the next period. A step without a usable action (the observation
is old, not finite or missing, nothing is planned, the policy's server does not answer) holds the pose; holding for
longer than ``Safety.hold_s`` ends the episode. The robot is stopped at every end.

This is not a safety function in the sense of any standard: it runs in a user process. Keep a hand on the emergency
stop.

Before the first step the joint names of the policy are compared with those of the robot.
"""

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.driver import DriverError, called, guided, solved
from imitate.deploy.robot.limits import LimitError, LimitFilter
from imitate.deploy.robot.observing import Observer, not_finite
from imitate.deploy.robot.observing import Safety as Safety
from imitate.deploy.robot.report import Report
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.robot.watchdog import Watchdog, stop_robot
from imitate.errors import NotFiniteError, RobotError, UserError, offered
from imitate.policy.checks import check_rate
from imitate.policy.uncertainty import UNCERTAIN
from imitate.system import clock
from imitate.system.processes import machine_is_busy
from imitate.system.text import counted

_logger = logging.getLogger(__name__)


def check_names(robot: Robot, policy: Any) -> None:
    """Compare the order of joints before anything moves, if policy and robot both have names.

    Completely different names are logged without an error, because names in LeRobot have changed between releases.

    Raises:
        UserError: the policy was trained with the same names in another order, or with only some of them.
    """
    trained: Mapping[str, Sequence[str]] = getattr(policy, "number_names", None) or {}
    keys = (*getattr(policy, "obs_keys", ()), "actions")
    own = {**robot.observation_names, "actions": robot.action_names or ()}
    for key in keys:
        there, here = tuple(trained.get(key, ())), tuple(own.get(key, ()))
        if not there or not here or there == here:
            continue
        words = (
            f"'{key}' is ({', '.join(here)}) in the robot, but was ({', '.join(there)}) in training"
        )
        if set(there) & set(here):
            raise UserError(
                f"{words}: use the robot of the data, or return its numbers in that order"
            )
        _logger.warning("%s: make sure that the order is the same", words)


Vector = NDArray[np.float64]
_Result = TypeVar("_Result")

_NO_ANSWER = "the server does not answer"
_POLICY, _RECORDING = "the policy", "what follows each step, such as recording,"


class LoopPolicy(Protocol):
    """Interface of a policy for the loop: :class:`imitate.RolloutPolicy`, a remote or an asynchronous policy.

    A policy may also have ``control_freq`` (Hz), ``obs_keys`` and ``cut_plan()``.
    """

    def start_episode(self, lang: str | None = None) -> None:
        """Reset the memory for a new episode."""

    def __call__(self, ob: Mapping[str, Any]) -> Vector | None:
        """Return the action (A,) for an observation, or None if it is not ready and the pose must be held."""


@dataclass(frozen=True)
class ControlStep:
    """One control step, for recording.

    Attributes:
        observation: observation before the action.
        action: (A,) sent action, within the limits; None if the pose was held.
        wanted: (A,) action of the policy, or None if it returned none.
        intervened: true if a person acted.
        events: events of the teleoperator.
        pose: (A,) action that keeps the measured pose; None if the robot does not provide it.
    """

    observation: Observation
    action: Vector | None
    wanted: Vector | None
    intervened: bool
    events: frozenset[str]
    pose: Vector | None = None


class ControlLoop:
    """Runs episodes of one policy on one connected robot.

    Args:
        robot: connected robot.
        policy: see :class:`LoopPolicy`; None if only the teleoperator acts.
        rate_hz: control steps per second.
        safety: settings that determine when to hold and when to stop.
        teleoperator: connected device that takes over whenever it returns an action; its events end episodes.
        any_rate: true to allow a rate other than the demonstrations' (motions become slower or faster) or the robot's
            own.
        dry_run: true to observe and predict, but send nothing.
        slow: factor in (0, 1] by which the limits of step, speed and acceleration are multiplied.
        on_step: called after each control step; its errors end the episode.
        look: returns the reason why the policy must not act on an observation, or ''.

    Attributes:
        step_ends_s: ``time.monotonic()`` at which the running control step ends; infinite for a robot whose time stops
            between actions (:attr:`Robot.in_step`), for which neither lateness nor age is checked.

    Raises:
        UserError: the policy needs observations that the robot does not give, or the rate differs from the
            demonstrations' or the robot's own.
    """

    def __init__(
        self,
        robot: Robot,
        policy: LoopPolicy | None,
        rate_hz: float,
        *,
        safety: Safety | None = None,
        teleoperator: Teleoperator | None = None,
        any_rate: bool = False,
        dry_run: bool = False,
        slow: float = 1.0,
        on_step: Callable[[ControlStep], None] | None = None,
        look: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        if policy is None and teleoperator is None:
            raise UserError("neither a policy nor a teleoperator was given, but one must act")
        if policy is not None:
            check_keys(robot, policy)
            check_names(robot, policy)
        if not any_rate:
            check_rate(policy, rate_hz)
            check_robot_rate(robot, rate_hz)
        check_doubts(safety or Safety(), policy, teleoperator)
        self.robot, self.policy, self.teleoperator = robot, policy, teleoperator
        self.period_s = 1.0 / rate_hz
        self.safety, self.dry_run, self.on_step = safety or Safety(), dry_run, on_step
        self.look = look
        self.step_ends_s = math.inf
        self.filter = LimitFilter(robot.limits.scaled(slow), rate_hz)

    def run(
        self,
        steps: int | None,
        lang: str | None = None,
        ends: frozenset[str] = frozenset({"success", "failure", "discard", "redo", "end", "quit"}),
        until_success: bool = False,
    ) -> Report:
        """Control the robot for an episode; the robot is at rest when the method returns or raises an error.

        Args:
            steps: number of control steps, or None to run until an event of the teleoperator.
            lang: instruction for a multi-task policy.
            ends: events of the teleoperator that end the episode.
            until_success: true to end the episode also when the robot reports success.

        Raises:
            RobotError: it was not safe to continue; the message contains the reason.
        """
        report, stopped = Report(), False
        try:
            try:
                in_step = self.robot.in_step
                observer = Observer(self.robot, self.period_s, self.safety)
                self._warm_up(observer, lang)
                report.limits = self.filter.counts
                limit_s = max(self.safety.watchdog_s, 3 * self.period_s)
                limit_s = threading.TIMEOUT_MAX if in_step else limit_s
                with Watchdog(self.robot, limit_s, self.safety.stop_attempts) as watchdog:
                    _Episode(self, watchdog, observer, report).run(steps, ends, until_success)
            except DriverError as error:
                raise RobotError(f"{error}; the robot was stopped") from error
            finally:
                began = clock.now()
                stop_robot(self.robot, self.safety.stop_attempts)
                report.stop_s, stopped = clock.now() - began, True
        finally:
            if not stopped:  # Ctrl-C came just before the stop above, or the stop failed
                stop_robot(self.robot, self.safety.stop_attempts)
        return report

    def _warm_up(self, observer: Observer, lang: str | None) -> None:
        """Call the policy once before the robot moves: the first call takes many times as long as the second."""
        observation = observer.first()
        if self.policy is not None:
            try:
                self.policy.start_episode(lang)
                self.policy(observation.values)
                self.policy.start_episode(lang)
            except ConnectionError as error:
                raise RobotError(f"the robot was not moved: {error}") from error
        if self.teleoperator is not None:
            called(self.teleoperator.start_episode)
        observer.begin()
        try:
            self.filter.start(observer.pose)
        except LimitError as error:
            raise RobotError(str(error)) from error


class _Episode:
    """The steps of one episode."""

    def __init__(
        self, loop: ControlLoop, watchdog: Watchdog, observer: Observer, report: Report
    ) -> None:
        self._loop, self._watchdog, self._report = loop, watchdog, report
        self._observer = observer
        self._obs_keys = tuple(getattr(loop.policy, "obs_keys", ()))
        self._robot, self._policy = loop.robot, loop.policy
        self._safety, self._period = loop.safety, loop.period_s
        self._late: deque[bool] = deque(maxlen=max(self._safety.late_of, 1))
        self._held = (
            True  # hold still until the first action; limits start from the pose at that moment
        )
        self._unable_since: float | None = None
        self._last_sent: float | None = None
        self._person_acted = self._asks = False
        self._unsure = Counter[str]()
        self._lost = self._unable = ""
        self._took_s: dict[str, float] = {}
        self._slowest: dict[str, float] = {}

    def run(self, steps: int | None, ends: frozenset[str], until_success: bool) -> None:
        deadline = clock.now()
        done, in_step = 0, self._robot.in_step
        while steps is None or done < steps:
            started = clock.now()
            deadline = max(deadline, started) + self._period
            self._loop.step_ends_s = math.inf if in_step else deadline
            events = self._step(started)
            done += 1
            ended = sorted(events & ends)
            if ended:
                self._report.ended_by = ended[0]
                return
            if until_success and solved(self._robot):
                self._report.ended_by = "success"
                return
            if in_step:
                continue
            now = clock.now()
            self._count_late(now > deadline)
            # The delay of a late step is not caught up: the next step starts at once and has a whole period.
            clock.sleep(max(0.0, deadline - now))
        self._refuse_to_end_in_a_fault()

    def _refuse_to_end_in_a_fault(self) -> None:
        """Raise an error if the episode ended after half of ``hold_s`` or more without an action."""
        since = self._unable_since
        held_s = 0.0 if since is None else clock.now() - since
        if held_s >= 0.5 * self._safety.hold_s:
            raise RobotError(
                f"the episode ended in a fault, without an action for its last {held_s:.1f} s ({self._unable}); the "
                f"robot was stopped ({self._report})"
            )

    def _step(self, started: float) -> frozenset[str]:
        """Observe, act and send; return the teleoperator's events."""
        self._took_s = {}
        observation, reason = self._timed("observe()", self._observer.next)
        self._report.unstamped = self._observer.unstamped
        guidance = Guidance()
        if self._loop.teleoperator is not None:
            guidance = self._timed("guide()", guided, self._loop.teleoperator, observation)
        person = guidance.action is not None
        if not reason and person:
            reason = not_finite(observation, self._obs_keys)
        usable = not reason
        action = wanted = None
        if usable:
            wanted, reason = self._timed(_POLICY, self._wanted, observation, guidance)
            action = guidance.action if person else wanted
            if action is not None and self._observer.fault_of_age():  # the policy took too long
                action, reason = None, "the action came too late"
        sent: Vector | None = None
        if action is None:
            patient = usable and (self._policy is None or self._asks)
            self._hold(reason, started, patient=patient)
        else:
            sent = self._send(np.asarray(action, dtype=np.float64))
            self._report.interventions += person
            now = clock.now()
            self._report.latencies_ms.append(1e3 * (now - started))
            if self._last_sent is not None:
                self._report.gaps.append((now - self._last_sent) / self._period)
            self._last_sent, self._held, self._unable_since = now, False, None
        if self._loop.on_step is not None:
            step = ControlStep(
                observation, sent, wanted, person, guidance.events, self._observer.pose
            )
            self._timed(_RECORDING, self._loop.on_step, step)
        return guidance.events

    def _wanted(self, observation: Observation, guidance: Guidance) -> tuple[Vector | None, str]:
        """Return the policy's action, or None and the reason why it is missing."""
        self._asks = False
        if self._policy is None:
            return None, "nobody acts"
        try:
            if self._person_acted and guidance.action is None:
                cut = getattr(self._policy, "cut_plan", None)
                if cut is not None:  # actions planned before the person acted are outdated
                    cut()
            self._person_acted = guidance.action is not None
            strange = "" if self._loop.look is None else self._loop.look(observation.values)
            if strange:
                return None, strange
            action = self._policy(observation.values)
            if self._doubts(person_acts=guidance.action is not None):
                return None, "the policy is unsure, and a person is asked to act"
        except NotFiniteError as error:
            return None, str(error).partition(":")[0]
        except ConnectionError as error:
            self._lost = str(error)
            return None, _NO_ANSWER
        return action, "nothing is planned"

    def _doubts(self, person_acts: bool) -> bool:
        """Return True if a person must act because the policy was unsure for several steps.

        Raises:
            RobotError: the policy is so unsure that the robot is stopped, or predicts too high a cost.
        """
        safety, extras = self._safety, getattr(self._policy, "last_extras", {})
        cost = float(extras["cost"].max()) if "cost" in extras else -math.inf
        found = getattr(self._policy, "uncertainty_rank", None)
        rank = 0.0 if found is None else float(found.max())
        for name in ("stop_above", "ask_above"):
            above = rank >= getattr(safety, name) and not person_acts
            self._unsure[name] = self._unsure[name] + 1 if above else 0
        if self._unsure["stop_above"] >= safety.unsure_steps:
            raise RobotError(
                f"the policy's uncertainty was above the {safety.stop_above:g} quantile of its demonstrations for "
                f"{counted(safety.unsure_steps, 'step')} (stop_above); the robot was stopped ({self._report})"
            )
        if cost > safety.most_cost and not person_acts:
            raise RobotError(
                f"the policy predicts a cost of {cost:.3g}, above most_cost {safety.most_cost:g}; the robot was "
                f"stopped ({self._report})"
            )
        self._asks = self._unsure["ask_above"] >= safety.unsure_steps
        # after waiting, the policy plans again
        self._person_acted = self._person_acted or self._asks
        return self._asks

    def _hold(self, reason: str, now: float, patient: bool) -> None:
        """Hold the pose in this step; stop if holding takes too long, unless a person merely pauses (``patient``)."""
        self._report.held[reason] += 1
        if self._loop.dry_run:
            self._watchdog.skip()
        else:
            self._timed("hold()", self._watchdog.hold)
        self._held, self._unable = True, reason
        if patient:
            self._unable_since = None
            self._observer.poses.pause()
        elif self._unable_since is None:
            self._unable_since = now
        elif now - self._unable_since >= self._safety.hold_s:
            words = f"{reason}: {self._lost}" if reason == _NO_ANSWER else reason
            raise RobotError(
                f"no action for {self._safety.hold_s:g} s ({words}); the robot was stopped ({self._report})"
            )

    def _send(self, action: Vector) -> Vector:
        pose, limit = self._observer.pose, self._loop.filter
        try:
            if self._held:
                limit.rest(pose)
            first = limit.last
            safe = limit(action, pose)
        except LimitError as error:
            raise RobotError(f"{error}; the robot was stopped") from error
        if (
            self._report.steps == 0
            and first is not None
            and self._safety.first_action == "refuse"
            and not np.allclose(safe, limit.boxed(action))
        ):
            raise RobotError(
                f"the first action {action} is further from the current pose {first} than the limits of a step allow; "
                "it was not sent: bring the robot to where the demonstrations begin, or allow it to approach slowly"
            )
        if self._loop.dry_run:
            self._watchdog.skip()
        else:
            self._timed("send()", self._watchdog.send, safe)
            self._observer.poses.commanded(safe)
            if self._loop.teleoperator is not None:
                called(self._loop.teleoperator.follow, safe)
        self._report.steps += 1
        return safe

    def _count_late(self, late: bool) -> None:
        self._late.append(late)
        self._report.late += late
        if late:
            part = max(self._took_s, key=lambda name: self._took_s[name])
            self._slowest[part] = max(self._slowest.get(part, 0.0), self._took_s[part])
        if self._safety.late and sum(self._late) >= self._safety.late:
            raise RobotError(
                f"{sum(self._late)} of the last {len(self._late)} control steps were late ({self._report}): "
                f"{self._blamed()}"
            )

    def _blamed(self) -> str:
        """Name the part that took longest in late steps, and a remedy."""
        part = max(self._slowest, key=lambda name: self._slowest[name])
        if self._slowest[part] < self._period / 2:
            return "other programs kept the machine busy; end them, or give this program a higher priority"
        words = f"{part} took up to {1e3 * self._slowest[part]:.0f} ms of a period of {1e3 * self._period:.0f} ms"
        if part == _POLICY and self._lost:
            return f"{words} ({self._lost}); check the server and the network, or use asynchronous inference"
        if part == _POLICY:
            first = " on a busy machine; end other programs, or" if machine_is_busy() else ";"
            return f"{words}{first} use a smaller policy, asynchronous inference, or demonstrations at a lower rate"
        if part == _RECORDING:
            return f"{words}; write to a faster disk, or record smaller images"
        return f"{words}; let it return at once, and do slow work in a thread of the driver"

    def _timed(self, name: str, function: Callable[..., _Result], *args: Any) -> _Result:
        """Call a function that is part of a control step, and record the duration under ``name``."""
        began = clock.now()
        try:
            return function(*args)
        finally:
            self._took_s[name] = clock.now() - began


def check_robot_rate(robot: Robot, rate_hz: float) -> None:
    """Compare the rate of the loop with the robot's own, if it has one.

    Raises:
        UserError: they differ by more than 1 %.
    """
    own = robot.rate_hz
    if own is not None and abs(rate_hz - own) > 0.01 * own:
        raise UserError(
            f"the rate is {rate_hz:g} Hz, but the robot needs its actions at {own:g} Hz: use that rate, or allow any "
            "(--any-rate)"
        )


def check_doubts(safety: Safety, policy: Any, teleoperator: Teleoperator | None) -> None:
    """Raise UserError for settings on the policy's uncertainty that could never take effect.

    Raises:
        UserError: the policy reports no calibrated uncertainty, or there is no device by which a person could act.
    """
    rules = [name for name in ("stop_above", "ask_above") if getattr(safety, name) < 1.0]
    if rules and policy is not None and getattr(policy, "calibration", None) is None:
        raise UserError(
            f"{rules[0]} is {getattr(safety, rules[0])}, but the policy reports no uncertainty that is calibrated on "
            f"demonstrations: {UNCERTAIN}, and run its checkpoint on this machine, step by step"
        )
    if safety.ask_above < 1.0 and teleoperator is None:
        raise UserError(
            f"ask_above is {safety.ask_above}, but there is no device with which a person could act: name one"
            + (" with --take-over" if offered("--take-over") else " that takes over")
        )


def check_keys(robot: Robot, policy: LoopPolicy) -> None:
    """Compare the policy's observations with the robot's, before anything moves.

    Raises:
        UserError: the robot lacks an observation that the policy needs.
    """
    wanted = tuple(getattr(policy, "obs_keys", ()))
    missing = [key for key in wanted if key not in robot.observation_shapes]
    if missing:
        raise UserError(
            f"the policy needs the observation '{missing[0]}', which the robot does not give; "
            f"it gives {', '.join(robot.observation_shapes)}"
        )
