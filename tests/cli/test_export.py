"""``imitate export``, and bundles in ``run``, ``serve`` and ``info``."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from imitate.cli.robot.policies import JOINS
from imitate.deploy import BundlePolicy
from imitate.deploy.bundle.policy import ServedBundle
from imitate.deploy.server.client import RemotePolicy
from imitate.deploy.server.server import PolicyServer
from imitate.policy.asynchronous import GUIDANCE, Join
from tests.tiny import tiny_checkpoint

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
ROBOT = """
import time
import numpy as np
from imitate.deploy import ActionLimits, Observation, Robot

class Still(Robot):
    observation_shapes = {"a": (4,)}
    limits = ActionLimits(low=[-2] * 3, high=[2] * 3)

    def connect(self): self.sent = []
    def observe(self): return Observation({"a": np.full(4, 0.1)}, time.monotonic())
    def send(self, action): self.sent.append(action)
    def stop(self): pass
    def pose(self, observation): return np.zeros(3)
"""


@pytest.fixture(scope="module")
def folder(imitate, tmp_path_factory):
    """A checkpoint, its bundle and a robot."""
    folder = tmp_path_factory.mktemp("export")
    meta = {"env_name": "Mine", "type": 4, "env_kwargs": {"control_freq": 20}}
    chunk = {"actor_layer_dims": [8], "chunk": {"enabled": True, "size": 4, "execute": 2}}
    words = {"obs": {"a": 4}, "action": 3, "algo": chunk, "train": {"seq_length": 4}}
    tiny_checkpoint(folder / "best.pth", env=meta, **words)
    (folder / "robots.py").write_text(ROBOT)
    done = imitate("export", "best.pth", "--to", "onnx", "-o", "b.zip", cwd=folder)
    assert done.stdout.startswith("b.zip: bc, ")
    return folder


def test_a_bundle_is_not_replaced_unasked(imitate, folder):
    before = (folder / "b.zip").read_bytes()
    line = ("export", "best.pth", "-o", "b.zip")
    assert imitate(*line, cwd=folder, check=False).returncode == 2
    report = json.loads(imitate(*line, "--overwrite", "--json", cwd=folder).stdout)
    assert report["bundle"] == "b.zip"
    assert report["largest_difference"] < 1e-5
    assert (folder / "b.zip").read_bytes() == before  # the same policy gives the same bytes


@pytest.mark.parametrize("words", [(), ("--async",)])
def test_a_robot_runs_a_bundle(imitate, folder, words):
    run = ("run", "b.zip", "--robot", "robots.py:Still", "--json", "--steps", 6)
    done = imitate(*run, "--rate-hz", 4, "--any-rate", *words, cwd=folder)  # for a busy machine
    (result,) = json.loads(done.stdout)
    assert result["failure"] is None
    assert result["report"]["steps"] >= 4


def test_joins_are_those_that_there_are():
    assert (*get_args(Join), *GUIDANCE) == JOINS


def test_info_shows_a_bundle(imitate, folder):
    shown = imitate("info", "b.zip", cwd=folder).stdout
    for words in ("a bundle without torch", "bc", "20 Hz", "chunks of 4, a new one every 2 steps"):
        assert words in shown
    report = json.loads(imitate("info", "b.zip", "--json", cwd=folder).stdout)
    assert report["kind"] == "bundle"
    assert report["schema"]["action_dim"] == 3


def test_a_served_bundle_acts_as_a_local_one(folder):
    local = BundlePolicy(folder / "b.zip")
    with (
        PolicyServer(ServedBundle(BundlePolicy(folder / "b.zip")), port=0) as server,
        RemotePolicy(server.url, timeout_s=600) as first,
        RemotePolicy(server.url, timeout_s=600) as second,
    ):
        second.start_episode()
        first.start_episode()
        for step in range(7):
            ob = {"a": np.full(4, 0.1 * step)}
            np.testing.assert_array_equal(first(ob), local(ob))
            np.testing.assert_array_equal(first.planned_actions(), local.planned_actions())
            if step == 3:
                second({"a": np.ones(4)})
                first.cut_plan()
                local.cut_plan()
        history = [{"a": np.full(4, 0.5)}]
        np.testing.assert_array_equal(first.predict_chunk(history), local.predict_chunk(history))


def test_the_command_serves_a_bundle(folder):
    serve = subprocess.Popen(
        [sys.executable, "-m", "imitate", "serve", "b.zip", "--port", "0", "--json"],
        cwd=folder,
        env=ENV,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = json.loads(serve.stdout.readline())["url"]
        with RemotePolicy(url, timeout_s=600) as policy:
            policy.start_episode()
            assert policy({"a": np.zeros(4)}).shape == (3,)
    finally:
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(600) == 0
