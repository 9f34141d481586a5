"""The examples run as they stand, and the robot's loop stops the robot whatever goes wrong."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"


# One thread, as in the rest of the suite.
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


loop = load("real_robot_loop")


@pytest.fixture
def lift_demos(demo_file):
    return demo_file(num_demos=10, length=40, actions_from_obs=True)


# ---- the training loop ---------------------------------------------------------------------------


def test_simple_train_loop_learns(lift_demos, tmp_path):
    model = tmp_path / "model.pth"
    example = load("simple_train_loop")
    first = example.main(str(lift_demos), str(model), num_epochs=1, steps_per_epoch=50)
    last = example.main(str(lift_demos), str(model), num_epochs=4, steps_per_epoch=50)
    assert last < 0.5 * first
    saved = torch.load(model, weights_only=True)["model"]
    assert set(saved) >= {"nets", "optimizers"}


def test_simple_train_loop_as_a_command(lift_demos, tmp_path):
    model = tmp_path / "model.pth"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "simple_train_loop.py"), str(lift_demos), str(model)],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRON,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("epoch 5: loss 0.")
    assert model.is_file()


# ---- the robot's loop ----------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    config = load_config(
        {
            "algo_name": "bc",
            "algo": {"actor_layer_dims": [16]},
            "observation": {"modalities": {"obs": {"low_dim": ["object"]}}},
        }
    )
    torch.manual_seed(0)
    algo = algo_factory("bc", config, {"object": (10,)}, 7, "cpu")
    path = tmp_path / "model.pth"
    shapes = {"action_low": [-1.0] * 7, "action_high": [1.0] * 7}
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata=shapes), path)
    return path


class Policy:
    """Gives actions from a list, the last one again and again."""

    def __init__(self, *actions, seconds=0.0):
        self.actions, self.seconds = list(actions), seconds
        self.calls, self.starts = 0, []

    def start_episode(self, lang=None):
        self.starts.append(self.calls)

    def __call__(self, ob):
        time.sleep(self.seconds)
        action = self.actions[min(self.calls, len(self.actions) - 1)]
        self.calls += 1
        return np.asarray(action, dtype=float)


# A machine that does other things too must not fail the tests that are not about being late.
PATIENT = loop.Limits(late_in_a_row=1000, watchdog_s=60.0)


def robot():
    return loop.SimulatedRobot({"object": (10,)}, 2)


def test_real_robot_loop_as_a_command(checkpoint):
    command = [sys.executable, str(EXAMPLES / "real_robot_loop.py"), str(checkpoint)]
    done = subprocess.run(
        [*command, "--rate-hz", "5", "--steps", "10"],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRON,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10 steps, latency p50 ")


def test_the_loop_keeps_its_rate():
    body = robot()
    started = time.perf_counter()
    report = loop.run_episode(body, Policy([0.0, 0.0]), rate_hz=50, steps=10, limits=PATIENT)
    assert time.perf_counter() - started >= 10 / 50
    assert len(report.latencies_ms) == len(body.sent) == 10
    assert body.at_rest


def test_the_warm_up_call_is_not_part_of_the_episode():
    body, policy = robot(), Policy([0.5, 0.5], [0.25, -0.25])
    loop.run_episode(body, policy, rate_hz=100, steps=2, limits=PATIENT)
    # One call warms up; then the episode starts anew, and its two actions are sent.
    assert policy.starts == [0, 1]
    assert [list(action) for action in body.sent] == [[0.25, -0.25]] * 2


def test_actions_are_clipped_to_the_robots_own_limits():
    body = robot()
    body.action_low, body.action_high = np.array([-0.1, -1.0]), np.array([0.1, 1.0])
    loop.run_episode(body, Policy([5.0, -0.5]), rate_hz=100, steps=1, limits=PATIENT)
    assert list(body.sent[0]) == [0.1, -0.5]


def test_an_action_that_is_not_finite_is_not_sent_and_the_robot_rests():
    body = robot()
    policy = Policy([0.0, 0.0], [0.0, 0.0], [np.nan, 0.0])
    with pytest.raises(loop.RobotError, match="nan"):
        loop.run_episode(body, policy, rate_hz=100, steps=5, limits=PATIENT)
    assert len(body.sent) == 1
    assert body.at_rest


def test_a_driver_that_fails_leaves_the_robot_at_rest():
    class Broken(loop.SimulatedRobot):
        def observe(self):
            if self.sent:
                raise ConnectionError("cable")
            return super().observe()

    body = Broken({"object": (10,)}, 2)
    with pytest.raises(ConnectionError):
        loop.run_episode(body, Policy([0.0, 0.0]), rate_hz=100, steps=5, limits=PATIENT)
    assert body.at_rest


def test_steps_that_are_late_again_and_again_end_the_episode():
    body, limits = robot(), loop.Limits(late_in_a_row=3, watchdog_s=60.0)
    with pytest.raises(loop.RobotError, match="3 control steps in a row were late"):
        loop.run_episode(
            body, Policy([0.0, 0.0], seconds=0.02), rate_hz=200, steps=10, limits=limits
        )
    assert len(body.sent) == 3
    assert body.at_rest


def test_the_watchdog_stops_the_robot_while_the_driver_hangs():
    stopped_while_hanging = threading.Event()

    class Hanging(loop.SimulatedRobot):
        hangs = False

        def observe(self):
            if len(self.sent) == 1:
                self.hangs = True
                stopped_while_hanging.wait(20.0)
                self.hangs = False
            return super().observe()

        def stop(self):
            super().stop()
            if self.hangs:
                stopped_while_hanging.set()

    body = Hanging({"object": (10,)}, 2)
    with pytest.raises(loop.RobotError, match=r"no control step for 0\.2 s, the watchdog fired"):
        loop.run_episode(
            body, Policy([0.0, 0.0]), rate_hz=50, steps=5, limits=loop.Limits(1000, 0.2)
        )
    assert stopped_while_hanging.is_set()
    assert len(body.sent) == 1
    assert body.at_rest


def test_an_action_that_lands_after_the_watchdogs_stop_is_followed_by_another_stop():
    class Blocking(loop.SimulatedRobot):
        moves = False
        stopped = threading.Event()

        def send(self, action):
            self.stopped.wait(20.0)
            self.moves = True  # the driver delivers what it had
            super().send(action)

        def stop(self):
            super().stop()
            self.moves = False
            self.stopped.set()

    body = Blocking({"object": (10,)}, 2)
    with pytest.raises(loop.RobotError, match="watchdog fired"):
        loop.run_episode(
            body, Policy([0.5, 0.5]), rate_hz=50, steps=5, limits=loop.Limits(1000, 0.2)
        )
    assert len(body.sent) == 1
    assert not body.moves


def test_nothing_is_sent_after_the_watchdog_has_fired():
    body = robot()
    watchdog = loop.Watchdog(body, 0.01)
    with watchdog:
        watchdog._thread.join(20.0)
        with pytest.raises(loop.RobotError, match="watchdog fired"):
            watchdog.send(np.zeros(2))
    assert body.sent == []


class Stubborn(loop.SimulatedRobot):
    """Its driver raises in so many attempts to stop."""

    failures = 0

    def stop(self):
        if self.failures > 0:
            self.failures -= 1
            raise OSError("bus error")
        super().stop()


def test_a_stop_that_raises_is_tried_again():
    body = Stubborn({"object": (10,)}, 2)
    body.failures = 2
    loop.run_episode(body, Policy([0.5, 0.5]), rate_hz=100, steps=2, limits=PATIENT)
    assert body.at_rest


def test_a_robot_that_cannot_be_stopped_is_told_of_loudly():
    body = Stubborn({"object": (10,)}, 2)
    body.failures = 1000
    with pytest.raises(loop.RobotError, match="bus error.*EMERGENCY STOP"):
        loop.run_episode(body, Policy([0.5, 0.5]), rate_hz=100, steps=2, limits=PATIENT)


def test_another_rate_than_the_demonstrations_is_refused_unless_wanted():
    body, policy = robot(), Policy([0.0, 0.0])
    policy.control_freq = 10.0
    with pytest.raises(loop.RobotError, match="rate_hz is 20.*demonstrations at 10 Hz"):
        loop.run_episode(body, policy, rate_hz=20, steps=2, limits=PATIENT)
    assert body.sent == []
    loop.run_episode(body, policy, rate_hz=100, steps=2, limits=PATIENT, any_rate=True)
    assert len(body.sent) == 2


@pytest.fixture
def image_checkpoint(tmp_path):
    shape = (3, 32, 32)
    tree = {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [16]},
        "observation": {
            "modalities": {"obs": {"low_dim": ["joint_pos"], "rgb": ["camera_image"]}},
            "encoder": {
                "rgb": {"core_kwargs": {"backbone_class": "ShallowConv", "feature_dimension": 8}}
            },
        },
    }
    torch.manual_seed(0)
    shapes = {"camera_image": shape, "joint_pos": (3,)}
    algo = algo_factory("bc", load_config(tree), shapes, 3, "cpu")
    path = tmp_path / "image.pth"
    shape_metadata = {"action_low": [-1.0] * 3, "action_high": [1.0] * 3, "control_freq": 10.0}
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata=shape_metadata), path)
    return path


def test_the_stand_in_observes_what_an_image_policy_takes(image_checkpoint):
    report = loop.main(str(image_checkpoint), steps=3)
    assert len(report.latencies_ms) == 3
    policy, _ = loop.policy_from_checkpoint(ckpt_path=image_checkpoint)
    seen = loop.stand_in(policy).observe()
    assert seen["camera_image"].shape == (32, 32, 3)
    assert seen["camera_image"].dtype == np.uint8
    assert seen["joint_pos"].shape == (3,)


def test_the_rate_must_be_known(checkpoint):
    with pytest.raises(loop.RobotError, match="--rate-hz"):
        loop.main(str(checkpoint), steps=3)
