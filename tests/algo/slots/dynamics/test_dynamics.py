"""Models of the environment: returns of plans and single steps by hand, and how a type is found."""

import pytest
import torch

from imitate import load_config
from imitate.algo.slots.dynamics import DYNAMICS, Dynamics, PredictedStep, register
from imitate.algo.slots.ensemble import Ensemble, EnsembleConfig
from imitate.errors import ConfigError


class Line(Dynamics):
    """Member m goes ``m + 1`` times as far as the action says; a state is its own reward, and one step in four ends."""

    members = 2

    def loss(self, batch):
        return torch.zeros(()), {}

    def step(self, states, actions, generator=None):
        speed = torch.tensor([1.0, 2.0]).view(2, 1, 1)
        rewards = states.squeeze(-1)
        return PredictedStep(states + speed * actions, rewards, torch.full_like(rewards, 0.25))


def line():
    return Line(None, {"s": (1,)}, 1)


def test_returns_of_plans_by_hand():
    plans = torch.tensor([[[[1.0], [2.0], [9.0]], [[0.0], [0.0], [0.0]]]])
    # Each step counts discount * (1 - end) = 0.8 * 0.75 = 0.6 times the one before; the last action is not rewarded.
    # Member 0 sees states 10, 11, 13; member 1 states 10, 12, 16.
    first = 10 + 0.6 * (11 + 12) / 2 + 0.36 * (13 + 16) / 2
    still = 10 * (1 + 0.6 + 0.36)
    returns = line().returns(torch.tensor([[10.0]]), plans, discount=0.8, particles=3)
    torch.testing.assert_close(returns, torch.tensor([[first, still]]))


def test_returns_of_several_states_and_plans_stay_apart():
    states, plans = torch.randn(3, 1), torch.randn(3, 4, 5, 1)
    together = line().returns(states, plans, 0.9)
    for row in range(3):
        for plan in range(4):
            alone = line().returns(states[row : row + 1], plans[row, plan][None, None], 0.9)
            torch.testing.assert_close(together[row, plan], alone[0, 0])


def test_each_imagined_step_is_one_members():
    states, actions = torch.arange(400.0).unsqueeze(-1), torch.ones(400, 1)
    outcome = line().imagine(states, actions, torch.Generator().manual_seed(0))
    speed = (outcome.states - states).squeeze(-1)
    assert sorted(speed.unique().tolist()) == [1.0, 2.0]
    assert 0.4 < (speed == 1.0).float().mean() < 0.6
    torch.testing.assert_close(outcome.rewards, states.squeeze(-1))
    assert outcome.ends.shape == (400,)


def test_states_are_the_vectors_of_all_keys_in_their_order():
    model = Line(None, {"b": (1,), "a": (2, 2)}, 1)
    obs = {"a": torch.arange(4.0).view(1, 2, 2), "b": torch.tensor([[9.0]])}
    assert model.state_dim == 5
    states = model.state_of(obs)
    assert states.tolist() == [[0.0, 1.0, 2.0, 3.0, 9.0]]
    back = model.obs_of(states)
    assert list(back) == ["a", "b"]
    assert all(torch.equal(back[key], obs[key]) for key in obs)


def config(**algo):
    return load_config({"algo_name": "mbrl", "algo": algo})


def test_a_type_brings_its_section():
    given = config(dynamics={"members": 3}, planner={"type": "mppi"}).algo
    assert isinstance(given.dynamics, EnsembleConfig) and given.dynamics.members == 3
    assert given.planner.std_limits == (0.05, 2.0)
    assert load_config(config(planner={"type": "mppi"}).to_dict()).algo == config(
        planner={"type": "mppi"}
    ).algo  # fmt: skip
    assert DYNAMICS.find("ensemble") == (Ensemble, EnsembleConfig)


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ({"dynamics": {"type": "ensembel"}}, "no type 'ensembel'; did you mean 'ensemble'"),
        ({"planner": {"type": "cme"}}, "no type 'cme'; did you mean 'cem'"),
        ({"dynamics": {"membres": 3}}, "membres"),
        ({"planner": {"type": "mppi", "rate": 0.5}}, "rate"),
        ({"planner": {"elites": 500}}, "elites 500 is above population 400"),
    ],
)
def test_what_there_is_not_is_refused(algo, words):
    with pytest.raises(ConfigError, match=words):
        config(**algo)


def test_a_type_is_registered_once():
    with pytest.raises(ConfigError, match="'ensemble' is already registered"):
        register("ensemble", EnsembleConfig)(Line)
