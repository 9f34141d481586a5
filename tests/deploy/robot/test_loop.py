"""The safety contract, clause by clause: what was sent, and when."""

import math
import sys
import threading

import numpy as np
import pytest

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop, Safety, check_robot_rate
from imitate.deploy.robot.report import Report
from imitate.deploy.robot.robot import Guidance, Observation
from imitate.deploy.robot.watchdog import slow_stop
from imitate.errors import NotFiniteError, RobotError, UserError
from imitate.system import clock
from tests.deploy.fake_robot import Constant, FakeRobot, Pushing, Scripted

pytestmark = pytest.mark.usefixtures("virtual_time")

RATE = 100.0
CALM = Safety(late=0)


def loop(robot, policy=None, **rest):
    rest.setdefault("safety", CALM)
    return ControlLoop(robot, policy or Constant(), RATE, **rest)


def aged(*moments):
    """A robot whose observations are 0.2 s old when so many have been made, the one before the episode first."""
    robot = FakeRobot()

    def age():
        robot.age_s = 0.2 if len(robot.times("observe")) in moments else 0.0

    robot.faults["observe"] = age
    return robot


def failing(call, error, times=math.inf):
    """A robot of which the first calls of a kind raise an error."""
    robot = FakeRobot()

    def fail():
        if len(robot.times(call)) <= times:
            raise error

    robot.faults[call] = fail
    return robot


def after_stop(robot):
    """Calls that began after the first stop."""
    names = robot.last_calls()
    return names[names.index("stop") :]


def test_an_episode_sends_each_step_and_ends_at_rest():
    robot, policy = FakeRobot(), Constant()
    report = loop(robot, policy).run(5, "pick")
    assert robot.last_calls() == ["send"] * 5 + ["stop"]
    np.testing.assert_allclose(robot.sent, [[0.1, 0.2]] * 5)
    np.testing.assert_allclose(np.diff(robot.times("send")), 1 / RATE)
    assert policy.episodes == ["pick", "pick"]  # warm-up, then the episode
    assert (policy.step, report.steps, report.ended_by, report.unstamped) == (5, 5, "steps", False)


def test_a_late_step_is_not_made_up_for():
    robot = FakeRobot()
    loop(robot, slow_at(3, 0.015)).run(6)
    gaps = np.diff(robot.times("send"))  # the step after the late one has its whole period
    np.testing.assert_allclose(gaps, [0.01, 0.025, 0.0, 0.01, 0.01], atol=1e-9)


# (1) Nothing is sent after a stop.


WATCHED = Safety(watchdog_s=0.1, late=0)


def slow_at(number, seconds):
    """A policy of which one step takes that long."""
    return Constant(lambda step: clock.sleep(seconds * (step == number)) or (0.1, 0.1))


def test_a_driver_that_hangs_is_stopped_by_the_watchdog_and_gets_nothing_more():
    robot = FakeRobot()
    with pytest.raises(RobotError, match=r"no control step ended within 0.1 s.*stopped"):
        loop(robot, slow_at(3, 0.6), safety=WATCHED).run(20)
    assert set(after_stop(robot)) == {"stop"}
    # The stop comes with the watchdog, not when the call returns.
    assert robot.times("stop")[0] - robot.times("send")[-1] == pytest.approx(0.1)


def test_a_send_that_blocks_past_the_stop_is_followed_by_another_stop():
    robot = FakeRobot()
    robot.faults["send"] = lambda: clock.sleep(0.5 if len(robot.times("send")) == 3 else 0)
    with pytest.raises(RobotError, match="watchdog"):
        loop(robot, safety=WATCHED).run(20)
    assert len(robot.times("send")) == 3
    stops = np.array(robot.times("stop")) - robot.times("send")[1]  # the last step that ended
    assert stops[0] == pytest.approx(0.1)  # and two more when the call returns, and at the end
    np.testing.assert_allclose(stops[1:], 0.01 + 0.5)


def test_an_observation_that_hangs_is_noticed():
    robot = FakeRobot()
    robot.faults["observe"] = lambda: clock.sleep(0.6 if len(robot.times("observe")) == 4 else 0)
    with pytest.raises(RobotError, match="watchdog"):
        loop(robot, safety=WATCHED).run(20)
    assert set(after_stop(robot)) == {"stop"}


# (2) Nothing old is acted on.


