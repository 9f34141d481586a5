"""PPO near an imitation policy: the distance and its weight, worked out by hand."""

import math

import numpy as np
import pytest
import torch

from imitate.algo.slots.density import moments_of
from imitate.models.categorical import Categorical
from imitate.models.heads import GaussianMixture
from imitate.policy.checkpoint import checkpoint_dict
from tests.tiny import tiny_algo


@pytest.fixture
def ppo_bc(worlds):
    def make(hidden=(), slope=0.5, seed=0, **section):
        base = worlds.make_algo("bc")
        worlds.set_actor(base.nets["policy"], slope)
        algo = tiny_algo("ppo_bc", obs={"s": 1}, hidden=hidden, seed=seed, algo=section)
        ckpt = checkpoint_dict(base, env_metadata={}, shape_metadata={})
        algo.base.adopt(ckpt, algo.preprocess)
        return algo

    return make


def batch(states, base):
    count = len(states)
    return {
        "obs": {"s": torch.tensor(states)[:, None]},
        "actions": torch.zeros(count, 1),
        "log_prob": torch.full((count,), -0.9189385),  # of 0, with mean 0 and std 1
        "advantages": torch.zeros(count),
        "returns": torch.zeros(count),
        "values": torch.zeros(count),
        "base_actions": torch.tensor(base)[:, None],
    }


def rollout(algo, steps=4):
    """Steps 0, 1, 2 ... of one environment, the second of which is not an experience."""
    obs = np.arange(steps, dtype=np.float32)[:, None, None]
    state, extras = algo.initial_state(1), []
    for step in range(steps):
        decided = algo.act({"s": torch.from_numpy(obs[step])}, state, explore=True)
        state = decided.state
        extras.append({key: value.detach().numpy() for key, value in decided.extras.items()})
    flags = np.zeros((steps, 1), dtype=bool)
    mask = ~flags
    mask[1] = False
    return {
        "obs": {"s": obs},
        "end_obs": {"s": obs[-1:, 0]},
        "end_rows": np.array([steps - 1]),
        "rewards": np.zeros((steps, 1), dtype=np.float32),
        "terminals": flags,
        "timeouts": flags,
        "mask": mask,
        **{key: np.stack([extra[key] for extra in extras]) for key in extras[0]},
    }


def test_the_distance_is_half_the_square_of_the_mean_s(ppo_bc):
    algo = ppo_bc(imitation={"weight": 3.0})
    mean = algo.net.head.mean
    torch.nn.init.constant_(mean.weight, 0.0)
    torch.nn.init.constant_(mean.bias, math.atanh(0.2))
    info = algo.train_on_batch(batch([1.0, 2.0], [0.5, -0.2]), 1, validate=True)
    assert info["Imitation_Loss"].item() == pytest.approx(0.5 * (0.09 + 0.16) / 2)
    rest = info["Policy_Loss"] + 0.5 * info["Value_Loss"]
    assert (info["Loss"] - rest).item() == pytest.approx(3 * 0.0625, abs=1e-6)


def test_the_entropy_lowers_the_loss(ppo_bc):
    algo = ppo_bc(entropy_weight=0.5, imitation={"weight": 0.0})
    info = algo.train_on_batch(batch([1.0, 2.0], [0.0, 0.0]), 1, validate=True)
    assert info["Entropy"].item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e))
    rest = info["Policy_Loss"] + 0.5 * info["Value_Loss"]
    assert (info["Loss"] - rest).item() == pytest.approx(-0.5 * info["Entropy"].item(), abs=1e-6)


def test_of_choices_it_is_the_likelihood():
    algo = tiny_algo("ppo_bc", "algo.num_choices=2", obs={"s": 1}, action=2, hidden=())
    logits = algo.nets["policy"].head.logits
    torch.nn.init.zeros_(logits.bias)
    # In states 0 and 1: 1/2, 1/2; 1/4, 3/4.
    logits.weight.data = torch.tensor([[0.0], [math.log(3.0)]])
    data = batch([0.0, 1.0], [0.0, 0.0])
    data["actions"] = data["base_actions"] = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    info = algo.train_on_batch(data, 1, validate=True)
    wanted = -(math.log(0.5) + math.log(0.75)) / 2
    assert info["Imitation_Loss"].item() == pytest.approx(wanted)


def test_a_cross_entropy_also_forms_the_noise():
    algo = tiny_algo("ppo_bc", obs={"s": 1}, hidden=(), algo={"imitation": {"kl_weight": 2.0}})
    mean = algo.net.head.mean
    torch.nn.init.zeros_(mean.weight)
    torch.nn.init.constant_(mean.bias, math.atanh(0.2))
    algo.net.head.log_std.data.fill_(math.log(0.5))
    data = batch([1.0], [0.2])
    data |= {"base_mean": torch.tensor([[0.8]]), "base_variance": torch.tensor([[0.04]])}
    info = algo.train_on_batch(data, 1, validate=True)
    wanted = (0.04 + 0.36) / (2 * 0.25) + math.log(0.5 * math.sqrt(2 * math.pi))
    assert info["Imitation_KL"].item() == pytest.approx(wanted)
    rest = info["Policy_Loss"] + 0.5 * info["Value_Loss"]
    assert (info["Loss"] - rest).item() == pytest.approx(2 * wanted, abs=1e-6)
    choices = Categorical(torch.tensor([[0.25, 0.75]]).log())
    found = algo.cross_entropy(choices, torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2))
    assert found.item() == pytest.approx(-0.5 * (math.log(0.25) + math.log(0.75)))


