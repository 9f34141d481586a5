"""Batch-constrained Q-learning: targets and losses by hand, and a bandit on which imitation fails."""

import copy
import math

import pytest
import torch

from imitate.algo.bcq import BCQ, GMMSampler, VAESampler
from tests.algo.conftest import STATE, Fixed, learns, moved_by, prepared
from tests.tiny import tiny_algo

ACTION = 2
ACTOR = ("algo.actor.enabled=true", "algo.actor.layer_dims=[16]")
GMM = ("algo.action_sampler.gmm.enabled=true", "algo.action_sampler.actor_layer_dims=[16]")
ATOMS = ("distributional.enabled=true", "distributional.num_atoms=3", "value_bounds=[0.0, 2.0]")
DISTRIBUTIONAL = tuple(f"algo.critic.{key}" for key in ATOMS)


def make(overrides=(), ac_dim=ACTION, seed=0):
    critic = {"num_action_samples": 4, "num_action_samples_rollout": 16}
    algo = {"critic": critic, "action_sampler": {"vae": {"latent_dim": 2}}}
    words = {"obs": {"state": STATE}, "hidden": [32], "algo": algo}
    return tiny_algo("bcq", *overrides, action=ac_dim, seed=seed, **words)


class Logits(torch.nn.Module):
    """Critics with distributions that only depend on whether the action is positive."""

    def __init__(self, positive, negative):
        super().__init__()
        self.positive, self.negative = torch.tensor(positive).log(), torch.tensor(negative).log()

    def forward(self, obs, actions, goal=None):
        is_positive = (actions.sum(-1) > 0).unsqueeze(-1)
        shape = (2, *[1] * (actions.dim() - 1), -1)
        return torch.where(is_positive, self.positive.view(shape), self.negative.view(shape))


def fix_samples(algo, actions):
    """Let the sampler give these actions (B, N, A), whatever is asked."""
    algo.sampler.sample = lambda obs, goal, number, generator=None: actions


@pytest.mark.parametrize(
    ("overrides", "distributional", "sampler"),
    [
        ((), False, VAESampler),
        (GMM, False, GMMSampler),
        (DISTRIBUTIONAL, True, VAESampler),
        ((*DISTRIBUTIONAL, *GMM), True, GMMSampler),
    ],
)
def test_the_section_picks_the_parts(overrides, distributional, sampler):
    algo = make(overrides)
    assert type(algo) is BCQ
    assert (algo.nets["critic"].num_atoms > 0) is distributional
    assert type(algo.sampler) is sampler
    assert "actor" not in algo.nets
    assert {"actor", "actor_target"} <= set(make((*overrides, *ACTOR)).nets)


def test_the_target_mixes_least_and_greatest_then_takes_the_best_action(worlds):
    algo = make(ac_dim=1)
    batch = {
        **prepared(algo, 2),
        "rewards": torch.tensor([1.0, 5.0]),
        "discounts": torch.tensor([0.5, 0.0]),
    }
    algo.nets["critic_target"] = Fixed([1.0, -1.0])
    algo.nets["critic"] = Fixed([100.0, 100.0])
    samples = torch.tensor([[[0.2], [0.8]], [[0.5], [0.5]]])
    # Values (a, -a): 0.75 (-a) + 0.25 a = -a / 2; the best of -0.1 and -0.4 is -0.1. The second is terminal.
    for row, target in ((0, 1.0 - 0.05), (1, 5.0)):
        fix_samples(algo, samples[row : row + 1])
        assert worlds.losses(algo, worlds.only(batch, row))["Q_Targets"] == pytest.approx(target)


def test_the_target_perturbs_by_the_target_actor_and_acting_by_the_online_one(worlds):
    algo = make((*ACTOR, "algo.actor.perturbation_scale=0.1"), ac_dim=1)

    def towards(sign):
        net = copy.deepcopy(algo.nets["actor"])
        for parameter in net.parameters():
            parameter.data.zero_()
        net.head.action.bias.data.fill_(sign * 100.0)
        return net

    algo.nets["actor_target"], algo.nets["actor"] = towards(1.0), towards(-1.0)
    algo.nets["critic_target"] = algo.nets["critic"] = Fixed([1.0, 1.0])
    fix_samples(algo, torch.full((1, 1, 1), 0.3))
    batch = {**prepared(algo, 1), "rewards": torch.zeros(1), "discounts": torch.ones(1)}
    info = worlds.losses(algo, batch)
    assert info["Q_Targets"] == pytest.approx(0.4)
    assert info["Actor_Loss"] == pytest.approx(-0.2)
    assert algo.get_action(batch["obs"]).item() == pytest.approx(0.2)
    # A perturbed action is an action.
    fix_samples(algo, torch.full((1, 1, 1), -0.95))
    assert algo.get_action(batch["obs"]).item() == -1.0


