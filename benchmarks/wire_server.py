"""Servers for the benchmark of round trips, each in a separate process: ours, or openpi's own server file.

    python -m benchmarks.wire_server ours SECONDS
    python -m benchmarks.wire_server openpi SECONDS PATH/websocket_policy_server.py

Each prints its port. The policy plans 16 actions of 7 numbers and takes SECONDS for a prediction.
"""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
CHUNK, ACTION = 16, 7
RATE_HZ = 20.0


class Stub:
    """A policy of ours that always plans the same actions.

    Args:
        seconds: duration of a prediction.
        images: side of two square images, or 0 for no images.
    """

    def __init__(self, seconds: float, images: int = 0) -> None:
        from imitate.deploy.schema import ObservedKey, Schema

        cameras = {name: ObservedKey((images, images, 3), "rgb") for name in ("front", "wrist")}
        self.seconds = seconds
        self.schema = Schema(
            observations={"state": ObservedKey((20,)), **(cameras if images else {})},
            action_dim=ACTION,
            action_low=(-1.0,) * ACTION,
            action_high=(1.0,) * ACTION,
            rate_hz=RATE_HZ,
            chunk=CHUNK,
            history=1,
            execute=CHUNK // 2,
        )

    def begin(self, lang: str | None) -> int:
        """Return an empty memory."""
        return 0

    def cut(self, state: int) -> int:
        """Return the memory unchanged."""
        return state

    def predict(self, asks: Sequence[Any]) -> list[Any]:
        """Return the same actions for all clients, in one prediction."""
        from imitate.deploy.server.server import Prediction

        if self.seconds:
            time.sleep(self.seconds)
        return [Prediction(np.zeros(ACTION), np.zeros((CHUNK, ACTION)), 0) for _ in asks]

    def predict_chunks(self, asks: Sequence[Any]) -> list[NDArray[np.float64]]:
        """Return the same chunk for all clients, in one prediction."""
        if self.seconds:
            time.sleep(self.seconds)
        return [np.zeros((CHUNK, ACTION)) for _ in asks]


class OpenpiStub:
    """The same policy for openpi's server."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def infer(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same actions for every observation."""
        if self.seconds:
            time.sleep(self.seconds)
        return {"actions": np.zeros((CHUNK, ACTION))}


class Served:
    """A server in a separate process; a context manager.

    Args:
        words: command-line arguments of this module.
    """

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.wire_server", *map(str, words)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"no server of {' '.join(map(str, words))}: run it by hand to see why"
            )
        self.port = int(line)
        self.url = f"ws://127.0.0.1:{self.port}"

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _ours(seconds: float, images: int, port: int) -> None:
    from imitate.deploy.server.server import PolicyServer

    server = PolicyServer(Stub(seconds, images), port=port)
    print(server.port, flush=True)
    server.serve_forever()


def _openpi(seconds: float, path: str, port: int) -> None:
    spec = importlib.util.spec_from_file_location("websocket_policy_server", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chosen = port or free_port()
    server = module.WebsocketPolicyServer(OpenpiStub(seconds), "127.0.0.1", chosen)
    threading.Thread(target=_tell_when_open, args=(chosen,), daemon=True).start()
    server.serve_forever()


def _tell_when_open(port: int) -> None:
    """Print the port as soon as the server listens on it."""
    while True:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    print(port, flush=True)


def main(kind: str, seconds: str, third: str = "0", port: str = "0") -> None:
    """Serve until the process is killed."""
    if kind == "openpi":
        _openpi(float(seconds), third, int(port))
    else:
        _ours(float(seconds), int(third), int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
