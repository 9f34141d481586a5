"""Model-based RL: plans in a learned model, and what it learns of a world where imitation fails."""

import pytest
import torch

from imitate.algo.slots.dynamics import Dynamics, PredictedStep
from imitate.errors import DatasetError
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo

PLANNER = {"horizon": 3, "population": 200, "elites": 20, "iterations": 5}


def make(planner=None, dynamics=None, **algo):
    algo = {"planner": {**PLANNER, **(planner or {})}, **algo}
    algo["dynamics"] = {"members": 2, "layer_dims": [32], **(dynamics or {})}
    return tiny_algo("mbrl", obs={"s": 1}, algo=algo)


class Road(Dynamics):
    """The state moves by the action; the reward is that of state and action before the move, and of no other."""

    def loss(self, batch):
        return torch.zeros(()), {}

    def step(self, states, actions, generator=None):
        ends = torch.zeros(states.shape[:2])
        return PredictedStep(states + actions, -states.squeeze(-1).square(), ends)


def test_plans_look_ahead():
    """From 1.5 the best first action is -1, then -0.5; greedily no action is better than another."""
    algo = make({"horizon": 4})
    algo.nets["dynamics"] = Road(None, {"s": (1,)}, 1)
    state = algo.initial_state(2)
    obs = {"s": torch.tensor([[1.5], [-0.3]])}
    torch.manual_seed(0)
    actions = []
    for _ in range(2):
        action, state, _ = algo.act(obs, state)
        obs = {"s": obs["s"] + action}
        actions.append(action.squeeze(-1))
    torch.testing.assert_close(actions[0], torch.tensor([-1.0, 0.3]), atol=0.05, rtol=0)
    torch.testing.assert_close(actions[1], torch.tensor([-0.5, 0.0]), atol=0.05, rtol=0)


def test_what_cannot_be_computed_is_never_the_best_plan():
    algo = make({"horizon": 1})

    class Cliff(Road):
        def step(self, states, actions, generator=None):
            outcome = super().step(states, actions)
            beyond = actions.squeeze(-1) > 0
            lost = torch.tensor(float("nan")), torch.tensor(float("inf"))
            rewards = torch.where(
                beyond, lost[int(states[0, 0] > 0)], -actions.squeeze(-1).square()
            )
            return outcome._replace(rewards=rewards)

    algo.nets["dynamics"] = Cliff(None, {"s": (1,)}, 1)
    for place in (-1.0, 1.0):
        torch.manual_seed(0)
        action = algo.act({"s": torch.tensor([[place]])}, algo.initial_state(1)).action
        assert -0.2 < action.item() <= 0.01


def test_the_plan_is_kept_and_forgotten_at_an_episodes_start_and_where_it_is_cut():
    algo = make()
    obs = {"s": torch.zeros(2, 1)}
    torch.manual_seed(0)
    state = algo.act(obs, algo.initial_state(2)).state
    mean = state["policy"]["plan"]["mean"]
    assert (mean != 0).any(dim=1).all()
    begun = algo.reset_state(state, torch.tensor([True, False]))["policy"]["plan"]["mean"]
    assert (begun[0] == 0).all() and torch.equal(begun[1], mean[1])
    assert (algo.cut_plan(state)["policy"]["plan"]["mean"] == 0).all()


def test_particles_are_drawn_by_the_generator():
    algo = make({"population": 30, "elites": 5}, {"distribution": "gaussian"}, particles=3)
    obs = {"s": torch.zeros(1, 1)}

    def action(seed):
        generator = torch.Generator().manual_seed(seed)
        return algo.act(obs, algo.initial_state(1), generator=generator).action

    assert torch.equal(action(0), action(0)) and not torch.equal(action(0), action(1))


def world(size=256, ends=False):
    """Steps at random on a road: ``s' = s + 0.5 a``, rewarded by ``-s^2``; with ends, beyond 1 there is a cliff."""
    generator = torch.Generator().manual_seed(0)
    states = torch.rand(size, 1, 1, generator=generator) * 4 - 2
    actions = torch.rand(size, 1, 1, generator=generator) * 2 - 1
    following = states + 0.5 * actions
    over = (following > 1).flatten() if ends else torch.zeros(size, dtype=torch.bool)
    return {
        "obs": {"s": states},
        "next_obs": {"s": following},
        "actions": actions,
        "n_step_rewards": (states.flatten() if ends else -states.flatten().square()),
        "discounts": torch.where(over, 0.0, 0.99),
        "index": torch.arange(size),
    }


def learned(algo, raw, updates):
    algo.set_train()
    torch.manual_seed(0)
    batch = algo.process_batch_for_training(raw)
    for _ in range(updates):
        info = algo.train_on_batch(batch, 1)
    algo.set_eval()
    return info


FAST = {"optimizer": {"learning_rate": {"initial": 0.01}}}


def test_validation_computes_the_loss_alone():
    algo = make()
    assert not algo.random_needs_act
    algo.set_eval()
    before = {name: value.clone() for name, value in algo.nets.state_dict().items()}
    info = algo.train_on_batch(algo.process_batch_for_training(world(8)), 1, validate=True)
    assert info["Loss"] == info["Dynamics_Loss"] > 0 and algo.dynamics.inputs.count == 0
    assert all(torch.equal(value, before[name]) for name, value in algo.nets.state_dict().items())


def test_it_learns_a_task_from_random_steps():
    """Cloning the same steps would stay where it is: their mean action is 0."""
    algo = make(dynamics=FAST)
    info = learned(algo, world(), 300)
    assert algo.dynamics.inputs.count == 300 * 256  # its moments follow each batch
    assert info["Dynamics_Error"] < 0.02 and info["Loss"] == info["Dynamics_Loss"]
    policy = RolloutPolicy(algo)
    torch.manual_seed(0)
    for start in (-1.8, 1.8):
        policy.start_episode()
        place = start
        for _ in range(8):
            place += 0.5 * float(policy({"s": [place]})[0])
        assert abs(place) < 0.25


@pytest.mark.parametrize("ends", [False, True])
def test_it_keeps_away_from_ends(ends):
    """Rewards grow to the right, but beyond 1 the episode and its rewards are over."""
    algo = make({"horizon": 6}, {**FAST, "ends": ends})
    learned(algo, world(512, ends=True), 300)
    torch.manual_seed(0)
    place = torch.tensor([[0.8]])
    action = algo.act({"s": place}, algo.initial_state(1)).action
    assert (0.5 * action + place > 1.0).item() == (not ends)


def test_windows_with_rewards_and_ends_are_transitions():
    algo = make(discount=0.5)
    window = {
        "obs": {"s": torch.zeros(2, 1, 1)},
        "next_obs": {"s": torch.ones(2, 1, 1)},
        "actions": torch.zeros(2, 1, 1),
        "rewards": torch.tensor([[3.0], [4.0]]),
        "dones": torch.tensor([[0.0], [1.0]]),
        "index": torch.arange(2),
    }
    batch = algo.process_batch_for_training(window)
    assert batch["rewards"].tolist() == [3.0, 4.0]
    assert batch["discounts"].tolist() == [0.5, 0.0]
    with pytest.raises(DatasetError, match="mbrl learns from transitions, which the batches lack"):
        algo.process_batch_for_training({k: v for k, v in window.items() if k != "rewards"})