def test_old_observations_hold_the_robot_and_then_stop_it():
    robot = FakeRobot()
    robot.age_s = 0.2
    with pytest.raises(RobotError, match=r"no action for 0.095 s \(the observation is old\)"):
        loop(robot, safety=Safety(hold_s=0.095, late=0)).run(100)
    assert len(robot.sent) == 0
    assert robot.times("stop")[0] - robot.times("hold")[0] == pytest.approx(0.1)


def test_one_old_observation_holds_one_step():
    robot = aged(4)
    report = loop(robot).run(6)
    assert report.held == {"the observation is old": 1}
    assert robot.last_calls() == ["send", "send", "hold", "send", "send", "send", "stop"]


@pytest.mark.parametrize("policy", [None, Constant()])
def test_a_person_does_not_move_the_robot_by_an_old_observation_either(policy):
    robot, steps = aged(3, 4), []
    person = Pushing((0.3, 0.0))
    made = ControlLoop(robot, policy, RATE, teleoperator=person, safety=CALM, on_step=steps.append)
    report = made.run(5)
    assert report.held == {"the observation is old": 2}
    assert robot.last_calls() == ["send", "hold", "hold", "send", "send", "stop"]
    assert [step.action is None for step in steps] == [False, True, True, False, False]
    assert report.interventions == 3


def test_old_observations_stop_a_person_too_but_a_pause_before_does_not_count():
    robot = aged(*range(31, 1000))
    safety = Safety(late=0, hold_s=0.095)
    made = ControlLoop(robot, None, RATE, teleoperator=Scripted({}), safety=safety)
    with pytest.raises(RobotError, match=r"no action for 0.095 s \(the observation is old\)"):
        made.run(100)
    assert robot.last_calls().count("hold") == 29 + 11  # of a pause, then from 0 to 0.1 s


def test_a_pause_between_old_observations_starts_the_time_anew():
    robot = aged(*(k for k in range(1, 50) if k % 10 < 3))
    safety = Safety(late=0, hold_s=0.2)
    made = ControlLoop(robot, None, RATE, teleoperator=Scripted({}), safety=safety)
    report = made.run(40)  # 0.4 s, of which never more than 0.03 s in a row without an observation
    assert report.held["the observation is old"] == 12


