"""Curiosity and skills: losses and bonuses by hand, and the weight of the environment's reward beside them."""

import math

import numpy as np
import pytest
import torch

from imitate.algo.slots.auxiliary import AuxiliaryContext
from imitate.algo.slots.diayn import DIAYN, DIAYNConfig
from imitate.algo.slots.icm import ICM, ICMConfig
from imitate.errors import ConfigError
from tests.algo.slots.auxiliary.test_rnd import raw_transitions
from tests.tiny import tiny_algo

TWO = {"next_obs": {"s": torch.tensor([[1.0], [3.0]])}}


def made(kind, section, keys, choices=0):
    algo = tiny_algo("sac", obs=keys, action=max(choices, 1))
    return kind(section, AuxiliaryContext(algo.encoding, algo.ac_dim, choices, algo.nets))


def set_linear(linear, weight, bias=0.0):
    linear.weight.data = torch.tensor(weight, dtype=torch.float32)
    linear.bias.data.fill_(bias)


def diayn(**section):
    found = made(DIAYN, DIAYNConfig(type="diayn", layer_dims=(), **section), {"s": 1, "skill": 2})
    set_linear(found.last, [[1.0], [0.0]])
    return found


def test_skills_are_told_from_the_next_observation_without_the_skill():
    found = diayn()
    batch = {"obs": {"s": torch.zeros(2, 1), "skill": torch.eye(2)}, **TWO}
    # Scores are (s', 0): log q of the first skill at 1, and of the second at 3.
    log_q = [-math.log(1 + math.exp(-1.0)), -math.log(1 + math.exp(3.0))]
    assert found.loss(batch)[0].item() == pytest.approx(-sum(log_q) / 2)
    assert found.reward(batch).tolist() == pytest.approx([x + math.log(2) for x in log_q])
    normalized = {**batch, "obs": {"skill": 5 * torch.eye(2) - 1}}
    assert found.reward(normalized).tolist() == pytest.approx(found.reward(batch).tolist())


def test_skills_on_the_sphere_are_rewarded_by_the_cosine():
    found = diayn(continuous=True)
    set_linear(found.last, [[3.0], [4.0]])
    batch = {"obs": {"skill": torch.tensor([[1.0, 0.0], [0.6, 0.8]])}, **TWO}
    assert found.reward(batch).tolist() == pytest.approx([0.6, 1.0])
    assert found.loss(batch)[0].item() == pytest.approx(-0.8)


def icm(choices=0, **section):
    return made(ICM, ICMConfig(type="icm", layer_dims=(), **section), {"s": 1}, choices)


def curious():
    found = icm(num_features=1)
    set_linear(found.features[1], [[2.0]])
    set_linear(found.forward_model[1], [[1.0, 1.0]])
    set_linear(found.inverse_model[1], [[0.0, 1.0]])
    obs = {"s": torch.tensor([[1.0], [2.0]])}
    return found, {"obs": obs, **TWO, "actions": torch.tensor([[1.0], [-1.0]])}


def test_errors_of_both_models():
    found, batch = curious()
    # Features 2 and 4, then 2 and 6; predicted 3 and 3: squares 1 and 9. Inverse: 2 and 6 for 1 and -1: 1 and 49.
    loss, info = found.loss(batch)
    assert info["Forward_Loss"].item() == pytest.approx((1 + 9) / 4)
    assert info["Inverse_Loss"].item() == pytest.approx((1 + 49) / 4)
    assert loss.item() == pytest.approx(0.2 * 2.5 + 0.8 * 12.5)
    # relative to their own mean, then to the moving mean, and at most 5
    assert found.reward(batch).tolist() == pytest.approx([0.5 / 2.5, 4.5 / 2.5])
    found.follow(batch)
    assert found.reward(batch).tolist() == pytest.approx([0.5 / 2.5, 4.5 / 2.5])
    found.relative.mean.fill_(0.5)
    assert found.reward(batch).tolist() == pytest.approx([1.0, 5.0])
    found.follow(batch)
    assert found.relative.mean.item() == pytest.approx(0.5 + 0.01 * 2.0)


def test_all_statistics_are_shared_by_processes_that_train_together():
    found = icm()
    shared = {id(buffer) for part in found.followed for buffer in part.buffers()}
    own = {name for name, buffer in found.named_buffers() if id(buffer) not in shared}
    assert shared and not own


def test_features_learn_from_the_inverse_model_alone():
    found, batch = curious()
    before, after = found.seen(batch)
    found.errors(before, batch["actions"], after).sum().backward()
    assert found.features[1].weight.grad is None
    found.loss(batch)[0].backward()
    assert found.features[1].weight.grad.item() != 0


