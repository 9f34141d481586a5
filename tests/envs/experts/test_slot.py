from importlib.metadata import EntryPoint

import numpy as np
import pytest

from imitate.envs.experts import Style, expert, find_expert
from imitate.envs.experts.pick_and_place import LiftExpert
from imitate.errors import EnvError


class Forward:
    """An expert of another package."""

    env_name = "other_package:Reach-v0"
    horizon = 7
    motion_axes = 1
    instruction = None
    env_kwargs = {}
    dense_kwargs = None
    acts_as_person = False

    def __init__(self, style):
        self.style = style

    def act(self, obs):
        return np.ones(1)


def forward_of(env_name):
    if env_name != Forward.env_name:
        raise EnvError(f"no expert for {env_name}")
    return Forward


def test_an_installed_package_brings_experts_for_its_environments(monkeypatch):
    point = EntryPoint("other_package", f"{__name__}:forward_of", expert.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: forward_of)
    monkeypatch.setattr(expert, "installed_points", lambda group: [point] * (group == expert.GROUP))
    kind = find_expert("other_package:Reach-v0")
    assert kind(Style.sample(np.random.default_rng(0))).act({}) == 1.0
    with pytest.raises(EnvError, match="no expert for other_package:Push-v0"):
        find_expert("other_package:Push-v0")


@pytest.mark.parametrize(
    ("env_name", "words"),
    [
        ("Stck", "no scripted expert for 'Stck'; did you mean 'Stack'"),
        ("my_package:Reach-v0", "entry point 'my_package' in the group imitate.experts"),
        ("gymnasium_robotics:FetchSlide-v4", "no scripted expert for 'gymnasium_robotics:FetchSli"),
        (
            "gym_aloha:gym_aloha/AlohaInsertion-v0",
            "there is one for gym_aloha:gym_aloha/AlohaTransferCube-v0",
        ),
        ("metaworld:psh-v3", "no task 'psh-v3'; did you mean 'push-v3'"),
    ],
)
def test_a_task_without_expert(env_name, words):
    with pytest.raises(EnvError, match=words):
        find_expert(env_name)


def test_experts_that_cannot_be_loaded_are_an_error_of_one_line(monkeypatch):
    point = EntryPoint("broken", "no_such_package.experts:expert_of", expert.GROUP)
    monkeypatch.setattr(expert, "installed_points", lambda group: [point])
    with pytest.raises(EnvError, match="no_such_package.experts:expert_of, which cannot") as error:
        find_expert("broken:Reach-v0")
    assert "\n" not in str(error.value)


def test_robosuites_tasks_need_no_prefix():
    assert find_expert("Lift") is LiftExpert
