"""LeRobot's devices are found by their type, with plug-ins, options as LeRobot takes them, and clear refusals."""

import re
import sys

import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.deploy.robot.lerobot_device import make_device, number_names, ranges_of
from imitate.deploy.robot.lerobot_robot import LeRobotRobot
from imitate.deploy.robot.lerobot_teleoperator import LeRobotTeleoperator
from imitate.deploy.robot.robot import make_robot, make_teleoperator
from imitate.errors import UserError
from tests.calling import call
from tests.deploy import lerobot_stand_ins
from tests.deploy.lerobot_stand_ins import ArmConfig, RobotConfig


@pytest.fixture
def lerobot(monkeypatch):
    lerobot_stand_ins.install(monkeypatch)


@pytest.mark.parametrize("name", ["lerobot", "lerobot:arm_follower"])
def test_a_robot_is_made_by_its_type(lerobot, name):
    more = {} if ":" in name else {"type": "arm_follower"}
    robot = make_robot(name, port="/dev/ttyUSB0", id="left", **more)
    assert isinstance(robot, LeRobotRobot)
    assert robot._device.config.port == "/dev/ttyUSB0"


def test_a_device_is_made_by_its_type(lerobot):
    device = make_teleoperator("lerobot:arm_leader", port="/dev/ttyUSB1")
    assert isinstance(device, LeRobotTeleoperator)


@pytest.mark.parametrize(
    "cameras", [{"front": {"width": 6}}, "{front: {width: 6}}", '{"front": {"width": 6}}']
)
def test_nested_options_are_dicts_or_text(lerobot, cameras):
    device = make_device("robot", "arm_follower", {"port": "p", "cameras": cameras})
    assert device.config.cameras == {"front": {"width": 6}}


@pytest.mark.parametrize(
    ("given", "off"), [({}, False), ({"disable_torque_on_disconnect": True}, True)]
)
def test_motors_keep_their_torque_at_the_end(lerobot, given, off):
    config = make_device("robot", "arm_follower", {"port": "p", **given}).config
    assert config.disable_torque_on_disconnect is off


def test_both_arms_keep_their_torque_and_have_their_ranges(lerobot):
    sides = {
        "left_arm_config": {"port": "a"},
        "right_arm_config": {"port": "b", "disable_torque_on_disconnect": True},
    }
    device = make_device("robot", "two_arms", sides)
    assert not device.config.left_arm_config.disable_torque_on_disconnect
    assert device.config.right_arm_config.disable_torque_on_disconnect
    low, high = ranges_of(device, ("left_gripper.pos", "right_elbow.pos", "left_nose.pos"))
    np.testing.assert_array_equal(low, [0.0, -100.0, -np.inf])
    np.testing.assert_array_equal(high, [100.0, 100.0, np.inf])


def test_plug_ins_register_their_types(monkeypatch):
    class PluginConfig(ArmConfig):
        pass

    def plugins():
        monkeypatch.setitem(RobotConfig.types, "my_arm", PluginConfig)

    lerobot_stand_ins.install(monkeypatch, plugins)
    monkeypatch.setattr(
        sys.modules["lerobot.robots"], "make_robot_from_config", lambda config: config
    )
    assert isinstance(make_device("robot", "my_arm", {"port": "p"}), PluginConfig)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lerobot:arm_folower", {}, "has no robot 'arm_folower'; did you mean 'arm_follower'?"),
        ("lerobot:arm_follower", {"prt": 1}, "no option 'prt'; did you mean 'port'?"),
        ("lerobot:arm_follower", {}, "cannot be made: TypeError: "),
        (
            "lerobot",
            {},
            "the type of LeRobot's robot is missing: give one, such as lerobot:so101_follower",
        ),
    ],
)
def test_refusals_are_one_line(lerobot, name, options, words):
    with pytest.raises(UserError, match=re.escape(words)) as raised:
        make_robot(name, **options)
    assert "\n" not in str(raised.value)


def test_without_lerobot_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    monkeypatch.delitem(sys.modules, "lerobot.robots", raising=False)
    with pytest.raises(UserError, match=r"environment without robosuite.*pip install 'lerobot"):
        make_robot("lerobot:so101_follower", port="p")


def test_a_module_of_ones_own_is_still_a_module(tmp_path):
    file = tmp_path / "lerobot_arm.py"
    file.write_text("from tests.deploy.fake_robot import FakeRobot as Arm\n")
    assert make_robot(f"{file}:Arm").observation_shapes["state"] == (2,)


def test_names_are_in_the_order_of_the_features():
    assert number_names({"b.pos": float, "front": (4, 6, 3), "a.pos": float}) == ("b.pos", "a.pos")
    features = {"dtype": "float32", "shape": (2,), "names": {"y": 1, "x": 0}}
    assert number_names(features) == ("x", "y")
    assert number_names({"shape": float, "size": float}) == ("shape", "size")


def test_the_command_line_records_and_replays(lerobot, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.json").write_text('{"low": [-90, -100, 0], "high": [90, 100, 100]}')
    follower = ("--robot", "lerobot:arm_follower", "--robot-arg", "port=p", "--rate-hz", "10")
    limits = ("--limits", "limits.json")
    leader = ("--teleop", "lerobot:arm_leader", "--teleop-arg", "port=q")
    call("record", "a.hdf5", *follower, *leader, *limits, "-n", "1", "--steps", "4")
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.env_meta["env_name"] == "arm_follower"  # as in LeRobot's own datasets
        np.testing.assert_array_equal(file.read("demo_0", "actions"), [[1.0, 2.0, 3.0]] * 4)
        np.testing.assert_array_equal(file.read("demo_0", "obs/state"), [[10.0, -20.0, 40.0]] * 4)
    assert call.json("replay a.hdf5", *follower, *limits)["report"]["steps"] == 4
    # Without limits nothing is sent to a joint whose calibration is not known.
    monkeypatch.setattr(lerobot_stand_ins.Bus, "model_resolution_table", {})
    refused = call("replay a.hdf5", *follower, code=2)
    assert "'shoulder.pos' has no limits" in refused.output


def test_a_module_that_cannot_be_imported_is_named_where_its_type_is_missing(
    lerobot, monkeypatch, tmp_path
):
    for name, text in (("broken", "raise ImportError('no SDK\\nat all')"), ("whole", "")):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"lerobot.robots.{name}", raising=False)
    monkeypatch.setattr(sys.modules["lerobot.robots"], "__path__", [str(tmp_path)], raising=False)
    with pytest.raises(
        UserError, match="broken' could not be imported: ImportError: no SDK$"
    ) as told:
        make_device("robot", "elephant", {})
    assert "whole" not in str(told.value)
    sys.modules.pop("lerobot.robots.whole")
