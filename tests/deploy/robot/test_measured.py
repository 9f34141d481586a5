"""Measured poses: a reading that cannot be is not acted on, and robots that are held, pushed or guided."""

import math

import numpy as np
import pytest

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.observing import MeasuredPoses, SensorNoise, Stillness
from imitate.deploy.robot.robot import Guidance, Observation
from imitate.errors import RobotError
from imitate.system import clock
from tests.deploy.fake_robot import Constant, FakeRobot, Scripted

pytestmark = pytest.mark.usefixtures("virtual_time")

RATE, STEP = 20.0, 0.075
HOME = np.array([0.1, -0.4, 1.0])


class Arm(FakeRobot):
    """Two joints and a gripper that follow their targets with a lag of 60 ms; ``sees(n, pose)`` is what it measures.

    It raises where that is None. Numbers from 0 are the control steps; the three readings from -3 are before them.
    """

    observation_shapes = {"state": (3,)}

    def __init__(self, sees=lambda n, pose: pose, **rest):
        limits = {"low": [-2.8, -2.8, 0], "high": [2.8, 2.8, 1], "speed": [1.5, 1.5, 4.0]}
        super().__init__(ActionLimits(**{**limits, **rest}))
        self.sees, self.q, self.target, self.n, self.at_s = sees, HOME, HOME, -4, clock.now()

    def observe(self):
        self.note("observe")
        decay = math.exp(-(clock.now() - self.at_s) / 0.06)
        self.q, self.at_s = self.target + (self.q - self.target) * decay, clock.now()
        self.n += 1
        seen = self.sees(self.n, self.q.copy())
        if seen is None:
            raise OSError("lost packet")
        return Observation({"state": np.asarray(seen)}, clock.now())

    def pose(self, observation):
        return observation.values["state"]

    def send(self, action):
        super().send(action)
        self.target = action


