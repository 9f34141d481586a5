"""ALOHA's expert with arms that follow their commands, in place of the simulator."""

import numpy as np
import pytest

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
