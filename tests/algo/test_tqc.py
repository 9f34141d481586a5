"""TQC: truncation and the quantile Huber loss by literal numbers, target and actor on a world worked out by hand."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.functional.losses import lowest_atoms, quantile_regression_loss

NOISELESS = {"actor": {"net": {"gaussian": {"min_std": 1e-6, "max_std": 1e-6}}}}
TWO = {"ensemble": {"n": 2}, "num_quantiles": 3, "num_dropped": 1}


@pytest.fixture
def tqc(worlds):
    def make(critic=None, **section):
        return worlds.make_algo(
            "tqc", {**NOISELESS, **section, "critic": {**TWO, **(critic or {})}}
        )

    return make


def set_atoms(critic, *members):
    """Let critic e say these three atoms in every state; the third also rises by the action."""
    critic.head.weight.data = torch.tensor([[[0.0] * 3, [0.0, 0.0, 1.0]]] * 2)
    critic.head.bias.data = torch.tensor(members, dtype=torch.float32)


def test_the_highest_atoms_of_all_critics_together_are_dropped():
    atoms = torch.tensor([[[5.0, 1.0, 9.0]], [[2.0, 8.0, 7.0]]])  # (E 2, B 1, M 3)
    assert lowest_atoms(atoms, 0).tolist() == [[1, 2, 5, 7, 8, 9]]
    assert lowest_atoms(atoms, 1).tolist() == [[1, 2, 5, 7]]
    assert lowest_atoms(atoms, 2).tolist() == [[1, 2]]


def test_each_state_has_a_pool_of_its_own():
    atoms = torch.tensor([[[1.0, 2.0], [30.0, 40.0]], [[3.0, 4.0], [10.0, 20.0]]])
    assert lowest_atoms(atoms, 1).tolist() == [[1, 2], [10, 20]]


def test_the_quantile_huber_loss_by_hand():
    # Places 1/4 and 3/4. Errors of atom 0: 3 and 0.5, of atom 2: 1 and -1.5; Huber 2.5, 0.125, 0.5, 1.
    loss = quantile_regression_loss(torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 0.5]]))
    assert loss.item() == pytest.approx((0.25 * 2.625 + 0.75 * 0.5 + 0.25 * 1.0) / 2)


def test_targets_are_the_least_atoms_with_the_entropy_and_the_reward_alone_after_an_end(
    tqc, worlds
):
    algo = tqc(temperature={"initial": 0.5})
    worlds.set_actor(algo.actor, slope=0.0)
    set_atoms(algo.nets["critic_target"], (1, 2, 30), (3, 4, 5))
    batch = worlds.only(worlds.two_transitions(), 0, 500)
    entropy = math.log(1e-6 * math.sqrt(2 * math.pi * math.e))
    # Atoms 5 and 30 of six are dropped; discount 0.5, reward 1, half of the entropy.
    expected = torch.tensor([1.5, 2, 2.5, 3]) + 0.25 * entropy
    at_end = worlds.only(worlds.two_transitions(), 1)
    found, ended = map(algo._target, (batch, at_end))
    assert torch.allclose(found.mean(0), expected, atol=0.02)
    assert ended.tolist() == [[0.5] * 4]


def test_critics_learn_by_the_mean_over_atoms_summed_over_critics(tqc, worlds):
    algo = tqc()
    set_atoms(algo.nets["critic"], (0, 0, 0), (0.5, 0.5, 0.5))
    info = worlds.losses(algo, worlds.only(worlds.two_transitions(discounts=torch.zeros(2)), 1))
    # Target 0.5; action -1 makes the third atoms -1 and -0.5. Places 1/6, 1/2, 5/6; Huber 1/8, 1/8, 1 and 0, 0, 1/2.
    first = (1 / 6 / 8 + 1 / 2 / 8 + 5 / 6) / 3
    second = 5 / 6 / 2 / 3
    assert info["Critic_Loss"] == pytest.approx(first + second)


def test_the_actor_climbs_the_mean_of_all_atoms(tqc, worlds):
    algo = tqc(temperature={"initial": 1e-9, "tuned": False})
    worlds.set_actor(algo.actor, slope=0.0)
    set_atoms(algo.nets["critic"], (1, 2, 30), (3, 4, 5))
    info = worlds.gradients(algo, worlds.two_transitions())
    assert info["Actor_Loss"] == pytest.approx(-45 / 6, abs=1e-3)
    assert info["Entropy"] < -8.0  # of a Gaussian of std 1e-6, from one draw
    # One atom of three rises by the action.
    assert algo.actor.head.mean.bias.grad.item() == pytest.approx(-1 / 3, abs=1e-3)


def test_errors_for_prioritized_replay_are_of_the_means(tqc, worlds):
    algo = tqc()
    algo.keeps_errors = True
    set_atoms(algo.nets["critic"], (0, 0, 0), (3, 3, 3))
    worlds.losses(algo, worlds.two_transitions(discounts=torch.zeros(2)))
    # Means 1/3 and 10/3 against 1; -1/3 and 8/3 against 0.5.
    assert algo.sample_errors.tolist() == pytest.approx([1.5, 1.5])


LEAST = {"ensemble": {"n": 2, "rule": "least_mean"}, "num_dropped": 0}


def test_qr_sac_takes_all_atoms_of_the_critic_with_the_least_mean(tqc, worlds):
    algo = tqc(LEAST, temperature={"initial": 1e-9, "tuned": False})
    worlds.set_actor(algo.actor, slope=0.0)
    set_atoms(algo.nets["critic_target"], (1, 2, 30), (3, 4, 5))
    set_atoms(algo.nets["critic"], (1, 2, 30), (3, 4, 5))
    info = worlds.losses(algo, worlds.only(worlds.two_transitions(), 0))
    # The second mean is the least, 4 of 11; the third atom is not dropped. Reward 1, discount 0.5.
    assert info["Q_Targets"] == pytest.approx(1 + 0.5 * 4, abs=1e-4)
    assert info["Actor_Loss"] == pytest.approx(-4.0, abs=1e-4)


def test_qr_sac_drops_nothing(tqc):
    with pytest.raises(ConfigError, match=r"num_dropped is 1.*set it to 0"):
        tqc({**LEAST, "num_dropped": 1})
