"""ALOHA's expert with arms that follow their commands, in place of the simulator."""

import numpy as np
import pytest

from imitate.envs.experts import aloha
from imitate.envs.experts.aloha import Arm, expert_of
from imitate.errors import EnvError

from .hands import PLAIN

NAME = "gym_aloha:gym_aloha/AlohaTransferCube-v0"


def test_a_transfer_is_the_same_in_each_version():
    expert, right, random = expert_of(NAME)(PLAIN), Arm("right"), np.random.default_rng(0)
    pose = np.concatenate([right.command, [1.0], right.command, [1.0]])
    cube, total, held, actions = np.array([0.15, 0.55, 0.02]), 0.0, False, []
    for _ in range(190):
        action = expert.act({"agent_pos": pose, "object_pos": cube})
        actions.append(action)
        total += float(action @ random.uniform(-1.0, 1.0, 14))
        pose = action.copy()
        held = action[13] == 0.0
        pose[[6, 13]] = np.maximum(action[[6, 13]], 0.6 if held else 0.5)
        cube = right.pose(pose[7:13])[0] if held else cube
    grippers = np.array(actions)[:, [6, 13]]
    # both open; the right one closes; so does the left one; the right one opens
    changes = grippers[np.r_[True, np.any(np.diff(grippers, axis=0), axis=1)]]
    assert changes.tolist() == [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    assert total == pytest.approx(-0.498567299, abs=1e-5)


def test_the_task():
    task = expert_of(NAME)
    assert (task.env_name, task.horizon, task.motion_axes) == (NAME, 300, 0)
    assert task.env_kwargs == {"obs_type": "state"} and not task.acts_as_person
    assert task.dense_kwargs == {"reward_shaping": True}
    with pytest.raises(
        EnvError, match="no scripted expert for 'gym_aloha:gym_aloha/AlohaInsertion"
    ):
        expert_of("gym_aloha:gym_aloha/AlohaInsertion-v0")


# ---- the stages by hand --------------------------------------------------------------------------


class Fingers:
    """An arm whose tip is at its first three angles; notes where it is sent."""

    def __init__(self, side):
        self.level, self.tip = np.eye(3), np.array([7.0, 8.0, 9.0])

    def pose(self, angles):
        return np.array(angles[:3]), np.eye(3)

    def go(self, tip, axes):
        self.aim, self.axes = np.asarray(tip).round(9).tolist(), axes
        return np.zeros(6)


@pytest.fixture
def stages(monkeypatch):
    """Function that shows tips, cube and openings, and returns where both arms go and their openings."""
    arms = []
    monkeypatch.setattr(aloha, "Arm", lambda side: arms.append(Fingers(side)) or arms[-1])
    expert = expert_of(NAME)(PLAIN)
    left_arm, right_arm = arms

    def show(right, cube=(0.0, 0.0, 0.0), left=(9.0, 9.0, 9.0), widths=(1.0, 1.0)):
        seen = np.zeros(14)
        seen[:3], seen[7:10], seen[[6, 13]] = left, right, widths
        action = expert.act({"agent_pos": seen, "object_pos": np.array(cube)})
        assert action.shape == (14,)
        return left_arm.aim, action[6], right_arm.aim, action[13]

    show.arms = arms
    return show


MEET, READY, TIP = [0.0, 0.5, 0.25], [-0.12, 0.5, 0.25], [7.0, 8.0, 9.0]


def test_each_stage_and_its_limits(stages):
    above = (READY, 1.0, [0.0, 0.0, 0.1], 1.0)
    assert stages((0.012, 0, 0.3)) == above and stages((0.0119, 0, 0.3)) == above
    down = (READY, 1.0, [0.0, 0.0, -0.005], 1.0)
    assert stages((0, 0, 0.012)) == down and stages((0, 0, 0.0119)) == down
    grasp = (READY, 1.0, TIP, 0.0)
    assert stages((0, 0, 0), widths=(0, 0.65)) == grasp == stages((0, 0, 0), widths=(1, 0.649))
    carry = (READY, 1.0, MEET, 0.0)
    assert stages((0.012, 0.5, 0.25)) == carry and stages((0.0119, 0.5, 0.25)) == carry
    near = (READY[0] + 0.0239, 0.5, 0.25)
    right = stages.arms[1]
    for count in range(1, 40):
        assert stages((0, 0, 0), left=near) == carry
        cos, sin = np.cos(np.pi / 2 - 0.04 * count), np.sin(np.pi / 2 - 0.04 * count)
        wanted = [[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]]
        if count in (1, 39):  # its pitch falls by 0.04 in each step
            np.testing.assert_allclose(right.axes, wanted, atol=1e-12)
    assert stages((0, 0, 0), left=(READY[0] + 0.0241, 0.5, 0.25)) == carry
    np.testing.assert_allclose(right.axes, np.eye(3), atol=1e-12)
    assert stages((0, 0, 0), left=near) == carry
    cube = (0.3, 0.4, 0.5)
    take = (list(cube), 1.0, MEET, 0.0)
    assert stages((0, 0, 0), cube, left=(0.3, 0.4, 0.5121)) == take
    assert stages((0, 0, 0), cube, left=(0.3, 0.4, 0.5119)) == take
    assert stages((0, 0, 0), widths=(0.8, 0.9)) == (TIP, 0.0, MEET, 0.0)
    assert stages((0, 0, 0), widths=(0.79, 0.9)) == (TIP, 0.0, MEET, 1.0)
    assert stages((0, 0, 0), widths=(0.79, 0.91)) == (TIP, 0.0, [0.15, 0.5, 0.25], 1.0)
    np.testing.assert_allclose(stages.arms[0].axes, [[1, 0, 0], [0, 0, -1], [0, 1, 0]], atol=1e-12)


def test_a_step_towards_a_pose():
    arm = Arm("left")
    level, tip = arm.level, arm.tip.copy()
    command = arm.command.copy()
    arm.go(tip + [0.0, 0.024, 0.0], level)
    np.testing.assert_allclose(arm.tip, tip + [0.0, 0.012, 0.0])  # 12 mm in a step
    assert np.abs(arm.command - command).max() == pytest.approx(0.06)  # and 0.06 rad
    for _ in range(80):
        arm.go(tip + [0.0, 0.024, 0.0], level)
    np.testing.assert_allclose(arm.tip, tip + [0.0, 0.024, 0.0])
    found, axes = arm.pose(arm.command)
    np.testing.assert_allclose(found, arm.tip, atol=2e-4)
    np.testing.assert_allclose(axes, level, atol=2e-3)
