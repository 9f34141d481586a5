"""``imitate record``, ``run``, ``serve``: from the device to the policy that acts through the wire."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from imitate import RolloutPolicy, algo_factory, load_config
from imitate.cli import serve
from imitate.cli.main import app
from imitate.cli.policies import PolicySource, refuse_device
from imitate.cli.robots import safety_of
from imitate.data import DatasetWriter
from imitate.deploy.loop import Safety
from imitate.deploy.robot import Observation
from imitate.deploy.simulated import SimulatedRobot
from imitate.errors import UserError
from imitate.evaluation.evaluate import evaluate
from imitate.evaluation.policy_source import CheckpointFile
from imitate.policy import loading
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint

ROOT = Path(__file__).parents[2]
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


def refused(constant):
    raise ValueError(f"{constant} is no JSON")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A policy with random weights for the pendulum."""
    torch.manual_seed(0)
    config = load_config(ROOT / "configs/bc/bc.json").with_overrides(
        {
            "experiment.epoch_every_n_steps": 10,
            "observation.modalities.obs.low_dim": ["flat"],
        }
    )
    algo = algo_factory("bc", config, {"flat": (3,)}, 1, "cpu")
    assert RolloutPolicy(algo).obs_keys == ("flat",)
    path = tmp_path_factory.mktemp("policy") / "policy.pth"
    shapes = {"action_low": [-2.0], "action_high": [2.0]}
    save_checkpoint(
        checkpoint_dict(algo, env_metadata=PENDULUM, shape_metadata=shapes, train_state={}), path
    )
    return path


@pytest.fixture
def served(checkpoint):
    yield from serving(checkpoint)


