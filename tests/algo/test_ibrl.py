"""Which proposal the critics choose, worked out by hand."""

import math

import pytest
import torch

from imitate.policy.checkpoint import checkpoint_dict


@pytest.fixture
def ibrl(worlds):
    def make(slope=0.1, offset=0.0, hidden=(), members=2, subset=2, **section):
        base = worlds.make_algo("bc")
        worlds.set_actor(base.nets["policy"], slope, offset)
        critic = {"ensemble": {"n": members}, "subset": subset}
        section = {"critic": critic, "actor": {"noise_std": 0.0, "dropout": 0.0}, **section}
        algo = worlds.make_algo("ibrl", section, hidden=hidden)
        ckpt = checkpoint_dict(base, env_metadata={}, shape_metadata={})
        algo.base.adopt(ckpt, algo.preprocess)
        return algo

    return make


def test_it_begins_as_the_imitation_policy(ibrl, worlds):
    algo = ibrl(slope=0.5, hidden=(8,))
    obs = {"s": torch.tensor([[-1.0], [0.25], [3.0]])}
    for explore in (False, True):
        action = algo.act(obs, algo.initial_state(3), explore=explore).action
        assert action[:, 0].tolist() == pytest.approx([math.tanh(0.5 * s) for s in (-1, 0.25, 3)])


@pytest.mark.parametrize(
    ("members", "chosen"),
    [
        (((0, 1), (0, 1)), "imitated"),
        (((0, -1), (0, -1)), "learned"),
        # The least of a and 1 - 9 a: 0.0997 and 0.1026 of what is imitated, -0.5 of what is learned.
        (((0, 1), (0, -9, 1)), "imitated"),
        (((0, 1, 5), (0, -9, 1)), "learned"),
    ],
)
def test_the_least_of_the_target_critics_chooses(ibrl, worlds, members, chosen):
    algo = ibrl(slope=0.1)
    worlds.set_actor(algo.actor, slope=-0.5, offset=0.0)
    worlds.set_critic(algo.nets["critic_target"], *members)
    worlds.set_critic(algo.nets["critic"], (0, 50), (0, 50))
    expected = {"imitated": math.tanh(0.1), "learned": math.tanh(-0.5)}[chosen]
    assert worlds.action_in(algo, 1) == pytest.approx(expected)


@pytest.mark.parametrize(("slope", "share"), [(3.0, 1.0), (-3.0, 0.0)])
def test_targets_are_of_the_better_proposal(ibrl, worlds, slope, share):
    algo = ibrl(slope=0.1)
    worlds.set_actor(algo.actor, slope=9.0)  # which targets do not ask
    worlds.set_actor(algo.nets["actor_target"], slope=-0.2)
    worlds.set_critic(algo.nets["critic_target"], (1, slope), (2, slope))
    goes_on, ends = (
        worlds.losses(algo, worlds.only(worlds.two_transitions(), row)) for row in (0, 1)
    )
    better = math.tanh(0.4) if share else math.tanh(-0.8)
    assert goes_on["Q_Targets"] == pytest.approx(1 + 0.5 * (4 + slope * better))
    assert ends["Q_Targets"] == 0.5
    assert goes_on["Imitation_Share"] == share


def test_a_soft_choice_follows_the_values(ibrl, worlds):
    algo = ibrl(slope=0.0, offset=1.0, beta=4.0)
    worlds.set_actor(algo.actor, slope=0.0, offset=math.atanh(0.2))
    worlds.set_critic(algo.nets["critic_target"], (0, 0.5), (0, 0.5))
    imitated = math.tanh(1.0)
    share = 1 / (1 + math.exp(-4 * 0.5 * (imitated - 0.2)))
    obs, generator = {"s": torch.ones(20000, 1)}, torch.Generator().manual_seed(0)
    actions = algo.act(obs, algo.initial_state(20000), generator=generator).action[:, 0]
    assert set(actions.round(decimals=4).tolist()) == set(
        torch.tensor([0.2, imitated]).round(decimals=4).tolist()
    )
    # Four standard deviations of a binomial share.
    assert (actions > 0.3).float().mean().item() == pytest.approx(share, abs=4 * 0.5 / 141)
    torch.manual_seed(0)
    worlds.set_actor(algo.nets["actor_target"], slope=0.0, offset=math.atanh(0.2))
    batch = worlds.only(worlds.two_transitions(), 0)
    found = [worlds.losses(algo, batch) for _ in range(400)]
    assert {round(info["Q_Targets"], 3) for info in found} == {
        round(1 + 0.5 * 0.5 * imitated, 3),
        1.05,
    }
    assert all((info["Q_Targets"] > 1.1) == (info["Imitation_Share"] == 1.0) for info in found)
    drawn = sum(info["Imitation_Share"] for info in found) / 400
    assert drawn == pytest.approx(share, abs=4 * 0.5 / 20)


def test_a_soft_choice_is_the_imitation_policy_before_anything_is_learned(ibrl, worlds):
    algo = ibrl(slope=0.5, hidden=(8,), beta=10.0)
    action = worlds.action_in(algo, 1)
    assert all(worlds.action_in(algo, 1) == action for _ in range(20))
    assert action == pytest.approx(math.tanh(0.5))


def test_a_random_few_critics_make_the_target(ibrl, worlds):
    algo = ibrl(members=3, subset=2)
    worlds.set_critic(algo.nets["critic_target"], (1, 0), (2, 0), (3, 0))
    torch.manual_seed(0)
    batch = worlds.only(worlds.two_transitions(), 0)
    seen = {round(worlds.losses(algo, batch)["Q_Targets"], 3) for _ in range(50)}
    assert seen == {1 + 0.5 * 4, 1 + 0.5 * 8}


def test_the_actor_climbs_the_mean_of_the_critics(ibrl, worlds):
    algo = ibrl()
    worlds.set_actor(algo.actor, slope=0.0)
    worlds.set_critic(algo.nets["critic"], (0, 3), (0, -1))
    for _ in range(algo.config.actor.update_freq):
        worlds.gradients(algo, worlds.two_transitions())
    assert algo.actor.head.action.bias.grad.item() == pytest.approx(-1.0)
    assert all(p.grad is None for p in algo.base.parameters())


def learned(ibrl, worlds, offset):
    algo = ibrl(slope=0.0, offset=offset, hidden=(32,))
    for name in ("actor", "critic"):
        algo.optimizers[name].param_groups[0]["lr"] = 1e-2
    return algo, worlds.learn(algo, worlds.bandit(), 300)


def test_a_poor_imitation_policy_is_overtaken(ibrl, worlds):
    algo, info = learned(ibrl, worlds, math.atanh(-0.5))
    assert worlds.action_in(algo, 1) > 0.3
    assert info["Imitation_Share"].item() < 0.5


def test_a_good_imitation_policy_goes_on_where_the_actor_knows_nothing(ibrl, worlds):
    algo, _ = learned(ibrl, worlds, math.atanh(0.6))
    worlds.set_actor(algo.actor, slope=0.0, offset=-1.0)
    assert worlds.action_in(algo, 1) == pytest.approx(0.6)
