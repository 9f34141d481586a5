"""Conservative Q-learning: every loss by hand, and a bandit on which imitation fails."""

import math

import pytest
import torch
from torch.utils._pytree import tree_map

from imitate.algo.cql import CQL
from tests.algo.conftest import BATCH, STATE, Fixed, prepared
from tests.tiny import tiny_config

ACTION = 2


class Sampled(CQL):
    """Its sampled actions and their densities may be given."""

    samples = None

    def _sampled_actions(self, batch):
        return super()._sampled_actions(batch) if self.samples is None else self.samples


def make(overrides=(), ac_dim=ACTION, algo_name="cql", seed=0):
    critic = {"num_random_actions": 4}
    words = {"obs": {"state": STATE}, "hidden": [32], "algo": {"critic": critic}}
    config = tiny_config(algo_name, *overrides, **words)
    torch.manual_seed(seed)
    return Sampled(config.algo, config.observation, config, {"state": (STATE,)}, ac_dim, "cpu")


def policy(algo, obs):
    features, _ = algo.actor(obs, None)
    return algo.actor.head(features)


def zeroed(algo, mean=0.0, std=1.0):
    """The same policy in each state; mean and deviation before the tanh."""
    for parameter in algo.actor.parameters():
        parameter.data.zero_()
    algo.actor.head.mean.bias.data.fill_(mean)
    algo.actor.head.scale.bias.data.fill_(math.log(std))


def test_the_target_takes_the_least_target_critic_and_stops_at_terminals(worlds):
    algo = make()
    batch = prepared(algo)
    # Values 3 and 5, whatever the action, by the target networks; the online ones say 100.
    algo.nets["critic_target"] = Fixed([0.0, 0.0], [3.0, 5.0])
    algo.nets["critic"] = Fixed([0.0, 0.0], [100.0, 100.0])
    targets = [worlds.losses(algo, worlds.only(batch, row))["Q_Targets"] for row in range(BATCH)]
    assert targets == pytest.approx((batch["rewards"] + batch["discounts"] * 3.0).tolist())
    assert targets[2] == batch["rewards"][2].item()


def test_the_target_with_several_actions_takes_each_critics_best(worlds):
    algo = make(("algo.critic.num_action_samples=50",))
    batch = prepared(algo)
    algo.nets["critic_target"] = Fixed([1.0, 2.0])
    torch.manual_seed(3)
    actions, _ = policy(algo, batch["next_obs"]).draw(50)
    best = actions.sum(-1).amax(-1)
    expected = batch["rewards"] + batch["discounts"] * torch.minimum(best, 2 * best)
    torch.manual_seed(3)
    assert worlds.losses(algo, batch)["Q_Targets"] == pytest.approx(expected.mean().item())


def test_the_stochastic_backup_counts_the_entropy(worlds):
    algo = make(("algo.critic.deterministic_backup=false",))
    batch = prepared(algo)
    algo.nets["critic_target"] = Fixed([0.0, 0.0], [3.0, 5.0])
    algo.nets["entropy_weight"].log.data.fill_(math.log(0.5))
    torch.manual_seed(3)
    _, log_prob = policy(algo, batch["next_obs"]).draw(1)
    torch.manual_seed(3)
    expected = batch["rewards"] + batch["discounts"] * (3.0 - 0.5 * log_prob[:, 0])
    assert worlds.losses(algo, batch)["Q_Targets"] == pytest.approx(expected.mean().item())


def test_samples_come_from_three_distributions_with_their_densities(worlds):
    algo = make(ac_dim=1)
    zeroed(algo, mean=0.3, std=0.2)
    algo.nets["critic"] = critic = Fixed([1.0, 1.0])
    batch = worlds.only(prepared(algo), 0)
    gap = worlds.losses(algo, batch)["Q_Gap"]
    actions = critic.seen[0][0, :, 0]
    assert actions.shape == (13,) and actions[0] == batch["actions"][0, 0]
    # The values are the actions themselves; one over the density is 2 for the random ones.
    normal = torch.distributions.Normal(0.3, 0.2).log_prob(actions[5:].atanh())
    density = (normal - (1 - actions[5:].square()).log()).exp()
    of_random, of_policy = 2 * actions[1:5].exp().sum(), (actions[5:].exp() / density).sum()
    wanted = ((of_random + of_policy) / 12).log() - actions[0]
    assert gap == pytest.approx(wanted.item(), abs=1e-3)


