"""A robot of LeRobot as a robot of the control loop: names, limits, rest, stop, and what hangs or fails."""

import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.formats.lerobot_layout import obs_name
from imitate.deploy.robot import lerobot_robot
from imitate.deploy.robot.lerobot_robot import LeRobotRobot
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import Observation
from imitate.errors import RobotError, UserError
from imitate.system import clock
from tests.deploy.fake_robot import Constant
from tests.deploy.lerobot_stand_ins import Arm, ArmConfig, Camera
from tests.refusals import refused

BOX = ActionLimits(low=[-90.0, -100.0, 0.0], high=[90.0, 100.0, 100.0], speed=500.0)


def connected(arm=None, limits=BOX, **options):
    arm = arm or Arm()
    robot = LeRobotRobot(arm, **options)
    robot.connect()
    robot.limits = limits or robot.limits
    arm.calls.clear()
    return robot, arm


def command(shoulder, elbow, gripper):
    return {"shoulder.pos": shoulder, "elbow.pos": elbow, "gripper.pos": gripper}


class Follows(Arm):
    """An arm that is at once where it is sent."""

    def send_action(self, action):
        self.positions.update({name.removesuffix(".pos"): v for name, v in action.items()})
        return super().send_action(action)


def odd(features, given, actions=None):
    """An arm with other features, whose observation is given."""

    class Odd(Arm):
        observation_features = features
        action_features = actions or features

        def get_observation(self):
            return given

        def send_action(self, action):
            self.calls.append(("send_action", action))
            return action

    return Odd()


def test_features_are_the_observations_of_a_converted_dataset():
    robot, _ = connected(Arm(camera=Camera(4, 6)))
    assert robot.observation_shapes == {"state": (3,), "front_image": (4, 6, 3)}
    names = [obs_name(f"observation.{name}") for name in ("state", "images.front")]
    assert list(robot.observation_shapes) == names
    assert robot.action_names == ("shoulder.pos", "elbow.pos", "gripper.pos")
    seen = robot.observe().values
    assert (seen["state"].tolist(), seen["state"].dtype) == ([10, -20, 40], np.float32)
    assert (seen["front_image"].shape, seen["front_image"].dtype) == ((4, 6, 3), np.uint8)


def test_the_stamp_is_from_before_the_reading_and_that_of_an_older_image(monkeypatch, virtual_time):
    arm = Arm()
    robot, _ = connected(arm)
    arm.faults["get_observation"] = lambda: clock.sleep(0.05)
    assert robot.observe().stamp_s == clock.now() - 0.05
    monkeypatch.setattr(time, "perf_counter", lambda: 50.0)  # the clock of LeRobot's cameras
    camera = Camera()
    robot, _ = connected(Arm(camera=camera))
    for taken_s, age_s in ((48.0, 2.0), (None, 0.0)):
        camera.latest_timestamp = taken_s
        assert robot.observe().stamp_s == clock.now() - age_s


def test_an_action_is_sent_by_name_if_it_is_finite():
    robot, arm = connected()
    robot.send(np.array([1.0, 2.0, 3.0]))
    with refused("not finite", error=RobotError):
        robot.send(np.array([np.nan, 0.0, 0.0]))
    assert arm.sent == [command(1.0, 2.0, 3.0)]
    robot, arm = connected()
    arm.positions["elbow"] = np.nan  # a bad reading: the one before it counts
    robot.observe()
    robot.stop()
    assert arm.sent == [command(10.0, -20.0, 40.0)]


def test_limits_are_those_of_the_configuration_or_of_units_and_calibration():
    half = (3072 - 1024) / 2 * 360 / 4095  # LeRobot's degrees: ticks from the middle, 4095 a turn
    arm = Arm()
    for low, high in ((-half, half), (-5.0, 6.0)):
        limits = LeRobotRobot(arm).limits
        np.testing.assert_allclose(limits.low, [low, -100.0, 0.0])
        np.testing.assert_allclose(limits.high, [high, 100.0, 100.0])
        arm.config = SimpleNamespace(type="a", id=None, joint_limits={"shoulder": (-5, 6)})