def to_and_fro(step):
    return [*(0.4 if step // 12 % 2 else -0.4) + HOME[:2], 1.0]


def run(robot, steps=60, policy=None, safety=None, **rest):
    """The report, or the words of the stop."""
    acts = policy or Constant(to_and_fro)
    try:
        return ControlLoop(robot, acts, RATE, any_rate=True, safety=safety, **rest).run(steps)
    except RobotError as error:
        return str(error)


def at(moments, value, lost=()):
    """Reads a value at some moments, and nothing at others."""
    return lambda n, pose: None if n in lost else pose * 0 + value if n in moments else pose


INSIDE = np.array([2.5, 2.5, 1.0])
FAR, JUMP = "the measured pose is far outside the limits", "the measured pose has jumped"


@pytest.mark.parametrize(
    ("sees", "held"),
    [
        (at({20}, 9.0), {FAR: 1}),
        (at({21}, 9.0, lost={20}), {FAR: 1}),
        (at({21}, INSIDE, lost={20}), {JUMP: 1}),
        (at({21, 22, 23}, INSIDE, lost={20}), {JUMP: 3}),
        (at({20, 21, 22}, INSIDE), {JUMP: 3}),
        (at({0}, 0.9), {JUMP: 1}),
        (at({28}, 0.9, lost=range(20, 28)), {JUMP: 1}),  # after a gap one reading alone says little
        (at({20}, math.nan), {"pose() gave numbers that are not finite": 1}),
    ],
)
def test_a_wrong_reading_holds_and_moves_no_command(sees, held):
    robot = Arm(sees)
    report = run(robot)
    reasons = {reason.partition(":")[0]: n for reason, n in report.held.items()}
    lost = reasons.pop("observe() failed (OSError", 0)
    assert reasons == held
    assert report.steps == 60 - lost - sum(held.values())
    assert np.abs(robot.sent[:, :2]).max() <= 0.8
    steps = np.abs(np.diff(robot.sent, axis=0)[:, :2])
    assert steps.max() <= 2 * STEP  # the lag at a hold, and a step


@pytest.mark.parametrize("wrong", [1, 2])
@pytest.mark.parametrize(
    "value",
    [np.array([-0.4, 0.1, 1.0]), np.zeros(3), np.array([0.9, 0.2, 1.0])],
    ids=["exchanged joints", "zeros", "an old packet"],
)
def test_the_first_readings_after_the_connection_move_nothing(value, wrong):
    robot = Arm(at(range(-3, wrong - 3), value))
    report = run(robot, 5, Constant(HOME + [0.1, 0.1, 0]))
    assert (report.steps, report.held) == (5, {})
    assert np.abs(robot.sent[0] - HOME).max() <= STEP + 1e-9
    assert [call for _, call, _ in robot.calls].index("send") == 4 + wrong


def test_first_readings_that_never_agree_are_refused():
    robot = Arm(lambda n, pose: pose + [0.5 * (n % 2), 0, 0])
    words = run(robot, 5)
    assert words.startswith(
        "the robot was not moved: its first readings do not agree: the measured pose has jumped: number 0"
    )
    assert len(robot.sent) == 0


@pytest.mark.parametrize("value", [1e9, -9.0, INSIDE, math.nan])
@pytest.mark.parametrize("first", [5, 20])
def test_wrong_readings_that_last_stop_the_robot(value, first):
    robot = Arm(at(range(first, 1000), value))
    assert run(robot).startswith("no action for 1 s")
    assert len(robot.sent) == first and robot.last_calls()[-1] == "stop"


@pytest.mark.parametrize("late_s", [0.0, 0.035, 0.2])
def test_a_wrong_reading_that_stays_is_not_trusted_after_a_late_step(late_s):
    """Two joints are exchanged, and the loop is late while it holds: the readings went on, so there was no gap."""

    def sees(n, pose):
        clock.sleep(late_s if n in (23, 25, 27) else 0.0)
        return pose + [0.35 * (n >= 20), -0.35 * (n >= 20), 0]

    robot = Arm(sees)
    stop = run(robot, 60, safety=Safety(late=0, hold_s=0.6))
    assert JUMP in stop and len(robot.sent) == 20


def frozen(since):
    kept = []

    def sees(n, pose):
        kept.extend([pose] if n >= since and not kept else [])
        return kept[0] if kept else pose

    return sees


@pytest.mark.parametrize("since", [-1, 20])
def test_a_sensor_that_repeats_itself_while_commands_move_is_no_sensor(since):
    robot = Arm(frozen(since))
    assert "the measured pose does not change although commands move it" in run(robot, 100)
    assert len(robot.sent) <= max(since, 0) + 25
    robot = Arm(frozen(20))
    assert run(robot, 100, safety=Safety(frozen_pose=0)).steps == 100
    assert run(Arm(frozen(20)), 60, dry_run=True).steps == 60  # nothing was asked to move


class Disabled(Arm):
    """Accepts commands and does not execute those after ``since`` steps; its sensor has noise."""

    def __init__(self, since, numbers=(0, 1, 2), **rest):
        draw = np.random.default_rng(0)
        super().__init__(lambda n, pose: pose + draw.normal(0, 3e-4, 3), **rest)
        self.since, self.numbers = since, list(numbers)

    def send(self, action):
        before = self.target
        super().send(action)
        if self.n >= self.since:
            self.target = np.array(action)
            self.target[self.numbers] = before[self.numbers]


@pytest.mark.parametrize("since", [0, 30])
def test_an_arm_that_accepts_commands_and_executes_none_is_held_and_stopped(since):
    robot = Disabled(since)
    assert "does not follow the commands: is the robot enabled?" in run(robot, 150)
    assert len(robot.sent) <= since + 50
    assert run(Disabled(since), 90, safety=Safety(frozen_pose=0)).steps == 90


@pytest.mark.parametrize(
    ("numbers", "act"),
    [
        ((0,), to_and_fro),  # one number that is blocked, while the other one moves
        (
            (2,),
            lambda step: [*to_and_fro(step)[:2], max(0, 1 - 0.04 * step)],
        ),  # an object in the gripper
        ((0, 1, 2), lambda step: HOME + [0.1 * (step % 2), 0, 0]),  # small motions
        ((0, 1, 2), lambda step: HOME + [0.03 * min(step, 80), 0, 0]),  # one number presses
    ],
)
def test_what_does_not_follow_in_part_is_no_fault(numbers, act):
    assert run(Disabled(0, numbers), 100, Constant(act)).steps == 100


def coarse(n, pose):
    return np.round(pose, 2)


def test_one_joint_that_is_asked_to_both_sides_of_its_place_does_not_stand_still():
    one = Constant(lambda step: [0.1 + (0.4 if step // 12 % 2 else -0.4), -0.4, 1.0])
    assert "does not change" in run(Arm(frozen(20)), 100, one)


def clamped(index, low, high):
    """Coarse readings of which a number does not leave its place: an object in the gripper, or contact."""
    bounds = np.array([[-np.inf] * 3, [np.inf] * 3])
    bounds[:, index] = low, high
    return lambda n, pose: coarse(n, pose).clip(*bounds)


@pytest.mark.parametrize(
    ("sees", "act"),
    [
        (clamped(2, 0.5, 1.0), lambda step: [*HOME[:2], max(0, 1 - 0.04 * step)]),  # closes slowly
        (clamped(2, 0.5, 1.0), lambda step: [*HOME[:2], 0.05 * (step % 2)]),  # an uncertain policy
        (clamped(0, 0.0, 0.2), lambda step: [0.1 + 0.03 * step, *HOME[1:]]),  # presses on a table
        (clamped(0, 0.0, 0.2), to_and_fro),
        (lambda n, pose: coarse(n // 4, pose), to_and_fro),
        (coarse, lambda step: HOME + 0.001 * (step % 2)),  # does not change
    ],
)
def test_an_object_contact_and_coarse_encoders_are_no_fault(sees, act):
    report = run(Arm(sees), 60, Constant(act))
    assert report.steps == 60 and not report.held


def noisy(frozen=(), since=1000, bit=0.0):
    """Readings with a sensor's noise, of which some numbers are those of a step before, up to the lowest bit."""
    kept, draw = [], np.random.default_rng(0)

    def sees(n, pose):
        pose = pose + draw.normal(0, 3e-4, 3)
        kept.extend([pose] if n >= since and not kept else [])
        if kept:
            pose[list(frozen)] = kept[0][list(frozen)] + bit * (n % 3 == 0)
        return pose

    return sees


@pytest.mark.parametrize(("frozen", "bit"), [((0, 1, 2), 0.0), ((1,), 0.0), ((1,), 1e-4)])
def test_a_sensor_whose_noise_ends_is_no_sensor_also_where_nothing_is_asked_to_move(frozen, bit):
    still, names = Constant(HOME), ("yaw", "lift", "grip")
    robot = Arm(noisy(frozen, since=15, bit=bit))
    robot.action_names = names
    stop = run(robot, 100, still)
    assert "the measured pose repeats itself exactly, without the sensor's noise: " in stop
    assert [name in stop for name in names] == [place in frozen for place in range(3)]
    assert len(robot.sent) == 25 + bool(bit)
    assert run(Arm(noisy()), 60, still).steps == 60
    assert run(Arm(noisy(frozen, 15)), 60, still, Safety(frozen_pose=0)).steps == 60


def flickering(n, pose):
    """An encoder that flickers between two ticks, and comes to rest."""
    return pose + [0.001 * (n % 2 and n < 20), 0, 0]


def ringing(n, pose):
    """An arm that rings down to a place that its encoder does not leave."""
    return np.round(pose + [0.05 * 0.8**n * (-1) ** n, 0, 0], 3)


@pytest.mark.parametrize("sees", [flickering, ringing])
def test_an_encoder_that_comes_to_rest_is_no_fault(sees):
    assert run(Arm(sees), 80, Constant(HOME)).steps == 80


def test_a_wrong_reading_is_named_with_its_number_and_value():
    robot = Arm(at(range(20, 100), np.array([0.1, 63.0, 1.0])))
    robot.action_names = ("yaw", "lift", "grip")
    assert "far outside the limits: lift at 63)" in run(robot)
    words = run(Arm(lambda n, pose: pose - [0, 0, 0.8 * (n >= 20)]))
    assert "the measured pose has jumped: number 2 to 0.2)" in words


def test_a_robot_that_is_driven_back_beyond_its_limits_is_brought_back_within():
    pushed = Arm(lambda n, pose: pose + [np.clip(n - 10, 0, 20) * 0.02, 0, 0], high=[0.4, 2.8, 1])
    report = run(pushed, 40, Constant((0.3, -0.4, 1.0)))
    assert report.steps == 40 and pushed.q[0] <= 0.4  # measured up to 0.4 beyond what it is sent


@pytest.mark.parametrize("lost", [(), range(12, 20)])
def test_a_robot_that_is_guided_by_hand_goes_on_from_where_it_was_left(lost):
    """A person moves it by 0.7 in 0.4 s during a pause, seen or unseen, and lets go."""
    guided = Arm(lambda n, pose: None if n in lost else pose)
    script = {n: Guidance(np.array([0.9, -0.4, 1.0])) for n in range(25, 60)}

    def push(step):
        if 10 <= guided.n < 20:
            guided.target = guided.target + [0.07, 0, 0]

    report = ControlLoop(guided, None, RATE, teleoperator=Scripted(script), on_step=push).run(50)
    assert len(guided.sent) == report.steps >= 24
    np.testing.assert_allclose(guided.sent[0, 0], 0.8 + STEP, atol=0.01)


def test_a_robot_whose_zero_keeps_the_pose_is_looked_at_by_its_observations():
    class Relative(Arm):
        def pose(self, observation):
            return np.zeros(3)

        def send(self, action):
            super().send(self.q + 0.1 * action)

    pushes = Constant(lambda step: [0.4, -0.4, 0.0] if step // 12 % 2 else [-0.4, 0.4, 0.0])
    safety = Safety(frozen=0)
    assert run(Relative(low=[-1] * 3, high=[1] * 3), 60, pushes, safety).steps == 60
    stopped = run(Relative(frozen(20), low=[-1] * 3, high=[1] * 3), 60, pushes, safety)
    assert "does not change" in stopped


# ---- by hand: a period of 1/8 s and a speed of 1, so that a reading may move by 3/8 ------------------

WIDE = {"low": [-500.0, -500.0], "high": [500.0, 500.0]}
"""A range of 1000: 2 is a motion of the commands, 20 a clear one, 50 is enough for a pose not to follow; 5 is rest."""
NOTHING = Observation({}, None)


def faults(readings, *, limits=None, pauses=(), lost=()):
    """Numbers of the readings, one number each and one per period, that are not poses."""
    made = ActionLimits(**(limits or {"low": [-10.0], "high": [10.0], "speed": [1.0]}))
    poses, found = MeasuredPoses(made, 0.125, 0), []
    for n, reading in enumerate(readings):
        if n in pauses:
            poses.pause()
        if n not in lost and poses.fault(np.array([reading]), NOTHING, 0.125 * n):
            found.append(n)
    return found


@pytest.mark.parametrize(
    ("readings", "expected", "rest"),
    [
        ([0, 0.375, 0.75, 0.375], [], {}),
        ([0, 0.376, 0.0], [1], {}),
        ([0, -0.376, 0.0], [1], {}),
        ([5, 0.0, 5.1], [1], {}),  # the first reading is trusted
        ([0, 0, 0.75], [], {"lost": {1}}),  # two periods
        ([0, 0, 0.76, 0.76], [2, 3], {"lost": {1}}),
        ([0, 0, 0.76, 0.7, 0.7], [2], {"lost": {1}}),
        ([0, 0, 0, 1.125, 1.125], [3], {"lost": {1, 2}}),  # the second reading confirms the first
        ([0, 0, 0, 1.125, 0.7, 0.7], [3, 4], {"lost": {1, 2}}),  # it does not
        ([0, 0, 0, 1.126, 1.126, 0.1], [3, 4], {"lost": {1, 2}}),  # further than it can be
        ([0, 0.7, 0.7, 0.7, 0.2], [1, 2, 3], {}),  # no gap explains it
        ([0, 0, 4, 4, 4], [2], {"pauses": {2}}),  # moved by hand
        ([0, 0, 4, 4.4, 4.4], [2, 3], {"pauses": {2}}),
        ([0, 0, 4, 4, 0], [2, 4], {"pauses": {2}}),
        ([0, 9, -9], [], {"limits": {"low": [-10.0], "high": [10.0]}}),  # no limit of speed
        (
            [0, 0.08, 0.16, 0.26],
            [3],
            {"limits": {"low": [-1], "high": [1], "speed": [8], "step": 0.03}},
        ),
        ([12, 12.1, -12.1, -12], [1, 2], {"limits": {"low": [-10.0], "high": [10.0]}}),
    ],
)
def test_jumps_by_hand(readings, expected, rest):
    assert faults(readings, **rest) == expected


def test_jumps_need_a_limit_of_speed():
    limits = ({}, {"step": 1.0}, {"speed": 1.0})
    made = (MeasuredPoses(ActionLimits(**WIDE, **limit), 0.125, 10) for limit in limits)
    assert [poses.are_bounded for poses in made] == [False, True, True]


def test_a_pose_that_is_not_reported_is_a_fault_only_after_one_that_was():
    poses = MeasuredPoses(ActionLimits(**WIDE), 0.125, 10)
    assert poses.fault(None, NOTHING, 0.0) == "" == poses.fault(np.zeros(2), NOTHING, 0.125)
    assert poses.fault(None, NOTHING, 0.25) != ""


NOISE = [0, 5, 1, 4, 2, 4.5, 0.5, 3, 1.5, 3.5]


@pytest.mark.parametrize(
    ("noise", "kept", "at"),
    [
        (NOISE, [3.5], 19),  # 3.5 has come eleven times, after one other value
        (NOISE, [3.5, 3.6], 20),  # two values in twelve readings
        (NOISE, [3.5, 3.6, 3.7], None),
        ([1, 4, 2, 4.5, 0.5, 3, 1.5, 3.5, 0, 5], [3.5], 20),
        ([1, 4, 2, 4.5, 0.5, 3, 1.5, 3.5, 0, 5.1], [3.5], None),  # moves by more than 5
        (NOISE[:9] + [4], [3.5], None),  # a reading comes twice: an encoder
        ([0, 1, 2, 3, 4, 3.5, 2.5, 1.5, 0.5, 0.7], [0.7], None),  # two reversals
        ([0, 1, 2, 3, 4, 3.5, 2.5, 1.5, 2.2, 0.7], [0.7], 19),  # three
        ([0, 5, 2, 4, 2.5, 3.6, 2.7, 3.4, 2.8, 3.3], [3.3], None),  # a vibration that ends
        ([0, 5, 2, 4, 2.5, 5, 2.6, 3.4, 2.8, 3.3], [3.3], None),
        ([0, 5, 2, 4, 2.3, 4.8, 2.6, 3.4, 2.8, 3.3], [3.3], 19),  # the last changes: half the first
    ],
)
def test_the_noise_of_a_sensor_by_hand(noise, kept, at):
    sensor = SensorNoise(ActionLimits(**WIDE), 10)
    readings = [*noise, *(kept[n % len(kept)] for n in range(30))]
    found = [sensor.silent(np.array([reading, 0.0])).tolist() for reading in readings]
    assert [n for n, fault in enumerate(found) if fault != [False, False]][:1] == (
        [at] if at else []
    )
    assert at is None or found[at] == [True, False]


def stopped_at(commands, poses, *, deaf=False, vectors=None, frozen=3):
    """Number of the first command after whose reading the sensor counts as still, or None."""
    still = Stillness(ActionLimits(**WIDE), frozen, 0.25)
    for n in range(-1, len(commands)):
        if n >= 0:
            still.commanded(np.array(commands[n], dtype=float))
        values = {} if vectors is None else {"v": np.array(vectors[max(n, 0)], dtype=float)}
        pose = np.array(poses[min(n + 1, len(poses) - 1)], dtype=float)
        found = still.is_frozen(pose, Observation(values, None))
        found = still.is_deaf(pose) if deaf else found
        if found:
            return n
    return None


def ramp(step, second=None, start=0.0, count=30):
    return [
        (start + step * n, start + (step if second is None else second) * n) for n in range(count)
    ]


AT = [(100.0, 100.0)]


@pytest.mark.parametrize(
    ("commands", "poses", "at", "rest"),
    [
        (ramp(10), AT, 3, {}),  # from the second command on, 10 to 30
        (ramp(9.9), AT, 4, {}),
        (ramp(-10), AT, 3, {}),
        (ramp(10), AT, 5, {"frozen": 5}),
        (ramp(10), AT, None, {"frozen": 0}),
        (ramp(2), AT, 11, {}),
        (ramp(1.9), AT, None, {}),  # each is too small a motion
        (ramp(10, 0, start=130), AT, None, {}),  # a single number may be blocked
        (ramp(10, 10), [(100, n) for n in range(1, 40)], None, {}),
        ([(0, 0), *[(80, 0), (120, 0)] * 5], AT, 3, {}),  # to both sides of its place
        ([(0, 0), *[(81, 0), (120, 0)] * 5], AT, None, {}),
        ([(0, 0), *[(80, 0), (119, 0)] * 5], AT, None, {}),
        (ramp(10, start=130), [(0.0, 100.0)], None, {}),  # 0: not measured
        ([(n, n) for n in range(0, 300, 10)], [(0, 0), *[(n, n) for n in range(0, 300, 10)]], None, {}),
    ],
)  # fmt: skip
def test_readings_that_repeat_themselves_by_hand(commands, poses, at, rest):
    assert stopped_at(commands, poses, **rest) == at


ZEROS = [(0.0, 0.0)]
CHANGED = [[0.0], *[[1.0]] * 30]


@pytest.mark.parametrize(
    ("commands", "poses", "vectors", "at"),
    [
        ([(20, 20)] * 9, ZEROS, CHANGED, 4),  # the observation changed with the second command
        ([(-20, 20)] * 9, ZEROS, CHANGED, 4),
        ([(19.9, 20)] * 9, ZEROS, CHANGED, None),
        ([(1.9, 1.9)] * 9, ZEROS, CHANGED, None),
        ([(20, 0), (-20, 0)] * 5, ZEROS, CHANGED, 4),
        ([(20, 0), (-19.9, 0)] * 5, ZEROS, CHANGED, None),
        ([(20, 20)] * 9, ZEROS, [[0.0]] * 9, None),  # it never changed
        ([(20, 20)] * 9, ZEROS, [[n] for n in range(9)], None),
        ([(20, 20)] * 9, ZEROS, None, None),
        ([(20, 20)] * 9, [(0, 0), *[(0, 20)] * 9], CHANGED, 4),  # the last command of a gripper
        ([(20, 20)] * 9, [(0, 0), *[(20, 0)] * 9], CHANGED, None),  # targets, not yet measured
    ],
)
def test_observations_that_repeat_themselves_while_zero_keeps_the_pose(
    commands, poses, vectors, at
):
    assert stopped_at(commands, poses, vectors=vectors) == at


def shaking(by, count=40):
    return [(100 + by * (n % 2), 100.0) for n in range(count)]


@pytest.mark.parametrize(
    ("commands", "poses", "at", "rest"),
    [
        (ramp(10), shaking(5), 6, {}),  # six commands, from 10 to 60
        (ramp(10), shaking(5.1), None, {}),
        (ramp(10), shaking(5), 8, {"frozen": 4}),
        (ramp(20), shaking(5), 4, {"frozen": 1}),  # at least a second
        (ramp(10), shaking(5), 5, {"frozen": 1}),  # and 50
        (ramp(9.9), shaking(5), 6, {"frozen": 1}),
        (ramp(10, 0, start=160), shaking(5), None, {}),
        ([(100, 0), *[(50, 0), (150, 0)] * 9], shaking(0), 6, {}),
        ([(100, 0), *[(51, 0), (150, 0)] * 9], shaking(0), None, {}),
        ([(100, 0), *[(50, 0), (149, 0)] * 9], shaking(0), None, {}),
        (ramp(10), shaking(5), None, {"frozen": 0}),
    ],
)
def test_a_pose_that_does_not_follow_by_hand(commands, poses, at, rest):
    assert stopped_at(commands, poses, deaf=True, **rest) == at
