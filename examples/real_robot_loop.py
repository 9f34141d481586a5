"""Run a policy on a robot at a fixed rate, and stop the robot whatever goes wrong.

python examples/real_robot_loop.py runs/lift_bc/<time>/checkpoints/best.pth --steps 200

The rate is that of the demonstrations, which the checkpoint knows. Replace SimulatedRobot by a class of yours with the
four members of Robot. Nothing else here knows the hardware.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np

from imitate import RolloutPolicy, policy_from_checkpoint
from imitate.errors import UserError


class Robot(Protocol):
    """What the loop needs of a robot. Units and frames are those of the demonstrations that the policy learned from."""

    action_low: np.ndarray
    """(A,) the lowest action that is safe to send."""
    action_high: np.ndarray
    """(A,) the highest action that is safe to send."""

    def observe(self) -> Mapping[str, np.ndarray]:
        """The newest observation: float arrays (D,), images (H, W, 3) uint8, keys as in the demonstrations."""

    def send(self, action: np.ndarray) -> None:
        """Hand an action (A,) to the controller. Must return at once."""

    def stop(self) -> None:
        """Bring the robot to rest. Must work from any thread, more than once, while `send` blocks."""


class RobotError(RuntimeError):
    """The loop ended because going on was not safe."""


@dataclass
class Limits:
    """When to give up. Defaults suit an arm at 20 Hz."""

    late_in_a_row: int = 3
    """control steps whose action came after its deadline"""
    watchdog_s: float = 0.5
    """time without a finished control step, after which another thread stops the robot (three periods at the least)"""
    stop_attempts: int = 3
    """times that a stop which raises is tried"""


@dataclass
class Report:
    """What happened: latencies from asking for the observation to having sent the action."""

    latencies_ms: list[float] = field(default_factory=list)
    late: int = 0

    def __str__(self) -> str:
        p50, p95, p99 = np.percentile(self.latencies_ms, (50, 95, 99))
        return (
            f"{len(self.latencies_ms)} steps, latency p50 {p50:.2f} ms, p95 {p95:.2f} ms, p99 {p99:.2f} ms, "
            f"max {max(self.latencies_ms):.2f} ms, {self.late} late"
        )


def stop_robot(robot: Robot, attempts: int = 3) -> None:
    """Stop, again where the driver raises.

    Raises:
        RobotError: no attempt worked; somebody has to press the button.
    """
    failure: Exception | None = None
    for attempt in range(attempts):
        time.sleep(0.02 * attempt)
        failure = failure_of(robot.stop)
        if failure is None:
            return
    raise RobotError(
        f"stop() failed {attempts} times ({type(failure).__name__}: {failure}): PRESS THE EMERGENCY STOP"
    ) from failure


def failure_of(action: Callable[[], None]) -> Exception | None:
    """Do something that may raise whatever a driver raises; the exception, or None."""
    try:
        action()
    except Exception as error:  # the robot may still move, so nothing may end the program here
        return error
    return None


class Watchdog:
    """Stops the robot from its own thread when it has not been fed for `limit_s`, as when a driver hangs.

    It never waits for `send`, which may be what hangs. An action that a driver delivers after the stop is followed by
    another stop: see :meth:`send`.
    """

    def __init__(self, robot: Robot, limit_s: float, stop_attempts: int = 3) -> None:
        self.limit_s = limit_s
        self._robot, self._stop_attempts = robot, stop_attempts
        self._fired, self._lock = False, threading.Lock()
        self._fed, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def send(self, action: np.ndarray) -> None:
        """Send an action, unless the robot has been stopped; stop it again where that happened meanwhile.

        Raises:
            RobotError: the watchdog has fired.
        """
        self._check()
        self._robot.send(action)
        self._check()
        self._fed.set()

    def _check(self) -> None:
        with self._lock:
            fired = self._fired
        if fired:
            stop_robot(self._robot, self._stop_attempts)
            raise RobotError(
                f"no control step for {self.limit_s} s, the watchdog fired; the robot was stopped"
            )

    def _watch(self) -> None:
        while not self._done:
            if self._fed.wait(self.limit_s) or self._done:
                self._fed.clear()
                continue
            with self._lock:
                self._fired = True
            try:
                stop_robot(self._robot, self._stop_attempts)
            except RobotError as error:
                print(error, file=sys.stderr, flush=True)  # the other thread may hang for ever
            return

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done = True
        self._fed.set()
        self._thread.join()


def run_episode(
    robot: Robot,
    policy: RolloutPolicy,
    rate_hz: float,
    steps: int,
    limits: Limits | None = None,
    lang: str | None = None,
    any_rate: bool = False,
) -> Report:
    """Control the robot for some steps; it is at rest when this returns or raises.

    `lang` is what a policy of several tasks is told. A rate other than that of the policy's demonstrations makes all
    motions slower or faster; it is refused unless `any_rate`.

    Raises:
        RobotError: the rate is not that of the demonstrations, an action was not finite, too many control steps in a
            row were late, the watchdog fired, or the robot could not be stopped.
    """
    limits = limits or Limits()
    if not any_rate:
        check_rate(policy, rate_hz)
    report, late_in_a_row = Report(), 0
    try:
        # The first call is slow: libraries allocate and choose their kernels. It must not be the robot's first step.
        policy.start_episode(lang)
        policy(robot.observe())
        policy.start_episode(lang)
        limit_s = max(limits.watchdog_s, 3.0 / rate_hz)
        with Watchdog(robot, limit_s, limits.stop_attempts) as watchdog:
            deadline = time.perf_counter()
            for _ in range(steps):
                started = time.perf_counter()
                deadline = max(deadline, started) + 1.0 / rate_hz
                action = policy(robot.observe())
                if not np.isfinite(action).all():
                    raise RobotError(f"the policy gave {action}; the robot was stopped")
                watchdog.send(np.clip(action, robot.action_low, robot.action_high))

                now = time.perf_counter()
                report.latencies_ms.append(1e3 * (now - started))
                late_in_a_row = late_in_a_row + 1 if now > deadline else 0
                report.late += now > deadline
                if late_in_a_row >= limits.late_in_a_row:
                    raise RobotError(
                        f"{late_in_a_row} control steps in a row were late ({report}); use a smaller policy, "
                        "or demonstrations at a lower rate"
                    )
                # A late step is not made up for: the next one starts at once and has its whole period.
                time.sleep(max(0.0, deadline - now))
    finally:
        stop_robot(robot, limits.stop_attempts)
    return report


def check_rate(policy: RolloutPolicy, rate_hz: float) -> None:
    """Compare the rate of the loop with that of the policy's demonstrations, where the checkpoint knows it.

    Raises:
        RobotError: they differ by more than 1 %.
    """
    trained = getattr(policy, "control_freq", None)
    if trained is not None and abs(rate_hz - trained) > 0.01 * trained:
        raise RobotError(
            f"rate_hz is {rate_hz:g}, but the policy learned from demonstrations at {trained:g} Hz: take that rate, "
            "or say any_rate=True (--any-rate)"
        )


class SimulatedRobot:
    """Stands in for a robot: observations that drift, and a record of what was sent.

    `obs_shapes` are those of the demonstrations; images (H, W, 3), named in `images`, are uint8.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, tuple[int, ...]],
        action_dim: int,
        images: Collection[str] = (),
    ) -> None:
        self.action_low, self.action_high = -np.ones(action_dim), np.ones(action_dim)
        self.sent: list[np.ndarray] = []
        self.at_rest = True
        self._random = np.random.default_rng(0)
        self._obs = {key: np.zeros(shape) for key, shape in obs_shapes.items() if key not in images}
        self._images = {key: tuple(obs_shapes[key]) for key in images}

    def observe(self) -> Mapping[str, np.ndarray]:
        """The state, a little elsewhere than before."""
        for value in self._obs.values():
            value += 0.01 * self._random.standard_normal(value.shape)
        draw = self._random.integers
        images = {key: draw(0, 256, shape, np.uint8) for key, shape in self._images.items()}
        return {**self._obs, **images}

    def send(self, action: np.ndarray) -> None:
        """Move."""
        self.at_rest = False
        self.sent.append(action)

    def stop(self) -> None:
        """Rest."""
        self.at_rest = True


