"""Experts of Meta-World's tasks, with a stand-in for its policies."""

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.envs.experts import Style
from imitate.envs.experts.metaworld import MetaWorldTask, expert_of
from imitate.errors import EnvError


class Policy:
    """Wants three times the goal, and warns as Meta-World's policies do."""

    seen = None

    def get_action(self, vector):
        warnings.warn("beyond its limits", UserWarning, stacklevel=1)
        Policy.seen = vector.tolist()
        return [3 * vector[-1], -3 * vector[-1], 0.5, -0.5]


@pytest.mark.filterwarnings("error")
def test_the_policy_sees_its_vector_and_acts_within_limits():
    sizes = {"hand_pos": 3, "gripper": 1, "object_pos": 3, "object_quat": 4, "object2_pos": 3}
    sizes |= {"object2_quat": 4, "goal": 3}
    numbers = np.arange(21.0)
    parts = np.split(numbers, np.cumsum(list(sizes.values()))[:-1])
    task = MetaWorldTask("metaworld:x", "do it", Policy)
    expert = task(Style.sample(np.random.default_rng(0)))
    action = expert.act(dict(zip(sizes, parts, strict=True)))
    assert action.tolist() == [1.0, -1.0, 0.5, -0.5] and action.dtype == np.float64
    assert Policy.seen == [*range(18), *range(18), 18, 19, 20]


def test_settings_of_all_tasks():
    assert (MetaWorldTask.horizon, MetaWorldTask.motion_axes) == (500, 3)
    assert MetaWorldTask.dense_kwargs == {"reward_shaping": True} and not MetaWorldTask.env_kwargs
    assert MetaWorldTask.acts_as_person is False


def test_a_task_has_its_instruction_and_the_packages_policy(monkeypatch):
    policies = SimpleNamespace(ENV_POLICY_MAP={"push-v3": Policy})
    monkeypatch.setitem(sys.modules, "metaworld", SimpleNamespace(policies=policies))
    monkeypatch.setitem(sys.modules, "metaworld.policies", policies)
    found = expert_of("metaworld:push-v3")
    assert found == MetaWorldTask("metaworld:push-v3", "push the object to the goal", Policy)
    monkeypatch.setitem(sys.modules, "metaworld.policies", None)
    with pytest.raises(EnvError, match="metaworld:push-v3: .*metaworld"):
        expert_of("metaworld:push-v3")


def test_an_unknown_task_is_refused_with_its_neighbour():
    with pytest.raises(EnvError, match="metaworld has no task 'reach-v2'; .*reach-v3"):
        expert_of("metaworld:reach-v2")