@pytest.mark.parametrize("key", ["state", "camera"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_person_does_not_act_on_numbers_that_are_not_finite(key, value):
    robot = FakeRobot()
    robot.values = {"state": np.zeros(2), "camera": np.zeros((4, 4, 3), np.float32)}
    robot.values[key] = np.full_like(robot.values[key], value)
    made = ControlLoop(robot, None, RATE, teleoperator=Pushing((0.3, 0.0)), safety=CALM)
    assert made.run(3).held == {f"observation '{key}' is not finite": 3}
    assert len(robot.sent) == 0


def test_a_lost_frame_holds_and_a_lost_camera_stops():
    robot = FakeRobot()

    def lose():
        if len(robot.times("observe")) in lost:
            raise RuntimeError("no frame within 5 ms")

    robot.faults["observe"] = lose
    lost = {3}
    report = loop(robot).run(4)
    ((held, times),) = report.held.items()
    assert held.startswith("observe() failed (RuntimeError: no frame within 5 ms; ") and times == 1
    assert robot.last_calls() == ["send", "hold", "send", "send", "stop"]
    lost = range(8, 1000)
    with pytest.raises(RobotError, match=r"no action for 0.095 s .observe.. failed .RuntimeError"):
        loop(robot, safety=Safety(hold_s=0.095, late=0)).run(100)
    assert robot.last_calls()[-1] == "stop"
    robot = FakeRobot()
    robot.faults["observe"] = lambda: 1 / 0
    with pytest.raises(RobotError, match="was not moved: observe.. failed .ZeroDivisionError"):
        loop(robot).run(4)
    assert robot.last_calls() == ["stop"]


@pytest.mark.parametrize(
    ("values", "what", "before", "after"),
    [
        ({"state": np.zeros(2, "f4")}, "observation 'camera'", "(4, 4, 3)", "absent"),
        ({"state": np.zeros(3, "f4"), "camera": np.zeros((4, 4, 3), "u1")}, "observation 'state'", "(2,)", "(3,)"),
        ({"state": np.zeros(2, "f4"), "camera": np.zeros((4, 4, 3))}, "image 'camera'", "uint8", "float64"),
    ],
)  # fmt: skip
def test_observations_with_other_keys_or_shapes_hold(values, what, before, after):
    robot = FakeRobot()
    seen = robot.observe

    def observe():
        whole = seen()
        return Observation(values, whole.stamp_s) if len(robot.times("observe")) == 3 else whole

    robot.observe = observe
    words = f"the {what} was {before} at the beginning and is {after}"
    assert loop(robot).run(4).held == {words: 1}
    assert robot.last_calls() == ["send", "hold", "send", "send", "stop"]


def test_a_driver_that_raises_stops_the_robot_in_one_line():
    robot = failing("send", OSError("bus error"))
    with pytest.raises(
        RobotError, match=r"^send\(\) failed \(OSError: bus error; .*, line \d+\); the robot was"
    ):
        loop(robot).run(4)
    assert robot.last_calls() == ["send", "stop"]


@pytest.mark.parametrize("scale", [1, 1 / 255])
def test_a_frozen_camera_of_integers_or_floats_stops_the_robot(scale):
    robot = FakeRobot()
    robot.frozen, seen = True, robot.observe
    robot.observe = lambda: Observation(
        {**seen().values, "camera": seen().values["camera"] * scale}
    )
    with pytest.raises(RobotError, match="'camera' has been the same for 50 steps"):
        loop(robot).run(100)
    assert len(robot.sent) == 50
    assert robot.last_calls()[-1] == "stop"


def test_a_robot_without_stamps_and_one_that_gives_a_plain_mapping_are_reported():
    plain, seen = FakeRobot(), FakeRobot().observe
    plain.observe = lambda: seen().values
    for robot in (FakeRobot(stamped=False), plain):
        report = loop(robot).run(2)
        assert report.unstamped and "age was not checked" in str(report)


# (3) Every action is finite and within the limits.


def test_an_action_that_is_not_finite_is_never_sent():
    robot = FakeRobot()
    policy = Constant(lambda step: (0.1, math.nan) if step == 3 else (0.1, 0.1))
    with pytest.raises(RobotError, match="not finite"):
        loop(robot, policy).run(10)
    assert len(robot.sent) == 2
    assert robot.last_calls()[-1] == "stop"


def test_a_policy_that_jumps_is_limited_in_speed():
    robot = FakeRobot(ActionLimits([-1.0, -1.0], [1.0, 1.0], speed=2.0), pose=np.zeros(2))
    policy = Constant(lambda step: (1.0, 1.0) if step % 2 else (-1.0, -1.0))
    report = loop(robot, policy).run(20)
    assert np.abs(np.diff(robot.sent, axis=0)).max() <= 2.0 / RATE + 1e-9
    assert report.limits.changed["step or speed"] == 20


def test_slow_motion():
    robot = FakeRobot(ActionLimits([-1.0, -1.0], [1.0, 1.0], speed=2.0), pose=np.zeros(2))
    loop(robot, Constant((1.0, 0.0)), slow=0.1).run(10)
    np.testing.assert_allclose(robot.sent[-1], [10 * 0.2 / RATE, 0.0])


# (4) The first action begins at the present pose.


def test_the_first_action_approaches_from_the_present_pose():
    robot = FakeRobot(ActionLimits([-1.0, -1.0], [1.0, 1.0], step=0.1), pose=np.array([0.5, 0.0]))
    loop(robot, Constant((-0.5, 0.0))).run(3)
    np.testing.assert_allclose(robot.sent[:, 0], [0.4, 0.3, 0.2])


def test_a_first_action_that_is_too_far_may_be_refused():
    robot = FakeRobot(ActionLimits([-1.0, -1.0], [1.0, 1.0], step=0.1), pose=np.array([0.5, 0.0]))
    with pytest.raises(RobotError, match="first action .* further from the current pose"):
        loop(robot, Constant((-0.5, 0.0)), safety=Safety(first_action="refuse", late=0)).run(3)
    assert len(robot.sent) == 0
    near = FakeRobot(robot.limits, pose=np.array([0.5, 0.0]))
    loop(near, Constant((0.45, 0.0)), safety=Safety(first_action="refuse", late=0)).run(3)
    assert len(near.sent) == 3


def test_a_first_action_that_the_margin_alone_changes_is_not_too_far():
    limits = ActionLimits([-1.0, -1.0], [1.0, 1.0], margin=0.1, step=0.1)
    robot = FakeRobot(limits, pose=np.array([0.85, 0.0]))
    loop(robot, Constant((0.95, 0.0)), safety=Safety(first_action="refuse", late=0)).run(2)
    np.testing.assert_allclose(robot.sent[:, 0], [0.9, 0.9])


def test_a_robot_outside_of_its_limits_is_not_moved():
    robot = FakeRobot(pose=np.array([1.5, 0.0]))
    with pytest.raises(
        RobotError, match=r"in dimension 0 \(at \[1.5\], limits \[-1.\] to \[1.\]\): move"
    ):
        loop(robot).run(3)
    assert robot.last_calls() == ["stop"]


# (5) Without an action the robot holds, then stops.


def test_without_a_planned_action_the_robot_holds_and_then_stops():
    robot = FakeRobot()
    policy = Constant(lambda step: (0.1, 0.1) if step < 3 else None)
    with pytest.raises(RobotError, match=r"no action for 0.095 s \(nothing is planned\)"):
        loop(robot, policy, safety=Safety(hold_s=0.095, late=0)).run(100)
    names = robot.last_calls()
    assert names[:3] == ["send", "send", "hold"]
    assert "send" not in names[2:]
    assert names[-1] == "stop"


@pytest.mark.parametrize("lost_steps", [10, 60])
def test_an_episode_that_ends_in_a_fault_is_no_end(lost_steps):
    """Its steps were over before the fault could stop it."""
    robot, policy = FakeRobot(), Constant(lambda step: (0.1, 0.1) if step <= 20 else None)
    made = loop(robot, policy)
    if lost_steps == 10:
        assert made.run(20 + lost_steps).held == {"nothing is planned": lost_steps}
    else:
        with pytest.raises(RobotError, match=r"ended in a fault.* last 0.6 s \(nothing is planned"):
            made.run(20 + lost_steps)
    assert robot.last_calls() == ["send"] * 20 + ["hold"] * lost_steps + ["stop"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFiniteError("observation 'state' has NaN: look"), "observation 'state' has NaN"),
        (ConnectionError("no answer"), "the server does not answer"),
    ],
)
def test_a_policy_that_cannot_answer_for_a_moment_holds(error, reason):
    def act(step):
        if step in (2, 3):
            raise error
        return (0.1, 0.1)

    robot = FakeRobot()
    report = loop(robot, Constant(act)).run(6)
    assert report.held == {reason: 2}
    assert robot.last_calls() == ["send", "hold", "hold", "send", "send", "send", "stop"]


