"""Exchange of observations and actions between a program and a control loop, call by call."""

import types
from concurrent.futures import Future

import numpy as np
import pytest

from imitate.deploy.robot.exchange import END, ControlThread, Exchange
from imitate.deploy.robot.robot import Guidance, Observation
from imitate.errors import RobotError
from imitate.system import clock

HOLD = Guidance()


class Device:
    """A person's device with what it gives next."""

    def __init__(self):
        self.next, self.started, self.followed = HOLD, 0, []

    def start_episode(self):
        self.started += 1

    def guide(self, observation):
        found, self.next = self.next, HOLD
        return found

    def follow(self, action):
        self.followed.append(action.tolist())


class Loop:
    """A control loop of 10 steps per second whose step is over, so that nothing is waited for."""

    period_s, step_ends_s = 0.1, 0.0

    def __init__(self):
        self.safety = types.SimpleNamespace(hold_s=1e9, oldest_s=lambda period_s, robot: 0.5)


LIMITS = types.SimpleNamespace(size=2, low=np.array([-1.0, 0.5]), high=np.array([1.0, 1.0]))
ROBOT = types.SimpleNamespace(
    limits=LIMITS, reward=lambda: 2.5, success=lambda: True, ended=lambda: 1
)


@pytest.fixture
def world():
    device, loop = Device(), Loop()
    exchange = Exchange(ROBOT, device)
    exchange.attach(loop)
    exchange.begin()
    return exchange, device, loop


def seen(stamp_s=None):
    return Observation({"a": np.zeros(1)}, stamp_s=stamp_s)


def step(action=None, pose=None):
    return types.SimpleNamespace(
        action=None if action is None else np.array(action),
        pose=None if pose is None else np.array(pose),
    )


def outcome(exchange):
    return exchange.outcome(Future())


def test_the_first_outcome_is_an_observation_without_an_action(world):
    exchange, device, _ = world
    assert exchange.guide(first := seen()) == HOLD
    found = outcome(exchange)
    assert found.observation is first
    assert found.action.tolist() == [0.0, 0.5]  # nothing, within the limits
    assert (found.intervened, found.held, found.events) == (False, False, frozenset())
    assert (found.reward, found.success, found.ended) == (2.5, True, True)
    assert device.started == 1
    found.action[:] = 9.0
    exchange.begin()
    exchange.guide(seen())
    assert outcome(exchange).action.tolist() == [0.0, 0.5]


def decided(world, action=(0.25, 0.75), stamp_s=None, given=HOLD):
    """Let the program decide for a first observation; return what the loop is given."""
    exchange, device, _ = world
    exchange.guide(seen(stamp_s))
    outcome(exchange)
    exchange.guide(seen())  # the first guidance of a run
    device.next = given
    assert exchange.decide(np.array(action)) is False
    return exchange.guide(seen())


@pytest.mark.parametrize(
    ("given", "sent", "action", "intervened", "held"),
    [
        (HOLD, [0.25, 0.75], [0.2, 0.7], False, False),
        (Guidance(np.array([0.5, 0.5])), [0.5, 0.5], [0.5, 0.5], True, False),
        (Guidance(np.array([0.5, 0.5])), [0.5, 0.5], None, False, True),
        (HOLD, [0.25, 0.75], None, False, True),
    ],
)
def test_an_outcome_has_the_executed_action(world, given, sent, action, intervened, held):
    exchange = world[0]
    assert decided(world, given=given).action.tolist() == sent
    exchange.on_step(step(action, [0.1, 0.6]))
    exchange.guide(seen())
    found = outcome(exchange)
    assert found.action.tolist() == ([0.1, 0.6] if action is None else action)
    assert (found.intervened, found.held) == (intervened, held)


