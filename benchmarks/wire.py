"""Benchmark of round trips of policy servers, ours and openpi's, and of the delays of a robot that uses a server.

    python -m benchmarks.wire                                          ours alone
    python -m benchmarks.wire --openpi-server websocket_policy_server.py
    python -m benchmarks.wire --only trips --rounds 9 --json out.json

The peer: `openpi-client` 0.1.2 (of the `dev` extra) against openpi's server, whose one file
`src/openpi/serving/websocket_policy_server.py` is in its repository and not on PyPI.
Each server runs in a separate process, and rounds of all of them alternate: compare within a run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import Row, table
from benchmarks.wire_server import ACTION, RATE_HZ, Served
from imitate.deploy.robot.limits import ActionLimits, LimitFilter
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import Observation, Robot
from imitate.deploy.server.client import RemotePolicy
from imitate.policy.asynchronous import AsynchronousPolicy

SIDE = 224
TRIPS = {"floats": 500, "images": 100}
TITLES = {"floats": "20 floats", "images": f"2 images of {SIDE} x {SIDE}, 20 floats"}
WANTED = {"floats": 1.5, "images": 0.7}
"""Largest ratio of our time and openpi's."""
Trips = Callable[[int], list[float]]


def observation(images: bool) -> dict[str, Any]:
    """Return an observation of 20 floats, with or without two images."""
    found: dict[str, Any] = {"state": np.arange(20, dtype=np.float32)}
    if images:
        picture = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        found |= {"front": picture, "wrist": picture.copy()}
    return found


def trips_of(call: Callable[[], object]) -> Trips:
    """Return the milliseconds of each of ``n`` calls."""

    def run(n: int) -> list[float]:
        took = []
        for _ in range(n):
            began = time.perf_counter()
            call()
            took.append(1e3 * (time.perf_counter() - began))
        return took

    return run


@dataclass
class Contestant:
    """A client and server to compare.

    Attributes:
        name: name in the table.
        trips: function from a case and a number of calls to their milliseconds.
        rounds: milliseconds of each round, by case.
    """

    name: str
    trips: dict[str, Trips]
    rounds: dict[str, list[list[float]]] = field(default_factory=dict)

    def p50(self, case: str) -> float:
        """Return the median over rounds of the rounds' medians."""
        return statistics.median(map(statistics.median, self.rounds[case]))

    def ratio(self, case: str, other: Contestant) -> float:
        """Return the median over rounds of the ratio of both medians in the same round."""
        pairs = zip(self.rounds[case], other.rounds[case], strict=True)
        return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


def ours(stack: ExitStack) -> Contestant:
    """Yield our client and server, which both check each observation."""
    trips = {}
    for case in TRIPS:
        server = stack.enter_context(Served("ours", 0, SIDE if case == "images" else 0))
        policy = stack.enter_context(RemotePolicy(server.url, timeout_s=5.0))
        seen = observation(case == "images")
        trips[case] = trips_of(lambda policy=policy, seen=seen: policy(seen))  # type: ignore[misc]
    return Contestant("ours", trips)


def openpi(stack: ExitStack, path: Path) -> Contestant:
    """Yield openpi's client and server; one server answers both cases."""
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    server = stack.enter_context(Served("openpi", 0, path.resolve()))
    client = WebsocketClientPolicy("127.0.0.1", server.port)
    stack.callback(client._ws.close)
    cases = {case: observation(case == "images") for case in TRIPS}
    return Contestant(
        "openpi",
        {c: trips_of(lambda seen=seen: client.infer(seen)) for c, seen in cases.items()},  # type: ignore[misc]
    )


def round_trips(contestants: list[Contestant], rounds: int) -> list[Row]:
    """Measure rounds of all contestants in changing order; the first round is not counted."""
    for number in range(rounds + 1):
        for case, n in TRIPS.items():
            for one in (
                contestants[number % len(contestants) :] + contestants[: number % len(contestants)]
            ):
                took = one.trips[case](n)
                if number:
                    one.rounds.setdefault(case, []).append(took)
    rows = []
    for case, n in TRIPS.items():
        for one in contestants:
            every = np.concatenate(one.rounds[case])
            note = f"p99 {np.percentile(every, 99):.2f}, n = {rounds} x {n}"
            rows.append(Row(f"{TITLES[case]}: {one.name}", one.p50(case), "ms p50", note=note))
        for other in contestants[1:]:
            ratio = contestants[0].ratio(case, other)
            rows.append(
                Row(
                    f"{TITLES[case]}: ours / {other.name}",
                    ratio,
                    "p50 / p50",
                    WANTED[case],
                    at_most=True,
                )
            )
    return rows


def crowd(path: Path | None, clients: int = 8, calls: int = 40, seconds: float = 0.02) -> list[Row]:
    """Measure clients that all call at once, with predictions of 20 ms."""
    seen, rows = observation(False), []
    with ExitStack() as stack:
        server = stack.enter_context(Served("ours", seconds))
        policies = [
            stack.enter_context(RemotePolicy(server.url, timeout_s=5.0)) for _ in range(clients)
        ]

        def call(policy: RemotePolicy) -> list[tuple[float, float]]:
            found = []
            for _ in range(calls):
                policy(seen)
                found.append((policy.timing["total_ms"], policy.timing["queued_ms"]))
            return found

        with ThreadPoolExecutor(clients) as pool:
            every = np.array([one for found in pool.map(call, policies) for one in found])
        total, queued = every[clients:].T
        rows.append(
            Row(
                f"{clients} clients, 20 ms: longest wait for others",
                float(queued.max()) / (1e3 * seconds),
                "predictions",
                1.25,
                at_most=True,
                note=f"call p50 {np.median(total):.1f}, p99 {np.percentile(total, 99):.1f}, max {total.max():.1f} ms",
            )
        )
        if path is not None:
            rows.append(_crowd_of_openpi(stack, path, clients, calls, seconds))
    return rows