def test_the_critics_loss_by_hand(worlds):
    algo = make(ac_dim=1)
    algo.nets["critic"] = Fixed([1.0, 2.0])
    algo.nets["critic_target"] = Fixed([0.0, 0.0], [4.0, 4.0])
    fix_samples(algo, torch.zeros(2, 1, 1))
    batch = {
        **prepared(algo, 2),
        "actions": torch.tensor([[0.5], [-1.0]]),
        "rewards": torch.tensor([1.0, 1.0]),
        "discounts": torch.tensor([0.5, 0.0]),
    }
    # Targets 3 and 1; values 0.5, -1 and 1, -2.
    expected = ((2.5**2 + 2**2) + (2**2 + 3**2)) / 2
    assert worlds.losses(algo, batch)["Critic_Loss"] == pytest.approx(expected)
    batch["weight"] = torch.tensor([1.0, 0.0])
    assert worlds.losses(algo, batch)["Critic_Loss"] == pytest.approx(2.5**2 + 2**2)


def test_the_actor_learns_and_neither_sampler_nor_critic_from_its_loss(worlds):
    later = "algo.optim_params.{}.start_epoch=2"
    algo = make((*ACTOR, later.format("critic"), later.format("action_sampler")))
    worlds.gradients(algo, prepared(algo))
    assert all(p.grad is not None for p in algo.nets["actor"].parameters())
    assert all(p.grad is None for p in algo.sampler.parameters())
    assert all(p.grad is None for p in algo.nets["critic"].parameters())


def test_acting_takes_the_first_critics_best():
    algo = make(ac_dim=1)
    algo.nets["critic"] = Fixed([1.0, -5.0])
    fix_samples(algo, torch.tensor([[[0.1], [0.7], [-0.9]], [[-0.2], [-0.1], [-0.3]]]))
    step = algo.act({"state": torch.zeros(2, STATE)}, algo.initial_state(2))
    torch.testing.assert_close(step.action, torch.tensor([[0.7], [-0.1]]))
    torch.testing.assert_close(step.extras["value"], torch.tensor([0.7, -0.1]))


def test_the_error_of_a_validation_is_the_distance_of_the_best_action(worlds):
    algo = make(ac_dim=1)
    algo.nets["critic"] = Fixed([1.0, -5.0])
    fix_samples(algo, torch.tensor([[[0.1], [0.75], [-0.9]]]))
    batch = worlds.only({**prepared(algo), "actions": torch.full((6, 1), 0.25)}, 0)
    info = algo.train_on_batch(batch, 1, validate=True)
    assert info["Action_Error"].item() == pytest.approx(0.5)


def test_as_many_actions_are_drawn_as_asked(worlds):
    algo, asked = make(), []
    sample = algo.sampler.sample
    algo.sampler.sample = lambda obs, goal, number, *rest: (
        asked.append(number) or sample(obs, goal, number, *rest)
    )
    algo.train_on_batch(prepared(algo), 1)
    algo.get_action(prepared(algo)["obs"])
    assert asked == [4, 16]


@pytest.mark.parametrize("overrides", [(), GMM], ids=["vae", "gmm"])
def test_samples_of_each_state_are_its_own(overrides):
    """After training on actions that are the state, samples of several states at once are near their states."""
    algo = make((*overrides, "algo.action_sampler.vae.kl_weight=0.01"), ac_dim=1)
    state = torch.rand(256, STATE, generator=torch.Generator().manual_seed(0)) - 0.5
    batch = {**prepared(algo, 1), "obs": {"state": state}, "actions": state[:, :1]}
    optimizer = torch.optim.Adam(algo.sampler.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        algo.sampler.loss(batch)[0].backward()
        optimizer.step()
    asked = torch.tensor([[-0.4, 0.0, 0.0], [0.0, 0.0, 0.0], [0.4, 0.0, 0.0]])
    samples = algo.sampler.sample({"state": asked}, None, 50)
    assert samples.shape == (3, 50, 1)
    torch.testing.assert_close(samples.mean(1), asked[:, :1], atol=0.12, rtol=0.0)


def test_the_samplers_losses_are_those_of_vae_and_mixture():
    algo = make(("algo.action_sampler.vae.kl_weight=0.3",))
    batch = {**prepared(algo), "weight": torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])}
    torch.manual_seed(1)
    out = algo.sampler.vae(batch["actions"], batch["obs"]["state"])
    expected = out.reconstruction_loss[:2].mean() + 0.3 * out.kl[:2].mean()
    torch.manual_seed(1)
    torch.testing.assert_close(algo.sampler.loss(batch)[0], expected)
    algo = make(GMM)
    density = algo.sampler.head(algo.sampler.mlp(batch["obs"]["state"])).log_prob(batch["actions"])
    torch.testing.assert_close(algo.sampler.loss(batch)[0], -density[:2].mean())