def test_nothing_is_sent_to_a_joint_without_limits():
    arm = Arm()
    arm.bus.calibration = {}
    robot, _ = connected(arm, limits=None)
    assert robot.limits.low[0] == -np.inf
    with refused("'shoulder.pos' has no limits|shoulder.pos, elbow", error=UserError):
        robot.send(np.zeros(3))
    assert arm.sent == []
    robot.limits = BOX
    robot.send(np.zeros(3))
    assert len(arm.sent) == 1


# ---- at rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "pose"),
    [({}, [10.0, -20.0, 5.0]), ({"grippers": ["elbow.pos"]}, [10.0, -21.0, 40.0])],
)
def test_the_pose_is_the_measured_one_with_the_grippers_command(options, pose):
    robot, arm = connected(**options)
    np.testing.assert_allclose(robot.pose(robot.observe()), [10.0, -20.0, 40.0])
    robot.send(np.array([11.0, -21.0, 5.0]))
    np.testing.assert_allclose(robot.pose(robot.observe()), pose)
    robot.stop()  # the gripper keeps its grip
    assert arm.sent[-1] == command(*pose)


@pytest.mark.parametrize(("stands_at", "pose"), [(-91.0, -90.0), (-95.0, -95.0), (91.0, 90.0)])
def test_a_joint_that_rests_at_its_end_is_within_its_limits(stands_at, pose):
    robot, arm = connected()  # 2 % of 180 are 3.6
    arm.positions["shoulder"] = stands_at
    assert robot.pose(robot.observe())[0] == pose


def test_holding_does_not_sink():
    robot, arm = connected()
    for sunk in (10.0, 9.0, 8.0):  # gravity pulls the arm a little below each command
        arm.positions["shoulder"] = sunk
        robot.observe()
        robot.hold()
    assert [sent["shoulder.pos"] for sent in arm.sent] == [10.0, 10.0, 10.0]
    robot.send(np.zeros(3))
    robot.observe()
    robot.hold()
    assert arm.sent[-1]["shoulder.pos"] == 8.0


@pytest.mark.parametrize("how", ["hold", "stop"])
def test_rest_is_measured_after_the_last_command(how):
    robot, arm = connected(Follows())
    robot.observe()
    robot.send(np.array([30.0, 0.0, 5.0]))
    getattr(robot, how)()  # not back to the 10 degrees where it was seen before
    assert arm.sent[-1] == command(30.0, 0.0, 5.0)


def test_holding_without_a_new_reading_keeps_the_last_command():
    given = {"arm.pos": 4.0, "x.vel": 0.3}
    base = odd({"arm.pos": float, "x.vel": float}, given)
    robot, _ = connected(base, ActionLimits(low=[-9.0, -1.0], high=[9.0, 1.0]))
    robot.send(np.array([6.0, 0.8]))
    del given["arm.pos"]  # readings fail from now on
    for call in (robot.hold, robot.stop):
        call()
        assert base.sent[-1] == {"arm.pos": 6.0, "x.vel": 0.0}


def test_speeds_are_zero_at_rest():
    given = {"arm.pos": 4.0, "x.vel": 0.3, "theta.vel": -1.0}
    robot, base = connected(odd(dict.fromkeys(given, float), given), limits=None)
    robot.stop()
    assert base.sent[-1] == {"arm.pos": 4.0, "x.vel": 0.0, "theta.vel": 0.0}


def test_an_action_that_is_not_observed_needs_a_value_at_rest():
    arm = odd({"shoulder.pos": float}, {"shoulder.pos": 1.0}, {"remote.lx": float})
    with refused("--robot-arg 'rest={\"remote.lx\": 0}'", error=UserError):
        LeRobotRobot(arm)
    robot, _ = connected(arm, limits=None, rest={"remote.lx": 0.5})
    robot.hold()
    assert arm.sent == [{"remote.lx": 0.5}]


