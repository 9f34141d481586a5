"""Worlds small enough to work out by hand, for algorithms with critics."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.tiny import tiny_algo

STATE, BATCH = 3, 6


def make_algo(algo_name, section=None, state=1, action=1, hidden=(), seed=0, **train):
    """An algorithm on one observation 's'; without hidden layers its networks are linear maps."""
    train = {"num_epochs": 10, "obs_normalization": None, **train}
    words = {"hidden": hidden, "seed": seed, "algo": section or {}, "train": train}
    return tiny_algo(algo_name, obs={"s": state}, action=action, **words)


def set_critic(critic, *members):
    """Let member e be ``state * members[e][0] + action * members[e][1] [+ members[e][2]]``."""
    inputs = critic.head.weight.shape[1]
    rows = torch.tensor([[float(x) for x in member[:inputs]] for member in members])
    critic.head.weight.data = rows[..., None]
    offsets = [[float(member[inputs])] if len(member) > inputs else [0.0] for member in members]
    critic.head.bias.data = torch.tensor(offsets)


def set_actor(actor, slope, offset=0.0):
    """Let a deterministic actor be ``tanh(slope * state + offset)``; of a stochastic one the mean."""
    linear = getattr(actor.head, "action", None) or actor.head.mean
    torch.nn.init.constant_(linear.weight, slope)
    torch.nn.init.constant_(linear.bias, offset)


def set_net(net, state=0.0, x=0.0, time=0.0, bias=0.0):
    """Let a network without hidden layers be ``state * s + x * x + time * t + bias``, for each number of x."""
    size = net.action_dim
    weights = torch.zeros(size, net.last.weight.shape[1])
    weights[:, 0], weights[:, 1 : 1 + size] = state, x * torch.eye(size)
    weights[:, 1 + size :] = time
    net.last.weight.data = weights
    net.last.bias.data.fill_(bias)


def two_transitions(**more):
    """States 1 and 2, actions 1 and -1; the first goes on to state 4, the second ends."""
    return {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "next_obs": {"s": torch.tensor([[4.0], [100.0]])},
        "goal_obs": None,
        "actions": torch.tensor([[1.0], [-1.0]]),
        "rewards": torch.tensor([1.0, 0.5]),
        "discounts": torch.tensor([0.5, 0.0]),
        "weight": None,
        **more,
    }


def prepared(algo, size=BATCH, seed=0):
    """Transitions of random states, two of which are terminal."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": {"state": torch.randn(size, STATE, generator=generator)},
        "next_obs": {"state": torch.randn(size, STATE, generator=generator)},
        "goal_obs": None,
        "actions": torch.rand(size, algo.ac_dim, generator=generator) - 0.5,
        "rewards": torch.rand(size, generator=generator),
        "discounts": torch.tensor([0.99, 0.99, 0.0, 0.9, 0.0, 0.99])[:size],
        "weight": None,
        "returns": torch.randn(size, generator=generator),
    }


class Fixed(torch.nn.Module):
    """Critics that are a linear function of the actions, another for each member; `seen` keeps the actions."""

    def __init__(self, slopes, offsets=(0.0, 0.0)):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor(slopes))
        self.offsets = torch.tensor(offsets)
        self.seen = []

    def forward(self, obs, actions, goal=None):
        self.seen.append(actions.detach())
        total = actions.sum(-1)
        shape = (-1, *[1] * total.dim())
        return self.offsets.view(shape) + self.slopes.view(shape) * total


def bandit(size=256, seed=0):
    """One state. Four of five actions lie around -0.5 and give nothing, the others around 0.5 and give 1."""
    generator = torch.Generator().manual_seed(seed)
    good = (torch.rand(size, generator=generator) < 0.2).float()
    actions = good - 0.5 + 0.1 * torch.randn(size, generator=generator)
    return {
        "obs": {"s": torch.ones(size, 1)},
        "next_obs": {"s": torch.ones(size, 1)},
        "goal_obs": None,
        "actions": actions[:, None],
        "next_actions": torch.zeros(size, 1),
        "rewards": good,
        "returns": good,
        "discounts": torch.zeros(size),
        "weight": None,
    }


def stitching(size=256, seed=0):
    """No demo from the start S reaches the reward of 1, but two halves of demos do.

    Demos: S, 0.5, then M, -0.5: nothing (35 %); S, -0.5: 0.3 (50 %); X, 0.5, then M, 0.5: 1 (15 %). So the best demo
    from S turns to -0.5, and the best way is 0.5 twice. States are one-hot: S, M, X.
    """
    generator = torch.Generator().manual_seed(seed)
    steps = {  # state, action, reward, next state or None: an end
        0: [(0, 0.5, 0.0, 1, -0.5), (1, -0.5, 0.0, None, 0.0)],
        1: [(0, -0.5, 0.3, None, 0.0)],
        2: [(2, 0.5, 0.0, 1, 0.5), (1, 0.5, 1.0, None, 0.0)],
    }
    kinds = torch.multinomial(torch.tensor([0.35, 0.5, 0.15]), size, True, generator=generator)
    rows = [step for kind in kinds.tolist() for step in steps[kind]]
    eye = torch.eye(3)
    noise = 0.05 * torch.randn(len(rows), 1, generator=generator)
    return {
        "obs": {"s": torch.stack([eye[row[0]] for row in rows])},
        "next_obs": {"s": torch.stack([eye[row[3] or 0] for row in rows])},
        "goal_obs": None,
        "actions": torch.tensor([[row[1]] for row in rows]) + noise,
        "next_actions": torch.tensor([[row[4]] for row in rows]),
        "rewards": torch.tensor([row[2] for row in rows]),
        "discounts": torch.tensor([0.0 if row[3] is None else 0.95 for row in rows]),
        "weight": None,
    }