def test_moments_of_a_mixture_and_a_rollout(worlds):
    weights = torch.tensor([[0.25, 0.75]]).log()
    stds = torch.tensor([[[0.1], [0.2]]])
    mean, variance = moments_of(GaussianMixture(torch.tensor([[[0.0], [0.4]]]), stds, weights))
    assert mean.item() == pytest.approx(0.3)
    assert variance.item() == pytest.approx(0.25 * 0.01 + 0.75 * (0.16 + 0.04) - 0.09)
    shares, none = moments_of(Categorical(torch.tensor([[0.25, 0.75]]).log()))
    assert shares[0].tolist() == pytest.approx([0.25, 0.75]) and none.tolist() == [[0.0, 0.0]]
    base = worlds.make_algo(
        "bc", {"gaussian": {"enabled": True, "init_std": 0.3, "fixed_std": True}}
    )
    worlds.set_actor(base.nets["policy"], 0.5)
    algo = tiny_algo("ppo_bc", obs={"s": 1}, hidden=(), algo={"imitation": {"kl_weight": 2.0}})
    ckpt = checkpoint_dict(base, env_metadata={}, shape_metadata={})
    algo.base.adopt(ckpt, algo.preprocess)
    prepared = algo.prepare_rollout(rollout(algo))
    wanted = [math.tanh(0.5 * s) for s in (0, 2, 3)]
    assert prepared["base_mean"][:, 0].tolist() == pytest.approx(wanted)
    assert prepared["base_variance"][:, 0].tolist() == pytest.approx([0.09] * 3)


def test_its_surrogate_and_values_are_clipped(ppo_bc):
    algo = ppo_bc(clip=0.2, value_clip=0.5, normalize_advantages=False, imitation={"weight": 0.0})
    net = algo.nets["policy"]
    for layer, weight in ((net.head.mean, 0.0), (net.value_head, 3.0)):
        torch.nn.init.constant_(layer.weight, weight)
        torch.nn.init.zeros_(layer.bias)
    data = batch([1.0, 2.0], [0.0, 0.0])
    data["log_prob"] = data["log_prob"] - torch.log(torch.tensor([2.0, 0.5]))
    data["advantages"], data["returns"] = torch.ones(2), torch.tensor([4.0, 0.0])
    info = algo.train_on_batch(data, 1, validate=True)
    assert info["Policy_Loss"].item() == pytest.approx(-(1.2 + 0.5) / 2)
    # Values 3 and 6, held to 0.5: errors max(1, 12.25) and max(36, 0.25).
    assert info["Value_Loss"].item() == pytest.approx((12.25 + 36) / 2)
    assert info["KL"].item() == pytest.approx(
        ((1 - math.log(2)) + (-0.5 + math.log(2))) / 2, rel=1e-5
    )


def test_a_rollout_is_left_when_the_policy_has_moved_far(ppo_bc):
    algo = ppo_bc(target_kl=0.01)
    assert algo.leaves_rollout({"KL": torch.tensor(0.02)})
    assert not algo.leaves_rollout({"KL": torch.tensor(0.014)})


def test_a_rollout_tells_what_the_imitation_policy_would_have_done(ppo_bc):
    algo = ppo_bc(slope=0.5)
    prepared = algo.prepare_rollout(rollout(algo))
    wanted = [math.tanh(0.5 * s) for s in (0, 2, 3)]
    assert prepared["base_actions"][:, 0].tolist() == pytest.approx(wanted)
    assert prepared["obs"]["s"][:, 0].tolist() == [0, 2, 3]


def test_the_weight_falls_from_rollout_to_rollout_and_is_resumed(ppo_bc):
    algo = ppo_bc(imitation={"weight": 2.0, "decay": 0.5})
    weights = []
    for _ in range(3):
        algo.prepare_rollout(rollout(algo))
        weights.append(algo.imitation_decay)
    assert weights == [1.0, 0.5, 0.25]
    other = ppo_bc(imitation={"weight": 2.0, "decay": 0.5}, seed=1)
    other.deserialize(algo.serialize())
    assert other.imitation_decay == 0.25


def test_in_evaluation_the_imitation_policy_is_not_asked(ppo_bc):
    algo = ppo_bc()
    assert algo.act({"s": torch.ones(1, 1)}, algo.initial_state(1)).extras == {}


@pytest.mark.parametrize(("weight", "near"), [(1.0, True), (0.0, False)])
def test_without_rewards_it_becomes_the_imitation_policy(ppo_bc, worlds, weight, near):
    algo = ppo_bc(hidden=(16,), imitation={"weight": weight}, optim_params=FAST)
    states = torch.linspace(-2, 2, 32)
    data = batch(states.tolist(), torch.tanh(0.5 * states).tolist())
    with torch.no_grad():
        data["log_prob"] = algo.net.actor(data["obs"]).log_prob(data["actions"])
    worlds.learn(algo, data, 200)
    assert (abs(worlds.action_in(algo, 1.5) - math.tanh(0.75)) < 0.1) == near


FAST = {"policy": {"learning_rate": {"initial": 0.01}}}
