"""RLPD on worlds worked out by hand: which critics are asked, and when the actor learns."""

import math

import pytest
import torch

NOISELESS = {"gaussian": {"min_std": 1e-6, "max_std": 1e-6}}


@pytest.fixture
def rlpd(worlds):
    def make(members=3, subset=2, freq=1, **section):
        section = {
            "actor": {"net": NOISELESS, "update_freq": freq},
            "critic": {"ensemble": {"n": members}, "subset": subset},
            "temperature": {"initial": 1e-9, "tuned": False},
            **section,
        }
        return worlds.make_algo("rlpd", section)

    return make


def targets_of_the_first(worlds, algo, draws=200):
    torch.manual_seed(0)
    batch = worlds.only(worlds.two_transitions(), 0)
    return [worlds.losses(algo, batch)["Q_Targets"] for _ in range(draws)]


def test_the_target_is_the_least_of_a_random_subset(rlpd, worlds):
    algo = rlpd()
    worlds.set_critic(algo.nets["critic_target"], (1, 0), (2, 0), (3, 0))
    seen = targets_of_the_first(worlds, algo)
    # In state 4 the critics say 4, 8, 12: of the three pairs two have the least, one has 8.
    assert {round(x, 3) for x in seen} == {1 + 0.5 * 4, 1 + 0.5 * 8}
    assert sum(x < 4 for x in seen) / len(seen) == pytest.approx(2 / 3, abs=0.1)
    assert worlds.losses(algo, worlds.only(worlds.two_transitions(), 1))["Q_Targets"] == 0.5


def test_all_critics_are_asked_where_the_subset_is_everyone(rlpd, worlds):
    algo = rlpd(subset=3)
    worlds.set_critic(algo.nets["critic_target"], (3, 0), (1, 0), (2, 0))
    assert targets_of_the_first(worlds, algo, 20) == pytest.approx([3.0] * 20)


@pytest.mark.parametrize("backup", [True, False])
def test_the_entropy_counts_in_targets_where_that_is_wanted(rlpd, worlds, backup):
    algo = rlpd(entropy_backup=backup, temperature={"initial": 0.5, "tuned": False})
    worlds.set_actor(algo.actor, slope=0.0)
    worlds.set_critic(algo.nets["critic_target"], (1, 0), (1, 0), (1, 0))
    mean = sum(targets_of_the_first(worlds, algo)) / 200
    # Entropy of a Gaussian of std 1e-6, which no tanh bends at 0.
    entropy = math.log(1e-6 * math.sqrt(2 * math.pi * math.e))
    assert mean == pytest.approx(1 + 0.5 * (4 + 0.5 * entropy * backup), abs=0.05)


def test_the_actor_climbs_the_mean_of_all_critics(rlpd, worlds):
    algo = rlpd()
    worlds.set_actor(algo.actor, slope=0.0)
    worlds.set_critic(algo.nets["critic"], (1, 3), (1, 0), (1, -9))
    info = worlds.gradients(algo, worlds.two_transitions())
    # Values of states 1 and 2 are 1 and 2; slopes 3, 0, -9 have the mean -2, where the least has -9 or 3.
    assert info["Actor_Loss"] == pytest.approx(-1.5, abs=1e-4)
    assert algo.actor.head.mean.bias.grad.item() == pytest.approx(2.0, abs=1e-3)
    assert info["Temperature"] == pytest.approx(1e-9)
    # of a Gaussian of std 1e-6, from one draw for each of two states
    entropy = math.log(1e-6 * math.sqrt(2 * math.pi * math.e))
    assert info["Entropy"] == pytest.approx(entropy, abs=5)


def moves(algo, batch, name):
    """True for each of six updates in which a network moves."""
    moved = []
    for _ in range(6):
        before = torch.cat([p.detach().flatten().clone() for p in algo.nets[name].parameters()])
        algo.train_on_batch(batch, 1)
        after = torch.cat([p.detach().flatten() for p in algo.nets[name].parameters()])
        moved.append(not torch.equal(before, after))
    return moved


def test_the_actor_learns_once_in_so_many_updates_of_the_critics(worlds):
    def make():
        return worlds.make_algo("rlpd", {"actor": {"update_freq": 3}}, hidden=(4,))

    turns = [True, False, False, True, False, False]
    batch = worlds.two_transitions()
    assert moves(make(), batch, "actor") == turns
    assert moves(make(), batch, "temperature") == turns
    assert moves(make(), batch, "critic") == [True] * 6
    assert moves(make(), batch, "critic_target") == [True] * 6


def test_critics_are_ten_and_normalized(worlds):
    algo = worlds.make_algo("rlpd", hidden=(4,))
    assert algo.nets["critic"].size == 10
    assert len(algo.nets["critic"].norms) == 1