def only(batch, row, copies=1):
    """One sample of a batch, so many times."""

    def pick(value):
        if isinstance(value, dict):
            return {key: pick(each) for key, each in value.items()}
        return (
            None if value is None else value[row : row + 1].repeat(copies, *[1] * (value.dim() - 1))
        )

    return {key: pick(value) for key, value in batch.items()}


def losses(algo, batch):
    """Numbers that an algorithm logs of a prepared batch; nothing changes."""
    return {
        key: value.item() for key, value in algo.train_on_batch(batch, 1, validate=True).items()
    }


def gradients(algo, batch, epoch=1):
    """An update whose steps have no length: the gradients stay in the weights, targets follow. Numbers logged."""
    for optimizer in algo.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    return {key: value.item() for key, value in algo.train_on_batch(batch, epoch).items()}


def losses_that_see(algo, batch, network, names):
    """Losses that change with the last layer of a network."""

    def found():
        torch.manual_seed(0)
        return losses(algo, batch)

    before = found()
    kept = {key: value.clone() for key, value in algo.nets.state_dict().items()}
    for parameter in algo.nets[network].head.parameters():
        parameter.data += 0.3
    after = found()
    algo.nets.load_state_dict(kept)
    return [name for name in names if before[name] != after[name]]


def moved_by(algo, batch, epoch=1, **kwargs):
    """Networks whose weights an update moves."""
    before = {key: value.clone() for key, value in algo.nets.state_dict().items()}
    algo.train_on_batch(batch, epoch, **kwargs)
    after = algo.nets.state_dict()
    return {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}


def learn(algo, batch, steps, seed=0):
    """Updates on the whole data."""
    torch.manual_seed(seed)
    algo.set_train()
    for _ in range(steps):
        info = algo.train_on_batch(batch, 1)
    algo.set_eval()
    return info


def learns(algo, batch, most, learned):
    """True as soon as a condition holds after further 50 updates on the whole data, of `most` in all."""
    return any(learn(algo, batch, 50, seed) and learned() for seed in range(most // 50))


def within(most, update, learned):
    """True as soon as a condition holds after further 50 updates, each ``update(number)``, of `most` in all."""
    for number in range(most):
        update(number)
        if number % 50 == 49 and learned():
            return True
    return False


def action_in(algo, *state):
    """Its action in a state, first dimension."""
    algo.reset()
    return float(algo.get_action({"s": torch.tensor([[float(x) for x in state]])})[0, 0])


def make_imitator(algo_name, section=None, train=None):
    """An algorithm that learns from demonstrations without rewards, with linear discriminators of x and two choices."""
    section = {"discount": 0.5, "num_choices": 2, **(section or {})}
    section["discriminator"] = {"layer_dims": [], **section.get("discriminator", {})}
    train = {"online": {"env": "CartPole-v1"}, **(train or {})}
    words = {"hidden": (64, 64), "algo": section, "train": train}
    return tiny_algo(algo_name, obs={"x": 1}, action=2, **words)


def set_discriminator(discriminator, of_state, of_actions, of_absorbing, bias=0.0):
    """Let logits be linear in the state and in the actions, and that of the absorbing state its weight plus bias."""
    weights = [of_state, *of_actions, of_absorbing]
    discriminator.last.weight.data = torch.tensor([[float(x) for x in weights]])
    discriminator.last.bias.data = torch.tensor([float(bias)])


def two_lanes():
    """Three steps of two environments: the first ends at step 1, the second by the clock at step 0."""
    terminals, timeouts = np.zeros((2, 3, 2), dtype=bool)
    terminals[1, 0], timeouts[0, 1] = True, True
    return {
        "obs": {"x": np.arange(6, dtype=np.float32).reshape(3, 2, 1)},
        "actions": np.eye(2, dtype=np.float32)[[[0, 1], [1, 0], [0, 0]]],
        "policy_action": np.eye(2, dtype=np.float32)[[[0, 1], [1, 0], [0, 0]]],
        "log_prob": np.full((3, 2), -0.7, dtype=np.float32),
        "rewards": np.full((3, 2), 100.0, dtype=np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "mask": np.ones((3, 2), dtype=bool),
        "end_rows": np.array([1, 4, 5]),
        "end_obs": {"x": np.array([[91.0], [94.0], [95.0]], dtype=np.float32)},
    }


@pytest.fixture
def worlds():
    """This module's functions."""
    return SimpleNamespace(**globals())