def test_the_next_states_policy_is_among_the_samples(worlds):
    algo = make(ac_dim=1)
    batch = prepared(algo)
    # A policy that tells its state: mean 100 times the first value, next to no noise.
    zeroed(algo, std=math.exp(-20.0))
    algo.actor.mlp.layers[0].weight.data[0, 0] = 1.0
    algo.actor.mlp.layers[0].weight.data[1, 0] = -1.0
    algo.actor.head.mean.weight.data[0, :2] = torch.tensor([100.0, -100.0])
    algo.nets["critic"] = critic = Fixed([0.0, 0.0])
    worlds.losses(algo, batch)
    actions = critic.seen[0][:, 1:, 0]  # beside the data's
    torch.testing.assert_close(actions[:, 4].sign(), batch["obs"]["state"][:, 0].sign())
    torch.testing.assert_close(actions[:, 8].sign(), batch["next_obs"]["state"][:, 0].sign())


def test_the_critics_loss_by_hand(worlds):
    algo = make(("algo.critic.target_q_gap=null", "algo.critic.cql_weight=2.0"), ac_dim=1)
    algo.nets["critic"] = Fixed([1.0, 2.0])
    algo.nets["critic_target"] = Fixed([0.0, 0.0], [3.0, 5.0])
    batch = {
        **prepared(algo, 2),
        "actions": torch.tensor([[0.5], [-0.5]]),
        "rewards": torch.tensor([1.0, 0.0]),
        "discounts": torch.tensor([0.5, 0.0]),
    }
    samples = torch.tensor([[[0.0], [1.0]], [[0.0], [-1.0]]])
    algo.samples = samples, torch.tensor([0.5, 0.25]).log().expand(2, 2)
    # Targets 1 + 0.5 * 3 and 0. Values 0.5, -0.5 and 1, -1.
    td = ((0.5 - 2.5) ** 2 + 0.5**2) / 2 + ((1 - 2.5) ** 2 + 1) / 2

    def gap(first, second, data):
        return math.log((2 * math.exp(first) + 4 * math.exp(second)) / 2) - data

    gaps = [(gap(0, 1, 0.5) + gap(0, -1, -0.5)) / 2, (gap(0, 2, 1) + gap(0, -2, -1)) / 2]
    info = worlds.losses(algo, batch)
    assert info["TD_Error"] == pytest.approx(td)
    assert info["Q_Gap"] == pytest.approx(sum(gaps) / 2)
    assert info["Critic_Loss"] == pytest.approx(td + 2.0 * sum(gaps))


def test_samples_of_no_weight_do_not_count(worlds):
    algo = make()
    whole = {**prepared(algo), "weight": torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])}
    part = tree_map(lambda value: None if value is None else value[:4], whole)
    samples, density = torch.rand(BATCH, 12, ACTION), torch.zeros(BATCH, 12)
    algo.nets["critic_target"] = Fixed([0.0, 0.0], [3.0, 5.0])
    algo.samples = samples, density
    first = worlds.losses(algo, whole)["Critic_Loss"]
    algo.samples = samples[:4], density[:4]
    assert worlds.losses(algo, part)["Critic_Loss"] == pytest.approx(first)


def test_the_learned_weight_rises_above_the_gap_that_is_asked_for_and_falls_below(worlds):
    for gap, sign in ((100.0, -1.0), (-100.0, 1.0)):
        algo = make((f"algo.critic.target_q_gap={max(gap, 0.0)}",))
        algo.samples = torch.zeros(BATCH, 12, ACTION), torch.zeros(BATCH, 12)
        algo.nets["critic"] = Fixed([0.0, 0.0], [1.0, 1.0])
        algo.nets["critic_target"] = Fixed([0.0, 0.0], [1.0, 1.0])
        # All values are 1 and all densities 1: the gap is 0, and log 12 summed over the samples.
        info = worlds.gradients(algo, prepared(algo))
        assert info["Q_Gap"] == pytest.approx(0.0, abs=1e-6)
        assert info["Q_Gap_Excess"] == pytest.approx(math.log(12) - max(gap, 0.0), abs=1e-5)
        # Gradient descent: a negative gradient raises the weight, here where the excess is positive.
        slope = algo.nets["cql_weight"].log.grad.item()
        assert slope == pytest.approx(-(math.log(12) - max(gap, 0.0)), rel=1e-5)
        assert math.copysign(1.0, slope) == -sign


def test_the_actors_loss_by_hand(worlds):
    algo = make()
    zeroed(algo, std=0.5)
    batch = prepared(algo)
    algo.nets["critic"] = critic = Fixed([1.0, -2.0])
    algo.nets["entropy_weight"].log.data.fill_(math.log(0.25))
    info = worlds.losses(algo, batch)
    actions = critic.seen[-1]
    assert actions.shape == (BATCH, ACTION)
    normal = torch.distributions.Normal(0.0, 0.5).log_prob(actions.atanh())
    log_prob = (normal - (1 - actions.square()).log()).sum(-1)
    total = actions.sum(-1)
    expected = (0.25 * log_prob - torch.minimum(total, -2 * total)).mean()
    assert info["Actor_Loss"] == pytest.approx(expected.item(), abs=1e-4)
    assert info["Entropy"] == pytest.approx(-log_prob.mean().item(), abs=1e-4)