# ---- stop ----------------------------------------------------------------------------------------


def test_stop_before_connecting_and_after_closing_sends_nothing():
    arm = Arm()
    robot = LeRobotRobot(arm)
    robot.stop()
    robot.connect()
    robot.close()
    robot.stop()
    assert arm.sent == []


@pytest.mark.parametrize("sent", [True, False])
def test_stop_measures_anew_where_the_last_reading_is_old(sent, virtual_time):
    robot, arm = connected()
    if sent:
        robot.send(np.array([30.0, 0.0, 0.0]))
    arm.positions["shoulder"] = 30.0  # it moved while nobody looked
    clock.sleep(0.25)
    robot.stop()
    assert arm.sent[-1]["shoulder.pos"] == 30.0
    arm.positions["shoulder"] = 31.0
    robot.stop()  # its target is the measured pose
    assert arm.sent[-1]["shoulder.pos"] == 30.0


@pytest.mark.parametrize(("age_s", "position"), [(0.1875, 10.0), (0.25, 30.0)])
def test_stop_takes_a_reading_of_the_last_fifth_of_a_second(age_s, position, virtual_time):
    robot, arm = connected()
    robot.observe()
    arm.positions["shoulder"] = 30.0
    clock.sleep(age_s)
    robot.stop()
    assert arm.sent[-1]["shoulder.pos"] == position


@pytest.mark.parametrize("fault", ["hangs", "raises"])
def test_stop_takes_the_last_reading_where_there_is_no_new_one(fault, virtual_time):
    robot, arm = connected()
    robot.send(np.array([30.0, 0.0, 0.0]))
    released = threading.Event()

    def fail():
        if fault == "hangs":
            clock.wait(released)
        raise TimeoutError("no frame")

    arm.faults["get_observation"] = fail
    clock.sleep(0.25)
    started = clock.now()
    robot.stop()
    assert clock.now() - started == pytest.approx(0.2 if fault == "hangs" else 0.0)
    assert arm.sent[-1]["shoulder.pos"] == 10.0
    released.set()


def test_stop_does_not_wait_for_a_call_that_hangs(virtual_time):
    robot, arm = connected()
    robot.send(np.array([30.0, 0.0, 0.0]))
    released = threading.Event()
    arm.faults["get_observation"] = lambda: clock.wait(released)
    hanging = threading.Thread(target=robot.observe, daemon=True)
    hanging.start()
    clock.sleep(0.05)
    started = clock.now()
    robot.stop()
    assert clock.now() - started == pytest.approx(0.2)
    assert arm.sent[-1] == command(10.0, -20.0, 0.0)
    released.set()
    hanging.join()


def test_closing_leaves_the_lock_free(virtual_time):
    robot, _ = connected()
    began = clock.now()
    robot.close()
    robot.close()
    assert clock.now() == began


def test_torque_is_switched_off_only_where_it_is_asked_for():
    robot, arm = connected()
    robot.stop()
    robot.close()
    assert arm.bus.torque
    robot, arm = connected(at_stop="torque_off")
    robot.stop()
    assert not arm.bus.torque and arm.sent == []


def test_calls_of_two_threads_do_not_overlap(monkeypatch):
    monkeypatch.setattr(
        lerobot_robot, "_PATIENCE_S", 600.0
    )  # a busy machine is not a call that hangs
    robot, arm = connected()
    threads = [threading.Thread(target=lambda: [robot.stop() for _ in range(20)]) for _ in "ab"]
    for thread in threads:
        thread.start()
    for _ in range(20):
        robot.observe()
        robot.send(np.zeros(3))
        robot.hold()
    for thread in threads:
        thread.join()
    assert arm.overlaps == 0


# ---- life ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibrate", [False, True])
def test_calibration_is_left_to_lerobot_only_where_it_is_asked_for(calibrate):
    arm = Arm()
    LeRobotRobot(arm, calibrate=calibrate).connect()
    assert arm.calls[0] == ("connect", calibrate)