def serving(checkpoint):
    """``imitate serve`` in a process of its own: process, what it printed as JSON."""
    process = subprocess.Popen(
        [sys.executable, "-m", "imitate", "serve", str(checkpoint), "--port", "0", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, json.loads(process.stdout.readline(), parse_constant=refused)
    finally:
        process.kill()
        process.communicate()


def test_run_in_the_checkpoints_own_environment(imitate, checkpoint, tmp_path):
    done = imitate(
        "run", checkpoint, "--robot", "sim", "--rate-hz", 50, "--steps", 20, "--episodes", 2, "--json",
        "--record", "out.hdf5", "--resize", cwd=tmp_path,
    )  # fmt: skip
    results = json.loads(done.stdout)
    for report in (result["report"] for result in results):  # a busy machine may hold a step or two
        assert report["steps"] + sum(report["held"].values()) == 20 and report["steps"] >= 10
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert len(file["data"]) == 2
        assert "interventions" in file["data/demo_0"]
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "Pendulum-v1"


def test_run_and_serve_under_other_names(imitate, checkpoint, tmp_path):
    renamed = ("angle=flat",)
    with contextlib.ExitStack() as stack:
        found = PolicySource(device="cpu", rename=renamed).open(str(checkpoint), stack)
        assert found.shapes == {"angle": (3,)}
        assert found.actor({"angle": np.zeros(3)}).shape == (1,)
        with pytest.raises(UserError, match="give --rename to imitate serve"):
            PolicySource(rename=renamed).open("ws://127.0.0.1:9", stack)
    _, policy = serve.served(checkpoint, "cpu", 0, renamed, "fp32")
    assert list(policy.schema.observations) == ["angle"]
    done = imitate(
        "run", checkpoint, "--robot", "sim", "--rate-hz", 50, "--rename", *renamed, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "'angle'" in done.stderr


@pytest.mark.skipif(not loading.has_int8(), reason="an x86 processor")
def test_a_policy_acts_in_the_precision_that_is_asked_for(checkpoint, tmp_path, monkeypatch):
    dtypes = []
    monkeypatch.setattr(loading, "pack_linears", lambda nets, dtype: dtypes.append(dtype))
    with contextlib.ExitStack() as stack:
        PolicySource(device="cpu", precision="int8").open(str(checkpoint), stack)
        serve.served(checkpoint, "cpu", 0, (), "int8")
        CheckpointFile(str(checkpoint), precision="int8").for_workers().load("cpu")
        evaluate(checkpoint, episodes=1, horizon=2, device="cpu", precision="int8")
        assert dtypes == [torch.int8] * 4
        with pytest.raises(UserError, match="give --precision to imitate serve"):
            PolicySource(precision="int8").open("ws://127.0.0.1:9", stack)
    with pytest.raises(UserError, match="a bundle computes as it was exported"):
        refuse_device(None, "int8")


def test_run_through_a_server(imitate, served, tmp_path):
    process, told = served
    assert told["schema"]["observations"] == {"flat": {"shape": [3], "kind": "low_dim"}}
    done = imitate(
        "run", told["url"], "--robot", "sim", "--env", "Pendulum-v1", "--rate-hz", 50, "--steps", 20,
        cwd=tmp_path,
    )  # fmt: skip
    # A busy machine may hold a step or two.
    assert int(done.stdout.split(" steps")[0].split()[-1]) >= 15
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert "answers to 1 clients" in process.stderr.read()


def test_a_join_that_the_policy_is_not_trained_for_is_refused(
    imitate, served, checkpoint, tmp_path
):
    for policy in (checkpoint, served[1]["url"]):
        done = imitate(
            "run", policy, "--robot", "sim", "--env", "Pendulum-v1", "--rate-hz", 20, "--async",
            "--join", "prefix", cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "not trained to be given planned actions" in line
        assert "algo.prefix.max_delay" in line


def test_run_in_the_background_through_a_server(imitate, served, tmp_path):
    _, told = served
    assert told["schema"]["history"] == 1
    done = imitate(
        "run", told["url"], "--robot", "sim", "--env", "Pendulum-v1", "--rate-hz", 20, "--steps", 20,
        "--async", "--json", cwd=tmp_path,
    )  # fmt: skip
    (result,) = json.loads(done.stdout)
    assert result["failure"] is None
    assert result["report"]["steps"] >= 8  # a policy of single actions plans one at a time
    assert "the policy plans one action at a time" in done.stderr


def test_a_dry_run_says_that_nothing_was_sent(imitate, checkpoint, tmp_path):
    run = ("run", checkpoint, "--robot", "sim", "--env", "Pendulum-v1", "--rate-hz", 20)
    for option, said in ((("--dry-run",), True), ((), False)):
        done = imitate(*run, "--steps", 3, *option, cwd=tmp_path)
        assert done.stdout.rstrip().endswith("dry run: nothing was sent") is said
        assert done.stderr == ""  # no warning of single actions without --async


def test_no_limit_is_null_in_json(checkpoint, tmp_path):
    ckpt = torch.load(checkpoint, weights_only=True)
    for name in ("action_low", "action_high"):
        ckpt["shape_metadata"].pop(name)
    path = tmp_path / "unlimited.pth"
    save_checkpoint(ckpt, path)
    for _, told in serving(path):
        assert told["schema"]["action_low"] == told["schema"]["action_high"] == [None]


def test_record_by_a_device_then_go_on(imitate, tmp_path):
    words = (
        "record",
        "demos.hdf5",
        "--robot",
        "sim",
        "--env",
        "Pendulum-v1",
        "--rate-hz",
        50,
        "--steps",
        5,
    )
    device = ("--teleop", "tests.deploy.fake_robot:Pushing", "--teleop-arg", "action=[0.5]")
    told = imitate(*words, *device, "--episodes", 2, "--json", "--lang", "push", cwd=tmp_path)
    assert json.loads(told.stdout)["episodes"] == 2
    imitate(*words, *device, "--episodes", 3, "--append", cwd=tmp_path)
    with h5py.File(tmp_path / "demos.hdf5") as file:
        assert len(file["data"]) == 3
        np.testing.assert_allclose(file["data/demo_0/actions"][:], np.full((5, 1), 0.5))
        assert file["data/demo_1"].attrs["language"] == "push"
        assert file["data"].attrs["control_freq"] == 50


def test_the_persons_verdict_counts_and_what_is_discarded_is_not_recorded(
    imitate, checkpoint, tmp_path
):
    words = (
        "run",
        checkpoint,
        "--robot",
        "sim",
        "--rate-hz",
        50,
        "--steps",
        50,
        "--json",
        "--record",
        "out.hdf5",
    )
    device = ("--take-over", "tests.deploy.fake_robot:Judging", "--take-over-arg")
    verdicts = 'verdicts=["failure","discard","success"]'
    done = imitate(*words, *device, verdicts, "--episodes", 3, cwd=tmp_path)
    assert [result["success"] for result in json.loads(done.stdout)] == [False, False, True]
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert [bool(file[f"data/demo_{i}"].attrs["success"]) for i in range(2)] == [False, True]
        assert len(file["data"]) == 2


def test_replay_sends_what_was_recorded(imitate, tmp_path):
    words = ("--robot", "sim", "--env", "Pendulum-v1")
    device = ("--teleop", "tests.deploy.fake_robot:Pushing", "--teleop-arg", "action=[0.5]")
    imitate(
        "record",
        "d.hdf5",
        *words,
        *device,
        "--rate-hz",
        50,
        "--steps",
        6,
        "--episodes",
        1,
        cwd=tmp_path,
    )
    done = imitate("replay", "d.hdf5", "--robot", "sim", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["demo"] == "demo_0"
    assert told["report"]["steps"] == 6


def test_a_scene_at_rest_in_a_simulator_is_no_frozen_camera_of_a_replay(tmp_path, monkeypatch):
    path = tmp_path / "d.hdf5"
    with DatasetWriter(path, PENDULUM, control_freq=50) as writer:
        writer.start_episode()
        for _ in range(15):
            writer.append(obs={"flat": np.zeros(3, np.float32)}, action=np.zeros(1))
        writer.finish_episode()
    observe = SimulatedRobot.observe

    def with_camera(self):
        seen = observe(self)
        return Observation({**seen.values, "camera": np.zeros((4, 4, 3), np.uint8)}, seen.stamp_s)

    monkeypatch.setattr(SimulatedRobot, "observe", with_camera)
    done = CliRunner().invoke(app, ["replay", str(path), "--robot", "sim"])
    assert done.exit_code == 0, done.output


@pytest.mark.alone
def test_collect_with_a_device_is_record_in_a_simulator(imitate, tmp_path):
    device = ("--teleop", "tests.deploy.logged_robot:Steady", "--teleop-arg", "every=4")
    collected = (
        "collect",
        "--env",
        "Pendulum-v1",
        *device,
        "--num",
        2,
        "--out",
        "c.hdf5",
        "--seed",
        3,
    )
    told = json.loads(imitate(*collected, "--json", cwd=tmp_path).stdout)
    recorded = (
        "record",
        "r.hdf5",
        "--robot",
        "sim",
        "--env",
        "Pendulum-v1",
        *device,
        "--episodes",
        2,
    )
    same = json.loads(imitate(*recorded, "--robot-arg", "seed=3", "--json", cwd=tmp_path).stdout)
    assert {**told, "late_steps": 0} == {**same, "file": "c.hdf5", "late_steps": 0}
    with h5py.File(tmp_path / "c.hdf5") as one, h5py.File(tmp_path / "r.hdf5") as two:
        assert sorted(one["data"]) == ["demo_0", "demo_1"]
        assert one["data"].attrs["env_args"] == two["data"].attrs["env_args"]
        for demo in one["data"]:
            np.testing.assert_array_equal(one[f"data/{demo}/actions"], two[f"data/{demo}/actions"])
            first, second = (file[f"data/{demo}/obs/flat"] for file in (one, two))
            assert first.shape == second.shape == (4, 3)
            np.testing.assert_array_equal(first[0], second[0])  # the seed's state
    again = imitate(*collected, cwd=tmp_path, check=False)
    assert again.returncode == 2
    assert "c.hdf5" in again.stderr
    imitate(*collected[:-5], 3, "--out", "c.hdf5", "--append", cwd=tmp_path)
    with h5py.File(tmp_path / "c.hdf5") as file:
        assert len(file["data"]) == 3


def test_limits_of_a_file_may_be_looser_only_where_that_is_said(imitate, checkpoint, tmp_path):
    (tmp_path / "wide.json").write_text('{"high": 9.0}')
    words = ("run", checkpoint, "--robot", "sim", "--rate-hz", 50, "--steps", 3, "--limits")
    imitate(*words, "wide.json", "--any-limits", cwd=tmp_path)
    (tmp_path / "strict.json").write_text('{"high": 0.5, "speed": 2.0}')
    imitate(*words, "strict.json", cwd=tmp_path)


def test_another_rate_than_the_robots_when_it_is_asked_for(imitate, tmp_path):
    robot = (
        "record",
        "a.hdf5",
        "--robot",
        str(ROOT / "examples/own_robot.py:PointArm"),
        "--steps",
        3,
    )
    device = ("--teleop", "tests.deploy.fake_robot:Pushing", "--teleop-arg", "action=[0.1,0.1]")
    imitate(*robot, *device, "--rate-hz", 30, "--any-rate", "--episodes", 1, cwd=tmp_path)


def test_identical_images_are_no_fault_of_a_simulator():
    assert safety_of("sim") == Safety(frozen=0)
    assert safety_of("my_robots:Arm") == Safety()


def test_the_reason_of_a_stop_survives_a_driver_that_cannot_answer_any_more(
    checkpoint, tmp_path, monkeypatch
):
    def send(self, *_):
        raise OSError("the bus is gone")

    monkeypatch.setattr(SimulatedRobot, "success", send)
    monkeypatch.setattr(SimulatedRobot, "send", send)
    done = CliRunner().invoke(app, ["run", str(checkpoint), "--robot", "sim", "--rate-hz", "20"])
    assert done.exit_code == 1 and "error: send() failed (OSError: the bus is gone)" in done.output
