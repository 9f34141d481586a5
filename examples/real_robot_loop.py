"""Run a policy on a robot at a fixed rate, and stop the robot whatever goes wrong.

python examples/real_robot_loop.py runs/lift_bc/<time>/checkpoints/best.pth --rate-hz 20 --steps 200

Replace SimulatedRobot by a class of yours with the four members of Robot. Nothing else here knows the hardware.
"""

import argparse
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np

from imitate import RolloutPolicy, policy_from_checkpoint


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
        """Bring the robot to rest. Must work from any thread, more than once, and after any failure."""


class RobotError(RuntimeError):
    """The loop ended because going on was not safe."""


@dataclass
class Limits:
    """When to give up. Defaults suit an arm at 20 Hz."""

    late_in_a_row: int = 3
    """ticks whose action came after its deadline"""
    watchdog_s: float = 0.5
    """time without a finished tick, after which another thread stops the robot (three periods at the least)"""


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


class Watchdog:
    """Stops the robot from its own thread when it has not been fed for `limit_s`, as when a driver hangs."""

    def __init__(self, stop: Callable[[], None], limit_s: float) -> None:
        self.bitten = False
        self._stop, self.limit_s = stop, limit_s
        self._fed, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def feed(self) -> None:
        """Say that all is well."""
        self._fed.set()

    def _watch(self) -> None:
        while not self._done:
            if not self._fed.wait(self.limit_s) and not self._done:
                self.bitten = True
                self._stop()
                return
            self._fed.clear()

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
) -> Report:
    """Control the robot for some steps; it is at rest when this returns or raises.

    `lang` is what a policy of several tasks is told.

    Raises:
        RobotError: an action was not finite, too many ticks in a row were late, or the watchdog bit.
    """
    limits = limits or Limits()
    report, late_in_a_row = Report(), 0
    try:
        # The first call is slow: libraries allocate and choose their kernels. It must not be the robot's first tick.
        policy.start_episode(lang)
        policy(robot.observe())
        policy.start_episode(lang)
        with Watchdog(robot.stop, max(limits.watchdog_s, 3.0 / rate_hz)) as watchdog:
            deadline = time.perf_counter()
            for _ in range(steps):
                started = time.perf_counter()
                deadline = max(deadline, started) + 1.0 / rate_hz
                action = policy(robot.observe())
                if not np.isfinite(action).all():
                    raise RobotError(f"the policy gave {action}; the robot was stopped")
                if watchdog.bitten:
                    raise RobotError(f"no tick for {watchdog.limit_s} s; the robot was stopped")
                robot.send(np.clip(action, robot.action_low, robot.action_high))
                watchdog.feed()

                now = time.perf_counter()
                report.latencies_ms.append(1e3 * (now - started))
                late_in_a_row = late_in_a_row + 1 if now > deadline else 0
                report.late += now > deadline
                if late_in_a_row >= limits.late_in_a_row:
                    raise RobotError(
                        f"{late_in_a_row} ticks in a row were late ({report}); lower rate_hz or use a smaller policy"
                    )
                # A late tick is not made up for: the next one starts at once and has its whole period.
                time.sleep(max(0.0, deadline - now))
    finally:
        robot.stop()
    return report


class SimulatedRobot:
    """Stands in for a robot: observations of the policy's shapes that drift, and a record of what was sent."""

    def __init__(self, obs_shapes: Mapping[str, tuple[int, ...]], action_dim: int) -> None:
        self.action_low, self.action_high = -np.ones(action_dim), np.ones(action_dim)
        self.sent: list[np.ndarray] = []
        self.at_rest = True
        self._random = np.random.default_rng(0)
        self._obs = {key: np.zeros(shape) for key, shape in obs_shapes.items()}

    def observe(self) -> Mapping[str, np.ndarray]:
        """The state, a little elsewhere than before."""
        for value in self._obs.values():
            value += 0.01 * self._random.standard_normal(value.shape)
        return self._obs

    def send(self, action: np.ndarray) -> None:
        """Move."""
        self.at_rest = False
        self.sent.append(action)

    def stop(self) -> None:
        """Rest."""
        self.at_rest = True


def main(
    checkpoint: str, rate_hz: float = 20.0, steps: int = 200, lang: str | None = None
) -> Report:
    """Load a policy and run it on the stand-in."""
    policy, ckpt = policy_from_checkpoint(ckpt_path=checkpoint)
    robot = SimulatedRobot(policy.algo.obs_shapes, ckpt["shape_metadata"]["ac_dim"])
    report = run_episode(robot, policy, rate_hz, steps, lang=lang)
    print(report)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--rate-hz", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lang", help="what a policy of several tasks is told")
    args = parser.parse_args()
    main(args.checkpoint, args.rate_hz, args.steps, args.lang)