def test_a_robot_without_calibration_is_refused_with_the_command():
    arm = Arm(config=ArmConfig(port="/dev/ttyUSB0", id="left"), calibrated=False)
    robot = LeRobotRobot(arm)
    robot._config = {"port": "/dev/ttyUSB0", "id": "left", "cameras": {}}
    with pytest.raises(UserError) as raised:
        robot.connect()
    assert str(raised.value).endswith(
        "run lerobot-calibrate --robot.type=arm_follower --robot.port=/dev/ttyUSB0 --robot.id=left"
    )
    assert not arm.is_connected and arm.sent == []


@pytest.mark.parametrize("said", [None, lambda: True])
def test_a_robot_that_needs_no_calibration_may_say_so_in_any_way(said):
    arm = Arm()
    arm.is_calibrated = said  # None of LeRobot's lekiwi_client, a method of its gamepad
    LeRobotRobot(arm).connect()
    assert arm.is_connected


@pytest.mark.parametrize("call", ["connect", "get_observation"])
def test_a_robot_that_cannot_be_connected_is_closed(call):
    arm = Arm()

    def fail():
        raise ConnectionError("\nno motor 3\nfull list: ...")

    arm.faults[call] = fail
    with pytest.raises(UserError, match=r"'arm_follower' .*ConnectionError: no motor 3$"):
        LeRobotRobot(arm).connect()
    assert arm.calls[-1][0] == "disconnect"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at_stop": "brake"}, "at_stop is 'brake'; expected pose or torque_off"),
        ({"rest": {"elbw.pos": 0.0}}, "rest contains 'elbw.pos', which is not an action"),
        ({"grippers": ["claw.pos"]}, "grippers contains 'claw.pos', which is not an action"),
        ({"at_stop": "torque_off"}, "has no bus"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    arm = Arm()
    del arm.bus
    with refused(words, error=UserError):
        LeRobotRobot(arm, **options)


def test_an_image_of_another_shape_is_an_error():
    robot, arm = connected(Arm(camera=Camera(4, 6)))
    seen = {f"{name}.pos": 0.0 for name in arm.positions}
    arm.get_observation = lambda: {**seen, "front": np.zeros((6, 4, 3), np.uint8)}
    with refused("'front' has shape (6, 4, 3)|(4, 6, 3)", error=RobotError):
        robot.observe()


# ---- in the control loop -------------------------------------------------------------------------


def test_a_policy_moves_it_within_the_limits(virtual_time):
    robot, arm = connected(Follows())
    policy = Constant((30.0, 0.0, 40.0))
    assert ControlLoop(robot, policy, 100.0, safety=Safety(late=0)).run(20).steps == 20
    shoulder = [10.0, *(sent["shoulder.pos"] for sent in arm.sent)]
    assert np.abs(np.diff(shoulder)).max() <= 500.0 / 100.0 + 1e-9
    assert shoulder[-1] == pytest.approx(30.0)
    assert arm.sent[-1] == arm.sent[-2]  # the stop keeps the pose


def test_a_lost_frame_holds_the_pose(virtual_time):
    robot, arm = connected(Follows())
    count = itertools.count(1)

    def lose():
        if next(count) == 13:  # eleven are read before the first step
            raise TimeoutError("latest frame is too old")

    arm.faults["get_observation"] = lose
    policy = Constant((12.0, -20.0, 40.0))
    report = ControlLoop(robot, policy, 100.0, safety=Safety(late=0)).run(6)
    assert report.steps == 5
    (reason,) = report.held
    assert "latest frame is too old" in reason


def test_the_pose_is_that_of_the_observation_given():
    robot, _ = connected()
    seen = Observation({"state": np.float32([1.0, 2.0, 3.0])})
    np.testing.assert_allclose(robot.pose(seen), [1.0, 2.0, 3.0])