def test_the_warm_start_imitates_and_ends(worlds):
    algo = make(("algo.actor.bc_start_steps=2",))
    batch = prepared(algo)
    liked = policy(algo, batch["obs"]).log_prob(batch["actions"]).mean().item()
    info = worlds.losses(algo, batch)
    assert info["Actor_Loss"] == pytest.approx(-info["Entropy"] - liked, rel=1e-5)
    algo.set_train()
    for _ in range(2):
        algo.train_on_batch(batch, 1)
    algo.nets["critic"] = critic = Fixed([1.0, -2.0])
    info = worlds.losses(algo, batch)
    total = critic.seen[-1].sum(-1)
    value = torch.minimum(total, -2 * total).mean().item()
    bonus = info["Entropy_Weight"] * info["Entropy"]
    assert info["Actor_Loss"] == pytest.approx(-bonus - value, rel=1e-5)


@pytest.mark.parametrize(
    ("target", "wanted"), [("default", -2.0), ("1.5", 1.5)], ids=["default", "given"]
)
def test_the_entropy_weight_rises_where_the_entropy_is_too_low(worlds, target, wanted):
    algo = make((f"algo.actor.target_entropy={target}",))
    zeroed(algo, std=1e-3)  # an entropy far below
    info = worlds.gradients(algo, prepared(algo))
    # Descent along what is missing raises the logarithm of the weight.
    slope = algo.nets["entropy_weight"].log.grad.item()
    assert slope < 0 and slope == pytest.approx(info["Entropy"] - wanted, rel=1e-5)


def test_without_tuning_the_weights_are_fixed(worlds):
    algo = make(("algo.actor.target_entropy=null", "algo.critic.target_q_gap=-1.0"))
    assert set(algo.nets) == {"actor", "critic", "critic_target"}
    assert set(algo.optimizers) == {"actor", "critic"}
    algo.train_on_batch(prepared(algo), 1)
    info = worlds.losses(algo, prepared(algo))
    assert (info["Entropy_Weight"], info["CQL_Weight"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("weight", "target", "told"),
    [
        ("actor.initial_entropy_weight", "actor.target_entropy=default", "Entropy_Weight"),
        ("actor.initial_entropy_weight", "actor.target_entropy=null", "Entropy_Weight"),
        ("critic.cql_weight", "critic.target_q_gap=5.0", "CQL_Weight"),
        ("critic.cql_weight", "critic.target_q_gap=null", "CQL_Weight"),
    ],
)
def test_the_weights_begin_as_asked(worlds, weight, target, told):
    algo = make((f"algo.{target}", f"algo.{weight}=0.02"))
    assert worlds.losses(algo, prepared(algo))[told] == pytest.approx(0.02)


def test_targets_follow_slowly():
    algo = make(("algo.target_tau=0.1",))
    before = [p.clone() for p in algo.nets["critic_target"].parameters()]
    algo.set_train()
    algo.train_on_batch(prepared(algo), 1)
    after = (algo.nets[name].parameters() for name in ("critic_target", "critic"))
    for old, new, online in zip(before, *after, strict=True):
        torch.testing.assert_close(new, old + 0.1 * (online - old))


def bandit(size=128):
    """Three actions in four are near -0.5 and bring 0, one is near 0.5 and brings 1."""
    generator = torch.Generator().manual_seed(1)
    good = torch.rand(size, 1, generator=generator) < 0.25
    noise = 0.1 * torch.randn(size, 1, generator=generator)
    actions = (torch.where(good, 0.5, -0.5) + noise).clamp(-0.99, 0.99)
    state = torch.zeros(size, STATE)
    return {
        "obs": {"state": state},
        "next_obs": {"state": state},
        "goal_obs": None,
        "actions": actions,
        "rewards": good[:, 0].float(),
        "discounts": torch.zeros(size),
        "weight": None,
        "returns": good[:, 0].float(),
    }


@pytest.mark.slow("two critics that learn")
def test_the_conservative_term_pushes_unseen_actions_below_those_of_the_data(worlds):
    """Without it the critic extrapolates: beyond the good actions near 0.5 ever higher."""
    advantage = {}
    for weight in (1e-9, 0.3):
        words = f"algo.critic.target_q_gap=null algo.critic.cql_weight={weight}"
        rate = "algo.optim_params.critic.learning_rate.initial=0.01"
        algo = make((*words.split(), rate), ac_dim=1)
        worlds.learn(algo, bandit(), 75)
        actions = torch.tensor([[0.99], [0.5]])
        unseen, good = algo.nets["critic"]({"state": torch.zeros(2, STATE)}, actions).amin(0)
        advantage[weight] = (unseen - good).item()
    assert advantage[1e-9] > 0.0 and advantage[0.3] < -0.1
