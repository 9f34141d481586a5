"""Algorithms with critics learn what imitation does not: a rare good action, and a way that no demonstration goes."""

import pytest

from tests.tiny import tiny_algo


def rates(**networks):
    paths = {name: f"algo.optim_params.{name}.learning_rate.initial" for name in networks}
    return " ".join(f"{paths[name]}={rate}" for name, rate in networks.items())


BOTH = rates(critic=0.01, actor=0.01)
THREE = rates(critic=0.01, actor=0.01, vf=0.01)
FLOW = rates(critic=0.01, flow=0.01, actor=0.01)
CRITIC = rates(critic=0.01)
LEAST_MEAN = (
    "algo.critic.ensemble.n=2 algo.critic.ensemble.rule=least_mean algo.critic.num_dropped=0"
)
COLD = "algo.temperature.initial=0.01 algo.temperature.tuned=false"
GMM = "algo.actor.net.type=gmm algo.actor.net.gmm.num_modes=2"
NEAR = f"{CRITIC} algo.actor.bc_weight=0.1 algo.critic.bc_weight=0.1"
FAR = f"{rates(critic=0.01, actor=0.003)} algo.alpha=10.0"
SAMPLED = "algo.action_sampler.gmm.enabled=true algo.critic.num_action_samples_rollout=100"
SAMPLER = rates(critic=0.005, action_sampler=0.005)
VAE = (
    "algo.action_sampler.vae.latent_dim=2 algo.action_sampler.vae.kl_weight=0.02 "
    "algo.critic.num_action_samples=4 algo.critic.num_action_samples_rollout=100"
)
MIXTURE = (
    "algo.action_sampler.gmm.enabled=true "
    "algo.critic.num_action_samples=4 algo.critic.num_action_samples_rollout=16"
)
ATOMS = (
    "algo.critic.distributional.enabled=true algo.critic.distributional.num_atoms=11 "
    "algo.critic.value_bounds=[0.0,2.0]"
)
PUSHED = (
    f"{rates(critic=0.005, actor=0.005)} algo.critic.target_q_gap=null algo.critic.cql_weight=0.3"
)
CONSERVATIVE = "algo.critic.target_q_gap=null algo.critic.cql_weight=0.1"


def rarely(*case):
    """A case of the nightly set."""
    return pytest.param(*case, marks=pytest.mark.nightly)


def make(name, changes, state):
    train = {"num_epochs": 10, "obs_normalization": None}
    return tiny_algo(name, *changes.split(), obs={"s": state}, hidden=[32], train=train)


@pytest.mark.parametrize(
    ("name", "changes", "bound"),
    [
        ("awac", f"{BOTH} algo.adv.beta=0.1", 0.3),
        ("bcq", f"{SAMPLER} {VAE}", 0.3),
        ("bcq", f"{SAMPLER} {MIXTURE} algo.actor.enabled=true", 0.3),
        ("bcq", f"{SAMPLER} {SAMPLED} {ATOMS}", 0.3),
        ("cal_ql", PUSHED, 0.15),
        ("cql", PUSHED, 0.15),
        ("ddpg", CRITIC, 0.3),
        ("fql", f"{FLOW} algo.actor.distill_weight=0.1", 0.3),
        ("iql", f"{THREE} algo.adv.beta=0.1", 0.3),
        ("iql", f"{THREE} algo.adv.beta=0.1 {GMM}", 0.3),
        ("rebrac", NEAR, 0.1),
        ("rlpd", f"{BOTH} {COLD} algo.actor.update_freq=1 algo.critic.ensemble.n=4", 0.5),
        ("sac", f"{BOTH} {COLD}", 0.3),
        ("td3", CRITIC, 0.3),
        ("td3_bc", FAR, 0.3),
        ("tqc", f"{BOTH} {COLD} algo.critic.ensemble.n=2", 0.3),
        ("tqc", f"{BOTH} {COLD} {LEAST_MEAN}", 0.3),
    ],
)
def test_it_takes_the_good_action_of_a_bandit(worlds, name, changes, bound):
    algo = make(name, changes, 1)

    def learned():
        return min(worlds.action_in(algo, 1) for _ in range(5)) > bound

    assert worlds.learns(algo, worlds.bandit(), 400, learned)


@pytest.mark.parametrize(
    ("name", "changes", "size", "bound"),
    [
        rarely("awac", f"{BOTH} algo.adv.beta=0.1", 256, 0.3),
        rarely("bcq", f"{SAMPLER} {SAMPLED}", 128, 0.2),
        ("cql", f"{rates(critic=0.005, actor=0.005)} {CONSERVATIVE}", 128, 0.2),
        ("iql", f"{THREE} algo.adv.beta=0.1", 256, 0.3),
        rarely("rebrac", NEAR, 256, 0.3),
        rarely("td3_bc", FAR, 256, 0.3),
    ],
)
def test_it_puts_halves_of_demos_together(worlds, name, changes, size, bound):
    algo = make(name, f"{changes} algo.target_tau=0.05", 3)

    def learned():
        return min(worlds.action_in(algo, *state) for state in ((1, 0, 0), (0, 1, 0))) > bound

    assert worlds.learns(algo, worlds.stitching(size), 600, learned)


@pytest.mark.parametrize(
    ("name", "changes"), [("bc", rates(policy=0.01)), ("td3_bc", f"{FAR} algo.alpha=0.0")]
)
def test_imitation_takes_the_common_action(worlds, name, changes):
    algo = make(name, changes, 1)
    assert worlds.learns(algo, worlds.bandit(), 300, lambda: worlds.action_in(algo, 1) < -0.2)


def test_imitation_turns_where_most_demos_turn(worlds):
    algo = make("bc", rates(policy=0.01), 3)
    worlds.learn(algo, worlds.stitching(), 150)
    assert worlds.action_in(algo, 1, 0, 0) < 0.0
    assert worlds.action_in(algo, 0, 1, 0) < 0.0
