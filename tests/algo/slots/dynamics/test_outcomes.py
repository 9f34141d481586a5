"""Known rewards and ends, and the penalty of uncertain predictions, by hand; and their door."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch

from imitate.algo.slots.dynamics import Dynamics, PredictedStep
from imitate.algo.slots.imagination import ImaginationConfig, imagined
from imitate.algo.slots.outcomes import outcomes_of
from imitate.errors import ConfigError, EnvError
from imitate.system.trust import VARIABLE, trust
from tests.tiny import tiny_algo, tiny_batch, tiny_config

PLAIN = SimpleNamespace(
    unnormalize_obs=lambda key, value: value, unnormalize_actions=lambda actions, obs: actions
)
NAMES = ("world_functions:reward", "world_functions:ends", "world_functions:wrong")


class Pair(Dynamics):
    """Two members: a state moves by the action, and by its own size more with the second; each has a std."""

    members = 2

    def loss(self, batch):
        return torch.zeros(()), {}

    def step(self, states, actions, generator=None):
        more = torch.tensor([0.0, 1.0]).view(2, 1, 1) * states
        rewards = torch.zeros(states.shape[:2])
        std = torch.tensor([[0.5], [2.0]]).expand_as(rewards)
        return PredictedStep(states + actions + more, rewards, torch.zeros_like(rewards), std)


@pytest.fixture(autouse=True)
def functions(monkeypatch):
    """A module of the user, of which nothing is trusted."""
    module = types.ModuleType("world_functions")
    module.reward = lambda obs, actions, after: (
        obs["s"][:, 0] + 10 * actions[:, 0] + 100 * after["s"][:, 0]
    )
    module.ends = lambda obs, actions, after: after["s"][:, 0] > 5
    module.wrong = lambda obs, actions, after: actions[:1, 0]
    monkeypatch.setitem(sys.modules, "world_functions", module)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


def outcome(states, actions, preprocess=None, **section):
    model = Pair(None, {"s": (1,)}, 1)
    config = tiny_config("mbrl", obs={"s": 1}, algo={"dynamics": {"members": 2}, **section}).algo
    correct = outcomes_of(config, model, lambda: preprocess or PLAIN)
    states, actions = (torch.tensor(x).view(1, -1, 1).expand(2, -1, 1) for x in (states, actions))
    return correct(states, actions, model.step(states, actions))


def test_the_penalty_is_zero_where_members_agree():
    """In state 0 both members predict the same; in state 3 they are 3 apart: a deviation of 1.5."""
    found = outcome([0.0, 3.0], [1.0, 1.0], uncertainty={"weight": 2.0})
    assert found.rewards.tolist() == [[0.0, -3.0], [0.0, -3.0]]


def test_the_penalty_by_the_predicted_std_is_the_largest_members():
    unsure = {"weight": 2.0, "kind": "std"}
    dynamics = {"members": 2, "distribution": "gaussian"}
    found = outcome([0.0, 3.0], [1.0, 1.0], uncertainty=unsure, dynamics=dynamics)
    assert found.rewards.tolist() == [[-4.0, -4.0]] * 2


def test_known_rewards_and_ends_replace_the_predicted_ones_in_the_datas_units():
    trust(*NAMES)
    known = {"reward": "world_functions:reward", "ends": "world_functions:ends"}
    found = outcome([1.0, 3.0], [0.5, 1.0], **known)
    # member 0 goes to 1.5 and 4; member 1 to 2.5 and 7, where the episode ends
    assert found.rewards.tolist() == [[1 + 5 + 150, 3 + 10 + 400], [1 + 5 + 250, 3 + 10 + 700]]
    assert found.ends.tolist() == [[0.0, 0.0], [0.0, 1.0]]
    scaled = SimpleNamespace(
        unnormalize_obs=lambda key, value: 2 * value,
        unnormalize_actions=lambda actions, obs: 3 * actions,
    )
    found = outcome([1.0], [0.5], preprocess=scaled, **known)
    assert found.rewards[0].tolist() == [2 + 15 + 300]


def test_plans_and_imagined_transitions_are_corrected():
    model = Pair(None, {"s": (1,)}, 1)

    def correct(states, actions, predicted):
        return predicted._replace(rewards=7.0 + states.squeeze(-1))

    plans = torch.zeros(1, 1, 2, 1)
    returns = model.returns(torch.tensor([[1.0]]), plans, 0.5, correct=correct)
    # then member 0 is in 1, member 1 in 2
    torch.testing.assert_close(returns, torch.tensor([[8 + 0.5 * (8 + 9) / 2]]))
    batch = {"obs": {"s": torch.ones(4, 1)}, "actions": torch.zeros(4, 1)}
    settings = ImaginationConfig(share=0.5)
    more = imagined(batch, model, lambda obs: obs["s"], settings, 0.9, correct)
    assert more["rewards"].tolist() == [8.0] * 4


@pytest.mark.parametrize("name", ["mbrl", "sac"])
def test_both_algorithms_learn_with_them(name):
    trust(*NAMES)
    model = {"type": "ensemble", "members": 2, "layer_dims": [8]}
    section = {"dynamics": model, "reward": NAMES[0], "uncertainty": {"weight": 0.1}}
    if name == "sac":
        section["imagination"] = {"start_updates": 0}
    algo = tiny_algo(name, obs={"s": 1}, algo=section, train={"online": {"enabled": False}})
    batch = algo.process_batch_for_training(tiny_batch(algo))
    for _ in range(2):
        info = algo.train_on_batch(batch, 1)
    assert torch.isfinite(info["Loss"]) and algo.outcomes is not None
    action = algo.act({"s": torch.zeros(2, 1)}, algo.initial_state(2)).action
    assert torch.isfinite(action).all()


def test_names_pass_the_one_door():
    with pytest.raises(EnvError, match="world_functions:reward"):
        outcome([0.0], [0.0], reward="world_functions:reward")
    trust(*NAMES)
    with pytest.raises(ConfigError, match=r"algo.reward: returned \(1,\) for 4 steps"):
        outcome([0.0, 1.0], [0.0, 1.0], reward="world_functions:wrong")


@pytest.mark.parametrize(
    ("algo_name", "section", "words"),
    [
        ("sac", {"reward": "a:b"}, "algo.dynamics is null"),
        (
            "mbrl",
            {"uncertainty": {"weight": 1, "kind": "std"}},
            "the members predict no standard deviation",
        ),
        ("mbrl", {"uncertainty": {"weight": 1}, "dynamics": {"members": 1}}, "members is 1"),
    ],
)
def test_what_has_no_meaning_is_refused(algo_name, section, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config(algo_name, algo=section)
