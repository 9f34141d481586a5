"""Faults of robots, servers and networks: time until the robot holds and stops, and the actions sent afterwards.

    python -m benchmarks.faults
    python -m benchmarks.faults --only "server killed" "frozen camera" --json out.json
    python -m benchmarks.faults --openpi-server websocket_policy_server.py        also openpi's client

A control loop at 20 Hz with the settings of `imitate run` moves a robot that records each call; servers run in
separate processes, and a proxy disturbs connections. The fault occurs after 20 actions. For openpi's client the
table has the time until its call returns or raises, at most 60 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fault_proxy import Proxy
from benchmarks.wire_robot import StandingRobot
from benchmarks.wire_server import ACTION, RATE_HZ, ROOT, Served
from imitate.deploy.robot.loop import ControlLoop
from imitate.deploy.server.client import RemotePolicy
from imitate.errors import RobotError
from imitate.policy.asynchronous import AsynchronousPolicy
from imitate.system.channel.frames import header_of

BEFORE = 20
STEPS = 120
SHAPES = {"state": (20,), "front": (64, 64, 3)}
GARBAGE = header_of(2, 5, None) + b"\xc1abcd"
OVERSIZED = header_of(2, 2**40, None) + b"abc"
PATIENCE_S = 60.0
WENT_ON = "goes on"


@dataclass(frozen=True)
class Outcome:
    """A fault and its consequences.

    Attributes:
        fault: name of the fault.
        hold_s: seconds from the fault to the first control step that held, or None if none did.
        stop_s: seconds from the fault to the first stop, or None if there was none.
        sent: number of actions between fault and stop.
        sent_after: number of actions after the first stop.
        message: message of the loop, or a description of the outcome.
    """

    fault: str
    hold_s: float | None
    stop_s: float | None
    sent: int
    sent_after: int
    message: str

    @property
    def row(self) -> list[str]:
        """Return the cells of the table's row; a robot that continues stops only at the end of its episode."""
        if self.message == WENT_ON:
            return [self.fault, _seconds(self.hold_s), "", "", "", WENT_ON]
        numbers = [str(self.sent), str(self.sent_after)]
        return [self.fault, _seconds(self.hold_s), _seconds(self.stop_s), *numbers, self.message]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


class Scene:
    """A robot, a fault, and the time at which it occurs.

    Args:
        fault: name of the fault.
        break_it: function that causes the fault.
    """

    def __init__(self, fault: str, break_it: Callable[[], object]) -> None:
        self.fault, self._break, self.at = fault, break_it, 0.0
        self.robot = StandingRobot(SHAPES, ACTION)

    def on_step(self, step: object) -> None:
        """Cause the fault after some actions."""
        if not self.at and len(self.robot.times("send")) == BEFORE:
            self.at = time.monotonic()
            self._break()

    def outcome(self, message: str) -> Outcome:
        """Return the outcome of the fault."""
        at = self.at
        holds, stops = (
            [when for when in self.robot.times(name) if when >= at] for name in ("hold", "stop")
        )
        end = stops[0] if stops else np.inf
        sent = [when for when in self.robot.times("send") if when >= at]
        return Outcome(
            self.fault,
            holds[0] - at if holds and holds[0] < end else None,
            end - at if stops else None,
            sum(when < end for when in sent),
            sum(when >= end for when in sent),
            message,
        )

    def run(self, policy: Any, **rest: Any) -> Outcome:
        """Control the robot until the loop ends with an error, or all steps are over."""
        try:
            ControlLoop(self.robot, policy, RATE_HZ, on_step=self.on_step, **rest).run(STEPS)
            message = WENT_ON
        except (RobotError, OSError) as error:
            message = str(error).split(" (")[0].split(";")[0]
        return self.outcome(message)


