"""Raw reports of a SpaceMouse become pushes and buttons; a device that is gone moves nothing."""

import struct
import sys

import numpy as np
import pytest

from imitate.deploy.limits import ActionLimits
from imitate.deploy.loop import ControlLoop, Safety
from imitate.deploy.robot import RobotError, make_teleoperator
from imitate.deploy.spacemouse import AXES, Cap, HIDSpaceMouse, SpaceMouse, spacemice
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot

pytestmark = pytest.mark.usefixtures("virtual_time")

ARM = ActionLimits(low=[-1.0] * 7, high=[1.0] * 7)


def pushes(right, back, down):
    return [1, *struct.pack("<3h", right, back, down)]


def turns(right, back, down):
    return [2, *struct.pack("<3h", right, back, down)]


def both(*values):
    return [1, *struct.pack("<6h", *values)]


def buttons(bits):
    return [3, bits & 0xFF, bits >> 8]


class FakeHID:
    """hidapi with one device, whose reports a test lays down."""

    def __init__(self, product=0xC635, fails_to_open=False):
        self.reports, self.gone, self.closed, self.fails = [], False, False, fails_to_open
        self.product = product

    def enumerate(self):
        keyboard = {
            "vendor_id": 0x046D,
            "product_id": 0xC31C,
            "usage_page": 1,
            "usage": 6,
            "path": b"k",
        }
        mouse = {
            "vendor_id": 0x256F, "product_id": self.product, "usage_page": 1, "usage": 8, "path": b"m",
            "product_string": "SpaceMouse Compact",
        }  # fmt: skip
        return [keyboard, mouse]

    def device(self):
        return self

    def open_path(self, path):
        assert path == b"m"
        if self.fails:
            raise OSError("open failed")

    def set_nonblocking(self, on):
        assert on

    def read(self, most):
        if self.gone:
            raise OSError("read error")
        return self.reports.pop(0) if self.reports else []

    def close(self):
        self.closed = True


@pytest.fixture
def hid():
    return FakeHID()


@pytest.fixture
def hand(hid):
    hand = SpaceMouse(
        scale=1.0, dead_band=0.0, grace_s=0.0, keys=False, source=HIDSpaceMouse(hid=hid)
    )
    hand.connect(FakeRobot(ARM, pose=np.zeros(7)))
    assert hand.guide(None).action is None
    yield hand
    hand.close()
    assert hid.closed


def axes(*reports):
    cap = Cap()
    for report in reports:
        cap.take(report, 10.0)
    return [cap.reading(10.0).axes[axis] for axis in AXES]


@pytest.mark.parametrize(
    ("report", "wanted"),
    [
        (pushes(0, -350, 0), [1, 0, 0, 0, 0, 0]),  # away from the person: forward
        (pushes(-350, 0, 0), [0, 1, 0, 0, 0, 0]),  # to the left
        (pushes(0, 0, -175), [0, 0, 0.5, 0, 0, 0]),  # lifted
        (pushes(0, 0, 32767), [0, 0, -1, 0, 0, 0]),
        (turns(0, -350, 0), [0, 0, 0, 1, 0, 0]),
        (turns(-350, 0, 0), [0, 0, 0, 0, 1, 0]),
        (turns(0, 0, -350), [0, 0, 0, 0, 0, 1]),  # anticlockwise, seen from above
        (both(-35, -70, -105, -140, -175, -210), [0.2, 0.1, 0.3, 0.5, 0.4, 0.6]),
        ([23, 90], [0] * 6),  # the battery
        ([1, 0, 0], [0] * 6),  # cut off
        ([], [0] * 6),
    ],
)
def test_reports_are_pushes_along_the_axes(report, wanted):
    np.testing.assert_allclose(axes(report), wanted, atol=1e-9)


def test_pushes_and_turns_in_two_reports_belong_together():
    np.testing.assert_allclose(axes(pushes(0, -350, 0), turns(0, 0, -350)), [1, 0, 0, 0, 0, 1])


def test_turns_are_about_the_axes_by_the_right_hand_rule():
    """The device's frame (right, back, down) turned into (forward, left, up) keeps turns turns."""
    device = np.eye(3)
    rotation = np.array([axes(pushes(*(350 * v).astype(int)))[:3] for v in device]).T
    turned = np.array([axes(turns(*(350 * v).astype(int)))[3:] for v in device]).T
    np.testing.assert_allclose(rotation, turned, atol=1e-9)
    np.testing.assert_allclose(np.linalg.det(rotation), 1.0)


