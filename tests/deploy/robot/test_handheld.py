"""Pushes and buttons become actions: dead band, axes, holding, gripper, grace, hand-over."""

import sys
import termios

import numpy as np
import pytest

from imitate.deploy.robot.handheld import Handheld, Pushes
from imitate.deploy.robot.limits import ActionLimits
from imitate.errors import UserError
from imitate.system import clock
from tests.deploy.devices import ARM, Source, handheld
from tests.deploy.fake_robot import FakeRobot
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("virtual_time")

REST = [0.0] * 6


class Person:
    """A person at a device: `act("rb", x=1.0)` is what it gives while so much is pressed and pushed."""

    def __init__(self, **options):
        self.source = Source()
        self.hand = handheld(self.source, **options)

    def guidance(self, buttons="", **pushes):
        self.source.buttons, self.source.pushes = set(buttons.split()), pushes
        return self.hand.guide(None)

    def act(self, buttons="", **pushes):
        action = self.guidance(buttons, **pushes).action
        return None if action is None else action.tolist()

    def grip(self, *buttons):
        return self.act(" ".join(["rb", *buttons]))[-1]


def test_nothing_moves_unless_the_button_is_held():
    person = Person()
    assert person.act(x=1.0, rz=-1.0) is None
    assert person.act("rb", x=1.0, rz=-1.0) == [0.5, 0, 0, 0, 0, -0.5, -1.0]
    assert person.act(x=1.0, rz=-1.0) is None


def test_what_is_held_at_the_beginning_of_an_episode_moves_nothing_and_ends_nothing():
    person = Person()
    assert person.act("rb", x=1.0) is not None
    person.hand.start_episode()  # the episode before ended by itself
    assert person.act("rb", x=1.0) is None
    person.act(x=1.0)
    assert person.act("rb", x=1.0) is not None
    person.source.buttons = {"ok"}  # pressed while the robot resets itself
    person.hand.start_episode()
    assert person.guidance("ok", x=1.0).events == frozenset()
    person.act(x=1.0)
    assert person.guidance("ok", x=1.0).events == {"success"}


def test_pushing_suffices_where_no_button_has_to_be_held():
    person = Person(hold=False)
    assert person.act() is None
    assert person.act(y=1.0) == [0, 0.5, 0, 0, 0, 0, -1.0]
    assert person.act("rb") == [*REST, -1.0]  # the button keeps control without a push


@pytest.mark.parametrize(
    ("push", "part"), [(0.1, 0.0), (-0.1, 0.0), (0.55, 0.5), (-1.0, -1.0), (1.3, 1.0)]
)
def test_a_push_begins_at_the_edge_of_the_dead_band(push, part):
    assert Person(scale=1.0).act("rb", x=push)[0] == pytest.approx(part)


FEW = {"gripper": False}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"axes": ["-y", None, "x", "rz", None, None]}, [-0.5, 0, 0.5, 0.5, 0, 0, -1.0]),
        ({"robot": FakeRobot(), **FEW}, [0.5, 0.5]),  # fewer numbers take the first axes
        # A push is a part of the robot's range: its middle + half the half range.
        ({"robot": FakeRobot(ActionLimits([0.0, -4.0], [2.0, 4.0])), **FEW}, [1.5, 2.0]),
    ],
)
def test_axes_may_be_chosen_turned_around_and_left_out(options, wanted):
    assert Person(**options).act("rb", x=1.0, y=1.0, z=1.0, rz=1.0) == pytest.approx(wanted)


def test_buttons_close_open_and_toggle_the_gripper():
    grip = Person().grip
    assert [grip(), grip("rt"), grip()] == [-1.0, 1.0, 1.0]  # released, and it stays closed
    assert [grip("lt"), grip("g"), grip("g")] == [-1.0, 1.0, 1.0]  # still down: no second toggle
    assert [grip(), grip("g")] == [1.0, -1.0]


def test_a_gripper_may_open_upwards():
    person = Person(gripper="inverted")
    assert [person.grip(), person.grip("rt")] == [1.0, -1.0]


def test_a_button_of_the_gripper_is_no_command_while_the_act_button_is_up():
    person = Person()
    assert person.act("rt") is None and person.grip() == -1.0


