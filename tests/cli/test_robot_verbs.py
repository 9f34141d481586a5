"""``imitate record``, ``run``, ``serve``: from the device to the policy that acts through the wire."""

import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from imitate.cli.robot import serve
from imitate.cli.robot.policies import PolicyOpener, refuse_device
from imitate.cli.robot.robots import safety_of
from imitate.data import DatasetWriter
from imitate.deploy.robot.loop import Safety
from imitate.deploy.robot.robot import Observation
from imitate.deploy.robot.simulated import SimulatedRobot
from imitate.errors import UserError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.policy import loading
from imitate.policy.checkpoint import save_checkpoint
from imitate.policy.loading import CheckpointFile
from tests.calling import refuse
from tests.deploy import fake_robot
from tests.deploy.fake_robot import FakeRobot
from tests.tiny import tiny_checkpoint

ROOT = Path(__file__).parents[2]
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


SIM = "--robot sim --env Pendulum-v1 --robot-arg in_step=true --rate-hz 50"
"""In step: a busy machine leaves out no action."""
PUSHING = "--teleop tests.deploy.fake_robot:Pushing --teleop-arg"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy with random weights for the pendulum."""
    path = tmp_path_factory.mktemp("policy") / "policy.pth"
    shapes = {"action_low": [-2.0], "action_high": [2.0]}
    return tiny_checkpoint(path, obs={"flat": 3}, env=PENDULUM, shapes=shapes)


@pytest.fixture
def checkpoint(trained, tmp_path):
    """The policy in the working folder."""
    return Path(shutil.copy(trained, tmp_path / "policy.pth"))


@contextlib.contextmanager
def serving(imitate, checkpoint):
    """``imitate serve`` in a process of its own: process, what it printed as JSON."""
    words = [str(imitate), "serve", str(checkpoint), "--port", "0", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, **pipes, text=True)
    try:
        yield process, json.loads(process.stdout.readline(), parse_constant=refuse)
    finally:
        process.kill()
        process.communicate()


def test_run_in_the_checkpoints_own_environment(call, checkpoint):
    run = "run policy.pth --robot sim --robot-arg in_step=true --rate-hz 50 --steps 20 --episodes 2"
    results = call.json(f"{run} --record out.hdf5 --resize")
    assert [result["report"]["steps"] for result in results] == [20, 20]
    with h5py.File("out.hdf5") as file:
        assert len(file["data"]) == 2
        assert "interventions" in file["data/demo_0"]
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "Pendulum-v1"


def test_a_policy_that_plans_takes_the_best_plan_found_in_its_time(call, tmp_path, checkpoint):
    planner = {"type": "mppi", "horizon": 2, "population": 8, "elites": 2, "iterations": 3}
    algo = {"latent_dim": 8, "planner": planner, "policy_plans": 2}
    shapes = {"action_low": [-2.0], "action_high": [2.0]}
    words = {"obs": {"flat": 3}, "algo": algo, "env": PENDULUM, "shapes": shapes}
    tiny_checkpoint(tmp_path / "planner.pth", "tdmpc2", **words)
    done = call(f"run planner.pth {SIM} --steps 5 --plan-budget-ms 0")
    assert "planning: 6 of 6 searches were cut at 0 ms" in done.output
    done = call(f"run planner.pth {SIM} --steps 5 --plan-budget-ms 10000")
    assert "planning: 0 of 6 searches were cut at 10000 ms" in done.output
    assert re.search(
        r"decisions +\d+\.\d ms each here, by planning", call("info planner.pth").output
    )
    refused = call(f"run policy.pth {SIM} --plan-budget-ms 30", code=2).stderr
    assert "policy.pth contains a policy that does not plan" in refused


def test_run_and_serve_under_other_names(checkpoint):
    renamed = ("angle=flat",)
    with contextlib.ExitStack() as stack:
        found = PolicyOpener(device="cpu", rename=renamed).open(str(checkpoint), stack)
        assert found.shapes == {"angle": (3,)}
        assert found.actor({"angle": np.zeros(3)}).shape == (1,)
    _, policy = serve.served(checkpoint, "cpu", 0, renamed, "fp32")
    assert list(policy.schema.observations) == ["angle"]


def test_only_a_server_that_tells_no_names_gets_other_ones(monkeypatch):
    class Remote(contextlib.nullcontext):
        schema, execute = None, 1

        def __enter__(self):
            return lambda ob: ob["observation/state"]

    monkeypatch.setattr("imitate.deploy.server.client.RemotePolicy", lambda url, **rest: Remote())
    source = PolicyOpener(rename=("joints=observation/state",))
    with contextlib.ExitStack() as stack:
        found = source.open("ws://127.0.0.1:9", stack)
        assert found.actor({"joints": 7}) == 7
        Remote.schema = object()
        with pytest.raises(UserError, match="give --rename to imitate serve"):
            source.open("ws://127.0.0.1:9", stack)


@pytest.mark.skipif(not loading.has_int8(), reason="an x86 processor")
def test_a_policy_acts_in_the_precision_that_is_asked_for(checkpoint, monkeypatch):
    dtypes = []
    monkeypatch.setattr(loading, "pack_linears", lambda nets, dtype: dtypes.append(dtype))
    with contextlib.ExitStack() as stack:
        PolicyOpener(device="cpu", precision="int8").open(str(checkpoint), stack)
        serve.served(checkpoint, "cpu", 0, (), "int8")
        CheckpointFile(str(checkpoint), precision="int8").for_workers().load("cpu")
        evaluate(checkpoint, settings=EvalSettings(horizon=2, device="cpu", precision="int8"))
        assert dtypes == [torch.int8] * 4
        with pytest.raises(UserError, match="give --precision to imitate serve"):
            PolicyOpener(precision="int8").open("ws://127.0.0.1:9", stack)
    with pytest.raises(UserError, match="the precision of a bundle was fixed when it was exported"):
        refuse_device(None, "int8")


def test_run_through_a_server(call, checkpoint, preloaded_commands):
    """By steps, in the background, and by a join that the policy is not trained for; its actions have no limits."""
    ckpt = torch.load(checkpoint, weights_only=True)
    for name in ("action_low", "action_high"):
        ckpt["shape_metadata"].pop(name)
    save_checkpoint(ckpt, checkpoint)
    with serving(preloaded_commands / "imitate", checkpoint) as (process, told):
        schema = told["schema"]
        wanted = {"shape": [3], "kind": "low_dim"}
        assert wanted.items() <= schema["observations"]["flat"].items()
        assert schema["history"] == 1 and schema["action_low"] == schema["action_high"] == [None]
        run = f"run {told['url']} {SIM.replace('50', '2')} --timeout-s 60 --steps 4"
        assert "4 steps" in call(run).stdout
        done = call(f"{run} --async --json")
        (result,) = json.loads(done.stdout)
        assert result["failure"] is None
        assert "the policy plans one action at a time" in done.stderr
        refused = call(f"{run} --async --join prefix", code=2).stderr
        assert "not trained for planned actions" in refused
        assert "algo.prefix.max_delay" in refused
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        assert "answers to 3 clients" in process.stderr.read()


def test_a_dry_run_says_that_nothing_was_sent_and_judges_no_success(call, checkpoint):
    for option, said in (("--dry-run", True), ("", False)):
        done = call(f"run policy.pth {SIM} --steps 3 {option}")
        assert done.stdout.rstrip().endswith("dry run: nothing was sent") is said
        assert ("failure" in done.stdout) is not said
        assert done.stderr == ""  # no warning of single actions without --async


def test_record_by_a_device_then_go_on_and_replay(call):
    record = f"record demos.hdf5 {SIM} --steps 5 {PUSHING} action=[0.5]"
    assert call.json(f"{record} --episodes 2 --lang push")["episodes"] == 2
    call(f"{record} --episodes 3 --append")
    with h5py.File("demos.hdf5") as file:
        assert len(file["data"]) == 3
        np.testing.assert_allclose(file["data/demo_0/actions"][:], np.full((5, 1), 0.5))
        assert file["data/demo_1"].attrs["language"] == "push"
        assert file["data"].attrs["control_freq"] == 50
    told = call.json("replay demos.hdf5 --robot sim --robot-arg in_step=true")
    assert (told["demo"], told["report"]["steps"]) == ("demo_0", 5)


def test_the_error_of_a_devices_release_is_its_own(call):
    device = "--teleop tests.deploy.fake_robot:Unplugged --teleop-arg action=[0.5]"
    done = call(f"record demos.hdf5 {SIM} --steps 5 --episodes 1 {device}", code=1)
    assert "error: close() failed (OSError: bus error" in done.stderr
    with h5py.File("demos.hdf5") as file:
        assert len(file["data/demo_0/actions"]) == 5


def test_actions_of_another_number_are_refused_before_the_robot_is_connected(call, monkeypatch):
    with DatasetWriter("three.hdf5", {}, control_freq=50.0) as writer:
        writer.start_episode()
        writer.append(obs={"state": np.zeros(2)}, action=np.zeros(3))
        writer.finish_episode(success=True)
    robot = FakeRobot()
    monkeypatch.setattr(fake_robot, "Made", lambda: robot, raising=False)
    done = call("replay three.hdf5 --robot tests.deploy.fake_robot:Made", code=2)
    assert "the robot takes actions of 2 numbers, but" in done.output and robot.calls == []


def test_a_demonstration_of_a_robot_with_another_order_of_joints_is_not_replayed(call, monkeypatch):
    names = {"actions": {"feature": "actions", "shape": [2], "names": ["yaw", "lift"]}}
    attrs = {"features": json.dumps(names)}
    with DatasetWriter("two.hdf5", {}, control_freq=50.0, attrs=attrs) as writer:
        writer.start_episode()
        for state in ([0.5, -0.3], [0.7, -0.1]):
            writer.append(obs={"state": np.array(state)}, action=np.array(state))
        writer.finish_episode(success=True)
    commands = (
        "replay two.hdf5",
        f"record two.hdf5 --append --episodes 2 --rate-hz 50 {PUSHING} action=[0,0]",
    )
    told = "move the robot to the start of a recorded episode"
    for change, words in (
        (
            {"state": [0.6, -0.2], "names": ("lift", "yaw")},
            "'actions' is (lift, yaw) in the robot, but was (yaw, l",
        ),
        (
            {"state": [-0.2, 0.6]},
            f"in the order 1, 0; check the order of joints, compared with two.hdf5; .*{told}",
        ),
        ({"state": [-0.6, -0.2]}, "state[0] fit the training only with the opposite sign"),
        ({"state": [0.6, -0.2], "pose": np.zeros(2)}, "pose() gives zeros"),
        ({"state": np.degrees([0.6, -0.2])}, "degrees instead of radians"),
    ):
        robot = FakeRobot(pose=change.get("pose"))
        robot.values = {"state": np.array(change["state"]), "camera": np.zeros((4, 4, 3), np.uint8)}
        robot.action_names = change.get("names", ("yaw", "lift"))
        monkeypatch.setattr(fake_robot, "Made", lambda robot=robot: robot, raising=False)
        for command in commands:
            done = call(f"{command} --robot tests.deploy.fake_robot:Made", code=2)
            assert re.search(re.escape(words).replace(r"\.\*", ".*"), done.output), done.output
            assert not len(robot.sent)


def test_the_persons_verdict_counts_and_what_is_discarded_is_not_recorded(call, checkpoint):
    device = "--take-over tests.deploy.fake_robot:Judging --take-over-arg"
    verdicts = '\'verdicts=["failure","discard","success"]\' --episodes 3'
    results = call.json(f"run policy.pth {SIM} --steps 50 --record out.hdf5 {device} {verdicts}")
    assert [result["success"] for result in results] == [False, False, True]
    with h5py.File("out.hdf5") as file:
        assert [bool(file[f"data/demo_{i}"].attrs["success"]) for i in range(2)] == [False, True]
        assert len(file["data"]) == 2


def test_a_scene_at_rest_in_a_simulator_is_no_frozen_camera_of_a_replay(call, monkeypatch):
    with DatasetWriter("d.hdf5", PENDULUM, control_freq=50) as writer:
        writer.start_episode()
        for _ in range(15):
            writer.append(obs={"flat": np.zeros(3, np.float32)}, action=np.zeros(1))
        writer.finish_episode()
    observe = SimulatedRobot.observe

    def with_camera(self):
        seen = observe(self)
        return Observation({**seen.values, "camera": np.zeros((4, 4, 3), np.uint8)}, seen.stamp_s)

    monkeypatch.setattr(SimulatedRobot, "observe", with_camera)
    call("replay d.hdf5 --robot sim --robot-arg in_step=true")


def test_collect_with_a_device_is_record_in_a_simulator(call, virtual_time):
    device = "--teleop tests.deploy.logged_robot:Steady --teleop-arg every=4"
    collected = f"collect --env Pendulum-v1 {device} --seed 3 --out c.hdf5 --num"
    recorded = f"record r.hdf5 --robot sim --env Pendulum-v1 {device} --episodes 2"
    told = call.json(f"{collected} 2")
    same = call.json(f"{recorded} --robot-arg seed=3")
    assert {**told, "late_steps": 0} == {**same, "file": "c.hdf5", "late_steps": 0}
    with h5py.File("c.hdf5") as one, h5py.File("r.hdf5") as two:
        assert sorted(one["data"]) == ["demo_0", "demo_1"]
        assert one["data"].attrs["env_args"] == two["data"].attrs["env_args"]
        for demo in one["data"]:
            np.testing.assert_array_equal(one[f"data/{demo}/actions"], two[f"data/{demo}/actions"])
            first, second = (file[f"data/{demo}/obs/flat"] for file in (one, two))
            assert first.shape == second.shape == (4, 3)
            np.testing.assert_array_equal(first[0], second[0])  # the seed's state
    assert "c.hdf5" in call(f"{collected} 2", code=2).stderr
    call(f"{collected} 3 --append")
    with h5py.File("c.hdf5") as file:
        assert len(file["data"]) == 3


def test_limits_that_are_looser_or_stricter_and_another_rate_where_asked_for(call, checkpoint):
    Path("wide.json").write_text('{"high": 9.0}')
    Path("strict.json").write_text('{"high": 0.5, "speed": 2.0}')
    call(f"run policy.pth {SIM} --steps 3 --limits wide.json --any-limits")
    call(f"run policy.pth {SIM} --steps 3 --limits strict.json")
    arm = shlex.quote(f"{ROOT / 'examples' / 'own_robot.py'}:PointArm")
    record = f"record a.hdf5 --robot {arm} --steps 3 {PUSHING} action=[0.1,0.1]"
    call(f"{record} --rate-hz 30 --any-rate --episodes 1")


def test_what_repeats_itself_is_no_fault_of_a_simulator():
    assert safety_of("sim") == Safety(frozen=0, frozen_pose=0)
    assert safety_of("my_robots:Arm") == Safety()
    words = ["hold_s=2", "frozen=3", "first_action=refuse"]
    wanted = Safety(hold_s=2, frozen=3, first_action="refuse", frozen_pose=0)
    assert safety_of("sim", words) == wanted


@pytest.mark.parametrize(
    "verb", ["run policy.pth", "record a.hdf5 --teleop keyboard", "compare a.pth b.pth"]
)
@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("hold=2", "--safety hold: unknown; did you mean 'hold_s'?"),
        ("late=1.5", "--safety late=1.5: wanted a whole number"),
        ("hold_s=soon", "--safety hold_s=soon: wanted a number"),
        ("frozen=true", "--safety frozen=True: wanted a whole number"),
        ("hold_s=NaN", "hold_s is nan; wanted a finite number above 0"),
        ("max_age_s", "'max_age_s': expected key=value"),
    ],
)
def test_a_setting_of_safety_that_makes_no_sense_is_refused_before_anything_is_opened(
    call, verb, word, told
):
    assert told in call(f"{verb} --robot sim --safety {word}", code=2).output


def test_all_mistakes_of_a_run_are_told_together(call, checkpoint):
    line = "run none.pth --robot so101_follower --take-over mouse --dry-run --record a.hdf5"
    record, robot, device, policy = call(line, code=2).stderr.splitlines()
    assert record.startswith("error: --record writes the actions that are sent, but --dry-run")
    assert robot.endswith("did you mean 'lerobot:so101_follower'?")
    assert "there is no teleoperator 'mouse'" in device
    assert policy == "error: none.pth: there is no such checkpoint"


def test_the_reason_of_a_stop_survives_a_driver_that_cannot_answer_any_more(
    call, checkpoint, monkeypatch
):
    def send(self, *_):
        raise OSError("the bus is gone")

    monkeypatch.setattr(SimulatedRobot, "success", send)
    monkeypatch.setattr(SimulatedRobot, "send", send)
    told = call("run policy.pth --robot sim --rate-hz 20", code=1).output
    assert "error: send() failed (OSError: the bus is gone; " in told


def test_an_episode_that_did_not_begin_is_no_success(call, checkpoint, monkeypatch):
    solved, right = [], SimulatedRobot.reset

    def reset(self):
        if solved:
            raise OSError("homing failed")
        return right(self)

    monkeypatch.setattr(SimulatedRobot, "reset", reset)
    monkeypatch.setattr(SimulatedRobot, "success", lambda self: solved.append(1) or True)
    told = call(f"run policy.pth {SIM} --episodes 2 --steps 3 --json", code=1)
    first, second = json.loads(told.stdout)
    assert first["success"] and second["success"] is None
    words = r"reset\(\) failed \(OSError: homing failed; \S+, line \d+\); the robot was stopped"
    assert re.fullmatch(words, second["failure"])


@pytest.mark.parametrize("error", [SystemExit(0), OSError("no arm")])
@pytest.mark.parametrize(("fault", "code"), [("connect", 2), ("success", 1), ("close", 1)])
def test_a_driver_that_raises_or_exits_between_the_steps_is_told_in_one_line(
    call, checkpoint, monkeypatch, fault, code, error
):
    def fail(self):
        raise error

    monkeypatch.setattr(SimulatedRobot, fault, fail)
    told = call(f"run policy.pth {SIM} --steps 3", code=code).output
    assert type(error).__name__ in told and told.count("error: ") == 1


def test_what_was_recorded_until_a_policy_refuses_in_mid_episode_is_kept(
    call, checkpoint, monkeypatch
):
    act, calls = loading.RolloutPolicy.__call__, []

    def refuses(policy, *args, **named):
        calls.append(0)
        if len(calls) > 4:
            raise UserError("out of memory")
        return act(policy, *args, **named)

    monkeypatch.setattr(loading.RolloutPolicy, "__call__", refuses)
    assert "out of memory" in call(f"run policy.pth {SIM} --steps 9 --record a.hdf5", code=2).output
    with h5py.File("a.hdf5") as file:
        assert file["data/demo_0"].attrs["num_samples"] == 3


def test_units_of_another_kind_are_refused_before_the_robot_moves(call, checkpoint):
    """A policy whose checkpoint says that the pendulum's numbers were a thousandth of what they are."""
    content = torch.load("policy.pth", weights_only=True)
    tiny = {"mean": [1e-3] * 3, "std": [1e-4] * 3, "min": [0.0] * 3, "max": [2e-3] * 3}
    content["provenance"] = {**(content.get("provenance") or {}), "observations": {"flat": tiny}}
    save_checkpoint(content, "policy.pth")
    told = call(f"run policy.pth {SIM} --steps 3", code=2).output
    for words in ("standard deviations from the training's mean", "the robot was not moved"):
        assert words in told
    told = call(f"compare policy.pth policy.pth {SIM} --steps 3 --max-pairs 1", code=2).output
    assert "the robot was not moved" in told
    told = call(f"run policy.pth {SIM} --steps 3 --unlike-training").output
    assert "warning: flat[" in told and "episode 0:" in told


@pytest.mark.parametrize(
    ("module", "words"), [("torch", "pip install torch"), ("PIL", "pip install pillow")]
)
def test_a_package_that_the_computer_of_a_robot_lacks_is_named(call, monkeypatch, module, words):
    def lacks(*args):
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(PolicyOpener, "open", lacks)
    assert words in call("run policy.pth --robot sim", code=2).output
