"""Exchange observations and actions between a program's thread and a control loop.

The program (a learner, an evaluation) may take any amount of time. The loop keeps its rate: it waits for the action
until its control step is nearly over, and holds the pose if none has arrived. An action for an observation that is too
old is not sent, and the pose is held in that step, too.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.driver import called, guided, solved
from imitate.deploy.robot.loop import ControlLoop, ControlStep
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.errors import RobotError
from imitate.system import clock

Vector = NDArray[np.float64]
Value = TypeVar("Value")
END = "end"
"""The event by which the program ends the loop's run."""
_SHARE = 0.9
"""Fraction of a control period for which the loop waits for an action; the rest of the period is for sending it."""


@dataclass(frozen=True)
class StepOutcome:
    """Result of a control step.

    Attributes:
        observation: observation after the step.
        action: (A,) executed action, after applying the limits: the program's, the person's if a person acted, or the
            action that keeps the pose if it was held.
        intervened: true if a person acted.
        held: true if the pose was held because the program's action came too late.
        events: events of the person's device since the last outcome.
        reward: reward measured by the robot, or None if it measures none.
        success: true if the robot reports success, or None if it does not measure success.
        ended: true if the robot reports that the episode cannot continue.
    """

    observation: Observation
    action: Vector
    intervened: bool
    held: bool
    events: frozenset[str]
    reward: float | None
    success: bool | None
    ended: bool


class Exchange(Teleoperator):
    """Exchange of observations and actions between a program's thread and a control loop, as the loop's teleoperator.

    While the program computes, the robot holds its pose, even for a person at the device: the program thus sees every
    control step that moves the robot. After ``Safety.hold_s`` the loop's run ends, which stops the robot;
    :meth:`decide` then returns true, because a new run must be begun.

    Args:
        robot: connected robot.
        device: connected device of a person, whose actions override the program's.
    """

    def __init__(self, robot: Robot, device: Teleoperator | None = None) -> None:
        self._robot, self._device = robot, device
        self._loop: ControlLoop | None = None
        self._changed = threading.Condition()
        self._decided: tuple[Vector, float] | None = None
        self._seen_s: float | None = None
        self._outcome: StepOutcome | None = None
        self._done: tuple[Vector, bool, bool] | None = None
        self._events: frozenset[str] = frozenset()
        limits = robot.limits
        self._last: Vector = np.clip(np.zeros(limits.size), limits.low, limits.high)
        self._rest = self._last
        self.enter()

    def attach(self, loop: ControlLoop) -> None:
        """Set the control loop that has this object as teleoperator and :meth:`on_step` as ``on_step``."""
        self._loop = loop

    # ---- the program's thread --------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an episode: the next outcome has an observation but no action."""
        with self._changed:
            self._last = self._rest.copy()  # the caller may change the array
            self._done = self._last, False, False
            self._decided, self._outcome, self._events = None, None, frozenset()
        if self._device is not None:
            self._device.start_episode()
        self.enter()

    def enter(self) -> None:
        """Reset the state for another run of the loop."""
        with self._changed:
            self._leaving = self._asleep = False
            self._begins = True
            self._open: bool | None = None
            self._waits_since = clock.now()

    def decide(self, action: Vector) -> bool:
        """Set the action (A,) for the last observation; return True if a new run of the loop is needed."""
        with self._changed:
            assert self._seen_s is not None
            self._decided, self._outcome = (action, self._seen_s), None
            self._changed.notify_all()
            return self._asleep

    def outcome(self, run: Future[Any]) -> StepOutcome:
        """Wait for the result of the control step; raise the error that ended the loop's run."""
        with self._changed:
            clock.wait_for(self._changed, lambda: self._outcome is not None or run.done())
            found = self._outcome
        if found is None:
            run.result()
            raise RobotError("the control loop ended by itself: begin a new episode")
        return found

    def leave(self) -> None:
        """End the loop's run at its next control step."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake :meth:`outcome`, because the run has ended."""
        with self._changed:
            self._changed.notify_all()

    # ---- the loop's thread -----------------------------------------------------------------------

    def guide(self, observation: Observation) -> Guidance:
        """Pass an observation to the program; return the program's action for it, or the person's."""
        with self._changed:
            self._publish(observation)
            decided = self._awaited()
            if self._leaving or self._asleep:
                return Guidance(events=frozenset({END}))
        person = Guidance() if self._device is None else guided(self._device, observation)
        begins, self._begins = self._begins, False
        with self._changed:
            self._events |= person.events
            self._open = None
            if decided is None:
                return Guidance()
            action, seen_s = decided
            # Events that a device gathered between two runs are outdated.
            if person.action is not None and not begins:
                self._open = True
                return Guidance(person.action)
            self._open = False
            return Guidance() if self._is_old(seen_s) else Guidance(action)

    def on_step(self, step: ControlStep) -> None:
        """Record the outcome of a control step of the loop."""
        with self._changed:
            if step.action is not None:
                self._last = step.action
            if self._open is None:
                return
            held = step.action is None
            executed = step.pose if held and step.pose is not None else self._last
            self._done = (executed, self._open and not held, held)

    def follow(self, action: Vector) -> None:
        """Pass the sent action on to the person's device."""
        if self._device is not None:
            called(self._device.follow, action)

    def _publish(self, observation: Observation) -> None:
        reward = called(self._robot.reward)  # events during a pause are ignored
        if self._done is None:
            return
        (action, intervened, held), self._done = self._done, None
        self._outcome = StepOutcome(
            observation,
            action,
            intervened,
            held,
            self._events,
            reward,
            solved(self._robot),
            bool(called(self._robot.ended)),
        )
        self._waits_since = clock.now()
        # The time of an observation without a stamp is the time of this call.
        self._seen_s = self._waits_since if observation.stamp_s is None else observation.stamp_s
        self._events = frozenset()
        self._changed.notify_all()

    def _awaited(self) -> tuple[Vector, float] | None:
        """Return the program's action (A,) and its observation's time, or None if none comes before the step ends."""
        assert self._loop is not None
        until = self._loop.step_ends_s - (1.0 - _SHARE) * self._loop.period_s
        left_s = min(max(until - clock.now(), 0.0), threading.TIMEOUT_MAX)
        if not clock.wait_for(
            self._changed, lambda: self._decided is not None or self._leaving, left_s
        ):
            waited = clock.now() - self._waits_since
            self._asleep = waited > self._loop.safety.hold_s
            return None
        decided, self._decided = self._decided, None
        return decided

    def _is_old(self, seen_s: float) -> bool:
        assert self._loop is not None
        return clock.now() - seen_s > self._loop.safety.oldest_s(self._loop.period_s, self._robot)


class ControlThread:
    """Thread that makes all calls of a robot, because drivers may be bound to one thread."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="robot", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Value]) -> Future[Value]:
        """Call a function in the thread, after all functions of earlier calls."""
        answer: Future[Value] = Future()

        def work() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)

        self._work.put(work)
        return answer

    def end(self, patience_s: float) -> None:
        """End the thread once its work is done, and wait at most ``patience_s`` seconds for it."""
        self._work.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (work := clock.get(self._work)) is not None:
            work()