def _crowd_of_openpi(stack: ExitStack, path: Path, clients: int, calls: int, seconds: float) -> Row:
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    seen = observation(False)
    server = stack.enter_context(Served("openpi", seconds, path.resolve()))
    peers = [WebsocketClientPolicy("127.0.0.1", server.port) for _ in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda peer: trips_of(lambda: peer.infer(seen))(calls), peers))
    for peer in peers:
        peer._ws.close()
    total = np.array(found)[:, 1:].ravel()
    return Row(
        f"{clients} clients, 20 ms: openpi, longest wait for others",
        float(total.max()) / (1e3 * seconds) - 1.0,
        "predictions",
        note=f"call p50 {np.median(total):.1f}, p99 {np.percentile(total, 99):.1f}, max {total.max():.1f} ms",
    )


def slow_policy(ticks: int, seconds: float = 0.15, blocks: int = 5) -> list[Row]:
    """Measure a control loop at 20 Hz whose server takes 150 ms, with predictions in the background.

    Its blocks alternate with blocks of a loop whose policy takes no time, where only the machine causes
    gaps.
    """
    robot, instant = Standing(), Instant()
    reports: dict[str, list[dict[str, Any]]] = {"slow": [], "instant": []}
    with (
        Served("ours", seconds) as server,
        RemotePolicy(server.url, timeout_s=1.0) as remote,
        AsynchronousPolicy(remote, RATE_HZ, execute=remote.execute) as policy,
    ):
        for _ in range(blocks):
            for name, actor in (("slow", policy), ("instant", instant)):
                loop = ControlLoop(robot, actor, RATE_HZ, safety=Safety(late=0))
                reports[name].append(loop.run(ticks // blocks).to_dict())

    def row(title: str, name: str, target: float | None) -> Row:
        found = reports[name]
        longest = max(one["gap_periods"]["max"] for one in found)
        held = sum(sum(one["held"].values()) for one in found)
        return Row(
            f"{title}: gaps above 1.2 periods",
            sum(one["long_gaps"] for one in found),
            f"of {ticks}",
            target,
            at_most=True,
            note=f"longest {longest:.2f} periods, held {held} in {blocks} episodes",
        )

    own = sum(one["long_gaps"] for one in reports["instant"])
    return [
        row("150 ms policy at 20 Hz, --async", "slow", own),
        row("policy of no time at 20 Hz", "instant", None),
    ]


class Standing(Robot):
    """A robot that accepts every action and does not move."""

    observation_shapes = {"state": (20,)}
    limits = ActionLimits(low=[-1.0] * ACTION, high=[1.0] * ACTION)

    def observe(self) -> Observation:
        """Return zeros."""
        return Observation({"state": np.zeros(20, np.float32)}, time.monotonic())

    def send(self, action: object) -> None:
        """Do nothing."""

    hold = stop = lambda self: None


class Instant:
    """A policy that takes no time."""

    control_freq = RATE_HZ

    def start_episode(self, lang: str | None = None) -> None:
        """Do nothing, since the policy has no memory."""

    def __call__(self, ob: object) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return an action of zeros."""
        return np.zeros(ACTION)


def limit_filter(calls: int = 5000) -> list[Row]:
    """Measure the limits of step, speed and acceleration for seven joints."""
    limits = ActionLimits(
        low=[-2.8] * 7, high=[2.8] * 7, margin=0.05, step=0.2, speed=0.5, acceleration=2.0
    )
    limit = LimitFilter(limits, 50.0)
    wanted = np.random.default_rng(0).uniform(-3, 3, (calls, 7))
    limit.start(np.zeros(7))
    actions = iter(wanted)
    took = 1e3 * np.array(trips_of(lambda: limit(next(actions)))(calls))
    return [
        Row(
            "limits of 7 joints",
            float(np.median(took)),
            "us p50",
            50,
            at_most=True,
            note=f"p99 {np.percentile(took, 99):.0f}",
        )
    ]


def main() -> int:
    """Print the table; return 1 if a target was missed."""
    parts = ("trips", "crowd", "gaps", "limits")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openpi-server", type=Path, help="openpi's websocket_policy_server.py")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that are counted")
    parser.add_argument("--ticks", type=int, default=1000, help="control steps with a slow policy")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    rows: list[Row] = []
    if "trips" in args.only:
        with ExitStack() as stack:
            contestants = [ours(stack)]
            if args.openpi_server is not None:
                contestants.append(openpi(stack, args.openpi_server))
            rows += round_trips(contestants, args.rounds)
    if "crowd" in args.only:
        rows += crowd(args.openpi_server)
    if "gaps" in args.only:
        rows += slow_policy(args.ticks)
    if "limits" in args.only:
        rows += limit_filter()
    print(table("wire", rows))
    if args.json is not None:
        args.json.write_text(json.dumps([row.to_dict() for row in rows], indent=2))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
