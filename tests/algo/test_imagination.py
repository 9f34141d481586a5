"""Imagined transitions: short trajectories by hand, and what SAC makes of them."""

import pytest
import torch

from imitate import load_config
from imitate.algo.slots.dynamics import Dynamics, PredictedStep
from imitate.algo.slots.imagination import ImaginationConfig, imagined, with_imagined
from imitate.errors import ConfigError
from tests.tiny import tiny_algo


class Walk(Dynamics):
    """A state moves by the action and is its own reward; beyond ``edge`` it ends."""

    edge = 100.0

    def loss(self, batch):
        return torch.zeros(()), {}

    def step(self, states, actions, generator=None):
        following = states + actions
        ends = (following.squeeze(-1) > self.edge).float()
        return PredictedStep(following, 10 * states.squeeze(-1), ends)


def model():
    return Walk(None, {"s": (1,)}, 1)


def starts(*states, weight=None):
    states = torch.tensor(states).unsqueeze(-1)
    return {
        "obs": {"s": states},
        "next_obs": {"s": states},
        "goal_obs": None,
        "actions": torch.zeros(len(states), 1),
        "rewards": torch.zeros(len(states)),
        "discounts": torch.full((len(states),), 0.9),
        "weight": weight,
    }


def doubled(obs):
    return obs["s"]


def config(**settings):
    return ImaginationConfig(**{"share": 0.5, **settings})


def test_a_step_in_the_model():
    torch.manual_seed(0)
    more = imagined(starts(*[1.0, 3.0] * 50), model(), doubled, config(), 0.9)
    states = more["obs"]["s"]
    assert sorted(states.unique().tolist()) == [1.0, 3.0] and states.shape == (100, 1)
    torch.testing.assert_close(more["actions"], states)
    torch.testing.assert_close(more["next_obs"]["s"], 2 * states)
    torch.testing.assert_close(more["rewards"], 10 * states.squeeze(-1))
    torch.testing.assert_close(more["discounts"], torch.full((100,), 0.9))


def test_one_step_of_each_trajectory_is_taken():
    torch.manual_seed(0)
    more = imagined(starts(*[1.0] * 900), model(), doubled, config(horizon=3), 0.9)
    states = more["obs"]["s"].squeeze(-1)
    counts = [(states == place).sum().item() for place in (1.0, 2.0, 4.0)]
    assert sum(counts) == 900 and min(counts) > 240
    torch.testing.assert_close(more["next_obs"]["s"].squeeze(-1), 2 * states)
    torch.testing.assert_close(more["rewards"], 10 * states)


def test_nothing_comes_after_an_end():
    torch.manual_seed(0)
    walk = model()
    walk.edge = 3.0  # 1 -> 2 -> 4, which is the end
    more = imagined(starts(*[1.0] * 400), walk, doubled, config(horizon=8), 0.9)
    states = more["obs"]["s"].squeeze(-1)
    assert sorted(states.unique().tolist()) == [1.0, 2.0]
    assert (states == 2.0).float().mean() > 0.8  # seven of eight would go on
    torch.testing.assert_close(more["discounts"], torch.where(states == 2.0, 0.0, 0.9))


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.5, 8), (0.75, 24)])
def test_the_share_is_that_of_the_whole(share, count):
    more = imagined(starts(*[2.0] * 8), model(), doubled, config(share=share), 0.9)
    assert len(more["actions"]) == count
    batch = starts(*[1.0] * 8, weight=torch.zeros(8))
    whole = with_imagined(batch, more)
    assert len(whole["obs"]["s"]) == len(whole["rewards"]) == 8 + count
    assert torch.equal(whole["obs"]["s"][:8], batch["obs"]["s"])
    assert torch.equal(whole["next_obs"]["s"][8:], more["next_obs"]["s"])
    assert whole["weight"].tolist() == [0.0] * 8 + [1.0] * count
    assert whole["rewards"][:8].tolist() == [0.0] * 8 and len(batch["rewards"]) == 8
    assert with_imagined(starts(1.0), more)["weight"] is None


def make(seed=0, **algo):
    algo = {
        "dynamics": {"members": 2, "layer_dims": [8]},
        "imagination": {"start_updates": 2},
        **algo,
    }
    train = {"batch_size": 8, "online": {"enabled": True, "env": "Pendulum-v1"}}
    return tiny_algo("sac", obs={"s": 2}, seed=seed, hidden=[8], algo=algo, train=train)


def raw(size=8):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, size, 1, 2, generator=generator)
    return {
        "obs": {"s": states[0]},
        "next_obs": {"s": states[1]},
        "actions": torch.rand(size, 1, 1, generator=generator) * 2 - 1,
        "n_step_rewards": torch.ones(size),
        "discounts": torch.full((size,), 0.99),
        "index": torch.arange(size),
    }


def test_losses_see_imagined_transitions_once_the_model_has_learned():
    algo = make()
    sizes, loss = [], algo._critic_loss
    algo._critic_loss = lambda batch: sizes.append(len(batch["rewards"])) or loss(batch)
    batch = algo.process_batch_for_training(raw())
    algo.set_train()
    before = [weight.detach().clone() for weight in algo.nets["dynamics"].parameters()]
    for _ in range(4):
        info = algo.train_on_batch(batch, 1)
    assert sizes == [8, 8, 16, 16] and torch.isfinite(info["Dynamics_Loss"])
    after = list(algo.nets["dynamics"].parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    algo.set_eval()
    algo.train_on_batch(batch, 1, validate=True)
    assert sizes[-1] == 8 and algo.nets["dynamics"].inputs.count == 4 * 8


def test_imagined_states_stay_novel():
    """A bonus is given for imagined transitions, but the network that tells novelty learns from real ones alone."""
    algo = make(auxiliary={"novelty": {"type": "rnd"}}, imagination={"start_updates": 0})
    novelty = algo.auxiliaries["auxiliary/novelty"]
    learned, rewarded = [], []
    novelty.loss = seen_by(learned, novelty.loss)
    novelty.reward = seen_by(rewarded, novelty.reward)
    algo.train_on_batch(algo.process_batch_for_training(raw()), 1)
    assert (learned, rewarded) == ([8], [16])
    assert novelty.inputs.count == 8


def seen_by(sizes, function):
    """The function, which then counts the transitions that it is given."""
    return lambda batch: sizes.append(len(batch["actions"])) or function(batch)


def test_the_model_knows_the_samples_by_their_numbers():
    algo = make()
    numbers = [[3, 1, 4, 1, 5, 9, 2, 6], [0] * 8]
    batches = [
        algo.process_batch_for_training({**raw(), "index": torch.tensor(x)}) for x in numbers
    ]
    infos = [algo.train_on_batch(batch, 1, validate=True) for batch in batches]
    assert batches[0]["index"].tolist() == numbers[0]
    assert infos[0]["Dynamics_Loss"] != infos[1]["Dynamics_Loss"]


def test_rewards_of_another_source_are_not_predicted():
    tree = {
        "algo_name": "sqil",
        "train": {"data": "a.hdf5", "online": {"enabled": True, "demo_ratio": 0.5}},
        "algo": {"dynamics": {"type": "ensemble"}},
    }
    with pytest.raises(ConfigError, match="which sqil does not use"):
        load_config(tree)
