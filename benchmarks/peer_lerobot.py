"""LeRobot's asynchronous inference for `benchmarks.wire`: runs in an interpreter that has `lerobot[async]`.

Its policy server runs in a process of its own with a policy that always plans the same actions; the client sends
observations and requests actions as LeRobot's robot client does: pickle over gRPC, in pieces of 2 MB.
`inference_latency` is 0, because the server would otherwise sleep until 1/30 s are over. The program reads
{"case", "n"} as JSON lines and answers with milliseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import socket
import sys
import time
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import torch
from lerobot.async_inference.configs import PolicyServerConfig
from lerobot.async_inference.helpers import TimedObservation
from lerobot.async_inference.policy_server import PolicyServer
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.transport import services_pb2, services_pb2_grpc
from lerobot.transport.utils import send_bytes_in_chunks

SIDE, STATE, CHUNK, ACTION = 224, 20, 16, 7
NAMES = [f"joint_{number}.pos" for number in range(STATE)]
CAMERAS = ("front", "wrist")


def features(images: bool) -> dict[str, Any]:
    """Return the robot's features in the form of LeRobot's client."""
    found: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": (STATE,), "names": NAMES}
    }
    if images:
        for name in CAMERAS:
            found[f"observation.images.{name}"] = {
                "dtype": "image",
                "shape": (SIDE, SIDE, 3),
                "names": ["height", "width", "channels"],
            }
    return found


def serve(port: int, images: bool) -> None:
    """Run LeRobot's server with a policy that needs no time."""
    torch.set_num_threads(1)
    server = PolicyServer(PolicyServerConfig(host="127.0.0.1", port=port, inference_latency=0.0))
    pictures = {
        f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE))
        for name in CAMERAS
    }
    server.policy = SimpleNamespace(
        config=SimpleNamespace(image_features=pictures if images else {}),
        predict_action_chunk=lambda observation: torch.zeros(1, CHUNK, ACTION),
    )
    server.preprocessor = server.postprocessor = lambda value: value
    server.lerobot_features, server.actions_per_chunk = features(images), CHUNK
    runner = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(server, runner)
    runner.add_insecure_port(f"127.0.0.1:{port}")
    runner.start()
    runner.wait_for_termination()


class Client:
    """Round trips of one case."""

    def __init__(self, images: bool) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(port, images), daemon=True
        )
        self.process.start()
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        grpc.channel_ready_future(channel).result(timeout=120)
        self.stub, self.images, self.step = services_pb2_grpc.AsyncInferenceStub(channel), images, 0

    def trip(self) -> float:
        """Return the milliseconds from an observation to its actions."""
        self.step += 1
        raw: dict[str, Any] = {name: float(self.step) for name in NAMES}
        if self.images:
            raw |= {name: np.full((SIDE, SIDE, 3), self.step % 251, np.uint8) for name in CAMERAS}
        raw["task"] = ""
        began = time.perf_counter()
        observation = TimedObservation(
            timestamp=time.time(), observation=raw, timestep=self.step, must_go=True
        )
        pieces = send_bytes_in_chunks(
            pickle.dumps(observation), services_pb2.Observation, silent=True
        )
        self.stub.SendObservations(pieces)
        actions = pickle.loads(self.stub.GetActions(services_pb2.Empty()).data)  # noqa: S301
        took = 1e3 * (time.perf_counter() - began)
        if len(actions) != CHUNK:
            raise RuntimeError(f"{len(actions)} actions; wanted {CHUNK}")
        return took


def main() -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    clients = {"floats": Client(False), "images": Client(True)}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        client = clients[request["case"]]
        print(json.dumps([client.trip() for _ in range(request["n"])]), flush=True)
    for client in clients.values():
        client.process.kill()


if __name__ == "__main__":
    main()