class Local:
    """A policy without a server.

    Args:
        faults: events by name of the fault; a set event causes it.
    """

    control_freq = RATE_HZ
    obs_keys = ("state",)

    def __init__(self) -> None:
        self.nan = False

    def start_episode(self, lang: str | None = None) -> None:
        """Do nothing, since the policy has no memory."""

    def __call__(self, ob: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return an action of zeros, or an action that is not finite if this is the fault."""
        return np.full(ACTION, np.nan if self.nan else 0.0)


# ---- servers and networks ------------------------------------------------------------------------


def _behind(background: bool, break_it: Callable[[Served, Proxy], object], fault: str) -> Outcome:
    """Run a fault of a server behind a proxy; the policy calls it in each control step or in the background."""
    with ExitStack() as stack:
        server = stack.enter_context(Served("ours", 0))
        proxy = stack.enter_context(Proxy(server.port))
        stack.callback(server.process.send_signal, signal.SIGCONT)
        url = server.url if fault.startswith(DIRECT) else proxy.url
        remote = stack.enter_context(RemotePolicy(url, timeout_s=1.0 if background else 0.3))
        policy: Any = remote
        if background:
            policy = stack.enter_context(
                AsynchronousPolicy(remote, RATE_HZ, execute=remote.execute)
            )
        return Scene(fault, lambda: break_it(server, proxy)).run(policy)


DIRECT = ("server killed", "server stopped")
"""Faults of servers that are reached without a proxy, because it would end connections in another way."""
NETWORK: dict[str, Callable[[Served, Proxy], object]] = {
    "server killed": lambda server, proxy: server.process.kill(),
    "server stopped (SIGSTOP)": lambda server, proxy: server.process.send_signal(signal.SIGSTOP),
    "nothing arrives at the server": lambda server, proxy: proxy.stalled.add("up"),
    "nothing comes back": lambda server, proxy: proxy.stalled.add("down"),
    "a reply of garbage": lambda server, proxy: setattr(proxy, "instead", GARBAGE),
    "a reply of 1 TiB, by its header": lambda server, proxy: setattr(proxy, "instead", OVERSIZED),
    "replies 0.6 s late": lambda server, proxy: setattr(proxy, "delay_s", 0.6),
}


def _two_clients(fault: str) -> Outcome:
    """Measure the robot's steps while a second client sends large messages and does not read replies."""
    with Served("ours", 0) as server, RemotePolicy(server.url, timeout_s=0.3) as remote:
        from imitate.system.channel.messages import encode

        other = RemotePolicy(server.url, timeout_s=5.0)
        channel = other._connection
        assert channel is not None

        def flood() -> None:
            ping = encode({"imitate": {"kind": "ping", "id": 1}, "x": bytes(1_000_000)})
            with contextlib.suppress(OSError):
                for _ in range(200):
                    channel.send(ping, 1.0)

        scene = Scene(fault, lambda: threading.Thread(target=flood, daemon=True).start())
        outcome = scene.run(remote)
        channel.abort()
        return outcome


# ---- robots --------------------------------------------------------------------------------------


def _frozen(fault: str) -> Outcome:
    scene = Scene(fault, lambda: setattr(scene.robot, "frozen", True))
    return scene.run(Local())


def _nan_seen(fault: str) -> Outcome:
    scene = Scene(fault, lambda: setattr(scene.robot, "nan", True))
    return scene.run(_Checking())


class _Checking(Local):
    """A policy that refuses observations with NaN, as all policies of the package do."""

    def __call__(self, ob: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        from imitate.errors import NotFiniteError

        if not np.isfinite(ob["state"]).all():
            raise NotFiniteError("'state' is not finite")
        return super().__call__(ob)


def _nan_wanted(fault: str) -> Outcome:
    policy = Local()
    return Scene(fault, lambda: setattr(policy, "nan", True)).run(policy)


def _blocking_send(fault: str) -> Outcome:
    scene = Scene(fault, lambda: scene.robot.faults.update(send=lambda: time.sleep(1.0)))
    return scene.run(Local())


def _raising_stop(fault: str) -> Outcome:
    """Run a fault in which the camera freezes and the first two calls of stop() raise errors."""
    tries: list[float] = []

    def stop() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError("the driver does not answer")

    def break_it() -> None:
        scene.robot.frozen = True
        scene.robot.faults["stop"] = stop

    scene = Scene(fault, break_it)
    outcome = scene.run(Local())
    return Outcome(
        **{**asdict(outcome), "message": f"{outcome.message} (stopped at try {len(tries)})"}
    )


CHILD = """
import json, resource, signal, sys, time
from benchmarks.faults import Local, RATE_HZ, SHAPES, ACTION, STEPS
from benchmarks.wire_robot import StandingRobot
from imitate.deploy.robot.loop import ControlLoop
from imitate.deploy.robot.recording import Recorder

robot, message = StandingRobot(SHAPES, ACTION), "went on"
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
robot.faults["send"] = lambda: len(robot.times("send")) == 20 and print("ready", flush=True)
try:
    if sys.argv[1] == "disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Recorder(sys.argv[2], RATE_HZ) as recorder:
            def on_step(step):
                if len(robot.times("send")) == 20:
                    robot.calls.append((time.monotonic(), "fault"))
                    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
                recorder.on_step(step)
            ControlLoop(robot, Local(), RATE_HZ, on_step=on_step).run(40)
            recorder.keep(True)
    else:
        ControlLoop(robot, Local(), RATE_HZ).run(STEPS)
except BaseException as error:
    message = f"{type(error).__name__}: {error}"
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(json.dumps({"calls": robot.calls, "message": message}), flush=True)
"""


def _child(fault: str, *words: str, interrupt_after_s: float | None = None) -> Outcome:
    """Run a robot in a separate process, which is interrupted or whose disk becomes full."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    at = 0.0
    if interrupt_after_s is not None:
        time.sleep(interrupt_after_s)
        at = time.monotonic()
        process.send_signal(signal.SIGINT)
    found = json.loads(process.communicate(timeout=60)[0])
    scene = Scene(fault, lambda: None)
    scene.robot.calls = [(when, name) for when, name in found["calls"]]
    scene.at = at or scene.robot.times("fault")[0]
    return scene.outcome(" ".join(found["message"].split())[:80])


def _disk(fault: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return _child(fault, "disk", str(Path(folder) / "out.hdf5"))


def _ctrl_c(fault: str, times: int = 10) -> Outcome:
    """Return the slowest of some interruptions at random moments."""
    rng = np.random.default_rng(0)
    outcomes = [
        _child(fault, "run", interrupt_after_s=float(wait)) for wait in rng.uniform(0, 0.2, times)
    ]
    return Outcome(
        fault,
        None,
        max(one.stop_s or 0.0 for one in outcomes),
        max(one.sent for one in outcomes),
        sum(one.sent_after for one in outcomes),
        f"{outcomes[0].message} {times} times at random; the slowest",
    )


ROBOT: dict[str, Callable[[str], Outcome]] = {
    "another client sends without reading": _two_clients,
    "frozen camera": _frozen,
    "NaN in observations": _nan_seen,
    "NaN in actions": _nan_wanted,
    "send() blocks for 1 s": _blocking_send,
    "stop() raises twice": _raising_stop,
    "disk full while recording": _disk,
    "Ctrl-C": _ctrl_c,
}


# ---- openpi's client -----------------------------------------------------------------------------


def openpi(path: Path) -> dict[str, str]:
    """Return the time until a call of openpi's client ends, by fault."""
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    found = {}
    seen = {"state": np.zeros(20, np.float32)}
    for fault, break_it in NETWORK.items():
        with Served("openpi", 0, path.resolve()) as server, Proxy(server.port) as proxy:
            port = server.port if fault.startswith(DIRECT) else proxy.port
            client = WebsocketClientPolicy("127.0.0.1", port)
            client.infer(seen)
            break_it(server, proxy)
            ended: list[str] = []

            def call(client: Any = client, ended: list[str] = ended) -> None:
                began = time.monotonic()
                try:
                    client.infer(seen)
                    word = "answered"
                except Exception as error:
                    word = type(error).__name__
                ended.append(f"{time.monotonic() - began:.1f} s: {word}")

            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            thread.join(PATIENCE_S)
            found[fault] = ended[0] if ended else f"hangs (> {PATIENCE_S:.0f} s)"
            server.process.send_signal(signal.SIGCONT)
    return found


# ---- table ---------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[], Outcome]]:
    """Return all faults by name."""
    found: dict[str, Callable[[], Outcome]] = {}
    for fault, break_it in NETWORK.items():
        for background in (False, True):
            name = f"{fault}, --async" if background else fault
            found[name] = lambda b=background, f=break_it, n=name: _behind(b, f, n)  # type: ignore[misc]
    for fault, run in ROBOT.items():
        found[fault] = lambda r=run, n=fault: r(n)  # type: ignore[misc]
    return found


def table(outcomes: list[Outcome], peer: Mapping[str, str]) -> str:
    """Return a Markdown table."""
    lines = [
        "| fault | holds after (s) | stops after (s) | sent between | sent after the stop | message | openpi |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join([*one.row, peer.get(one.fault, '')])} |" for one in outcomes]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if an action was sent after a stop."""
    every = cases()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=every, metavar="FAULT", help="names of faults; all by default"
    )
    parser.add_argument(
        "--openpi-server", type=Path, help="path of openpi's websocket_policy_server.py"
    )
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    args = parser.parse_args(arguments)
    outcomes = []
    for name in args.only or every:
        outcomes.append(every[name]())
        print(f"{name}: {outcomes[-1]}", file=sys.stderr)
    peer = {} if args.openpi_server is None else openpi(args.openpi_server)
    print(table(outcomes, peer))
    if args.json is not None:
        args.json.write_text(
            json.dumps({"ours": [asdict(one) for one in outcomes], "openpi": peer}, indent=2)
        )
    return int(any(one.sent_after for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