def test_a_cap_without_reports_counts_as_released():
    cap = Cap()
    cap.take(pushes(0, -350, 0), 10.0)
    assert cap.reading(10.4).axes["forward"] == 1.0
    assert set(cap.reading(10.6).axes.values()) == {0.0}


def test_pushing_acts_and_releasing_lets_the_policy_act(hid, hand):
    hid.reports = [pushes(0, -350, 0), turns(0, 0, -175)]
    np.testing.assert_allclose(hand.guide(None).action, [1, 0, 0, 0, 0, 0.5, -1])
    hid.reports = [pushes(0, 0, 0), turns(0, 0, 0)]
    assert hand.guide(None).action is None


def test_the_newest_report_counts(hid, hand):
    hid.reports = [pushes(0, -350, 0), pushes(0, 350, 0)]
    assert hand.guide(None).action[0] == -1.0


def test_the_left_button_toggles_the_gripper_and_the_right_one_is_success(hid, hand):
    hid.reports = [buttons(1)]
    assert hand.guide(None).action[-1] == 1.0
    hid.reports = [buttons(0), buttons(0)]
    assert hand.guide(None).action[-1] == 1.0
    hid.reports = [buttons(1)]
    assert hand.guide(None).action[-1] == -1.0  # a definite command each time
    hid.reports = [buttons(2)]
    assert hand.guide(None).events == {"success"}


def test_buttons_may_open_and_close_and_a_third_one_hold(hid):
    roles = {"0": "close", "1": "open", "12": "act"}
    hand = SpaceMouse(buttons=roles, grace_s=0.0, keys=False, source=HIDSpaceMouse(hid=hid))
    hand.connect(FakeRobot(ARM, pose=np.zeros(7)))
    hand.guide(None)
    for bits, grip in ((1, 1.0), (1 << 1, -1.0), (1, 1.0), (1 << 12, 1.0)):
        hid.reports = [buttons(bits)]
        assert hand.guide(None).action[-1] == grip


def test_an_unplugged_device_stops_the_robot(hid, hand):
    robot = FakeRobot(ARM, pose=np.zeros(7))

    def vanish():  # the person pushes in the second step
        hid.reports += [pushes(0, -350, 0)] if len(robot.times("observe")) == 3 else []
        hid.gone = len(robot.times("observe")) > 4

    robot.faults["observe"] = vanish
    loop = ControlLoop(robot, None, 100.0, teleoperator=hand, safety=Safety(late=0))
    with pytest.raises(RobotError, match="'SpaceMouse Compact' was disconnected .read error"):
        loop.run(50)
    assert robot.last_calls() == ["hold", "send", "send", "stop"]


def test_only_interfaces_with_six_axes_are_spacemice():
    def device(**given):
        return {
            "vendor_id": 0x256F,
            "product_id": 0xC652,
            "usage_page": 1,
            "usage": 8,
            "path": b"1",
            **given,
        }

    devices = [
        device(),
        device(),  # again, for another usage
        device(usage=6, path=b"2"),  # the keyboard of a receiver
        device(usage_page=0, usage=0, path=b"3"),  # not told
        device(product_id=0xC650, path=b"4"),  # a CadMouse
        device(vendor_id=0x1234, path=b"5"),
        device(vendor_id=0x046D, product_id=0xC626, path=b"6"),
    ]
    assert [found["path"] for found in spacemice(devices)] == [b"1", b"3", b"6"]


def test_what_cannot_be_opened_is_one_line(hid):
    with pytest.raises(UserError, match="there is no SpaceMouse 1; 1 are connected"):
        HIDSpaceMouse(1, hid).open()
    with pytest.raises(UserError, match=r"cannot be opened \(open failed\).*udev rule"):
        HIDSpaceMouse(hid=FakeHID(fails_to_open=True)).open()
    device = make_teleoperator("spacemouse", index=99)  # hidapi itself
    with pytest.raises(UserError, match="there is no SpaceMouse 99"):
        device.connect(FakeRobot(ARM, pose=np.zeros(7)))


def test_without_hidapi_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hid", None)
    with pytest.raises(UserError, match=r"spacemouse: the package 'hid' .*hidapi"):
        HIDSpaceMouse().open()


def test_reading_takes_no_time(hid, hand):
    hid.reports = [pushes(0, -350, 0)] * 100
    hand.guide(None)
    assert hid.reports == []  # all that waited was read, and nothing was waited for