def test_without_holding_a_button_of_the_gripper_acts_for_half_a_second():
    person = Person(hold=False)
    assert person.act("g") == [*REST, 1.0]
    clock.sleep(0.49)
    assert person.act() == [*REST, 1.0]
    clock.sleep(0.02)
    assert person.act() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dead_band": -0.1}, "dead_band is -0.1; wanted a number in [0, 1)"),
        ({"dead_band": 1.0}, "dead_band is 1.0"),
        ({"grace_s": -0.1}, "grace_s is -0.1; wanted seconds, at least 0"),
        ({"grace_s": np.nan}, "grace_s is nan"),
        ({"buttons": {"rb": "akt"}}, "a button cannot be 'akt'; did you mean 'act'"),
        ({"buttons": {"rb": "open"}}, "no button has the role 'act'"),
        ({"axes": ["x", "-w"]}, "there is no axis '-w'"),
        ({"axes": ["x"]}, 'the robot"s actions have 6 numbers beside the gripper, and 1 axes'),
        ({"axes": ["x"] * 6, "gripper": False}, "actions have 7 numbers, and 6 axes are given"),
        ({"gripper": False}, "actions have 7 numbers, and 6 axes are given"),
    ],
)
def test_settings_that_do_not_fit(options, words):
    with refused(words, error=UserError):
        Person(**options)


def test_the_device_says_what_its_buttons_do(capsys):
    source = Source()
    hand = handheld(source, buttons={"rb": "act", "ok": "success"}, dead_band=0.0)
    assert capsys.readouterr().err == "device: rb act; ok success\n"
    assert source.opened == 1
    hand.close()
    assert source.opened == 0
    assert Person(hold=False, buttons={}).act(x=1.0) is not None


def test_taking_over_keeps_the_gripper_as_the_policy_left_it():
    person = Person()
    person.hand.follow(np.array([*REST, 1.0]))
    assert [person.grip(), person.grip("lt")] == [1.0, -1.0]
    person.hand.follow(np.array([*REST, 0.6]))  # the person's own, shortened by the limits
    assert person.grip() == -1.0


def test_after_a_push_the_pose_is_kept_for_a_moment():
    person = Person(grace_s=0.15)
    assert (person.act("rb rt", x=1.0)[0], person.act(x=1.0)) == (0.5, [*REST, 1.0])
    clock.sleep(0.2)
    assert person.act(x=1.0) is None


def test_buttons_end_episodes_once_and_the_next_one_begins_at_rest():
    person = Person()
    assert person.act("rb rt", x=1.0) is not None
    guidance = person.guidance("rb ok", x=1.0)
    assert (guidance.action, guidance.events) == (None, {"success"})
    guidance = person.guidance("rb ok", x=1.0)  # still held: it waits to be released
    assert (guidance.action, guidance.events) == (None, frozenset())
    assert person.act(x=1.0) is None
    assert person.act("rb", x=1.0) == [0.5, 0, 0, 0, 0, 0, -1.0]  # and it is open


def test_a_device_that_is_pushed_at_the_beginning_does_nothing_until_it_is_released():
    source = Source()
    source.pushes, source.buttons = {"x": 1.0}, {"ok"}
    hand = handheld(source, hold=False)
    assert hand.guide(None).action is None
    assert hand.guide(None).events == frozenset()  # nor is a button that was down before an event
    for push, action in ((0.0, None), (1.0, 0.5)):
        source.pushes = {"x": push}
        got = hand.guide(None).action
        assert action == (None if got is None else got[0])


def test_keys_of_a_terminal_end_episodes_beside_a_devices_buttons(terminal, capsys):
    before = termios.tcgetattr(terminal.stdin)
    roles = {
        "buttons": {"rb": "act", "ok": "success"},
        "hold": True,
        "dead_band": 0.0,
        "grace_s": 0.0,
    }
    source = Source()
    hand = Handheld(source, Pushes(0.5, True, "relative"), axes=None, **roles)
    hand.connect(FakeRobot(ARM))
    assert capsys.readouterr().err == (
        "device: rb act; ok success; in the terminal: Enter success, x failure, Backspace discard, z redo, . end, "
        "Esc quit\n"
    )
    assert termios.tcgetattr(terminal.stdin) != before
    hand.guide(None)
    terminal.press("qx")  # q means nothing
    source.buttons = {"ok"}
    assert hand.guide(None).events == {"failure", "success"}
    hand.close()
    assert termios.tcgetattr(terminal.stdin) == before and source.opened == 0


def test_without_keys_or_a_terminal_none_are_read(terminal, monkeypatch):
    before = termios.tcgetattr(terminal.stdin)
    hand = handheld(Source(), keys=False)
    assert termios.tcgetattr(terminal.stdin) == before
    hand.close()
    with open("/dev/null") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        hand = handheld(Source(), keys=True)
        assert hand.guide(None).events == frozenset()
        hand.close()