def stand_in(policy: RolloutPolicy) -> SimulatedRobot:
    """A simulated robot that observes what the policy takes, in the shapes of its demonstrations."""
    shapes = {key: policy.algo.preprocess.raw_shapes[key] for key in policy.obs_keys}
    kinds = policy.algo.global_config.observation.modality_of("obs")
    images = [key for key in shapes if kinds[key] == "rgb"]
    return SimulatedRobot(shapes, policy.algo.preprocess.actions.sent_dim, images)


def main(
    checkpoint: str,
    rate_hz: float | None = None,
    steps: int = 200,
    lang: str | None = None,
    any_rate: bool = False,
) -> Report:
    """Load a policy and run it on the stand-in; without a rate at that of its demonstrations."""
    policy, _ = policy_from_checkpoint(ckpt_path=checkpoint)
    rate_hz = rate_hz or policy.control_freq
    if rate_hz is None:
        raise RobotError("the checkpoint does not know the rate of its demonstrations: --rate-hz")
    report = run_episode(stand_in(policy), policy, rate_hz, steps, lang=lang, any_rate=any_rate)
    print(report)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--rate-hz", type=float, help="that of the demonstrations if left out")
    parser.add_argument("--any-rate", action="store_true", help="allow another rate than theirs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lang", help="what a policy of several tasks is told")
    args = parser.parse_args()
    try:
        main(args.checkpoint, args.rate_hz, args.steps, args.lang, args.any_rate)
    except (RobotError, UserError) as problem:
        sys.exit(f"error: {problem}")