def test_without_features_the_whitened_observation_is_predicted():
    found = icm(num_features=None)
    set_linear(found.forward_model[1], [[1.0, 0.0]])
    batch = {"obs": {"s": torch.zeros(2, 1)}, **TWO, "actions": torch.zeros(2, 1)}
    assert found.loss(batch)[0].item() == pytest.approx((1 + 9) / 4)
    found.follow(batch)  # mean 2, standard deviation 1
    assert found.loss(batch)[0].item() == pytest.approx((1 + 9) / 4)
    assert found.seen(batch)[0].tolist() == [[-2.0], [-2.0]]


def test_choices_have_a_cross_entropy():
    found = icm(num_features=1, choices=2)
    before = torch.zeros(1, 1)
    set_linear(found.inverse_model[1], [[0.0, 0.0], [0.0, 1.0]])
    error = found.inverse_errors(before, torch.eye(2)[:1], torch.ones(1, 1))
    assert error.item() == pytest.approx(math.log(1 + math.e))


def with_bonus(name, **section):
    auxiliary = {"auxiliary": {"c": {"type": "rnd", "reward": 0.5}}}
    train = {"batch_size": 8, "online": {"enabled": True, "env": "Pendulum-v1"}}
    words = {"hidden": [8], "algo": {**auxiliary, **section}, "train": train}
    return tiny_algo(name, obs={"s": 2}, action=2, **words)


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_environment_s_reward_has_a_weight_beside_bonuses(weight):
    algo = with_bonus("sac", extrinsic=weight)
    raw = {**raw_transitions(), "n_step_rewards": torch.full((8,), 10.0)}
    info = algo.train_on_batch(algo.process_batch_for_training(raw), 1, validate=True)
    bonus = info["auxiliary/c/Reward"].item()
    assert info["Q_Targets"].item() == pytest.approx(10.0 * weight + 0.5 * bonus)
    ppo = with_bonus("ppo", extrinsic=weight, num_choices=0)
    rollout = {
        "obs": {"s": np.zeros((2, 1, 2), np.float32)},
        "end_obs": {"s": np.zeros((1, 2), np.float32)},
        "end_rows": np.array([1]),
        "actions": np.zeros((2, 1, 2), np.float32),
        "terminals": np.zeros((2, 1), bool),
        "mask": np.ones((2, 1), bool),
    }
    paid, free = (
        ppo.rollout_rewards({**rollout, "rewards": np.full((2, 1), reward, np.float32)})
        for reward in (10.0, 0.0)
    )
    assert (paid - free).ravel().tolist() == pytest.approx([10.0 * weight] * 2)
    assert (free > 0).all()


@pytest.mark.parametrize(
    ("name", "section", "words"),
    [
        ("sac", {"auxiliary": {"d": {"type": "diayn"}}}, "diayn needs the observation 'skill'"),
        ("sac", {"auxiliary": {}, "extrinsic": 0.0}, "no entry of algo.auxiliary has a reward"),
        ("ppo", {"auxiliary": {}, "extrinsic": 0.0}, "no entry of algo.auxiliary has a reward"),
        ("dac", {"extrinsic": 0.5}, "the environment's reward is not used"),
        ("sac", {"extrinsic": 2.0, "rewards": {"r": {}}}, "weights of their own"),
    ],
)
def test_what_cannot_work_is_refused(name, section, words):
    with pytest.raises(ConfigError, match=words):
        with_bonus(name, **section)


def trained(found, make_batch, steps=150):
    """Train an auxiliary on batches of a generator."""
    optimizer = torch.optim.Adam(found.parameters(), 1e-2)
    for number in range(steps):
        optimizer.zero_grad()
        batch = make_batch(torch.Generator().manual_seed(number))
        found.loss(batch)[0].backward()
        optimizer.step()
        found.follow(batch)


def test_known_outcomes_lose_their_bonus_and_skills_that_differ_gain_theirs():
    def moved(generator, push=1.0):
        states = torch.rand(64, 1, generator=generator)
        actions = torch.rand(64, 1, generator=generator)
        after = {"s": states + push * actions}
        return {"obs": {"s": states}, "next_obs": after, "actions": actions}

    curiosity = icm(num_features=None)
    trained(curiosity, moved)
    known, new = (
        curiosity.reward(moved(torch.Generator().manual_seed(7), push)).mean()
        for push in (1.0, -1.0)
    )
    assert new > 3 * known

    def skilled(generator):
        number = torch.randint(2, (64,), generator=generator)
        states = number.unsqueeze(-1) + 0.1 * torch.randn(64, 1, generator=generator)
        return {"obs": {"skill": torch.eye(2)[number]}, "next_obs": {"s": states}}

    skills = diayn()
    trained(skills, skilled, 300)
    assert skills.reward(skilled(torch.Generator().manual_seed(7))).mean() > 0.4
