"""Raw reports of a SpaceMouse become pushes and buttons."""

import inspect
import sys

import numpy as np
import pytest

from imitate.deploy.robot.spacemouse import (
    AXES,
    PRODUCTS,
    Cap,
    HIDSpaceMouse,
    SpaceMouse,
    spacemice,
)
from imitate.errors import RobotError, UserError
from imitate.system import clock
from tests.deploy.devices import ARM, FakeHID, both, buttons, hid_device, pushes, turns
from tests.deploy.fake_robot import FakeRobot
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("virtual_time")


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
        (pushes(0, 0, -32768), [0, 0, 1, 0, 0, 0]),
        (turns(0, -350, 0), [0, 0, 0, 1, 0, 0]),
        (turns(-350, 0, 0), [0, 0, 0, 0, 1, 0]),
        (turns(0, 0, -350), [0, 0, 0, 0, 0, 1]),  # anticlockwise, seen from above
        (both(-35, -70, -105, -140, -175, -210), [0.2, 0.1, 0.3, 0.5, 0.4, 0.6]),
        ([23, 90], [0] * 6),  # the battery
        ([23, *[90] * 6], [0] * 6),
        ([1, 94, 1, 94, 1, 94], [0] * 6),  # cut off
        ([2, *[94, 1] * 6], [0, 0, 0, -1, -1, -1]),  # longer than it can be
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
    assert cap.reading(10.5).axes["forward"] == 1.0
    assert set(cap.reading(10.51).axes.values()) == {0.0}


def test_by_default_a_full_push_is_three_tenths_and_the_pose_is_kept_as_long(hid):
    hand = SpaceMouse(keys=False, source=HIDSpaceMouse(hid=hid))
    hand.connect(FakeRobot(ARM, pose=np.zeros(7)))
    assert hand.guide(None).action is None
    hid.reports = [pushes(0, -35, 0)]  # a tenth of the travel
    assert hand.guide(None).action is None
    hid.reports = [pushes(0, -350, 0)]
    assert hand.guide(None).action[0] == pytest.approx(0.3)
    hid.reports = [pushes(0, 0, 0)]
    clock.sleep(0.29)
    assert hand.guide(None).action.tolist() == [0.0] * 6 + [-1.0]
    clock.sleep(0.02)
    assert hand.guide(None).action is None


@pytest.mark.parametrize(
    ("index", "fails", "words"),
    [
        (1, False, "there is no SpaceMouse 1: 1 are connected"),
        (0, True, "the SpaceMouse 'SpaceMouse Compact' cannot be opened (open failed)"),
    ],
)
def test_a_device_that_cannot_be_opened(index, fails, words):
    with refused(words, error=UserError):
        HIDSpaceMouse(index, FakeHID(fails_to_open=fails)).open()


def test_a_device_that_is_disconnected(hid, hand):
    hid.gone = True
    with refused("'SpaceMouse Compact' was disconnected (read error); the", error=RobotError):
        hand.guide(None)


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


def test_only_interfaces_with_six_axes_are_spacemice():
    found = [
        hid_device(path=b"1"),
        hid_device(path=b"1"),  # again, for another usage
        hid_device(usage=6, path=b"2"),  # the keyboard of a receiver
        hid_device(usage_page=0, usage=0, path=b"3"),  # usage unknown
        hid_device(product_id=0xC650, path=b"4"),  # a CadMouse
        hid_device(vendor_id=0x1234, path=b"5"),
        hid_device(vendor_id=0x046D, product_id=0xC626, path=b"6"),
        hid_device(usage_page=0, path=b"7"),
        hid_device(usage=0, path=b"8"),
        hid_device(usage_page=None, usage=None, path=b"9"),
        {"product_id": 0xC635, "path": b"10"},
        {"vendor_id": 0x256F, "product_id": 0xC635, "path": b"11"},
        {"vendor_id": 0x256F, "path": b"12"},
    ]
    assert [device["path"] for device in spacemice(found)] == [b"1", b"3", b"6", b"9", b"11"]


def test_reading_takes_no_time(hid, hand):
    hid.reports = [pushes(0, -350, 0)] * 100
    hand.guide(None)
    assert hid.reports == []  # all that waited was read, and nothing was waited for


def test_the_first_of_the_known_devices_is_opened_by_default():
    known = {
        0x046D: "C623 C625 C626 C627 C628 C629 C62B",
        0x256F: "C62E C62F C631 C632 C633 C635 C636 C638 C63A C641 C652",
    }
    assert {
        vendor: {int(name, 16) for name in names.split()} for vendor, names in known.items()
    } == PRODUCTS
    assert inspect.signature(SpaceMouse).parameters["index"].default == 0


def test_a_device_without_a_product_has_the_usual_name_and_is_closed_once(hid, monkeypatch):
    monkeypatch.setattr(hid, "enumerate", lambda: [hid_device(path=b"m")])
    source, asked, closed = HIDSpaceMouse(hid=hid), [], []
    monkeypatch.setattr(hid, "set_nonblocking", asked.append)
    monkeypatch.setattr(hid, "close", lambda: closed.append(1))
    source.close()
    source.open()
    assert (source.name, asked) == ("SpaceMouse", [True])
    monkeypatch.setattr(hid, "read", lambda most: asked.append(most))
    assert set(source.read().axes.values()) == {0.0}
    assert asked == [True, 64]
    source.close()
    source.close()
    assert closed == [1]


def test_buttons_are_named_by_their_numbers():
    cap = Cap()
    assert cap.reading(0.0).buttons == frozenset()
    cap.take(buttons(0b1000_0000_0101), 0.0)
    assert cap.reading(99.0).buttons == {"0", "2", "11"}
    cap.take([3], 0.0)
    assert cap.reading(0.0).buttons == frozenset()


def test_hidapi_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hid", None)
    with refused("spacemouse: the package 'hid", error=UserError):
        HIDSpaceMouse().open()
    monkeypatch.setitem(sys.modules, "hid", FakeHID())
    source = HIDSpaceMouse()
    source.open()
    assert source.name == "SpaceMouse Compact"