def test_a_server_that_does_not_answer_before_the_start_leaves_the_robot_at_rest():
    class Unreachable(Constant):
        def start_episode(self, lang=None):
            raise ConnectionError("ws://host was not reached")

    robot = FakeRobot()
    with pytest.raises(RobotError, match="not moved: ws://host was not reached"):
        loop(robot, Unreachable()).run(3)
    assert robot.last_calls() == ["stop"]


def test_a_plan_that_cannot_be_cut_yet_is_not_executed():
    class Deaf(Constant):
        def cut_plan(self):
            super().cut_plan()
            if self.cuts < 3:
                raise ConnectionError("no answer")

    policy, person = Deaf(), Scripted({2: Guidance(np.array([-0.5, 0.0]))})
    report = loop(FakeRobot(), policy, teleoperator=person).run(6)
    assert report.held == {"the server does not answer": 2}
    assert policy.cuts == 3


def test_after_a_hold_the_command_begins_at_rest_again():
    # At 100 Hz an acceleration of 1000 changes the step by 0.1 each time; the pose is 0 at each hold.
    robot = FakeRobot(ActionLimits([-1.0, -1.0], [1.0, 1.0], acceleration=1000.0), pose=np.zeros(2))
    policy = Constant(lambda step: None if step == 4 else (1.0, 0.0))
    loop(robot, policy).run(6)
    np.testing.assert_allclose(robot.sent[:, 0], [0.1, 0.3, 0.6, 0.1, 0.3])


# (6) Lateness.


def test_late_steps_need_not_be_in_a_row():
    robot = FakeRobot()
    policy = Constant(lambda step: clock.sleep(0.04 if step % 3 == 0 else 0) or (0.1, 0.1))
    with pytest.raises(RobotError, match="3 of the last .* control steps were late"):
        loop(robot, policy, safety=Safety(late=3, late_of=10)).run(100)
    assert robot.last_calls() == 9 * ["send"] + ["stop"]