def test_the_vaes_encoder_freezes_at_its_epoch():
    algo = make(("algo.action_sampler.freeze_encoder_epoch=3",))
    algo.set_train()

    def moved(epoch):
        before = {k: v.clone() for k, v in algo.sampler.vae.state_dict().items()}
        algo.train_on_batch(prepared(algo), epoch)
        after = algo.sampler.vae.state_dict()
        return {k.split(".")[0] for k, v in before.items() if not torch.equal(v, after[k])}

    assert moved(2) == {"encoder", "decoder"} and moved(3) == {"decoder"}


def test_networks_learn_in_their_epochs_only():
    stage = "algo.optim_params.{}.{}_epoch={}"
    stages = (("action_sampler", "end", 2), ("critic", "start", 2), ("actor", "start", 3))
    algo = make((*ACTOR, *(stage.format(*each) for each in stages)))
    algo.set_train()
    moves = [moved_by(algo, prepared(algo), epoch) for epoch in (1, 2, 3)]
    critics = {"critic", "critic_target"}
    assert moves == [{"action_sampler"}, critics, {*critics, "actor", "actor_target"}]


def target_distribution(worlds, algo, batch):
    """Target of a sample, from the cross-entropies to critics that are all but sure of one atom after the other."""
    found = []
    for atom in range(3):
        sure = [[0.8 if k == atom else 0.1 for k in range(3)]] * 2
        algo.nets["critic"] = Logits(sure, sure)
        loss = worlds.losses(algo, batch)["Critic_Loss"] / 2  # of two critics
        # -t log 0.8 - (1 - t) log 0.1
        found.append((loss + math.log(0.1)) / (math.log(0.1) - math.log(0.8)))
    return found


def test_the_target_distribution_atom_by_atom(worlds):
    algo = make(DISTRIBUTIONAL, ac_dim=1)  # atoms 0, 1, 2
    positive = [[0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]  # means 1.5 and 1.25
    negative = [[0.8, 0.1, 0.1], [0.8, 0.1, 0.1]]
    algo.nets["critic_target"] = Logits(positive, negative)
    fix_samples(algo, torch.tensor([[[-0.5], [0.5]]]))
    batch = {
        **prepared(algo, 2),
        "rewards": torch.tensor([0.5, 1.25]),
        "discounts": torch.tensor([0.5, 0.0]),
    }
    # The positive action is the better; 0.75 of its less hopeful member and 0.25 of the other: 0.1875, 0.3125, 0.5.
    # Atoms 0, 1, 2 move to 0.5, 1, 1.5: 0.1875 / 2 | 0.1875 / 2 + 0.3125 + 0.25 | 0.25. At a terminal all is at 1.25.
    goes_on, ends = (worlds.only(batch, row) for row in (0, 1))
    for rows, wanted in ((goes_on, [0.09375, 0.65625, 0.25]), (ends, [0.0, 0.75, 0.25])):
        assert target_distribution(worlds, algo, rows) == pytest.approx(wanted, abs=1e-5)
    # Its mean is the target of critics without distributions: 0.5 + 0.5 (0.75 1.25 + 0.25 1.5).
    assert worlds.losses(algo, goes_on)["Q_Targets"] == pytest.approx(0.5 + 0.5 * 1.3125)


def test_the_distributional_loss_by_hand(worlds):
    algo = make(DISTRIBUTIONAL, ac_dim=1)
    algo.nets["critic"] = Logits([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]], [[1 / 3] * 3] * 2)
    batch = {**prepared(algo, 1), "actions": torch.tensor([[0.5]])}
    batch |= {"rewards": torch.ones(1), "discounts": torch.zeros(1)}  # the second atom
    info = worlds.losses(algo, batch)
    assert info["Critic_Loss"] == pytest.approx(-math.log(0.25) - math.log(0.4))
    assert info["Q_Data"] == pytest.approx((0.75 + 1.2) / 2)


def test_a_distributional_critic_learns_the_distribution_of_a_bandits_rewards():
    alone = ("algo.critic.ensemble.n=1", "algo.optim_params.critic.learning_rate.initial=0.01")
    algo = make((*DISTRIBUTIONAL, *alone), ac_dim=1)
    batch = {**prepared(algo, 4), "obs": {"state": torch.zeros(4, STATE)}}
    batch |= {"actions": torch.zeros(4, 1), "discounts": torch.zeros(4)}
    batch["rewards"] = torch.tensor([0.0, 0.0, 0.0, 2.0])

    def learned():
        logits = algo.nets["critic"]({"state": torch.zeros(1, STATE)}, torch.zeros(1, 1))
        return (logits.softmax(-1)[0, 0] - torch.tensor([0.75, 0.0, 0.25])).abs().max() < 0.03

    assert learns(algo, batch, 300, learned)