def test_a_step_that_nobody_decided_gives_no_outcome(world):
    exchange = world[0]
    decided(world)
    exchange.on_step(step([0.2, 0.7]))
    exchange.guide(seen())
    outcome(exchange)
    exchange.guide(seen())  # no action has come
    exchange.on_step(step([0.9, 0.9]))
    exchange.decide(np.array([0.0, 0.5]))
    exchange.guide(seen())
    exchange.on_step(step(None))  # held without a known pose: the last action
    exchange.guide(seen())
    assert outcome(exchange).action.tolist() == [0.9, 0.9]


@pytest.mark.parametrize(("age_s", "sent"), [(0.3, True), (0.8, False)])
def test_an_action_for_an_old_observation_is_not_sent(world, age_s, sent):
    guidance = decided(world, stamp_s=clock.now() - age_s)
    assert (guidance.action is not None) == sent
    world[0].on_step(step(None, [0.1, 0.6]))
    world[0].guide(seen())
    assert outcome(world[0]).held


def test_events_reach_the_next_outcome_and_outdated_actions_do_not(world):
    exchange, device, _ = world
    device.next = Guidance(np.array([0.5, 0.5]), frozenset({"success"}))
    exchange.guide(seen())
    outcome(exchange)
    exchange.enter()
    device.next = Guidance(np.array([0.5, 0.5]), frozenset({"redo"}))
    exchange.decide(np.array([0.25, 0.75]))
    # the device's action was gathered between two runs
    assert exchange.guide(seen()).action.tolist() == [0.25, 0.75]
    exchange.on_step(step([0.2, 0.7]))
    exchange.guide(seen())
    found = outcome(exchange)
    assert found.events == {"success", "redo"} and not found.intervened
    exchange.decide(np.array([0.25, 0.75]))
    exchange.guide(seen())
    exchange.on_step(step([0.2, 0.7]))
    exchange.guide(seen())
    assert outcome(exchange).events == frozenset()
    exchange.follow(np.array([1.0, 1.0]))
    assert device.followed == [[1.0, 1.0]]


def test_the_loop_ends_at_the_programs_wish_or_while_it_computes_for_long(world):
    exchange, _, loop = world
    exchange.guide(seen())
    outcome(exchange)
    loop.safety.hold_s = -1.0
    assert exchange.guide(seen()).events == {END} == {"end"}
    assert exchange.decide(np.array([0.0, 0.5])) is True  # a new run is needed
    exchange.enter()
    loop.safety.hold_s = 1e9
    assert exchange.guide(seen()).events == frozenset()
    exchange.leave()
    assert exchange.guide(seen()).events == {END}


def test_before_the_first_episode_the_pose_is_held_for_the_usual_time():
    exchange, loop = Exchange(ROBOT), Loop()
    exchange.attach(loop)
    loop.safety.hold_s = 1.0
    assert exchange.guide(seen()) == HOLD
    loop.safety.hold_s = -1.0
    assert exchange.guide(seen()).events == {END}


def test_the_end_of_the_run_is_raised(world):
    exchange = world[0]
    run = Future()
    run.set_exception(RobotError("the arm is gone"))
    exchange.wake()
    with pytest.raises(RobotError, match="the arm is gone"):
        exchange.outcome(run)
    run = Future()
    run.set_result(None)
    with pytest.raises(RobotError, match="begin a new episode"):
        exchange.outcome(run)


def test_without_a_device_the_program_acts_alone():
    exchange = Exchange(ROBOT)
    exchange.attach(Loop())
    exchange.begin()
    exchange.guide(seen())
    exchange.decide(np.array([0.25, 0.75]))
    assert exchange.guide(seen()).action.tolist() == [0.25, 0.75]
    exchange.follow(np.zeros(2))


def test_calls_of_a_thread_are_made_in_their_order_and_errors_come_back():
    thread, order = ControlThread(), []
    answers = [thread.submit(lambda n=n: order.append(n) or n) for n in range(3)]
    assert [answer.result(10) for answer in answers] == order == [0, 1, 2]
    with pytest.raises(KeyError):
        thread.submit(lambda: {}["x"]).result(10)
    thread.end(10.0)
    late = thread.submit(lambda: 1)
    with pytest.raises(TimeoutError):
        late.result(0.05)