@pytest.mark.parametrize(
    ("call", "seconds", "words"),
    [
        (
            "observe",
            0.04,
            r"observe\(\) took up to 40 ms of a period of 10 ms; let it return at once",
        ),
        ("send", 0.04, r"send\(\) took up to 40 ms"),
        ("policy", 0.012, "the policy took up to 12 ms of a period of 10 ms; use a smaller policy"),
        ("on_step", 0.04, "such as recording, took up to 40 ms"),
    ],
)
def test_late_steps_are_blamed_on_what_took_the_time(call, seconds, words, monkeypatch):
    monkeypatch.setattr("imitate.deploy.robot.loop.machine_is_busy", lambda: False)
    robot = FakeRobot()
    robot.faults[call] = lambda: clock.sleep(seconds * bool(robot.times("send")))
    policy = Constant(lambda step: clock.sleep(seconds * (call == "policy")) or (0.1, 0.1))
    slow = (lambda step: clock.sleep(seconds)) if call == "on_step" else None
    with pytest.raises(RobotError, match=words):
        loop(robot, policy, safety=Safety(late=3), on_step=slow).run(100)


def test_a_late_policy_on_a_busy_machine_may_be_the_fault_of_others(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    words = "10 ms on a busy machine; end other programs, or use a smaller policy"
    slow = Constant(lambda step: clock.sleep(0.012) or (0.1, 0.1))
    with pytest.raises(RobotError, match=words):
        loop(FakeRobot(), slow, safety=Safety(late=3)).run(100)
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    with pytest.raises(RobotError, match="10 ms; use a smaller policy"):
        loop(FakeRobot(), slow, safety=Safety(late=3)).run(100)


# (7) A stop that fails.


def test_a_slow_stop_is_reported():
    robot = FakeRobot()
    assert not slow_stop(loop(robot).run(2).stop_s)
    robot.faults["stop"] = lambda: clock.sleep(1.0)
    assert "stop() took 1.0 s" in slow_stop(loop(robot).run(2).stop_s)


def test_what_the_policy_must_not_act_on_holds_and_a_person_may_act_on_it():
    robot, policy = FakeRobot(), Constant()
    person = Scripted({step: Guidance(np.array([0.5, 0.0])) for step in (4, 5)})
    strange = iter(["", "", "odd", "odd", "odd", ""])
    made = loop(robot, policy, teleoperator=person, look=lambda seen: next(strange))
    assert made.run(6).held == {"odd": 1}
    assert robot.last_calls() == ["send", "send", "hold", "send", "send", "send", "stop"]
    assert policy.step == 3


def test_a_stop_that_raises_is_tried_again():
    robot = failing("stop", OSError("bus error"), times=2)
    loop(robot).run(2)
    assert len(robot.times("stop")) == 3


def test_a_stop_that_never_works_says_what_to_do():
    for times, calls in ((math.inf, 6), (3, 4)):
        robot = failing("stop", OSError("bus error"), times)
        with pytest.raises(RobotError, match="PRESS THE EMERGENCY STOP"):
            loop(robot).run(2)
        assert len(robot.times("stop")) == calls


@pytest.mark.parametrize("place", ["observe", "send", "stop"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_ctrl_c_anywhere_stops_the_robot(place, call):
    robot = FakeRobot()

    def interrupt():
        if len(robot.times(place)) == call:
            raise KeyboardInterrupt

    robot.faults[place] = interrupt
    if place == "stop" and call > 1:
        loop(robot).run(5)  # there is one stop
        return
    with pytest.raises(KeyboardInterrupt):
        loop(robot).run(5)
    assert robot.last_calls()[-1] == "stop"
    assert robot.last_calls().count("stop") >= (2 if place == "stop" else 1)


def test_ctrl_c_at_each_line_of_the_loop_stops_the_robot():
    """A real interrupt lands on any line: one is raised at each line that an episode runs, one after the other."""
    import imitate.deploy.robot.limits as limits
    import imitate.deploy.robot.loop as module
    import imitate.deploy.robot.watchdog as watchdog

    files = {m.__file__ for m in (module, limits)}
    own = threading.get_ident()

    def lines(limit):
        """Run an episode that is interrupted at its ``limit``-th line; the number of lines that were run."""
        seen = 0

        def trace(frame, event, arg):
            nonlocal seen
            if frame.f_code.co_filename not in files or threading.get_ident() != own:
                return None
            if event == "line":
                seen += 1
                if seen == limit:
                    raise KeyboardInterrupt
            return trace

        robot = FakeRobot()
        made = ControlLoop(robot, Constant(), 1000.0, safety=CALM, any_rate=True)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            made.run(2)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return seen, robot

    total, _ = lines(-1)
    assert total > 50
    moved = 0
    for limit in range(1, total + 1):
        _, robot = lines(limit)
        names = robot.last_calls()
        if "send" in names:
            moved += 1
            assert names[-1] == "stop", f"interrupted at line {limit} of {total}"
    assert moved > 20
    assert watchdog.stop_robot is not None


# (8) Reports, rates, keys.


def test_a_report_counts_what_happened():
    robot = FakeRobot(ActionLimits([-0.05, -1.0], [0.05, 1.0]))
    report = loop(robot).run(4)
    assert report.latencies_ms == [0.0] * 4
    np.testing.assert_allclose(report.gaps, [1.0] * 3)
    report.latencies_ms, report.gaps, report.late = [1.0, 2.0, 3.0], [1.0, 1.2, 1.3], 1
    report.held["nothing is planned"], report.interventions, report.unstamped = 2, 3, True
    assert str(report) == (
        "4 steps, latency p50 2.00 ms, p95 2.90 ms, p99 2.98 ms, max 3.00 ms, 1 late, held 2 (nothing is planned), "
        "3 by a person, 4 limited by box, actions changed by up to 0.05, "
        "observations have no time stamp, so their age was not checked"
    )
    empty = {"steps": 0, "late": 0, "held": {}, "interventions": 0, "limited": {}, "latency_ms": {}}
    empty["limited_by_up_to"] = 0.0
    empty |= {"gap_periods": {}, "long_gaps": 0, "freshness_checked": True, "ended_by": "steps"}
    assert (Report().to_dict(), str(Report())) == (empty, "0 steps, 0 late")
    found = report.to_dict()
    for name, p50, p95, p99, most in (
        ("latency_ms", 2, 2.9, 2.98, 3),
        ("gap_periods", 1.2, 1.29, 1.298, 1.3),
    ):
        assert found.pop(name) == pytest.approx({"p50": p50, "p95": p95, "p99": p99, "max": most})
        del empty[name]
    counted = {"steps": 4, "late": 1, "held": {"nothing is planned": 2}, "interventions": 3}
    counted |= {
        "limited": {"box": 4},
        "limited_by_up_to": pytest.approx(0.05),
        "long_gaps": 1,
        "freshness_checked": False,
    }
    assert found == empty | counted


def test_another_rate_than_the_datas_or_the_robots_is_refused_unless_it_is_allowed():
    with pytest.raises(UserError, match="the rate is 50 Hz, .* demonstrations have 100 Hz"):
        ControlLoop(FakeRobot(), Constant(), 50.0)
    ControlLoop(FakeRobot(), Constant(), 50.0, any_rate=True)
    robot = FakeRobot()
    robot.rate_hz = 20.0
    with pytest.raises(UserError, match="the rate is 100 Hz, but the robot needs .* at 20 Hz"):
        loop(robot)
    with pytest.raises(UserError, match="at 20 Hz"):
        ControlLoop(robot, None, RATE, teleoperator=Scripted({}))
    loop(robot, any_rate=True)
    robot.rate_hz = 100.5  # within 1 %
    loop(robot)


def test_missing_observations_are_told_before_anything_moves():
    robot, policy = FakeRobot(), Constant()
    policy.obs_keys = ("state", "wrist")
    with pytest.raises(UserError, match="'wrist', which the robot does not .* gives state, camera"):
        loop(robot, policy)
    assert robot.calls == []


def test_a_dry_run_sends_nothing_and_is_watched_as_a_run_is():
    robot = FakeRobot()
    assert loop(robot, dry_run=True, safety=Safety(watchdog_s=0.3, late=0)).run(60).steps == 60
    assert robot.last_calls() == ["stop"]
    patient = Safety(watchdog_s=0.3, hold_s=9.0, late=0)
    held = loop(robot, Constant(lambda step: None), dry_run=True, safety=patient).run(60).held
    assert held == {"nothing is planned": 60} and robot.last_calls() == ["stop"] * 2
    with pytest.raises(RobotError, match="watchdog"):
        loop(FakeRobot(), slow_at(3, 0.9), dry_run=True, safety=WATCHED).run(5)


# Take-over.


def test_a_person_takes_over_and_the_policy_plans_anew_afterwards():
    robot, policy = FakeRobot(), Constant()
    person = Scripted({step: Guidance(np.array([-0.5, 0.0])) for step in (3, 4)})
    steps = []
    report = loop(robot, policy, teleoperator=person, on_step=steps.append).run(6)
    np.testing.assert_allclose(robot.sent[:, 0], [0.1, 0.1, -0.5, -0.5, 0.1, 0.1])
    assert [step.intervened for step in steps] == [False, False, True, True, False, False]
    np.testing.assert_allclose([step.wanted[0] for step in steps], [0.1] * 6)
    assert policy.cuts == 1
    assert report.interventions == 2
    np.testing.assert_allclose(np.array(person.followed), robot.sent)


def test_a_hand_over_makes_no_jump():
    robot = FakeRobot(ActionLimits([-1.0, -1.0], [1.0, 1.0], speed=2.0), pose=np.zeros(2))
    person = Scripted({step: Guidance(np.array([-1.0, 0.0])) for step in range(6, 12)})
    loop(robot, Constant((1.0, 0.0)), teleoperator=person).run(20)
    assert np.abs(np.diff(robot.sent, axis=0)).max() <= 2.0 / RATE + 1e-9


def test_events_end_an_episode():
    person = Scripted({3: Guidance(events=frozenset({"success"}))})
    report = loop(FakeRobot(), teleoperator=person).run(None)
    assert report.steps == 3
    assert report.ended_by == "success"


def test_a_robot_that_tells_success_may_end_an_episode():
    robot = FakeRobot()
    robot.success = lambda: len(robot.sent) >= 4
    report = loop(robot).run(10, until_success=True)
    assert (report.steps, report.ended_by) == (4, "success")
    assert loop(FakeRobot()).run(3, until_success=True).ended_by == "steps"


def test_without_a_policy_the_person_moves_the_robot():
    robot = FakeRobot()
    script = {step: Guidance(np.array([0.3, 0.0])) for step in (1, 2, 4)}
    script[5] = Guidance(events=frozenset({"end"}))
    report = ControlLoop(robot, None, RATE, teleoperator=Scripted(script), safety=CALM).run(None)
    assert robot.last_calls() == ["send", "send", "hold", "send", "hold", "stop"]
    assert report.held == {"nobody acts": 2}
    with pytest.raises(UserError, match="but one must act"):
        ControlLoop(robot, None, RATE)


def test_a_person_may_pause_for_longer_than_a_policy():
    person = Scripted({40: Guidance(events=frozenset({"end"}))})
    safety = Safety(late=0, hold_s=0.095)
    made = ControlLoop(FakeRobot(), None, RATE, teleoperator=person, safety=safety)
    assert made.run(None).held == {"nobody acts": 40}


def test_a_recorder_that_fails_stops_the_robot():
    def full(step):
        raise OSError(28, "No space left on device")

    robot = FakeRobot()
    with pytest.raises(OSError, match="No space"):
        loop(robot, on_step=full).run(5)
    assert robot.last_calls() == ["send", "stop"]


def test_observations_are_passed_on_as_they_are():
    seen = []

    class Looking(Constant):
        def __call__(self, ob):
            seen.append(set(ob))
            return super().__call__(ob)

    loop(FakeRobot(), Looking()).run(2)
    assert seen == [{"state", "camera"}] * len(seen) != []


def test_a_stop_may_take_three_tenths_of_a_second():
    assert slow_stop(0.3) == ""
    assert slow_stop(0.31) == (
        "stop() took 0.3 s, and the robot may have moved meanwhile; wanted at most 0.3 s: stop() should send the "
        "command and return at once"
    )


@pytest.mark.parametrize(
    ("own", "rate", "fits"),
    [
        (100.0, 101.0, True),
        (100.0, 99.0, True),
        (100.0, 101.1, False),
        (100.0, 98.9, False),
        (None, 1.0, True),
    ],
)
def test_a_rate_may_differ_from_the_robots_by_a_hundredth(own, rate, fits):
    robot = FakeRobot()
    robot.rate_hz = own
    if fits:
        check_robot_rate(robot, rate)
        return
    with pytest.raises(
        UserError, match=f"^the rate is {rate} Hz, but the robot needs .* at 100 Hz"
    ):
        check_robot_rate(robot, rate)
